"""Runs the `triton.testing.perf_report` benchmarks of one file and writes each number as a line of JSON.

A program of its own, started with the path of the file; standard library and what the file imports.  It calls the
benchmark functions itself: their own `run` needs pandas and matplotlib, and prints a table that cannot be read back.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_NUMBERS = 20_000


def main(file: str) -> int:
    """Exit code 0, or 1 if the file has no benchmark."""
    out = sys.stdout
    sys.path.insert(0, str(Path(file).parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        print(f"{file} is no Python file", file=sys.stderr)  # noqa: T201
        return 1
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    count = 0
    for found in marks(module):
        for name, arguments, unit, fn in points(found):
            if count >= MAX_NUMBERS:
                return 0
            out.write(json.dumps({"benchmark": name, "unit": unit, **measured(fn, arguments)}) + "\n")
            out.flush()
            count += 1
    if not count:
        print(f"{file} has no triton.testing.perf_report", file=sys.stderr)  # noqa: T201
    return 0 if count else 1


def marks(module: Any) -> list[Any]:
    """The objects that perf_report made: they have a function and its benchmarks."""
    return [v for v in vars(module).values() if callable(getattr(v, "fn", None)) and hasattr(v, "benchmarks")]


def points(mark: Any) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """(name, arguments, unit, function) of every number of a benchmark."""
    benchmarks = mark.benchmarks if isinstance(mark.benchmarks, (list, tuple)) else [mark.benchmarks]
    for bench in benchmarks:
        names = list(bench.x_names)
        for x in bench.x_vals:
            values = list(x) if isinstance(x, (list, tuple)) else [x] * len(names)
            for line in bench.line_vals:
                at = dict(zip(names, values))
                shown = ",".join(f"{k}={v}" for k, v in at.items())
                name = f"{bench.plot_name}[{shown},{bench.line_arg}={line}]"
                yield name, {**at, bench.line_arg: line, **bench.args}, str(bench.ylabel or ""), mark.fn


def measured(fn: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The function's number: alone, or the first of (median, low, high)."""
    try:
        found = fn(**arguments)
        value = float(found[0] if isinstance(found, (list, tuple)) else found)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {"value": value} if math.isfinite(value) else {"error": f"its value is {value}"}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
