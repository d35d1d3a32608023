"""Rows that are not 16-byte aligned: which kernels `auto` gives them, and a model of what those read and write.

The model says in plain integers what `unaligned.py` says in tiles: which elements of a tensor a tile's bodies and edges
are, and which program has which row.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tune_space import Task, mode_of, neighbours, seeds, sensible
from benchmarks.tune_table import table
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.gpu import choose, tuned

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
TARGETS = ("cuda:90", "cuda:100", "cuda:80", "hip:gfx942", "hip:gfx950", "interpreter")
OPS = ("rms_norm", "fused_add_rms_norm")


def body(row: int, hidden: int, vector: int) -> tuple[int, int]:
    """Where a row's whole vectors begin and end, in elements of the tensor."""
    return -(-row * hidden // vector) * vector, (row + 1) * hidden // vector * vector


def rows_of(program: int, programs: int, rows: int, period: int, tile: int) -> list[int]:
    """The rows of a program, in its order."""
    tiles = rows if tile == 1 else period * -(-rows // (period * tile))
    found = []
    for group in range(program, tiles, programs):
        first = group // period * tile * period + group % period
        found += [row for row in range(first, first + tile * period, period) if row < rows]
    return found


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40000), st.sampled_from([4, 8]))
def test_a_body_fits_the_tile_and_its_edges_their_halves(row: int, hidden: int, vector: int) -> None:
    start, end = body(row, hidden, vector)
    assert start % vector == end % vector == 0
    assert end - start <= hidden // vector * vector <= choose.unaligned_block(hidden, 16 // vector)
    assert end - start >= (hidden // vector - 1) * vector and (end >= start or hidden < vector)
    before, after = start - row * hidden, (row + 1) * hidden - end
    assert 0 <= before < vector and 0 <= after < vector
    period = choose.period(hidden, 16 // vector)
    assert before == (body(row + period, hidden, vector)[0] - (row + period) * hidden)


@pytest.mark.parametrize("hidden", [1, 3, 7, 8, 9, 12, 127, 129, 130])
@pytest.mark.parametrize("vector", [4, 8])
def test_every_element_is_a_bodys_or_an_edges_and_of_one_row_only(hidden: int, vector: int) -> None:
    """As the kernel's masks have it, also for rows that lie inside one vector."""
    count: dict[int, int] = {}
    for row in range(2 * vector + 1):
        start, end = body(row, hidden, vector)
        head, columns = start - row * hidden, end - start
        edges = [c for c in range(vector) if c < head and c < hidden]
        edges += [c for c in range(head + columns, head + columns + vector) if columns >= 0 and c < hidden]
        for element in [*range(start, end), *(row * hidden + c for c in edges)]:
            count[element] = count.get(element, 0) + 1
    assert count == dict.fromkeys(range((2 * vector + 1) * hidden), 1)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(TARGETS),
    st.integers(1, 3000),
    st.integers(1, 2000),
    st.sampled_from(list(SIZES)),
    st.sampled_from(["forward", "backward"]),
    st.integers(1, 300),
    st.sampled_from([1, 2, 8, 32]),
    st.integers(0, 3),
)
def test_each_row_has_one_program_and_a_programs_rows_begin_alike(
    target: str, rows: int, hidden: int, dtype: str, operation: str, cores: int, tile: int, per_core: int
) -> None:
    kernel = f"{operation}_unaligned"
    per_core = max(1, per_core) if operation == "backward" else per_core
    config = {"mode": "row_packed", "kernel": kernel, "rows": tile, "num_warps": 4, "per_core": per_core}
    choice = choose.build(operation, config, rows, hidden, SIZES[dtype], cores, target)
    period = choose.period(hidden, SIZES[dtype])
    vector = 16 // SIZES[dtype]
    seen: list[int] = []
    for program in range(choice.programs):
        mine = rows_of(program, choice.programs, rows, period, choice.rows)
        assert len({body(row, hidden, vector)[0] - row * hidden for row in mine}) <= 1
        seen += mine
    assert sorted(seen) == list(range(rows))


@pytest.mark.parametrize(
    "hidden, dtype, operation, takes",
    [
        (4095, "bfloat16", "forward", True),
        (4096, "bfloat16", "forward", False),
        (4097, "bfloat16", "backward", True),
        (4097, "float32", "backward", True),
        (4100, "float32", "backward", False),  # 16,400 bytes are whole vectors
        (4100, "float16", "backward", True),
        (65, "bfloat16", "forward", True),
        (63, "bfloat16", "forward", False),  # edges are too much of it
        (32769, "bfloat16", "forward", True),  # whose whole vectors fit 32,768
        (32777, "bfloat16", "forward", False),
        (8193, "float32", "backward", True),
        (8197, "float32", "backward", False),
        (16385, "bfloat16", "backward", True),
    ],
)
def test_who_gets_them(hidden: int, dtype: str, operation: str, takes: bool) -> None:
    for target in TARGETS:
        for op in OPS:
            asked = (target, 6144, hidden, dtype, operation)
            kernels = {}
            for dense in (True, False):
                choice = dispatch.choose(*asked, cores=132, op=op, dense=dense)
                kernels[dense] = str(dict(choice.options)["kernel"])
                assert choice.mode == "static_persistent" or kernels[dense] != "backward_unaligned"
            assert (kernels[True] in choose.UNALIGNED) is takes
            assert kernels[False] not in choose.UNALIGNED
            if not takes:
                assert kernels[True] == kernels[False]


def test_no_other_mode_gets_them() -> None:
    for mode in ("static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed", "column_tiled"):
        for operation in ("forward", "backward"):
            choice = dispatch.choose("cuda:90", 6144, 4095, "bfloat16", operation, cores=132, mode=mode)
            assert dict(choice.options)["kernel"] not in choose.UNALIGNED


def test_4095_4096_and_4097_columns_have_one_tile() -> None:
    for operation in ("forward", "backward"):
        blocks = {
            dispatch.choose("cuda:80", 6144, hidden, "bfloat16", operation, cores=132).block
            for hidden in (4095, 4096, 4097, 4103)
        }
        assert blocks == {4096}


def test_the_best_of_the_table_is_found_by_the_tile_of_whole_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"mode": "multi_wave_cached", "kernel": "forward_rows", "num_warps": 4}
    other = {"mode": "multi_wave_cached", "kernel": "forward_unaligned", "num_warps": 8}
    entries = ((6144, 4095, other), (6144, 4095, plain), (6144, 4096, plain))
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", "forward", "bfloat16"): entries})

    def found(hidden: int, dense: bool) -> Any:
        wanted = choose.UNALIGNED if dense else ("forward_rows",)
        nearest = tuned.find(
            "cuda:90", "rms_norm", "forward", "bfloat16", 6144, hidden, lambda kernel, _: kernel in wanted
        )
        return nearest and nearest[1]

    assert found(4095, True) == found(4097, True) == found(4103, True) == other
    assert found(4104, True) is None is found(4105, True)  # aligned; another tile
    assert found(4095, False) == plain and found(4097, False) is None
    assert tuned.find("cuda:90", "rms_norm", "forward", "bfloat16", 6144, 4095) == (4095, other)  # the faster one


