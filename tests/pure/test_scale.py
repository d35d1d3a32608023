"""What a run of 10^5 cells must not do once a cell.  Counts of operations, never times."""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from scripted_cluster import Quiet, ScriptedCluster, run, slot
from synthetic_runs import FakeStore, interrupted_run
from test_store import a_cell, a_row

from farm.actor import backpressure
from farm.actor import event_buffer as saying
from farm.actor.backpressure import Backpressure
from farm.actor.event_buffer import EventBuffer
from farm.cell import Cell
from farm.cli import common, dashboard, run_command
from farm.contracts.discovery import contract
from farm.coordinator.journal import line
from farm.coordinator.request import RunOutcome
from farm.dashboards.build import build
from farm.deadline import Deadline
from farm.errors import InfraError, id_of
from farm.judge import judge
from farm.judge import pool as pools
from farm.judge.judge import Judge
from farm.judge.pool import JudgeHandle, LocalJudges, RayJudges, RecentAnswers, prepared_key
from farm.judge.processes import JudgeProcesses
from farm.store import RunWriter, Store, fold, recovery, run_reader, run_writer, tables

# ---- the journal ----


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    return Store(tmp_path).create("run-1")


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Calls of `owner.name`, as they come."""
    seen: list[Any] = []
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **named: seen.append(args) or real(*args, **named))
    return seen


def lines(writer: RunWriter) -> list[Any]:
    return [json.loads(line) for line in (writer.dir / "journal.jsonl").read_text().splitlines()]


def test_lines_together_are_one_write_and_one_look_at_the_lock(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, writes = counted(monkeypatch, writer._lock, "check"), counted(monkeypatch, writer, "_write")
    monkeypatch.setattr(run_writer, "HELD_SECONDS", 1e9)
    with writer.together():
        for i in range(50):
            writer.append({"event": "e", "n": i})
        assert lines(writer) == []
    assert [line["n"] for line in lines(writer)] == list(range(50))
    assert (len(looks), len(writes)) == (1, 1)
    writer.append({"event": "e", "n": 50})  # alone again
    assert lines(writer)[-1]["n"] == 50 and len(looks) == 2


@pytest.mark.parametrize(("name", "limit", "first"), [("HELD_LINES", 10, 10), ("HELD_SECONDS", 0.0, 1)])
def test_lines_are_not_held_for_long(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch, name: str, limit: float, first: int
) -> None:
    monkeypatch.setattr(run_writer, "HELD_SECONDS", 1e9)
    monkeypatch.setattr(run_writer, name, limit)
    with writer.together():
        for i in range(first):
            writer.append({"event": "e", "n": i})
        assert len(lines(writer)) == first


def test_a_sync_and_an_exception_leave_no_line_behind(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_writer, "HELD_SECONDS", 1e9)
    with writer.together():
        writer.append({"event": "of a lease"})
        writer.sync()
        assert len(lines(writer)) == 1
    with pytest.raises(KeyboardInterrupt), writer.together():
        writer.append({"event": "came before the second Ctrl-C"})
        raise KeyboardInterrupt
    assert len(lines(writer)) == 2


def test_a_lock_that_was_lost_keeps_held_lines_out(writer: RunWriter) -> None:
    (writer.dir / "writer.lock").unlink()
    with pytest.raises(InfraError) as refused, writer.together():
        writer.append({"event": "late"})
    assert refused.value.id == "store-lock-removed"
    assert lines(writer) == []


def test_the_loop_checks_the_lock_once_a_round_and_reports_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(RunWriter, "_still_ours", lambda self: looks.append(1))
    told: list[bool] = []

    def cell(self: Quiet, row: Any) -> None:
        (journal,) = tmp_path.rglob("journal.jsonl")
        told.append(any(e["event"] == "result" and e["row"] == row for e in map(json.loads, journal.open())))

    monkeypatch.setattr(Quiet, "cell", cell)
    outcome, _, _ = run(tmp_path, ScriptedCluster(), [slot("cuda:0")], cells=40)
    assert len(outcome.rows) == 40 and told == [True] * 40
    assert len(looks) < 40  # five lines a cell


def test_a_result_costs_no_row_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [a_cell(i) for i in range(4)]
    journal: list[dict[str, Any]] = [{"event": "cell", "cell": c.to_dict()} for c in cells]
    journal += [{"event": "result", "row": a_row(c)} for c in cells[:3]]
    made = counted(monkeypatch, run_reader, "planned_row")
    assert [r["status"] for r in fold(journal)] == ["passed", "passed", "passed", "lost"]
    assert len(made) == 1


# ---- what an actor says ----


def said_so_far(kinds: list[str]) -> EventBuffer:
    """What an actor has said that nobody has heard yet."""
    made = EventBuffer("sim:0")
    for kind in kinds:
        made.add(kind)
    return made


def test_events_of_cells_come_in_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saying, "LINGER_SECONDS", 30.0)
    made = said_so_far(["started"])
    threading.Timer(0.05, lambda: [made.add(kind) for kind in ("measured", "judged", "lease_done")]).start()
    assert [e["event"] for e in made.hear(1.0)] == ["started", "measured", "judged", "lease_done"]


@pytest.mark.parametrize("kind", ["lease_done", "device_up", "device_down", "device_waits", "calibrated"])
def test_events_of_the_device_do_not_wait(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(saying, "LINGER_SECONDS", 3600.0)
    assert [e["event"] for e in said_so_far(["judged", kind]).hear(1.0)] == ["judged", kind]


def test_an_answer_is_bounded_and_says_how_old_each_event_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saying, "LINGER_SECONDS", 3600.0)
    said = said_so_far(["started"] * (saying.MOST_EVENTS + 1)).hear(1.0)
    assert len(said) == saying.MOST_EVENTS
    ages = [e["age_s"] for e in said]
    assert ages == sorted(ages, reverse=True) and ages[-1] >= 0


def test_the_journal_has_the_time_at_which_things_were() -> None:
    now = time.monotonic()
    bundled, told = (line("measured", {"at": at, "cell": 1}, "cell") for at in (now - 50.0, now))
    assert bundled["cell"] == 1 and 49.0 < told["time"] - bundled["time"] < 51.0
    assert abs(line("drain", {"device": "d"}, "device")["time"] - told["time"]) < 60.0


# ---- judges ----


def test_a_device_waits_for_judges_that_are_too_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backpressure, "_scarce", lambda self: False)
    made = Backpressure(str(tmp_path))
    for _ in range(backpressure.MOST_WAITING - 1):
        made.began()
    made.wait(lambda: pytest.fail("there is room"))  # type: ignore[arg-type, return-value]
    made.began()
    looks: list[int] = []

    def judged_at_the_third() -> bool:
        looks.append(1)
        if len(looks) == 3:
            threading.Thread(target=made.ended).start()
        return False

    made.wait(judged_at_the_third)
    assert len(looks) >= 3
    made.began()
    made.wait(lambda: True)  # an actor that is stopped waits for nobody


def test_a_device_waits_where_the_spool_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = SimpleNamespace(total=100, free=20)
    monkeypatch.setattr("farm.actor.backpressure.shutil.disk_usage", lambda path: use)
    made = Backpressure(str(tmp_path))
    made.wait(lambda: pytest.fail("nothing of its own waits there"))  # type: ignore[arg-type, return-value]
    made.began()
    looks: list[int] = []
    made.wait(lambda: bool(looks.append(1)) or len(looks) == 2)
    assert len(looks) == 2
    use.free = 30
    made.wait(lambda: pytest.fail("there is room again"))  # type: ignore[arg-type, return-value]


class FakeJudge:
    """A judge as Ray gives it; `asked` are the cells that it was asked to prepare."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}  # of the tensor in each answer
        self.prepare = self.judge = self

    def options(self, **_: Any) -> FakeJudge:
        return self

    def remote(self, cell: dict[str, Any]) -> Any:
        self.asked.append(cell)
        return SimpleNamespace(
            value={"tensors": [{"name": len(self.asked), **self.more}]},
            future=lambda: SimpleNamespace(add_done_callback=lambda arrived: None),
        )


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(
        get=lambda ref, timeout: ref.value, exceptions=SimpleNamespace(RayTaskError=ZeroDivisionError)
    )
    monkeypatch.setitem(sys.modules, "ray", made)


