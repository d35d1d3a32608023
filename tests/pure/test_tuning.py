"""The search for launches: what is tried, what is refused, the table; and launches that are stated in full."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cli.tune import KernelSpace
from farm.errors import MatrixError
from farm.matrix import load_all, plan
from farm.tuning import search, table
from farm.tuning.search import AUTO, Task, Tried
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.gpu import carried, choose, forced, tuned

TASK = Task("rms_norm", "forward", "bfloat16", 4096, 2560)
ROW: dict[str, Any] = {
    "op": "rms_norm",
    "operation": "forward",
    "dtype": "bfloat16",
    "dims": '{"rows": 4096, "hidden": 2560}',
    "status": "passed",
    "timing_quality": "ok",
    "time_us_p50": 10.0,
    "flags": "[]",
    "mode": AUTO,
}
ENTRY: dict[str, Any] = {
    "op": "rms_norm",
    "operation": "forward",
    "dtype": "bfloat16",
    "rows": 4096,
    "hidden": 2560,
    "cores": 132,
    "target": "cuda:90",
    "launch": "forward_rows+num_warps=8",
    "device": "H200",
    "date": "2026-11-23",
}
CHOICE = {"cores": 132, "ring": True, "split": True}


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(carried.VARIABLE, raising=False)
    dispatch.choose.cache_clear()
    yield
    carried._given.clear()
    carried._of.cache_clear()
    dispatch.choose.cache_clear()


# Launches that are stated in full


def test_every_launch_of_the_table_is_stated_and_chosen_as_it_stands() -> None:
    for (op, operation, dtype), entries in tuned.TABLE.items():
        for rows, hidden, config in entries:
            text = forced.text(config)
            stated = {"mode": forced.mode_of(forced.parse(text), hidden), **forced.parse(text)}
            usual = {"rows": 1, "num_stages": 1, "per_core": 0, **choose.DEFAULTS[config["kernel"]]}
            assert {**usual, **stated} == {**usual, **config}
            size = choose.BYTES[dtype]
            built = choose._bound(choose.build(operation, config, rows, hidden, size, 132, "cuda:90"), "cuda:90")
            assert dispatch.choose("cuda:90", rows, hidden, dtype, operation, op=op, mode=text, **CHOICE) == built


def test_a_launch_forces_its_own_direction_alone() -> None:
    shape, launch = ("cuda:90", 4096, 4096, "bfloat16"), "backward_rows+num_warps=4+per_core=3"
    chosen = dispatch.choose(*shape, "backward", mode=launch, **CHOICE)
    assert (chosen.kernel, chosen.num_warps, chosen.programs) == ("backward_rows", 4, 3 * 132)
    assert dispatch.choose(*shape, "forward", mode=launch, **CHOICE) == dispatch.choose(*shape, "forward", **CHOICE)


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ("forward_rows+num_warps=8+per_core=1", "would leave rows unwritten"),  # the grid that writes 132 of 8,192 rows
        ("forward_persistent+num_warps=8", "needs per_core"),
        ("forward_unaligned+num_warps=8", "no multiple of 16 bytes"),
        ("forward_ring+block=1024+num_warps=4+regs=0+slots=1", "no ring for"),
        ("forward_split+num_warps=8+parts=256", "cannot run at once"),
    ],
)
def test_a_launch_that_cannot_serve_is_refused_with_the_reason(launch: str, said: str) -> None:
    with pytest.raises(NotImplementedError, match=said):
        dispatch.choose("cuda:90", 8192, 16384, "bfloat16", "forward", mode=launch, **CHOICE)


def test_a_kernel_that_the_tensors_cannot_have_is_not_replaced_by_another() -> None:
    with pytest.raises(NotImplementedError, match="not to be had"):
        dispatch.choose("cuda:90", 64, 32768, "bfloat16", "forward", cores=132, mode="forward_split+num_warps=8")
    with pytest.raises(NotImplementedError, match="no block of 32 warps"):
        dispatch.choose("hip:gfx942", 64, 4096, "bfloat16", "forward", cores=304, mode="forward_rows+num_warps=32")
    with pytest.raises(ValueError, match="no mode"):
        dispatch.choose("npu:Ascend910B3", 64, 4096, "bfloat16", "forward", cores=40, mode="forward_rows+num_warps=4")


WORDS = st.sampled_from(
    ("rows=3", "rows=2", "num_warps=8", "num_warps=0", "load=x", "tail=1", "per_core=-1", "x", "pdl=True")
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(WORDS, max_size=5).map(lambda w: "+".join(["forward_rows", *w]))))
def test_whatever_a_launch_says_it_is_taken_whole_or_refused_in_one_sentence(text: str) -> None:
    try:
        config = forced.parse(text)
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
        return
    assert forced.parse(forced.text(config)) | config == config
    choose.build("forward", {"mode": "row_packed", **config}, 8, 64, 2, 4, "interpreter")


# What there is to try


@pytest.mark.parametrize("target", ["cuda:90", "cuda:89", "hip:gfx942", "interpreter"])
@pytest.mark.parametrize("shape", [(4096, 2560), (7, 262144), (4096, 4097)])
def test_what_is_tried_can_be_chosen(target: str, shape: tuple[int, int]) -> None:
    space = KernelSpace(target, 64)
    for operation in ("no-grad-forward", "backward"):
        task = Task("fused_add_rms_norm", operation, "bfloat16", *shape)
        first, wide = space.first(task), space.wide(task)
        assert first and space.stated(task) == first[0]
        for launch in (*first, *wide[::5], *space.around(task, first[0])):
            assert forced.refusal(forced.parse(launch), *shape, "bfloat16", task.op, 64) is None
            assert target.startswith("cuda:") or launch.split("_")[1].split("+")[0] not in ("ring", "split")


class Space:
    """A few launches by number of warps; 2 ** n is the neighbour of 2 ** (n + 1)."""

    def first(self, task: Task) -> list[str]:
        return ["forward_rows+num_warps=4", "slow_one+num_warps=4"]

    def wide(self, task: Task) -> list[str]:
        return [f"{kernel}+num_warps={n}" for kernel in ("slow_one", "bad_one") for n in (1, 2, 4, 8, 16)]

    def around(self, task: Task, launch: str) -> list[str]:
        kernel, warps = launch.split("+num_warps=")
        return [f"{kernel}+num_warps={n}" for n in (int(warps) // 2, int(warps) * 2) if 1 <= n <= 32]


def measured(launch: str) -> Tried:
    kernel, _, warps = launch.partition("+num_warps=")
    if launch == AUTO:
        return Tried(AUTO, 10.0, "", True)
    if kernel == "bad_one":
        return Tried(launch, None, "inaccurate: y", False)
    return Tried(launch, 40.0 if kernel == "slow_one" else 8.0 + abs(int(warps) - 16) / 8, "", True)


def searched(seed: str, width: int = 2) -> list[dict[Task, dict[str, Tried]]]:
    rounds: list[dict[Task, dict[str, Tried]]] = []
    while asked := search.next_round(len(rounds), [TASK], rounds, Space(), width, seed):
        rounds.append({task: {launch: measured(launch) for launch in launches} for task, launches in asked.items()})
    return rounds


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_a_search_climbs_to_the_best_tries_nothing_twice_and_ends(seed: str) -> None:
    rounds = searched(seed)
    tried = [launch for one in rounds for launch in one[TASK]]
    assert len(tried) == len(set(tried)) and len(rounds) <= search.MOST_ROUNDS
    known = search.together(rounds)
    assert search.ranked(known[TASK])[0].launch == "forward_rows+num_warps=16"
    assert [list(r[TASK]) for r in searched(seed)] == [list(r[TASK]) for r in rounds]
    assert sum(t.startswith("slow_one") for t in tried) <= 5  # of a kernel that is far slower no more is tried


def test_a_kernel_that_is_slow_or_always_refused_is_not_tried_on() -> None:
    refused = {f"bad_one+num_warps={n}": measured(f"bad_one+num_warps={n}") for n in (1, 2, 4, 8)}
    timed = {launch: measured(launch) for launch in ("forward_rows+num_warps=4", "slow_one+num_warps=4")}
    assert search.hopeless({**refused, **timed}) == {"bad_one", "slow_one"}
    assert search.hopeless(timed) == {"slow_one"}


# What is refused


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"status": "inaccurate", "reason": "y: NaN"}, "inaccurate: y: NaN"),
        ({"timing_quality": "impossible", "flags": '["impossible: faster than the roof"]'}, "impossible: faster"),
        ({"timing_quality": "throttled"}, "throttled"),
        ({"timing_quality": "none", "time_us_p50": None}, "not timed"),
        ({"status": "crashed", "reason": "illegal access"}, "crashed"),
    ],
)
def test_what_the_farm_refuses_never_wins_however_fast(row: dict[str, Any], why: str) -> None:
    launch = "forward_rows+num_warps=1"
    rows = [ROW, {**ROW, "mode": "forward_rows+num_warps=8", "time_us_p50": 9.0}]
    rows.append({**ROW, "mode": launch, "time_us_p50": 0.1, **row})
    found = search.found(rows)[TASK]
    assert found[launch].us is None and found[launch].why.startswith(why)
    assert [t.launch for t in search.ranked(found)] == ["forward_rows+num_warps=8"]
    best = search.winner(TASK, found, "")
    assert best is not None and best.best.us == 9.0 and best.better


def test_auto_stays_where_nothing_is_clearly_faster_and_unfinished_cells_say_nothing() -> None:
    own = {**ROW, "mode": "forward_rows+num_warps=8", "time_us_p50": 10.02}
    rows = [ROW, own, {**ROW, "mode": "forward_rows+num_warps=4", "time_us_p50": 9.95}]
    found = search.found([*rows, {**ROW, "mode": "forward_rows+num_warps=2", "status": "lost"}])[TASK]
    best = search.winner(TASK, found, own["mode"])
    assert best is not None and not best.better and best.best.launch == own["mode"]
    assert search.winner(TASK, found, "") is None and "forward_rows+num_warps=2" not in found
    asked = search.last_round([TASK], {TASK: found}, {TASK: own["mode"]})
    assert asked == {TASK: [AUTO, "forward_rows+num_warps=4", own["mode"]]}


def test_a_round_is_a_matrix_of_ordinary_cells(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(search.matrices({TASK: [AUTO, "forward_rows+num_warps=8+rows=2"]}, "farm", "", True))
    cells = plan(load_all(file), ["cuda"]).cells
    assert [c.mode for c in cells] == [AUTO, "forward_rows+num_warps=8+rows=2"]
    assert cells[0].timing.min_samples == search.QUICK["min_samples"] and len({c.cell_key for c in cells}) == 2
    file.write_text(file.read_text().replace("+num_warps=8", "+num warps=8"))
    with pytest.raises(MatrixError, match="mode"):
        load_all(file)


# The table


def carried_file(folder: Path, *entries: dict[str, Any]) -> Path:
    path = folder / "t.json"
    path.write_text(table.text(entries))
    return path


def test_a_carried_table_is_used_on_its_target_alone_also_on_one_that_ours_does_not_know(tmp_path: Path) -> None:
    launch = "forward_persistent+num_warps=2+per_core=5"
    path = carried_file(tmp_path, {**ENTRY, "launch": launch, "target": "cuda:89", "cores": 58})
    shape = (4096, 2560, "bfloat16", "forward")
    before = {t: dispatch.choose(t, *shape, cores=58) for t in ("cuda:89", "cuda:86", "cuda:90")}
    carried.give(path)
    dispatch.choose.cache_clear()
    after = {t: dispatch.choose(t, *shape, cores=58) for t in before}
    assert {t for t in before if before[t] != after[t]} == {"cuda:89"}
    assert (after["cuda:89"].kernel, after["cuda:89"].programs) == ("forward_persistent", 5 * 58)
    near = dispatch.choose("cuda:89", 4000, 2304, "bfloat16", "forward", cores=58)  # the nearest shape's, as of ours
    assert near.kernel == "forward_persistent"
    assert dispatch.choose("cuda:89", 4096, 8192, "bfloat16", "forward", cores=58).kernel == "forward_rows"


def test_of_two_parts_of_a_target_that_with_as_many_cores_counts(tmp_path: Path) -> None:
    many = {**ENTRY, "target": "cuda:89", "cores": 142, "launch": "forward_rows+num_warps=16"}
    few = {**many, "cores": 58, "launch": "forward_rows+num_warps=2"}
    carried.give(carried_file(tmp_path, many, few))
    for cores, warps in ((142, 16), (58, 2)):
        assert dispatch.choose("cuda:89", 4096, 2560, "bfloat16", "forward", cores=cores).num_warps == warps


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "matmul"}, "has op 'matmul'"),
        ({"rows": True}, "has rows 'True'"),
        ({"hidden": 2**40}, "has hidden"),
        ({"target": "cuda:90; rm"}, "has target"),
        ({"launch": "forward_rows+num_warps=8+per_core=1"}, "unwritten"),
        ({"launch": "backward_rows+num_warps=8+per_core=1"}, "the launch of a backward"),
        ({"launch": "forward_rows+num_warps=7"}, "power of two"),
        ({"launch": None}, "has no launch"),
        ({"evidence": "interpreted"}, "no launch was timed"),
    ],
)
def test_a_hostile_entry_is_refused_in_one_sentence(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = carried_file(tmp_path, ENTRY, {**ENTRY, **change})
    with pytest.raises(ValueError, match=r"entries\[1\]") as error:
        carried.give(path)
    assert said in str(error.value) and "\n" not in str(error.value) and carried._given == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"kind": 1}', "[" * 5000, '{"kind": "farm-kernels-table", "entries": []}']
)
def test_a_file_that_is_no_table_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    for path in (tmp_path / "t.json", tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="farm tune") as error:
            carried.read(path)
        assert "\n" not in str(error.value)


def test_tables_merge_and_the_newer_entry_counts(tmp_path: Path) -> None:
    newer, other = {**ENTRY, "date": "2026-12-01", "time_us_p50": 9.0}, {**ENTRY, "device": "H100"}
    for order in ([[ENTRY], [newer, other]], [[newer], [other, ENTRY]]):
        entries, replaced = table.merged(order)
        assert sorted(map(json.dumps, entries)) == sorted(map(json.dumps, (newer, other))) and replaced == 1
    assert json.loads(table.text([])) == {"schema": 1, "kind": "farm-kernels-table", "entries": []}
    path = carried_file(tmp_path, *entries)
    assert carried.read(path) == entries


def test_a_cell_says_which_table_its_kernels_used(tmp_path: Path) -> None:
    """Else numbers with a table would be taken for those without."""
    from farm.child.session import _kernels_table
    from farm.report.evidence import tool_chain

    file = tmp_path / "t.json"
    file.write_text("{}")
    (found,) = _kernels_table(str(file)).items()
    assert found == ("kernels_table", hashlib.sha256(b"{}").hexdigest()[:16]) and not _kernels_table("")
    assert tool_chain(json.dumps(dict([found]))) == f"kernels-table {found[1]}"
    assert _kernels_table(str(tmp_path / "none")) == {"kernels_table": "unreadable"}
