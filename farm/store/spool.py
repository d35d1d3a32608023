"""A run's folder on a node, in shared memory.  It names its owners, so that folders of killed runs can be removed.

    <base>/farm-<uid>-<run-id>/owners/<pid namespace>-<pid>-<start time>     empty; one for each process that uses it

A pid alone is not enough: pids are reused (hence the start time), and a container that shares /dev/shm with its host
has its own pids (hence the namespace).  A folder is removed only if all its owners are of this namespace and gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path

from farm.errors import InfraError
from farm.process import host, procfs

ROOMY_BYTES = 1 << 30
#: A folder without an owner may be just being created, or may not be a spool; after this time it is abandoned.
OWNERLESS_SECONDS = 24 * 3600.0


def folder(run_id: str, base: Path | None = None) -> str:
    """Where a run keeps its tensors on a node: in shared memory if that has enough space; or its folder in `base`."""
    if base is not None:
        return str(base / f"{_prefix()}{run_id}")
    shm = Path("/dev/shm")
    try:
        roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > ROOMY_BYTES
    except OSError:
        roomy = False
    base = shm if roomy else Path(os.environ.get("TMPDIR", "/tmp"))
    return str(base / f"{_prefix()}{run_id}")


def _prefix() -> str:
    return f"farm-{os.getuid()}-"


def reserve(spool: str | Path) -> Path:
    """Where files of a run go that its folder has no room for: a folder on a disk, to be claimed and swept likewise."""
    return Path(os.environ.get("TMPDIR", "/tmp"), f"{Path(spool).name}-reserve")


def claim(spool: str) -> None:
    """Create the folder, closed to other users, and record that this process uses it.  InfraError if another user made
    it first."""
    Path(spool).mkdir(parents=True, exist_ok=True, mode=0o700)
    found = Path(spool).lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InfraError(f"{spool}: another user made this folder of a run; remove it", id="spool-not-private")
    if found.st_mode & 0o077:
        Path(spool).chmod(0o700)
    owners = Path(spool, "owners")
    owners.mkdir(exist_ok=True)
    (owners / _identity(os.getpid())).touch()


def remove(spool: str | Path, within_s: float = 3.0) -> None:
    """Remove the folder, even while a process that is about to end still writes into it."""
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
    started = procfs.started(pid) if procfs.alive(pid) else ""
    return f"{_namespace()}-{pid}-{started}"


def _namespace() -> str:
    return "".join(c for c in host.pid_namespace() if c.isdigit()) or "0"
