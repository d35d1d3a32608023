"""How devices and cells stand with the scheduler, and what that allows.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from farm import device_pattern
from farm.scheduler.events import Attempt, CellPool, Ended, Lease
from farm.scheduler.health import Health

OUT = ("quarantined", "gone")  # states in which a device is no part of the run


@dataclass(eq=False)
class DeviceState:
    """A device's standing."""

    backend: str
    host: str = ""
    target: str | None = None  # str(Target); None until it has been up: it may be any
    module: str = ""
    state: str = "starting"  # of farm.scheduler.health
    health: Health = field(default_factory=Health)
    probe: int | None = None  # the number of the probe that it runs,
    probe_deadline: float = 0.0  # and by when it must have ended
    lease: Lease | None = None
    running: Attempt | None = None
    since: float = 0.0
    until: float = 0.0  # by when it must show something of its lease,
    awaited: str = ""  # and what
    judged_until: float = 0.0  # by when one of those that are being judged must be
    open: dict[int, Attempt] = field(default_factory=dict)  # granted, neither measured nor ended
    judging: dict[int, Attempt] = field(default_factory=dict)  # measured here, with the judge now
    doubts: list[tuple[Attempt, Ended]] = field(
        default_factory=list
    )  # failed on a suspect: its probe decides whose fault
    drain: str | None = None  # why it was asked back
    reason: str = ""  # why it is gone
    waits: bool = False  # for another run that uses it: nobody counts on it
    kept: bool = False  # by another run, for as long as this one may wait

    @property
    def held(self) -> set[int]:
        """Cells that it was granted and that have not ended."""
        return {*self.open, *self.judging}

    def may_run(self, pool: CellPool) -> bool:
        """Whether cells of the pool may be granted to it, now or when it is up and idle."""
        return self.state not in OUT and self.drain is None and not self.waits and self.serves(pool)

    def serves(self, pool: CellPool) -> bool:
        """Whether it is a device that the pool's cells ask for, as far as it is known."""
        return serves(pool, self.backend, self.target or "")

    def near(self, other: DeviceState, scope: str) -> bool:
        """Whether `other` is within its `scope` (host or module).  The module of one that never was up is not known."""
        if scope == "none" or self.host != other.host:
            return False
        return scope == "host" or other.target is None or (self.module != "" and self.module == other.module)


@dataclass
class CellState:
    """A cell's standing."""

    seconds: float
    deadline: float
    attempts: int = 0  # granted so far: the next one's number is one more
    faults: int = 0  # attempts that ended by a fault of the device or the farm
    deaths: int = 0  # of actors, nodes and judges that had it
    avoid: set[str] = field(default_factory=set)  # devices where one of these happened,
    avoid_hosts: set[str] = field(default_factory=set)  # and their hosts
    done: bool = False


def must_wait(device: DeviceState, host: Iterable[DeviceState], quiet: str) -> bool:
    """Whether a neighbour that wants quiet is at work on the `host`, or one is at work, or about to be, that would
    break the `quiet` which the device wants."""
    return any(
        (d.lease is not None and d.near(device, d.lease.pool.quiet)) or device.near(d, quiet)
        for d in host
        if d is not device and (d.state in ("busy", "starting") or d.probe is not None) and not d.waits
    )


def serves(pool: CellPool, backend: str, target: str) -> bool:
    """Whether a device of this backend and target ("" while it is unknown) is one that the pool's cells ask for."""
    return backend == pool.backend and (not pool.target or not target or _serves(pool.target, target))


@lru_cache(maxsize=4096)
def _serves(pattern: str, target: str) -> bool:
    return device_pattern.serves(pattern, target)
