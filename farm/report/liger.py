"""Liger-Kernel's benchmark data as rows of a run, and a run as Liger's benchmark data.  Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from farm.cell import ARM, DTYPE_ALIASES, SHORT_DTYPES, Cell, Evidence, Status, Timing
from farm.report.format import number
from farm.report.liger_format import TIME, Point, backend_of, written
from farm.report.queries import RunLike, as_shown, parse, speed_counts
from farm.store.results import finish_row

#: The timing policy of what was published: `triton.testing.do_bench`, with its default warm-up.
METHOD = "do_bench"
UNSTATED = "unstated"
#: A dimension of ours -> (x_name, x_label) of theirs; any other keeps its name.
AXES = {"hidden": ("H", "hidden size"), "rows": ("M", "rows"), "n": ("N", "N"), "m": ("M", "M"), "k": ("K", "K")}


def rows(session: Sequence[Point], revision: str) -> tuple[list[Cell], list[dict[str, Any]]]:
    """(cells, their rows) of points that were measured together: the speed and the memory of a cell are one row."""
    cells: dict[tuple[str, ...], list[Point]] = {}
    for point in session:
        cells.setdefault(point.place, []).append(point)
    made: list[Cell] = []
    out: list[dict[str, Any]] = []
    taken: Counter[str] = Counter()
    for index, points in enumerate(cells.values()):
        cell = _cell(points[0], index)
        taken[cell.cell_id] += 1
        if (again := taken[cell.cell_id]) > 1:  # configurations that differ in what an id does not show
            name, at, target = cell.cell_id.rpartition("@")
            cell = Cell.from_dict({**cell.to_dict(), "cell_id": f"{name}/number={again}{at}{target}", "cell_key": ""})
        made.append(cell)
        out.append(_row(cell, points, revision))
    return made, out


def _cell(point: Point, index: int) -> Cell:
    config = point.config
    backend, gpu = backend_of(point["gpu_name"]), re.sub(r"[^A-Za-z0-9.+]+", "-", point["gpu_name"]).strip("-")
    dtype = DTYPE_ALIASES.get(str(config.get("dtype")).removeprefix("torch."), "")
    sizes = {k: v for k, v in config.items() if type(v) is int and k != point["x_name"]}
    x = point["x_value"]
    whole = re.fullmatch(r"[0-9]{1,18}", x) is not None
    dims = {**sizes, **({point["x_name"]: int(x)} if whole else {})}
    params = {k: v for k, v in config.items() if k not in sizes and not (dtype and k == "dtype")}
    if point["x_name"] in params:  # the axis has the name of a setting
        params[f"config_{point['x_name']}"] = params.pop(point["x_name"])
    if not whole:
        params[point["x_name"]] = x
    if not point["kernel_operation_mode"]:
        params["mode"] = UNSTATED
    operation = point["kernel_operation_mode"] or "full"
    op, provider = point["kernel_name"], point["kernel_provider"]
    shape = "x".join(str(v) for v in dims.values())
    rest = "".join(f"/{quote(k, safe='')}={_shown(v)}" for k, v in {"x": point["x_name"], **params}.items())
    return Cell(
        backend=backend,
        op=op,
        provider=provider,
        mode="auto",
        operation=operation,
        dtypes={"x": dtype or UNSTATED},
        dims=dims,
        params={**params, "x": point["x_name"]},
        family="",
        timing=Timing(method=METHOD, version=1),
        contract_version=0,
        role="subject" if provider.startswith("liger") else "peer",
        cell_id=f"{backend}/{op}/{provider}/auto/{operation}/{SHORT_DTYPES.get(dtype, UNSTATED)}/{shape}{rest}@{gpu}",
        index=index,
        matrix="liger",
        target=f"{backend}:{gpu}",
    )


def _shown(value: Any) -> str:
    return quote(value if isinstance(value, str) else json.dumps(value, sort_keys=True), safe="+")[:100]


def _row(cell: Cell, points: Sequence[Point], revision: str) -> dict[str, Any]:
    speed = next((p for p in points if p["metric_name"] == "speed"), None)
    memory = next((p for p in points if p["metric_name"] == "memory"), None)
    low, middle, high = speed.quantiles if speed else (math.nan, math.nan, math.nan)
    held = memory.quantiles[1] if memory else math.nan
    timed = all(math.isfinite(v) and v > 0 for v in (low, middle, high))
    flags = ["its mode is not published; taken for full"] if cell.params.get("mode") == UNSTATED else []
    status, reason, quality = Status.PASSED, "", "ok" if timed else "none"
    if speed and not timed and not math.isnan(middle):
        quality = "impossible"
        flags.append(f"impossible: {speed['y_value_50']} {speed['metric_unit']} was published")
    elif not timed and math.isnan(held):
        status, reason = Status.UNSUPPORTED, "it was published without a number"
    point = speed or points[0]
    row = finish_row(
        cell,
        status=status,
        reason=reason,
        owner="",
        attempt=1,
        evidence=Evidence.IMPORTED.value,
        origin={
            "target": cell.target,
            "device": point["gpu_name"],
            "node": "",
            "fingerprint": {"model": point["gpu_name"]},
            "revision": revision,
            "started": point.when.replace(tzinfo=timezone.utc).timestamp(),
            "evidence": Evidence.IMPORTED.value,
        },
    )
    row.update(flags=json.dumps(flags), timing_quality=quality, timing_method=METHOD)
    row.update(provider_version=point["liger_version"] if cell.role == "subject" else "")
    if timed:
        row.update(time_us_p20=low, time_us_p50=middle, time_us_p80=high)
    if math.isfinite(held):
        row["peak_memory_live_mib"] = held
    return row


def exported(run: RunLike) -> str:
    """A run's times and memory as Liger's CSV, one line for each cell and metric.

    The last dimension is x, everything else of a cell its configuration: so its plotting script draws a line for each
    provider (of ours, each mode; of two arms, each) over that dimension.  Cells that did not pass, and times that do
    not count, are not in it: its format has no place for them.
    """
    out: list[list[str]] = []
    for row in as_shown(run).rows:
        if row.get("status") != "passed":
            continue
        quantiles = [number(row.get(f"time_us_p{n}")) for n in (50, 20, 80)]
        if speed_counts(row) and all(v is not None for v in quantiles):
            out.append(_line(run, row, "speed", "ms", [float(v or 0) / 1e3 for v in quantiles]))
        held = number(row.get("peak_memory_live_mib"))
        if held is not None:
            out.append(_line(run, row, "memory", "MB", [held] * 3))
    return written(out)


def left_out(run: RunLike) -> dict[str, int]:
    """Status, or quality of the time -> cells that `exported` has no speed of."""
    found: Counter[str] = Counter()
    for row in as_shown(run).rows:
        if row.get("status") != "passed":
            found[str(row.get("status"))] += 1
        elif not speed_counts(row):
            found[f"passed, timing {row.get('timing_quality')}"] += 1
    return dict(found)


def _line(run: RunLike, row: Mapping[str, Any], metric: str, unit: str, values: Sequence[float]) -> list[str]:
    dims = {str(k): v for k, v in parse(row.get("dims")).items()}
    *rest, axis = dims or {"x": 0}
    x_name, x_label = AXES.get(axis, (axis, axis))
    config: dict[str, Any] = {AXES.get(name, (name, ""))[0]: dims[name] for name in rest}
    config["dtype"] = f"torch.{row.get('dtype')}"
    config |= {str(k): v for k, v in parse(row.get("params")).items()}
    config |= _layouts(row)
    mode = str(row.get("mode") or "auto")
    arm = str(row.get("cell_id") or "").partition(ARM)[2]
    provider = "_".join(filter(None, (str(row.get("provider")), "" if mode == "auto" else mode, arm)))
    started = number(row.get("started"))
    when = str(run.head.get("created") or "")[:19].replace("T", " ")
    if started:
        when = datetime.fromtimestamp(started, timezone.utc).strftime(TIME)
    version = str(row.get("provider_version") or "") if str(row.get("provider")).startswith("liger") else ""
    return [
        *(str(row.get("op")), provider, str(row.get("operation")), metric, unit, x_name, x_label),
        *(str(dims.get(axis, 0)), *map(repr, values), json.dumps(config)),
        *(device_name(row), when, version or "0.0.0"),
    ]


def _layouts(row: Mapping[str, Any]) -> dict[str, str]:
    """What of a cell's id is neither shape nor parameter: other families, layouts, timing policies."""
    dtypes = {k: v for k, v in parse(row.get("dtypes")).items() if v != row.get("dtype")}
    out = {f"{name}_dtype": f"torch.{value}" for name, value in dtypes.items()}
    named = re.findall(r"/([a-z_]*layout|family|seed|timing)=([^/@~]*)", str(row.get("cell_id") or ""))
    return out | dict(named)


def device_name(row: Mapping[str, Any]) -> str:
    """A device's name as its vendor writes it, as far as the target keeps it: `NVIDIA H200`."""
    model = str(row.get("target") or "").partition(":")[2].partition(":")[0]
    return model.replace("-", " ") or str(row.get("backend"))


def told(session: Iterable[Point]) -> str:
    """`256 points (208 speeds, 48 memories), NVIDIA H100 80GB HBM3`"""
    points = list(session)
    speeds = sum(p["metric_name"] == "speed" for p in points)
    gpus = ", ".join(dict.fromkeys(p["gpu_name"] for p in points))
    return f"{len(points):,} points ({speeds:,} speeds, {len(points) - speeds:,} memories), {gpus}"
