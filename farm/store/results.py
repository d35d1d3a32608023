"""One row per planned cell, joined from the plan, the child's measurements and the judgement.  Pure.

The columns are the schema of `cells.parquet`.  Schema history:
    1   first
    2   resources: what the compiler says of a cell's kernels (evidence `compiled`)
    3   bytes_counted, bytes_requested, peak_memory_live_mib, bitwise_repeatable, sm_clock_mhz, temperature_c, power_w,
        throttle, kernels_per_call
    4   neighbours_busy; evidence is what the device reports (`simulated` for a fake that simulates a vendor's device)
    5   judged_by; every line of the journal has a checksum
    6   contract (the content of a contract outside the farm), provider_version, provider_settings, subject,
        subject_revision, subject_digest, places
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from farm.cell import ARM, FARM_FAULTS, FINDINGS, Cell, Status, canonical_json
from farm.guard import telemetry
from farm.timing.statistics import Bounds, impossible_because, quality, summarize

SCHEMA = 6
#: The reason of a planned cell that has no result yet.
NO_RESULT = "planned, no result"
INTERRUPTED = "the run was interrupted"
#: Schemas whose rows differ from today's only in columns that they lack: runs of these are resumed and merged.
ALIKE = (4, 5, 6)
#: The kind of a run of published results, and the file that keeps them as they were.
IMPORTED, PUBLISHED = "imported", "published.csv"
#: Column -> kind of value: text, int, float; JSON values are text.
COLUMNS: dict[str, str] = {
    **dict.fromkeys(("cell_id", "cell_key"), "text"),
    "index": "int",
    **dict.fromkeys(
        (
            "matrix",
            "tag",
            "backend",
            "target",
            "op",
            "provider",
            "role",
            "mode",
            "mode_resolved",
            "launch",
            "operation",
            "dtype",
            "dtypes",
            "shape",
            "dims",
            "params",
            "family",
        ),
        "text",
    ),
    "seed": "int",
    **dict.fromkeys(("status", "reason", "fault_owner", "evidence"), "text"),
    "attempt": "int",
    "flags": "text",
    "bitwise_repeatable": "int",
    "worst_output": "text",
    "worst_metric": "text",
    "worst_ratio": "float",
    "metrics": "text",
    "gates": "text",
    "places": "text",
    **dict.fromkeys(("judged_by", "judged_as"), "text"),
    **dict.fromkeys(("max_ulp", "rel_l2", "max_abs"), "float"),
    **dict.fromkeys(("time_us_p20", "time_us_p50", "time_us_p80", "time_rel_mad"), "float"),
    "samples": "int",
    "timing_cold": "int",
    "kernels_per_call": "float",
    **dict.fromkeys(("sm_clock_mhz", "temperature_c", "power_w"), "float"),
    "throttle": "text",
    "neighbours_busy": "int",
    **dict.fromkeys(("host_us_p50", "bandwidth_gbps", "tflops", "share_of_roof"), "float"),
    **dict.fromkeys(("bytes_moved", "bytes_counted", "bytes_requested", "operations"), "int"),
    **dict.fromkeys(("peak_memory_mib", "peak_memory_live_mib", "compile_s", "tuning_s", "check_s"), "float"),
    "resources": "text",
    **dict.fromkeys(
        (
            "timing_method",
            "timing_quality",
            "output_hash",
            "input_hash",
            "device",
            "node",
            "fingerprint",
            "revision",
            "provider_version",
            "provider_settings",
            "subject",
            "subject_revision",
            "subject_digest",
            "log",
        ),
        "text",
    ),
    **dict.fromkeys(("started", "seconds"), "float"),
    "contract": "text",
}


#: Columns that runs of older schemas lack.
LATER_COLUMNS = frozenset(
    (
        *("resources", "bytes_counted", "bytes_requested", "peak_memory_live_mib", "bitwise_repeatable"),
        *(
            "sm_clock_mhz",
            "temperature_c",
            "power_w",
            "throttle",
            "kernels_per_call",
            "neighbours_busy",
            "judged_by",
            "tuning_s",
        ),
        *(
            "contract",
            "provider_version",
            "provider_settings",
            "subject",
            "subject_revision",
            "subject_digest",
            "places",
            "judged_as",
        ),
    )
)
_EMPTY: dict[str, Any] = {name: "" if kind == "text" else None for name, kind in COLUMNS.items()}


def _texts(encode: Callable[[Any], str], values: Mapping[str, Any]) -> str:
    """A mapping as JSON, cached: among 10^5 cells few mappings differ."""
    try:
        return _text_of(encode, tuple((key, repr(value), value) for key, value in values.items()))
    except TypeError:  # a value that cannot be hashed
        return encode(dict(values))


@lru_cache(maxsize=4096)
def _text_of(encode: Callable[[Any], str], items: tuple[tuple[str, str, Any], ...]) -> str:
    """The key includes `repr`, because 1, 1.0 and True, or 0.0 and -0.0, are equal but differ in JSON."""
    return encode({key: value for key, _, value in items})


def of_plan(cell: Cell) -> dict[str, Any]:
    """The columns of a cell's row that the plan determines, whatever comes of the cell."""
    return {
        "cell_id": cell.cell_id,
        "cell_key": cell.cell_key,
        "index": cell.index,
        "matrix": cell.matrix,
        "tag": cell.tag,
        "backend": cell.backend,
        "op": cell.op,
        "provider": cell.provider,
        "role": cell.role,
        "mode": cell.mode,
        "operation": cell.operation,
        "dtype": cell.dtype,
        "dtypes": _texts(canonical_json, cell.dtypes),
        "shape": cell.shape,
        "dims": _texts(json.dumps, cell.dims),
        "params": _texts(canonical_json, cell.params),
        "contract": cell.contract_content,
        "family": cell.family,
        "seed": cell.seed,
    }


