"""How much work a device gets at once.

A lease is about a second of estimated work.  Near the end leases shrink, so that all devices finish together.
"""

from __future__ import annotations

from collections.abc import Callable

from farm.scheduler.workqueue import WorkQueue

LEASE_SECONDS = 1.0
#: Of a lease with two arms, for each of which a child starts anew, in some seconds: as long as another run can be made
#: to wait for the device, and as two times of one pair may lie apart.
ROUND_SECONDS = 50.0
MAX_LEASE_CELLS = 64  # one lease's results stay well under 100 KiB on the wire
MAX_ROUND_CELLS = 256  # pairs: starting children must not take longer than what they are started for


def budget(waiting_seconds: float, devices: int, *, rounds: bool = False) -> float:
    """Seconds of work for one lease: at most LEASE_SECONDS, and half of an equal share of what waits for `devices`.  Of
    `rounds` a whole share, since each lease costs two starts of a child."""
    if rounds:
        return min(ROUND_SECONDS, 1.001 * waiting_seconds / devices)
    return min(LEASE_SECONDS, waiting_seconds / (2 * devices))


def take(
    queue: WorkQueue,
    device: str,
    *,
    budget: float,
    seconds: Callable[[int], float],
    tries: Callable[[int], bool],
    most: int = MAX_LEASE_CELLS,
) -> list[int]:
    """Pop the cells of a device's next lease, at least one and at `most` so many, and no more once their seconds reach
    `budget`.  Cells that the device may not try now go back to the head of the queue."""
    taken: list[int] = []
    passed: list[int] = []
    spent = 0.0
    while len(taken) < most and (not taken or spent < budget):
        cell = queue.pop(device)
        if cell is None:
            break
        if not tries(cell):
            passed.append(cell)
            continue
        taken.append(cell)
        spent += seconds(cell)
    for cell in reversed(passed):
        queue.push(cell)
    return taken


def take_alone(queue: WorkQueue, *, tries: Callable[[int], bool]) -> list[int]:
    """Pop one cell that must run alone and that the device may try now."""
    passed: list[int] = []
    while (cell := queue.pop_alone()) is not None and not tries(cell):
        passed.append(cell)
    for other in passed:
        queue.push(other, alone=True)
    return [] if cell is None else [cell]
