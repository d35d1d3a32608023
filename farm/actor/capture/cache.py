"""What one actor of a device leaves to the next of the same run: which calls can be captured, by their trials.

An actor is replaced when its device had a fault, and would try everything again.  Kept for the run only, by the device
and its software: neither a provider's code nor a peer's version is in what a device says of itself, a runtime that was
mended is to be seen, and a trial that is passed costs a child's start at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CaptureCache:
    """`spool`: the run's folder on this node.  `fingerprint`: of the device, its unique id and software in it."""

    def __init__(self, spool: str, fingerprint: Mapping[str, Any]):
        told = json.dumps(dict(fingerprint), sort_keys=True, default=str)
        self.file = Path(spool, f"captures-{hashlib.sha256(told.encode()).hexdigest()[:16]}.json")
        self._written: dict[str, str] | None = None

    def read(self) -> dict[str, str]:
        """What was noted, nothing where that cannot be read."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            found = dict(json.loads(self.file.read_text(encoding="utf-8")))
            return {str(key): str(value) for key, value in found.items()}
        return {}

    def write(self, known: Mapping[str, str]) -> None:
        """Note this instead; a disk that is full costs the next actor its trials, and no more."""
        if dict(known) == self._written:
            return
        with contextlib.suppress(OSError):
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps(dict(known)), encoding="utf-8")
            fresh.replace(self.file)
            self._written = dict(known)
