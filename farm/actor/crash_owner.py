"""Whose fault it is that a child's process ended.  Pure.

`farm.child.fault_owner` decides this for exceptions inside the child.
"""

from __future__ import annotations

from typing import NamedTuple

from farm.backends.api import Fault
from farm.cell import Owner, Status

#: Signals that a process gets from others: HUP, INT, QUIT, KILL, USR1, USR2, TERM, XCPU.  What a process does wrong
#: itself ends it with another one (SEGV, ABRT, BUS, ILL, FPE).
SENT = frozenset({1, 2, 3, 9, 10, 12, 15, 24})
#: What stands for the signal of a child that was seen to be kept from running when its time was over.
STOP = -19
#: Signals within this time are of one cause: a scheduler's or an operator's, for all processes of a job.
TOGETHER_SECONDS = 10.0
#: Deaths by such a signal in one attempt, after which it ends even if others had one too.
MOST_DEATHS = 3


class Death(NamedTuple):
    """How the attempt ended."""

    status: str
    owner: str
    reason: str


def sent(code: int) -> bool:
    """Whether a process that ended with `code` (minus a signal's number) got a signal that others send."""
    return -code in SENT or code == STOP


def tried_alone(code: int, phase: str, last_words: Fault | None, deaths: int, *, outside: bool) -> bool:
    """Whether the cell runs again in a fresh child, which has served no other, before anybody is blamed.  `deaths`: of
    this attempt by such a signal, or until a deadline in such a stop, with this one; `outside`: the supervisor, a
    sibling or the run got one too."""
    if phase == "spawn" or last_words or not sent(code):
        return False
    return deaths < (MOST_DEATHS if outside else 2)


def of_death(what: str, code: int, phase: str, last_words: Fault | None, *, outside: bool) -> Death:
    """A crash is the kernel's.  But a signal that others had too is from outside, and what the vendor's runtime printed
    as it ended the process, `last_words`, is more exact than a signal's number."""
    if phase == "spawn":  # caused by an earlier cell, or by none: this one had not begun
        text = f"the child ended with {what} before the cell began"
        return Death(Status.INFRA_ERROR.value, Owner.INFRA.value, text)
    text = f"the child ended with {what} in phase {phase}"
    if last_words:
        return Death(last_words.status, last_words.owner, f"{last_words.what}: {text}" if last_words.what else text)
    if outside and sent(code):
        text += f"; within {TOGETHER_SECONDS:g} s others of the run got a signal too, so it came from outside"
        return Death(Status.INFRA_ERROR.value, Owner.INFRA.value, text)
    if sent(code):
        text += ", and had done so before; the second time it ran alone in a fresh child"
    return Death(Status.CRASHED.value, Owner.KERNEL.value, text)


def of_stop(why: str, limit_s: float, phase: str, *, outside: bool) -> Death:
    """The second time that a child did not run when its time was over, it ran alone: who stopped it was its cell.  But
    what a control group, an interrupt or another child's end shows to be from outside accuses nobody."""
    text = f"phase {phase} took more than {limit_s:g} s, and the child could not run: {why}"
    if outside:
        return Death(Status.INFRA_ERROR.value, Owner.INFRA.value, f"{text}, so it was stopped from outside")
    text += "; it had been ended or stopped before, and this time it ran alone in a fresh child"
    return Death(Status.TIMED_OUT.value, Owner.KERNEL.value, text)
