"""The only door to TransformerLens: load, gate ``hook_z`` per row, score tokens.

**Ablation** acts on ``blocks.{layer}.attn.hook_z``, the output of each head before W_O, on every token: after W_O
the heads are summed, and a slice of the sum is no head. What is put in a head's place is ``zero``; its ``mean``
over all tokens of the task's examples, run intact beforehand, or at each position (``position_mean``); what it is on
another example drawn by lot (``resample``); or one learned constant (``optimal``). Bair et al. use zero; the others
keep the later layers closer to what they are used to. Other **units** are gated alike at hook points of their own
(``gates.gated``), all of them at all tokens or at some (``positions``).

Rows of one forward pass may each have a mask of their own, and a **gate** between 0 and 1 in place of a mask
weighs a head instead of removing it. All hooks are gone after each call, and hooks of others stay. A model whose
value biases are folded into the output bias is refused: zeroing a head there leaves a part of it standing.
"""

from cs_heads.lens.fingerprint import fingerprint as fingerprint
from cs_heads.lens.fingerprint import settings_of as settings_of
from cs_heads.lens.gates import gated as gated
from cs_heads.lens.load import load_model as load_model
from cs_heads.lens.model import FoldedValueBiasesError as FoldedValueBiasesError
from cs_heads.lens.model import HookedModel as HookedModel
from cs_heads.lens.model import ModelInfo as ModelInfo
from cs_heads.lens.model import check_ablatable as check_ablatable
from cs_heads.lens.state import ModelState as ModelState
from cs_heads.lens.state import check_weights as check_weights
from cs_heads.lens.state import describe as describe
from cs_heads.lens.tokens import EncodedExample as EncodedExample
from cs_heads.lens.tokens import encode_example as encode_example
from cs_heads.lens.tokens import prepended as prepended