#: The names of those columns.
PLANNED = frozenset(
    (
        *("cell_id", "cell_key", "index", "matrix", "tag", "backend", "op", "provider", "role", "mode", "operation"),
        *("dtype", "dtypes", "shape", "dims", "params", "contract", "family", "seed"),
    )
)


def planned_row(cell: Cell, why: str = "") -> dict[str, Any]:
    """What is known of a cell before it runs; its status is `lost` until it has a result.  `why`: a clause on how its
    run ended without one."""
    row = dict(_EMPTY)
    row.update(
        **of_plan(cell),
        target=cell.target,
        status=Status.LOST.value,
        reason=f"{NO_RESULT}: {why}" if why else NO_RESULT,
        flags="[]",
        metrics="{}",
        gates="{}",
        places="{}",
        launch="{}",
        resources="[]",
        fingerprint="{}",
        timing_method=cell.timing.method,
        timing_quality="none",
        attempt=0,
    )
    return row


def finish_row(
    cell: Cell,
    *,
    status: Status,
    reason: str,
    owner: str,
    attempt: int,
    evidence: str,
    origin: Mapping[str, Any] | None = None,
    measured: Mapping[str, Any] | None = None,
    judged: Mapping[str, Any] | None = None,
    built: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The row of a concluded cell.

    `evidence`: that of the backend, used if the origin has none.  `origin`: target, device, node, fingerprint,
    revision, log, started, seconds, evidence, neighbours_busy.  `measured`: the child's facts and timing, and the
    contract's work.  `judged`: metrics, tolerances, the worst of them, hashes.  `built`: the result of a compilation
    without a device: mode_resolved, launch, flags, compile_s, resources.
    """
    row = planned_row(cell)
    row.update(status=status.value, reason=reason, fault_owner=owner, attempt=attempt)
    for key, value in (origin or {}).items():
        row[key] = json.dumps(value) if key == "fingerprint" and not isinstance(value, str) else value
    if origin:
        row["evidence"] = row["evidence"] or evidence
    if judged:
        row.update(_accuracy(judged))
    if measured:
        row.update(_measurement(measured))
    if judged and judged.get("sampled_rows"):
        sampled = f"compared in {judged['sampled_rows']:,} of {next(iter(cell.dims.values())):,} rows"
        row["flags"] = json.dumps([*json.loads(row["flags"]), sampled])
    if built:
        row.update({k: v if isinstance(v, str | float | None) else json.dumps(v) for k, v in built.items()})
    return row


def sample_row(cell: Cell, attempt: int, timing: Mapping[str, Any], raw: Sequence[Any] = ()) -> dict[str, Any] | None:
    """The row of samples.parquet of a timed attempt; None if nothing was timed.  `raw`: the device's telemetry."""
    if not timing.get("samples_us"):
        return None
    return {
        "cell_id": cell.cell_id,
        "cell_key": cell.cell_key,
        "attempt": attempt,
        "method": timing["method"],
        "samples_us": json.dumps(timing["samples_us"]),
        "host_us": json.dumps(timing.get("host_us", [])),
        "sets": timing.get("sets"),
        "launches": timing.get("launches"),
        "floor_us": timing.get("floor_us"),
        "telemetry": json.dumps(list(raw)),
    }


def place(row: Mapping[str, Any]) -> str:
    """Where a row is counted: `cuda`, or `cuda@sm_90` if the plan names targets."""
    _, at, target = str(row.get("cell_id") or "").rpartition("@")  # an id has no other @: its texts are quoted
    target = target.partition(ARM)[0]
    return f"{row.get('backend', '')}{at}{target if at else ''}"


def _accuracy(judged: Mapping[str, Any]) -> dict[str, Any]:
    worst = judged.get("worst_output") or ""
    metrics = judged.get("metrics") or {}
    of_worst = metrics.get(worst, {})
    return {
        "metrics": json.dumps(metrics),
        "gates": json.dumps(judged.get("gates") or {}),
        "places": json.dumps(judged.get("places") or {}),
        "worst_output": worst,
        "worst_metric": judged.get("worst_metric") or "",
        "worst_ratio": judged.get("worst_ratio"),
        **{name: of_worst.get(name) for name in ("max_ulp", "rel_l2", "max_abs")},
        "output_hash": judged.get("output_hash", ""),
        "input_hash": judged.get("input_hash", ""),
        "judged_by": judged.get("judged_by", ""),
        "judged_as": judged.get("judged_as", ""),
    }


def _measurement(measured: Mapping[str, Any]) -> dict[str, Any]:
    facts, timing, work = measured["facts"], measured["timing"], measured["work"]
    moved, operations = work["bytes_read"] + work["bytes_written"], sum(work["operations"].values())
    row: dict[str, Any] = {
        "mode_resolved": facts.get("mode_resolved", ""),
        "launch": json.dumps(facts.get("launch", {})),
        "flags": json.dumps(facts.get("flags", [])),
        "compile_s": facts.get("compile_s"),
        "tuning_s": facts.get("tuning_s"),
        "check_s": facts.get("check_s"),
        **{name: facts.get(name) for name in ("peak_memory_mib", "peak_memory_live_mib")},
        "bytes_moved": moved,
        **{name: facts.get(name) for name in ("bytes_counted", "bytes_requested")},
        "operations": operations,
        "timing_method": timing["method"],
    }
    samples = timing.get("samples_us", [])
    peaks = measured.get("peaks") or (None, None)
    roof = measured.get("roof") or {}
    row["timing_cold"] = int(bool(timing.get("cold"))) if samples else None
    row["bitwise_repeatable"] = int(not timing.get("timed_outputs")) if samples else None  # present only if bits differ
    bounds = Bounds(
        bytes_moved=moved,
        cold=bool(timing.get("cold")),
        peak_gbps=peaks[0],
        operations=operations,
        peak_tflops=peaks[1],
        # a GEMM may be faster than the vendor's, and a cell faster than a device that was throttled when calibrated
        roof_us=roof["us"] if roof.get("what") == "copy" and roof.get("sound", True) else None,
        outside=timing.get("outside_us") is not None,
    )
    row["timing_quality"] = quality(samples, timing.get("floor_us"), bounds)
    why = impossible_because(samples, bounds)
    if why and not bounds.outside:  # the child's own flag reports that
        row["flags"] = json.dumps([*facts.get("flags", []), f"impossible: {why}"])
    told = measured.get("telemetry")
    row.update(telemetry.columns(told))
    row["timing_quality"] = telemetry.quality(row["timing_quality"], told)
    row["samples"] = len(samples)
    row["kernels_per_call"] = timing.get("kernels_per_call")
    if row["timing_quality"] not in ("impossible", "none"):
        row.update(_speeds(timing, moved, operations, roof.get("us")))
    return row


def _speeds(timing: Mapping[str, Any], moved: int, operations: int, roof_us: float | None) -> dict[str, Any]:
    """Every column that is a time of the timed calls, or derived from one.  An impossible time is not a speed: such a
    row has none of these, not even the host's time, which comes from the clock of the same process."""
    host, found = summarize(timing.get("host_us", [])), summarize(timing["samples_us"])
    assert found is not None
    return {
        "time_us_p20": found.p20,
        "time_us_p50": found.p50,
        "time_us_p80": found.p80,
        "time_rel_mad": found.rel_mad,
        "host_us_p50": host.p50 if host else None,
        "bandwidth_gbps": moved / (found.p50 * 1e3),
        "tflops": operations / (found.p50 * 1e6),
        "share_of_roof": roof_us / found.p50 if roof_us else None,
    }


def counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Status -> number of rows, in the status set's order."""
    seen = Counter(row["status"] for row in rows)
    return {s.value: seen[s.value] for s in Status if seen[s.value]}


@dataclass(frozen=True)
class Doubt:
    """A cell that subjects pass although every peer is inaccurate with the same inputs: more likely than that they are
    all wrong is that the reference, the inputs or the tolerances are."""

    cell_id: str  # of a subject
    subjects: tuple[str, ...]
    peers: tuple[str, ...]


#: The peer without whose disagreement there is no doubt, since the others each have a rounding of their own; and peers
#: that are the same code.
TORCH, SAME_CODE = "torch", {"torch_compile": "torch"}
_SAME_CELL = ("op", "operation", "dtypes", "dims", "params", "family", "seed", "input_hash")
_LAYOUTS = re.compile(r"/\w*layout=[^/@]*")


def doubts(rows: Iterable[Mapping[str, Any]]) -> list[Doubt]:
    """Cells whose verdict is in doubt, in the plan's order.

    At least two peers with different code, one of them `torch`, must exceed a tolerance, and none may pass.  Peers that
    crash, or that return something else than was asked for, say nothing about the reference, and simulated devices say
    nothing at all.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        exceeds = row["status"] == Status.INACCURATE.value and row.get("worst_metric")
        if (exceeds or row["status"] == Status.PASSED.value) and row.get("evidence") != "simulated":
            layouts = tuple(_LAYOUTS.findall(str(row.get("cell_id") or "")))
            same = (place(row), layouts, *(row.get(name) for name in _SAME_CELL))
            groups[same].append(row)
    out = []
    for alike in groups.values():
        passed = [r for r in alike if r["status"] == Status.PASSED.value]
        peers = {str(r.get("provider")) for r in alike if r.get("role") == "peer"}
        different = {SAME_CODE.get(name, name) for name in peers}
        if passed and all(r.get("role") == "subject" for r in passed) and TORCH in different and len(different) > 1:
            subjects = dict.fromkeys(str(r.get("provider")) for r in passed)
            out.append(Doubt(str(passed[0].get("cell_id")), tuple(subjects), tuple(sorted(peers))))
    return out


_GOOD = (Status.PASSED.value, Status.BUILT.value)


def verdict(
    rows: Iterable[Mapping[str, Any]], *, strict_peers: bool = False, known: Collection[str] = (), stale: bool = False
) -> tuple[str, int]:
    """(name, exit code) of a run's verdict: 3 infrastructure failure or doubt, 1 findings, 4 inconclusive, 0 passed.

    Inconclusive: a provider that was requested on a backend (or on a named target) proved nothing there, because all
    of its cells were unsupported.  For peers this counts only if the run has no subject.
    known: ids of cells whose failure is known, which are no findings; stale: whether a known failure is fixed, which
    is one.
    """
    rows = list(rows)
    fault, finding = bool(doubts(rows)), stale
    proven: dict[tuple[str, str, str], bool] = {}
    for row in rows:
        status = Status(row["status"])
        fault = fault or status in FARM_FAULTS
        failed = status in FINDINGS and (strict_peers or row["role"] == "subject")
        finding = finding or (failed and row.get("cell_id") not in known)
        if status is not Status.SKIPPED:
            who = (row["role"], place(row), row.get("provider", ""))
            proven[who] = proven.get(who, False) or status is not Status.UNSUPPORTED
    if fault:
        return "farm_fault", 3
    if finding:
        return "findings", 1
    subjects = [ok for (role, _, _), ok in proven.items() if role == "subject"]
    if known and not any(row["status"] in _GOOD for row in rows):
        return "inconclusive", 4
    conclusive = all(subjects) if subjects else any(proven.values())
    return ("passed", 0) if conclusive else ("inconclusive", 4)
