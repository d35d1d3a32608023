"""The words between the scheduler and the world: events (what happened) and actions (what to do).  Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from farm.cell import Owner, Status


@dataclass(frozen=True)
class CellPool:
    """Cells that the same devices may run.  `target`: a pattern of farm.device_pattern; "" for every device of
    the backend."""

    backend: str
    target: str = ""
    quiet: str = "none"  # of farm.cell.QUIET

    def __str__(self) -> str:
        return f"target {self.backend}:{self.target}" if self.target else f"backend {self.backend}"


@dataclass(frozen=True)
class Attempt:
    """One try at a cell.  No two tries of a cell have one number; on the `last` one a fault is no longer excused."""

    cell: int
    number: int
    round: int = 0
    last: bool = False


@dataclass(frozen=True)
class Lease:
    """Work of one pool granted to a device."""

    id: int
    device: str
    attempts: tuple[Attempt, ...]
    pool: CellPool = CellPool("")


# Events: what happened.


@dataclass(frozen=True)
class Event:
    """`at`: seconds on one monotonic clock."""

    at: float


@dataclass(frozen=True)
class DeviceAdded(Event):
    """The cluster has a device that it had not, or has one again; its actor is yet to be started."""

    device: str
    backend: str
    host: str = ""


@dataclass(frozen=True)
class DeviceUp(Event):
    """A device is open and idle; cells of its backend, and of the targets that it is, may be granted to it.
    `target` is str(Target); `module`: equal for neighbours on one host, "" where none are known."""

    device: str
    target: str = ""
    module: str = ""


@dataclass(frozen=True)
class DeviceWaits(Event):
    """Another run uses a device that is starting; `busy` is false once it does so no more."""

    device: str
    busy: bool = True


@dataclass(frozen=True)
class DeviceDown(Event):
    """A device's actor died, hung or could not open its device.  `final`: another try is pointless.  `busy`: another
    run kept the device for as long as this one may wait, so nothing is wrong with it."""

    device: str
    reason: str
    final: bool = False
    busy: bool = False


@dataclass(frozen=True)
class Drain(Event):
    """The device is wanted elsewhere: it finishes what it holds and gets no more.  No fault."""

    device: str
    reason: str


@dataclass(frozen=True)
class AwayNode:
    """A backend of a node that is drained, and the target that its devices are; "" if no device was ever up."""

    name: str
    backend: str
    target: str = ""


@dataclass(frozen=True)
class Away(Event):
    """All nodes that are only drained, so that an operator may restore them."""

    nodes: tuple[AwayNode, ...]


@dataclass(frozen=True)
class Started(Event):
    """The device began an attempt, with its inputs.  `limit`: seconds that these may take; None: as long as anything of
    the cell may."""

    device: str
    cell: int
    attempt: int
    limit: float | None = None


@dataclass(frozen=True)
class Progress(Event):
    """An attempt that the device holds entered a phase, which may take `limit` seconds."""

    device: str
    cell: int
    attempt: int
    phase: str
    limit: float


@dataclass(frozen=True)
class MeasuredEvent(Event):
    """The child is done with an attempt; the judge has it now, and the device goes on."""

    device: str
    cell: int
    attempt: int


@dataclass(frozen=True)
class Ended(Event):
    """An attempt has its status: judged, or failed before it could be measured."""

    device: str
    cell: int
    attempt: int
    status: Status
    owner: Owner | None = None
    reason: str = ""
    judge_died: bool = False  # while it had the attempt


@dataclass(frozen=True)
class JudgeDown(Event):
    """A judge died on the node of this device."""

    device: str
    reason: str


@dataclass(frozen=True)
class Probed(Event):
    """A probe has ended, well or not."""

    device: str
    probe: int
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class LeaseDone(Event):
    """The device has been through its lease."""

    device: str
    lease: int


@dataclass(frozen=True)
class Submitted(Event):
    """One more round of these cells (the first of each pair), in both arms; without cells: no more rounds come.  Only
    once all cells of the round before have ended."""

    cells: tuple[int, ...]
    round: int = 0


@dataclass(frozen=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True)
class Interrupted(Event):
    """Somebody wants the run to end now."""


# Actions: what to do.


@dataclass(frozen=True)
class Grant:
    """Send this lease to its device.  `coming`: cells that wait behind it, whose inputs may be made meanwhile."""

    lease: Lease
    coming: tuple[int, ...] = ()


@dataclass(frozen=True)
class Conclude:
    """The cell has its one status; where `round` is not 0, that of one more round, which changes no cell's status."""

    cell: int
    attempt: int
    status: Status
    owner: Owner | None
    reason: str
    round: int = 0


@dataclass(frozen=True)
class Start:
    """Start an actor for a device that was added."""

    device: str


@dataclass(frozen=True)
class Replace:
    """Kill the device's actor and start another in its place."""

    device: str
    reason: str


@dataclass(frozen=True)
class Retire:
    """Give the device up for this run, or until it is added again.  `drained`: it was asked back, or was never to be
    had; nothing is wrong with it."""

    device: str
    reason: str
    drained: bool = False


@dataclass(frozen=True)
class ProbeGrant:
    """Have a suspect device run a known-good cell: attempt number `attempt` of `cell`, which has passed on such a
    device; None: a small cell that the plan need not have.  Its end is a `Probed`, and never a result."""

    device: str
    probe: int
    cell: int | None = None
    attempt: int = 1


@dataclass(frozen=True)
class HealthChanged:
    """A device is `suspect`, `quarantined`, or `ready` again (farm.scheduler.health)."""

    device: str
    state: str
    reason: str


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do; or, with a sentence in `stopped`, nothing that can be done now: open cells remain, and
    `farm resume` may run them."""

    stopped: str = ""


Action = Grant | Conclude | Start | Replace | Retire | ProbeGrant | HealthChanged | Finish
