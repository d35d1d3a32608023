"""Everything that a run, and the runs before it, know of one cell: what `farm show` prints.  Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from farm.errors import UsageError
from farm.report import built
from farm.report.exports import JSON_COLUMNS
from farm.report.findings import repeat
from farm.report.format import current, label, number, percent, ratio, sig, when
from farm.report.queries import Row, RunLike, is_finding, parse, same_cell, speed_counts, worst_error
from farm.timing.statistics import summarize

MAX_NEAR = 5  # cells that a refusal names
MAX_COMPARED = 2000  # ids that near misses are looked for in; difflib takes a millisecond for ten
MIN_KEY = 6  # digits of a key's prefix
MAX_PEERS = 20
LONGEST_LINE = 2000  # characters of a log's line that a terminal shows


def find(rows: Sequence[Row], name: str, run_id: str) -> Row:
    """The row that `name` means: its id, its key, or the beginning of one of them that no other cell has.  UsageError
    with near misses if there is none, or several."""
    exact = [r for r in rows if name in (r.get("cell_id"), r.get("cell_key"))]
    begun = exact or [r for r in rows if name and _begins(r, name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        shown = _listed([str(r["cell_id"]) for r in begun])
        raise UsageError(
            f'"{name}" matches {len(begun):,} cells of run {run_id} ({shown}); give more of the ID',
            id="show-cell-ambiguous",
        )
    near = near_misses(name, [str(r.get("cell_id")) for r in rows])
    cure = f"did you mean {_listed(near)}?" if near else "farm plan MATRIX lists the cells of a matrix"
    raise UsageError(f'no cell of run {run_id} matches "{name}"; {cure}', id="show-cell-unknown")


def _begins(row: Row, name: str) -> bool:
    key = len(name) >= MIN_KEY and str(row.get("cell_key")).startswith(name)
    return key or str(row.get("cell_id")).startswith(name)


def near_misses(name: str, ids: Sequence[str]) -> list[str]:
    """The ids that contain `name`, else those that are most like it, best first."""
    if not name:
        return []
    if inside := [i for i in ids if name.lower() in i.lower()]:
        return inside[:MAX_NEAR]
    parts = set(name.split("/"))
    alike = sorted(ids, key=lambda i: -len(parts & set(i.split("/"))))[:MAX_COMPARED]
    return difflib.get_close_matches(name[:300], alike, MAX_NEAR, cutoff=0.5)


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:MAX_NEAR]) + (", ..." if len(ids) > MAX_NEAR else "")


def facts(
    run: RunLike,
    row: Row,
    samples: Sequence[Mapping[str, Any]] = (),
    earlier: Iterable[tuple[RunLike, Row]] = (),
    log: str = "",
) -> dict[str, Any]:
    """What is known of a cell, as JSON.  `samples`: its rows of samples.parquet; `earlier`: (another run, its row of
    the same cell and target), newest first; `log`: the text of its log.  Times are in microseconds."""
    shown = {name: parse(row.get(name)) if name in JSON_COLUMNS else row.get(name) for name in row}
    return {
        "run": {
            "id": run.id,
            "created": run.head.get("created", ""),
            "complete": run.complete,
            "verdict": run.head.get("verdict", ""),
        },
        "cell": {name: _plain(value) for name, value in shown.items()},
        "finding": is_finding(run, row),
        "worst_place": worst_place(row),
        "samples": _statistics(row, samples),
        "peers": list(_peers(run, row)),
        "earlier": [_earlier(other, its) for other, its in earlier],
        "log": log,
        "again": repeat(run, [row]),
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def worst_place(row: Row) -> dict[str, Any] | None:
    """Where the worst element of the worst output is: {"output", "index", "got", "want"}.  None where no metric has a
    place, and for values that are not finite, since these are in no metric that has one."""
    output = str(row.get("worst_output") or "")
    of = parse(row.get("metrics")).get(output) or {}
    at = [number(of.get(name)) for name in ("worst_row", "worst_column")]
    if row.get("status") != "inaccurate" or row.get("worst_metric") == "nonfinite":
        return None
    if None in at or min(int(a) for a in at if a is not None) < 0:
        return None
    index = [int(a) for a in at if a is not None]
    return {"output": output, "index": index, "got": of.get("worst_got"), "want": of.get("worst_want")}


def _statistics(row: Row, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Statistics of the raw samples of the attempt that counts; None where its time is not a speed."""
    if not speed_counts(row):
        return None
    for its in samples:
        values = [float(v) for v in parse(its.get("samples_us")) or []]
        found = summarize(values)
        if found and its.get("attempt") in (row.get("attempt"), None):
            return {
                "samples": len(values),
                "min_us": min(values),
                "p20_us": found.p20,
                "p50_us": found.p50,
                "p80_us": found.p80,
                "max_us": max(values),
                "rel_mad": found.rel_mad,
                "values_us": values,
            }
    return None


