"""Inputs that an op overwrites: their values after the call are its outputs, and no other input may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from farm.child import provider_call  # noqa: E402
from farm.child.checked_calls import CheckedCalls  # noqa: E402

CPU = torch.device("cpu")
X, W, S = (
    {"name": name, "dtype": "float32", "shape": shape, "role": role, "of": None, "blocked": blocked, "file": name}
    for name, shape, role, blocked in (
        ("x", [4, 8], "mutated", True),
        ("w", [8], "input", False),
        ("s", [4, 8], "output", True),
    )
)
VALUES = {"x": torch.arange(32.0).reshape(4, 8), "w": torch.arange(8.0) + 1}


def calls(plans: list[dict[str, Any]], operation: str = "forward") -> CheckedCalls:
    x, w = (VALUES[name].clone() for name in ("x", "w"))
    if operation != "no-grad-forward":
        w.requires_grad_(True)
    returns = any(p["role"] == "output" for p in plans)
    problem = provider_call.Problem([x, w], [], [], operation, mutated=[x], returns=returns)
    return CheckedCalls(CPU, plans, problem, lambda plan: VALUES[plan["name"]], lambda: None)


def scale(x: Any, w: Any) -> Any:
    s = x + 1
    x.mul_(w)
    return s


@pytest.mark.parametrize("operation", ["forward", "no-grad-forward"])
def test_an_overwritten_input_is_an_output_behind_those_that_are_returned(operation: str) -> None:
    made = calls([X, W, S], operation)
    s, x = made.first(scale)
    assert torch.equal(s, VALUES["x"] + 1) and torch.equal(x, VALUES["x"] * VALUES["w"])
    assert made.findings == []
    assert made.others(scale, stranger=False) is None, "the second call starts from values of its own"
    assert torch.equal(made._kept[0][1], x), "the first call's result is not overwritten by the second"


@pytest.mark.parametrize(
    "function",
    [lambda x, w: x.mul_(w), lambda x, w: (x.mul_(w), None)[1]],
    ids=["returns its input", "returns nothing"],
)
def test_what_an_op_returns_that_only_overwrites_is_not_looked_at(function: Callable[..., Any]) -> None:
    (x,) = calls([X, W], "no-grad-forward").first(function)
    assert torch.equal(x, VALUES["x"] * VALUES["w"])


def test_another_input_that_changes_is_a_finding() -> None:
    def greedy(x: Any, w: Any) -> Any:
        s = scale(x, w)
        w.data.add_(1)
        return s

    made = calls([X, W, S])
    made.first(greedy)
    assert "changed its inputs" in made.findings


def test_gradients_stand_between_what_is_returned_and_what_is_overwritten() -> None:
    x, w = VALUES["x"].clone(), VALUES["w"].clone().requires_grad_(True)
    dy = torch.full((4, 8), 2.0)

    def running(x: Any, w: Any) -> Any:
        y = x.clone() * w
        x.add_(w.detach())
        return y

    problem = provider_call.Problem([x, w], [dy], [w], "full", mutated=[x])
    y, dw, after = problem.run(running)
    assert torch.equal(y, VALUES["x"] * VALUES["w"]) and torch.equal(dw, 2 * VALUES["x"].sum(0))
    assert torch.equal(after, VALUES["x"] + VALUES["w"])


def test_outputs_are_judged_in_the_order_in_which_they_are_given() -> None:
    gradient = {**W, "name": "dw", "role": "gradient"}
    assert [p["name"] for p in provider_call.judged([X, W, S, gradient])] == ["s", "dw", "x"]
