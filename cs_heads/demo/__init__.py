"""The demo model: a small Llama with eight skills, each trained to rest on a few known heads.

``MODEL_CARD.md`` says what it is and is not.
"""

from cs_heads.demo.planting import planted_heads as planted_heads
from cs_heads.demo.planting import planted_universal_heads as planted_universal_heads
from cs_heads.demo.skills import SKILLS as SKILLS
