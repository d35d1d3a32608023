"""The check of the ring kernels: its cases, and that it passes what is right and tells what is not.

What is right is computed here as the kernels do it, in float32 with their roundings, on the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks import ring_cases, ring_check  # noqa: E402
from benchmarks.ring_cases import Case, groups, wrong_backward, wrong_forward  # noqa: E402

BACKWARD = Case("backward", False, "bfloat16", 3, 4096)
FORWARD = replace(BACKWARD, operation="forward")


def inputs(case: Case, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """x, dy, residual or dsum, and a weight."""
    make = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    scale = 10.0 ** (torch.arange(case.rows) % 5 - 2).float()[:, None]
    x, dy, other = ((torch.randn(case.rows, case.hidden, generator=make) * scale).to(dtype) for _ in range(3))
    weight = None
    if case.weight != "none":
        kind = dtype if case.weight == "same" else getattr(torch, case.weight)
        weight = (1 + 0.1 * torch.randn(case.hidden, generator=make)).to(kind)
    return x, dy, other if case.fused else None, weight


def rstd_of(x: Any) -> Any:
    return torch.rsqrt(x.float().pow(2).mean(-1) + 1e-6)


def backward(
    case: Case, x: Any, dy: Any, dsum: Any, weight: Any, rounds: bool | None = None, rstd: Any = None
) -> tuple[Any, Any]:
    """dx and dw as backward_ring has them; `rounds` and rstd where they are not the case's and x's."""
    rounds = case.rounds if rounds is None else rounds
    r = (rstd_of(x) if rstd is None else rstd)[:, None]
    xhat, g = x.float() * r, dy.float()
    m = g if weight is None else g * (weight.float() + case.offset)
    dx = r * (m - xhat * (m * xhat).mean(-1, keepdim=True))
    if dsum is not None:
        dx = dx + dsum.float()
    if rounds:
        xhat = xhat.to(x.dtype).float()
    terms = xhat * g
    if rounds:
        terms = terms.to(x.dtype).float()
    return dx.to(x.dtype), None if weight is None else terms.sum(0).to(weight.dtype)


def forward(case: Case, x: Any, residual: Any, weight: Any, rounds: bool | None = None) -> tuple[Any, Any, Any]:
    """y, the sum and rstd as forward_ring has them."""
    rounds = case.rounds if rounds is None else rounds
    total = None if residual is None else (x.float() + residual.float()).to(x.dtype)
    s = x if total is None else total
    y = s.float() * rstd_of(s)[:, None]
    if weight is not None:
        y = (y.to(x.dtype).float() if rounds else y) * (weight.float() + case.offset)
    return y.to(x.dtype), total, rstd_of(s)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"rows": 1},
    {"rows": 1100, "hidden": 128},
    {"rounds": False, "offset": 1.0},
    {"weight": "none"},
    {"weight": "none", "rows": 1, "rounds": False},
    {"weight": "float32"},
    {"dtype": "float16", "fused": True},
    {"dtype": "float32", "weight": "bfloat16", "offset": 0.5},
    {"fused": True},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_is_right_passes(variant: dict[str, Any]) -> None:
    for seed in range(3):
        case = replace(BACKWARD, **variant)
        x, dy, other, weight = inputs(case, seed)
        assert wrong_backward(case, dy, other, x, weight, rstd_of(x), *backward(case, x, dy, other, weight)) == []
        case = replace(case, operation="forward")
        assert wrong_forward(case, x, other, weight, *forward(case, x, other, weight)) == []


def test_the_rounding_of_xhat_may_shift_a_whole_row() -> None:
    """The row's rstd is 1.002: a reference that does not round is 0.1 % off and more, and this one is not."""
    case, rstd = replace(BACKWARD, rows=1), torch.tensor([1.002])
    x, dy, _, weight = inputs(case)
    dx, dw = backward(case, x, dy, None, weight, rstd=rstd)
    exact = (dy.double() * x.double() * rstd.double()[:, None]).sum(0)
    assert abs(float((dw.double() * exact).sum() / exact.pow(2).sum()) - 1) > 2.0**-10
    assert wrong_backward(case, dy, None, x, weight, rstd, dx, dw) == []


def wrong(case: Case, change: Any) -> list[str]:
    """What the check says of a backward whose (dx, dw) `change` changed in place."""
    x, dy, other, weight = inputs(case)
    dx, dw = backward(case, x, dy, other, weight)
    change(dx, dw)
    return wrong_backward(case, dy, other, x, weight, rstd_of(x), dx, dw)


