"""A run in the formats that other tools read: JUnit XML, Markdown, JSON, CSV, Liger-Kernel's CSV; and as a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from farm.report import liger
from farm.report.junit import junit
from farm.report.markdown import markdown
from farm.report.queries import Row, RunLike, as_shown, parse
from farm.report.speed_table import speed_tables
from farm.report.speed_text import WRITERS
from farm.store.results import COLUMNS

#: Columns that hold JSON.
JSON_COLUMNS = ("dtypes", "dims", "params", "launch", "flags", "metrics", "gates", "resources", "fingerprint")
Export = Callable[[RunLike, Callable[[Row], str]], str]


def as_json(run: RunLike) -> str:
    """{"run": run.json (or the head of an unfinished run), "cells": one object per planned cell}.  Columns that hold
    JSON are decoded; what is NaN or infinite is null or text, since JSON has neither."""
    head = {**run.head, "run_id": run.id, "complete": run.complete}
    cells = [{n: parse(v) if n in JSON_COLUMNS else v for n, v in row.items()} for row in as_shown(run).rows]
    return json.dumps({"run": _strict(head), "cells": _strict(cells)}, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    """`value` as JSON can hold it."""
    if isinstance(value, float) and value - value != 0:
        return None if value != value else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    return [_strict(v) for v in value] if isinstance(value, list | tuple) else value


def as_csv(run: RunLike) -> str:
    """A line per planned cell with the columns of cells.parquet, as text; the first line names them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    rows = as_shown(run).rows
    names = [n for n in COLUMNS if not rows or n in rows[0]]
    writer.writerow(names)
    for row in rows:
        writer.writerow("" if row.get(n) is None else row.get(n) for n in names)
    return out.getvalue()


def as_table(
    run: RunLike, unit: str = "gbps", losses_first: bool = False, of: str = "", written_as: str = "markdown"
) -> str:
    """Speeds by shape and provider (`farm.report.speed_table`), in a format of `speed_text.WRITERS`."""
    return WRITERS[written_as](speed_tables(run, unit, losses_first, of))


#: Format -> how it is made from a run and a function that gives the text of a row's log.
FORMATS: Mapping[str, Export] = {
    "junit": junit,
    "markdown": lambda run, log: markdown(run),
    "json": lambda run, log: as_json(run),
    "csv": lambda run, log: as_csv(run),
    "liger": lambda run, log: liger.exported(run),
    "table": lambda run, log: as_table(run),
}
