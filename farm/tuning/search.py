"""Which launches a round of a search tries, and which of those that were measured counts.  Pure.

Round 0 measures `auto` alone, which also says what device there is.  Round 1 tries seeds: what `auto` takes, stated in
full, the modes' rules, the launches of the nearest shapes of the table, then some of a wide choice.  Every later round
tries the neighbours of the best, each different in one setting, and seeds that are left.  A last round measures the
best few and `auto` again, by the standard policy, and only its times count.  What order means nothing for is ordered by
a hash of the seed, so that the same command tries the same.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import yaml

from farm.cell import Quality, Status

AUTO = "auto"
#: A few samples, for all rounds but the last: enough to tell 5 % apart (the standard policy: at least 20, up to 1 s).
QUICK = {"min_samples": 5, "max_samples": 20, "max_seconds": 0.05}
#: So much faster than `auto` must a launch be to be preferred; the noise of one process is about 1 % on an H200.
MARGIN = 1.01
#: A kernel whose best is so many times slower than the best of all is not tried on.
HOPELESS = 1.5
#: So many refused launches of a kernel, and none that was accepted, are enough.
ENOUGH_REFUSED = 4
#: How many are measured by the standard policy, and how many have their neighbours tried.
FINALISTS, PARENTS = 3, 2
MOST_ROUNDS = 12
#: So many rounds in a row that find nothing faster are the last.
PATIENCE = 2
#: Timings that are a speed.
SPEEDS = frozenset(q.value for q in (Quality.OK, Quality.NOISY, Quality.LAUNCH_BOUND))


@dataclass(frozen=True)
class Task:
    """One thing to tune."""

    op: str
    operation: str
    dtype: str
    rows: int
    hidden: int

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.hidden}"

    @property
    def name(self) -> str:
        return f"{self.op} {self.operation} {self.shape} {self.dtype}"


@dataclass(frozen=True)
class Tried:
    """A launch that was measured.  `us`: the median, None where it was refused; `why`: because of what; `judged`: its
    answers were found right (on the CPU nothing is timed); `row`: its cell's."""

    launch: str
    us: float | None
    why: str = ""
    judged: bool = False
    row: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def kernel(self) -> str:
        return self.launch.partition("+")[0]


Found = Mapping[Task, Mapping[str, Tried]]


class Space(Protocol):
    """What there is to try: launches as text."""

    def first(self, task: Task) -> Sequence[str]:
        """Where a search starts, the most promising first."""

    def wide(self, task: Task) -> Sequence[str]:
        """A wide choice besides."""

    def around(self, task: Task, launch: str) -> Sequence[str]:
        """What differs from `launch` in one setting."""


def task_of(row: Mapping[str, Any]) -> Task:
    """The task of a row."""
    dims = json.loads(str(row.get("dims") or "{}"))
    op, operation, dtype = (str(row.get(name) or "") for name in ("op", "operation", "dtype"))
    return Task(op, operation, dtype, int(dims.get("rows", 0)), int(dims.get("hidden", 0)))


def tried(row: Mapping[str, Any]) -> Tried | None:
    """What a row says of its launch; None of a cell that did not run.  Refused is all that the farm does not find
    right, what it has no time of, and what it takes for impossible: faster than the roof, or timed by a clock that is
    not the device's."""
    status, launch = str(row.get("status")), str(row.get("mode"))
    if status in (Status.LOST.value, Status.INFRA_ERROR.value, Status.SKIPPED.value):
        return None
    if status != Status.PASSED.value:
        return Tried(launch, None, f"{status}: {row.get('reason') or ''}"[:300], False, row)
    quality, us = str(row.get("timing_quality") or Quality.NONE.value), row.get("time_us_p50")
    if us is None or quality == Quality.NONE.value:
        return Tried(launch, None, "not timed", True, row)
    if quality not in SPEEDS:
        flags = [f for f in json.loads(str(row.get("flags") or "[]")) if str(f).startswith(quality)]
        return Tried(launch, None, str(flags[0] if flags else quality)[:300], True, row)
    return Tried(launch, float(us), "", True, row)


def found(rows: Iterable[Mapping[str, Any]]) -> dict[Task, dict[str, Tried]]:
    """Task -> launch -> what was measured."""
    out: dict[Task, dict[str, Tried]] = {}
    for row in rows:
        one = tried(row)
        if one is not None:
            out.setdefault(task_of(row), {})[one.launch] = one
    return out


def together(rounds: Iterable[Found]) -> dict[Task, dict[str, Tried]]:
    """All rounds' outcomes; a later one counts."""
    out: dict[Task, dict[str, Tried]] = {}
    for one in rounds:
        for task, launches in one.items():
            out.setdefault(task, {}).update(launches)
    return out


def ranked(launches: Mapping[str, Tried]) -> list[Tried]:
    """The accepted launches, the fastest first; without `auto`, which is no launch."""
    timed = [t for t in launches.values() if t.us is not None and t.launch != AUTO]
    return sorted(timed, key=lambda t: (t.us, t.launch))


