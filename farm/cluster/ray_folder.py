"""Where Ray keeps its sessions: in a folder of this user's own, mode 0700, on this host.

Ray makes its folders and their sockets writable for every user; who replaces a raylet's socket is what the next actor
connects to.  Nobody passes the closed folder around them.

    <base>/farm-<uid>-<random>/r      of one run that starts its own Ray; beside it the token of that Ray
    <base>/farm-<uid>/ray             of the nodes that this user starts here (`farm nodes head` and `join`)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from farm.errors import InfraError, UsageError
from farm.process import procfs
from farm.store import spool

#: A Unix socket's path has at most 107 bytes.  The longest that Ray makes in its folder, and the names of ours above.
SOCKET_BYTES = 107
_RAYS = "/session_2026-11-23_01-54-44_784653_1234567/sockets/plasma_store"
_OURS = f"/farm-{os.getuid()}-abcdef/r"
LONGEST_BASE = SOCKET_BYTES - len(_RAYS) - len(_OURS)
#: A session in which nothing runs may be one that is being started.
YOUNG_SECONDS = 3600.0


def base(environ: Mapping[str, str]) -> Path:
    """RAY_TMPDIR, else TMPDIR unless its path is too long for Ray's sockets, else /tmp.  UsageError for a RAY_TMPDIR
    that is too long."""
    named, usual = environ.get("RAY_TMPDIR", ""), environ.get("TMPDIR", "")
    if named and not _short(named):
        raise UsageError(
            f"RAY_TMPDIR={named}: this path is too long for Ray's sockets; use one of at most {LONGEST_BASE} bytes, "
            "for example /tmp",
            id="ray-folder-long",
        )
    return Path(named or (usual if usual and _short(usual) else "/tmp"))


def scratch(environ: Mapping[str, str]) -> Path:
    """`base`, or the RAY_TMPDIR that is too long."""
    try:
        return base(environ)
    except UsageError:
        return Path(environ["RAY_TMPDIR"])


def _short(path: str) -> bool:
    return len(os.fsencode(path.rstrip("/"))) <= LONGEST_BASE


def of_run(environ: Mapping[str, str]) -> Path:
    """A new folder for the Ray of one run; claimed by this process, and swept by a later run once it is dead."""
    place = base(environ)
    spool.sweep(place)
    found = spool.folder(secrets.token_hex(3), place)
    spool.claim(found)
    return Path(found)


def of_node(environ: Mapping[str, str]) -> Path:
    """The folder of this user's nodes on this host; it need not be there."""
    return base(environ) / f"farm-{os.getuid()}"


def runs_here(environ: Mapping[str, str]) -> bool:
    """Whether a node that this user has started by `farm nodes` runs on this host."""
    session = f"{of_node(environ)}/ray/session_"
    return any(session in line for line in procfs.command_lines())


def opened(folder: Path) -> Path:
    """`folder`, made where it is missing.  InfraError unless it is a folder of this user, closed to all others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        why = error.strerror or str(error)
        raise InfraError(f"{folder}: cannot be made ({why}); set RAY_TMPDIR", id="ray-folder-failed") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InfraError(
            f"{folder}: this is not a folder that only this user can use; remove it, or set RAY_TMPDIR to a folder of "
            "this user's own",
            id="ray-folder-not-private",
        )
    return folder


def sweep(folder: Path) -> list[str]:
    """Remove the sessions of nodes that have ended; returns their names."""
    try:
        found = {p: p.lstat().st_mtime for p in folder.glob("session_*") if p.is_dir() and not p.is_symlink()}
    except OSError:
        return []
    gone = dead({p.name: at for p, at in found.items()}, procfs.command_lines(), time.time())
    for name in gone:
        shutil.rmtree(folder / name, ignore_errors=True)
    latest = folder / "session_latest"
    with contextlib.suppress(OSError):
        if latest.is_symlink() and not latest.exists():
            latest.unlink()
    return gone


def dead(sessions: Mapping[str, float], running: Iterable[str], now: float) -> list[str]:
    """The sessions (name -> when it was changed last) that no process of `running` (command lines) names, except young
    ones."""
    lines = list(running)
    return sorted(
        name for name, at in sessions.items() if now - at > YOUNG_SECONDS and not any(name in line for line in lines)
    )
