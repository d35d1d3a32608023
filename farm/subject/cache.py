"""Where the coordinator keeps what it fetched or built for subjects: `subjects/` of the farm's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def root() -> Path:
    """$FARM_CACHE, else the user's cache folder.  Everything in it can be deleted at any time."""
    if os.environ.get("FARM_CACHE"):
        return Path(os.environ["FARM_CACHE"]) / "subjects"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel-farm" / "subjects"
