"""What judges, by content: contracts, accuracy, the judge itself, and all that they import of the farm."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from farm.contracts.digest import ROOT, digest, modules_in

PACKAGES = ("farm.contracts", "farm.accuracy", "farm.judge")


def unchanged(since_ns: int, root: Path = ROOT) -> bool:
    """Whether nothing of the farm has changed since then, so that two processes which import it have the same."""
    for folder, inner, files in os.walk(root / "farm"):
        inner[:] = [name for name in inner if name != "__pycache__"]
        places = [folder, *(f"{folder}/{name}" for name in files)]
        if any(Path(place).stat().st_ctime_ns >= since_ns for place in places):
            return False
    return True


@cache
def judging_digest(root: Path = ROOT) -> str:
    """The digest of the files that this process judges by, wherever its farm was imported from; or of those in the
    folder `root`."""
    return digest(["farm.cell", *(module for package in PACKAGES for module in modules_in(package, root))], root)
