"""Which cells a change is run in on devices: those that launch what changed, and some sentinels.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SENTINELS = 12
#: More cells than these are not named one by one.
MOST = 2000
_SHAPE = re.compile(r"\d+(?:x\d+)+|(?<=/)\d+(?=/)")


@dataclass(frozen=True)
class Selection:
    """`cells`: ids without backend and target, in the plan's order; empty for all of the matrix.  `why`: for people.
    `planned`: how many there are; 0 where nobody knows which launch what changed."""

    cells: tuple[str, ...]
    why: str
    planned: int = 0
    reached: int = 0  # that launch what changed

    @property
    def left_out(self) -> int:
        """How many planned cells do not run."""
        return self.planned - len(self.cells) if self.cells else 0

    def told(self) -> dict[str, int]:
        """As result.json has it."""
        return {"planned": self.planned, "reached": self.reached, "chosen": self.planned - self.left_out}

    @property
    def rule(self) -> str:
        """As --select takes it; "" for all."""
        return "id=" + "|".join(f"*/{cell}" for cell in self.cells) if self.cells else ""


def select(
    planned: Sequence[str],
    kernels: Mapping[str, Sequence[str]],
    *,
    host: Iterable[str] = (),
    sentinels: int = SENTINELS,
) -> Selection:
    """The cells that a change is run in.

    `planned`: ids without backend and target of all cells that stage 0 built; `kernels`: such an id -> the changed
    kernels that it launches; `host`: files beside the kernels that differ, which may change how any cell is launched.
    """
    planned = list(dict.fromkeys(planned))
    if not planned:
        return Selection((), "all cells: none was built, so nothing says which launch what changed")
    if list(host):
        why = "all cells: code beside the kernels changed, and any of them may be launched differently"
        return Selection((), why, len(planned), sum(bool(kernels.get(cell)) for cell in planned))
    reached = [cell for cell in planned if kernels.get(cell)]
    others = [cell for cell in planned if not kernels.get(cell)]
    chosen = {*reached, *_sentinels(others, sentinels)}
    if len(chosen) >= len(planned) or len(chosen) > MOST:
        return Selection((), "all cells", len(planned), len(reached))
    extra = len(chosen) - len(reached)
    why = f"{len(reached)} cells that launch a changed kernel and {extra} others, of {len(planned)}"
    return Selection(tuple(cell for cell in planned if cell in chosen), why, len(planned), len(reached))


def _sentinels(cells: Sequence[str], most: int) -> list[str]:
    """Of every op in turn, those with the oddest sizes: what a change of tiles breaks first."""
    by_op: dict[str, list[str]] = {}
    for cell in cells:
        by_op.setdefault(cell.partition("/")[0], []).append(cell)
    for own in by_op.values():
        own.sort(key=_evenness)
    out: list[str] = []
    while len(out) < most and any(by_op.values()):
        for own in by_op.values():
            if own and len(out) < most:
                out.append(own.pop(0))
    return out


def _evenness(cell: str) -> int:
    """How often two divides the sizes in a cell's id, all of them together; small is odd."""
    found = _SHAPE.search(cell)
    sizes = [int(n) for n in found[0].split("x")] if found else []
    return sum((n & -n).bit_length() for n in sizes if n)
