"""Annealed sensing: few examples a mask, and ever fewer heads to choose from."""

from cs_heads.methods.annealing.joint import annealed_jointly as annealed_jointly
from cs_heads.methods.annealing.method import annealed as annealed
from cs_heads.methods.annealing.method import bound as bound
from cs_heads.methods.annealing.method import default_budget as default_budget
