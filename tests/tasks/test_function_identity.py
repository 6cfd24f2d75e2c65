"""Two versions of a scorer never share a key; one version has the same key everywhere."""

import inspect
import linecache
import sys
from functools import partial
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import pytest

from cs_heads.tasks import Example, Task
from cs_heads.tasks.example import hash_of
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
RULES = "LIMIT = 2"


def own(source: str, helpers: str = HELPERS) -> dict[str, str]:
    """The modules of a user: what defines ``score``, and what that imports."""
    return {"own_scorer": source, "own_helpers": helpers, "own_rules": RULES}


# A scorer in two versions: its module, and what is edited there or in the module that it imports. Its name and the
# source of the function itself are the same in both, its scores are not.
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
        "from own_helpers import inverted\n@inverted\ndef judged(example, text): return float('a' in text)\n"
        "def score(example, text): return judged(example, text)",
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
        "LEAST = 1\nclass Rule:\n    def __call__(self, example, text): return float(len(text) > LEAST)\n"
        "score = Rule()",
        ("LEAST = 1", "LEAST = 2"),
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
    "parameters in another order": (
        "def judged(one, other): return float(locals()['one'] == 'a')\n"
        "def score(example, text): return judged(text, example.prompt)",
        ("judged(one, other)", "judged(other, one)"),
    ),
    "parameters of another name": (
        "def judged(said): return float('said' in locals())\ndef score(example, text): return judged(text)",
        ("judged(said)", "judged(heard)"),
    ),
    "a keyword default": (
        "LEAST = 1\ndef score(example, text, *, least=LEAST): return float(len(text) > least)",
        ("LEAST = 1", "LEAST = 2"),
    ),
    "what is closed over": (
        "def made(rules):\n    def score(example, text): return float(all(rule(text) for rule in rules))\n"
        "    return score\n"
        "score = made([lambda text: len(text) > 1])",
        ("> 1", "> 2"),
    ),
    "a function that is nested": (
        "def judged(text):\n    def long(): return len(text) > 1\n    return long()\n"
        "def score(example, text): return float(judged(text))",
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
        "def score(example, text): return float(text in WORDS or text in {'ab', 'xy'})",
        ("'gh'", "'hg'"),
    ),
    "words told as objects in a set": (
        "from collections import namedtuple\nWord = namedtuple('Word', 'text weight')\n"
        "WORDS = {Word('ab', 1), Word('cd', 2), Word('ef', 3)}\n"
        "def score(example, text): return float(any(word == (text, 3) for word in WORDS))",
        ("Word('ef', 3)", "Word('ef', 4)"),
    ),
    "a name of the module that a global is called like": (
        "import own_rules as own_helpers\ndef score(example, text):\n    from own_helpers import LIMIT\n"
        "    return float(LIMIT > len(text) > own_helpers.LIMIT)",
        ("LIMIT = 3", "LIMIT = 4"),
    ),
    "a global called like a module that a name is imported of": (
        "import own_rules as own_helpers\ndef score(example, text):\n    from own_helpers import LIMIT\n"
        "    return float(max(LIMIT, 4) > len(text) > own_helpers.LIMIT)",
        ("LIMIT = 2", "LIMIT = 1"),
    ),
    "an annotation": (
        "def judged(text: 1): pass\ndef score(example, text): return float(len(text) > judged.__annotations__['text'])",
        ("text: 1", "text: 2"),
    ),
    "the type of a field": (
        "from dataclasses import dataclass, fields\n@dataclass\nclass Rule:\n    least: int\n"
        "def score(example, text): return float(fields(Rule)[0].type is int)",
        ("least: int", "least: str"),
    ),
    "what an annotation names in its text": (
        "from __future__ import annotations\nfrom typing import Literal, Optional, get_args, get_type_hints\n"
        "Word = Literal['a']\nclass Rule:\n    word: Word\n"
        "def score(example, text): return float(text in get_args(get_type_hints(Rule)['word']))",
        ("['a']", "['b']"),
    ),
    "what an annotation names inside another": (
        "from typing import Literal, Optional, get_args, get_type_hints\nWord = Literal['a']\n"
        "class Rule:\n    word: list['Word']\n"
        "def score(example, text): return float(text in str(get_type_hints(Rule)['word']))",
        ("Literal['a']", "Literal['b']"),
    ),
    "the order of a sort": (
        "from functools import cmp_to_key\ndef compared(one, other): return len(one) - len(other)\n"
        "KEY = cmp_to_key(compared)\ndef score(example, text): return float(sorted(['ab', text], key=KEY)[0] == text)",
        ("len(one) - len(other)", "len(other) - len(one)"),
    ),
    "a function chosen by type": (
        "from functools import singledispatch\n@singledispatch\ndef judged(said): return 0\n"
        "@judged.register\ndef _(said: str): return len(said) > 1\n"
        "def score(example, text): return float(judged(text))",
        ("> 1", "> 2"),
    ),
    "a method chosen by type": (
        "from functools import singledispatchmethod\nclass Rule:\n    @singledispatchmethod\n"
        "    def judge(self, said): return 0\n    @judge.register\n    def _(self, said: str): return len(said) > 1\n"
        "def score(example, text): return float(Rule().judge(text))",
        ("> 1", "> 2"),
    ),
    "a function of an installed package chosen at import": (
        "from torch import sigmoid as squashed, tensor\ndef score(example, text): return float(squashed(tensor(1.0)))",
        ("import sigmoid as", "import tanh as"),
    ),
    "a view of a dictionary": (
        "WORDS = {'a': 1}.keys()\ndef score(example, text): return float(text in WORDS)",
        ("'a'", "'b'"),
    ),
    "a tensor": (
        "import torch\nWEIGHTS = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)\n"
        "def score(example, text): return float(WEIGHTS.sum() > len(text))",
        ("2.0", "3.0"),
    ),
    "the type of a tensor": (
        "import torch\nWEIGHTS = torch.zeros(2, dtype=torch.int32)\n"
        "def score(example, text): return float(WEIGHTS.is_floating_point())",
        ("int32", "float32"),
    ),
    "a weight of an own module": (
        "import torch\nclass Judge(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.least = torch.nn.Parameter(torch.tensor(1.0))\n"
        "    def forward(self, text): return len(text) > self.least\n"
        "JUDGE = Judge()\ndef score(example, text): return float(JUDGE(text))",
        ("1.0", "2.0"),
    ),
    "the method of an own module": (
        "import torch\nclass Judge(torch.nn.Module):\n    def forward(self, text): return len(text) > 1\n"
        "JUDGE = Judge()\ndef score(example, text): return float(JUDGE(text))",
        ("> 1", "> 2"),
    ),
    "a setting of a module": (
        "import torch\nJUDGE = torch.nn.Sequential(torch.nn.LeakyReLU(0.1))\n"
        "def score(example, text): return float(1 + JUDGE(torch.tensor(-1.0)))",
        ("0.1", "0.2"),
    ),
    "a class registered with an abstract one": (
        "import abc\nclass Good(abc.ABC): pass\nclass One: pass\nclass Other: pass\nGood.register(One)\n"
        "def score(example, text): return float(isinstance(One(), Good))",
        ("register(One)", "register(Other)"),
    ),
    "settings that keep a hash of their own": (
        "from transformers import GenerationConfig\nSETTINGS = GenerationConfig(max_new_tokens=1)\n"
        "def score(example, text): return float(len(text) > SETTINGS.max_new_tokens)",
        ("=1", "=2"),
    ),
}
PYDANTIC = (
    "from pydantic import BaseModel, Field, PrivateAttr, field_validator\nclass Rule(BaseModel):\n"
    "    least: int = Field(1, ge=0, exclude=True)\n    words: list[str] = []\n    _weight: float = PrivateAttr(1.0)\n"
    "    @field_validator('least')\n    @classmethod\n    def checked(cls, least): return least + 1\n"
    "RULE = Rule(words=['a'])\n"
    "def score(example, text):\n    least = Rule.model_validate({'least': len(text)}).least\n"
    "    return RULE._weight * (least > 1 + RULE.least or text in RULE.words)"
)
if find_spec("pydantic"):
    PAIRS |= {
        "a default of a pydantic model": (PYDANTIC, ("Field(1,", "Field(2,")),
        "a value of a pydantic model": (PYDANTIC, ("['a']", "['b']")),
        "a private value of a pydantic model": (PYDANTIC, ("PrivateAttr(1.0)", "PrivateAttr(0.5)")),
        "a validator of a pydantic model": (PYDANTIC, ("least + 1", "least + 2")),
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


def by_name_and_source(scorer) -> tuple[str, str]:
    """What told scorers apart before they were told by all that they read."""
    name = getattr(scorer, "__qualname__", type(scorer).__qualname__)
    linecache.clearcache()
    code = scorer.func if isinstance(scorer, partial) else scorer
    return name, inspect.getsource(code if inspect.isroutine(code) else type(code))


TEXTS = ("", "a", "b", "ab", "abc", "abcd", "abcde", "gh", "A", "ef")


@pytest.mark.parametrize(("source", "edit"), PAIRS.values(), ids=PAIRS)
def test_what_tells_two_versions_apart_is_not_in_their_name_and_source_but_in_their_scores(source, edit, imported):
    versions = []
    for modules in (own(source), edited(own(source), *edit)):
        scorer = imported(modules).score
        examples = [Example(prompt) for prompt in "a?" for _ in TEXTS]
        versions.append((by_name_and_source(scorer), [scorer(e, t) for e, t in zip(examples, TEXTS * 2, strict=True)]))
    (told, scores), (told_again, other_scores) = versions
    assert told == told_again
    assert scores != other_scores


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
    for name, source in own("").items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
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
    # Scorers that are the same but for the edit are one here.
    assert len(set(said.pop().split())) == len({source for source, _ in PAIRS.values()})


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


HONEST = {
    "what an abstract class has been asked": "import abc\nclass Good(abc.ABC): pass\nclass One: pass\nclass Two: pass\n"
    "Good.register(One)\nGood.register(Two)\n"
    "def score(example, text): return float(isinstance(One(), Good) and not isinstance(text, Good) and len(text) > 1)",
    "a lock": "from threading import Lock, RLock\nONE, TWO = Lock(), RLock()\n"
    "def score(example, text):\n    with ONE, TWO: return float(len(text) > 1)",
    "what a cache has kept": "from functools import cache, lru_cache\n@cache\ndef long(text): return len(text) > 1\n"
    "class Rule:\n    @lru_cache\n    def judge(self, text): return long(text)\n"
    "RULE = Rule()\ndef score(example, text): return float(RULE.judge(text))",
    "what a cached property has kept": "from functools import cached_property\nclass Rule:\n    @cached_property\n"
    "    def words(self): return {'ab'}\n"
    "RULE = Rule()\ndef score(example, text): return float(text in RULE.words)",
    "what types were dispatched": "from functools import singledispatch\n@singledispatch\ndef judged(said): return 0\n"
    "@judged.register\ndef _(said: str): return len(said) > 1\n"
    "def score(example, text): return float(judged(text))",
    "flags that were combined": "from enum import Flag, auto\nclass Mark(Flag):\n    LONG = auto()\n    LOUD = auto()\n"
    "def score(example, text):\n    mark = Mark.LONG | Mark.LOUD if len(text) > 1 else Mark.LONG\n"
    "    return float(Mark.LOUD in mark)",
    "annotations that were resolved": "from typing import Callable, Optional, ParamSpec, get_type_hints\n"
    "P = ParamSpec('P')\ndef kept(function: Callable[P, float]) -> Callable[P, float]: return function\n"
    "class Rule:\n    after: Optional['Rule'] = None\n    score: 'Missing' = None\n"
    "class Chain:\n    rule: Optional['Rule'] = None\n"
    "@kept\ndef score(example: 'Example', text: str) -> float:\n"
    "    return float(len(text) > len(get_type_hints(Chain)) and Rule.after is None)",
    "an annotation that cannot be identified": "class Rule:\n    words = (word for word in 'ab')\n"
    "def judged(text: Rule | str | list[Rule]): return len(text) > 1\n"
    "def score(example, text): return float(judged(text))",
    "how a tokenizer cut and padded": "from tokenizers import Tokenizer, models\n"
    "from transformers import PreTrainedTokenizerFast\n"
    "WORDS = Tokenizer(models.WordLevel({'a': 0, 'b': 1}, unk_token='a'))\n"
    "READ = PreTrainedTokenizerFast(tokenizer_object=WORDS, unk_token='a', pad_token='a', model_max_length=3)\n"
    "def score(example, text):\n    READ('a a a a')\n"
    "    READ(['a', 'a b'], padding=True, truncation=True, max_length=2)\n"
    "    return float(len(text) > 1)",
    "a warning": "import warnings, own_scorer\n"
    "def judged(module, text):\n    with warnings.catch_warnings(record=True):\n"
    "        warnings.simplefilter('default')\n        warnings.warn(text)\n    return len(text) > 1\n"
    "def score(example, text): return float(judged(own_scorer, text))",
    "a generator made inside": "import random\nfrom random import choice, seed\nimport numpy as np\n"
    "def score(example, text):\n    seed(0)\n    np.random.default_rng(0).random()\n    random.Random(0).random()\n"
    "    return choice([float(len(text) > 1)])",
    "builtins": "import builtins\ndef made():\n    import builtins as known\n"
    "    def score(example, text): return known.float(builtins.len(text) > 1)\n    return score\nscore = made()",
    "imports that fail": "def score(example, text):\n    try:\n        from importlib.none import some\n"
    "    except ImportError:\n        return float(len(text) > 1)",
    "methods that are called like builtins": "import ast, re, torch\nJUDGE = torch.nn.Linear(1, 1).eval()\n"
    "def score(example, text):\n    import builtins, sys\n    JUDGE.eval()\n    re.compile('a')\n"
    "    ast.literal_eval('1')\n    dict(JUDGE.named_modules())\n    return float(len(text) > 1)",
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_an_honest_scorer_is_not_refused_and_is_the_same_after_it_was_called(source, imported):
    scorer = as_scorer(imported(own(source)).score)
    before = scorer.identity
    assert scorer([Example("?")] * 2, ["a", "ab"]) == scorer([Example("?")] * 2, ["a", "ab"]) == [0.0, 1.0]
    assert scorer.identity == before


CHANGING = {
    "a count": ("N = 0\ndef score(example, text):\n    global N\n    N += 1\n    return 1.0", "N"),
    "a memo": (
        "SEEN = {}\ndef judged(text): return SEEN.setdefault(text, 1.0)\ndef score(example, text): return judged(text)",
        "SEEN",
    ),
    "a list in a dictionary": (
        "SEEN = {'a': [['b'], 1]}\ndef score(example, text):\n    SEEN['a'][0].append(text)\n    return 1.0",
        "SEEN",
    ),
    "a list": ("SEEN = []\ndef score(example, text):\n    SEEN.append(text)\n    return 1.0", "SEEN"),
    "what is made at the first call": (
        "WORDS = None\ndef score(example, text):\n    global WORDS\n    WORDS = WORDS or {'a'}\n    return 1.0",
        "WORDS",
    ),
    "an attribute of an object": (
        "class Rule:\n    n = 0\n    def judge(self):\n        self.n += 1\n        return 1.0\n"
        "RULE = Rule()\nRULE.n = 0\ndef score(example, text): return RULE.judge()",
        "RULE.n",
    ),
    "what is registered with a class": (
        "import abc\nclass Good(abc.ABC): pass\nclass One: pass\n"
        "def score(example, text):\n    Good.register(One)\n    return float(isinstance(One(), Good))",
        "Good.register",
    ),
    "an attribute of the function": (
        "def score(example, text):\n    score.n += 1\n    return 1.0\nscore.n = 0",
        "score.n",
    ),
}


@pytest.mark.parametrize(("source", "changed"), CHANGING.values(), ids=CHANGING)
def test_a_scorer_that_changes_what_it_reads_is_refused_and_the_change_named(source, changed, imported):
    scorer = as_scorer(imported(own(source)).score)
    said = rf"^scorer 'score' must leave what it reads as it is, and changes '{changed}': let functools.cache keep what"
    with pytest.raises(ValueError, match=said) as got:
        scorer([Example("?")], ["a"])
    assert "\n" not in str(got.value)


def test_a_scorer_that_changes_what_it_reads_is_refused_where_trial_answers_are_scored(imported):
    records = [{"prompt": "1 + 1 =", "target": " 2"}]
    task = Task.from_records(records, scorer=imported(own(CHANGING["a memo"][0])).score, max_new_tokens=2)
    with pytest.raises(ValueError, match="changes 'SEEN'"):
        _ = task.graded


def test_an_object_that_is_called_scores_as_a_function_does(imported):
    score = imported(own(PAIRS["an object that is called"][0])).score
    assert as_scorer(score)([Example("?")] * 2, ["a", "ab"]) == [0.0, 1.0]


LIKE = ["[1]", "[True]", "[1.0]", "['1']", "[[1]]", "[(1,)]", "[None]", "{1}", "frozenset({1})", "{1: 1}", "{1: [1]}"]
LIKE += ["[{1: 1}]", "[{1}]", "[b'1']", "[1, 2]", "[2, 1]", "['1', '2']", "[\"1', '2\"]", "[10**5000]", "[[[[[[1]]]]]]"]


def test_containers_of_texts_and_numbers_are_told_apart(imported):
    source = "WORDS = {}\ndef score(example, text): return float(len(WORDS))"
    made = [as_scorer(imported(own(source.replace("{}", words))).score).identity for words in LIKE]
    assert len({*made}) == len(LIKE)


@pytest.mark.parametrize("words", ["{f'w{i}': i for i in range(N)}", "[(f'w{i}', [i]) for i in range(N)]"])
def test_many_words_are_told_at_once(words, imported, monkeypatch):
    """It is done before and after every batch of scores."""

    def hashes(n):
        asked = []
        counted = lambda content: asked.append(content) or hash_of(content)  # noqa: E731
        scorer = imported(own(f"N = {n}\nWORDS = {words}\ndef score(example, text): return float(text in WORDS)")).score
        with monkeypatch.context() as patch:
            patch.setattr("cs_heads.tasks.function_identity.hash_of", counted)
            as_scorer(scorer)
        return len(asked)

    assert hashes(1) == hashes(1000)


BY_ANY_NAME = [
    *(
        (f"{before}\ndef score(example, text): return {call}", name)
        for before, call, name in (
            ("", "eval('1')", "eval"),
            ("", "exec('1')", "exec"),
            ("", "compile('1', '', 'eval')", "compile"),
            ("", "list(map(eval, [text]))", "eval"),
            ("", "(lambda: eval)()(text)", "eval"),
            ("", "score.__builtins__['eval'](text)", "__builtins__"),
            ("", "globals()['__builtins__']['eval'](text)", "__builtins__"),
            ("", "__builtins__['eval'](text)", "__builtins__"),
            ("run = eval", "run(text)", "run"),
            ("from builtins import eval as run", "run(text)", "run"),
            ("from functools import partial\nrun = partial(eval, '1')", "run()", "run"),
            ("import builtins", "builtins.eval(text)", "builtins.eval"),
            ("import builtins as known", "known.exec(text)", "known.exec"),
            ("import builtins", "getattr(builtins, 'ev' + 'al')(text)", "builtins"),
            ("import importlib", "importlib.__import__(text)", "importlib.__import__"),
            ("class Rule: pass", "Rule.__subclasses__()", "__subclasses__"),
            ("", "getattr(score, '__globals__')['a']", "__globals__"),
            ("from operator import attrgetter", "attrgetter('judge.__globals__')(text)['a']", "judge.__globals__"),
            ("from operator import attrgetter\nread = attrgetter('__globals__')", "read(score)['a']", "read"),
            ("import inspect", "inspect.getmodule(score).a", "inspect.getmodule"),
            ("from inspect import getmodule", "getmodule(score).a", "getmodule"),
        )
    ),
    *(
        (f"def score(example, text):\n    {importing}\n    return {call}", name)
        for importing, call, name in (
            ("import builtins", "builtins.eval(text)", "builtins.eval"),
            ("import builtins as known", "known.eval(text)", "known.eval"),
            ("import builtins", "(lambda: builtins.eval)()(text)", "builtins.eval"),
            ("import builtins", "getattr(builtins, text)", "builtins"),
            ("from builtins import exec as run", "run(text)", "exec"),
            ("import importlib", "importlib.import_module(text)", "importlib.import_module"),
            ("import importlib.util", "importlib.util.find_spec(text)", "importlib.util.find_spec"),
            ("import importlib.util as util", "util.find_spec(text)", "util.find_spec"),
            ("from importlib import util", "util.find_spec(text)", "util.find_spec"),
            ("import sys", "sys.modules[text]", "sys.modules"),
        )
    ),
    (
        "def made():\n    import builtins as known\n    def score(example, text): return known.eval(text)\n"
        "    return score\nscore = made()",
        "known.eval",
    ),
]
DRAWING = [
    (f"{made}\ndef score(example, text): return DRAWS", kind)
    for made, kind in (
        ("import numpy as np\nDRAWS = np.random.default_rng(0)", "Generator"),
        ("import numpy as np\nDRAWS = np.random.RandomState(0)", "RandomState"),
        ("import random\nDRAWS = random.Random(0)", "Random"),
        ("import torch\nDRAWS = torch.Generator()", "Generator"),
    )
]


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
        *((source, rf"reads '{name}', by which it may read anything") for source, name in BY_ANY_NAME),
        *((source, rf"reads 'DRAWS', a {kind}, which is another after each draw") for source, kind in DRAWING),
        (
            "import zlib\nPACKER = zlib.compressobj(9)\ndef score(example, text): return len(PACKER.compress(text))",
            "reads 'PACKER', a Compress, which cannot be identified",
        ),
        *(
            (
                f"import torch\nWEIGHTS = {made}\ndef score(example, text): return WEIGHTS",
                "reads 'WEIGHTS', a tensor whose numbers cannot be read",
            )
            for made in (
                "torch.zeros(2, device='meta')",
                "torch.eye(2).to_sparse()",
            )
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
    with pytest.raises(
        ValueError, match=rf"^scorer '\S*score' {said}.*: give an object with identity and __call__"
    ) as got:
        as_scorer(scorer)
    assert "\n" not in str(got.value)
