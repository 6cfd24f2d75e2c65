"""Two versions of a scorer never share a key; one version has the same key everywhere."""

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from cs_heads.tasks import Example
from cs_heads.tasks.scorer import as_scorer
from tests.waiting import run_program

HELPERS = """
from functools import wraps
LIMIT = 3
def long(text):
    return len(text) > LIMIT
class Base:
    def judge(self, text):
        return len(text) > 4
def inverted(function):
    @wraps(function)
    def scorer(example, text):
        return 1 - function(example, text)
    return scorer
"""


def own(source: str, helpers: str = HELPERS) -> dict[str, str]:
    """The modules of a user: what defines ``score``, and what that imports."""
    return {"own_scorer": source, "own_helpers": helpers}


# A scorer in two versions: its module, and what is edited there or in the module that it imports.
PAIRS = {
    "a function of another module": (
        "import own_helpers\ndef score(example, text): return float(own_helpers.long(text))",
        ("len(text) > LIMIT", "len(text) >= LIMIT"),
    ),
    "a function imported under another name": (
        "from own_helpers import long as is_long\ndef score(example, text): return float(is_long(text))",
        ("len(text) > LIMIT", "len(text) >= LIMIT"),
    ),
    "a constant that a function of another module reads": (
        "from own_helpers import long\ndef score(example, text): return float(long(text))",
        ("LIMIT = 3", "LIMIT = 4"),
    ),
    "a module imported inside the function": (
        "def score(example, text):\n    import own_helpers as helpers\n    return float(helpers.long(text))",
        ("LIMIT = 3", "LIMIT = 4"),
    ),
    "a name imported inside the function": (
        "def score(example, text):\n    from own_helpers import long\n    return float(long(text))",
        ("LIMIT = 3", "LIMIT = 4"),
    ),
    "a name with underscores of a module that is handed on": (
        "import own_helpers\ndef asked(module): return getattr(module, '__least__', 0)\n"
        "def score(example, text): return float(asked(own_helpers))",
        ("LIMIT = 3", "LIMIT = 3\n__least__ = 1"),
    ),
    "a module that is handed on": (
        "import own_helpers\ndef asked(module, name): return getattr(module, name)\n"
        "def score(example, text): return float(asked(own_helpers, 'long')(text))",
        ("LIMIT = 3", "LIMIT = 4"),
    ),
    "a decorator of another module": (
        "from own_helpers import inverted\n@inverted\ndef score(example, text): return float('a' in text)",
        ("1 - function(example, text)", "function(example, text)"),
    ),
    "a function behind a decorator": (
        "from own_helpers import inverted\n@inverted\ndef score(example, text): return float('a' in text)",
        ("'a'", "'b'"),
    ),
    "a function behind a decorator of Python's own": (
        "from contextlib import contextmanager\n@contextmanager\ndef judged(text): yield 'a' in text\n"
        "def score(example, text):\n    with judged(text) as judgement: return float(judgement)",
        ("'a'", "'b'"),
    ),
    "a function behind a cache": (
        "from functools import lru_cache\n@lru_cache\ndef judged(text): return 'a' in text\n"
        "def score(example, text): return float(judged(text))",
        ("'a'", "'b'"),
    ),
    "a method of an own dataclass": (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Rule:\n    least: int = 1\n"
        "    def judge(self, text): return len(text) > self.least\n"
        "RULE = Rule()\ndef score(example, text): return float(RULE.judge(text))",
        ("len(text) > self", "len(text) >= self"),
    ),
    "a default of an own dataclass": (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Rule:\n    least: int = 1\n"
        "def score(example, text): return float(len(text) > Rule().least)",
        ("int = 1", "int = 2"),
    ),
    "a method of a base class in another module": (
        "from own_helpers import Base\nclass Rule(Base): pass\n"
        "def score(example, text): return float(Rule().judge(text))",
        ("len(text) > 4", "len(text) > 5"),
    ),
    "an attribute of a class": (
        "class Rule:\n    least = 1\ndef score(example, text): return float(len(text) > Rule.least)",
        ("least = 1", "least = 2"),
    ),
    "the state of an object": (
        "class Rule:\n    def __init__(self, least): self.least = least\n"
        "RULE = Rule(1)\ndef score(example, text): return float(len(text) > RULE.least)",
        ("Rule(1)", "Rule(2)"),
    ),
    "the state of an object with slots": (
        "class Rule:\n    __slots__ = ('least',)\n    def __init__(self, least): self.least = least\n"
        "RULE = Rule(1)\ndef score(example, text): return float(len(text) > RULE.least)",
        ("Rule(1)", "Rule(2)"),
    ),
    "an object that is called": (
        "class Rule:\n    def __call__(self, example, text): return float(len(text) > 1)\nscore = Rule()",
        ("> 1", "> 2"),
    ),
    "a method that is the scorer": (
        "class Rule:\n    least = 1\n    def judge(self, example, text): return float(len(text) > self.least)\n"
        "RULE = Rule()\nRULE.least = 3\nscore = RULE.judge",
        ("RULE.least = 3", "RULE.least = 4"),
    ),
    "a method of a subclass of list": (
        "class Words(list):\n    def __contains__(self, text): return text.lower() in list(self)\n"
        "WORDS = Words(['a'])\ndef score(example, text): return float(text in WORDS)",
        ("text.lower()", "text.upper()"),
    ),
    "the contents of a subclass of list": (
        "class Words(list): pass\nWORDS = Words(['a'])\ndef score(example, text): return float(text in WORDS)",
        ("['a']", "['b']"),
    ),
    "an attribute of a subclass of str": (
        "class Word(str): pass\nWORD = Word('a')\nWORD.weight = 1\n"
        "def score(example, text): return float(WORD in text) * WORD.weight",
        ("weight = 1", "weight = 0"),
    ),
    "a method of a subclass of str": (
        "class Word(str):\n    def within(self, text): return self in text\nWORD = Word('a')\n"
        "def score(example, text): return float(WORD.within(text))",
        ("self in text", "self not in text"),
    ),
    "the factory of a defaultdict": (
        "from collections import defaultdict\ndef least(): return 1\nWEIGHTS = defaultdict(least, a=2)\n"
        "def score(example, text): return float(WEIGHTS[text] > 1)",
        ("return 1", "return 2"),
    ),
    "an attribute of the function": (
        "def score(example, text): return float(len(text) > score.least)\nscore.least = 1",
        ("score.least = 1", "score.least = 2"),
    ),
    "a global read by its name": (
        "LEAST = 1\ndef score(example, text): return float(len(text) > globals()['LEA' + 'ST'])",
        ("LEAST = 1", "LEAST = 2"),
    ),
    "a global read by eval": (
        "LEAST = 1\ndef score(example, text): return float(len(text) > eval('LEAST'))",
        ("LEAST = 1", "LEAST = 2"),
    ),
    "parameters in another order": (
        "def judged(one, other): return float(locals()['one'] == 'a')\n"
        "def score(example, text): return judged(text, example.prompt)",
        ("judged(one, other)", "judged(other, one)"),
    ),
    "parameters of another name": (
        "def judged(**given): return float('text' in given)\n"
        "def score(example, text): return judged(**{score.__code__.co_varnames[1]: text})",
        ("score(example, text)", "score(example, said)"),
    ),
    "a keyword default": (
        "def score(example, text, *, least=1): return float(len(text) > least)",
        ("least=1", "least=2"),
    ),
    "what is closed over": (
        "def made(rules):\n    def score(example, text): return float(all(rule(text) for rule in rules))\n"
        "    return score\n"
        "score = made([lambda text: len(text) > 1])",
        ("> 1", "> 2"),
    ),
    "a function that is nested": (
        "def score(example, text):\n    def long(): return len(text) > 1\n    return float(long())",
        ("> 1", "> 2"),
    ),
    "a partial function": (
        "from functools import partial\ndef judged(least, example, text): return float(len(text) > least)\n"
        "score = partial(judged, 1)",
        ("judged, 1", "judged, 2"),
    ),
    "a method of a pattern": (
        "import re\nfound = re.compile('a').search\ndef score(example, text): return float(bool(found(text)))",
        ("'a'", "'b'"),
    ),
    "a property": (
        "class Rule:\n    @property\n    def least(self): return 1\n"
        "def score(example, text): return float(len(text) > Rule().least)",
        ("return 1", "return 2"),
    ),
    "an array": (
        "import numpy as np\nWEIGHTS = np.array([1, 2])\n"
        "def score(example, text): return float(WEIGHTS.sum() > len(text))",
        ("[1, 2]", "[1, 3]"),
    ),
    "a member of an enumeration": (
        "from enum import Enum\nclass Least(Enum):\n    FEW = 1\n"
        "def score(example, text): return float(len(text) > Least.FEW.value)",
        ("FEW = 1", "FEW = 2"),
    ),
    "a metaclass": (
        "class Kind(type):\n    def least(cls): return 1\nclass Rule(metaclass=Kind): pass\n"
        "def score(example, text): return float(len(text) > Rule.least())",
        ("return 1", "return 2"),
    ),
    "a set": (
        "WORDS = {'ab', 'cd', 'ef', 'gh'}\n"
        "def score(example, text): return float(text in WORDS and text in {'ab', 'xy'})",
        ("'gh'", "'hg'"),
    ),
    "words told as objects in a set": (
        "from collections import namedtuple\nWord = namedtuple('Word', 'text weight')\n"
        "WORDS = {Word('ab', 1), Word('cd', 2), Word('ef', 3)}\n"
        "def score(example, text): return float(any(word.text == text for word in WORDS))",
        ("Word('ef', 3)", "Word('ef', 4)"),
    ),
}


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Writes modules of a user and imports them as if in a new process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: set[str] = set()

    def load(modules: dict[str, str]):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
            sys.modules.pop(name, None)
            names.add(name)
        invalidate_caches()
        return import_module("own_scorer")

    yield load
    for name in names:
        sys.modules.pop(name, None)


