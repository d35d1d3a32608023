"""The run directory: a journal that survives anything, tables with fixed types, run.json last."""

from __future__ import annotations

import json
import math
import os
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm.cell import Cell, Status
from farm.errors import InfraError, StoreError
from farm.store import RUN_ID, SAMPLE_COLUMNS, RunWriter, Store, fold, new_id, run_writer, spool
from farm.store.results import COLUMNS, counts, finish_row, planned_row


def a_cell(index: int, **more: Any) -> Cell:
    return Cell(
        backend="sim",
        op="rms_norm",
        provider="farm",
        mode="auto",
        operation="forward",
        dtypes={"x": "float32", "weight": "float32"},
        dims={"rows": 2, "hidden": 64 + index},
        params={"eps": 1e-6},
        index=index,
        matrix="m",
        cell_id=f"sim/rms_norm/farm/{index}",
        **more,
    )


def a_row(cell: Cell, status: Status = Status.PASSED, **more: Any) -> dict[str, Any]:
    row = finish_row(cell, status=status, reason="", owner="", attempt=1, evidence="simulated")
    return {**row, **more}


def written(tmp_path: Path, results: int, cells: int = 3) -> tuple[RunWriter, list[Cell]]:
    writer = Store(tmp_path).create("run-1")
    planned = [a_cell(i) for i in range(cells)]
    writer.plan({"command": "farm run x", "planned": cells}, planned)
    for cell in planned[:results]:
        writer.append({"event": "result", "row": a_row(cell)})
    return writer, planned


def test_a_plan_is_on_disk_before_anything_starts(tmp_path: Path) -> None:
    written(tmp_path, 0)
    events = [json.loads(line)["event"] for line in (tmp_path / "runs/run-1/journal.jsonl").read_text().splitlines()]
    assert events == ["run", "cell", "cell", "cell", "planned"]


def test_an_unfinished_run_has_its_results_and_the_rest_lost(tmp_path: Path) -> None:
    _, planned = written(tmp_path, 2)  # never closed: the writer was killed
    run = Store(tmp_path).run("run-1")
    assert not run.complete
    assert [r["status"] for r in run.rows] == ["passed", "passed", "lost"]
    assert run.rows[2] == planned_row(planned[2])
    assert run.head["command"] == "farm run x"
    assert run.head["complete"] is False
    assert sum(counts(run.rows).values()) == 3
    assert run.cells() == planned


@pytest.mark.parametrize("tail", ['{"event":"result","row":{"index":1,"sta', "\x00\x00\x00", '{"event"'])
def test_a_last_line_cut_short_by_a_kill_is_left_out(tmp_path: Path, tail: str) -> None:
    written(tmp_path, 1)
    with (tmp_path / "runs/run-1/journal.jsonl").open("a") as file:
        file.write(tail)
    assert [r["status"] for r in Store(tmp_path).run("last").rows] == ["passed", "lost", "lost"]


def test_every_cut_of_a_journal_can_be_read(tmp_path: Path) -> None:
    """kill -9 may come at any byte."""
    written(tmp_path, 3)
    path = tmp_path / "runs/run-1/journal.jsonl"
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        rows = Store(tmp_path).run("run-1").rows
        assert all(r["status"] in ("passed", "lost") for r in rows)
        assert len(rows) <= 3


def test_fold_takes_the_last_result_of_a_cell_and_keeps_the_plans_order() -> None:
    cells = [a_cell(i) for i in range(3)]
    journal: list[dict[str, Any]] = [{"event": "cell", "cell": c.to_dict()} for c in cells]
    journal += [
        {"event": "result", "row": a_row(cells[2])},
        {"event": "result", "row": a_row(cells[0], Status.CRASHED)},
        {"event": "result", "row": a_row(cells[0])},
    ]
    assert [(r["index"], r["status"]) for r in fold(journal)] == [(0, "passed"), (1, "lost"), (2, "passed")]


