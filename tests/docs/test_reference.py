"""The pages of the API have every public name, and the page of the command line every command."""

import inspect
import re
from importlib import import_module, util

import pytest

import cs_heads as cs
from cs_heads.cli import COMMANDS
from cs_heads.methods import METHODS
from tests.docs.pages import ROOT, text_of

API = ROOT / "docs" / "api"
PACKAGES = ["analysis", "demo", "methods", "plot", "reproduce", "sandbox", "simulate", "tasks"]

spec = util.spec_from_file_location("reference", ROOT / "docs" / "_hooks" / "reference.py")
reference = util.module_from_spec(spec)
spec.loader.exec_module(reference)


def entries():
    """What the pages of the API ask for, once the names of packages are put in."""
    text = "\n".join(reference.on_page_markdown(text_of(page)) for page in sorted(API.glob("*.md")))
    return re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)


def thing(path):
    """What a dotted path leads to: a module, or what a module has."""
    try:
        return import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def test_every_public_name_has_one_entry():
    found = entries()
    top = {path.removeprefix("cs_heads.") for path in found if path.startswith("cs_heads.")}
    assert set(cs.__all__) - top == set(), (
        "names of cs_heads that no page of docs/api has; add them as `::: cs_heads.NAME`"
    )
    assert len(found) == len(set(found))


def test_every_public_name_has_an_example():
    text = "\n".join(text_of(page) for page in API.glob("*.md"))
    follows = re.findall(r"^::: cs_heads\.(\w+)\n\n(?:<!-- skip: next -->\n)?```python$", text, flags=re.MULTILINE)
    names = [name for name in cs.__all__ if not inspect.ismodule(getattr(cs, name))]
    documented = {name for name in names if ">>>" in (inspect.getdoc(getattr(cs, name)) or "")}
    assert set(names) - documented - set(follows) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_function_of_a_package_has_an_example(package):
    module = import_module(f"cs_heads.{package}")
    text = "\n".join(text_of(page) for page in API.glob("*.md"))
    # Pictures stand in a table, by the result that they are of.
    code = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    code += re.findall(r"`(cs\.plot\..*?)`", text)
    shown = {*re.findall(r"\b(\w+)\(", "\n".join(code))}
    functions = [name for name in reference.exported(module.__name__) if inspect.isfunction(getattr(module, name))]
    documented = {name for name in functions if ">>>" in (inspect.getdoc(getattr(module, name)) or "")}
    assert set(functions) - documented - shown == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_of_a_package_has_an_entry(package):
    module = import_module(f"cs_heads.{package}")
    listed = {id(thing(path)) for path in entries()}
    exported = reference.exported(module.__name__)
    assert exported
    assert {name for name in exported if id(getattr(module, name)) not in listed} == set()
    assert set(getattr(module, "__all__", exported)) == set(exported)


def test_every_flag_of_every_command_is_on_the_page_of_the_command_line():
    page = reference.on_page_markdown(text_of(ROOT / "docs" / "command-line.md"))
    shown = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", page))
    rows = [row for command in COMMANDS for row in reference.rows(command)]
    assert [name for name, meaning in rows if not meaning or "[" in meaning] == []
    known = {flag for name, _ in rows for flag in name.split(", ")}
    assert not {flag for flag in known if "--empty" in flag}
    assert {"--task", "--store", "-o", "--repeats"} <= known
    assert {flag for flag in known if re.match("--?[a-z]", flag)} - shown == set()
    options = {f"--{option.replace('_', '-')}" for method in METHODS.values() for option in method.options}
    assert options - shown == set()