def next_round(
    number: int, tasks: Sequence[Task], rounds: Sequence[Found], space: Space, width: int, seed: str
) -> dict[Task, list[str]]:
    """What round `number` tries of each task, at most `width` launches (twice as many in round 1); nothing of a task
    that is done, and {} where all are.  `rounds`: the outcomes of the earlier rounds."""
    if number == 0:
        return {task: [AUTO] for task in tasks}
    if number > MOST_ROUNDS:
        return {}
    out = {}
    known = together(rounds)
    for task in tasks:
        mine = known.get(task, {})
        if number == 1:
            asked = [*space.first(task), *_ordered(seed, task, space.wide(task))][: 2 * width]
        else:
            asked = _later(task, mine, rounds, space, width, seed)
        fresh = [launch for launch in dict.fromkeys(asked) if launch not in mine]
        if fresh:
            out[task] = fresh[: 2 * width if number == 1 else width]
    return out


def _later(
    task: Task, mine: Mapping[str, Tried], rounds: Sequence[Found], space: Space, width: int, seed: str
) -> list[str]:
    """The neighbours of the best, then seeds that are left; nothing where the last rounds found nothing faster."""
    best = ranked(mine)
    if not best:
        judged = any(t.judged for t in mine.values())
        return [] if judged else _ordered(seed, task, space.wide(task))  # untimed: there is no best to go on from
    dropped = hopeless(mine)
    around = [launch for one in best[:PARENTS] for launch in space.around(task, one.launch)]
    rest = [launch for launch in space.wide(task) if launch.partition("+")[0] not in dropped]
    near = [launch for launch in _ordered(seed, task, around) if launch.partition("+")[0] not in dropped]
    if len(rounds) > PATIENCE + 1 and not any(_improved(task, rounds[: len(rounds) - n]) for n in range(PATIENCE)):
        return []
    return [launch for launch in (*near, *_ordered(seed, task, rest)) if launch not in mine][:width]


def _improved(task: Task, rounds: Sequence[Found]) -> bool:
    """Whether the last round found a faster launch than all before."""
    before, last = ranked(together(rounds[:-1]).get(task, {})), ranked(rounds[-1].get(task, {}))
    return bool(last) and (not before or (last[0].us or 0.0) * MARGIN < (before[0].us or 0.0))


def hopeless(launches: Mapping[str, Tried]) -> set[str]:
    """Kernels that are not tried on: far slower than the best, or refused each time."""
    best = ranked(launches)
    fastest: dict[str, float] = {}
    for one in best:
        fastest.setdefault(one.kernel, one.us or 0.0)
    refused = Counter(t.kernel for t in launches.values() if t.us is None)
    slow = {kernel for kernel, us in fastest.items() if us > HOPELESS * (best[0].us or 0.0)}
    return slow | {kernel for kernel, count in refused.items() if count >= ENOUGH_REFUSED and kernel not in fastest}


def last_round(tasks: Sequence[Task], known: Found, stated: Mapping[Task, str]) -> dict[Task, list[str]]:
    """What the standard policy measures: `auto`, the best few, and what `auto` takes, `stated` in full."""
    out = {}
    for task in tasks:
        best = [t.launch for t in ranked(known.get(task, {}))[:FINALISTS]]
        if best:
            own = [stated[task]] if task in stated and task in known and stated[task] in known[task] else []
            out[task] = list(dict.fromkeys([AUTO, *best, *own]))
    return out


@dataclass(frozen=True)
class Winner:
    """The outcome of one task.  `best`: the launch that counts; `auto`: what `auto` took; `better`: the launch is
    faster than `auto` by MARGIN, else it is what `auto` takes, stated in full."""

    task: Task
    best: Tried
    auto: Tried
    better: bool


def winner(task: Task, launches: Mapping[str, Tried], stated: str) -> Winner | None:
    """The outcome of a task, of the last round's measurements; None where there is none."""
    best, auto = ranked(launches), launches.get(AUTO)
    if not best or auto is None:
        return None
    if auto.us is None or (best[0].us or 0.0) * MARGIN < auto.us:
        return Winner(task, best[0], auto, True)
    own = launches.get(stated)
    return Winner(task, own, auto, False) if own is not None and own.us is not None else None


def matrices(asked: Mapping[Task, Sequence[str]], provider: str, call: str, quick: bool) -> str:
    """The matrices of one round, one of each task.  `call`: module:function where the provider is not built in."""
    found = []
    for task, launches in asked.items():
        listed: dict[str, Any] = {"call": call} if call else {}
        found.append(
            {
                "name": f"tune-{task.op}-{task.operation}-{task.dtype}-{task.shape}",
                "op": task.op,
                "axes": {
                    "shape": [{"rows": task.rows, "hidden": task.hidden}],
                    "dtype": task.dtype,
                    "operation": [task.operation],
                },
                "providers": {provider: {**listed, "mode": list(launches)}},
                **({"timing": dict(QUICK)} if quick else {}),
            }
        )
    return yaml.safe_dump_all(found, sort_keys=False, default_flow_style=None, width=200)


def _ordered(seed: str, task: Task, launches: Collection[str]) -> list[str]:
    def place(launch: str) -> str:
        return hashlib.sha256(f"{seed}\0{task.name}\0{launch}".encode()).hexdigest()

    return sorted(launches, key=place)
