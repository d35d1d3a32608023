"""How the child calls an op with two outputs: two upstream gradients, and gradients that are one tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farm.child.provider_call import Problem
from farm.errors import Unsupported, WrongAnswer


def problem(operation: str = "full") -> Problem:
    make = torch.Generator().manual_seed(0)
    x, residual, dy, dsum = (torch.randn(3, 8, generator=make) for _ in range(4))
    weight = torch.randn(8, generator=make)
    inputs = [t.requires_grad_() for t in (x, residual, weight)]
    return Problem(inputs, [dy, dsum], inputs, operation)


def add_and_scale(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    total = x + residual
    return total * weight, total


class OneGradient(torch.autograd.Function):
    """As kernels do it: x and residual get the same tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any, residual: Any, weight: Any) -> Any:
        total = x + residual
        ctx.save_for_backward(total, weight)
        return total * weight, total

    @staticmethod
    def backward(ctx: Any, dy: Any, dsum: Any) -> Any:
        total, weight = ctx.saved_tensors
        dx = dy * weight + dsum
        return dx, dx, (dy * total).sum(0)


@pytest.mark.parametrize("function", [add_and_scale, OneGradient.apply])
def test_both_upstream_gradients_reach_both_inputs(function: Any) -> None:
    p = problem()
    y, total, dx, dresidual, dw = p.run(function)
    x, residual, weight = (t.detach() for t in p.inputs)
    dy, dsum = p.upstream
    assert torch.equal(total, x + residual) and torch.equal(y, total * weight)
    assert torch.equal(dx, dy * weight + dsum) and torch.equal(dresidual, dx)
    torch.testing.assert_close(dw, (dy * total).sum(0))
    again = problem("backward").run(function)
    assert len(again) == 3 and torch.equal(again[0], dx)


def test_one_tensor_as_two_gradients_survives_a_second_call() -> None:
    p = problem("backward")
    outputs = p.forward(OneGradient.apply)
    first, second = (p.gradients(outputs, retain=True) for _ in range(2))
    assert first[0].data_ptr() == first[1].data_ptr()
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_an_output_without_a_graph_passes_nothing_on() -> None:
    p = problem("backward")
    dx, _, _ = p.run(lambda x, r, w: (x * w + r * w, (x + r).detach()))
    assert torch.equal(dx, p.upstream[0] * p.inputs[2].detach())  # dsum is lost, and the judge sees it
    with pytest.raises(Unsupported, match="no autograd graph"):
        p.run(lambda x, r, w: ((x * w).detach(), (x + r).detach()))


def test_an_input_returned_as_it_is_has_a_gradient() -> None:
    p = problem("backward")
    dx, _, _ = p.run(lambda x, r, w: (x * w + r, x))
    assert torch.equal(dx, p.upstream[0] * p.inputs[2].detach() + p.upstream[1])


def test_an_input_that_plays_no_part_has_no_gradient() -> None:
    assert problem("backward").run(lambda x, r, w: (x * w, x + 1))[1] is None


def test_one_output_where_two_are_needed() -> None:
    with pytest.raises(WrongAnswer, match="returned 1 outputs, but 2 expected"):
        problem("backward").run(lambda x, r, w: (x + r) * w)
