"""The order of the ring's loads: nothing is read before it came, nor overwritten before it was read for the last time.

A ring is played through with the same index arithmetic as the kernels': loads are noted where they are started, a read
asserts that its slot holds the right chunk of the right row and that the wait before it covered that load.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kernels.ops.rms_norm.gpu import ring_plan

Pending = Callable[[int, int, int, int, int], int]


class Ring:
    """Slots, and the loads that were started: each (row, chunk) in the order of their groups."""

    def __init__(self, slots: int, rows: int):
        self.held: list[tuple[int, int] | None] = [None] * slots
        self.started: list[tuple[int, int]] = []
        self.number: list[int] = [-1] * slots  # which group filled a slot last
        self.arrived = 0  # so many groups have come for certain
        self.rows = rows

    def start(self, slot: int, row: int, chunk: int) -> None:
        self.held[slot] = (row, chunk)
        self.number[slot] = len(self.started)
        self.started.append((row, chunk))

    def wait(self, pending: int) -> None:
        assert pending >= 0
        self.arrived = max(self.arrived, len(self.started) - pending)

    def read(self, slot: int, row: int, chunk: int) -> None:
        assert self.held[slot] == (row, chunk)
        assert self.number[slot] < self.arrived


def play(chunks: int, regs: int, again: int, slots: int, rows: int, pending: Pending = ring_plan.pending) -> list[int]:
    """What a program of `ring.py` does over `rows` rows; gives how many loads were under way as each row was summed."""
    ring = Ring(slots, rows)
    for i in range(slots):
        place = ring_plan.following(i, chunks, again, 0)
        ring.start(i, ring_plan.rows_on(i, chunks, again, 0), ring_plan.chunk(chunks, regs, place))
    slot, under_way = 0, []

    def fetch_next(row: int, place: int) -> None:
        later = row + ring_plan.rows_on(slots, chunks, again, place)
        ring.start(slot, later, ring_plan.chunk(chunks, regs, ring_plan.following(slots, chunks, again, place)))

    for row in range(rows):
        for i in range(chunks):
            ring.wait(pending(slots, chunks, regs, again, i))
            ring.read(slot, row, i)
            if i < regs + again:
                fetch_next(row, i)
            slot = (slot + 1) % slots
        under_way.append(len(ring.started) - ring.arrived)
        slot = (slot - (chunks - regs - again)) % slots
        written = []
        for i in range(chunks - regs):
            if i >= chunks - regs - again:
                ring.wait(pending(slots, chunks, regs, again, regs + again + i))
            ring.read(slot, row, ring_plan.second(chunks, regs, again, i))
            written.append(ring_plan.second(chunks, regs, again, i))
            fetch_next(row, regs + again + i)
            slot = (slot + 1) % slots
        written += [ring_plan.second(chunks, regs, again, i) for i in range(chunks - regs, chunks)]
        assert sorted(written) == list(range(chunks))
        assert written[chunks - regs :] == list(range(regs))
    assert len(ring.started) == slots + rows * (chunks + again)
    return under_way


RINGS = [
    (chunks, regs, again, slots)
    for chunks, regs, again, slots in itertools.product((1, 2, 3, 5, 8), (0, 1, 2, 5), (0, 1, 4), (1, 2, 3, 7, 16))
    if regs + again <= chunks and chunks - regs - again <= slots
]


@pytest.mark.parametrize("chunks, regs, again, slots", RINGS)
def test_every_chunk_is_there_when_it_is_read(chunks: int, regs: int, again: int, slots: int) -> None:
    play(chunks, regs, again, slots, 5)


@pytest.mark.parametrize("chunks, regs, again, slots", [(5, 0, 0, 8), (5, 2, 0, 4), (5, 1, 2, 3)])
@pytest.mark.parametrize("late", (-1, 1))
def test_a_wait_for_one_group_more_or_less_shows(chunks: int, regs: int, again: int, slots: int, late: int) -> None:
    def wrong(*place: int) -> int:
        return ring_plan.pending(*place) + late

    if late > 0:
        with pytest.raises(AssertionError):
            play(chunks, regs, again, slots, 3, wrong)
    else:
        assert min(play(chunks, regs, again, slots, 3)) > min(play(chunks, regs, again, slots, 3, wrong))


def test_a_row_that_is_wider_than_the_ring_is_refused_by_the_model() -> None:
    with pytest.raises(AssertionError):
        play(5, 0, 0, 4, 2)


PLANS: list[dict[str, Any]] = [
    {
        "hidden": hidden,
        "chunk": chunk,
        "column_bytes": column,
        "weight_bytes": weight,
        "per_core": per_core,
        "regs": regs,
        "ahead": ahead,
        "most": most,
    }
    for hidden, chunk, column, weight, per_core, regs, ahead, most in itertools.product(
        (4096, 12296, 32768, 131072), (2048, 4096, 8192), (2, 4, 8), (0, 2, 4), (1, 2), (0, 2), (1, 3), (0, 3)
    )
]


def test_plans_fit_and_can_be_played() -> None:
    found = [(given, ring_plan.plan(**given)) for given in PLANS]
    assert sum(p is not None for _, p in found) > len(PLANS) // 2
    played = set()
    for given, plan in found:
        if plan is None:
            continue
        taken = plan.slots * given["chunk"] * given["column_bytes"]
        taken += plan.hold * plan.chunks * given["chunk"] * given["weight_bytes"]
        assert taken * given["per_core"] <= 232448
        assert (plan.chunks - 1) * given["chunk"] < given["hidden"] <= plan.chunks * given["chunk"]
        assert plan.hold <= bool(given["weight_bytes"])
        assert plan.slots >= ring_plan.MIN_SLOTS
        if plan not in played:
            play(plan.chunks, plan.regs, plan.again, plan.slots, 3)
            played.add(plan)


def test_a_row_is_read_once_where_it_fits() -> None:
    held = ring_plan.plan(32768, 4096, 4, 2, 1, 0, 3, 0)
    assert held is not None and (held.again, held.hold, held.slots) == (0, True, 10)
    registers = ring_plan.plan(131072, 8192, 2, 2, 1, 4, 3, 0)
    assert registers is not None and (registers.again, registers.hold) == (0, False)
    reread = ring_plan.plan(131072, 8192, 2, 2, 1, 0, 3, 0)
    assert reread is not None and (reread.again, reread.slots) == (5, 14)


def test_what_does_not_fit_has_no_plan() -> None:
    assert ring_plan.plan(32768, 32768, 8, 0, 1, 0, 3, 0) is None  # not two slots
    assert ring_plan.plan(2**20, 4096, 2, 0, 1, 0, 3, 0) is None  # too many chunks
