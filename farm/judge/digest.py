"""What judges, by content: contracts, accuracy, the judge itself, and all that they import of the farm."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from farm.contracts.digest import ROOT, digest, modules_in

PACKAGES = ("farm.contracts", "farm.accuracy", "farm.judge")


@cache
def judging_digest(root: Path = ROOT) -> str:
    """The digest of the files that this process judges by, wherever its farm was imported from; or of those in the
    folder `root`."""
    return digest(["farm.cell", *(module for package in PACKAGES for module in modules_in(package, root))], root)