def test_planted_faults_of_a_backward_are_told() -> None:
    def lost(dx: Any, dw: Any) -> None:
        dx[2, 7] = 0

    def unwritten(dx: Any, dw: Any) -> None:
        dw[5] = float("nan")

    assert any(p.startswith("dx is") for p in wrong(BACKWARD, lost))
    assert any(p.startswith("dw is") for p in wrong(BACKWARD, unwritten))
    assert any("times too large" in p for p in wrong(BACKWARD, lambda dx, dw: dx.mul_(1.005)))
    assert any("times too large" in p for p in wrong(BACKWARD, lambda dx, dw: dw.mul_(1.005)))


@pytest.mark.parametrize("row", range(3))
def test_a_row_that_is_missing_from_dw_is_told(row: int) -> None:
    """Also the one of the smallest scale, a hundredth of the largest."""
    case = replace(BACKWARD, weight="float32")
    x, dy, _, weight = inputs(case)
    dx, _ = backward(case, x, dy, None, weight)
    others = [r for r in range(3) if r != row]
    _, dw = backward(case, x[others], dy[others], None, weight)
    assert any(p.startswith("dw") for p in wrong_backward(case, dy, None, x, weight, rstd_of(x), dx, dw))


@pytest.mark.parametrize("rounds", [True, False])
def test_roundings_that_are_left_out_or_too_many_are_told(rounds: bool) -> None:
    case = replace(BACKWARD, weight="float32", rounds=rounds)
    x, dy, _, weight = inputs(case)
    found = wrong_backward(
        case, dy, None, x, weight, rstd_of(x), *backward(case, x, dy, None, weight, rounds=not rounds)
    )
    assert found and all(p.startswith("dw") for p in found)


def test_planted_faults_of_a_forward_are_told() -> None:
    case = replace(FORWARD, fused=True)
    x, _, residual, weight = inputs(case)

    def told(place: int, change: Any) -> str:
        results = forward(case, x, residual, weight)
        change(results[place])
        return " ".join(wrong_forward(case, x, residual, weight, *results))

    assert "y is" in told(0, lambda y: y[1, 3:4].zero_())
    assert "y is inf" in told(0, lambda y: y[2, 4095:].fill_(float("nan")))
    assert "times too large" in told(0, lambda y: y.mul_(1.005))
    assert "sum differs" in told(1, lambda total: total[0, 0:1].add_(1))
    assert "rstd is" in told(2, lambda rstd: rstd[1:2].mul_(1.0001))


def test_other_bits_are_told() -> None:
    a, b = torch.zeros(4), torch.zeros(4)
    assert ring_cases.differences([(a, None), (b, None)]) == []
    b[3] = 1e-30
    assert ring_cases.differences([(a, None), (b, None)]) == ["not the same bits twice"]


def kind(case: Case) -> tuple[str, str, bool]:
    return case.operation, case.dtype, case.fused


KINDS = {kind(case) for cases in groups() for case in cases}


def test_each_kind_is_reached_before_any_comes_again() -> None:
    first = [{kind(case) for case in cases} for cases in groups()[: len(KINDS)]]
    assert len(KINDS) == 12 and all(len(kinds) == 1 for kinds in first) and set.union(*first) == KINDS


@pytest.mark.parametrize("sample", [2, 4, 8])
def test_a_sample_has_each_kind_and_every_way_through_the_kernels(sample: int) -> None:
    everything = [case.name for cases in groups() for case in cases]
    chosen = [case for cases in groups(sample) for case in cases]
    assert len(everything) // sample * 0.8 < len(chosen) < len(everything) / sample * 1.2
    assert {case.name for case in chosen} <= set(everything)
    assert len({case.name for case in chosen}) == len(chosen)
    assert {kind(case) for case in chosen} == KINDS
    for operation in ("forward", "backward"):
        options = [case.config for case in chosen if case.operation == operation]
        for key in ("regs", "slots", "hold", "store"):
            assert any(key in config for config in options), (operation, key)
    assert {case.rounds for case in chosen} == {True, False}
    assert {case.rows for case in chosen} >= {1, 3, 8192}
    assert all(len(cases) >= ring_cases.FEWEST for cases in groups(sample)[:-1])


def test_a_wrong_sample_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ring_check.main(["--sample", "0"])
    assert stop.value.code == 2 and "1 or more" in capsys.readouterr().err


def test_a_case_that_began_and_did_not_end_is_why_its_process_ended() -> None:
    cases = [replace(FORWARD, rows=rows) for rows in (1, 2, 3)]
    lines = [{"begin": 0}, {"end": 0, "problem": ""}, {"begin": 1}]
    assert ring_check.judged(cases, lines, "exit code 1: gone") == [
        (cases[0], ""),
        (cases[1], "exit code 1: gone"),
        (cases[2], "not reached"),
    ]
    assert all(problem for _, problem in ring_check.judged(cases, [], "no time left"))
