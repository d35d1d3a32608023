"""The progress of a run: one live line per backend on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from farm.cell import DEADLY, FARM_FAULTS, FINDINGS, Cell, Status, deadly
from farm.cli.text import counted, duration, printable
from farm.store import known
from farm.store.results import doubts, place

PLAIN_SECONDS = 5.0
IDLE_SECONDS = 60.0  # the standing again where nothing was done since: a reader sees that the run is alive
MAX_FINDINGS = 10
LONGEST_FINDING = 400  # characters
_NO_MODULE = re.compile(r"No module named '(\w+)'")
_FAULTS = {s.value for s in FARM_FAULTS}
_BAD = {s.value for s in FINDINGS | FARM_FAULTS}


def needs_a_look(row: Mapping[str, Any], strict_peers: bool) -> bool:
    """Whether a row is an infrastructure failure, or a finding of a subject (with `strict_peers`, also of a peer)."""
    status = Status(row["status"])
    return status in FARM_FAULTS or (status in FINDINGS and (strict_peers or row["role"] == "subject"))


def told(row: Mapping[str, Any]) -> str:
    """`inaccurate: cpu/rms_norm/...: why`: one failed cell."""
    return f"{row['status']}: {row['cell_id']}: {row['reason']}"


class Plain:
    """Lines for a log: every failure as it happens (each fault in full once), and the standing every few seconds."""

    def __init__(self, cells: Iterable[Cell], out: TextIO | None = None):
        self.out = out or sys.stderr
        self.planned = Counter(c.backend for c in cells)
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._ran: Counter[str] = Counter()
        self._eta: Mapping[str, float] = {}
        self._last = time.monotonic()
        self._printed: list[str] = []
        self._faults: dict[tuple[str, ...], str] = {}  # of which a cell was printed in full, and which
        self._latest: tuple[str, ...] = ()  # the fault of the line before
        self._shown: Counter[str] = Counter()  # `done` when the standing was printed last

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._printed != [self.standing(b) for b in self.planned]:
            self._standing()

    def line(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def device(self, text: str) -> None:
        self.line(f"  {printable(text)}")

    def cell(self, row: Mapping[str, Any]) -> None:
        self.done[row["backend"]] += 1
        self._ran[row["backend"]] += row["status"] != Status.SKIPPED.value
        if row["status"] in _BAD:
            self.failed[row["backend"]] += 1
            text = f"  {printable(self._finding(row))}"
            self.line(text if len(text) <= LONGEST_FINDING else f"{text[: LONGEST_FINDING - 4]} ...")
        self.refresh()

    def _finding(self, row: Mapping[str, Any]) -> str:
        """One failed cell; of a fault that was already printed, the name of the cell and the numbers that are its own
        are enough, and where another fault was printed since, the cell of which it is the same."""
        from farm.report import folded_failures  # only where something failed

        fault = folded_failures.key(row)
        before, self._latest = self._latest, fault
        if row["reason"] and fault in self._faults:
            own = folded_failures.fault(row)[1]
            as_there = "" if fault == before else f" as in {self._faults[fault]}"
            return f"{row['status']}: {row['cell_id']}: the same{as_there}{f', {own}' if own else ''}"
        self._faults[fault] = row["cell_id"]
        return told(row)

    def eta(self, seconds: Mapping[str, float]) -> None:
        self._eta = seconds
        self.refresh()

    def refresh(self) -> None:
        waited = time.monotonic() - self._last
        if waited >= PLAIN_SECONDS and (waited >= IDLE_SECONDS or self.done != self._shown):
            self._standing()

    def standing(self, backend: str) -> str:
        """`cpu: 40 of 102 done, 2 failed, about 12 s left`.  The time left is omitted before the first result of a
        device, because until then the estimate has no data from this host."""
        done, planned = self.done[backend], self.planned[backend]
        text = f"{backend}: {done} of {planned} done, {self.failed[backend]} failed"
        left = self._eta.get(backend)
        return f"{text}, about {duration(left)} left" if left and self._ran[backend] and done < planned else text

    def _standing(self) -> None:
        self._last, self._shown = time.monotonic(), Counter(self.done)
        self._printed = [self.standing(b) for b in self.planned]
        for text in self._printed:
            self.line(f"  {text}")


class Live(Plain):
    """One line per backend with a bar, redrawn in place; findings scroll above."""

    def __init__(self, cells: Iterable[Cell], out: TextIO | None = None):
        super().__init__(cells, out)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            BarColumn(24), TextColumn("{task.description}"), console=Console(file=self.out), transient=True
        )
        self._tasks = {b: self._progress.add_task(self.standing(b), total=n) for b, n in self.planned.items()}

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def refresh(self) -> None:
        for backend, task in self._tasks.items():
            self._progress.update(task, completed=self.done[backend], description=self.standing(backend))


def summary(rows: Sequence[Mapping[str, Any]], seconds: float) -> list[str]:
    """The last lines of a run: counts per backend (or target) and evidence, which add up to the planned cells."""
    out = []
    groups: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        groups.setdefault((place(row), row["evidence"]), Counter())[row["status"]] += 1
    for (where, evidence), seen in sorted(groups.items()):
        parts = ", ".join(f"{seen[s.value]} {s.value}" for s in Status if seen[s.value])
        out.append(f"{where} ({evidence or 'not run'}): {parts}")
    dead = sum(map(deadly, rows))
    if dead:
        out.append(f"of these infra_error: {counted(dead, 'cell')} given up because {DEADLY} each time")
    if doubted := doubts(rows):
        from farm.report.run_verdict import doubt  # costs more to import than most runs need

        out.append(printable(doubt(doubted)))
    total = sum(sum(c.values()) for c in groups.values())
    out.append(f"{len(rows)} planned = {total} accounted for, in {duration(seconds)}")
    return out


def unsupported(rows: Iterable[Mapping[str, Any]], most: int = 3) -> list[str]:
    """Why cells of subjects were unsupported, the most frequent reasons first: `4 unsupported: mine: takes no offset`.

    They are not findings, but the author of a kernel should see what was not tested without opening the page.
    """
    seen = Counter(
        (r["provider"], r["reason"]) for r in rows if r["status"] == Status.UNSUPPORTED.value and r["role"] == "subject"
    )
    lines = [f"{n} unsupported: {provider}: {reason}" for (provider, reason), n in seen.most_common(most)]
    more = len(seen) - most
    return [*lines, f"and {counted(more, 'more reason')}, listed on the run's page"] if more > 0 else lines


def not_sent(rows: Iterable[Mapping[str, Any]], here: Callable[[str], bool]) -> list[str]:
    """Hints for providers whose module imports one that lies beside it and was not sent to the devices.  `here`:
    whether the working folder has a module of this name."""
    reasons = {(r["provider"], m[1]) for r in rows if (m := _NO_MODULE.search(r["reason"] or ""))}
    return [
        f"{printable(module)} is in this folder, but only the provider's own module is sent to the devices: put both "
        f"into a package, and name {printable(provider)} as package.module:function"
        for provider, module in sorted(reasons)
        if here(module)
    ]


def finding_lines(bad: Sequence[Mapping[str, Any]], run: Path | None) -> list[str]:
    """The cells that need attention, each fault once, with its first cell's log in `run`, the folder of their run."""
    from farm.report import folded_failures  # only where something failed

    out = []
    for text, first in folded_failures.lines(bad, MAX_FINDINGS):
        indent = len(text) - len(text.lstrip())
        out.append(f"  {' ' * indent}{printable(text[indent:])}"[:400])
        if run is not None and first is not None and first["log"]:
            out.append(f"    log: {run / first['log']}")
    return out


