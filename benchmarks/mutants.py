"""Does the judge catch wrong kernels?  Every mutant of `tests/mutants` in every cell of its matrix, on this device.

    python -m benchmarks.mutants                                  on the CPU: torch, and Triton's interpreter
    python -m benchmarks.mutants --device cuda --out results      on the GPU, with its shapes; compiled
    python -m benchmarks.mutants --tolerances                     also what others' tolerances let through

Mutants are shared out over processes, each with a CUDA context of its own.  A mutant is not called again in a place
(op, operation, dtype) where it was caught, unless --every-cell.  Writes mutants.json and mutants.txt into --out.

With --tolerances every mutant's outputs are held against the published tolerances of TileGym, Liger, aiter and torch
(`tests/mutants/tolerances.py` has them with their sources), on our data and on data like theirs.  A mutant is *let
through* in a dtype when no cell tells it from the right kernel: where the tolerance refuses the right kernel too, it
tells nothing.  Mutants whose numbers are right (they write outside, or over their inputs) are left out: no tolerance
can see them.

Exit codes: 0 all caught and no control accused, 1 not so, 2 wrong usage or no GPU here, 3 a share did not come back.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as OutOfTime
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tests" / "mutants"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

DTYPES = ("float32", "float16", "bfloat16")
BUDGET = 540.0  # seconds
FLAGS = {"wrote outside", "changed its inputs"}  # findings of a call whose outputs are right


class Share(NamedTuple):
    """What one process does: the `index`-th of `count` shares of all mutants, on `data` (-1: the matrix as it is)."""

    index: int
    count: int
    device: str
    data: int
    every_cell: bool


def run_share(share: Share) -> list[Any]:
    """The outcomes of a share, in a process of its own or in this one."""
    if share.device == "cpu":
        from farm.child import interpreter

        interpreter.install()
    import mutant_suite as suite
    import tolerances
    import torch

    torch.set_num_threads(1)
    mine = shared_out([*suite.every(), *suite.controls()], share.index, share.count)
    cells, device = suite.planned(share.device), torch.device(share.device)
    if share.data < 0:
        return list(suite.run(mine, cells, device, until_caught=not share.every_cell))
    data = tolerances.DATA[share.data]
    return list(suite.run(mine, of_family(cells, data.family), device, make=data.make, rules=tolerances.allowed_by))


def shared_out(mutants: Sequence[Any], index: int, count: int) -> list[Any]:
    """Every `count`-th mutant from the `index`-th on: neighbours are of a kind, so each share has some of each."""
    return list(mutants[index::count])


def of_family(cells: Iterable[Any], family: str) -> list[Any]:
    """The cells with another family's values; of a family that only has special rows there is no other.  "": as is."""
    if not family:
        return list(cells)
    return [replace(c, family=family, cell_key="", cell_id="") for c in cells if c.family == "mixed"]


def gather(shares: Sequence[Share], jobs: int, budget: float) -> tuple[list[Any], list[str]]:
    """(outcomes of all shares, what went wrong); nothing waits longer than `budget` seconds."""
    if jobs == 1:
        return [outcome for share in shares for outcome in run_share(share)], []
    end = time.monotonic() + budget
    found: list[Any] = []
    trouble: list[str] = []
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = [(share, pool.submit(run_share, share)) for share in shares]
        for share, future in futures:
            try:
                found += future.result(timeout=max(0.1, end - time.monotonic()))
            except OutOfTime:
                trouble.append(f"share {share.index} of {share.count}: not done within {budget:g} s")
            except BrokenProcessPool:
                trouble.append(f"share {share.index} of {share.count}: a process died")
            except Exception as error:
                trouble.append(f"share {share.index} of {share.count}: {type(error).__name__}: {error}")
    finally:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=not trouble, cancel_futures=True)
        for process in processes if trouble else []:
            process.kill()
    return found, trouble


# ---- tables: pure --------------------------------------------------------------------------------------------------


