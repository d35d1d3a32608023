"""What a run on devices waits for: which run has them, and when both are estimated to end.  Pure.

The forge's list of runs says who waits and who runs, and how long earlier ones took; a store on the same host knows
more of the run that goes now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from statistics import median
from typing import Any

_MIRROR = re.compile(r"pull-request/([1-9][0-9]{0,9})")
WAITS = ("queued", "waiting", "requested", "pending")
LAST = 10  # completed runs whose time is asked
USUAL = ("success", "failure")  # conclusions of runs that were not broken off


@dataclass(frozen=True)
class Job:
    """One run of the workflow that uses devices.  at: when it started, or was queued; took: seconds, None while it is
    not over."""

    number: int  # of the pull request, 0 for none
    state: str  # waits, runs or over
    at: datetime
    took: float | None = None
    usual: bool = False


@dataclass(frozen=True)
class Progress:
    """What a store or a registry says of the run that goes on: its id, and when it is estimated to end, None where
    nothing says."""

    run: str
    until: datetime | None


def jobs(found: Sequence[Mapping[str, Any]]) -> list[Job]:
    """From the forge's list; what is not as it should be is left out."""
    out = []
    for run in found:
        created = _time(run.get("created_at"))
        started = _time(run.get("run_started_at")) or created
        if created is None or started is None:
            continue
        named = _MIRROR.fullmatch(str(run.get("head_branch")))
        number, status = int(named[1]) if named else 0, str(run.get("status"))
        if status == "completed":
            over = _time(run.get("updated_at"))
            took = (over - started).total_seconds() if over else None
            out.append(Job(number, "over", started, took, run.get("conclusion") in USUAL))
        else:
            waits = status in WAITS
            out.append(Job(number, "waits" if waits else "runs", created if waits else started))
    return out


def words(found: Sequence[Job], number: int, now: datetime, progress: Progress | None = None) -> str:
    """A sentence about the run of pull request `number`: what it waits for, or since when it goes, and how long."""
    times = [j.took for j in found if j.state == "over" and j.usual and j.took][:LAST]
    usual = timedelta(seconds=median(times)) if times else None
    others = [j for j in found if j.number != number]
    running = sorted((j for j in others if j.state == "runs"), key=lambda j: j.at)
    own = next((j for j in found if j.number == number and j.state == "runs"), None)
    if own is not None:
        until = _later(own.at + usual if usual else None, now)
        return f"The run on a device goes since {_clock(own.at)}{_end(until)}."
    before = [j for j in others if j.state == "waits"]
    mine = next((j.at for j in found if j.number == number and j.state == "waits"), now)
    before = [j for j in before if j.at < mine]
    if not running:
        until = _later(now + usual if usual else None, now)
        ahead = f"behind {len(before)} others" if before else "first in the queue"
        return f"The run waits for a device, {ahead}{_end(until)}."
    first = running[0]
    until = progress.until if progress and progress.until else first.at + usual if usual else None
    until = _later(until, now)
    held = f"pull request {first.number}" if first.number else "another run"
    held += f" (run {progress.run})" if progress else ""
    more = f" and {len(running) - 1} more" if len(running) > 1 else ""
    text = f"The run waits for a device: {held}{more} has it since {_clock(first.at)}{_end(until)}"
    if before:
        text += f"; {len(before)} more before this one"
    if until and usual:
        text += f"; this one is estimated to end at {_clock(until + usual * (len(before) + 1))}"
    return f"{text}."


def of_store(run: str, created: datetime, now: datetime, planned: int, done: int) -> Progress:
    """The run that a store is written by: as fast as it was until now."""
    if not 0 < done <= planned or now <= created:
        return Progress(run, None)
    return Progress(run, now + (now - created) * ((planned - done) / done))


def of_registry(runs: Mapping[str, Mapping[str, Any]]) -> Progress | None:
    """The run that has devices of a cluster for the longest time, as the cluster's registry knows it."""
    held = [(min(d["since"] for d in run["devices"].values()), run) for run in runs.values() if run["devices"]]
    if not held:
        return None
    _, first = min(held, key=lambda entry: entry[0])
    return Progress(f"{first['run']} of {first['user']}", None)


def _later(until: datetime | None, now: datetime) -> datetime | None:
    """None for an end that is over already: it takes longer than usual."""
    return until if until and until > now else None


def _end(until: datetime | None) -> str:
    return f", estimated end {_clock(until)}" if until else ", with no estimate of its end"


def _clock(at: datetime) -> str:
    return at.astimezone(timezone.utc).strftime("%H:%M UTC")


def _time(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
