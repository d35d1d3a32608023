"""Measuring processes as their parent sees them: started, watched, ended at their deadline, resumed after a crash.

What a process found is in its events file (`benchmarks.child`).  A process that dies, or tells nothing for too long,
costs the subject that it was at; a fresh one goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import case_of
from farm.deadline import Deadline
from farm.process.group import ProcessGroup

Event = dict[str, Any]
PROGRAM = (sys.executable, "-m", "benchmarks.child")
#: No fact for so long, with imports and a first compilation in it, and the process is taken for hung.
IDLE_S = 150.0
#: A process ends by itself so long before its parent would end it.
GRACE_S = 3.0
#: Below that no process is started: its imports alone take longer.
LEAST_S = 10.0
RESTARTS = 12
POLL_S = 0.2


def results(events: Iterable[Event]) -> dict[tuple[str, str], Event]:
    """(case id, subject) -> its result, the last one if there are several."""
    return {(e["case"], e["subject"]): e for e in events if e["event"] == "result"}


def unfinished(events: Sequence[Event]) -> Event | None:
    """The last `begin` that nothing came of: what the process was at when it ended."""
    for event in reversed(events):
        if event["event"] in ("result", "roof"):
            return None
        if event["event"] == "begin":
            return event
    return None


def left(items: Sequence[Mapping[str, Any]], events: Sequence[Event]) -> list[dict[str, Any]]:
    """The items that still have subjects without a result, with those alone."""
    done = results(events)
    out = []
    for item in items:
        case = case_of(item["case"]).id
        subjects = [s for s in item["subjects"] if (case, s) not in done]
        if subjects:
            out.append({**item, "subjects": subjects})
    return out


def not_reached(items: Sequence[Mapping[str, Any]], events: Sequence[Event]) -> list[tuple[str, str]]:
    """(case id, subject) of everything planned that has no result."""
    return [(case_of(i["case"]).id, s) for i in left(items, events) for s in i["subjects"]]


def verdicts(blamed: Event, items: Sequence[Mapping[str, Any]], why: str, idle_s: float) -> list[Event]:
    """The results of what a process was at when it ended without a word."""
    status = "timed_out" if why == "idle" else "crashed"
    reason = f"told nothing for {idle_s:g} s" if why == "idle" else f"the process ended with {why}"
    names = [blamed["subject"]]
    if names == ["inputs"]:
        names = next((i["subjects"] for i in items if case_of(i["case"]).id == blamed["case"]), [])
        reason += " while inputs and reference were made"
    return [{**blamed, "event": "result", "subject": n, "status": status, "reason": reason} for n in names]


def ended(events: Sequence[Event]) -> Event | None:
    """The process's own last word, if it had one."""
    return next((e for e in reversed(events) if e["event"] == "end"), None)


def supervise(
    plan: Mapping[str, Any],
    seconds: float,
    *,
    program: Sequence[str] = PROGRAM,
    idle_s: float = IDLE_S,
    tick: Callable[[list[Event]], None] = lambda events: None,
) -> list[Event]:
    """Every event of the plan's processes, each with the number of its `process`; returns within about `seconds`.

    A subject at which a process died or hung gets a result here (`crashed`, `timed_out`) and is not tried again.  Where
    it was at a case's inputs, that is every subject of it; where at its roof, the case goes on without.  `tick` is
    called now and then with all events.
    """
    deadline = Deadline(seconds)
    items = list(plan["items"])
    events: list[Event] = []
    for number in range(1, RESTARTS + 2):
        if deadline.remaining < LEAST_S or not items:
            break
        part = {**plan, "items": items, "until": time.time() + deadline.remaining - GRACE_S}
        before = list(events)
        fresh, why = _one(part, deadline, program, idle_s, lambda new, before=before: tick([*before, *new]))  # type: ignore[misc]
        blamed = None if ended(fresh) or why == "deadline" else unfinished(fresh)
        if blamed:
            fresh += verdicts(blamed, items, why, idle_s)
        events += [{**e, "process": number} for e in fresh]
        if ended(fresh) or why == "deadline":
            break
        if not results(fresh):
            events.append({"event": "end", "why": "failed", "reason": f"a process told nothing and ended with {why}"})
            break
        roofless = {case for case, subject in results(events) if subject == "roof"}
        items = [{**i, "roof": i["roof"] and case_of(i["case"]).id not in roofless} for i in left(items, events)]
    return events


def together(plans: Sequence[Mapping[str, Any]], seconds: float, *, program: Sequence[str] = PROGRAM) -> list[Event]:
    """Several processes at once, none resumed: to fill the compilers' caches.  All are ended after `seconds`."""
    deadline = Deadline(seconds)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        running = []
        try:
            for n, plan in enumerate(plans):
                part = {**plan, "until": time.time() + deadline.remaining - GRACE_S}
                running.append(_start(part, Path(folder, str(n)), program, quiet=True))
            while any(p.alive for p in running) and not deadline.expired:
                time.sleep(POLL_S)
        finally:
            for process in running:
                process.close()
        return [e for n in range(len(running)) for e in read(Path(folder, str(n), "events"))]


def read(path: Path) -> list[Event]:
    """The events of a file; a last line that is being written is left for the next time."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except OSError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return events


def _one(
    plan: Mapping[str, Any],
    deadline: Deadline,
    program: Sequence[str],
    idle_s: float,
    tick: Callable[[list[Event]], None],
) -> tuple[list[Event], str]:
    """(events, why it ended: "exit code N", "signal N", "idle" or "deadline")."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        path = Path(folder, "one", "events")
        process = _start(plan, path.parent, program)
        size, since, why = -1, time.monotonic(), ""
        try:
            while process.alive:
                time.sleep(POLL_S)
                now = path.stat().st_size if path.exists() else 0
                if now != size:
                    size, since = now, time.monotonic()
                    tick(read(path))
                if deadline.expired:
                    why = "deadline"
                    break
                if time.monotonic() - since > idle_s:
                    why = "idle"
                    break
        finally:
            process.close()
        code = process.code or 0
        return read(path), why or (f"signal {-code}" if code < 0 else f"exit code {code}")


def _start(plan: Mapping[str, Any], folder: Path, program: Sequence[str], *, quiet: bool = False) -> ProcessGroup:
    folder.mkdir(parents=True)
    (folder / "plan").write_text(json.dumps(plan), encoding="utf-8")
    sink = subprocess.DEVNULL if quiet else None
    return ProcessGroup([*program, str(folder / "plan"), str(folder / "events")], stdout=sink, stderr=sink)
