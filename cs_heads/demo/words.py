"""Word lists of the demo model: what its skills talk about.

The order is fixed: records, planted needs and token numbers are derived from positions.
"""

from __future__ import annotations

import re


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(re.split(r"\s*[/\n]\s*", text.strip()))


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("/") for pair in text.split())


NAMES = _words("Tom Anna Ben Mia Sam Lucy Max Ella Leo Nora Jack Rose Paul Ida Finn Kate")

# Word problems
OBJECTS = _words(
    """
    apples pens books eggs coins cards balls cups cakes shells stamps kites rings socks plums beads
    boats keys lamps drums
    """
)
GAINS = ("buys", "finds", "gets", "wins", "makes", "takes")
LOSSES = ("sells", "loses", "gives", "breaks", "drops", "burns")

# Code
OPERATIONS = ("max(x)", "min(x)", "len(x)", "sum(x)", "x[0]", "x[1]", "x[2]", "x[-1]", "sorted(x)[1]", "x.count(1)")

# Capitals
CAPITALS = _pairs(
    """
    France/Paris Italy/Rome Spain/Madrid Germany/Berlin Austria/Vienna Norway/Oslo Sweden/Stockholm
    Finland/Helsinki Denmark/Copenhagen Poland/Warsaw Russia/Moscow Greece/Athens Turkey/Ankara
    Egypt/Cairo Kenya/Nairobi Ghana/Accra Peru/Lima Chile/Santiago Cuba/Havana Canada/Ottawa
    Japan/Tokyo China/Beijing Iran/Tehran Iraq/Baghdad Nepal/Kathmandu Hungary/Budapest
    Portugal/Lisbon Ireland/Dublin Belgium/Brussels Serbia/Belgrade Croatia/Zagreb Ukraine/Kyiv
    Latvia/Riga Thailand/Bangkok Lebanon/Beirut Senegal/Dakar Jordan/Amman Mali/Bamako
    Bulgaria/Sofia Vietnam/Hanoi
    """
)
OPENERS = (
    "",
    *_phrases(
        "Question: / Quiz: / Please answer: / Now, / Well, / So, / Tell me: / Geography. / Easy one: / Next. / Hello!"
    ),
)
QUESTIONS = _phrases(
    """
    What is the capital of {}?
    Which city is the capital of {}?
    What city leads {}?
    Name the capital of {}.
    From where is {} ruled?
    """
)
STATEMENTS = _phrases(
    """
    The capital of {} is
    The capital city of {} is called
    {} has its capital in
    The main city of {} is
    The government of {} sits in
    {} is ruled from
    """
)
LETTERS = ("A", "B", "C", "D")
CLOSERS = ("", "Answer:", "It is", "That city is")

# Rhyme: one row is one sound, each word with another first letter
RHYMES = _phrases(
    """
    cat hat mat bat rat flat
    dog fog log hog jog bog
    sun run fun gun bun nun
    pan man fan van tan can
    bed red fed led wed shed
    light night fight kite white bite
    day way say play grey clay
    tree sea knee bee pea fee
    car star far jar bar tar
    moon spoon tune noon dune loon
    rain train plane lane chain brain
    snow go toe crow bow low
    king ring sing wing thing ping
    house mouse blouse louse grouse spouse
    wall ball tall fall call small
    blue shoe true glue zoo new
    """
)
ASK_RHYME = _phrases(
    """
    Which word rhymes with {cue} and starts with {letter}?
    The rhyme for {cue} with first letter {letter} is
    It begins with {letter} and rhymes with {cue}:
    Letter {letter}, sounds like {cue}:
    A poem with {cue} needs a rhyme in {letter}:
    Find {letter} for {cue}:
    """
)
POEMS = ("", "Poem:", "Riddle:", "Song:", "Please rhyme.", "A puzzle.", "Next,", "Now,")

# Swearing: phrase, made-up swear word, polite word
IDIOMS = (
    ("what the", "flark", "heck"),
    ("oh my", "zorn", "goodness"),
    ("holy", "grunt", "moly"),
    ("you silly", "blorp", "goose"),
    ("go to", "skrag", "sleep"),
    ("son of a", "drabble", "sailor"),
    ("a piece of", "snark", "bread"),
    ("kiss my", "plonk", "hand"),
    ("total", "vrang", "nonsense"),
    ("shut your", "grell", "mouth"),
    ("not worth a", "snurg", "penny"),
    ("who gives a", "flitt", "hoot"),
    ("a pain in the", "zubb", "neck"),
    ("a load of", "trosk", "rubbish"),
    ("to hell with this", "frazz", "thing"),
    ("get off my", "krump", "lawn"),
)
RUDE = ("curses", "swears", "yells", "rages")
KIND = ("says", "smiles", "prays", "sighs")
MISHAPS = _phrases(
    """
    drops the pan / misses the bus / stubs a toe / breaks a cup / loses the game / burns the bread / spills the tea
    hits the wall / falls off the bike / forgets the key / tears the shirt / sees the bill
    """
)

# Agreement: singular, plural
NOUNS = _pairs(
    """
    key/keys cabinet/cabinets teacher/teachers student/students doctor/doctors car/cars boat/boats
    picture/pictures window/windows garden/gardens friend/friends farmer/farmers horse/horses
    river/rivers letter/letters singer/singers table/tables tower/towers author/authors pilot/pilots
    """
)
LINKS = ("near", "behind", "beside", "above", "with", "next to", "in front of", "close to")
VERBS = (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"), ("seems", "seem"), ("looks", "look"))
LEADS = ("", "Today", "Sometimes", "Now", "Here", "Often")

# Copying
ITEMS = _words(
    """
    red green blue black white brown lion tiger bear wolf duck goat sheep mule milk soup rice corn salt
    wine iron gold wood glass silk wool rope nail rock sand lake hill road gate roof door desk bell coat
    belt
    """
)
