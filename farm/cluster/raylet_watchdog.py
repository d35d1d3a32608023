"""Finds the parts of Ray that this process cannot do without, and ends the process if the death of one goes unseen.

One run continued for a minute after its raylet had died, because a call into Ray did not return (docs/facts.md); the
same where its GCS had.  The run's loop checks both before each round; `RayletWatchdog` ends the process, within bounded
time and with the farm's own exit code, if the loop is stuck in a call.  Results are in the journal, from which `farm
resume` continues.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from farm.errors import Message
from farm.process import procfs, supervisor

RAYLET, GCS = "raylet", "GCS"
_WHY = {
    RAYLET: "it was killed, the host ran out of memory, or the host was too busy to answer, so the head considered "
    "this node dead",
    GCS: "it was killed, or the host ran out of memory",
}
#: How long the loop may take to notice: longer than any of its calls that has a timeout.
UNSEEN_SECONDS = 25.0
LOOK_SECONDS = 1.0


#: Name of a process of Ray's -> the part that it is.
PARTS = {"raylet": RAYLET, "gcs_server": GCS}


def parts(node: str, *, own: bool) -> dict[str, int]:
    """Part of Ray -> its pid on this host: the raylet that connects this process, and the GCS of an own Ray.  One that
    another namespace hides is left out.  Without them, Ray ends this process with an exit code that would mean
    findings."""
    here = os.getpid()
    found = {
        RAYLET: procfs.find(lambda words: f"--node_id={node}" in words),
        GCS: procfs.find(lambda words: Path(words[0]).name == "gcs_server", of=here) if own else None,
    }
    return {part: pid for part, pid in found.items() if pid is not None}


def died(part: str) -> Message:
    """A clause on the death of a part."""
    return Message(f"Ray's {part} process on this host died ({_WHY[part]})", id=f"{part.lower()}-died")


class RayletWatchdog:
    """Ends this process with exit code 3 if one of `pids` (of `parts`) is dead for `seconds` and nobody called
    `settle`."""

    def __init__(
        self,
        pids: Mapping[str, int],
        run: str,
        seconds: float = UNSEEN_SECONDS,
        end: Callable[[int], object] = supervisor.leave,
    ) -> None:
        self._pids, self._run, self._seconds, self._end = dict(pids), run, seconds, end
        self._settled = threading.Event()
        self._main = threading.get_ident()
        threading.Thread(target=self._look, name="raylet watch", daemon=True).start()

    def dead(self) -> str:
        """A part that has died; "" if all live."""
        return next((part for part, pid in self._pids.items() if not procfs.alive(pid)), "")

    def settle(self) -> None:
        """The death was noticed, or the raylet is about to be stopped on purpose."""
        self._settled.set()

    def _look(self) -> None:
        while not self._settled.wait(LOOK_SECONDS):
            part = self.dead()
            if part and not self._settled.wait(self._seconds):
                why = died(part)
                text = f"farm: {why}, and {self._stuck()} has not returned for {self._seconds:g} s; "
                kept = f"finished results are stored; to continue, run farm resume {self._run} [{why.id}-unseen]"
                os.write(2, f"{text}{kept}\n".encode())
                self._end(3)
                return

    def _stuck(self) -> str:
        """Where in the farm the main thread is."""
        frame = sys._current_frames().get(self._main)
        while frame is not None and f"{os.sep}farm{os.sep}" not in frame.f_code.co_filename:
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "a call"
