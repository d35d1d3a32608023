"""Why a cell that is interpreted ran out of time: its programs were too many, or one of them never ends.

The interpreter counts the programs of a phase in a file (`farm.child.interpreter.count_programs`), which is read once
the child is dead.  `ended` is pure.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from farm.child.interpreter_progress import FILE, FORMAT
from farm.errors import Message


@dataclass(frozen=True)
class Programs:
    """`finished` of those that were launched, `planned`; none in the last `silent_s` seconds."""

    finished: int
    planned: int
    silent_s: float


def ended(phase: str, limit_s: float, programs: Programs | None) -> tuple[str, str, str]:
    """Status, owner and reason of a cell whose phase took longer than its limit.  Where programs were still being
    finished, the interpreter is too slow for the cell.  Where none was, or none in the second half of the time, the
    kernel hangs."""
    if programs is None or programs.finished == 0 or programs.silent_s > limit_s / 2:
        return "timed_out", "kernel", f"phase {phase} took more than {limit_s:g} s"
    count = f"{programs.finished} of {programs.planned} programs in {limit_s:g} s"
    text = f"the cell needs more interpreter time: {count}; raise deadlines.{phase}, or run a smaller shape"
    return "unsupported", "harness", Message(text, id="interpreter-time")


def read(folder: str) -> Programs | None:
    """What a child has left of its count in an attempt's folder; None for nothing, or nothing that is one."""
    with contextlib.suppress(OSError, struct.error):
        file = os.open(Path(folder, FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode):
                finished, planned = struct.unpack(FORMAT, os.read(file, struct.calcsize(FORMAT)))
                return Programs(finished, planned, time.time() - found.st_mtime)
        finally:
            os.close(file)
    return None
