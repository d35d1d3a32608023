"""What the tests of bad matrices share: how one is written, and what must hold of each refusal."""

from __future__ import annotations

from typing import Any

import pytest
from matrix_fakes import BASE

#: What each test changes: the text, the identifier of its refusal, the place that it begins with, and further facts.
Table = dict[str, tuple[Any, ...]]
SHAPE = "{rows: 8, hidden: 64}"


def shape(entry: str) -> str:
    return BASE.replace(SHAPE, entry)


def rule(text: str) -> str:
    return BASE + f"exclude:\n  - {{{text}}}\n"


def all_of(*tables: Table) -> list[Any]:
    return [pytest.param(*entry[:3], entry[3:], id=name) for table in tables for name, entry in table.items()]
