"""The order in which `ring.py` fills and empties its ring of shared memory.  Pure: integers in, integers out.

A row is `chunks` chunks of columns.  The ring has `slots` slots, each for one chunk of every streamed tensor.  A row is
summed in a first pass and written in a second.  Between them its first `regs` chunks stay in registers, the next
`again` are dropped, and all others stay in the ring.  So the loads of a row, in order:

    place   0 .. regs + again       the first pass of the chunks whose slots are free once they are summed
            regs + again .. chunks  the first pass of those that stay in the ring
            chunks .. loads         the second pass of the `again` chunks that were dropped

Load number q of a program lies in slot q % slots.  Slots become free in the order in which they were filled, and load
q + slots is started right after the slot of load q was read for the last time; before the first row, loads 0 to slots -
1 are started.  Every load is one group of asynchronous copies, also one that lies behind the last row and copies
nothing, so how many groups may still be under way when a place is read is the same for every row: `pending`.
"""

from __future__ import annotations

from typing import NamedTuple

#: What a block may have on sm_90 and sm_100 (232,448 bytes), less what sums over warps take (reasoned).
SHARED = 232448 - 1024
#: What the system takes for itself in each block that shares a multiprocessor.
RESERVED = 1024
#: With fewer slots nothing is under way while a chunk is read.
MIN_SLOTS = 2
#: More slots, and more chunks, make the unrolled kernel long to compile (reasoned).
MAX_SLOTS = 32
MAX_CHUNKS = 32


def chunk(chunks: int, regs: int, place: int) -> int:
    """Which chunk of its row a load is."""
    return place if place < chunks else regs + place - chunks


def second(chunks: int, regs: int, again: int, turn: int) -> int:
    """The chunk that is written in turn 0, 1, ... of the second pass: from the ring those that stayed there, then those
    that were loaded again, and from registers the others."""
    kept = chunks - regs - again
    if turn < kept:
        return regs + again + turn
    return regs + turn - kept if turn < chunks - regs else turn - (chunks - regs)


def pending(slots: int, chunks: int, regs: int, again: int, place: int) -> int:
    """How many groups may be under way when the load at `place` is read for the first time: those started after it."""
    stays = place - regs - again if regs + again <= place < chunks else 0
    return slots - 1 - stays


def rows_on(slots: int, chunks: int, again: int, place: int) -> int:
    """How many of the program's rows after this one's the load belongs to that follows in the slot of `place`."""
    return (place + slots) // (chunks + again)


def following(slots: int, chunks: int, again: int, place: int) -> int:
    """The place, in that row, of the load that follows in the slot of `place`."""
    return (place + slots) % (chunks + again)


class Plan(NamedTuple):
    """The compile-time constants of a ring kernel; `hold` says whether the weight is kept in shared memory."""

    chunks: int
    regs: int
    again: int
    slots: int
    hold: bool


def plan(
    hidden: int, chunk: int, column_bytes: int, weight_bytes: int, per_core: int, regs: int, ahead: int, most: int
) -> Plan | None:
    """How rows of `hidden` columns pass through the ring in chunks of `chunk`; None where that is not possible.

    `column_bytes`: of one column, in all streamed tensors together.  `weight_bytes`: of one element of a weight that is
    to be kept in shared memory, 0 where there is none; it is not kept where a row would then not fit.
    `per_core` programs share a multiprocessor.  `regs` chunks stay in registers.  Where the others do not fit the ring,
    `ahead` of its slots are left for what comes next.  `most` slots are used, 0: as many as there are.
    """
    chunks = -(-hidden // chunk)
    regs = min(regs, chunks)
    if chunks > MAX_CHUNKS:
        return None
    room = SHARED // per_core - (RESERVED if per_core > 1 else 0)
    for hold in (True, False) if weight_bytes else (False,):
        slots = min(
            most or MAX_SLOTS, MAX_SLOTS, (room - hold * chunks * chunk * weight_bytes) // (chunk * column_bytes)
        )
        rest = chunks - regs
        again = 0 if rest <= slots else rest - max(1, slots - ahead)
        if slots >= MIN_SLOTS and not (hold and again):
            return Plan(chunks, regs, again, slots, hold)
    return None
