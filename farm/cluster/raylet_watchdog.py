"""Finds the raylet that connects this process to its cluster, and ends the process if the raylet's death goes unseen.

One run continued for a minute after its raylet had died, because a call into Ray did not return (docs/facts.md).  The
run's loop checks the raylet before each round; `RayletWatchdog` ends the process, within bounded time and with the
farm's own exit code, if the loop is stuck in a call.  Results are in the journal, from which `farm resume` continues.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from farm.process import procfs

DIED = (
    "Ray's raylet process on this host died (it was killed, the host ran out of memory, or the host was too busy "
    "to answer, so the head considered this node dead)"
)
#: How long the loop may take to notice: longer than any of its calls that has a timeout.
UNSEEN_SECONDS = 25.0
LOOK_SECONDS = 1.0


def of_node(node: str) -> int | None:
    """The pid of the raylet that connects this process; None if another namespace hides it.  Without its raylet, Ray
    ends this process with an exit code that would mean findings."""
    return procfs.find(lambda words: f"--node_id={node}" in words)


class RayletWatchdog:
    """Ends this process with exit code 3 if the raylet is dead for `seconds` and nobody called `settle`."""

    def __init__(
        self, pid: int, run: str, seconds: float = UNSEEN_SECONDS, end: Callable[[int], object] = os._exit
    ) -> None:
        self._pid, self._run, self._seconds, self._end = pid, run, seconds, end
        self._settled = threading.Event()
        self._main = threading.get_ident()
        threading.Thread(target=self._look, name="raylet watch", daemon=True).start()

    def settle(self) -> None:
        """The death was noticed, or the raylet is about to be stopped on purpose."""
        self._settled.set()

    def _look(self) -> None:
        while not self._settled.wait(LOOK_SECONDS):
            if not procfs.alive(self._pid) and not self._settled.wait(self._seconds):
                text = f"farm: {DIED}, and {self._stuck()} has not returned for {self._seconds:g} s; "
                kept = f"finished results are stored; to continue, run farm resume {self._run} [raylet-died-unseen]"
                os.write(2, f"{text}{kept}\n".encode())
                self._end(3)
                return

    def _stuck(self) -> str:
        """Where in the farm the main thread is."""
        frame = sys._current_frames().get(self._main)
        while frame is not None and f"{os.sep}farm{os.sep}" not in frame.f_code.co_filename:
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "a call"
