"""Liger-Kernel's benchmark data: its CSV, one line for each point, and the JSON that its benchmarks print.  Pure.

Both have the same fields (COLUMNS); of the JSON, an object is a series, with lists of x and y.  A point is kept as it
was published, to the digit, so that what was read can be written again byte for byte.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

COLUMNS = (
    *("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name", "x_label"),
    *("x_value", "y_value_50", "y_value_20", "y_value_80", "extra_benchmark_config_str", "gpu_name", "timestamp"),
    "liger_version",
)
_LISTS = {"x_value": "x_values", "y_value_50": "y_values_50", "y_value_20": "y_values_20", "y_value_80": "y_values_80"}
MODES = ("forward", "backward", "full", "no-grad-forward", "")
#: metric -> unit -> how many of ours (microseconds, MiB) it is.
UNITS = {"speed": {"ms": 1e3, "us": 1.0, "s": 1e6}, "memory": {"MB": 1.0, "GB": 1024.0}}
#: What stands in names of files and ids.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_FIELD = 10_000
#: Points of one benchmark are at most so far apart.
SESSION = timedelta(hours=3)
TIME = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Point:
    """One point as published: `fields` by the order of COLUMNS; `at`, where it stands, in words."""

    fields: tuple[str, ...]
    at: str

    def __getitem__(self, name: str) -> str:
        return self.fields[COLUMNS.index(name)]

    @cached_property
    def when(self) -> datetime:
        return datetime.strptime(self["timestamp"], TIME)

    @cached_property
    def config(self) -> dict[str, Any]:
        return dict(json.loads(self["extra_benchmark_config_str"] or "{}"))

    @property
    def quantiles(self) -> tuple[float, float, float]:
        """The 20th, 50th and 80th percentile, µs or MiB; NaN where none was published."""
        by = UNITS[self["metric_name"]][self["metric_unit"]]
        low, middle, high = (float(self[f"y_value_{n}"] or "nan") * by for n in (20, 50, 80))
        return low, middle, high

    @property
    def place(self) -> tuple[str, ...]:
        """What the points of a cell have in common."""
        names = ("kernel_name", "kernel_provider", "kernel_operation_mode", "x_name", "x_value")
        return (*(self[n] for n in names), self["extra_benchmark_config_str"], self["gpu_name"])


@dataclass(frozen=True)
class Found:
    """The points of a file, and a sentence for everything in it that is not one."""

    points: tuple[Point, ...]
    refused: tuple[str, ...]


def read(text: str) -> Found:
    """Every point of a CSV file, or of text that contains what benchmarks print."""
    text = text.removeprefix("\ufeff")
    points: list[Point] = []
    refused: list[str] = []
    first: dict[tuple[str, ...], str] = {}
    for at, values in _csv(text) if text.startswith(COLUMNS[0]) else _pasted(text):
        if isinstance(values, str):
            refused.append(f"{at}: {values}")
            continue
        point = Point(tuple(values), at)
        if why := wrong(point):
            refused.append(f"{at}: {why}")
            continue
        key = (*point.place, point["metric_name"], point["timestamp"])
        if key in first:
            refused.append(f"{at}: is the same point as {first[key]}")
            continue
        first[key] = at
        points.append(point)
    return Found(tuple(points), tuple(refused))


def _csv(text: str) -> Iterator[tuple[str, Sequence[str] | str]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        head = next(reader)
        if tuple(head) != COLUMNS:
            yield "line 1", f"these are not the columns of Liger's benchmark data: {', '.join(COLUMNS)}"
            return
        for row in reader:
            at = f"line {reader.line_num}"
            yield at, row if len(row) == len(COLUMNS) else f"{len(row)} fields instead of {len(COLUMNS)}"
    except csv.Error as error:
        yield f"line {reader.line_num}", f"is no CSV ({error}), nor is what follows read"


def _pasted(text: str) -> Iterator[tuple[str, Sequence[str] | str]]:
    """Every list of series in a text, whatever stands around it."""
    decoder = json.JSONDecoder()
    at, lists = 0, 0
    while found := re.compile(r"\[\s*\{\s*\"").search(text, at):
        line = text.count("\n", 0, found.start()) + 1
        try:
            series, at = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", type(error).__name__)
            there = text.count("\n", 0, getattr(error, "pos", found.start())) + 1
            yield f"line {line}", f"the list that begins here is no JSON: {why} at line {there}"
            at = found.end()
            continue
        if not any(isinstance(s, dict) and ("kernel_name" in s or "x_values" in s) for s in series):
            continue
        lists += 1
        for number, one in enumerate(series, 1):
            yield from _series(one, f"line {line}, series {number}")
    if not lists:
        yield "line 1", "this is neither Liger's CSV nor text with the JSON that its benchmarks print"


def _series(one: Any, at: str) -> Iterator[tuple[str, Sequence[str] | str]]:
    names = [_LISTS.get(n, n) for n in COLUMNS]
    if not isinstance(one, dict) or (missing := [n for n in names if n not in one]):
        yield at, f"has no {missing[0]}" if isinstance(one, dict) else "is no object"
        return
    xs, *ys = (one[name] for name in _LISTS.values())
    if not all(isinstance(values, list) for values in (xs, *ys)):
        yield at, "its x and y values are no lists"
        return
    if any(len(y) > len(xs) for y in ys):
        yield at, f"has {max(map(len, ys))} values of y for {len(xs)} of x"
        return
    for i, x in enumerate(xs):
        given = {"x_value": x} | {n: y[i] if i < len(y) else math.nan for n, y in zip(list(_LISTS)[1:], ys)}
        yield f"{at}, x = {x}"[:100], [_text(given.get(n, one.get(n))) for n in COLUMNS]


def _text(value: Any) -> str:
    """A value as Python's csv module writes it."""
    return "" if value is None else value if isinstance(value, str) else repr(value)


