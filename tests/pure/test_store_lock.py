"""One writer at a time in a run directory: on this host by flock, elsewhere by signs of life."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from farm.errors import InfraError, StoreError, id_of
from farm.process import procfs
from farm.store import Store, run_writer
from farm.store import lock as runlock
from farm.store.journal import encoded
from farm.store.lock import NAME, RunBusy, RunLockLost, acquire, holder

HOLD = "import sys, time; from pathlib import Path; from farm.store.lock import acquire; \
lock = acquire(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def held_elsewhere(folder: Path) -> subprocess.Popen[str]:
    found = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert found.stdout is not None and found.stdout.readline() == "held\n"
    return found


def foreign(folder: Path, **more: Any) -> Path:
    path = folder / NAME
    path.write_text(json.dumps({"pid": 7, "begun": "1", "host": "node-b", "place": "node-b x", "nonce": "n", **more}))
    return path


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    first = acquire(tmp_path)
    with pytest.raises(RunBusy, match=f"process {os.getpid()} on "):
        acquire(tmp_path)
    first.release()
    first.release()
    assert list(tmp_path.iterdir()) == []
    acquire(tmp_path).release()


def test_a_killed_writers_lock_is_free_at_once(tmp_path: Path) -> None:
    holder = held_elsewhere(tmp_path)
    try:
        with pytest.raises(RunBusy, match=f"process {holder.pid} on "):
            acquire(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=20)
    assert (tmp_path / NAME).exists()
    heard: list[str] = []
    acquire(tmp_path, waiting=heard.append).release()
    assert heard == []


@pytest.mark.parametrize("alive", [True, False])
def test_a_writer_of_another_host_is_watched(tmp_path: Path, alive: bool) -> None:
    path = foreign(tmp_path)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.02):
            os.utime(path)

    heard: list[str] = []
    if alive:
        threading.Thread(target=beat, daemon=True).start()
    try:
        if alive:
            with pytest.raises(RunBusy, match="process 7 on node-b"):
                acquire(tmp_path, watch_s=20.0, waiting=heard.append)
        else:
            acquire(tmp_path, watch_s=0.1, waiting=heard.append).release()
    finally:
        over.set()
    assert len(heard) == 1 and "process 7 on node-b" in heard[0]
    assert f"{20.0 if alive else 0.1:g} s" in heard[0]


def test_a_writer_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlock, "BEAT_SECONDS", 0.01)
    lock = acquire(tmp_path)
    before = (tmp_path / NAME).stat().st_mtime_ns
    end = time.monotonic() + 20
    while (tmp_path / NAME).stat().st_mtime_ns == before:
        assert time.monotonic() < end
        time.sleep(0.01)
    lock.release()
    assert runlock.WATCH_SECONDS >= 4 * 5.0  # a living writer is seen, though beats are late


@pytest.mark.parametrize("alive", [True, False])
def test_without_flock_the_pid_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool) -> None:
    def none(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    mine = {"pid": os.getpid(), "begun": procfs.started(os.getpid()), "place": runlock._place()}
    foreign(tmp_path, **(mine if alive else {**mine, "begun": "1"}))  # the same pid, begun at another time
    if alive:
        with pytest.raises(RunBusy, match=f"process {os.getpid()}"):
            acquire(tmp_path)
    else:
        acquire(tmp_path).release()


@pytest.mark.parametrize("text", ["", "{", "[]", "\0\0"])
def test_a_lock_file_that_says_nothing_is_nobodys(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    acquire(tmp_path).release()


def test_a_lock_that_is_let_go_while_one_waits_for_it_is_not_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opened the file before its holder removed it would lock a file that nobody else sees."""
    first = acquire(tmp_path)
    flock, tries = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        tries.append(how)
        if len(tries) == 1:
            first.release()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    second = acquire(tmp_path)
    assert len(tries) == 2
    assert (tmp_path / NAME).samefile(f"/proc/self/fd/{second._descriptor}")
    second.release()


def test_a_run_that_is_written_is_not_opened_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = store.create("run-1")
    writer.plan({}, [])
    with pytest.raises(StoreError, match=f"process {os.getpid()} on ") as refused:
        store.reopen("run-1")
    assert refused.value.id == "store-run-busy"
    writer.close()
    store.reopen("run-1").close()
    assert not (tmp_path / "runs/run-1" / NAME).exists()


# a writer that was stopped, and lost the run to another host meanwhile


