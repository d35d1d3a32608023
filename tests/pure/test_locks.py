"""One farm at a time on a device: real files, real processes, real kill -9."""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import LockRefused
from farm.guard import locks

ROOT = Path(__file__).resolve().parents[2]
HOLD = "import sys, time; from farm.guard import locks; l = locks.acquire(sys.argv[1], {'run': 'r1'}, 0); print('held', flush=True); time.sleep(60)"  # noqa: E501


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "locks"
    monkeypatch.setenv("FARM_LOCKS", str(place))
    return place


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """A process that holds the device GPU-1."""
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, "GPU-1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert held.stdout is not None
    assert held.stdout.readline() == "held\n"
    yield held
    held.kill()
    held.wait(10)


def test_who_holds_it_is_named(other: subprocess.Popen[str]) -> None:
    told: list[str] = []
    with pytest.raises(LockRefused) as refused:
        locks.acquire("GPU-1", {}, 0.3, waiting=told.append)
    user = pwd.getpwuid(os.getuid()).pw_name
    who = f"another farm (pid {other.pid}, user {user!r}, run 'r1')"
    assert told == [f"waiting up to 0.3 s for {who}"]
    assert str(refused.value).startswith(f"the device is in use by {who} after a wait of 0.3 s for ")
    assert "\n" not in str(refused.value)


def test_another_device_is_free(other: subprocess.Popen[str]) -> None:
    locks.acquire("GPU-2", {}, 0).release()


def test_kill_9_of_the_holder_frees_it(other: subprocess.Popen[str]) -> None:
    got: list[locks.DeviceLock] = []
    waits = threading.Event()
    thread = threading.Thread(
        target=lambda: got.append(locks.acquire("GPU-1", {}, 30, waiting=lambda text: waits.set()))
    )
    thread.start()
    assert waits.wait(20)
    os.kill(other.pid, signal.SIGKILL)
    thread.join(20)
    assert got
    got[0].release()


def test_two_in_one_process_exclude_each_other_too() -> None:
    first = locks.acquire("GPU-1", {"run": "a"}, 0)
    with pytest.raises(LockRefused, match=f"pid {os.getpid()}, .*run 'a'"):
        locks.acquire("GPU-1", {"run": "b"}, 0)
    first.release()
    first.release()
    second = locks.acquire("GPU-1", {"run": "b"}, 0)
    assert json.loads(second.path.read_text())["run"] == "b"
    second.release()


def test_a_child_does_not_inherit_it() -> None:
    lock = locks.acquire("GPU-1", {}, 0)
    child = subprocess.Popen(["sleep", "30"])
    try:
        lock.release()
        locks.acquire("GPU-1", {}, 0).release()
    finally:
        child.kill()
        child.wait(10)


def test_the_wait_ends_when_its_actor_is_stopped(other: subprocess.Popen[str]) -> None:
    with pytest.raises(LockRefused, match="stopping"):
        locks.acquire("GPU-1", {}, 600, stop=lambda: True)


def test_folder_and_file_are_every_users(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        lock = locks.acquire("GPU/1 x", {}, 0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    assert lock.path == folder / "GPU_1_x.lock"
    lock.release()
    assert [p.name for p in folder.iterdir()] == ["GPU_1_x.lock"]


def test_a_folder_that_cannot_be_used_is_one_clear_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FARM_LOCKS", str(tmp_path / "file"))
    with pytest.raises(LockRefused, match=r"file/GPU-1\.lock: the device's lock cannot be opened .*set FARM_LOCKS"):
        locks.acquire("GPU-1", {}, 0)


NOBODY = 65534


def as_nobody(folder: Path, device: str) -> str:
    """What another user is told who asks for a device, "" if he gets it.  In a fork: he may not start our Python."""
    for place in (folder, *folder.parents):
        if place.stat().st_uid == os.getuid() and place.name.startswith("pytest-"):
            place.chmod(place.stat().st_mode | 0o011)
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            locks.acquire(device, {}, 0)
            said = ""
        except BaseException as error:
            said = str(error)
        os.write(writable, said.encode())
        os._exit(0)
    os.close(writable)
    os.waitpid(pid, 0)
    with os.fdopen(readable) as told:
        return told.read()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_two_users_share_one_lock(folder: Path, tmp_path: Path) -> None:
    for own in (tmp_path, *tmp_path.parents):  # pytest's folders, also those of its workers, are their user's alone
        if own == Path(tempfile.gettempdir()):
            break
        own.chmod(0o755)
    lock = locks.acquire("GPU-1", {}, 0)
    assert f"pid {os.getpid()}" in as_nobody(folder, "GPU-1")
    lock.release()
    assert as_nobody(folder, "GPU-1") == ""
    assert as_nobody(folder, "GPU-2") == ""
    assert (folder / "GPU-2.lock").stat().st_uid == NOBODY
    locks.acquire("GPU-2", {}, 0).release()


def test_an_unreadable_folder_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0)
    if os.getuid() == 0:  # who may read everything
        said = as_nobody(folder, "GPU-1")
    else:
        with pytest.raises(LockRefused) as refused:
            locks.acquire("GPU-1", {}, 0)
        said = str(refused.value)
    assert "the device's lock cannot be opened (Permission denied)" in said


def test_a_link_in_its_place_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    victim = tmp_path / "precious"
    victim.write_text("precious")
    (folder / "GPU-1.lock").symlink_to(victim)
    with pytest.raises(LockRefused, match="cannot be opened"):
        locks.acquire("GPU-1", {}, 0)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("text", ["", "nonsense", '{"pid": 1}', "[]", '{"pid": "x", "user": "y"}', "null"])
def test_what_is_written_in_it_is_not_believed(folder: Path, text: str) -> None:
    held = locks.acquire("GPU-1", {}, 0)
    held.path.write_text(text)
    with pytest.raises(LockRefused, match=r"holder unknown"):
        locks.acquire("GPU-1", {}, 0)
    held.release()


def test_the_wait_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert locks.wait_seconds() == locks.WAIT_SECONDS
    for text, seconds in (("3600", 3600.0), ("-1", 0.0), ("soon", locks.WAIT_SECONDS)):
        monkeypatch.setenv("FARM_LOCK_WAIT", text)
        assert locks.wait_seconds() == seconds


def test_many_at_once_get_it_one_after_another() -> None:
    inside = most = 0
    mine = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        lock = locks.acquire("GPU-1", {}, 30)
        with mine:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        with mine:
            inside -= 1
        lock.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(40)
    assert (inside, most) == (0, 1)