def edited(modules: dict[str, str], old: str, new: str) -> dict[str, str]:
    changed = {name: source.replace(old, new) for name, source in modules.items()}
    assert changed != modules
    return changed


@pytest.mark.parametrize(("source", "edit"), PAIRS.values(), ids=PAIRS)
def test_two_versions_of_a_scorer_never_share_a_key(source, edit, imported):
    modules = own(source)
    first = as_scorer(imported(modules).score).identity
    assert as_scorer(imported(modules).score).identity == first, "imported again, it is the same scorer"
    assert as_scorer(imported(edited(modules, *edit)).score).identity != first


def test_a_global_changed_by_another_function_makes_another_scorer(imported):
    module = imported(
        own(
            "LEAST = 1\ndef raise_it():\n    global LEAST\n    LEAST = 2\n"
            "def score(example, text): return float(len(text) > LEAST)"
        )
    )
    scorer = as_scorer(module.score)
    before = scorer.identity
    module.raise_it()
    assert scorer.identity != before


def test_the_key_is_the_same_in_every_process(tmp_path):
    """Whatever the order of sets is there, and whether modules come from source or compiled."""
    for place, (source, _) in enumerate(PAIRS.values()):
        (tmp_path / f"own_{place}.py").write_text(source, encoding="utf-8")
    (tmp_path / "own_helpers.py").write_text(HELPERS, encoding="utf-8")
    program = (
        "from importlib import import_module\n"
        "from cs_heads.tasks.scorer import as_scorer\n"
        f"for place in range({len(PAIRS)}): print(as_scorer(import_module(f'own_{{place}}').score).identity)"
    )
    root = Path(__file__).parents[2]
    said = set()
    for seed in ("1", "2"):
        run = run_program(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{tmp_path}:{root}", "PATH": "/usr/bin:/bin"},
        )
        assert run.returncode == 0, run.stderr
        said.add(run.stdout)
    assert len(said) == 1
    assert len(set(said.pop().split())) > len(PAIRS) - 5


