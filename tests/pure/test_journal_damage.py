"""A damaged journal: whatever happens to its bytes, nothing raises anything but a refusal, nothing that stood whole is
lost, and nothing is accepted that was changed.  A `resume` that refuses has changed nothing."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_store_recovery import a_cell, measured, started

from farm.cell import Status
from farm.cli import common, merge, resume
from farm.dashboards.build import build
from farm.errors import FarmError, InfraError, StoreError
from farm.matrix.plan import plan_hash
from farm.report import junit, markdown, run_verdict
from farm.store import Run, Store
from farm.store.journal import encoded
from farm.store.results import finish_row

CELLS = [a_cell(i) for i in range(12)]


def row_of(index: int, attempt: int = 1, **more: Any) -> dict[str, Any]:
    row = finish_row(CELLS[index], status=Status.PASSED, reason="", owner="", attempt=attempt, evidence="simulated")
    return {**row, **more}


def a_run(store: Path, results: int = 8) -> Run:
    """An interrupted run of twelve cells."""
    writer = Store(store).create("r")
    head = {"created": "2026-11-21T12:00:00+00:00", "planned": len(CELLS), "plan_hash": plan_hash(CELLS), "argv": []}
    writer.plan({**head, "matrices": [], "command": "farm run x"}, CELLS)
    for index in range(results):
        writer.append(started(index, 1))
        writer.append(measured(index, 1, us=10.0 + index))
        writer.append({"event": "result", "row": row_of(index)})
    writer.close()
    return Store(store).run("r")


def state(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


def cut(whole: bytes, dice: random.Random) -> bytes:
    return whole[: dice.randrange(len(whole))]


def flip(whole: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(whole))
    return whole[:at] + bytes([whole[at] ^ (1 << dice.randrange(8))]) + whole[at + 1 :]


def hole(whole: bytes, dice: random.Random) -> bytes:
    at, size = dice.randrange(len(whole)), dice.randrange(1, 3000)
    return whole[:at] + b"\0" * min(size, len(whole) - at) + whole[at + size :]


def twice(whole: bytes, dice: random.Random) -> bytes:
    lines = whole.splitlines(keepends=True)
    at = dice.randrange(len(lines))
    return b"".join([*lines[: at + 1], *lines[at:]])


def windows(whole: bytes, dice: random.Random) -> bytes:
    return whole.replace(b"\n", b"\r\n")


def deep(whole: bytes, dice: random.Random) -> bytes:
    lines = whole.splitlines(keepends=True)
    at = dice.randrange(len(lines) + 1)
    return b"".join([*lines[:at], b'{"event":' + b"[" * 100_000 + b"\n", *lines[at:]])


def glued(whole: bytes, dice: random.Random) -> bytes:
    lines = whole.splitlines(keepends=True)
    at = dice.randrange(len(lines) - 1)
    return b"".join([*lines[:at], lines[at][:-1], *lines[at + 1 :]])


def strange(whole: bytes, dice: random.Random) -> bytes:
    """A line that is JSON, and of no event that any farm writes."""
    lines = whole.splitlines(keepends=True)
    at = dice.randrange(1, len(lines) + 1)
    one = dice.choice([b"[]", b"7", b"null", b'{"event":7}', b'{"event":"result"}', b'{"event":"result","row":{}}'])
    return b"".join([*lines[:at], one + b"\n", *lines[at:]])


HARMS: list[Callable[[bytes, random.Random], bytes]] = [cut, flip, hole, twice, windows, deep, glued, strange]


def results_in(lines: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {x["row"]["index"]: x["row"] for x in lines if x["event"] == "result"}


@pytest.mark.parametrize("harm", HARMS, ids=lambda h: h.__name__)
def test_a_damaged_journal_loses_what_was_damaged_and_nothing_else(
    harm: Callable[[bytes, random.Random], bytes], tmp_path: Path
) -> None:
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    whole = path.read_bytes()
    sound = {line: json.loads(line) for line in whole.splitlines()}
    truth = list(run.journal())
    for seed in range(24):
        dice = random.Random(f"{harm.__name__} {seed}")
        harmed = harm(whole, dice)
        if dice.random() < 0.3:
            harmed = dice.choice(HARMS)(harmed, dice)
        path.write_bytes(harmed)
        found = list(run.journal())
        standing = [x for x in harmed.replace(b"\r\n", b"\n").split(b"\n") if x in sound]
        assert all(line in truth for line in found), (harm, seed)  # nothing is accepted that was changed
        assert len(found) >= len(standing), (harm, seed)  # nothing that stood whole is lost
        before = state(run.dir)
        again = Store(tmp_path).run("r")
        for read in (junit.junit, markdown.markdown, run_verdict.warnings):
            with pytest.raises((FarmError, ZeroDivisionError)), common.readable(again):
                read(again)
                raise ZeroDivisionError  # it could be read
        try:
            known, writer = resume._opened(Store(tmp_path), "r")
        except FarmError:
            assert state(run.dir) == before, (harm, seed)  # what refuses has changed nothing
        else:
            writer.append({"event": "resumed", "time": 1795262500.0})
            writer.close()
            assert {i: dict(r) for i, r in results_in(list(run.journal())).items()} == results_in(found)
            assert sorted(known.rows) == sorted(results_in(found))
            kept = b"".join(v for k, v in state(run.dir).items() if k.startswith("journal."))
            assert all(x in kept for x in before["journal.jsonl"].split(b"\n")), (harm, seed)  # no byte is gone
        for name in state(run.dir):
            (run.dir / name).unlink()
        path.write_bytes(whole)


def test_a_byte_changed_in_a_status_is_found(tmp_path: Path) -> None:
    """`"status":"passed"` made of `"status":"crashed"` is one edit, and was believed."""
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"status":"passed"', b'"status":"qassed"', 1))
    assert [r["status"] for r in run.rows] == ["lost"] + ["passed"] * 7 + ["lost"] * 4
    assert run.damage.lines == 1 and run.damage.results == 7


@pytest.mark.parametrize("harm", HARMS, ids=lambda h: h.__name__)
def test_an_older_journal_without_checksums_is_read_and_never_breaks_its_reader(
    harm: Callable[[bytes, random.Random], bytes], tmp_path: Path
) -> None:
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    old = [{**line, "schema": 4} if line["event"] == "run" else line for line in run.journal()]
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in old)
    path.write_bytes(whole)
    assert list(run.journal()) == old
    for seed in range(8):
        harmed = harm(whole, random.Random(f"old {harm.__name__} {seed}"))
        path.write_bytes(harmed)
        again = Store(tmp_path).run("r")
        for read in (junit.junit, markdown.markdown):
            with contextlib.suppress(FarmError), common.readable(again):
                read(again)
        with contextlib.suppress(FarmError):
            resume._opened(Store(tmp_path), "r")[1].close()
        assert path.read_bytes() == harmed


def test_pages_and_exports_say_that_a_journal_is_damaged(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, x in enumerate(lines) if b'"event":"result"' in x)
    path.write_bytes(b"".join([*lines[:at], b"\0\0\0\n", *lines[at + 1 :]]))
    run = Store(tmp_path).run("r")
    (warned,) = run_verdict.warnings(run)
    assert warned.id == "report-journal-damaged" and f"line {at + 1}" in warned and "7 results" in warned
    assert 'type="journal-damaged"' in junit.junit(run) and f"line {at + 1}" in markdown.markdown(run)
    build(Store(tmp_path), "r")
    assert 'data-id="report-journal-damaged"' in (tmp_path / "pages/run-r.html").read_text()
    assert 'data-id="run-damaged"' in (tmp_path / "pages/index.html").read_text()
    assert "farm resume r" in (tmp_path / "pages/run-r.html").read_text()  # which runs the cells again


def test_a_page_offers_no_resume_that_would_refuse(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"\0\0\0\n", *lines[6:]]))  # a cell of the plan
    build(Store(tmp_path), "r")
    assert "farm resume" not in (tmp_path / "pages/run-r.html").read_text()
    before = state(run.dir)
    with pytest.raises(FarmError) as refused:
        resume._opened(Store(tmp_path), "r")
    assert refused.value.id == "resume-plan-hash" and "line 6" in str(refused.value)
    assert state(run.dir) == before


def test_a_journal_that_is_none_is_refused_and_stays(tmp_path: Path) -> None:
    """`farm resume` of a gzipped journal left 0 bytes of it."""
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    path.write_bytes(gzip.compress(path.read_bytes()))
    before = state(run.dir)
    with pytest.raises(FarmError) as refused:
        resume._opened(Store(tmp_path), "r")
    assert refused.value.id == "resume-plan-unreadable"
    assert state(run.dir) == before
    with pytest.raises(StoreError) as refused:  # and its id is not free: it holds what may yet be mended
        Store(tmp_path).create("r")
    assert refused.value.id == "store-run-exists"


def test_a_plan_that_was_not_written_whole_frees_its_id(tmp_path: Path) -> None:
    """A full disk within the plan: `farm resume` refuses for ever, and so did `farm run --run-id`."""
    run = a_run(tmp_path)
    whole = (run.dir / "journal.jsonl").read_bytes()
    planned = whole.index(b'{"event":"planned"')
    for number, size in enumerate((0, 10, 500, planned, planned + 9), 1):
        (run.dir / "journal.jsonl").write_bytes(whole[:size])
        Store(tmp_path).refuse_existing("r")
        writer = Store(tmp_path).create("r")
        writer.plan({}, [])
        with pytest.raises(StoreError):
            Store(tmp_path).create("r")
        writer.close()
        assert (tmp_path / f"runs/.aside/r-{number}/journal.jsonl").read_bytes() == whole[:size]
        assert [run.id for run in Store(tmp_path).runs()] == ["r"]
    held = Store(tmp_path).create("s")  # is just about to write its plan
    with pytest.raises(StoreError) as refused:
        Store(tmp_path).create("s")
    assert refused.value.id == "store-run-exists"
    held.close()


def test_a_plan_that_cannot_be_written_is_not_to_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Store(tmp_path).create("r")
    monkeypatch.setattr(writer, "_journal", open("/dev/full", "a", encoding="utf-8"))  # noqa: SIM115 - cannot close
    with pytest.raises(InfraError) as refused:
        writer.plan({}, CELLS)
    assert refused.value.id == "store-plan-not-written" and "resume" not in str(refused.value)
    writer.close()


def test_a_store_that_is_deleted_during_a_run_is_told_as_that(tmp_path: Path) -> None:
    writer = Store(tmp_path).create("r")
    writer.plan({}, CELLS)
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(InfraError) as refused:
        writer.append(started(0, 1))
    assert refused.value.id == "store-run-removed" and "30 s" not in str(refused.value)
    writer.close()


def test_a_lock_removed_by_hand_is_no_silence(tmp_path: Path) -> None:
    writer = Store(tmp_path).create("r")
    writer.plan({}, CELLS)
    (writer.dir / "writer.lock").unlink()
    with pytest.raises(InfraError) as refused:
        writer.append(started(0, 1))
    assert refused.value.id == "store-lock-removed"
    assert "30 s" not in str(refused.value) and "farm resume r" in str(refused.value)
    writer.close()


def test_a_result_against_its_own_end_does_not_count(tmp_path: Path) -> None:
    """Of an older journal: `ended` says crashed, `result` passed.  One of the two was changed."""
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    lines = [{**line, "schema": 4} if line["event"] == "run" else line for line in run.journal()]
    at = next(i for i, x in enumerate(lines) if x["event"] == "result")
    lines.insert(at, {"event": "ended", "cell": 0, "attempt": 1, "status": "crashed", "owner": "kernel", "reason": ""})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    known, writer = resume._opened(Store(tmp_path), "r")
    writer.close()
    assert known.contradicted == (0,) and 0 not in known.rows and len(known.rows) == 7
    with pytest.raises(FarmError) as refused:
        merge._reports([run])
    assert refused.value.id == "merge-contradiction"


def test_times_are_never_negative_in_junit(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    path = run.dir / "journal.jsonl"
    lines = list(run.journal())
    for line in lines:
        if line["event"] == "result":
            line["row"]["seconds"] = -86400.25
    path.write_text("".join(encoded(line) for line in lines))
    assert 'time="-' not in junit.junit(Store(tmp_path).run("r"))
