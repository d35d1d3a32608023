"""JSON files of a store, which another process may be reading and somebody else may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: A larger run.json or calibration is refused.  That of a merged run of 100,000 cells has a few megabytes.
MAX_JSON = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.  ValueError for anything else, whatever it is."""
    if path.stat().st_size > MAX_JSON:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; the limit is {MAX_JSON:,}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found
