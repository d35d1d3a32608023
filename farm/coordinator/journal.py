"""A line of a run's journal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


def line(event: str, said: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The event, its time (unix, seconds) and those of `names` that `said` has.  `said["at"]` is on the monotonic
    clock, and a little earlier than now, because devices answer in bundles."""
    ago = max(0.0, time.monotonic() - said["at"]) if "at" in said else 0.0
    return {"event": event, "time": round(time.time() - ago, 3), **{n: said[n] for n in names if n in said}}
