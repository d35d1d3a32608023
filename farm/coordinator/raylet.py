"""The raylet that this process is connected by: where it is, whether it lives, and an end where its death goes unseen.

A run was seen going on for a minute after its raylet had died, taken for a call into Ray that did not return
(docs/facts.md).  The run's loop asks before each round; `Watch` sees to it that a call it is stuck in ends the process,
in bounded time, with the farm's own exit code.  Results are in the journal, and `farm resume` goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

DIED = (
    "Ray's own process on this host died (killed from outside, the host is out of memory, or so busy that the head "
    "took its node for dead)"
)
#: How long the loop may take to see it: longer than any call of its that has a timeout.
UNSEEN_SECONDS = 25.0
LOOK_SECONDS = 1.0


def of_node(node: str) -> int | None:
    """The pid of the raylet that this process is connected by; None where another namespace hides it.  Without it Ray
    ends this process, with an exit code that would mean findings."""
    flag = f"--node_id={node}".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if flag in path.read_bytes().split(b"\0"):
                return int(path.parent.name)
    return None


def alive(pid: int) -> bool:
    """Whether a process is there, and more than an entry that its parent has not read yet."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


class Watch:
    """Ends this process with exit code 3 where the raylet is dead for `seconds` and nobody called `settle`."""

    def __init__(
        self, pid: int, run: str, seconds: float = UNSEEN_SECONDS, end: Callable[[int], object] = os._exit
    ) -> None:
        self._pid, self._run, self._seconds, self._end = pid, run, seconds, end
        self._settled = threading.Event()
        self._main = threading.get_ident()
        threading.Thread(target=self._look, name="raylet watch", daemon=True).start()

    def settle(self) -> None:
        """It was seen, or is about to be ended on purpose."""
        self._settled.set()

    def _look(self) -> None:
        while not self._settled.wait(LOOK_SECONDS):
            if not alive(self._pid) and not self._settled.wait(self._seconds):
                text = f"farm: {DIED}, and {self._stuck()} has not returned for {self._seconds:g} s; what a run "
                os.write(2, f"{text}has by now is kept, and farm resume {self._run} goes on\n".encode())
                self._end(3)
                return

    def _stuck(self) -> str:
        """Where in the farm the thread is that began the watch."""
        frame = sys._current_frames().get(self._main)
        while frame is not None and f"{os.sep}farm{os.sep}" not in frame.f_code.co_filename:
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "a call"