def print_findings(bad: Sequence[Mapping[str, Any]], run: Path) -> None:
    """List the cells that need attention; `run` is the folder of their run."""
    print(f"{counted(len(bad), 'cell')} {'needs' if len(bad) == 1 else 'need'} attention:", file=sys.stderr)
    for line in finding_lines(bad, run):
        print(line, file=sys.stderr)


def ending(outcome: Any, code: int, strict_peers: bool) -> str:
    """The last line of a run: its verdict and exit code in words.  `outcome`: a `farm.coordinator.RunOutcome`."""
    rows = outcome.rows
    if outcome.by_finding:
        words = "stopped at the first finding (-x)"
    elif outcome.interrupted:
        return interrupted(code)
    elif outcome.verdict == "farm_fault":
        words = f"infrastructure failures in {counted(sum(r['status'] in _FAULTS for r in rows), 'cell')}"
    elif outcome.verdict == "findings":
        covered = known.covered(outcome.known)
        failed = sum(needs_a_look(r, strict_peers) and r["cell_id"] not in covered for r in rows)
        stale = len(known.fixed(outcome.known))
        words = " and ".join(
            [f"findings in {counted(failed, 'cell')}"] * bool(failed)
            + [f"{counted(stale, 'known failure')} that {'is' if stale == 1 else 'are'} fixed"] * bool(stale)
        )
    elif outcome.verdict == "inconclusive":
        words = f"inconclusive, because {_unproven(rows)}"
    else:
        words = "passed" if code == 0 else "passed, but not everything could be written"
    return f"{words}: exit {code}"


def interrupted(code: int) -> str:
    """The last line of a run that was interrupted."""
    return f"interrupted: exit {code}"


def broken_off(code: int) -> str:
    """The last line of a run that an error of the store or of the cluster broke off."""
    return f"broken off: exit {code}"


def without_page(code: int) -> str:
    """The last line of a complete run whose process was ended before it could print one."""
    verdict = {0: "passed", 1: "findings", 4: "inconclusive"}.get(code, "infrastructure failures")
    return f"{verdict}, without a page: exit {code}"


def _unproven(rows: Sequence[Mapping[str, Any]]) -> str:
    """Why a run without findings proves nothing."""
    if all(r["status"] == Status.SKIPPED.value for r in rows):
        return "the matrices exclude every cell, so nothing ran"
    proven: dict[str, bool] = {}
    roles = {r["role"] for r in rows if r["status"] != Status.SKIPPED.value}
    for r in rows:
        if r["status"] != Status.SKIPPED.value and r["role"] == ("subject" if "subject" in roles else "peer"):
            name = f"{r['provider']} on {place(r)}"
            proven[name] = proven.get(name, False) or r["status"] != Status.UNSUPPORTED.value
    idle = [name for name, any_proof in sorted(proven.items()) if not any_proof]
    return f"every cell of {', '.join(idle[:5])}{', ...' if len(idle) > 5 else ''} is unsupported"
