"""What a device reported while a cell was timed, and whether the cell's time may count.  Pure.

A backend's reader returns `Sample`s (cheap, many) and `Counters` (once before, once after); `summarize` reduces them to
one small mapping.  Three rules apply:

    throttled   The hardware reduced its clock (`SLOWED`) in any sample.  The power limit counts only if it costs more
                than usual, because a big part under full load always runs at its limit.  But if a block at the limit
                has an SM clock more than `POWER_CAP_DROP` below that of earlier blocks at the limit in this run, of the
                same op and shape, then the device was slower than for the cells that it is compared with.
    disturbed   Another process was on the device, an uncorrected memory error was counted, or the driver reported a
                critical error (Xid).
    unknown     A value that cannot be read is None, never 0 or an empty list, and has no effect.

Idle clocks, clocks that an operator has set, and clocks limited by a sync group are reported, but count as neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from farm.backends.api import PAUSES, Counters, Process, Sample

#: Reasons for a reduced clock that do not depend on the work.
SLOWED = frozenset({"hw_slowdown", "hw_thermal", "sw_thermal", "power_brake"})
POWER_CAP = "sw_power_cap"
#: See above.  10 % is a choice, not a measurement: nvbench discards below 75 % of the default clock, which would accept
#: a fifth less speed; with a much smaller drop, a kernel that draws more power would be marked for that.
POWER_CAP_DROP = 0.10
#: Reasons that have no effect on the work.
HARMLESS = frozenset({"idle"})
WORDS = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal": "hardware thermal slowdown",
    "sw_thermal": "software thermal slowdown",
    "power_brake": "external power brake",
    POWER_CAP: "power limit",
    "clocks_set": "clocks set by an operator",
    "sync_boost": "clocks limited by the sync group",
}
#: After this many cells in a row for which repeating did not help, cells are only marked, until one is fine at once.
PATIENCE = 3
#: Raw samples of a cell that are kept; of a longer block every n-th.
MAX_KEPT = 200
KEPT = ("at_s", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w", "throttle")


def summarize(
    samples: Sequence[Sample], before: Counters, after: Counters, own: Collection[int], usual_mhz: float | None = None
) -> dict[str, Any]:
    """The summary of one timed block, as plain data.

    `own`: pids that belong to the child; `usual_mhz`: the SM clock of earlier blocks of this `likeness` at the power
    limit, None if there was none.  Of clocks, temperature and power: [least, median, most].
    """
    reasons = [s.throttle for s in samples if s.throttle is not None]
    seen = sorted({r for some in reasons for r in some} - HARMLESS)
    clock = _spread(s.sm_clock_mhz for s in samples)
    causes = [r for r in seen if r in SLOWED]
    if POWER_CAP in seen and clock and usual_mhz is not None and clock[1] < (1 - POWER_CAP_DROP) * usual_mhz:
        causes.append(POWER_CAP)
    foreign = strangers(after.processes, own)
    ecc = _grown(before.ecc_uncorrected, after.ecc_uncorrected)
    xid = None if after.xid is None else list(after.xid[len(before.xid or ()) :])
    return {
        "samples": len(samples),
        "sm_clock_mhz": clock,
        "mem_clock_mhz": _spread(s.mem_clock_mhz for s in samples),
        "temperature_c": _spread(s.temperature_c for s in samples),
        "power_w": _spread(s.power_w for s in samples),
        "throttle": seen if reasons else None,
        "ecc_uncorrected": ecc,
        "xid": xid,
        "foreign": None if foreign is None else [_named(p) for p in foreign],
        "throttled": bool(causes),
        "throttled_by": ", ".join(WORDS.get(c, c) for c in causes),
        "disturbed": _disturbance(foreign, ecc, xid),
    }


def likeness(cell: Mapping[str, Any]) -> str:
    """Cells of one likeness are those that a reader lays side by side: providers and modes of one problem."""
    return repr(
        [
            cell[k] if k == "op" or k == "operation" else sorted(dict(cell[k]).items())
            for k in ("op", "operation", "dims", "dtypes")
        ]
    )


def strangers(processes: Sequence[Process] | None, own: Collection[int]) -> list[Process] | None:
    """Those that are not `own`; None where that cannot be told.

    In a container the driver may count processes by the host's pids, or hide them.  Then ours, which holds a context,
    is not among them, and nothing is known of the others either.
    """
    if processes is None or not any(p.pid in own for p in processes):
        return None
    return [p for p in processes if p.pid not in own]


def _named(process: Process) -> str:
    return f"{process.name} (pid {process.pid})" if process.name else f"pid {process.pid}"


def _disturbance(foreign: list[Process] | None, ecc: int | None, xid: list[int] | None) -> str | None:
    told = []
    if foreign:
        told.append("another process on the device: " + ", ".join(_named(p) for p in foreign))
    if ecc:
        told.append(f"{ecc} uncorrected memory error{'s' if ecc > 1 else ''}")
    if xid:
        told.append("the driver reported Xid " + ", ".join(str(x) for x in xid))
    return "; ".join(told) or None


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _spread(values: Any) -> list[float] | None:
    ordered = sorted(v for v in values if v is not None)
    if not ordered:
        return None
    n = len(ordered)
    return [ordered[0], (ordered[(n - 1) // 2] + ordered[n // 2]) / 2, ordered[-1]]


def complaint(summary: Mapping[str, Any]) -> str:
    """Why a block's time should not count, in a few words; "" if it may."""
    parts = [f"throttled ({summary['throttled_by']})"] if summary["throttled"] else []
    if summary["disturbed"]:
        parts.append(f"disturbed ({summary['disturbed']})")
    return ", ".join(parts)


