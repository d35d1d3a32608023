"""Counts the programs that the interpreter runs, in a file that outlives the process: whoever kills it at its deadline
sees from it whether it got anywhere.  Standard library only: the supervisor imports this too.
"""

from __future__ import annotations

import math
import os
import struct
from os import pwrite  # bound before any provider is imported

FILE = "programs"  # in an attempt's folder
FORMAT = "<QQ"  # finished, planned


class ProgramCount:
    """Counts nothing until it has a file.  `launch` and `program` are the interpreter's to call."""

    def __init__(self) -> None:
        self._file = -1
        self._begun = self._planned = 0

    def begin(self, folder: str) -> None:
        """A phase begins: count anew, in this attempt's folder."""
        self.end()
        self._begun = self._planned = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(f"{folder}/{FILE}", flags, 0o600)

    def end(self) -> None:
        """Count no more."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def launch(self, grid: tuple[int, ...]) -> None:
        """A kernel is launched over this grid."""
        self._planned += max(0, int(math.prod(grid)))

    def program(self) -> None:
        """A program begins, so all before it have finished."""
        if self._file >= 0:
            pwrite(self._file, struct.pack(FORMAT, self._begun, self._planned), 0)
        self._begun += 1
