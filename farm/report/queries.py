"""What pages ask of a run's rows: what a row counts as, and what may be compared with what.  Pure.

A *row* is one planned cell with the columns of `cells.parquet`.  `run_verdict` makes a verdict of the answers, `cards`
the facts of a page.  Nothing here knows HTML.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from farm.compile.targets import TARGETS
from farm.report.format import HARM, PENDING, STATUSES, clip, count, number, ratio, short_dtype
from farm.store import known
from farm.store.results import NO_RESULT, place
from farm.timing.roof import EXTRAPOLATED

Row = Mapping[str, Any]
#: Operations per byte above which speeds are shown in TFLOP/s: norms do about 1, matrix products hundreds.
FLOP_BOUND = 50.0
PLACE = ("backend", "op", "provider", "mode")
MEASURED = 1e8  # a worst ratio from here on stands for what no metric measures: not finite, another layout
SCHEMA = 6  # the newest run.json that these pages understand


class RunLike(Protocol):
    """A run as the store gives it."""

    @property
    def id(self) -> str: ...
    @property
    def head(self) -> dict[str, Any]: ...
    @property
    def complete(self) -> bool: ...
    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def dir(self) -> Path: ...


@lru_cache(maxsize=65536)
def parse(text: str | None) -> Any:
    """JSON text of a column, or {} where it is empty or broken (a damaged run must not break the page)."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return {}


def is_build(row: Row) -> bool:
    """Whether the row was planned for compilation alone: its id names a compile target, not a device's."""
    named = place(row).partition("@")[2]
    evidence = row.get("evidence")
    return bool(named) and (evidence == "compiled" or (not evidence and named in TARGETS))


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Status -> cells, in the order of `STATUSES`; an unknown status comes last, under its own name."""
    return in_order(Counter(str(r.get("status") or "") for r in rows))


def in_order(found: Mapping[str, int]) -> dict[str, int]:
    known = {s: found[s] for s in STATUSES if found.get(s)}
    return known | {s: n for s, n in sorted(found.items()) if s not in STATUSES and n}


def planned(run: RunLike) -> int:
    return int(run.head.get("planned") or len(run.rows))


def is_subject(row: Row) -> bool:
    return row.get("role") != "peer"


def writer(run: RunLike) -> str:
    """The process that is writing the run; "" for a complete run and for an interrupted one."""
    return "" if run.complete else str(getattr(run, "writer", ""))


def journal_damage(run: RunLike) -> str:
    """That, and where, the journal of an unfinished run is damaged, in two sentences; "" if it is not."""
    found = getattr(run, "damage", None)
    if run.complete or not found:
        return ""
    lines = "1 line" if found.lines == 1 else f"{count(found.lines)} lines"
    results = f"{count(found.results)} result{'' if found.results == 1 else 's'}"
    return (
        f"The journal of this run is damaged: {lines}, the first is line {found.first}. Results in damaged lines are "
        f"lost; the {count(found.behind)} whole lines behind that line, with {results}, count."
    )


def proven(evidence: Iterable[str]) -> str:
    """What passing by these kinds of evidence alone amounts to: `built` or `simulated`; "" if anything ran for real."""
    seen = set(evidence)
    return "" if not seen or seen - {"compiled", "simulated"} else "simulated" if "simulated" in seen else "built"


@dataclass(frozen=True)
class _Running:
    """A run that is still being written, as it is shown."""

    id: str
    head: dict[str, Any]
    rows: Sequence[Row]
    dir: Path
    writer: str
    damage: Any = None
    complete: bool = False


def as_shown(run: RunLike) -> RunLike:
    """The run; while a process writes it, cells that have no result yet are pending, not lost."""
    if not (name := writer(run)):
        return run
    waits = {"status": PENDING, "reason": "no result yet"}
    rows = [{**r, **waits} if (r.get("status"), r.get("reason")) == ("lost", NO_RESULT) else r for r in run.rows]
    return _Running(run.id, run.head, rows, run.dir, name, getattr(run, "damage", None))


@dataclass(frozen=True)
class _Part:
    """Some rows of a run."""

    id: str
    head: dict[str, Any]
    complete: bool
    rows: Sequence[Row]
    dir: Path
    writer: str


def part(run: RunLike, rows: Sequence[Row]) -> RunLike:
    """A run of which only these rows are shown."""
    return _Part(run.id, run.head, run.complete, rows, run.dir, writer(run))


def by_place(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """(backend or named target, op) -> rows."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[place(row), str(row.get("op"))].append(row)
    return dict(found)