def again(
    summary: Mapping[str, Any] | None, tries: int, hopeless: int, pauses: Sequence[float] = PAUSES
) -> float | None:
    """Seconds to wait before the block is timed once more, or None to leave it at that.

    `tries`: how often it was timed; `hopeless`: cells in a row before this one that stayed bad whatever was tried.
    """
    if summary is None or not complaint(summary) or hopeless >= PATIENCE or tries > len(pauses):
        return None
    return pauses[tries - 1]


def flag(complaints: Sequence[str], last: str) -> str | None:
    """The flag of a cell: `complaints` about the discarded tries, `last` about the try that counts."""
    times = f"timed {len(complaints) + 1} times"
    if last:
        return f"{last} while timed" + (f" ({times})" if complaints else "")
    return f"{times}; the previous try was {complaints[-1]}" if complaints else None


def raw(samples: Sequence[Sample], begun: float) -> list[list[Any]]:
    """Samples as rows of `KEPT`, seconds counted from `begun`; at most `MAX_KEPT` and the last."""
    step = max(1, -(-len(samples) // MAX_KEPT))
    kept = [*samples[:-1:step], *samples[-1:]]
    return [
        [
            round(s.at - begun, 4),
            s.sm_clock_mhz,
            s.mem_clock_mhz,
            s.temperature_c,
            s.power_w,
            None if s.throttle is None else ",".join(s.throttle),
        ]
        for s in kept
    ]


def columns(summary: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row's columns: median SM clock, highest temperature, median power, and every reason for a lower clock."""
    s = summary or {}

    def part(name: str, place: int) -> float | None:
        found = s.get(name)
        return found[place] if found else None

    return {
        "sm_clock_mhz": part("sm_clock_mhz", 1),
        "temperature_c": part("temperature_c", 2),
        "power_w": part("power_w", 1),
        "throttle": ",".join(s.get("throttle") or ()),
    }


def quality(found: str, summary: Mapping[str, Any] | None) -> str:
    """The timing quality of a block whose samples alone say `found`: a slower device is `throttled`, company is
    `noisy`.  What is impossible stays so: no clock is an excuse for a number that cannot be."""
    if summary is None or found in ("impossible", "none"):
        return found
    if summary.get("throttled"):
        return "throttled"
    return "noisy" if summary.get("disturbed") and found in ("ok", "launch_bound") else found


def own_tree(root: int, parent_of: Callable[[int], int | None], pids: Collection[int]) -> set[int]:
    """Those of `pids` that are `root` or descend from it; `root` is always among them."""
    mine = {root}
    for pid in pids:
        at: int | None = pid
        for _ in range(64):
            if at is None or at <= 1 or at in mine:
                break
            at = parent_of(at)
        if at in mine:
            mine.add(pid)
    return mine


#: Device memory that a killed child may leave in use: what a driver keeps differs by some MiB from one look to another.
MEMORY_SLACK_MIB = 64.0


def memory_held(baseline_mib: float | None, used_mib: float | None) -> float | None:
    """MiB in use beyond the baseline and the slack, or None if all is well or cannot be told."""
    if baseline_mib is None or used_mib is None or used_mib <= baseline_mib + MEMORY_SLACK_MIB:
        return None
    return used_mib - baseline_mib
