"""What a cell of a heat map may show: the six contents of one table.  Pure.

A content is a function of a row and of what the row's table knows; the layout is `layout`'s, the look is `charts`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.report.format import number, sig
from farm.report.queries import is_subject, parse, races, same_cell, speed_counts
from farm.store.results import place

Row = Mapping[str, Any]
#: Content -> its name on the page, in the order of the values in a cell.
CONTENTS: Mapping[str, str] = {
    "speed": "speed",
    "us": "µs",
    "share": "% of roof",
    "peer": "÷ best peer",
    "baseline": "÷ baseline",
    "registers": "registers",
}
#: What the same cell is in another run: its key, its named target, the device's target, the timing method.
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Ratio:
    """One time divided by another; `sure` unless their p20-p80 overlap."""

    value: float
    sure: bool


@dataclass(frozen=True)
class Value:
    """One content of one cell.  `below`: small print; `ratio`: what colours a ratio."""

    text: str
    below: str = ""
    ratio: Ratio | None = None


@dataclass(frozen=True)
class Others:
    """The rows that a run's times are divided by.  Each has a time that counts."""

    peers: Mapping[tuple[str, ...], Row]  # same cell -> its fastest peer
    baseline: Mapping[Key, Row]


def others(rows: Sequence[Row], baseline: Iterable[Row] = ()) -> Others:
    """The fastest peer of each cell of a run, and its baseline's rows."""
    peers: dict[tuple[str, ...], Row] = {}
    for r in rows:
        if not is_subject(r) and races(r):
            cell = same_cell(r)
            if cell not in peers or r["time_us_p50"] < peers[cell]["time_us_p50"]:
                peers[cell] = r
    return Others(peers, {key(r): r for r in baseline if speed_counts(r)})


def key(row: Row) -> Key:
    return (
        str(row.get("cell_key")),
        place(row).partition("@")[2],
        str(row.get("target")),
        str(row.get("timing_method")),
    )


def time_ratio(mine: Row, other: Row) -> Ratio:
    """Both rows have a time that counts."""
    a, b = float(mine["time_us_p50"]), float(other["time_us_p50"])
    low_a, high_a, low_b, high_b = (number(r.get(n)) for r in (mine, other) for n in ("time_us_p20", "time_us_p80"))
    apart = None not in (low_a, high_a, low_b, high_b) and not (low_a <= high_b and low_b <= high_a)  # type: ignore[operator]
    return Ratio(a / b if b else float("inf"), apart)


def values(row: Row, flops: bool, found: Others) -> dict[str, Value]:
    """The contents of a row whose time counts; those that nobody knows are left out."""
    time, speed, share = (
        number(row.get(n)) for n in ("time_us_p50", "tflops" if flops else "bandwidth_gbps", "share_of_roof")
    )
    assert time is not None
    p20, p80 = number(row.get("time_us_p20")), number(row.get("time_us_p80"))
    half = 50 * (p80 - p20) / time if p20 is not None and p80 is not None and time else None
    out = {"us": Value(sig(time), "" if half is None else f"±{half:.1f}%" if half < 9.95 else f"±{half:.0f}%")}
    if speed is not None:
        out["speed"] = Value(f"{speed:.0f}" if speed >= 100 else sig(speed))
    if share is not None:
        out["share"] = Value(f"{100 * share:.0f}" if share >= 0.095 else f"{100 * share:.1f}")
    for name, other in (
        ("peer", found.peers and found.peers.get(same_cell(row))),
        ("baseline", found.baseline and found.baseline.get(key(row))),
    ):
        if other:
            ratio = time_ratio(row, other)
            out[name] = Value(f"{ratio.value:.2f}", ratio=ratio)
    held = registers(row)
    if held is not None:
        out["registers"] = Value(str(held))
    return out


def registers(row: Row) -> int | None:
    """The most registers per thread of the kernels that a cell launches; None where no compiler reported them."""
    found = parse(row.get("resources"))
    known = [k.get("registers") for k in found if isinstance(k, Mapping)] if isinstance(found, list) else []
    return max((int(n) for n in known if isinstance(n, int | float)), default=None)
