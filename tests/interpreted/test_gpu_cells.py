"""The GPU family's norms through their public functions: modes, operations, castings, dtypes, weights, layouts and odd
shapes, each within its contract's gates, with the out-of-bounds check on.

A selection runs always.  The full product of ops, modes, operations, castings, dtypes and shapes, with the other
factors drawn, runs where FARM_NIGHTLY=1 is set (`make nightly`), or a share of it: FARM_NIGHTLY=3/20 is the third of
twenty, and `make soak` draws one.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from gpu_cases import FACTORS, GROUPS, Case, call, nightly, refusal, selected, without_rows
from pairwise import all_meetings, cover, meetings_of

from kernels import launches
from kernels.ops.rms_norm.gpu import choose


def cases() -> list[Case]:
    share = os.environ.get("FARM_NIGHTLY")
    if not share:
        return [*selected()[0], *without_rows()]
    try:
        return nightly(share)
    except ValueError as error:
        raise pytest.Collector.CollectError(str(error)) from None  # a sentence instead of a traceback


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.long] if n % 4 else []) for n, c in enumerate(cases())],
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_values_lie_within_the_contracts_gates(case: Case) -> None:
    subject = call(case)
    subject.judge(subject.run())


def test_the_selection_holds_every_meeting_that_is_not_refused() -> None:
    """Counted apart from how it was made."""
    chosen, never = selected()
    wanted = [*GROUPS, *itertools.combinations(FACTORS, 2)]
    met = {m for case in chosen for m in meetings_of(case, wanted)}
    missing = set(all_meetings(FACTORS, wanted)) - met
    assert missing == set(never)
    assert missing and all({("mode", "row_packed"), ("hidden", 16385)} <= set(m) for m in missing)
    assert 250 <= len(chosen) <= 400
    pairs = list(itertools.combinations([n for n in FACTORS if n != "rows"], 2))
    held = {m for case in without_rows() for m in meetings_of(case, pairs)}
    assert all({("mode", "row_packed"), ("hidden", 16385)} == set(m) for m in set(all_meetings(FACTORS, pairs)) - held)


def test_a_small_selection_is_what_it_says() -> None:
    factors = {"a": (0, 1, 2), "b": (0, 1, 2), "c": (0, 1), "d": (0, 1)}
    found, never = cover(factors, [("a", "c", "d")], allowed=lambda case: case["a"] + case["b"] < 4)
    assert never == [(("a", 2), ("b", 2))]
    met = {m for case in found for m in meetings_of(case, [("a", "c", "d"), *itertools.combinations(factors, 2)])}
    assert met == set(all_meetings(factors, [("a", "c", "d"), *itertools.combinations(factors, 2)])) - set(never)
    assert len(found) <= 16 and all(case["a"] + case["b"] < 4 for case in found)
    assert cover(factors, [("a", "c", "d")], allowed=lambda case: case["a"] + case["b"] < 4) == (found, never)


def test_the_nightly_product_is_whole_and_its_shares_make_it_up() -> None:
    whole = nightly("1")
    # the product of the named factors, less row_packed at the one hidden that it refuses
    assert len(whole) == (6 * 10 - 1) * 2 * 4 * 3 * 3 * 4
    shares = [nightly(f"{k}/7") for k in range(1, 8)]
    assert sorted(map(repr, itertools.chain(*shares))) == sorted(map(repr, whole))
    for wrong in ("0", "4/3", "x", "1/", "2"):
        with pytest.raises(ValueError, match="k/n for the k-th share of n"):
            nightly(wrong)
    assert all(f in {c[n] for c in whole} for n, values in FACTORS.items() for f in values)


def refused() -> list[Case]:
    """Of what dispatch refuses in the product, every mode, subject, operation and dtype."""
    fixed = {"casting": ("llama",), "weight": ("same",), "offset": (0.0,), "layout": ("dense",), "rows": (0, 3)}
    factors = {**FACTORS, **fixed}
    every = (dict(zip(factors, values)) for values in itertools.product(*factors.values()))
    return [case for case in every if refusal(case)]


def test_a_refused_cell_raises_what_dispatch_says() -> None:
    """Counted: row_packed alone, at one hidden, of every subject, operation, dtype and number of rows."""
    told = 0
    for case in refused():
        with pytest.raises(NotImplementedError) as raised:
            call(case).run()
        assert str(raised.value) == refusal(case)
        told += 1
    assert told == 3 * 4 * 3 * 2
    assert {(case["mode"], case["hidden"]) for case in refused()} == {("row_packed", 16385)}


@pytest.mark.parametrize("subject", ["rms_norm", "fused_add_rms_norm"])
@pytest.mark.parametrize(
    "mode, operation, widest",
    [
        ("static_persistent", "no-grad-forward", choose.MAX_BLOCK),
        ("multi_wave_cached", "no-grad-forward", choose.MAX_BLOCK),
        ("row_packed", "no-grad-forward", choose.MAX_PACKED),
        ("static_persistent", "backward", choose.MAX_BACKWARD_BLOCK),
        ("multi_wave_cached", "backward", choose.MAX_BACKWARD_BLOCK),
        ("row_packed", "backward", choose.MAX_PACKED),
    ],
)
def test_a_mode_serves_up_to_its_limit_and_refuses_one_more(
    subject: str, mode: str, operation: str, widest: int
) -> None:
    fixed = {"casting": "gemma", "dtype": "bfloat16", "rows": 1, "weight": "none", "offset": 0.0, "layout": "dense"}
    case = {**fixed, "mode": mode, "subject": subject, "operation": operation, "hidden": widest}
    served = call(case)
    served.judge(served.run())
    more = {**case, "hidden": widest + 1}
    with pytest.raises(NotImplementedError, match=f"at most {widest}.*; hidden is {widest + 1}"):
        call(more).run()
    if operation == "backward":  # what only the backward refuses, the forward serves
        ahead = {**more, "operation": "forward"}
        assert (refusal(ahead) is None) == (mode != "row_packed")


@pytest.mark.parametrize("hidden", [65537, 262144])
@pytest.mark.parametrize("subject", ["rms_norm", "fused_add_rms_norm"])
def test_auto_serves_what_no_tile_holds(subject: str, hidden: int) -> None:
    fixed = {"casting": "llama", "dtype": "float16", "rows": 3, "weight": "none", "offset": 0.0, "layout": "apart"}
    served = call({**fixed, "mode": "auto", "subject": subject, "operation": "full", "hidden": hidden})
    served.judge(served.run())


def test_the_judgement_rejects_wrong_values() -> None:
    """The gates have teeth: half a percent, a lost column, an eps forgotten, a gradient without its second term."""
    fixed = {"casting": "llama", "rows": 17, "weight": "same", "offset": 0.0, "layout": "dense", "hidden": 1000}
    for dtype in FACTORS["dtype"]:
        case = {**fixed, "mode": "auto", "subject": "fused_add_rms_norm", "operation": "full", "dtype": dtype}
        subject = call(case)
        right = subject.run()
        subject.judge(right)
        x, column = subject.given["x"].detach(), torch.arange(1000)
        total = right["sum"].double()
        no_eps = total * total.pow(2).mean(-1, keepdim=True).clamp_min(1e-300).rsqrt()
        wrong = {
            "y": [right["y"] * 1.005, right["y"] * (column != 999), no_eps * subject.given["weight"].double()],
            "sum": [right["sum"] * 1.01, x],
            "dx": [right["dx"] - subject.given["dsum"], right["dx"] * 1.01],
            "dw": [right["dw"] * 1.02, right["dw"] * (column != 0)],
        }
        for name, values in wrong.items():
            for value in values:
                with pytest.raises(AssertionError, match=name):
                    subject.judge({**right, name: value.detach().to(right[name].dtype)})


def test_every_mode_launches_the_kernels_that_it_names() -> None:
    """And every launch of a call, also of its small helpers, says that mode."""
    rows, columns = ["backward_rows", "sum_partials"], ["row_means", "backward_columns", "sum_partials"]
    expected = {
        "multi_wave_cached": ["forward_rows", *rows],
        "row_packed": ["forward_rows", *rows],
        "static_persistent": ["forward_persistent", *rows],
        "multi_wave_reload": ["forward_chunks", *columns],
        "column_tiled": ["forward_chunks", *columns],
    }
    for mode, kernels in expected.items():
        case = {name: values[0] for name, values in FACTORS.items()}
        subject = call({**case, "mode": mode, "operation": "full", "hidden": 300, "rows": 70})
        launches.enable()
        subject.run()
        records = launches.drain()
        launches.disable()
        if "sum_partials" in kernels and records[-1]["kernel"] == "backward_rows":
            assert records[-1]["grid"][0] == 1  # a single program stores dw itself
            kernels = kernels[:-1]
        assert [r["kernel"] for r in records] == kernels
        assert {r["mode"] for r in records} == {mode}
        assert [r["direction"] for r in records] == ["forward"] + ["backward"] * (len(kernels) - 1)
