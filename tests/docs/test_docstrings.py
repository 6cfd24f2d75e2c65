"""What the pages of the API say of each call: every argument, and what it refuses."""

import ast
import inspect
import re
import textwrap
from functools import cache

from typing_extensions import is_protocol, is_typeddict

from tests.docs.test_reference import entries, thing


def listed():
    """Every function and class that the pages of the API show; of a module its own."""
    for path in entries():
        found = thing(path)
        if inspect.ismodule(found):
            yield from (each for each in vars(found).values() if getattr(each, "__module__", "") == found.__name__)
        else:
            yield found


def methods_of(kind):
    """Public methods and properties of a class, its own and those of the library that it inherits."""
    for name in dir(kind):
        given = inspect.getattr_static(kind, name)
        code = next((part for key in ("__func__", "fget", "func") if (part := getattr(given, key, None))), given)
        if inspect.isfunction(code) and code.__module__.startswith("cs_heads") and not name.startswith("_"):
            yield name, given, code


def fields_of(kind):
    """Names of what a class is made of; nobody makes a protocol."""
    if is_typeddict(kind):
        return [*kind.__annotations__]
    return [] if is_protocol(kind) else [*inspect.signature(kind).parameters]


@cache
def calls():
    """By its name, whatever the pages show that can be called: what has the docstring, its code, names of arguments."""
    found = {}
    for each in listed():
        name = f"{getattr(each, '__module__', '')}.{getattr(each, '__name__', '')}"  # some are tables
        if inspect.isclass(each) and not issubclass(each, Exception):
            made = vars(each).get("__post_init__") or vars(each).get("__init__")
            found[name] = each, None if is_protocol(each) else made, fields_of(each)
            for own, given, code in methods_of(each):
                taken = [] if not callable(getattr(each, own)) else [*inspect.signature(code).parameters][1:]
                static = isinstance(given, staticmethod)
                found[f"{name}.{own}"] = code, code, [*inspect.signature(code).parameters] if static else taken
        elif inspect.isfunction(each) and not each.__name__.startswith("_"):
            found[name] = each, each, [*inspect.signature(each).parameters]
    return found


def section(call, *titles):
    """The lines of these parts of a docstring."""
    parts = re.findall(rf"^(?:{'|'.join(titles)}):\n((?: .*\n?|\n)+)", inspect.getdoc(call) or "", flags=re.MULTILINE)
    return "\n".join(parts)


def refuses(code):
    """Whether its own lines raise, or call a check where nothing is caught."""
    if not inspect.isfunction(code) or inspect.unwrap(code).__code__.co_filename == "<string>":
        return False  # made by dataclass
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    tried = [part for each in ast.walk(tree) if isinstance(each, ast.Try) for part in each.body]
    caught = {node for part in tried for node in ast.walk(part)}
    asked = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and node not in caught]
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(tree))
    return raises or any(re.search(r"(^|[._])(check|read_text)", name) for name in asked)


def test_every_argument_of_every_public_call_is_described():
    missing = {}
    for name, (call, _, names) in calls().items():
        lines = re.findall(r"^ {4}([\w*, ]+?)(?: \([^)]*\))?:", section(call, "Args", "Attributes"), flags=re.MULTILINE)
        described = {each.strip(" *") for line in lines for each in line.split(",")}
        if left := [each for each in names if each not in described]:
            missing[name] = left
    assert missing == {}, "arguments that no line of Args or Attributes describes"


def test_every_public_call_that_refuses_says_what():
    refusing = {name: call for name, (call, code, _) in calls().items() if refuses(code)}
    assert len(refusing) > 100
    assert {"cs_heads.ranking.HeadRanking.load", "cs_heads.designs.single", "cs_heads.analysis.atlas_result.Atlas"} <= {
        *refusing
    }
    assert [name for name, call in refusing.items() if not section(call, "Raises")] == [], "no Raises in the docstring"


def gives(code):
    """Whether a call returns or yields something; properties and what makes a class are no calls."""
    return inspect.isfunction(code) and inspect.signature(code).return_annotation not in (None, "None")


def test_every_public_call_of_several_arguments_says_what_it_returns():
    several = {
        name: call
        for name, (call, code, names) in calls().items()
        if len(names) > 1 and not inspect.isclass(call) and gives(code)
    }
    assert len(several) > 100
    assert {"cs_heads.analysis.confirm.confirm", "cs_heads.designs.explicit", "cs_heads.store.store.Store.of"} <= {
        *several
    }
    missing = [name for name, call in several.items() if not section(call, "Returns", "Yields").strip()]
    assert missing == [], "calls of more than one argument without Returns in the docstring"
