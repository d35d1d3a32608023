"""A run's folder on a node, in shared memory: who uses it is written in it, so that what a killed run left is removed.

    <base>/farm-<uid>-<run-id>/owners/<pid namespace>-<pid>-<start time>     empty; one for each process that uses it

Pids alone say nothing: they are used again (hence the start time), and a container that shares /dev/shm with its host
counts its own (hence the namespace).  A folder is removed only if all its owners are of this namespace and gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

ROOMY_BYTES = 1 << 30
#: A folder without an owner is one that is being made just now, or one of another kind; after so long it is neither.
OWNERLESS_SECONDS = 24 * 3600.0


def folder(run_id: str) -> str:
    """Where a run's tensors live on a node: shared memory where there is enough of it."""
    shm = Path("/dev/shm")
    try:
        roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > ROOMY_BYTES
    except OSError:
        roomy = False
    base = shm if roomy else Path(os.environ.get("TMPDIR", "/tmp"))
    return str(base / f"{_prefix()}{run_id}")


def _prefix() -> str:
    return f"farm-{os.getuid()}-"


def claim(spool: str) -> None:
    """Make the folder, closed to other users, and write down that this process uses it."""
    Path(spool).mkdir(parents=True, exist_ok=True, mode=0o700)
    owners = Path(spool, "owners")
    owners.mkdir(exist_ok=True)
    (owners / _identity(os.getpid())).touch()


def remove(spool: str | Path, within_s: float = 3.0) -> None:
    """Remove the folder, also while somebody who is just ending still writes into it."""
    end = time.monotonic() + within_s
    while True:
        shutil.rmtree(spool, ignore_errors=True)
        if not Path(spool).exists() or time.monotonic() > end:
            return
        time.sleep(0.02)


def sweep(base: str | Path) -> list[str]:
    """Remove the folders under `base` whose owners are all gone; returns their paths."""
    removed = []
    for found in Path(base).glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            if found.is_dir() and not found.is_symlink() and found.stat().st_uid == os.getuid() and _abandoned(found):
                shutil.rmtree(found, ignore_errors=True)
                removed.append(str(found))
    return removed


def _abandoned(spool: Path) -> bool:
    try:
        owners = [p.name for p in (spool / "owners").iterdir()]
    except FileNotFoundError:
        owners = []
    if not owners:
        return time.time() - spool.stat().st_mtime > OWNERLESS_SECONDS
    return all(_gone(owner) for owner in owners)


def _gone(owner: str) -> bool:
    namespace, pid, _ = owner.split("-")
    return namespace == _namespace() and _identity(int(pid)) != owner


def _identity(pid: int) -> str:
    return f"{_namespace()}-{pid}-{_start_time(pid)}"


def _namespace() -> str:
    try:
        return "".join(c for c in str(Path("/proc/self/ns/pid").readlink()) if c.isdigit())  # from pid:[4026531836]
    except OSError:
        return "0"


def _start_time(pid: int) -> str:
    """Clock ticks from boot to the process's start; empty if there is no such process, or it is a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in "ZX" else after_name[19]
