"""How cells are dealt to worker processes, and what becomes of a job whose worker ended early.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from farm.cell import Cell, Owner, Status

#: A process takes about a second to import torch and Triton: fewer cells than this are not worth another one.
SMALLEST_SLICE = 24
#: A worker that dies before its first cell is started once more; then its cells are the farm's fault.
STARTS = 2


@dataclass(frozen=True)
class CompileJob:
    """Cells of one target for one process, by index; `starts` counts processes that ended before they began a cell, and
    `killed` is the cell that was under way when a process was last killed, or stopped, by somebody."""

    target: str
    cells: tuple[int, ...]
    starts: int = 0
    killed: int | None = None


@dataclass(frozen=True)
class Fate:
    """What follows from the end of a worker: cells that are settled by it, and what is left to do."""

    settled: dict[int, tuple[Status, Owner, str]] = field(default_factory=dict)
    rest: CompileJob | None = None


def split(target: str, cells: Sequence[Cell], workers: int) -> list[CompileJob]:
    """Jobs of about equal size.  Cells that may share a compiled kernel stay together: those of one op, dtypes and all
    dimensions but the first, which is a count of rows and seldom part of a kernel."""
    slices = max(1, min(workers, len(cells) // SMALLEST_SLICE))
    groups: dict[tuple[object, ...], list[int]] = {}
    for cell in cells:
        key = (cell.op, *cell.dtypes.values(), *list(cell.dims.values())[1:])
        groups.setdefault(key, []).append(cell.index)
    jobs: list[list[int]] = [[] for _ in range(slices)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(jobs, key=len).extend(group)
    return [CompileJob(target, tuple(sorted(job))) for job in jobs if job]


def after(
    job: CompileJob, done: set[int], begun: int | None, how: str, timed_out: bool, *, stopped: bool = False
) -> Fate:
    """The fate of `job` when its worker ended (`how`: `signal 6 (SIGABRT)`) with cells `done`, and `begun` under way.

    The cell under way is named and costs nothing but itself.  A worker that ends before its first cell says nothing
    about any cell; nor does a first SIGKILL at a cell, which may be the OOM killer's or an operator's, nor the first
    time that it was `stopped` when its time was over.
    """
    if begun is not None and begun not in done:
        if (stopped or ("SIGKILL" in how and not timed_out)) and job.killed != begun:
            return Fate({}, CompileJob(job.target, tuple(c for c in job.cells if c not in done), killed=begun))
        status = Status.TIMED_OUT if timed_out else Status.CRASHED
        what = how if timed_out else f"the compiling process ended with {how}"
        rest = tuple(c for c in job.cells if c not in done and c != begun)
        return Fate({begun: (status, Owner.KERNEL, what)}, CompileJob(job.target, rest) if rest else None)
    rest = tuple(c for c in job.cells if c not in done)
    if not rest:
        return Fate()
    if done or job.starts + 1 < STARTS:
        return Fate({}, CompileJob(job.target, rest, 0 if done else job.starts + 1, job.killed))
    reason = f"{STARTS} times, the compiling process ended with {how} before the first cell began"
    return Fate(dict.fromkeys(rest, (Status.INFRA_ERROR, Owner.INFRA, reason)))
