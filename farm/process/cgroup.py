"""A control group for a process and all that it starts, where this user may make one.

Version 2: beside this process's own group or further up, since a group with processes cannot hand its controllers to
groups in it.  Version 1: in this process's own groups of processes and of memory.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
PREFIX = "farm-child-"
#: A group of this age without a process is of a farm that was killed.
OLD_SECONDS = 3600.0
#: Joins the groups named before `--`, then becomes the command behind it.
_JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Group:
    """`counts`: which of memory and processes it limits."""

    folders: tuple[Path, ...] = ()
    counts: frozenset[str] = frozenset()

    def words(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in the group."""
        if not self.folders:
            return list(command)
        return ["/bin/sh", "-c", _JOIN, "farm", *map(str, self.folders), "--", *command]

    def reached(self) -> frozenset[str]:
        """Which of memory and processes something in it wanted more of than it may have: there the kernel ended a
        process, or started none."""
        told = {"memory": ("memory.events", "memory.oom_control"), "processes": ("pids.events",)}
        words = {"memory": r"^oom_kill ([1-9]\d*)$", "processes": r"^max ([1-9]\d*)$"}
        places = [(what, folder / file) for what, files in told.items() for file in files for folder in self.folders]
        return frozenset(what for what, place in places if re.search(words[what], _text(place), re.M))

    def remove(self) -> None:
        """Once nothing runs in it."""
        for folder in self.folders:
            for _ in range(20):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # its last process is not quite gone
                    time.sleep(0.02)
                else:
                    break


def make(name: str, memory: int, processes: int, *, root: Path = ROOT, own: Path = OWN) -> Group:
    """A group of this name with these limits (bytes, number), as far as the host lets this user make one."""
    try:
        told = own.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Group()
    whole = re.search(r"^0::(/.*)$", told, re.M)
    if (root / "cgroup.controllers").is_file():
        return _second(name, memory, processes, root, whole[1] if whole else "/")
    folders, counts = list[Path](), set[str]()
    limits = (("pids", "processes", "pids.max", processes), ("memory", "memory", "memory.limit_in_bytes", memory))
    for controller, what, file, value in limits:
        first = re.search(rf"^\d+:(?:[^:\n]*,)?{controller}(?:,[^:\n]*)?:(/.*)$", told, re.M)
        made = _made(root / controller / first[1].lstrip("/"), name, {file: str(value)}) if first else None
        if made:
            folders.append(made)
            counts.add(what)
    return Group(tuple(folders), frozenset(counts))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _second(name: str, memory: int, processes: int, root: Path, path: str) -> Group:
    place = root / path.lstrip("/")
    for parent in [p for p in (place, *place.parents) if p == root or root in p.parents][0 if place == root else 1 :]:
        with contextlib.suppress(OSError):
            handed = set((parent / "cgroup.subtree_control").read_text(encoding="ascii").split())
            files = {"pids.max": str(processes)} if "pids" in handed else {}
            files |= {"memory.max": str(memory)} if "memory" in handed else {}
            made = _made(parent, name, files) if "pids.max" in files else None
            if made:
                return Group((made,), frozenset({"processes", *(("memory",) if "memory.max" in files else ())}))
    return Group()


def _made(parent: Path, name: str, limits: dict[str, str]) -> Path | None:
    """A new group in `parent`, which this user may also join; None if there cannot be one."""
    folder = parent / f"{PREFIX}{name}"
    try:
        _sweep(parent)
        folder.mkdir()
    except OSError:
        return None
    try:
        for file, value in limits.items():
            (folder / file).write_text(value, encoding="ascii")
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return folder


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > OLD_SECONDS:
                folder.rmdir()  # refused while a process is in it
