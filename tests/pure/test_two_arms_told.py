"""What two arms say beyond verdicts: crossover lines, best modes and the regret of auto, memory and host time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.compare import crossover, modes
from farm.compare.crossover import Cell, Line, Parted
from farm.compare.decide import Verdict
from farm.report import pair_rows, two_arms
from farm.store.pairs import PAIR_COLUMNS

V = Verdict
FLIPPED = {V.IMPROVED: V.REGRESSED, V.REGRESSED: V.IMPROVED}
RATIOS = {V.IMPROVED: 0.9, V.REGRESSED: 1.1}


def cell(hidden: int, verdict: Verdict, rows: int = 8, operation: str = "forward", dtype: str = "bf16") -> Cell:
    names = (("op", "rms_norm"), ("operation", operation), ("dtype", dtype))
    at = {"rows": rows, "hidden": hidden}
    return Cell(f"{operation}/{dtype}/{rows}x{hidden}", names, at, verdict, RATIOS.get(verdict, 1.0))


CELLS = st.lists(
    st.builds(
        cell,
        st.sampled_from((64, 128, 256, 512)),
        st.sampled_from(list(V)),
        st.sampled_from((1, 8)),
        st.sampled_from(("forward", "backward")),
    ),
    max_size=24,
)


def claims(cells: list[Cell]) -> list[Any]:
    found = sorted(crossover.lines(cells, 1), key=lambda x: x.names)
    return [(x.names, x.axis, x.faster, x.slower, x.between) if isinstance(x, Line) else x for x in found]


@settings(max_examples=60)
@given(CELLS)
def test_a_line_rests_on_decided_cells_and_no_cell_contradicts_it(cells: list[Cell]) -> None:
    decided = [c for c in cells if c.verdict not in (V.INCONCLUSIVE, V.UNFIT)]
    assert claims(cells) == claims(decided), "what is undecided moves no line"
    for found in crossover.lines(cells, 1):
        mine = [c for c in decided if c.names[: len(found.names)] == found.names]
        changed = [sum(c.verdict is v for c in mine) for v in (V.IMPROVED, V.REGRESSED)]
        assert all(changed)
        if isinstance(found, Parted):
            assert list(found.cells) == changed
            continue
        for zone, side in ((found.faster, V.IMPROVED), (found.slower, V.REGRESSED)):
            inside = [c for c in mine if zone.first <= c.dims[found.axis] <= zone.last]
            assert {c.verdict for c in inside} <= {side, V.SAME} and zone.of == len(inside)
            assert zone.cells == sum(c.verdict is side for c in mine), "every one of them lies in the zone"
        low, high = sorted((found.faster, found.slower), key=lambda z: z.first)
        assert low.last < high.first


@settings(max_examples=60)
@given(CELLS)
def test_exchanged_arms_exchange_the_sides(cells: list[Cell]) -> None:
    flipped = [Cell(c.cell, c.names, c.dims, FLIPPED.get(c.verdict, c.verdict), 1 / c.ratio) for c in cells]
    for one, other in zip(crossover.lines(cells, 1), crossover.lines(flipped, 1), strict=True):
        assert one.names == other.names
        ends = [((z.first, z.last, z.cells, z.of) if isinstance(one, Line) else z) for z in (one.faster, one.slower)]
        back = [
            ((z.first, z.last, z.cells, z.of) if isinstance(other, Line) else z) for z in (other.slower, other.faster)
        ]
        assert ends == back


def test_the_line_of_a_tradeoff_and_what_lies_beside_it() -> None:
    """Faster for narrow rows, slower for wide ones: the question of a pull request of TransformerEngine."""
    verdicts = {128: V.IMPROVED, 256: V.IMPROVED, 512: V.INCONCLUSIVE, 1024: V.SAME, 4096: V.REGRESSED}
    (line,) = crossover.lines([cell(h, v) for h, v in verdicts.items()], 1)
    assert isinstance(line, Line) and line.axis == "hidden"
    assert (line.faster.first, line.faster.last, line.slower.first) == (128, 256, 4096), "not up to 512: undecided"
    assert (line.between, line.undecided) == (1, 1)
    mixed = [cell(64, V.IMPROVED), cell(64, V.REGRESSED, rows=9), cell(128, V.REGRESSED), cell(128, V.IMPROVED, rows=9)]
    assert crossover.lines(mixed, 1)[0] == Parted(mixed[0].names, "", (), (), (2, 2))
    apart = [cell(64, V.IMPROVED), cell(64, V.REGRESSED, operation="backward")]
    assert crossover.lines(apart, 1) == [
        Parted((("op", "rms_norm"),), "operation", ("forward",), ("backward",), (1, 1))
    ]


def timed(mode: str, a: float | None, b: float | None, threshold: float = 0.02) -> modes.Timed:
    return modes.Timed(f"x/{mode}", "x", mode, {k: v for k, v in (("a", a), ("b", b)) if v}, threshold)


def test_the_best_mode_of_each_arm_and_what_auto_costs() -> None:
    (found,) = modes.choices([timed("auto", 10, 12), timed("one", 10, 12), timed("two", 11, 10)])
    assert (found.best["a"].mode, found.best["b"].mode) == ("one", "two")
    assert found.best["b"].regret == pytest.approx(0.2) and found.sure_change and found.worse and not found.mended
    (near,) = modes.choices([timed("auto", 10, 10.1), timed("one", 10, 10), timed("two", 10.1, 9.99)])
    assert not (near.worse or near.sure_change), "within the thresholds"
    (new,) = modes.choices([timed("auto", 10, 12), timed("one", 10, 12), timed("two", None, 10, 0.1)])
    assert new.best["a"].mode == "one" and new.best["b"].mode == "two" and not new.sure_change
    assert new.worse, "auto does not choose the mode that is new in b"
    assert modes.choices([timed("auto", 1, 1)]) == [] == modes.choices([timed("one", 1, 1), timed("two", 1, 1)])


def pair(mode: str = "auto", hidden: int = 64, verdict: str = "same", **more: Any) -> dict[str, Any]:
    ratio = RATIOS.get(V(verdict), 1.0) if verdict else None
    shape = f"8x{hidden}"
    made: dict[str, Any] = dict.fromkeys(PAIR_COLUMNS)
    names = {"backend": "cuda", "target": "cuda:H200", "op": "rms_norm", "role": "subject", "operation": "forward"}
    made |= {**names, "dtype": "bfloat16", "shape": shape, "dims": json.dumps({"rows": 8, "hidden": hidden})}
    made |= {"cell": f"cuda/rms_norm/farm/{mode}/forward/bf16/{shape}/llama", "change": "same", "control": 0}
    made |= {"verdict": verdict, "ratio": ratio, "threshold": 0.02, "kernels": "", "note": ""}
    made |= {f"{n}_{arm}": value for arm in "ab" for n, value in (("mode", mode), ("provider", "farm"))}
    made |= {"time_us_a": 10.0, "time_us_b": 10.0 * (ratio or 1.0), "launch_a": "{}", "launch_b": "{}"}
    return {**made, **more}


def test_it_is_told_in_words_and_as_data() -> None:
    rows = [
        pair(hidden=64, verdict="improved", bandwidth_gbps_a=1000.0, bandwidth_gbps_b=1111.0),
        pair(hidden=4096, verdict="regressed", bandwidth_gbps_a=4211.0, bandwidth_gbps_b=3573.0),
        pair("static", hidden=4096),
        pair("static", hidden=64, time_us_b=None, verdict=""),
        pair(hidden=77, control=1, verdict="regressed", peak_memory_mib_a=1.0, peak_memory_mib_b=9.0),
        pair("one", hidden=9, peak_memory_mib_a=12.0, peak_memory_mib_b=24.0, host_us_a=100.0, host_us_b=151.0),
        pair("two", hidden=9, compile_s_a=3.0, compile_s_b=1.0, host_us_a=10.0, host_us_b=40.0),
    ]
    text = list(two_arms.lines(rows))
    assert text == [
        "faster and slower:",
        "  cuda:H200 rms_norm farm/auto: b is faster at hidden 64 (1 of 1 cell, most at 8x64 bf16 forward: 0.900, "
        "1,000 -> 1,111 GB/s), slower at hidden 4096 (1 of 1 cell, most at 8x4096 bf16 forward: 1.100, "
        "4,211 -> 3,573 GB/s)",
        "best mode: another one in b in 0 of 2 cells",
        "auto: slower than the best mode in 0 of 2 cells in a, in 1 in b, newly in 1; "
        "cuda/rms_norm/farm/auto/forward/bf16/8x4096/llama: 0% -> 10% (auto 11.00 us, static 10.00 us)",
        "peak memory: more in 2 of 2 cells, at most 1.000 -> 9.000 MiB "
        "(cuda/rms_norm/farm/auto/forward/bf16/8x77/llama)",
        "host time: more in 1 of 2 cells, at most 100.0 -> 151.0 us (cuda/rms_norm/farm/one/forward/bf16/8x9/llama)",
        "first call: less in 1 of 1 cell, at most 3.000 -> 1.000 s (cuda/rms_norm/farm/two/forward/bf16/8x9/llama)",
    ]
    told = json.loads(json.dumps(pair_rows.counts([{**row, "bits": 1} for row in rows])))
    assert told["crossovers"] == [text[1].strip()] and told["auto"]["newly_slower"]["count"] == 1
    assert told["costs"]["peak memory"]["more"] == {
        "cells": 2,
        "first": [{"cell": rows[n]["cell"], "a": a, "b": b} for n, a, b in ((4, 1.0, 9.0), (5, 12.0, 24.0))],
    }
    assert two_arms.memory_lines(rows, 1) == [
        f"{rows[5]['cell']}: 12.00 MiB more (device memory 12.00 -> 24.00 MiB)",
        "and 1 more",
    ]
    assert not {"crossovers", "auto", "costs"} & pair_rows.counts([{**pair("one"), "bits": 1}]).keys()


def test_what_differs_in_the_launch_stands_in_the_row() -> None:
    a = {"kernels": [{"kernel": "f", "grid": [132], "warps": 4}], "seen": {"f": 1}}
    b = {"kernels": [{"kernel": "f", "grid": [8192], "warps": 4}], "seen": {"f": 2, "g": 1}}
    row = pair(launch_a=json.dumps(a), launch_b=json.dumps(b), mode_resolved_a="x", mode_resolved_b="y")
    assert list(two_arms.launches(row)) == ["auto chose x -> y", "f.grid [132] -> [8192]", "launches f -> 2 x f, g"]
    for odd in ("", "[]", "{", '{"kernels": 7, "seen": []}', '{"kernels": [3]}'):
        assert list(two_arms.launches(pair(launch_a=odd, launch_b=odd))) == []
