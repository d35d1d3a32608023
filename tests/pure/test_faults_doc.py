"""Every fault that docs/faults.md lists names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`([a-z]+/test_\w+\.py)::(test_\w+)`")


def rows(text: str) -> list[list[str]]:
    """The cells of each row of its tables, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def wrong(text: str) -> list[str]:
    """The rows that lack a cost, a name or a test that exists."""
    found = []
    for row in rows(text):
        tests = TEST.findall(row[-1])
        there = all(name in functions(file) for file, name in tests)
        if len(row) != 4 or not all(row) or not tests or not there:
            found.append(" | ".join(row))
    return found


def functions(file: str) -> set[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_fault_has_a_test_a_cost_and_a_name() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert len(rows(text)) >= 35
    assert wrong(text) == []


def test_a_row_without_a_test_is_found() -> None:
    head = "| fault | costs at most | named | test |\n|---|---|---|---|\n"
    assert wrong(head + "| a | b | c | `pure/test_faults_doc.py::test_a_row_without_a_test_is_found` |\n") == []
    for row in (
        "| a | b | c | none |",
        "| a | b | c | `pure/test_faults_doc.py::test_not_there` |",
        "| a | b | `pure/test_faults_doc.py::test_a_row_without_a_test_is_found` |",
    ):
        assert len(wrong(head + row + "\n")) == 1
