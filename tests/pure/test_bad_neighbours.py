"""One bad run folder, or calibration, neither fails nor taxes another run of the store."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_journal_damage import CELLS, a_run, row_of

from farm import atomic_files
from farm.cli import common, kit, pr_measure
from farm.cli.main import main
from farm.dashboards import build as pages
from farm.errors import FarmError, StoreError
from farm.process import command
from farm.report import evidence
from farm.store import Run, Store, tables
from farm.store.results import COLUMNS, counts

DEEP = "[" * 100_000


def a_finished_run(store: Path, name: str) -> Run:
    writer = Store(store).create(name)
    writer.plan({"created": "2026-11-21T12:00:00+00:00", "planned": 12, "command": "farm run x", "argv": []}, CELLS)
    rows = [row_of(i, evidence="simulated", device="sim:0") for i in range(12)]
    head = {"backends": {"sim": {"counts": counts(rows), "devices": []}}, "planned": 12, "verdict": "passed"}
    writer.finish(rows, [], {**head, "counts": counts(rows), "exit_code": 0})
    writer.close()
    return Store(store).run(name)


def bomb(path: Path, rows: int = 6) -> None:
    """Few kilobytes that unpack to gigabytes: the same text, once in the file and once for each row."""
    columns: dict[str, Any] = {name: [None] * rows for name in COLUMNS}
    columns["reason"] = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * (34 << 20)])
    pq.write_table(pa.table(columns), path, compression="zstd")
    assert path.stat().st_size < 100_000


BAD = {
    "a journal of deep JSON": {"journal.jsonl": '{"event":"run","a":' + DEEP + "\n"},
    "a head of deep JSON": {"journal.jsonl": "", "run.json": '{"a":' + DEEP},
    "garbage": {"journal.jsonl": "\x01\x02\n", "run.json": "\x00"},
    "a long line": {"journal.jsonl": "x" * (17 << 20)},
    "a head without an end": {"journal.jsonl": "", "run.json": '{"run_id": "x", "a": "' + "x" * (65 << 20)},
    "a folder for a journal": {},
    "a table of other columns": {"journal.jsonl": "", "run.json": '{"verdict": "passed", "backends": {"sim": 3}}'},
}


@pytest.mark.parametrize("kind", [*BAD, "a bomb"])
def test_a_bad_run_folder_does_not_decide_another_runs_page(tmp_path: Path, kind: str) -> None:
    bad = tmp_path / "runs" / "bad"
    bad.mkdir(parents=True)
    for name, text in BAD.get(kind, {}).items():
        (bad / name).write_text(text)
    if kind == "a bomb":
        (bad / "journal.jsonl").write_text("")
        (bad / "run.json").write_text('{"verdict": "passed", "backends": {}, "planned": 6}')
        bomb(bad / "cells.parquet")
    if kind == "a folder for a journal":
        (bad / "journal.jsonl").mkdir()
    a_finished_run(tmp_path, "good")
    page = pages.build(Store(tmp_path), "good")
    assert page.is_file()
    known = json.loads((tmp_path / "pages" / pages.KEPT).read_text())["runs"]
    assert known["good"]["proofs"] and not known.get("bad", {}).get("proofs")
    for words in (["export", "junit", "bad"], ["dashboard", "build", "bad"], ["judge", "bad", "--no-page"]):
        if kind != "a folder for a journal":  # then it is no run
            assert main([*words, "--out", str(tmp_path)]) in (0, 2), words


def test_a_text_that_many_rows_share_is_in_memory_once(tmp_path: Path) -> None:
    """A dictionary makes 1 MiB of a table that would unpack to 20 GiB."""
    rows = 20_000
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * (1 << 20)])
    pq.write_table(pa.table({"reason": text}), tmp_path / "t.parquet", compression="zstd")
    found = list(tables.read_table(tmp_path / "t.parquet"))
    assert len(found) == rows and len({id(row["reason"]) for row in found}) <= 1 + rows // tables.GROUP_ROWS


def test_an_interrupted_run_is_read_once_for_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its journal was folded for every later run of the store: 13 to 29 s of CPU for one of 100,000 cells."""
    a_run(tmp_path)
    a_finished_run(tmp_path, "a")
    store = Store(tmp_path)
    pages.build(store, "a")
    before = (tmp_path / "pages/index.html").read_text()

    read: list[str] = []
    rows = Run.rows.func  # type: ignore[attr-defined]
    monkeypatch.setattr(Run, "rows", property(lambda run: read.append(run.id) or rows(run)))
    pages.build(store, "a")
    assert set(read) == {"a"} and (tmp_path / "pages/index.html").read_text() == before
    journal = tmp_path / "runs/r/journal.jsonl"
    os.utime(journal, (1, 1))  # it was written meanwhile
    pages.build(store, "a")
    assert set(read) == {"a", "r"}