def wrong(point: Point) -> str:
    """Why a point cannot be read; "" if it can."""
    for name, value in zip(COLUMNS, point.fields):
        if len(value) > MAX_FIELD or _CONTROL.search(value):
            return f"{name} has control characters, or more than {MAX_FIELD:,}"
    for name in ("kernel_name", "kernel_provider", "x_name"):
        if not _NAME.fullmatch(point[name]):
            return f"{name} is {point[name][:60]!r}; a name has letters, digits and . _ + - alone"
    if point["kernel_operation_mode"] not in MODES:
        return f"kernel_operation_mode is {point['kernel_operation_mode'][:60]!r}; known: {', '.join(MODES[:-1])}"
    units = UNITS.get(point["metric_name"])
    if units is None:
        return f"metric_name is {point['metric_name'][:60]!r}; known: {', '.join(UNITS)}"
    if point["metric_unit"] not in units:
        return f"metric_unit of {point['metric_name']} is {point['metric_unit'][:60]!r}; known: {', '.join(units)}"
    if not backend_of(point["gpu_name"]):
        return f"gpu_name is {point['gpu_name'][:60]!r}, of no vendor that the farm knows (NVIDIA, AMD, Ascend)"
    try:
        point.quantiles  # noqa: B018
    except ValueError:
        return "a y value is not a number"
    try:
        point.when  # noqa: B018
    except ValueError:
        return f"timestamp is {point['timestamp'][:60]!r}; write for example 2026-03-20 00:44:12"
    try:
        point.config  # noqa: B018
    except (ValueError, TypeError, RecursionError):
        return "extra_benchmark_config_str is no JSON object"
    return ""


def backend_of(gpu: str) -> str:
    """The backend of a device by its published name; "" if it is of no vendor that the farm has a backend for."""
    for backend, words in (
        ("cuda", "NVIDIA|GeForce|Tesla|Quadro"),
        ("rocm", "AMD|Instinct|Radeon"),
        ("ascend", "Ascend"),
    ):
        if re.match(rf"({words})", gpu, re.IGNORECASE):
            return backend
    return ""


def sessions(points: Iterable[Point]) -> list[list[Point]]:
    """Points that were measured together, oldest first, each in the order of the file: those of one version of Liger
    between which at most SESSION passes."""
    out: list[list[tuple[int, Point]]] = []
    versions: dict[str, list[tuple[int, Point]]] = {}
    for number, point in enumerate(points):
        versions.setdefault(point["liger_version"], []).append((number, point))
    for those in versions.values():
        those.sort(key=lambda one: one[1].when)
        for one in those:
            if (
                not out
                or out[-1][-1][1]["liger_version"] != one[1]["liger_version"]
                or one[1].when - out[-1][-1][1].when > SESSION
            ):
                out.append([one])
            else:
                out[-1].append(one)
    kept = [[point for _, point in sorted(session, key=lambda one: one[0])] for session in out]
    return sorted(kept, key=lambda session: min(p.when for p in session))


def written(points: Iterable[Point | Sequence[str]]) -> str:
    """Points as Liger's CSV file has them, with CRLF."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    writer.writerows(p.fields if isinstance(p, Point) else p for p in points)
    return out.getvalue()
