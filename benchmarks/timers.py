"""The farm's timing policies held against the profiler's kernel times, and against themselves in fresh processes.

    python -m benchmarks.timers --out results                 rotating_graph and events beside the profiler, on the GPU
    python -m benchmarks.timers --repeat 12 --out results     medians of the same cells over twelve fresh processes

The first: one process per provider and op; in it every case by `rotating_graph` and by `events`, then every case by
`profiler`, over the same number of buffer sets: all three cold.  A cell agrees where the graph's median is within 5 %,
or 2 us per launched kernel, of the profiler's; 4 us to 2 ms count.

The second: how far the medians of a cell lie apart from process to process: 1.4826 times their median absolute
deviation, relative to their median; its 90th percentile over the cells from 5 us up.

Caches are filled first.  Writes timers.json or repeat.json (every median, every sample of the first), .txt and .md to
--out while it runs.  Exit codes: 0 measured, 1 nothing was, or with --gate a bar is missed, 2 wrong usage or no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import agreement, cases, kernels, processes
from benchmarks.cases import Case
from farm.cell import Timing
from farm.deadline import Deadline

Event = dict[str, Any]
PROGRAM = (sys.executable, "-m", "benchmarks.timers_child")
SUBJECTS = (cases.OURS, *cases.PEERS)
BF16 = (
    (4096, 4096),
    (8192, 4096),
    (4096, 1024),
    (32768, 1024),
    (2048, 2048),
    (32768, 128),
    (4096, 16384),
    (32768, 8192),
    (2048, 512),
)
FP32 = ((4096, 4096), (2048, 1024), (8192, 8192))
#: What is repeated, from 5 us up: (op, operation, rows, hidden), bf16.
REPEATED = (
    ("rms_norm", "forward", 32768, 128),
    ("rms_norm", "forward", 2048, 2048),
    ("rms_norm", "forward", 4096, 4096),
    ("rms_norm", "forward", 8192, 4096),
    ("rms_norm", "forward", 32768, 4096),
    ("rms_norm", "backward", 4096, 1024),
    ("rms_norm", "backward", 8192, 4096),
    ("rms_norm", "backward", 4096, 16384),
    ("fused_add_rms_norm", "forward", 4096, 1024),
    ("fused_add_rms_norm", "forward", 8192, 4096),
    ("fused_add_rms_norm", "backward", 4096, 4096),
)
#: Of the budget, what filling caches may take at most.
WARM_SHARE = 0.25
#: A process of the second part that takes so many times as long as the longest before it is ended.
HUNG = 3.0


def planned(op: str) -> list[Case]:
    """The cases of one op, forward and backward of a shape together, those that matter most first."""
    shapes = [("bfloat16", s) for s in BF16[:4]] + [("float32", FP32[0])]
    shapes += [("bfloat16", s) for s in BF16[4:]] + [("float32", s) for s in FP32[1:]]
    return [Case(op, operation, d, *s) for d, s in shapes for operation in cases.OPERATIONS]


def phases(of: Sequence[Case], subject: str) -> list[dict[str, Any]]:
    """The items of one process: all cases by the policies that leave it fit, then all by the profiler."""
    first = [f"{subject}|rotating_graph", f"{subject}|events"]
    return [
        *({**cases.item(c, first), "phase": 0} for c in of),
        *({**cases.item(c, [f"{subject}|profiler"]), "phase": 1} for c in of),
    ]


def repeated(subjects: Sequence[str]) -> list[dict[str, Any]]:
    """The items of each process of the second part, one subject after the other."""
    these = [Case(op, operation, "bfloat16", *s) for op, operation, *s in REPEATED]
    return [cases.item(c, [f"{s}|rotating_graph"]) for s in subjects for c in these]


def rows_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """A row per case and provider for `benchmarks.agreement`: microseconds by method, and kernels per call."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (case, subject), found in processes.results(events).items():
        provider, _, method = subject.partition("|")
        row = rows.setdefault(
            (case, provider),
            {"case": case, "provider": provider, "us": {}, "half_width": {}, "kernels": None, "problems": {}},
        )
        if found["status"] == "ok":
            row["us"][method] = found.get("us")
            row["half_width"][method] = found.get("half_width")
            if method == "profiler" or row["kernels"] is None:
                row["kernels"] = found.get("kernels")
        elif found["status"] != "unsupported":
            row["problems"][method] = f"{found['status']}: {found.get('reason')}"
    return [r for r in rows.values() if r["us"] or r["problems"]]


def policy(seconds: float) -> dict[str, Any]:
    """Cold, for at most so many seconds a subject."""
    return Timing(method="rotating_graph", max_seconds=seconds).to_dict()