def test_what_does_not_touch_a_scorer_does_not_change_its_key(imported):
    """Lines above it, and functions of the same modules that it does not call."""
    modules = own("import own_helpers\ndef score(example, text): return float(own_helpers.long(text))")
    first = as_scorer(imported(modules).score).identity
    moved = {name: f"# A comment.\n\nUNUSED = 1\n{source}\ndef unused(): pass\n" for name, source in modules.items()}
    assert as_scorer(imported(moved).score).identity == first


def test_a_cell_that_is_run_again_defines_the_same_scorer():
    """A notebook defines functions and classes in one namespace, each time anew."""
    cell = (
        "import re\nWORDS = {'a': 1}\n"
        "class Rule:\n    def judge(self, text): return bool(re.search('a', text)) and 'a' in WORDS\n"
        "def score(example, text): return float(Rule().judge(text))"
    )
    notebook = {"__name__": "__main__"}
    keys = []
    for number in (1, 2):
        exec(compile(cell, f"<ipython-input-{number}>", "exec"), notebook)
        keys.append(as_scorer(notebook["score"]).identity)
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "source",
    [
        "import sys\ndef score(example, text):\n    print(text, file=sys.stderr)\n    return 1.0",
        "import numpy as np\ndef score(example, text): return float(np.add(1, len(text)))",
        "import numpy as np\nadd = np.add\ndef score(example, text): return float(add(1, len(text)))",
    ],
)
def test_standard_streams_and_functions_of_installed_packages_are_known_by_name(source, imported):
    assert as_scorer(imported(own(source)).score).identity == as_scorer(imported(own(source)).score).identity


