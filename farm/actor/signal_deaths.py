"""Which devices of a node have lost a child to a signal, and when: files in the run's folder, which all of them see."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

FOLDER = "signalled"


class SignalDeaths:
    """Those of one device, and whether its siblings have had one.  A folder that cannot be read or written tells
    nothing."""

    def __init__(self, spool: str, device: str):
        self._own = Path(spool, FOLDER, device.replace("/", "_"))

    def note(self) -> None:
        """This device's child has just died of a signal."""
        with contextlib.suppress(OSError):
            self._own.parent.mkdir(exist_ok=True)
            self._own.touch()

    def others_within(self, seconds: float) -> bool:
        """Whether another device's child died so in the last `seconds`."""
        now = time.time()
        with contextlib.suppress(OSError):
            return any(abs(now - f.stat().st_mtime) <= seconds for f in self._own.parent.iterdir() if f != self._own)
        return False