def cells_of(number: int, **changes: Any) -> list[dict[str, Any]]:
    return [
        {**a_cell(i).to_dict(), "dims": {"rows": 4, "hidden": 8}, "mode": f"m{i}", **changes} for i in range(number)
    ]


@pytest.mark.usefixtures("fake_ray")
def test_cells_of_one_problem_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = FakeJudge()
    judges = RayJudges([JudgeHandle(0, 0, one)])
    for cell in cells_of(6):
        judges.prefetch(cell)
        assert judges.prepare(cell, Deadline(1.0)) == {"tensors": [{"name": 1}]}
    assert len(one.asked) == 1
    kept = judges._recent._kept
    kept |= {key: (Deadline(0.0), *rest) for key, (_, *rest) in kept.items()}  # type: ignore[misc]
    assert judges.prepare(cells_of(1)[0], Deadline(1.0)) == {"tensors": [{"name": 2}]}  # it was a while ago


HARMS: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "cut": lambda file: os.truncate(file, 3),
    "longer": lambda file: os.truncate(file, 9),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
@pytest.mark.usefixtures("fake_ray")
def test_an_answer_whose_files_are_gone_is_asked_for_again(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    """Else a cache that is deleted under a run fails every attempt of a cell for a minute, and a child that cuts its
    inputs short harms others for as long."""
    one = FakeJudge()
    judges, (cell,) = RayJudges([JudgeHandle(0, 0, one)]), cells_of(1)
    one.more = {"file": str(tmp_path / "x.bin")}
    (tmp_path / "x.bin").write_bytes(b"12345678")
    for _ in range(2):
        judges.prepare(cell, Deadline(1.0))
    assert len(one.asked) == 1
    harm(tmp_path / "x.bin")
    judges.prepare(cell, Deadline(1.0))
    assert len(one.asked) == 2


def test_an_answer_whose_files_were_never_there_is_not_kept(tmp_path: Path) -> None:
    recent = RecentAnswers()
    recent.keep("k", {"tensors": [{"name": "x", "file": str(tmp_path / "x.bin")}]})
    assert recent.get("k") is None and not recent.knows("k")


def test_cells_of_one_problem_are_prepared_once_inline_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def call(self: Any, name: str, given: Any, seconds: float, key: str = "") -> dict[str, Any]:
        asked.append(name)
        return {"tensors": [{"name": "x"}]}

    monkeypatch.setattr(JudgeProcesses, "call", call)
    judges = LocalJudges(str(tmp_path / "spool"), 1)
    for cell in cells_of(6):
        judges.prefetch(cell)
        assert judges.prepare(cell, Deadline(5.0)) == {"tensors": [{"name": "x"}]}
    judges.prepare(cells_of(1, seed=7, cell_key="of another")[0], Deadline(5.0))
    judges.close()
    assert asked == ["prepare"] * 2


@pytest.mark.parametrize(
    "change",
    [
        {"dims": {"rows": 4, "hidden": 9}},
        {"operation": "backward"},
        {"family": "outlier"},
        {"seed": 7},
        {"op": "other"},
        {"dtypes": {"x": "float64"}},
        {"params": {"weight": False}},
        {"contract_version": 99},
        {"backend": "other"},
    ],
)
def test_cells_of_another_problem_are_prepared_anew(change: dict[str, Any]) -> None:
    (cell,), (other,) = cells_of(1), cells_of(1, **change)
    assert prepared_key(cell) != prepared_key(other)


def test_late_judges_are_answered_for_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "LATE_LOOK_SECONDS", 0.01)
    before = threading.active_count()
    judges = RayJudges([JudgeHandle(0, 0, FakeJudge())])
    heard: queue.Queue[dict[str, Any]] = queue.Queue()
    for _ in range(50):
        judges.judge({"cell": {"index": 0, "cell_key": "k"}}, heard.put, 0.0)
    assert threading.active_count() - before <= 1
    said = [heard.get(timeout=30) for _ in range(50)]
    assert {(s["status"], id_of(s["reason"])) for s in said} == {("infra_error", "judge-silent")}


