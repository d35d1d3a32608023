"""One tree of exceptions: every class of the farm hangs in it, once, and its drawing shows them all."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from pathlib import Path

import pytest

from farm import errors
from farm.errors import FarmError, FarmSignal

ROOT = Path(__file__).resolve().parents[2]


def exceptions(tree: dict[str, str]) -> dict[str, list[tuple[str, list[str]]]]:
    """Every exception class by its name: (module, names of its bases), for each place that defines one."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for module, text in tree.items():
        for name, bases in classes(text):
            found.setdefault(name, []).append((module, list(bases)))
    raised = {n for n in dir(builtins) if isinstance(c := getattr(builtins, n), type) and issubclass(c, BaseException)}
    grown = -1
    while grown != len(raised):
        grown = len(raised)
        raised |= {name for name, places in found.items() if any(set(bases) & raised for _, bases in places)}
    return {name: places for name, places in found.items() if name in raised}


@functools.cache
def classes(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(name, names of its bases) of every class in a source, wherever in it."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return tuple((n.name, tuple(ast.unparse(b).rpartition(".")[2] for b in n.bases)) for n in nodes)


def against(tree: dict[str, str]) -> list[str]:
    """What breaks the rule: a second class of a name, one outside the tree, one that the drawing lacks."""
    found = exceptions(tree)
    inside = {"FarmError", "FarmSignal"}
    for _ in found:
        inside |= {name for name, places in found.items() if set(places[0][1]) & inside}
    drawn = set(re.findall(r"\w+", errors.__doc__ or ""))
    twice = [f"{name} is defined twice" for name, places in found.items() if len(places) > 1]
    out = [f"{name} is outside the tree" for name in found if name not in inside]
    return twice + out + [f"{name} is not drawn" for name in found if name not in drawn]


@functools.cache
def sources() -> dict[str, str]:
    paths = [p for folder in ("farm", "dashboards") for p in sorted((ROOT / folder).rglob("*.py"))]
    return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths if "farm/dashboards" not in str(p)}


def test_every_exception_hangs_in_the_tree() -> None:
    assert len(exceptions(sources())) > 20
    assert against(sources()) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("class Odd(RuntimeError): ...", ["Odd is outside the tree", "Odd is not drawn"]),
        ("class Odd(FarmSignal): ...", ["Odd is not drawn"]),
        ("class CaptureFailed(FarmSignal): ...", ["CaptureFailed is defined twice"]),
        ("class LockRefused(errors.FarmError): ...", ["LockRefused is defined twice"]),
    ],
)
def test_a_planted_exception_is_seen(planted: str, said: list[str]) -> None:
    assert against({**sources(), "farm/planted.py": planted}) == said


def test_a_signal_is_no_refusal() -> None:
    """The command line prints a refusal's sentence; a signal that reaches it is a fault of the farm."""
    assert not issubclass(FarmSignal, FarmError) and not issubclass(FarmError, FarmSignal)


def test_the_tree_needs_the_standard_library_alone() -> None:
    tree = ast.parse((ROOT / "farm" / "errors.py").read_text(encoding="utf-8"))
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert set(names) <= {"__future__", "typing"} and not [n for n in ast.walk(tree) if isinstance(n, ast.Import)]


def test_what_a_child_says_of_its_environment_has_an_owner() -> None:
    assert errors.EnvironmentUnusable("no torch").owner == "infra"
    assert errors.EnvironmentUnusable("no device", "device").owner == "device"
