"""Whose fault it is that a child's process ended.  Pure.

`farm.child.fault_owner` decides this for exceptions inside the child.
"""

from __future__ import annotations

from typing import NamedTuple

from farm.backends.api import Fault
from farm.cell import Owner, Status

SIGKILL = -9


class Death(NamedTuple):
    """How the attempt ended."""

    status: str
    owner: str
    reason: str


def of_death(what: str, code: int, phase: str, last_words: Fault | None, *, last: bool) -> Death:
    """A crash is the kernel's.  But SIGKILL is first taken for somebody else's (an operator, the OOM killer), and what
    the vendor's runtime printed as it ended the process, `last_words`, is more exact than a signal's number.  `last`:
    the cell is not tried again."""
    if phase == "spawn":  # caused by an earlier cell, or by none: this one had not begun
        text = f"the child ended with {what} before the cell began"
        return Death(Status.INFRA_ERROR.value, Owner.INFRA.value, text)
    text = f"the child ended with {what} in phase {phase}"
    if last_words:
        return Death(last_words.status, last_words.owner, f"{last_words.what}: {text}" if last_words.what else text)
    outside = code == SIGKILL and not last
    return Death(Status.CRASHED.value, (Owner.INFRA if outside else Owner.KERNEL).value, text)
