"""How a subject's functions are called: an own backward instead of autograd, and imports that happen in the call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from farm.child import provider_call  # noqa: E402
from farm.child.provider_call import Problem  # noqa: E402
from farm.errors import Unsupported, WrongAnswer  # noqa: E402

CALL: dict[str, Any] = {
    "provider": {"name": "mine", "path": "a:b"},
    "positional": [3.0],
    "keywords": {},
    "optional": {},
}
INPUTS = [{"name": "x", "role": "input"}, {"name": "w", "role": "input"}]
GRADIENTS = [{"name": "dw", "role": "gradient", "of": "w"}, {"name": "dx", "role": "gradient", "of": "x"}]
PLANS = {
    "forward": [*INPUTS, {"name": "y", "role": "output"}],
    "no-grad-forward": [*INPUTS, {"name": "y", "role": "output"}],
    "full": [*INPUTS, {"name": "y", "role": "output"}, {"name": "dy", "role": "upstream"}, *GRADIENTS],
    "backward": [*INPUTS, {"name": "dy", "role": "upstream"}, *GRADIENTS],
}


def forward(x: Any, w: Any, factor: float) -> Any:
    return x * w * factor, "saved"


def backward(upstream: Any, inputs: Any, outputs: Any, factor: float) -> Any:
    (dy,), (x, w) = upstream, inputs
    assert outputs[1] == "saved"
    return dy * x * factor, dy * w * factor  # dw, dx: in the order of the contract's gradients


def problem(operation: str) -> Problem:
    x, w = (torch.tensor(v, requires_grad=operation != "no-grad-forward") for v in ([1.0, 2.0], [5.0, 7.0]))
    return Problem([x, w], [torch.tensor([1.0, 10.0])], [w, x], operation)


@pytest.mark.parametrize("operation", PLANS)
def test_an_own_backward_gives_the_gradients_in_the_contracts_order(operation: str) -> None:
    called = provider_call.with_backward(forward, backward, CALL, PLANS[operation])
    found = [t.tolist() for t in problem(operation).run(called)]
    y, gradients = [15.0, 42.0], [[3.0, 60.0], [15.0, 210.0]]
    assert found == {"full": [y, *gradients], "backward": gradients}.get(operation, [y])


def test_a_graph_can_be_gone_through_again() -> None:
    made = problem("backward")
    outputs = made.forward(provider_call.with_backward(forward, backward, CALL, PLANS["backward"]))
    first, again = (made.gradients(outputs, retain=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.parametrize("given", [lambda *_: torch.zeros(2), lambda *_: (torch.zeros(2),) * 3])
def test_another_number_of_gradients_is_wrong(given: Callable[..., Any]) -> None:
    called = provider_call.with_backward(forward, given, CALL, PLANS["backward"])
    with pytest.raises(WrongAnswer, match="gradients, but 2 expected"):
        problem("backward").run(called)


def test_the_backward_needs_the_keywords_that_the_cell_needs() -> None:
    with pytest.raises(Unsupported, match="takes no parameter mode"):
        provider_call.with_backward(
            lambda x, w, f, mode: x, lambda u, i, o, f: u, {**CALL, "keywords": {"mode": "fast"}}, PLANS["full"]
        )


@pytest.mark.parametrize(
    ("module", "unsupported"), [("no_such_compiler", True), ("a.part", False), ("kernels.nothing", False)]
)
def test_a_module_that_is_missing_in_the_call_is_unsupported_unless_it_is_the_subjects(
    module: str, unsupported: bool
) -> None:
    called = provider_call.lazily_importing(lambda *_: importlib.import_module(module), CALL["provider"])
    with pytest.raises(Unsupported if unsupported else ModuleNotFoundError):
        called(1)