def test_a_lock_is_its_holders_until_another_writes_it(tmp_path: Path) -> None:
    lock = acquire(tmp_path)
    lock.check()
    foreign(tmp_path)
    with pytest.raises(RunLockLost, match="process 7 on node-b") as lost:
        lock.check()
    assert id_of(lost.value.args[0]) == "store-lock-taken"
    lock.release()
    assert json.loads((tmp_path / NAME).read_text())["host"] == "node-b"  # which holds it


def test_a_lock_that_was_removed_is_lost(tmp_path: Path) -> None:
    lock = acquire(tmp_path)
    (tmp_path / NAME).unlink()
    with pytest.raises(RunLockLost, match=r"writer\.lock") as lost:
        lock.check()
    assert id_of(lost.value.args[0]) == "store-lock-removed"
    other = acquire(tmp_path)
    with pytest.raises(RunLockLost, match=f"process {os.getpid()} on"):  # of this very process, and yet another
        lock.check()
    lock.release()
    other.check()
    other.release()


def test_a_lost_lock_is_no_longer_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new holder would look alive for as long as this process lives."""
    monkeypatch.setattr(runlock, "BEAT_SECONDS", 0.01)
    touched: list[Path] = []
    monkeypatch.setattr(os, "utime", lambda path: touched.append(path))
    others = set(threading.enumerate())
    lock = acquire(tmp_path)
    (beating,) = set(threading.enumerate()) - others
    end = time.monotonic() + 20
    while not touched:
        assert time.monotonic() < end
        time.sleep(0.01)
    foreign(tmp_path)
    beating.join(20)
    assert not beating.is_alive()
    lock.release()


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.append({"event": "late"}),
        lambda writer: writer.log("late", "text"),
        lambda writer: writer.keep_plan("late"),
        lambda writer: writer.finish([], [], {"late": True}),
        lambda writer: writer.plan({"late": True}, []),
    ],
)
def test_a_writer_that_lost_the_run_writes_nothing(tmp_path: Path, write: Any) -> None:
    writer = Store(tmp_path).create("run-1")
    writer.append({"event": "early"})
    foreign(writer.dir)
    before = {p: p.read_bytes() for p in writer.dir.rglob("*") if p.is_file()}
    with pytest.raises(InfraError, match=r"process 7 on node-b .* 30 s") as refused:
        write(writer)
    assert refused.value.id == "store-lock-taken" and "farm resume run-1" in str(refused.value)
    writer.close()
    assert {p: p.read_bytes() for p in writer.dir.rglob("*") if p.is_file()} == before


def test_run_json_is_not_written_over_the_other_writers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is lost while the tables are written."""
    writer = Store(tmp_path).create("run-1")
    monkeypatch.setattr("farm.store.run_writer.write_table", lambda path, rows, columns: foreign(writer.dir))
    with pytest.raises(InfraError) as refused:
        writer.finish([], [], {})
    assert refused.value.id == "store-lock-taken"
    writer.close()
    assert not (writer.dir / "run.json").exists()