def compare(options: argparse.Namespace, budget: Deadline) -> dict[str, Any]:
    """The first part: one process per provider and op."""
    jobs = [(s, op) for op in options.ops for s in options.providers]
    events: list[Event] = []
    for n, (subject, op) in enumerate(jobs):
        plan = {"items": phases(planned(op), subject), "policy": policy(options.max_seconds)}
        found = processes.supervise(plan, cases.share(budget.remaining, len(jobs) - n), program=PROGRAM)
        no_device(found)
        events += found
        save(options.out, "timers", agreement.compared(rows_of(events)), events)
    return agreement.compared(rows_of(events))


def repeat(options: argparse.Namespace, budget: Deadline) -> dict[str, Any]:
    """The second part: the same cells in so many fresh processes, one after the other.

    Each may take what is left: an even share of a short budget would cut every one of them off before its last cells,
    and a cell counts only where all processes measured it.  One that hangs costs three times the longest before it.
    """
    medians: dict[str, list[float]] = {}
    hosts: list[Event] = []
    longest = 0.0
    for n in range(options.repeat):
        if budget.remaining < processes.LEAST_S:
            print(f"process {n + 1} of {options.repeat}: not started, the time is up", flush=True)
            break
        begun = time.monotonic()
        plan = {"items": repeated(options.providers), "policy": policy(options.max_seconds)}
        allowed = min(budget.remaining, max(HUNG * longest, HUNG * processes.LEAST_S)) if n else budget.remaining
        events = processes.supervise(plan, allowed, program=PROGRAM)
        no_device(events)
        hosts += [e for e in events if e["event"] in ("host", "end")]
        for row in rows_of(events):
            us = row["us"].get("rotating_graph")
            if us:
                medians.setdefault(f"{row['case']} {row['provider']}", []).append(us)
        longest = max(longest, time.monotonic() - begun)
        print(f"process {n + 1} of {options.repeat}: {time.monotonic() - begun:.1f} s", flush=True)
        save(options.out, "repeat", agreement.repeated(medians, options.repeat), hosts)
    return agreement.repeated(medians, options.repeat)


class NoDevice(Exception):
    """This host has no GPU to measure on."""


def no_device(events: Sequence[Event]) -> None:
    last = processes.ended(events)
    if last and last["why"] == "no device":
        raise NoDevice(last["reason"])


def save(folder: Path | None, name: str, found: Mapping[str, Any], events: Sequence[Event]) -> None:
    """All three files, each at once or not at all."""
    if folder is None:
        return
    texts = {
        "json": json.dumps({**found, "events": list(events)}, default=str),
        "txt": agreement.text(found),
        "md": agreement.markdown(found),
    }
    for kind, content in texts.items():
        new = folder / f".{name}.{kind}"
        new.write_text(content, encoding="utf-8")
        new.replace(folder / f"{name}.{kind}")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse exits with 2 and one sentence where it is wrong."""
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks.timers",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes")
    parser.add_argument(
        "--budget", type=kernels.positive_seconds, default=240.0, metavar="SECONDS", help="for everything (240)"
    )
    parser.add_argument("--repeat", type=kernels._count, default=0, metavar="N", help="the second part, N processes")
    parser.add_argument(
        "--providers",
        nargs="+",
        choices=SUBJECTS,
        metavar="PROVIDER",
        default=None,
        help=f"of {', '.join(SUBJECTS)} (all; of the second part all but torch_compile, which compiles each time)",
    )
    ops = cases.available_ops()
    parser.add_argument("--ops", nargs="+", choices=ops, default=list(ops), metavar="OP", help=f"of {', '.join(ops)}")
    parser.add_argument(
        "--max-seconds",
        type=kernels.positive_seconds,
        default=0.15,
        help="of samples for one cell by one policy (0.15)",
    )
    parser.add_argument(
        "--warm",
        type=kernels._count,
        default=min(8, max(1, (os.cpu_count() or 2) // 2)),
        metavar="N",
        help="processes that fill the compilers' caches first; 0: none",
    )
    parser.add_argument("--gate", action="store_true", help="exit 1 where a bar is missed")
    options = parser.parse_args(argv)
    if options.repeat == 1:
        parser.error("argument --repeat: one process has nothing to differ from; give at least 2")
    if options.providers is None:
        options.providers = [s for s in SUBJECTS if not (options.repeat and s == "torch_compile")]
    return options


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    budget = Deadline(options.budget)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    try:
        if options.warm:
            items = (
                repeated([cases.OURS]) if options.repeat else [i for op in options.ops for i in phases(planned(op), "")]
            )
            of = list(dict.fromkeys(cases.case_of(i["case"]) for i in items))
            print(
                kernels.warm([{"cases": of}], options.providers, options.warm, WARM_SHARE * options.budget), flush=True
            )
        found = (repeat if options.repeat else compare)(options, budget)
    except (NoDevice, RuntimeError) as error:
        print(f"benchmarks.timers: {error}", file=sys.stderr)
        return 2
    print(agreement.text(found))
    print(f"{options.budget - budget.remaining:.0f} s of {options.budget:.0f}")
    return int(not found["cells"] or (options.gate and bool(found["missed"])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