def test_a_large_run_that_is_being_written_is_not_read_for_each_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path)
    a_finished_run(tmp_path, "a")
    monkeypatch.setattr(pages, "LARGE_BYTES", 100)
    pages.build(Store(tmp_path), "a")
    writer = Store(tmp_path).reopen("r")
    writer.append({"event": "resumed", "time": 1.0})
    writer.sync()
    monkeypatch.setattr(evidence, "proofs", lambda run: pytest.fail(f"{run.id} was read"))
    (line,) = [x for x in pages.run_lines(Store(tmp_path), pages.kept(tmp_path / "pages" / pages.KEPT)) if x.id == "r"]
    assert line.verdict == "running" and line.backends["sim"]["passed"] == 8
    writer.close()
    assert run.writer == ""


def test_a_page_that_fails_decides_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_finished_run(tmp_path, "a")
    for error in (RecursionError("deep"), MemoryError(), KeyError("x"), StoreError("no", id="x")):

        def fails(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(pages, "build", fails)
        common.tell_page(argparse.Namespace(command="run", out=None), Store(tmp_path), "a")
        assert "[page-unwritable]" in capsys.readouterr().err


def test_the_page_of_a_large_run_is_built_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of 10^5 cells beside what the run holds were 2.5 GB, and an end by the host's memory is no verdict."""
    a_finished_run(tmp_path, "a")
    args = argparse.Namespace(command="run", out=str(tmp_path))
    monkeypatch.setattr(common, "PAGE_CELLS", 11)
    monkeypatch.setattr(pages, "build", lambda *_: pytest.fail("built in this process"))
    common.tell_page(args, Store(tmp_path), "a")
    assert str(tmp_path / "pages" / "run-a.html") in capsys.readouterr().err
    failed = command.Completed(2, b"", b"farm dashboard: damaged [run-unreadable]\n")
    monkeypatch.setattr(command, "run", lambda *_, **__: failed)
    common.tell_page(args, Store(tmp_path), "a")
    said = capsys.readouterr().err
    assert "run-unreadable" in said and "[page-unwritable]" in said


@pytest.mark.parametrize("text", ['{"schema": ' + DEEP, "[1]", '{"curve": 1e999}', "x" * (65 << 20)])
def test_a_calibration_of_any_content_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibrations").mkdir()
    (tmp_path / "calibrations" / "x.json").write_text(text)
    found, (said,) = Store(tmp_path).calibrations()
    assert found == [] and said.id == "store-calibration-unreadable"


def test_a_link_among_a_runs_logs_is_not_followed(tmp_path: Path) -> None:
    """Judging a run that came from elsewhere copied what its logs point at."""
    secret = tmp_path / "id_rsa"
    secret.write_text("secret")
    run = a_finished_run(tmp_path, "a")
    (run.dir / "logs" / "sub").mkdir(parents=True)
    (run.dir / "logs" / "one.txt").write_text("a log")
    (run.dir / "logs" / "x.txt").symlink_to(secret)
    (run.dir / "logs" / "sub" / "y.txt").symlink_to(secret)
    (run.dir / "plan.json").symlink_to(secret)
    writer = Store(tmp_path).create("b")
    with pytest.raises(FarmError) as refused:
        writer.take_logs(run)
    assert refused.value.id == "store-logs-not-copied"
    assert not any("secret" in p.read_text() for p in writer.dir.rglob("*") if p.is_file())
    for link in (run.dir / "logs/x.txt", run.dir / "logs/sub/y.txt", run.dir / "plan.json"):
        with pytest.raises(FarmError):
            writer.take_logs(run)
        link.unlink()
    (run.dir / "logs" / "sub").rmdir()
    writer.take_logs(run)
    assert (writer.dir / "logs/one.txt").read_text() == "a log"
    writer.close()


@pytest.mark.parametrize(
    "write",
    [atomic_files.write, pr_measure.write, lambda path, text: kit._write(path, text.encode())],
    ids=["an export, a plan or a page", "a result", "a kit"],
)
def test_a_device_that_is_named_is_written_to_and_never_replaced(
    write: Callable[[Path, str], None], tmp_path: Path
) -> None:
    """Root can: `--comment /dev/null` made it a file, and every other program of the host read it."""
    master, slave = os.openpty()
    try:
        write(Path(os.ttyname(slave)), "all of it\n")
        assert os.read(master, 100).split() == [b"all", b"of", b"it"]
        write(Path(f"/dev/fd/{slave}"), "this\n")  # as /dev/stdout, a link
        assert os.read(master, 100).split() == [b"this"]
        write(tmp_path / "new", "text")
        assert (tmp_path / "new").read_text() == "text" and [p.name for p in tmp_path.iterdir()] == ["new"]
    finally:
        os.close(master)
        os.close(slave)
