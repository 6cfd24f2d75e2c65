"""The engine: rows of masks and examples, planned into forwards of which none is run twice.

From a mask to the hook: ``logprobs.Engine.run`` takes pairs of masks and examples; ``layout`` lays the tokens of a
mask's examples out as a tree of pieces; ``forwards.Forwards`` runs the pieces under gates (1 - mask), in batches that
fit into memory (``lens.batches``); ``lens.logprobs.token_logprobs`` reads tokens after one forward;
``lens.forward.logits_at`` runs this forward; ``lens.gates.gated`` adds its hooks.

``generation`` does the same for texts. ``ablation`` says what an ablated head's z becomes, ``plan`` how many tokens a
forward takes, ``protocol`` what an experiment asks of any engine.
"""

from cs_heads.engine.logprobs import Engine as Engine
