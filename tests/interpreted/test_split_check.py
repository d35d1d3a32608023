"""`benchmarks.split_check`, as far as it goes without a GPU: its checks, on small rows in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import ring_check, split_cases, split_check
from benchmarks.ring_cases import Case
from kernels.ops.rms_norm.gpu import launch


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ring_check, "DEVICE", "cpu")
    yield


def small(case: Case) -> Case:
    """The same with few columns and rows; a program a group of rows would take long."""
    return replace(case, rows=min(case.rows, 3), hidden=80 + case.hidden % 16, config={**case.config, "parts": 3})


def kinds() -> list[Case]:
    """A case of each operation, configuration and dtype, with what is given alternating."""
    found = {}
    for group in split_cases.groups():
        for case in group:
            key = (case.operation, case.dtype, case.fused, len(found) % 2, case.config.get("polls"), case.weight)
            found.setdefault(key, small(case))
    return list(found.values())[::6]


@pytest.mark.parametrize("case", kinds(), ids=lambda case: case.name.replace(" ", "-"))
def test_what_is_right_passes(case: Case) -> None:
    assert split_check.check(case) == ""


@pytest.mark.parametrize("case", split_check.LONELY, ids=lambda case: case.operation)
def test_what_a_program_alone_does_passes(case: Case) -> None:
    few = replace(case, hidden=96, rows=3, config={**case.config, "parts": 3, "polls": 2})
    assert split_check.lonely(few) == ""


def planted(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """A launch after which `change` gets the kernel's name and its arguments."""
    stock = launch._launch

    def launched(kernel: Any, grid: Any, choice: Any, direction: str, *args: Any, **extra: Any) -> None:
        stock(kernel, grid, choice, direction, *args, **extra)
        change(kernel.__name__, args)

    monkeypatch.setattr(launch, "_launch", launched)


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = small(next(c for c in split_cases.groups()[0] if c.weight == "same"))
    count = 0

    def change(name: str, args: Any) -> None:
        nonlocal count
        count += 1
        if name == "forward_split" and count == 1:
            args[3][0, 5] += 1

    planted(monkeypatch, change)
    told = split_check.check(case)
    assert split_check.DIFFERS in told and "y is" in told


def test_where_a_program_alone_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, args: Any) -> None:
        if name == "forward_split" and len(args[0]) == 3:
            args[3][2, 0] = 0

    planted(monkeypatch, change)
    few = replace(split_check.LONELY[0], hidden=96, rows=3, config={"parts": 3, "num_warps": 4, "polls": 2})
    assert "y is" in split_check.lonely(few)


def test_a_program_that_was_not_to_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, args: Any) -> None:
        if name == "backward_split":
            args[5].fill_(0.0)

    planted(monkeypatch, change)
    few = replace(split_check.LONELY[1], hidden=96, rows=3, config={"parts": 3, "num_warps": 4, "polls": 2})
    assert "the program that was not to start wrote" in split_check.lonely(few)
