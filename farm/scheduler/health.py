"""How far a device, its node and its judges can be trusted with work.  Pure.

    starting     its actor is about to open it
    ready        it may be granted work; `busy` while it has a lease
    suspect      it had SUSPECT_AFTER faults in a row, of any owner but the kernel: no work until it has passed a probe,
                 which is a known-good cell
    quarantined  it has failed MAX_PROBES probes in a row: its cells are run elsewhere; after a while it is started and
                 probed again
    gone         its node has left, it was drained, or its actor reported that another try is pointless

A success ends a row of faults, and a row is halved for every HEAL_SECONDS without a fault: three kills in a night do
not make a device suspect.  A device that dies, or cannot even start, while it is suspect has failed a probe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SUSPECT_AFTER = 2  # faults in a row
MAX_PROBES = 2  # failed in a row
HEAL_SECONDS = 600.0
QUARANTINE_SECONDS = 600.0  # the first; each further one of a device takes twice as long
PROBE_SECONDS = 300.0  # for a probe whose cell the plan does not have
ALONE_AFTER = 2  # deaths in whose presence a cell was, until it runs alone and last
MAX_DEATHS = 3  # and until it is given up
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0  # before a judge is replaced


@dataclass
class Health:
    """The record of one device."""

    faults: int = 0  # in a row
    last: float = 0.0  # when the last of them was
    suspect: bool = False
    failed: int = 0  # probes in a row
    quarantines: int = 0
    until: float = 0.0  # end of the quarantine
    reason: str = ""  # of the last fault

    def fault(self, at: float, reason: str) -> bool:
        """Count a fault; whether it makes the device suspect."""
        self.faults = _healed(self.faults, at - self.last) + 1
        self.last, self.reason = at, reason
        return self.faults >= SUSPECT_AFTER and self.doubt(reason)

    def doubt(self, reason: str) -> bool:
        """It must prove itself; whether that is new."""
        new, self.suspect, self.reason = not self.suspect, True, reason
        return new

    def success(self) -> None:
        """It has finished a cell.  A suspect is not cleared by what it had begun before."""
        if not self.suspect:
            self.faults = 0

    def passed(self) -> None:
        """It has passed a probe."""
        self.faults, self.failed, self.suspect = 0, 0, False

    def fail(self, at: float, reason: str) -> bool:
        """Count a failed probe; whether the device is quarantined by it."""
        self.failed, self.reason, self.suspect = self.failed + 1, reason, True
        if self.failed < MAX_PROBES:
            return False
        self.until = at + QUARANTINE_SECONDS * 2.0**self.quarantines
        self.quarantines += 1
        self.failed = MAX_PROBES - 1  # after the quarantine one more is enough
        return True


@dataclass
class NodeHealth:
    """The record of one node: different parts of it (devices, deaths of judges) that failed in a row, with no success
    on any of its devices in between."""

    parts: set[str] = field(default_factory=set)
    last: float = 0.0

    def fault(self, at: float, part: str) -> bool:
        """Count a fault; whether all devices of the node have to prove themselves.  One bad device is no bad node."""
        if at - self.last >= HEAL_SECONDS:
            self.parts.clear()
        self.parts.add(part)
        self.last = at
        if len(self.parts) < SUSPECT_AFTER:
            return False
        self.parts.clear()
        return True

    def success(self) -> None:
        """One of its devices has finished a cell."""
        self.parts.clear()


@dataclass
class JudgeHealth:
    """The record of one judge.  It is replaced without bound, after a pause that doubles with each death in a row."""

    deaths: int = 0
    last: float = 0.0

    def died(self, at: float) -> float:
        """Count a death; how many seconds to wait before it is replaced."""
        self.deaths = _healed(self.deaths, at - self.last)
        self.last = at
        self.deaths += 1
        return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self.deaths - 1, 10))


def _healed(count: int, seconds: float) -> int:
    """What is left of a row of faults after `seconds` without one."""
    return count >> min(32, max(0, int(seconds / HEAL_SECONDS)))