def test_tables_of_a_complete_run_are_not_those_of_a_writer_that_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within its tables; the other finishes the run, and it goes on to write."""
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: None)
    monkeypatch.setattr(runlock, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(runlock, "BEAT_SECONDS", 600.0)  # it is stopped
    stopped = Store(tmp_path).create("run-1")
    stopped.append({"event": "run"})
    write, began = run_writer.write_table, []

    def held_up(path: Path, rows: Any, columns: Any) -> None:
        if began:
            write(path, rows, columns)
            return
        began.append(path)
        with path.open("wb") as half:  # what it has written so far; the rest comes when it goes on
            half.write(b"half")
            half.flush()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(runlock, "_place", lambda: "another host")
                other = Store(tmp_path).reopen("run-1")
                other.finish([], [], {"by": "the other"})
                other.close()
            before.update({p: p.read_bytes() for p in stopped.dir.iterdir() if p.is_file()})
            half.write(b"the other half")

    before: dict[Path, bytes] = {}
    monkeypatch.setattr(run_writer, "write_table", held_up)
    with pytest.raises(InfraError) as refused:
        stopped.finish([], [], {"by": "the one that was stopped"})
    assert refused.value.id == "store-lock-removed"
    stopped.close()
    whole = {p: content for p, content in before.items() if p.suffix != ".tmp"}
    assert {p.name for p in whole} == {"cells.parquet", "samples.parquet", "run.json", "journal.jsonl"}
    assert {p: p.read_bytes() for p in whole} == whole


def test_a_fence_that_was_cut_short_is_put_up_again(tmp_path: Path) -> None:
    """By the host that began it, whose lock it is by then."""
    folder = tmp_path / "runs" / "run-1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text('{"event":"run"}\n')
    (folder / "journal.tmp").write_text('{"ev')
    with (folder / "journal.jsonl").open("a") as old:
        writer = Store(tmp_path).reopen("run-1")
        old.write('{"event":"late"}\n')
        old.flush()
        writer.append({"event": "new"})
        writer.close()
    assert (folder / "journal.jsonl").read_text() == '{"event":"run"}\n' + encoded({"event": "new"})
    assert sorted(p.name for p in folder.iterdir()) == ["journal.jsonl"]


def test_a_lock_that_cannot_be_read_stops_the_writer(tmp_path: Path) -> None:
    writer = Store(tmp_path).create("run-1")
    (writer.dir / NAME).unlink()
    (writer.dir / NAME).symlink_to(tmp_path / "elsewhere")  # O_NOFOLLOW refuses it; a dead network does so too
    with pytest.raises(InfraError, match=r"writer\.lock") as refused:
        writer.append({"event": "late"})
    assert refused.value.id == "store-write-failed"
    writer.close()


WRITES = """
import sys, time
from farm.store import Store
from farm.errors import InfraError
writer = Store(sys.argv[1]).create("run-1")
try:
    for number in range(100000):
        writer.append({"event": "line", "number": number})
        if number == 9:
            print("ten", flush=True)
        time.sleep(0.002)
except InfraError as error:
    sys.exit(error.id)
"""


def test_a_stopped_writer_loses_the_run_and_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts whose file system keeps flock to each: the first is stopped, the second takes the run over."""
    first = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "ten\n"
        monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: None)
        monkeypatch.setattr(runlock, "_place", lambda: "another host")
        first.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(runlock, "WATCH_SECONDS", 0.1)
        writer = Store(tmp_path).reopen("run-1")
        journal = writer.dir / "journal.jsonl"
        begun = journal.read_text()
        assert begun.count("\n") >= 10
        writer.append({"event": "of the second"})
        first.send_signal(signal.SIGCONT)
        printed = first.communicate(timeout=30)[1]
        assert first.returncode != 0 and "store-lock-taken" in printed
        writer.append({"event": "of the second"})
        assert journal.read_text() == begun + 2 * encoded({"event": "of the second"})
        writer.close()
    finally:
        first.kill()
        first.communicate(timeout=20)
    assert not (journal.parent / NAME).exists()


def test_what_a_stopped_writers_kernel_still_writes_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that began before the other took over reaches the file after it: no check can come between."""
    folder = tmp_path / "runs" / "run-1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text('{"event":"run"}\n')
    foreign(folder)
    monkeypatch.setattr(runlock, "WATCH_SECONDS", 0.1)
    with (folder / "journal.jsonl").open("a") as old:
        writer = Store(tmp_path).reopen("run-1")
        writer.append({"event": "new"})
        old.write('{"event":"late"}\n')
        old.flush()
        writer.close()
    assert (folder / "journal.jsonl").read_text() == '{"event":"run"}\n' + encoded({"event": "new"})


# who writes, for whoever only reads


def test_the_writer_is_named_without_taking_the_lock(tmp_path: Path) -> None:
    assert holder(tmp_path) == ""
    process = held_elsewhere(tmp_path)
    assert holder(tmp_path).startswith(f"process {process.pid} on ")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert (tmp_path / NAME).exists() and holder(tmp_path) == ""


def test_a_writer_of_another_host_is_known_by_its_last_touch(tmp_path: Path) -> None:
    path = foreign(tmp_path)
    assert holder(tmp_path) == "process 7 on node-b"
    os.utime(path, (time.time() - 3600,) * 2)  # of a run that was copied while it went on, an hour ago
    assert holder(tmp_path) == ""
    path.write_text("{")
    assert holder(tmp_path) == ""


def test_a_complete_run_has_no_writer(tmp_path: Path) -> None:
    writer = Store(tmp_path).create("run-1")
    writer.plan({}, [])
    run = Store(tmp_path).run("run-1")
    assert run.writer == f"process {os.getpid()} on {json.loads((run.dir / NAME).read_text())['host']}"
    writer.finish([], [], {})
    assert run.writer == ""
    writer.close()
