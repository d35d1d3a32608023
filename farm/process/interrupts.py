"""Ctrl-C, SIGTERM and a closed terminal: one set of handlers for a whole command, which take note and raise nothing.

An exception at any moment would tear whatever library is at work then; so who works asks, at moments of its own.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: What comes within this time of another is its copy: `timeout` signals a process and then its group, systemd sends
#: SIGTERM and SIGHUP together, and a supervisor hands on what the group had already.
COPY_SECONDS = 0.5


class Interrupts:
    """What has been noted.  `raising`: the second one is a KeyboardInterrupt, for whom nobody else would end."""

    def __init__(self, *, raising: bool) -> None:
        self.raising = raising
        self.times: list[float] = []
        self.number = signal.SIGTERM  # of the last one
        self._before: dict[signal.Signals, object] = {}

    @property
    def noted(self) -> bool:
        return bool(self.times)

    def install(self) -> None:
        """Set the handlers; once more where a library may have set its own.  An ignored SIGHUP (nohup) stays so."""
        for number in NUMBERS:
            try:
                there = signal.getsignal(number)
                if number == signal.SIGHUP and there is signal.SIG_IGN:
                    continue
                signal.signal(number, self._note)
                self._before.setdefault(number, there)
            except ValueError:  # not the main thread, which alone may set handlers
                return

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what `getsignal` gave
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.times and now - self.times[-1] < COPY_SECONDS:
            return
        self.times.append(now)
        self.number = signal.Signals(number)
        if self.raising and len(self.times) > 1:
            raise KeyboardInterrupt


_current: Interrupts | None = None


@contextmanager
def heard(*, raising: bool = True) -> Iterator[Interrupts]:
    """The command's interrupts.  Within another `heard` they are the same, and the handlers are set anew."""
    global _current
    if _current is not None:
        _current.install()
        yield _current
        return
    _current = Interrupts(raising=raising)
    _current.install()
    try:
        yield _current
    finally:
        _current.restore()
        _current = None


def claim() -> None:
    """Set the command's handlers anew: a library has just set its own."""
    if _current is not None:
        _current.install()


def noted_soon(seconds: float) -> bool:
    """Whether this process has such a signal, or gets one within `seconds`: not all of a group hear it at once."""
    end = time.monotonic() + seconds
    while _current is not None and not _current.noted and time.monotonic() < end:
        time.sleep(0.02)
    return _current is not None and _current.noted


def noted_within(seconds: float = math.inf) -> bool:
    """Whether this process got such a signal in the last `seconds`."""
    return _current is not None and any(time.monotonic() - at <= seconds for at in _current.times)