def test_an_object_that_is_called_scores_as_a_function_does(imported):
    score = imported(own(PAIRS["an object that is called"][0])).score
    assert as_scorer(score)([Example("?")] * 2, ["a", "ab"]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("WORDS = (w for w in 'ab')\ndef score(example, text): return WORDS", "reads 'WORDS', a generator"),
        (
            "class Rule: pass\nRULE = Rule()\nRULE.words = (w for w in 'ab')\ndef score(example, text): return RULE",
            "reads 'RULE.words', a generator",
        ),
        ("import sys\ndef score(example, text): return sys.modules['a']", "reads 'sys.modules', by which it may read"),
        (
            "import importlib\ndef score(example, text): return importlib.import_module(text)",
            "reads 'importlib.import_module', by which it may read anything",
        ),
        ("def score(example, text): return __import__(text)", "reads '__import__', by which it may read anything"),
        ("def score(example, text): return score.__globals__['a']", "reads '__globals__', by which it may read any"),
        ("read = globals\ndef score(example, text): return read()['a']", "reads 'read', by which it may read anything"),
        (
            "import pkgutil\ndef score(example, text): return pkgutil.resolve_name('own_helpers.long')(text)",
            "reads 'pkgutil.resolve_name', by which it may read anything",
        ),
        (
            "def score(example, text):\n    from importlib.util import spec_from_file_location as found\n"
            "    return found(text)",
            "reads 'spec_from_file_location', by which it may read anything",
        ),
        (
            "import numpy as np\ndef own(example, text): return 1.0\nscore_all = np.frompyfunc(own, 2, 1)\n"
            "def score(example, text): return score_all(example, text)",
            "reads 'score_all', a ufunc, which cannot be identified",
        ),
        (
            "def nested(depth):\n    return [nested(depth - 1)] if depth else []\nWORDS = nested(800)\n"
            "def score(example, text): return WORDS",
            "reads what is nested too deeply to be identified",
        ),
    ],
)
def test_a_scorer_that_cannot_be_identified_is_refused_in_one_line(source, said, imported):
    scorer = imported(own(source)).score
    with pytest.raises(ValueError, match=f"^scorer 'score' {said}.*: give an object with identity and __call__") as got:
        as_scorer(scorer)
    assert "\n" not in str(got.value)
