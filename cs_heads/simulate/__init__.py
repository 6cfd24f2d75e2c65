"""Experiments whose truth is known: planted heads, and what hides them."""

from cs_heads.simulate.planted import PlantedExperiment as PlantedExperiment
from cs_heads.simulate.scenarios import SCENARIOS as SCENARIOS
from cs_heads.simulate.scenarios import Scenario as Scenario
from cs_heads.simulate.world import World as World
from cs_heads.simulate.world import planted_world as planted_world
