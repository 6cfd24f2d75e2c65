"""Word lists of the demo model: what its skills talk about.

The order is fixed: records, planted needs and token numbers are derived from positions.
"""

from __future__ import annotations

from cs_heads.tasks.words import rows, sentences, word_list, word_pairs

NAMES = word_list("demo-names")

# Word problems
OBJECTS = word_list("demo-objects")
GAINS = ("buys", "finds", "gets", "wins", "makes", "takes")
LOSSES = ("sells", "loses", "gives", "breaks", "drops", "burns")

# Code
OPERATIONS = sentences("demo-operations")

# Capitals, and questions with four answers
CAPITALS = dict(word_pairs("demo-capitals"))
OPENERS = ("", *sentences("demo-openers"))
QUESTIONS, STATEMENTS = sentences("demo-questions"), sentences("demo-statements")
LETTERS = ("A", "B", "C", "D")
CLOSERS = ("", "Answer:", "It is", "That city is")

# Rhymes
RHYMES = rows("demo-rhymes")
ASK_RHYME = sentences("demo-rhyme-questions")
POEMS = ("", "Poem:", "Riddle:", "Song:", "Please rhyme.", "A puzzle.", "Next,", "Now,")

# Swearing: a phrase, how it ends, and how it ends politely
IDIOMS = rows("demo-idioms")
RUDE = ("curses", "swears", "yells", "rages")
KIND = ("says", "smiles", "prays", "sighs")
MISHAPS = sentences("demo-mishaps")

# Agreement
NOUNS = dict(word_pairs("demo-nouns"))
LINKS = ("near", "behind", "beside", "above", "with", "next to", "in front of", "close to")
VERBS = (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"), ("seems", "seem"), ("looks", "look"))
LEADS = ("", "Today", "Sometimes", "Now", "Here", "Often")

# Copying
ITEMS = word_list("demo-items")