def _peers(run: RunLike, row: Row) -> Iterator[dict[str, Any]]:
    """The same cell of other providers, and of the provider's other modes; those with a time first, fastest first."""
    same = _same(row)
    mine = number(row.get("time_us_p50")) if speed_counts(row) else None
    found = []
    for other in run.rows:
        if other.get("index") == row.get("index") or _same(other) != same:
            continue
        # times of unlike devices, or by unlike methods, are not compared
        alike = all(other.get(name) == row.get(name) for name in ("target", "timing_method"))
        time = number(other.get("time_us_p50")) if speed_counts(other) and alike else None
        found.append(
            {
                **{name: other.get(name) for name in ("provider", "mode", "role", "status", "timing_quality")},
                "time_us_p50": time,
                "ratio": mine / time if mine and time else None,
            }
        )
    yield from sorted(found, key=lambda f: (f["time_us_p50"] is None, f["time_us_p50"] or 0.0))[:MAX_PEERS]


def _same(row: Row) -> tuple[str, ...]:
    """What the cells of two providers share, whether they ran or not."""
    return same_cell({**row, "target": "", "timing_method": ""})


def _earlier(run: RunLike, row: Row) -> dict[str, Any]:
    names = ("status", "reason", "output_hash", "revision", "target", "timing_method", "timing_quality", "judged_by")
    return {
        "run": run.id,
        "created": run.head.get("created", ""),
        **{name: row.get(name) for name in names},
        "revision": row.get("subject_revision") or row.get("revision"),  # of what ran, where that is not the farm's
        "time_us_p50": number(row.get("time_us_p50")) if speed_counts(row) else None,
    }


# as text


def lines(found: Mapping[str, Any], log_path: str = "", log_lines: int = 40) -> Iterator[str]:
    """The facts as lines for a terminal; the last `log_lines` lines of the log."""
    row, run = found["cell"], found["run"]
    yield f"{label(row['status'])}: {row['cell_id']}"
    for name, text in (
        ("run", _run(run, row)),
        ("reason", current(str(row.get("reason") or ""))),
        ("worst", _worst(found)),
        ("accuracy", _accuracy(row)),
        ("output", _output(row)),
        ("kernel", _kernel(row)),
        ("time", _time(found)),
        ("speed", _speed(found)),
        ("cost", _cost(row)),
        ("flags", "; ".join(map(str, row.get("flags") or []))),
    ):
        if text:
            yield f"  {name:9} {text}"
    yield from _table("peers", [_peer(p) for p in found["peers"]])
    yield from _table("earlier", [_before(e) for e in found["earlier"]])
    if found["again"]:
        yield f"  again     {found['again']}"
    if found["log"]:
        text = found["log"].rstrip().splitlines()
        cut = f", the last {log_lines} of {len(text)} lines" if len(text) > log_lines else ""
        yield f"  log       {log_path}{cut}"
        ends = (one if len(one) <= LONGEST_LINE else one[:LONGEST_LINE] + "…" for one in text[-log_lines:])
        yield from (f"    | {one}" for one in ends)


def _table(name: str, entries: Sequence[str]) -> Iterator[str]:
    for i, entry in enumerate(entries):
        yield f"  {name if i == 0 else '':9} {entry}"


def _run(run: Mapping[str, Any], row: Row) -> str:
    where = " on ".join(p for p in (row.get("evidence"), row.get("target"), row.get("device")) if p)
    state = "" if run["complete"] else ", not complete"
    attempt = f", attempt {row['attempt']}" if (row.get("attempt") or 0) > 1 else ""
    return f"{run['id']} ({when(str(run['created']))}{state}){': ' + where if where else ''}{attempt}"


def _worst(found: Mapping[str, Any]) -> str:
    if found["cell"]["status"] != "inaccurate":
        return ""
    at = found["worst_place"]
    over = number(found["cell"].get("worst_ratio"))
    measured = worst_error({**found["cell"], "reason": ""}) if over and over < 1e8 else ""
    there = f"{at['output']}{at['index']}: got {at['got']:.6g}, want {at['want']:.6g}" if at else ""
    return "; ".join(p for p in (there, measured) if p)


