"""A line of a run's journal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


def line(event: str, said: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The event, the time now (unix, seconds) and those of `names` that were said."""
    return {"event": event, "time": round(time.time(), 3), **{n: said[n] for n in names if n in said}}
