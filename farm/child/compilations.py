"""What Triton compiled in this process, and what it found compiled: counted where Triton itself reports it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

#: Hashes of kernels that are told; a tuner that tries more has too many to name.
MOST_HASHES = 2000


class Compilations:
    """Counts within it.  `known`: whether this process's Triton tells (from 3.4 on; before, and without Triton, nothing
    is counted).  `compiled` kernels took a compiler, `loaded` ones were in Triton's cache on disk; a kernel that this
    process has had before counts as neither.  `new`, `old`: the hashes of both, as Triton names them."""

    def __init__(self) -> None:
        self.known = False
        self.compiled = self.loaded = 0
        self.new: list[str] = []
        self.old: list[str] = []
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Compilations:
        # Triton may be imported within this by the code under test: then it is not imported for its sake before
        try:
            compilation: Any = sys.modules["triton"].knobs.compilation
            before = compilation.listener
        except (KeyError, AttributeError):
            return self

        def listener(**told: Any) -> None:
            self._note(told)
            if before is not None:
                before(**told)

        compilation.listener = listener
        self.known = True
        self._undo.callback(setattr, compilation, "listener", before)
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    def _note(self, told: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # a count must not fail a compilation
            hit = bool(told["cache_hit"])
            self.loaded, self.compiled = self.loaded + hit, self.compiled + (not hit)
            found = self.old if hit else self.new
            if len(found) < MOST_HASHES:
                found.append(str(told["metadata"]["hash"])[:64])
