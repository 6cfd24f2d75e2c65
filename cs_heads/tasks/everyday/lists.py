"""Names, words and sentences that everyday skills are made of."""

from string import ascii_lowercase, ascii_uppercase

from cs_heads.tasks.words import rows


def words(name: str) -> tuple[str, ...]:
    """The words of a list, in its order."""
    return tuple(word for row in rows(f"everyday-{name}") for word in row)


WOMEN, MEN = words("women"), words("men")
NOUNS = words("nouns")

# What is said of somebody, up to the pronoun.
PRONOUN_TEMPLATES = (
    "{} was tired, so",
    "{} will call us as soon as",
    "{} bought a new car after",
    "{} lost the keys, but",
    "{} is famous because",
    "My friend {} is here, and",
    "Everybody likes {} because",
    "I met {} yesterday, and",
    "I know {} well, and",
    "We asked {} to wait until",
)

# {0} gives and is named twice, {1} receives.
GIVING_TEMPLATES = (
    "{0} and {1} went to the {2}. {0} gave a {3} to",
    "When {0} and {1} met at the {2}, {0} handed a {3} to",
    "After {0} and {1} left the {2}, {0} sent a {3} to",
    "{0} and {1} had a long day at the {2}. In the evening {0} gave the {3} to",
    "While {0} and {1} were waiting at the {2}, {0} passed the {3} to",
    "Then {0} and {1} walked back from the {2}, and {0} showed the {3} to",
)
PLACES = ("office", "beach", "station", "market", "hospital", "museum", "farm", "library", "school", "garden")
THINGS = ("book", "letter", "ticket", "map", "camera", "key", "gift", "phone", "cup", "ring")

LINKS = ("near", "behind", "next to", "in front of", "beside", "under", "close to", "with")
VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))

# Names of arguments in code.
PARAMETERS = words("parameters")
FUNCTIONS = ("combine", "compute", "calculate", "process", "get_result", "find", "check", "f")

# What is open at the end of a text is closed by the mark.
OPEN_TEMPLATES = {
    ")": ("print({0}", "The {0} (or the {1}", "max({0}, {1}", "We saw a {0} (and a {1}"),
    "]": ("[{0}, {1}", "words = [{0}, {1}", "items[{0}", "list = [{0}"),
    "}": ("{{{0}, {1}", "words = {{{0}, {1}", "set = {{{0}", "{{{0}: {1}"),
    '"': ('She said "{0}', 'The word is "{0}', 'name = "{0}', 'They call it a "{0}'),
}

# Each follows the one before it; a second form is another way to write the series.
ROUND = {
    "days": rows("everyday-days"),
    "months": rows("everyday-months"),
}
STRAIGHT = {
    "numbers": rows("everyday-numbers")[:1],
    "tens": rows("everyday-numbers")[1:2],
    "ordinals": rows("everyday-numbers")[2:3],
    "letters": (tuple(ascii_uppercase), tuple(ascii_lowercase)),
}