def _accuracy(row: Row) -> str:
    """`y: max_ulp 1.3 of 2.01, rel_l2 0.0023 of 0.0035`: each metric that has a tolerance."""
    parts = []
    for output, limits in (row.get("gates") or {}).items():
        of = (row.get("metrics") or {}).get(output) or {}
        each = [f"{n} {_metric(of.get(n))} of {limit:.3g}" for n, limit in limits.items()]
        parts.append(f"{output}: {', '.join(each)}")
    return "; ".join(parts)


def _metric(value: Any) -> str:
    found = number(value)
    return "missing" if found is None else f"{found:.3g}"


def _output(row: Row) -> str:
    if not row.get("output_hash"):
        return ""
    bits = {0: ", its bits differ from call to call", 1: ", the same bits in each call"}
    known = row.get("bitwise_repeatable")
    repeats = bits.get(int(known), "") if known is not None else ""
    as_which = f", judged as {row['judged_as']}" if row.get("judged_as") else ""
    return f"{row['output_hash']} from input {row.get('input_hash')}{repeats}{as_which}"


def _kernel(row: Row) -> str:
    kernels = (row.get("launch") or {}).get("kernels") or [] if isinstance(row.get("launch"), Mapping) else []
    names = ", ".join(f"{k.get('kernel')} {k.get('grid')}" for k in kernels[:4] if isinstance(k, Mapping))
    resolved = row.get("mode_resolved") or ""
    return "; ".join(p for p in (f"mode {resolved}" if resolved else "", names) if p)


def _time(found: Mapping[str, Any]) -> str:
    row, its = found["cell"], found["samples"]
    quality = row.get("timing_quality") or "none"
    p50 = number(row.get("time_us_p50")) if speed_counts(row) else None
    if p50 is None:
        return "impossible, so no time is shown" if quality == "impossible" else ""
    told = f"{sig(p50, 4)} us ({row.get('timing_method')}, {quality})"
    if its:
        told += f"; {its['samples']} samples: min {sig(its['min_us'], 4)}, p20 {sig(its['p20_us'], 4)}, "
        told += f"p80 {sig(its['p80_us'], 4)}, max {sig(its['max_us'], 4)}, relative MAD {percent(its['rel_mad'])}"
    return told


def _speed(found: Mapping[str, Any]) -> str:
    row = found["cell"]
    if not speed_counts(row):
        return ""
    parts = [(row.get("bandwidth_gbps"), "GB/s"), (row.get("tflops"), "TFLOP/s"), (row.get("host_us_p50"), "us host")]
    out = [f"{sig(float(value))} {unit}" for value, unit in parts if number(value)]
    share = number(row.get("share_of_roof"))
    return ", ".join([*out, *([f"{percent(share)} of roof"] if share is not None else [])])


def _cost(row: Row) -> str:
    """Memory, seconds, and what the compiler reports of each kernel."""
    parts = [
        (number(row.get("peak_memory_mib")), "peak memory {:.3g} MiB"),
        (number(row.get("compile_s")), "compiled in {:.3g} s"),
        (number(row.get("tuning_s")), "of which tuning {:.3g} s"),
        (number(row.get("check_s")), "checked in {:.3g} s"),
    ]
    out = [text.format(value) for value, text in parts if value is not None]
    made = built.of_row(row)
    if made is not None and made.compiled + made.loaded:
        out.append(str(made))
    for kernel in row.get("resources") or []:
        named = {k: v for k, v in kernel.items() if isinstance(v, int | float | str) and not isinstance(v, bool)}
        out.append(" ".join(f"{k}={v}" for k, v in list(named.items())[:8]))
    return "; ".join(out)


def _peer(p: Mapping[str, Any]) -> str:
    name = f"{p['provider']}/{p['mode']}" if p["mode"] not in ("auto", "", None) else str(p["provider"])
    if p["time_us_p50"] is None:
        return f"{name}: {label(p['status'])}"
    beside = f", this cell takes {ratio(p['ratio'])}x as long" if p["ratio"] else ""
    return f"{name}: {label(p['status'])}, {sig(p['time_us_p50'], 4)} us{beside}"


def _before(e: Mapping[str, Any]) -> str:
    time = f", {sig(e['time_us_p50'], 4)} us" if e["time_us_p50"] is not None else ""
    code = f", revision {e['revision']}" if e.get("revision") else ""
    bits = f", output {e['output_hash']}" if e.get("output_hash") else ""
    return f"{when(str(e['created']))} {e['run']}: {label(str(e['status']))}{time}{bits}{code}"


def as_json(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=1, allow_nan=False, default=str)
