"""What the first calls of cells compiled, and what they found compiled: ahead of them, or by earlier runs and cells.
Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from farm.report.format import count


@dataclass(frozen=True)
class Built:
    """Kernels of Triton's.  `ahead`: those of `loaded` that were compiled ahead in this run, as far as that is
    known."""

    compiled: int = 0
    loaded: int = 0
    ahead: int = 0

    def __str__(self) -> str:
        kernels = "kernel" if self.compiled + self.loaded == 1 else "kernels"
        ahead = f", {count(self.ahead)} of them compiled ahead" if self.ahead else ""
        return f"first calls compiled {count(self.compiled)} and loaded {count(self.loaded)} {kernels}{ahead}"


def built(rows: Iterable[Mapping[str, Any]]) -> Built | None:
    """Of all rows; None where none tells."""
    found = [told for row in rows if (told := of_row(row)) is not None]
    if not found:
        return None
    return Built(*(sum(getattr(told, name) for told in found) for name in ("compiled", "loaded", "ahead")))


def of_row(row: Mapping[str, Any]) -> Built | None:
    """Of one cell; None where it does not tell."""
    launch = row.get("launch") or {}
    if isinstance(launch, str):
        if '"built"' not in launch:
            return None
        launch = json.loads(launch)
    told = launch.get("built") if isinstance(launch, Mapping) else None
    return Built(*(int(told.get(name) or 0) for name in ("compiled", "loaded", "ahead"))) if told else None