def test_an_answer_is_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, Any]] = []
    once = pools._Late().watch(heard.append, 900.0)
    once({"status": "passed"})
    once({"status": "infra_error"})
    assert heard == [{"status": "passed"}]


def a_whole_cell() -> Cell:
    parameters = {p.name: p.default for p in contract("rms_norm").parameters}
    return replace(a_cell(0), params=parameters, cell_key="")


def test_cells_that_share_inputs_share_their_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Judge(str(tmp_path / "spool"), 1, str(tmp_path / "cache"))
    filled = counted(monkeypatch, judge.evaluate, "fill_inputs")
    first = made._inputs(a_whole_cell()).arrays
    again = made._inputs(replace(a_whole_cell(), provider="other", mode="other")).arrays
    assert len(filled) == 1 and all(first[name] is again[name] for name in first)
    assert not any(array.flags.writeable for array in again.values())  # one cell's judging must not change another's


def test_an_output_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "y").write_bytes(bytes(12))
    with pytest.raises(judge.NotAFile):
        judge._read(tmp_path / "y", "float32", (2, 2))


# ---- pages ----


def test_a_run_is_read_once_for_its_page_the_list_and_the_evidence(tmp_path: Path) -> None:
    run = interrupted_run()
    run.dir = tmp_path / "runs" / run.id
    run.dir.mkdir(parents=True)
    store = FakeStore(tmp_path, [run])
    asked: list[str] = []
    real = store.run
    store.run = lambda name: asked.append(name) or real(name)
    build(store, run.id)
    assert asked == [run.id]


