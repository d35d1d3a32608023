"""A row alone and in its batch: where an op declares it, they have the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from farm.cell import Cell  # noqa: E402
from farm.child import provider_call  # noqa: E402
from farm.child.checked_calls import CheckedCalls  # noqa: E402
from farm.child.findings import disqualifying  # noqa: E402
from farm.contracts.discovery import contract, known_ops  # noqa: E402
from farm.judge.judge import Judge  # noqa: E402

ROWS, WIDTH = 9, 33
X = {"name": "x", "role": "input", "shape": [ROWS, WIDTH], "dtype": "float32", "blocked": True, "file": "x"}
DY = {**X, "name": "dy", "role": "upstream"}
Y = {**X, "name": "y", "role": "output"}
DX = {**X, "name": "dx", "role": "gradient", "of": "x"}


def values(plan: dict[str, Any]) -> Any:
    return torch.randn(plan["shape"], generator=torch.Generator().manual_seed(len(plan["name"])))


def found(function: Any, plans: list[dict[str, Any]], operation: str) -> list[str]:
    x = values(X).requires_grad_(True)
    upstream = [values(DY)] if operation == "backward" else []
    problem = provider_call.Problem([x], upstream, [x] if upstream else [], operation)
    calls = CheckedCalls(torch.device("cpu"), plans, problem, values, lambda: None)
    calls.first(function)
    calls.alone(function)
    return disqualifying(calls.findings)


def by_columns(x: Any) -> Any:
    """Each column added in turn, whatever the number of rows."""
    total = torch.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return x * total[..., None]


def by_rows(x: Any) -> Any:
    """Of few rows the columns are added in two halves."""
    if x.shape[0] > 4:
        return by_columns(x)
    half = x.shape[-1] // 2
    total = by_columns(x[..., :half])[..., 0] / x[..., 0] + by_columns(x[..., half:])[..., 0] / x[..., half]
    return x * total[..., None]


@pytest.mark.parametrize(("plans", "operation"), [([X, Y], "forward"), ([X, DY, DX], "backward")])
def test_a_row_that_has_other_bits_alone_is_a_finding(plans: list[dict[str, Any]], operation: str) -> None:
    assert found(by_columns, plans, operation) == []
    wrong = found(by_rows, plans, operation)
    assert len(wrong) == 1 and wrong[0].startswith(f"gives row 4 of {plans[-1]['name']} ")


def test_the_child_is_asked_only_where_the_op_declares_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    assert [op for op in known_ops() if contract(op).batch_invariant] == []  # kernels are chosen by the number of rows
    op = contract("matmul")
    cell = Cell(
        "cpu", "matmul", "torch", "auto", "forward", dict.fromkeys(op.typed, "float32"), {"m": 2, "n": 3, "k": 4}, {}
    )
    judge = Judge(str(tmp_path / "spools" / "one"), threads=1)
    try:
        assert "batch_invariant" not in judge.prepare(cell.to_dict())["work"]
        monkeypatch.setattr(type(op), "batch_invariant", True)
        assert judge.prepare(cell.to_dict())["work"]["batch_invariant"] is True
    finally:
        judge.clean()
