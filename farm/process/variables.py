"""This process's environment variables, as others can read them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path


def forget(name: str) -> None:
    """Remove a variable from this process: for what it starts, and from what /proc/PID/environ shows to every process
    of this user.  That is the memory in which the variables stood when this process began, whatever was unset since."""
    os.environ.pop(name, None)
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        begin, end = int(fields[47]), int(fields[48])
        at = begin
        for entry in ctypes.string_at(begin, end - begin).split(b"\0") if 0 < begin < end else ():
            if entry.startswith(name.encode() + b"="):
                ctypes.memset(at, 0, len(entry))
            at += len(entry) + 1
