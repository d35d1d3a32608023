"""fused_add_rms_norm: providers that are wrong, each in its own way, through `farm run` with real children."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from test_farm_providers_wrong import DTYPES, FarmRun, rows_of, run_of

pytestmark = pytest.mark.long  # 11 s of a core; test_farm_providers_wrong has the norm alone

ANSWERS = '''
import torch


def norm(s, weight, eps):
    f = s.float()
    y = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(s.dtype)


def right(x, residual, weight, eps):
    total = x + residual
    return norm(total, weight, eps), total


class OneGradient(torch.autograd.Function):
    """As a kernel gives it: one tensor for x and residual.  `lost` is what the backward forgets."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps, lost):
        y, total = right(x, residual, weight, eps)
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.lost = eps, lost
        return y, total

    @staticmethod
    def backward(ctx, dy, dsum):
        s, weight = ctx.saved_tensors
        f, m = s.float(), dy.float() * (1 if weight is None else weight.float())
        r = torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + ctx.eps)
        n = f * r
        dx = r * (m - n * (m * n).mean(-1, keepdim=True))
        if ctx.lost == "dx":
            dx = torch.zeros_like(dx)
        if ctx.lost != "dsum":
            dx = dx + dsum.float()
        dx = dx.to(s.dtype)
        dw = None if weight is None else (dy.float() * n).sum(0).to(weight.dtype)
        dresidual = {"dresidual": dsum.clone(), "half": dx / 2}.get(ctx.lost, dx)
        return dx, dresidual, dw, None, None


def right_with_one_gradient(x, residual, weight, eps):
    return OneGradient.apply(x, residual, weight, eps, "")


def in_a_list(x, residual, weight, eps):
    return list(right(x, residual, weight, eps))


def forgets_the_residual(x, residual, weight, eps):
    return norm(x, weight, eps), x + residual


def returns_x_as_the_sum(x, residual, weight, eps):
    return norm(x + residual, weight, eps), x


def subtracts(x, residual, weight, eps):
    return right(x, -residual, weight, eps)


def swaps_its_outputs(x, residual, weight, eps):
    return right(x, residual, weight, eps)[::-1]


def drops_a_column_of_the_sum(x, residual, weight, eps):
    y, total = right(x, residual, weight, eps)
    return y, torch.cat([total[:, :-1], torch.zeros_like(total[:, :1])], dim=1)


def leaves_the_sum_unwritten(x, residual, weight, eps):
    y, total = right(x, residual, weight, eps)
    out = torch.empty_like(x)
    out[:-1] = total[:-1]
    return y, out


def adds_after_the_norm(x, residual, weight, eps):
    return norm(x, weight, eps) + residual, x + residual


def loses_dsum(x, residual, weight, eps):
    return OneGradient.apply(x, residual, weight, eps, "dsum")


def detaches_the_sum(x, residual, weight, eps):
    y, total = right(x, residual, weight, eps)
    return y, total.detach()


def loses_dy(x, residual, weight, eps):
    return OneGradient.apply(x, residual, weight, eps, "dx")


def gives_residual_dsum_alone(x, residual, weight, eps):
    return OneGradient.apply(x, residual, weight, eps, "dresidual")


def halves_between_both(x, residual, weight, eps):
    return OneGradient.apply(x, residual, weight, eps, "half")


def sum_alone(x, residual, weight, eps):
    return x + residual


def three(x, residual, weight, eps):
    y, total = right(x, residual, weight, eps)
    return y, total, total


def adds_in_place(x, residual, weight, eps):
    with torch.no_grad():
        residual += x
    return norm(residual, weight, eps), residual * 1
'''
RIGHT = ("right", "right_with_one_gradient", "in_a_list")
#: Wrong in every dtype, forward and backward.
WRONG = (
    "forgets_the_residual",
    "returns_x_as_the_sum",
    "subtracts",
    "swaps_its_outputs",
    "drops_a_column_of_the_sum",
    "leaves_the_sum_unwritten",
    "adds_after_the_norm",
)
#: Wrong in the backward alone, and which gradients may be accused.
WRONG_BACKWARD = {
    "loses_dsum": ("dx", "dresidual"),
    "detaches_the_sum": ("dx", "dresidual"),
    "loses_dy": ("dx", "dresidual"),
    "gives_residual_dsum_alone": ("dresidual",),
    "halves_between_both": ("dresidual",),
}
#: Refused before any number is looked at: words of the reason.
REFUSED = {"sum_alone": "returned 1", "three": "returned 3 tensors", "adds_in_place": "changed its inputs"}


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmRun]:
    matrix = {
        "name": "fused",
        "op": "fused_add_rms_norm",
        "axes": {
            "shape": [{"rows": 8, "hidden": 300}],
            "dtype": list(DTYPES),
            "operation": ["forward", "backward"],
            "weight": [True, False],
        },
        "providers": ["torch", "huggingface"],
    }
    names = {n: f"fused_answers:{n}" for n in (*RIGHT, *WRONG, *WRONG_BACKWARD, *REFUSED)}
    run = run_of(tmp_path_factory.mktemp("fused"), json.dumps(matrix), names, fused_answers=ANSWERS)
    try:
        assert run.start().wait(200) == 1, run.said()
        yield run
    finally:
        run.end()


def rows(run: FarmRun, provider: str, operation: str) -> list[dict[str, object]]:
    """Of each dtype, with a weight and without."""
    found = [r for r in run.rows() if (r["provider"], r["operation"]) == (provider, operation)]
    assert len(found) == 2 * len(DTYPES) and set(rows_of(run, provider, operation)) == set(DTYPES)
    return found


@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("provider", [*RIGHT, "torch", "huggingface"])
def test_right_answers_pass(fused: FarmRun, provider: str, operation: str) -> None:
    for row in rows(fused, provider, operation):
        assert (row["status"], row["reason"]) == ("passed", ""), row


@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("provider", WRONG)
def test_a_wrong_answer_is_inaccurate_in_each_dtype(fused: FarmRun, provider: str, operation: str) -> None:
    for row in rows(fused, provider, operation):
        assert row["status"] == "inaccurate", row
        assert row["fault_owner"] == "kernel" and row["reason"]


@pytest.mark.parametrize("provider", WRONG_BACKWARD)
def test_a_wrong_gradient_is_inaccurate_and_its_forward_is_not(fused: FarmRun, provider: str) -> None:
    assert {row["status"] for row in rows(fused, provider, "forward")} == {"passed"}
    for row in rows(fused, provider, "backward"):
        assert row["status"] == "inaccurate" and row["worst_output"] in WRONG_BACKWARD[provider], row


@pytest.mark.parametrize("provider", REFUSED)
def test_what_is_no_answer_at_all_is_inaccurate_too(fused: FarmRun, provider: str) -> None:
    for row in rows(fused, provider, "forward"):
        assert row["status"] == "inaccurate" and REFUSED[provider] in str(row["reason"]), row


def test_all_is_accounted_for(fused: FarmRun) -> None:
    head = fused.run.head
    assert len(fused.rows()) == head["planned"] == sum(head["counts"].values())
    assert not {"infra_error", "lost"} & set(head["counts"])
    fused.assert_nothing_left()
