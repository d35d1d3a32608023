"""How `split.py` divides a row among programs.  Pure: integers in, integers out."""

from __future__ import annotations

from typing import NamedTuple

from ..choice import divide_up, next_power_of_2, round_up

#: A part begins at a multiple of so many columns, 16 bytes and more of any dtype.
STEP = 16
#: How often a program asks for the sums of its row before it reads the row itself.  A question takes about 0.7 us on
#: an H200 (the latency of its L2 cache, reasoned), so this is some 0.2 s: more than programs of a row are apart while
#: other kernels leave the device to them bit by bit, for who gives up may have other bits; and no hang.
POLLS = 2**18
#: In the interpreter programs run one after the other, and who does not come at once does not come.
INTERPRETED_POLLS = 2


class Plan(NamedTuple):
    """`parts` programs share a row, each with `width` columns (the last maybe fewer) in a tile of `block`."""

    parts: int
    width: int
    block: int


def plan(hidden: int, parts: int) -> Plan:
    """Rows of `hidden` columns over `parts` programs; fewer where some would have no column."""
    width = round_up(divide_up(hidden, parts), STEP)
    return Plan(divide_up(hidden, width), width, next_power_of_2(width))


def groups(rows: int, parts: int, programs: int) -> int:
    """How many groups of `parts` programs walk over the rows of a backward, where `programs` run at once."""
    return max(1, min(rows, programs // parts))