def test_the_search_starts_from_them_where_rows_are_not_aligned() -> None:
    for operation in ("forward", "backward"):
        for shape in ((6144, 4095), (6144, 4097), (32768, 129)):
            task = Task("rms_norm", operation, "bfloat16", *shape)
            mine = [c for c in seeds(task) if c["kernel"] in choose.UNALIGNED]
            assert len(mine) >= 12 and all(sensible(task, c) for c in mine)
            assert all(other["kernel"] == c["kernel"] for c in mine[:5] for other in neighbours(task, c))
            for config in mine:
                choice = choose.build(
                    operation, {**config, "mode": mode_of(config, task.hidden)}, *shape, 2, 132, "cuda:90"
                )
                assert choice.rows == config["rows"] and choice.block == choose.unaligned_block(task.hidden, 2)
        aligned = seeds(Task("rms_norm", operation, "bfloat16", 6144, 4096))
        assert not any(c["kernel"] in choose.UNALIGNED for c in aligned)


@pytest.mark.parametrize(
    "rows, per_core, operation, mode",
    [
        (1, 0, "forward", "multi_wave_cached"),
        (1, 4, "forward", "static_persistent"),
        (8, 0, "forward", "row_packed"),
        (1, 1, "backward", "static_persistent"),
        (8, 1, "backward", "row_packed"),
    ],
)
def test_their_modes(rows: int, per_core: int, operation: str, mode: str) -> None:
    assert mode_of({"kernel": f"{operation}_unaligned", "rows": rows, "per_core": per_core}, 4095) == mode


def test_the_table_keeps_what_rows_that_lie_apart_take(tmp_path: Path) -> None:
    """And of rows that are not aligned the best unaligned configuration, were another one faster."""
    task = Task("rms_norm", "forward", "bfloat16", 6144, 4095)
    mine = [c for c in seeds(task) if c["kernel"] == "forward_unaligned"][:2]
    plain = [c for c in seeds(task) if c["kernel"] == "forward_rows"][:2]
    for tried, kept in (
        ([mine[0], mine[1], plain[1], plain[0]], [mine[0], plain[1]]),
        ([plain[1], plain[0], mine[1], mine[0]], [plain[1], mine[1]]),
        ([plain[1], plain[0]], [plain[1]]),
    ):
        report = tmp_path / "report.json"
        report.write_text(json.dumps({task.name: {"tried": [[float(n), c] for n, c in enumerate(tried)]}}))
        namespace: dict[str, Any] = {}
        exec(compile(table([str(report)], ""), "tuned.py", "exec"), namespace)
        (entries,) = namespace["TABLE"].values()
        assert [e[:2] for e in entries] == [(6144, 4095)] * len(kept)
        for (_, _, entry), config in zip(entries, kept):
            usual = {"rows": 1, "num_stages": 1, "per_core": 0, **choose.DEFAULTS[config["kernel"]]}
            assert {**usual, **entry} == {**usual, **config, "mode": mode_of(config, 4095)}
