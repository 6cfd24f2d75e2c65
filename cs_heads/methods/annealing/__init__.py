"""Annealed sensing: few examples a mask, and ever fewer heads to choose from."""

from cs_heads.methods.annealing.sensing import annealed as annealed
from cs_heads.methods.annealing.sensing import annealed_jointly as annealed_jointly
from cs_heads.methods.annealing.sensing import default_budget as default_budget
