"""What the medians of `benchmarks.timers` say: do the policies agree, do processes agree.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.timing.statistics import quantile

Row = Mapping[str, Any]
#: A graph agrees with the profiler within this share of its time, or so many microseconds per launched kernel: launches
#: in a graph follow each other with a gap, which is no kernel's time.
SHARE, GAP_US = 0.05, 2.0
#: Microseconds between which cells count.
FROM_US, TO_US = 4.0, 2000.0
LEAST_CELLS = 40
#: From here on the spread between processes has a bar: the 90th percentile over cells.
REPEAT_FROM_US, REPEAT_SHARE, REPEAT_CELLS = 5.0, 0.012, 20
#: A median absolute deviation is so many times smaller than the standard deviation of a normal distribution.
MAD = 1.4826


def allowed_us(profiler_us: float, kernels: float | None) -> float:
    """How far a median may be from the profiler's; where the number of kernels is not known, one is taken."""
    return max(SHARE * profiler_us, GAP_US * max(1.0, kernels or 1.0))


def judged(row: Row) -> dict[str, Any]:
    """The row with what it says: `counts` (all three times, the profiler's in range), `within` by method, `ratio` of
    each method's time to the profiler's."""
    us = row["us"]
    base = us.get("profiler")
    counts = bool(base and us.get("rotating_graph") and FROM_US <= base <= TO_US)
    within, ratio = {}, {}
    if base:
        for method in ("rotating_graph", "events"):
            if us.get(method):
                within[method] = abs(us[method] - base) <= allowed_us(base, row["kernels"])
                ratio[method] = us[method] / base
    return {**row, "counts": counts, "within": within, "ratio": ratio}


def compared(rows: Sequence[Row]) -> dict[str, Any]:
    """Every row judged, counts per provider and over all, and what misses the bar."""
    cells = [judged(r) for r in rows]
    providers = list(dict.fromkeys(r["provider"] for r in cells))
    found: dict[str, Any] = {"kind": "compared", "cells": cells, "all": _tally(cells)}
    found["providers"] = {p: _tally([c for c in cells if c["provider"] == p]) for p in providers}
    total = found["all"]
    found["missed"] = [
        *([f"{total['cells']} cells in range of at least {LEAST_CELLS}"] if total["cells"] < LEAST_CELLS else []),
        *(_sentence(c) for c in cells if c["counts"] and not c["within"]["rotating_graph"]),
    ]
    return found


def _tally(cells: Sequence[Row]) -> dict[str, Any]:
    counted = [c for c in cells if c["counts"]]
    tally: dict[str, Any] = {"cells": len(counted)}
    for method in ("rotating_graph", "events"):
        timed = [c for c in counted if method in c["within"]]
        tally[method] = {
            "of": len(timed),
            "within": sum(c["within"][method] for c in timed),
            "median_ratio": quantile(sorted(c["ratio"][method] for c in timed), 0.5) if timed else None,
            "worst_ratio": max((c["ratio"][method] for c in timed), key=lambda r: max(r, 1 / r), default=None),
        }
    return tally


def _sentence(cell: Row) -> str:
    us, launched = cell["us"], cell["kernels"]
    said = f"{launched:g} kernels" if launched else "kernels unknown"
    return (
        f"{cell['case']} {cell['provider']}: rotating_graph {us['rotating_graph']:.2f}, "
        f"profiler {us['profiler']:.2f} us, {said}"
    )


def robust_sd(medians: Sequence[float]) -> float:
    """1.4826 times the median absolute deviation, relative to the median.  ValueError for fewer than two."""
    if len(medians) < 2:
        raise ValueError(f"a spread needs at least two medians; got {len(medians)}")
    middle = quantile(sorted(medians), 0.5)
    return MAD * quantile(sorted(abs(m - middle) for m in medians), 0.5) / middle


