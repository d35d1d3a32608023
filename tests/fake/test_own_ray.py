"""A run that starts its own Ray keeps it to itself: its ports, its folders, its token; another user reaches nothing."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from farm_process import FarmRun, is_dead, marked, parent_of, wait_for

INTRUDER = Path(__file__).with_name("intruder.py")
NOBODY = 65534
STALE = secrets.token_hex(16)  # the token of another cluster, which somebody exported in the run's shell
pytestmark = pytest.mark.ray


def environ_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


@pytest.fixture(scope="module")
def run() -> Iterator[FarmRun]:
    """A run of minutes on its own Ray, in folders that other users can enter as far as the run lets them."""
    folder = Path(tempfile.mkdtemp(prefix="farm-test-"))
    folder.chmod(0o755)
    matrix = {
        "name": "own",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(2000)]}], "dtype": "float32"},
        "providers": ["farm"],
        "sim": {"default": {"time_us": 10, "wall_s": 0.2}},
    }
    environment = {"RAY_AUTH_TOKEN": STALE, "GITHUB_TOKEN": "c4n4ry"}
    found = FarmRun(folder / "run", json.dumps(matrix), address="local", environment=environment)
    try:
        found.start()
        found.wait_for("result", 4)
        yield found
    finally:
        found.end()
        shutil.rmtree(folder, ignore_errors=True)


def ours(run: FarmRun) -> dict[int, str]:
    """The run's processes but its children."""
    children = set(run.child_pids().values())
    return {pid: line for pid, line in marked(run.mark).items() if pid not in children}


def ray_folder(run: FarmRun) -> Path:
    """The closed folder around Ray's."""
    (found,) = {environ_of(p).get("RAY_AUTH_TOKEN_PATH", "") for p, line in ours(run).items() if "raylet" in line}
    return Path(found).parent


@pytest.mark.long
def test_no_port_of_it_is_on_the_network(run: FarmRun) -> None:
    found = set()
    for pid in marked(run.mark):
        try:
            found |= {c.laddr.ip for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN}
        except psutil.NoSuchProcess:
            continue
    assert found and {ip.removeprefix("::ffff:") for ip in found} <= {"127.0.0.1", "::1"}, found


def test_no_token_is_in_an_environment(run: FarmRun) -> None:
    """Neither that of its Ray, which is in a file of mode 0600, nor the other cluster's, which its shell had."""
    file = ray_folder(run) / "token"
    token = file.read_text(encoding="utf-8")
    assert len(token) == 64 and token != STALE
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    seen = 0
    for pid in marked(run.mark):
        try:
            block = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        assert not [t for t in (token, STALE) if t in block + words], words
        seen += 1
    assert seen > 5
    for pid in run.child_pids().values():
        assert not [name for name in environ_of(pid) if name.startswith(("RAY_", "GITHUB"))]


def test_what_a_child_can_still_read_as_the_same_user(run: FarmRun) -> None:
    """docs/trust.md, "What a child can still read": Ray's token; and where it is not confined, by Landlock, the
    variables of the processes above it, which name the token's file."""
    child = next(iter(run.child_pids().values()))
    above = environ_of(parent_of(child))
    assert above["GITHUB_TOKEN"] == "c4n4ry"
    assert len(Path(above["RAY_AUTH_TOKEN_PATH"]).read_text(encoding="utf-8")) == 64


@pytest.mark.skipif(os.getuid() != 0, reason="another user can be played only by root")
def test_another_user_reads_and_replaces_nothing(run: FarmRun) -> None:
    """The store can be looked at where its folder lets others in (results are to be read), but nothing is written."""
    store = run.store.path
    closed = [ray_folder(run), run.spool, *run.spool.glob("inputs/*")]
    assert all(p.is_dir() for p in closed)
    lock = store / "runs" / run.run_id / "writer.lock"
    proc = [Path(f"/proc/{pid}/{name}") for pid in marked(run.mark) for name in ("environ", "fd", "mem")]
    done = intrude(*closed, lock, *proc)
    assert [d for d in done if d["what"] != "look" or "/proc/" not in d["path"]] == []
    assert {d["what"] for d in intrude(run.folder)} <= {"look", "read"}
    sockets = [p for p in ray_folder(run).rglob("*") if p.is_socket()]
    assert len(sockets) >= 2 and intrude(*sockets) == []


def intrude(*paths: Path) -> list[dict[str, Any]]:
    """What the other user reached."""
    done = subprocess.run(
        [sys.executable, str(INTRUDER), str(NOBODY), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    who, *found = [json.loads(line) for line in done.stdout.splitlines()]
    assert who == {"uid": NOBODY}
    return found


def test_the_intruder_gets_into_what_is_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.getuid() != 0:
        pytest.skip("another user can be played only by root")
    folder = Path(tempfile.mkdtemp(prefix="farm-test-"))
    try:
        folder.chmod(0o777)
        (folder / "file").write_text("x")
        (folder / "file").chmod(0o666)
        assert {d["what"] for d in intrude(folder)} == {"look", "make", "read", "write", "replace"}
    finally:
        shutil.rmtree(folder)


def test_its_folders_go_with_it(run: FarmRun) -> None:
    """The last test of this file: it ends the run."""
    folder = ray_folder(run)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 3, run.said()
    run.assert_nothing_left(60)
    assert not folder.exists() and not run.spool.exists()
    assert not [pid for pid in marked(run.mark) if not is_dead(pid)]
    assert wait_for("the run is in the journal", lambda: run.journal("result"))
