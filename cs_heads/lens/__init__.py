"""The only door to TransformerLens: load, gate ``hook_z`` per row, score tokens."""

from cs_heads.lens.fingerprint import fingerprint as fingerprint
from cs_heads.lens.gates import gated as gated
from cs_heads.lens.load import load_model as load_model
from cs_heads.lens.model import FoldedValueBiasesError as FoldedValueBiasesError
from cs_heads.lens.model import check_model as check_model
from cs_heads.lens.model import describe as describe
from cs_heads.lens.score import TargetScores as TargetScores
from cs_heads.lens.score import score_tokens as score_tokens
from cs_heads.lens.settings import settings_of as settings_of
from cs_heads.lens.tokens import EncodedExample as EncodedExample
from cs_heads.lens.tokens import encode_example as encode_example