def test_the_command_that_builds_a_page_reads_its_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of 100,000 cells, twice, are half a gigabyte."""
    run = interrupted_run()
    run.dir = tmp_path / "runs" / run.id
    run.dir.mkdir(parents=True)
    store = FakeStore(tmp_path, [run])
    asked: list[str] = []
    real = store.run
    store.run = lambda name: asked.append(name) or real(name)
    monkeypatch.setattr(common, "store", lambda args: store)
    assert dashboard.run(argparse.Namespace(action="build", run=run.id)) == 0
    assert asked == [run.id]


@pytest.mark.parametrize(
    ("interrupted", "cells", "made"),
    [(True, common.PAGE_CELLS + 1, False), (True, common.PAGE_CELLS, True), (False, 10**5, True)],
)
def test_who_interrupts_a_large_run_does_not_wait_for_its_page(
    interrupted: bool,
    cells: int,
    made: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages: list[Any] = []
    monkeypatch.setattr(common, "tell_page", lambda *args: pages.append(args))
    row = {**a_row(a_cell(0)), "status": "lost", "evidence": ""}
    outcome = RunOutcome([row] * cells, "passed", 0, interrupted)
    args = argparse.Namespace(no_page=False, strict_peers=False, out="a store", command="run", write=[])
    code = run_command.tell(args, Store(tmp_path), "r1", outcome, 1.0)
    assert code == (3 if interrupted else 0) and bool(pages) == made
    printed = capsys.readouterr().err
    assert ("farm dashboard build r1 --out 'a store'" in printed) == (not made)


# ---- memory ----


def taken(make: Callable[[], Any]) -> tuple[int, int]:
    """(bytes that its result keeps, bytes at the peak)."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = make()
        gc.collect()
        current, peak = tracemalloc.get_traced_memory()
        assert kept is not None
        return current, peak
    finally:
        tracemalloc.stop()


def test_a_cell_of_a_run_that_goes_on_takes_two_kilobytes(tmp_path: Path) -> None:
    """100,000 cells took 2.5 GB: with every row, sample and cell in full.  500 MB are 4 kB for each, with all else."""
    cells, number = [a_cell(i) for i in range(250)], 250
    writer = Store(tmp_path).create("r")
    writer.plan({}, cells)
    for cell in cells:
        timing = {"method": "host", "samples_us": [1.0 + i for i in range(100)]}
        writer.append({"event": "started", "cell": cell.index, "attempt": 1})
        writer.append({"event": "measured", "cell": cell.index, "attempt": 1, "timing": timing})
        metrics = json.dumps({"y": {"max_abs": cell.index / 7, "max_rel": cell.index / 3}})
        writer.append({"event": "result", "row": a_row(cell, metrics=metrics, output_hash=f"{cell.index:064x}")})
    writer.close()
    journal = Store(tmp_path).run("r").journal()
    kept, peak = taken(lambda: recovery.read_located(journal.located()))
    assert kept < 2000 * number and peak < kept + (1 << 20)
    known = recovery.read_located(journal.located())
    assert len(Store(tmp_path).run("r").rows) == number  # what this imports is no cell's
    rows, _ = taken(lambda: Store(tmp_path).run("r").rows)
    assert rows < 3000 * number
    again = Store(tmp_path).reopen("r")
    held, peak = taken(lambda: again.conclude(cells, known.rows, {"planned": number}) or True)
    assert held < 1 << 20
    again.close()
    run = Store(tmp_path).run("r")
    assert [dict(r) for r in run.rows] == [line["row"] for line in journal if line["event"] == "result"]
    assert len(run.samples()) == number and run.samples()[7]["cell_id"] == cells[7].cell_id


def test_tables_are_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "GROUP_ROWS", 7)
    made: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(30):
            made.append(i)
            yield {"cell_id": f"c{i}", "attempt": i}

    tables.write_table(tmp_path / "t.parquet", rows(), {"cell_id": "text", "attempt": "int"})
    assert pq.ParquetFile(tmp_path / "t.parquet").metadata.num_row_groups == 5
    assert [r["attempt"] for r in tables.read_table(tmp_path / "t.parquet")] == made == list(range(30))
