"""The bars: at their very edges, and each one missed by a planted row."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bars
from benchmarks.bars import MIB


def row(
    operation: str = "forward", moved: int = 128 * MIB, hidden: int = 4096, roof: float | None = 4000.0, **gbps: Any
) -> dict[str, Any]:
    case = {"op": "rms_norm", "operation": operation, "dtype": "bfloat16", "rows": 1, "hidden": hidden}
    return {"case": case, "bytes": moved, "roof_gbps": roof, "gbps": gbps}


@pytest.mark.parametrize(
    "operation, moved, hidden, want",
    [
        ("forward", 64 * MIB, 128, 0.97),
        ("forward", 64 * MIB - 1, 128, 0.92),
        ("no-grad-forward", 64 * MIB, 131072, 0.97),
        ("backward", 96 * MIB - 1, 128, None),
        ("backward", 96 * MIB, 8192, 0.85),
        ("backward", 96 * MIB, 8193, 0.70),
    ],
)
def test_share_bars(operation: str, moved: int, hidden: int, want: float | None) -> None:
    assert bars.share_bar(operation, moved, hidden) == want


@pytest.mark.parametrize(
    "given, want",
    [
        (row(farm=3880.0, liger=3880.0), []),
        (row(farm=3879.0, liger=3800.0), ["0.970 of the roof, bar 0.97"]),
        (row(farm=3900.0, liger=3990.0), ["0.977 of liger, bar 0.98"]),
        (row(farm=3920.0, liger=4000.0), []),  # exactly at both bars' good side
        (row(moved=8 * MIB, farm=3680.0, quack=3000.0), []),
        (row(moved=8 * MIB, farm=3670.0, quack=3000.0), ["0.917 of the roof, bar 0.92"]),
        (row("backward", farm=3400.0, quack=3400.0), []),
        (row("backward", farm=3399.0, quack=3400.0), ["0.850 of the roof, bar 0.85", "1.000 of quack, bar 1.00"]),
        (row("backward", hidden=16384, farm=2800.0, quack=2000.0), []),
        (row("backward", hidden=16384, farm=2790.0, quack=2000.0), ["0.698 of the roof, bar 0.70"]),
        (row("backward", moved=32 * MIB, farm=100.0, quack=90.0), []),
        (row(farm=None, liger=3000.0), ["no time of ours"]),
        (row(liger=3000.0), ["no time of ours"]),
        (row(roof=None, farm=3900.0), ["no roof to hold to 0.97"]),
        (row(farm=3900.0, torch=None), []),  # a peer without a number is no peer
    ],
)
def test_each_bar_is_missed_just_below_it(given: dict[str, Any], want: list[str]) -> None:
    assert bars.complete(given)["missed"] == want


def test_our_modes_are_no_peers() -> None:
    done = bars.complete(row(**{"farm": 3900.0, "farm:row_packed": 3990.0, "torch": 3000.0, "liger": 3500.0}))
    assert done["best_peer"] == "liger" and done["ratio"] == pytest.approx(3900 / 3500)
    assert bars.better_modes(done) == [("farm:row_packed", pytest.approx(3990 / 3900))]
    assert bars.better_modes(bars.complete(row(**{"farm:row_packed": 1.0}))) == []


def test_geomean_is_of_ratios_not_of_sums() -> None:
    assert bars.geomean([2.0, 0.5]) == pytest.approx(1.0)
    assert bars.geomean([]) is None


def test_the_summary_of_a_forward() -> None:
    good = [bars.complete(row(farm=3990.0, liger=3500.0)), bars.complete(row(farm=3990.0, liger=3980.0))]
    found = bars.summary("forward", good)
    assert found["missed"] == [] and found["compared"] == 2 and found["slack_cells"] == 1
    assert found["slack_geomean"] == pytest.approx(3990 / 3500)
    level = [bars.complete(row(farm=3500.0, liger=3450.0))]
    assert bars.summary("forward", level)["missed"] == ["geometric mean 1.014 where the peer leaves room, bar 1.03"]
    behind = [bars.complete(row(farm=3900.0, liger=3910.0))]
    assert bars.summary("forward", behind)["missed"] == ["geometric mean 0.997 of the best peer, bar 1.00"]


def test_the_summary_of_a_backward() -> None:
    rows = [bars.complete(row("backward", farm=3600.0, quack=3200.0))]
    assert bars.summary("backward", rows)["missed"] == ["geometric mean 1.125 of the best peer, bar 1.15"]
    rows = [bars.complete(row("backward", farm=3700.0, quack=3200.0))]
    assert bars.summary("backward", rows)["missed"] == []


def test_nothing_compared_is_a_bar_missed() -> None:
    assert bars.summary("forward", [bars.complete(row(farm=3990.0))])["missed"]
    assert bars.summary("forward", [])["missed"]


def test_reach_is_told_apart_from_the_bars() -> None:
    large = bars.complete(row("backward", moved=512 * MIB, farm=3700.0, quack=3000.0))
    assert large["missed"] == [] and bars.short_of_reach([large]) == [large]
    assert bars.short_of_reach([bars.complete(row("backward", farm=3700.0, quack=3000.0))]) == []
    assert bars.short_of_reach([bars.complete(row(moved=512 * MIB, farm=3700.0))]) == []
