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

from farm.errors import StoreError
from farm.store import Store
from farm.store import lock as runlock
from farm.store.lock import NAME, Busy, acquire

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


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    first = acquire(tmp_path)
    with pytest.raises(Busy, match=f"process {os.getpid()} on "):
        acquire(tmp_path)
    first.release()
    first.release()
    assert list(tmp_path.iterdir()) == []
    acquire(tmp_path).release()


def test_a_killed_writers_lock_is_free_at_once(tmp_path: Path) -> None:
    holder = held_elsewhere(tmp_path)
    try:
        with pytest.raises(Busy, match=f"process {holder.pid} on "):
            acquire(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=20)
    assert (tmp_path / NAME).exists()
    told: list[str] = []
    acquire(tmp_path, waiting=told.append).release()
    assert told == []


@pytest.mark.parametrize("alive", [True, False])
def test_a_writer_of_another_host_is_watched(tmp_path: Path, alive: bool) -> None:
    path = foreign(tmp_path)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.02):
            os.utime(path)

    told: list[str] = []
    if alive:
        threading.Thread(target=beat, daemon=True).start()
    try:
        if alive:
            with pytest.raises(Busy, match="process 7 on node-b"):
                acquire(tmp_path, watch_s=20.0, waiting=told.append)
        else:
            acquire(tmp_path, watch_s=0.1, waiting=told.append).release()
    finally:
        over.set()
    assert len(told) == 1 and "whether process 7 on node-b still lives" in told[0]


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
    mine = {"pid": os.getpid(), "begun": runlock._begun(os.getpid()), "place": runlock._place()}
    foreign(tmp_path, **(mine if alive else {**mine, "begun": "1"}))  # the same pid, begun at another time
    if alive:
        with pytest.raises(Busy, match=f"process {os.getpid()}"):
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
    with pytest.raises(StoreError, match="writes this run now"):
        store.reopen("run-1")
    writer.close()
    store.reopen("run-1").close()
    assert not (tmp_path / "runs/run-1" / NAME).exists()
