"""How the child words what is wrong with a call whatever its numbers say.  Standard library only: the judge reads it.

Each finding is a flag of the cell, written so that "it " before it makes a sentence.
"""

from __future__ import annotations

RETURNED_AGAIN = "returned memory that an earlier call had returned: the caller may still hold that answer"
REMEMBERED = "returned answers in timed launches that do not follow their inputs: they are remembered"
#: Beginnings of the findings that make a cell `inaccurate`, the kernel's fault.  Any other flag only tells.
DISQUALIFYING = (
    "changed its inputs",
    "changed torch's ",  # + which state, from what to what
    "wrote outside ",  # + which allocation
    "patched ",  # + which functions that check or time it
    "reseeded ",
    "returned answers in timed launches ",
    "returned memory ",  # + whose: an input's, or that of an earlier call's output
    "left a thread running",
    "left a process running",
    "left work on another stream",
    "keeps ",  # + how many MiB
    "takes another path on values ",  # that it has seen
    "launched none of its kernels",
    "noted launches that did not happen",
)


def disqualifying(flags: list[str]) -> list[str]:
    """The findings among a cell's flags that no number can make good, in order."""
    return [flag for flag in flags if flag.startswith(DISQUALIFYING)]