def test_run_json_is_written_last_and_means_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, planned = written(tmp_path, 3)
    rows = [a_row(c) for c in planned]
    order: list[str] = []
    replace = Path.replace

    def spy(self: Path, target: Any) -> Any:
        order.append(Path(target).name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    writer.finish(rows, [], {"counts": counts(rows)})
    assert order == ["cells.parquet", "samples.parquet", "run.json"]
    run = Store(tmp_path).run("run-1")
    assert run.complete
    assert run.head["complete"] is True
    assert run.rows == rows
    assert not list(run.dir.glob("*.tmp"))


def test_tables_have_the_documented_columns_and_types(tmp_path: Path) -> None:
    writer, planned = written(tmp_path, 3)
    rows = [a_row(c) for c in planned]
    rows[0].update(worst_ratio=math.nan, max_ulp=math.inf, time_us_p50=1, bytes_moved=2**40)
    sample = {"cell_id": "a", "cell_key": "b", "attempt": 1, "method": "host", "samples_us": "[1.0]", "host_us": "[]"}
    writer.finish(rows, [sample], {})
    table = pq.read_table(writer.dir / "cells.parquet")
    kinds = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
    assert {f.name: f.type for f in table.schema} == {name: kinds[kind] for name, kind in COLUMNS.items()}
    first, second = table.to_pylist()[:2]
    assert math.isnan(first["worst_ratio"])
    assert first["max_ulp"] == math.inf
    assert first["time_us_p50"] == 1.0
    assert first["bytes_moved"] == 2**40
    assert second["worst_ratio"] is None
    assert second["time_us_p50"] is None
    samples = pq.read_table(writer.dir / "samples.parquet")
    assert samples.column_names == list(SAMPLE_COLUMNS)
    assert samples.to_pylist()[0]["sets"] is None


def test_tables_of_no_cells_at_all(tmp_path: Path) -> None:
    writer = Store(tmp_path).create("empty")
    writer.plan({"planned": 0}, [])
    writer.finish([], [], {})
    assert Store(tmp_path).run("empty").rows == []


def test_a_store_that_cannot_be_written_says_so_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for act in (lambda s: s.probe(), lambda s: s.create("x")):
        with pytest.raises(StoreError) as caught:
            act(Store(tmp_path / "file"))
        assert caught.value.id == "store-unwritable" and str(tmp_path / "file") in str(caught.value)
        assert "--out" in str(caught.value) and "\n" not in str(caught.value)
        assert caught.value.exit_code == 2


def test_a_run_id_is_used_once(tmp_path: Path) -> None:
    written(tmp_path, 0)
    for refuse in (Store(tmp_path).create, Store(tmp_path).refuse_existing):
        with pytest.raises(StoreError, match="--run-id") as refused:
            refuse("run-1")
        assert refused.value.id == "store-run-exists"
    Store(tmp_path).refuse_existing("run-2")


def test_a_full_disk_is_one_sentence_wherever_it_strikes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    writer, planned = written(tmp_path, 1)
    monkeypatch.setattr(writer, "_journal", open("/dev/full", "a", encoding="utf-8"))  # noqa: SIM115 - cannot close
    with pytest.raises(InfraError, match=r"No space left.*farm resume run-1") as refused:
        writer.append({"event": "result", "row": a_row(planned[1])})
    assert refused.value.id == "store-write-failed"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InfraError, match="No space left"):
        writer.sync()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InfraError, match="No space left"):
        writer.log("x", "y")
    monkeypatch.setattr(run_writer, "write_table", full)
    with pytest.raises(InfraError, match="No space left") as refused:
        writer.finish([], [], {})
    assert refused.value.id == "store-write-failed"
    assert not (writer.dir / "run.json").exists()
    rows = Store(tmp_path).run("run-1").rows
    assert [r["status"] for r in rows] == ["passed", "lost", "lost"]
    writer.close()  # tries the lost line again; an error there would hide the first one


def test_runs_are_found_by_id_by_beginning_and_as_the_last(tmp_path: Path) -> None:
    for name in ("20260101T000000Z-a", "20260102T000000Z-b"):
        Store(tmp_path).create(name).plan({}, [])
    s = Store(tmp_path)
    assert s.run("20260101").id.endswith("-a")
    assert s.run("last").id.endswith("-b")
    for store_, name, id in (
        (s, "2026", "store-run-ambiguous"),
        (s, "nothing", "store-run-unknown"),
        (Store(tmp_path / "absent"), "last", "store-run-unknown"),
    ):
        with pytest.raises(StoreError, match=f'"{name}"') as refused:
            store_.run(name)
        assert refused.value.id == id