def repeated(medians: Mapping[str, Sequence[float]], wanted: int) -> dict[str, Any]:
    """Per cell its medians and their spread; the 90th percentile over the cells from 5 us up that all `wanted`
    processes measured."""
    cells: list[dict[str, Any]] = []
    for name, values in medians.items():
        if len(values) < 2:
            continue
        middle = quantile(sorted(values), 0.5)
        spread, apart = robust_sd(values), (max(values) - min(values)) / middle
        whole = len(values) == wanted
        cells.append(
            {
                "cell": name,
                "us": middle,
                "robust_sd": spread,
                "range": apart,
                "medians": list(values),
                "counts": whole and middle >= REPEAT_FROM_US,
            }
        )
    spreads = sorted(c["robust_sd"] for c in cells if c["counts"])
    p90 = quantile(spreads, 0.9) if spreads else None
    missed = []
    if len(spreads) < REPEAT_CELLS:
        missed.append(f"{len(spreads)} cells from {REPEAT_FROM_US:g} us up of at least {REPEAT_CELLS}")
    if p90 is not None and p90 >= REPEAT_SHARE:
        missed.append(f"the 90th percentile of the spread is {100 * p90:.2f} %, the bar is {100 * REPEAT_SHARE:g} %")
    return {
        "kind": "repeated",
        "processes": wanted,
        "cells": cells,
        "p90": p90,
        "counted": len(spreads),
        "missed": missed,
    }


# the tables


def lines(found: Mapping[str, Any]) -> list[list[str]]:
    """A table's head and lines, as text."""
    if found["kind"] == "repeated":
        head = ["cell", "median us", "robust sd %", "range %", "processes"]
        body = [
            [
                c["cell"],
                f"{c['us']:.2f}",
                f"{100 * c['robust_sd']:.2f}",
                f"{100 * c['range']:.1f}",
                str(len(c["medians"])),
            ]
            for c in found["cells"]
        ]
        return [head, *body]
    head = ["cell", "provider", "kernels", "profiler us", "rotating_graph", "events", ""]
    return [head, *([*_line(c)] for c in found["cells"])]


def _line(cell: Row) -> list[str]:
    us = cell["us"]
    times = [f"{us[m]:.2f}" if us.get(m) else "." for m in ("profiler", "rotating_graph", "events")]
    kernels = f"{cell['kernels']:g}" if cell["kernels"] else "?"
    if cell["problems"]:
        said = "; ".join(f"{m} {w}" for m, w in cell["problems"].items())[:100]
    elif not cell["counts"]:
        said = "not counted"
    else:
        said = "" if cell["within"]["rotating_graph"] else "OUTSIDE"
    return [cell["case"], cell["provider"], kernels, *times, said]


def summary(found: Mapping[str, Any]) -> list[str]:
    """Sentences below the table."""
    if found["kind"] == "repeated":
        p90 = "none" if found["p90"] is None else f"{100 * found['p90']:.2f} %"
        out = [
            f"{found['counted']} cells from {REPEAT_FROM_US:g} us up in all {found['processes']} processes: "
            f"90th percentile of the robust sd {p90}"
        ]
    else:
        out = []
        for name, tally in [*found["providers"].items(), ("all", found["all"])]:
            parts = []
            for method in ("rotating_graph", "events"):
                t = tally[method]
                if t["of"]:
                    parts.append(
                        f"{method} {t['within']} of {t['of']} within 5 % or 2 us per kernel "
                        f"(median ratio {t['median_ratio']:.3f}, worst {t['worst_ratio']:.2f})"
                    )
            out.append(f"{name}: {'; '.join(parts) or 'no cell in range'}")
    return [*out, *(f"misses: {m}" for m in found["missed"])]


def text(found: Mapping[str, Any]) -> str:
    """The table for a terminal, names to the left and numbers to the right."""
    table = lines(found)
    names = {0, 1, 6} if found["kind"] == "compared" else {0}
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    out = [
        "  ".join(c.ljust(w) if i in names else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in table
    ]
    return "\n".join([*out, "", *summary(found)]) + "\n"


def markdown(found: Mapping[str, Any]) -> str:
    """The same for docs/facts.md."""
    head, *body = lines(found)
    rule = "|".join("---" if i == 0 else "--:" for i in range(len(head)))
    out = [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(line)} |" for line in body)]
    return "\n".join([*out, "", *(f"- {s}" for s in summary(found))]) + "\n"