def table(head: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    """Columns padded to their widest entry; the first to the left."""
    rows = [[str(v) for v in line] for line in (head, *body)]
    widths = [max(len(line[i]) for line in rows) for i in range(len(head))]
    return "\n".join("  ".join([r[0].ljust(widths[0]), *(v.rjust(w) for v, w in zip(r[1:], widths[1:]))]) for r in rows)


def of_mutants(mutants: Sequence[Any], cells: Sequence[Any], outcomes: Sequence[Any]) -> list[dict[str, Any]]:
    """One line per mutant: places, where it was missed, cells called and caught, and by what."""
    import mutant_suite as suite

    by_name: dict[str, list[Any]] = defaultdict(list)
    for outcome in outcomes:
        by_name[outcome.mutant].append(outcome)
    lines = []
    for m in mutants:
        seen = by_name[m.name]
        caught = [o for o in seen if o.caught]
        lines.append(
            {
                "mutant": m.name,
                "wrong": m.wrong,
                "made": m.made,
                "note": m.note,
                "places": len(suite.places(m, cells)),
                "missed": ["/".join(p) for p in suite.missed(m, cells, seen)],
                "cells": len(seen),
                "caught": len(caught),
                "by": dict(Counter(o.by for o in caught).most_common()),
                "accused": [o.cell.cell_id for o in caught if o.cell.dtype in m.right_in],
                "example": f"{caught[0].cell.cell_id}: {caught[0].reason}" if caught else "",
            }
        )
    return lines


def summary(lines: Sequence[dict[str, Any]], controls: Sequence[dict[str, Any]], device: str) -> str:
    """The short table: caught N of N, on what, and how."""
    body = []
    for made, what in (
        ("torch", "in torch, one step replaced"),
        ("triton", "of our Triton source, one line rewritten"),
    ):
        some = [line for line in lines if line["made"] == made]
        right = [line for line in controls if line["made"] == made]
        body.append(
            [
                what,
                f"{sum(not m['missed'] for m in some)} of {len(some)}",
                f"{sum(m['places'] - len(m['missed']) for m in some)} of {sum(m['places'] for m in some)}",
                f"{sum(c['cells'] - c['caught'] for c in right)} of {sum(c['cells'] for c in right)}",
            ]
        )
    by: Counter[str] = Counter()
    for line in lines:
        for name, count in line["by"].items():
            by[name.split(".")[-1]] += count
    told = ", ".join(f"{name} {count}" for name, count in by.most_common())
    head = [f"mutants on {device}", "caught", "places (op, operation, dtype)", "cells of the right code passed"]
    wrong = [f"MISSED {m['mutant']} in {', '.join(m['missed'])}" for m in lines if m["missed"]]
    wrong += [f"ACCUSED {m['mutant']} in {', '.join(m['accused'])}" for m in lines if m["accused"]]
    wrong += [f"ACCUSED {c['mutant']}: {c['example']}" for c in controls if c["caught"]]
    return "\n".join([table(head, body), f"furthest beyond its tolerance, or the finding: {told}", *wrong])


def of_numbers(mutants: Sequence[Any], lines: Sequence[dict[str, Any]]) -> list[Any]:
    """The mutants that a tolerance could see: those that not a flag alone caught."""
    silent = {line["mutant"] for line in lines if line["by"] and set(line["by"]) <= FLAGS}
    return [m for m in mutants if m.name not in silent]


def let_through(mutants: Sequence[Any], outcomes: Sequence[Any], rules: Sequence[str]) -> dict[str, dict[str, Any]]:
    """rule -> dtype -> {"through": names, "of": how many mutants, "refused": cells in which it refuses the right
    kernel, "cells": of how many}.

    A cell counts where the rule lets the right kernel of the same making pass, which is called there as well.
    """
    made = {m.name: m.made for m in mutants}

    def allows(outcome: Any, rule: str) -> bool:
        return (not outcome.caught) if rule == "farm" else rule in outcome.allowed_by

    right = {(o.mutant.split("-")[0], o.cell.cell_key): o for o in outcomes if "-control" in o.mutant}
    found: dict[str, dict[str, Any]] = {}
    for rule in rules:
        found[rule] = {}
        for dtype in DTYPES:
            names = {m.name for m in mutants if dtype in m.dtypes}
            some = [o for o in outcomes if o.cell.dtype == dtype and o.mutant in names]
            told = {
                o.mutant for o in some if not allows(o, rule) and allows(right[made[o.mutant], o.cell.cell_key], rule)
            }
            controls = [o for (_, _), o in right.items() if o.cell.dtype == dtype]
            judged = {o.mutant for o in some}
            found[rule][dtype] = {
                "through": sorted(judged - told),
                "of": len(judged),
                "cells": len(controls),
                "refused": sum(not allows(o, rule) for o in controls),
            }
    return found


def tolerance_table(found: dict[str, dict[str, dict[str, Any]]], untested: Iterable[tuple[str, str]]) -> str:
    """`found` is data -> `let_through`; `untested` are pairs (rule, dtype) of which a project says nothing."""
    absent = set(untested)
    body = []
    for data, rules in found.items():
        for rule, dtypes in rules.items():
            shown = []
            for dtype, of in dtypes.items():
                refused = f" ({of['refused']}/{of['cells']})" if of["refused"] else ""
                text = f"{len(of['through'])} of {of['of']}{refused}"
                shown.append("-" if (rule, dtype) in absent else text)
            body.append([data, rule, *shown])
    legend = "(n/m): it refuses the right kernel in n of m cells; -: the project tests no such dtype"
    return f"{table(['let through, on data', 'tolerance', *DTYPES], body)}\n{legend}"


# ---- the edge ------------------------------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="folder for mutants.json and mutants.txt")
    parser.add_argument(
        "--jobs", type=int, help="processes (default: 1 on the CPU, half the cores, 12 at most, on a GPU)"
    )
    parser.add_argument("--every-cell", action="store_true", help="go on where a mutant was caught already")
    parser.add_argument("--tolerances", action="store_true", help="also what others' tolerances let through")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for each part, with several processes")
    chosen = parser.parse_args()
    if chosen.jobs is not None and chosen.jobs < 1:
        parser.error("--jobs is a number of processes, at least 1")
    return chosen


def main() -> int:
    chosen = options()
    if chosen.device == "cpu":  # before anything imports triton
        from farm.child import interpreter

        interpreter.install()
    import mutant_suite as suite
    import tolerances
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: torch sees no GPU here; leave it out to run on the CPU", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name() if chosen.device == "cuda" else f"CPU ({platform.machine()}, interpreted)"
    jobs = chosen.jobs or (1 if chosen.device == "cpu" else max(1, min(12, (os.cpu_count() or 2) // 2)))
    mutants, controls, cells = suite.every(), suite.controls(), suite.planned(chosen.device)
    began = time.monotonic()

    def part(data: int) -> tuple[list[Any], list[str]]:
        every = chosen.every_cell or data >= 0
        return gather([Share(i, jobs, chosen.device, data, every) for i in range(jobs)], jobs, chosen.budget)

    outcomes, trouble = part(-1)
    lines, right = of_mutants(mutants, cells, outcomes), of_mutants(controls, cells, outcomes)
    found: dict[str, Any] = {}
    for index, data in enumerate(tolerances.DATA if chosen.tolerances and not trouble else ()):
        judged, more = part(index)
        trouble += more
        if not more:
            found[data.name] = let_through(of_numbers(mutants, lines), judged, data.rules)
    facts = {
        "device": name,
        "torch": torch.__version__,
        "triton": version(),
        "jobs": jobs,
        "seconds": round(time.monotonic() - began, 1),
    }
    each = [[m["mutant"], m["places"], f"{m['caught']}/{m['cells']}", ", ".join(list(m["by"])[:3])] for m in lines]
    text = [table(["mutant", "places", "caught/called", "by (most often)"], each), ""]
    if found:
        untested = [(r.name, d) for r in tolerances.RULES for d in DTYPES if d not in {k[2] for k in r.limits}]
        text += [tolerance_table(found, untested), ""]
    text += [
        summary(lines, right, name),
        f"torch {facts['torch']}, triton {facts['triton']}, {facts['seconds']} s, "
        f"{jobs} processes, {len(cells)} cells planned",
        *trouble,
    ]
    print("\n".join(text))
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        data_ = {**facts, "mutants": lines, "controls": right, "tolerances": found, "trouble": trouble}
        (chosen.out / "mutants.json").write_text(json.dumps(data_, indent=1) + "\n", encoding="utf-8")
        (chosen.out / "mutants.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    if trouble:
        return 3
    wrong = [m for m in lines if m["missed"] or m["accused"]] + [c for c in right if c["caught"]]
    return 1 if wrong else 0


def version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    sys.exit(main())