def test_logs_stay_in_their_folder_and_are_bounded(tmp_path: Path) -> None:
    writer, _ = written(tmp_path, 0)
    where = writer.log("../../etc/pass wd/é", "x" * (1 << 20) + "the end")
    path = (writer.dir / where).resolve()
    assert path.parent == (writer.dir / "logs").resolve()
    assert path.read_text().endswith("the end")
    assert path.stat().st_size <= 64 << 10


# the spool


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spool, "_prefix", lambda: "farm-test-")
    return tmp_path


def test_a_spool_is_private_and_survives_a_sweep_while_its_owner_lives(base: Path) -> None:
    mine = base / "farm-test-mine"
    spool.claim(str(mine))
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    assert spool.sweep(base) == []
    assert mine.is_dir()


def test_a_spool_of_dead_owners_is_removed_and_nothing_else(base: Path) -> None:
    here, pid = spool._namespace(), os.getpid()
    names = {
        "farm-test-dead": f"{here}-4194305-12",  # above the largest pid
        "farm-test-reused": f"{here}-{pid}-1",  # this pid, another start
        "farm-test-elsewhere": "17-4194305-12",  # another container's
        "other-dead": f"{here}-4194305-12",
    }
    for folder, owner in names.items():
        (base / folder / "owners").mkdir(parents=True)
        (base / folder / "owners" / owner).touch()
        (base / folder / "inputs").mkdir()
        (base / folder / "inputs" / "x.bin").write_bytes(b"1")
    shared = base / "farm-test-shared"
    spool.claim(str(shared))
    (shared / "owners" / f"{here}-4194305-12").touch()
    (base / "farm-test-young").mkdir()
    assert {Path(p).name for p in spool.sweep(base)} == {"farm-test-dead", "farm-test-reused"}
    assert {p.name for p in base.iterdir()} == {
        "farm-test-elsewhere",
        "other-dead",
        "farm-test-shared",
        "farm-test-young",
    }


def test_a_spool_that_nobody_ever_owned_goes_after_a_day(base: Path) -> None:
    old = base / "farm-test-old"
    old.mkdir()
    os.utime(old, (1, 1))
    assert spool.sweep(base) == [str(old)]


def test_calibrations_are_added_and_never_rewritten(tmp_path: Path) -> None:
    here = Store(tmp_path)
    assert here.calibrations() == ([], [])
    first = here.keep_calibration(_calibration())
    second = here.keep_calibration(_calibration())  # in the same second
    assert first != second and first.parent == tmp_path / "calibrations"
    found, bad = here.calibrations()
    assert {c.id for c in found} == {first.stem, second.stem} and bad == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "\udcff", '"x"'])
def test_a_damaged_calibration_is_left_out_with_a_sentence(tmp_path: Path, text: str) -> None:
    here = Store(tmp_path)
    kept = here.keep_calibration(_calibration())
    (tmp_path / "calibrations" / "zzz.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    found, (sentence,) = here.calibrations()
    assert [c.id for c in found] == [kept.stem]
    assert sentence.id == "store-calibration-unreadable" and "zzz.json: " in sentence and "\n" not in sentence


def test_a_store_that_cannot_take_a_calibration_says_so(tmp_path: Path) -> None:
    (tmp_path / "calibrations").write_text("in the way")
    with pytest.raises(StoreError) as refused:
        Store(tmp_path).keep_calibration(_calibration())
    assert refused.value.id == "store-unwritable"
    assert Store(tmp_path).calibrations() == ([], [])


def _calibration() -> dict[str, Any]:
    return {
        "schema": 1,
        "id": "sim-1-20261121T120000Z",
        "made": "2026-11-21T12:00:00+00:00",
        "gemm": [],
        "target": {"backend": "sim", "model": "sim-1"},
        "fingerprint": {},
        "policy": {"method": "host", "version": 2},
        "curve": [{"bytes": 1048576, "us": 3.0}],
    }


def test_runs_of_one_second_have_ids_in_their_order() -> None:
    """Of a watch: a rerun of simulated cells takes less."""
    begun = datetime(2026, 11, 23, 7, 50, 4, tzinfo=timezone.utc)
    ids = [new_id(begun + timedelta(microseconds=n)) for n in range(0, 3_000_000, 9_973)]
    assert ids == sorted(set(ids)) and ids[0] == "20261123T075004Z-0000" and RUN_ID.fullmatch(ids[-1])
