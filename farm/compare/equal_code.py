"""Which pairs run the same code in both arms: they serve as controls, and are never accused.  Pure.

A pair is known to be so by the first of these that holds, where the arms differ in nothing but their files:

    identical           an arm is compared with itself
    peer                its provider is not of the subject
    machine code        every activity of the device in a call is a launch of a Triton kernel, and all launches of both
                        arms, in order, have the same machine code, grid, launch settings and scalar arguments; and its
                        time is that of the device alone, so the host's code is not in it
    unchanged kernels   nothing but kernels differs between the arms, each of which some cell launches; and every kernel
                        that this cell launches has its name in the sources, and is not one of those

What cannot be seen is not known to be the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

#: Timing methods whose times hold nothing of the host.
OF_THE_DEVICE = ("rotating_graph",)
IDENTICAL, PEER, MACHINE_CODE, UNCHANGED = "identical", "peer", "machine code", "unchanged kernels"
#: In the order in which they are told.
WHYS = (IDENTICAL, PEER, MACHINE_CODE, UNCHANGED)


@dataclass(frozen=True)
class Side:
    """What one arm's first round says of a cell.  launch: its record (`launch` of cells.parquet); activities: of the
    device in one call, None where that is not known; method: that timed it."""

    launch: Mapping[str, Any]
    activities: float | None
    method: str

    @property
    def code(self) -> str:
        """The digest of all launches, if they are all that the device does in a call; else empty."""
        code = self.launch.get("code")
        if not isinstance(code, Mapping) or self.method not in OF_THE_DEVICE:
            return ""
        launches = code.get("launches")
        return str(code.get("digest") or "") if launches and launches == self.activities else ""

    @property
    def names(self) -> set[str]:
        """The kernels that it launches; none where that is not known."""
        told = {str(name) for name in self.launch.get("seen") or ()}
        return told | {str(one.get("kernel")) for one in self.launch.get("variants") or ()}


def machine_code(a: Side, b: Side) -> bool:
    """Whether both arms give the device the same work."""
    return bool(a.code) and a.code == b.code


def unchanged(
    a: Side, b: Side, *, only_kernels: bool, launches_changed: bool, unseen: bool, known: Collection[str]
) -> bool:
    """Whether the sources of both arms are the same for this cell.

    only_kernels: nothing but kernels differs between the arms; launches_changed: the cell launches a kernel that does;
    unseen: a kernel differs that no cell was seen to launch, so it may be part of any; known: the names of all kernels
    in the sources.  A launch by another name may be one of these kernels, too, which can name themselves.
    """
    if not only_kernels or unseen or launches_changed:
        return False
    return bool(a.names and b.names) and (a.names | b.names) <= set(known)
