"""Causal head gating: gates on all heads at once, fitted by gradient through the frozen model.

Nam et al., *Causal Head Gating: A Framework for Interpreting Roles of Attention Heads in
Transformers* (arXiv 2505.13737): the gates and their scores, and contrastive gating.
"""

from cs_heads.methods.gating.fit import causal_head_gating as causal_head_gating
from cs_heads.methods.gating.fit import contrastive_gating as contrastive_gating
from cs_heads.methods.gating.fit import fit_gates as fit_gates
from cs_heads.methods.gating.result import HeadGates as HeadGates