def strict_peers(run: RunLike) -> bool:
    return "--strict-peers" in f"{run.head.get('command')} {run.head.get('argv')}"


def is_finding(run: RunLike, row: Row) -> bool:
    """Whether this cell is a failure of code that the run tests."""
    return row.get("status") in HARM and (is_subject(row) or strict_peers(run)) and not is_known(run, row)


#: The known failures that were asked for last, and the cells that they cover: a page asks once a cell.
_COVERED: list[tuple[Any, frozenset[str]]] = []


def is_known(run: RunLike, row: Row) -> bool:
    """Whether the run has this cell's failure as a known one."""
    entries = run.head.get("known")
    if not entries:
        return False
    if not _COVERED or _COVERED[-1][0] is not entries:
        _COVERED[:] = [(entries, known.covered(entries))]
    return row.get("cell_id") in _COVERED[-1][1]


def later_schema(head: Mapping[str, Any]) -> str:
    """Why nothing of a run can be relied on that a later farm wrote, as a clause; "" for any other run."""
    written = head.get("schema")
    if written is None or (isinstance(written, int) and written <= SCHEMA):
        return ""
    return f"it has schema {written!r}, and this farm knows schemas up to {SCHEMA}"


def worst_row(rows: Iterable[Row]) -> Row | None:
    judged = [r for r in rows if number(r.get("worst_ratio")) is not None]
    return max(judged, key=lambda r: float(r["worst_ratio"]), default=None)


def worst_error(row: Row | None) -> str:
    """`dw.rel_l2 5.3x the tolerance`; the reason where the cell is inaccurate for something that no metric measures."""
    if row is None:
        return ""
    over = number(row.get("worst_ratio")) or 0.0
    if row.get("status") == "inaccurate" and row.get("reason") and not 1 < over < MEASURED:
        return clip(str(row["reason"]))
    what = ".".join(p for p in (row.get("worst_output"), row.get("worst_metric")) if p) or "error"
    return f"{what} {ratio(number(row['worst_ratio']))}x the tolerance"


def by(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    out: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for r in rows:
        out[tuple(str(r.get(n) or "") for n in names)].append(r)
    return out


def flop_bound(rows: Iterable[Row]) -> bool:
    """Whether operations, not bytes, limit the speed of these cells."""
    pairs = [(number(r.get("operations")), number(r.get("bytes_moved"))) for r in rows]
    known = [o / b for o, b in pairs if o is not None and b]
    return bool(known) and median(known) > FLOP_BOUND


def speed_counts(row: Row) -> bool:
    """Whether a time of this row may be shown as a speed."""
    shown = row.get("timing_quality") not in ("impossible", "none", "", None)
    return shown and row.get("status") == "passed" and number(row.get("time_us_p50")) is not None


def races(row: Row) -> bool:
    """Whether a row's time stands for its provider: its own choice of mode, or its only one."""
    return speed_counts(row) and float(row["time_us_p50"]) > 0 and row.get("mode") in ("auto", "", None)


def same_cell(row: Row) -> tuple[str, ...]:
    """What two rows must share so that their times may be compared: place, op, dtype, shape, operation, target, timing
    method, casting and other parameters."""
    names = ("op", "dtype", "shape", "operation", "target", "timing_method")
    return (place(row), *(str(row.get(n)) for n in names), own_rest(row))


def own_rest(row: Row) -> str:
    """The part of a cell's id after its shape, without the target: casting, and parameters that are not the default."""
    parts = (row.get(n) for n in ("backend", "op", "provider", "mode", "operation"))
    head = "/".join([*map(str, parts), short_dtype(row.get("dtype") or ""), str(row.get("shape"))])
    name = str(row.get("cell_id") or "")
    name = name[: name.rfind("@")] if "@" in name else name
    return name[len(head) :].strip("/").replace("/", " ").strip() if name.startswith(head) else name


def extrapolated(row: Row) -> bool:
    """Whether the row's bytes are outside the calibrated sizes; its flag says so."""
    return EXTRAPOLATED in str(row.get("flags") or "")
