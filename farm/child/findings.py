"""What can be wrong with a call regardless of its numbers.  Standard library only: the judge imports it.

Each finding is a flag of the cell, worded so that it continues "the provider ...".  Runs store the beginnings in
`DISQUALIFYING`, and are judged again by them: add one when words change, and keep the old one.
"""

from __future__ import annotations

RETURNED_AGAIN = "returned memory of an earlier call's output, which the caller may still use"
REMEMBERED = "returned answers in timed launches that were remembered, not computed from the inputs"
#: Beginnings of the findings that make a cell `inaccurate`, the kernel's fault.  Other flags are for information.
DISQUALIFYING = (
    "changed its inputs",
    "changed torch's ",  # + which state, from what to what
    "wrote outside ",  # + which allocation
    "patched ",  # + which functions that check or time it
    "reseeded ",
    "returned answers in timed launches ",
    "returned memory ",  # + whose: of an input, or of an earlier call's output
    "left a thread running",
    "left a process running",
    "left work on another stream",
    "keeps ",  # + how many MiB
    "takes another path on values ",  # from an earlier call
    "gives row ",  # + which, other bits alone than in its batch
    "launched none of its kernels",
    "claimed kernel launches that never happened",  # + which kernels
    "noted launches that did not happen",  # the same, in older runs
)


def disqualifying(flags: list[str]) -> list[str]:
    """The flags of a cell that make it `inaccurate` regardless of its numbers, in order."""
    return [flag for flag in flags if flag.startswith(DISQUALIFYING)]
