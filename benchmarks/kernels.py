"""Our norms against everybody else's, and against what the device can move at all.

    python -m benchmarks.kernels --budget 540 --out results          all of it, on the GPU of this host
    python -m benchmarks.kernels --ops rms_norm --operations backward --shapes 4096x4096 8192x4096 --dtypes bf16
    python -m benchmarks.kernels --modes all --peers liger           which of our modes is best where

One process per op and operation, one after the other; in it each case's roof (the best of a handful of copy kernels
over as many bytes), then each subject: checked against float64, and timed by the farm's policy `rotating_graph`.
Before that, several processes at once call everything once, so that compilers' caches are full; nothing that they tune
is used.  What the budget does not reach is listed.  Writes kernels.json (every sample), kernels.txt and kernels.md to
--out, again and again while it runs.

A cell under a bar here is one process's word; `python -m benchmarks.confirm` decides.

Exit codes: 0 measured, 1 a result of ours is wrong or missing (with --gate also: a bar is missed), 2 wrong usage or no
GPU here.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, cases, processes, tables
from benchmarks.cases import Case
from benchmarks.roof import bucket
from farm.cell import DTYPE_ALIASES, OPERATIONS, Timing
from farm.deadline import Deadline
from farm.kernel_package import ROOT

Event = dict[str, Any]
#: Of the budget, what filling caches may take at most.
WARM_SHARE = 0.25
#: Seconds between two writings of what is known so far.
SAVE_EVERY_S = 5.0


def rows_of(planned: Sequence[Case], events: Sequence[Event]) -> list[dict[str, Any]]:
    """A completed row for each planned case (`benchmarks.bars`), whatever was reached of it."""
    roofs: dict[int, float] = {}
    for e in events:
        if e["event"] == "roof":
            roofs[e["nbytes"]] = max(e["gbps"], roofs.get(e["nbytes"], 0.0))
    found: dict[str, dict[str, Event]] = {}
    for (case_id, subject), result in processes.results(events).items():
        if subject != "roof":
            found.setdefault(case_id, {})[subject] = result
    rows = []
    for case in planned:
        results = found.get(case.id, {})
        row = {
            "case": case.to_dict(),
            "id": case.id,
            "bytes": case.bytes_moved,
            "roof_gbps": roofs.get(bucket(case.bytes_moved)),
            "gbps": {n: r.get("gbps") for n, r in results.items()},
            "us": {n: r.get("us") for n, r in results.items()},
            "spread": {n: r.get("rel_mad") for n, r in results.items()},
            "quality": {n: r.get("quality", "none") for n, r in results.items()},
            "status": {n: r["status"] for n, r in results.items()},
            "reason": {n: r.get("reason") for n, r in results.items()},
            "choice": {n: r["launches_of_ours"] for n, r in results.items() if r.get("launches_of_ours")},
        }
        rows.append(bars.complete(row))
    return rows


def report(groups: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Everything that was found, as plain data: per group its rows, means, and what was not reached."""
    out = []
    for group in groups:
        planned: Sequence[Case] = group["cases"]
        events: Sequence[Event] = group["events"]
        rows = rows_of(planned, events)
        out.append(
            {
                "op": planned[0].op,
                "operation": planned[0].operation,
                "rows": rows,
                "summary": bars.summary(planned[0].operation, rows),
                "not_reached": processes.not_reached(group["items"], events),
                "ended": processes.ended(events) or {"why": "out of time" if events else "no time was left"},
                "roofs": [e for e in events if e["event"] == "roof"],
                "results": [e for e in events if e["event"] == "result"],
                "hosts": [e for e in events if e["event"] == "host"],
                "seconds": group.get("seconds"),
            }
        )
    return {"subjects": list(names), "groups": out}


def written(found: Mapping[str, Any]) -> tuple[str, str]:
    """The report as text and as Markdown."""
    names = found["subjects"]
    texts, marks = [], []
    for group in found["groups"]:
        reached = [r for r in group["rows"] if r["status"]]
        head = f"{group['op']} {group['operation']}"
        if reached:
            texts.append(tables.text(reached, names))
            marks.append(tables.markdown(reached, names))
        else:
            texts.append(f"{head}: nothing was measured ({group['ended'].get('reason') or group['ended']['why']})")
            marks.append(texts[-1])
        lost = not_reached(group)
        if lost:
            texts.append(lost)
            marks.append(f"- {lost}")
    return "\n\n".join(texts) + "\n", "\n\n".join(marks) + "\n"


def not_reached(group: Mapping[str, Any]) -> str:
    """What was planned and has no result, whole cases by their name; empty where all was reached."""
    lost: dict[str, list[str]] = {}
    for case, subject in group["not_reached"]:
        lost.setdefault(case, []).append(subject)
    if not lost:
        return ""
    whole = {r["id"] for r in group["rows"] if not r["status"]}
    told = [case if case in whole else f"{case} ({', '.join(names)})" for case, names in lost.items()]
    return f"not reached ({group['ended']['why']}), {len(lost)} cells: " + ", ".join(told)


def exit_code(found: Mapping[str, Any], gate: bool) -> int:
    """1 where a reached result of ours is not `ok`, or nothing was reached; with `gate` also where a bar is missed or a
    cell was not reached."""
    rows = [r for g in found["groups"] for r in g["rows"]]
    reached = [r for r in rows if r["status"]]
    bad = not reached or any(r["status"].get(cases.OURS, "ok") != "ok" for r in reached)
    if gate:
        bad = bad or len(reached) < len(rows) or any(g["not_reached"] for g in found["groups"])
        bad = bad or any(r["missed"] for r in rows) or any(g["summary"]["missed"] for g in found["groups"])
    return int(bad)


def policy(seconds: float) -> dict[str, Any]:
    """`rotating_graph`, cold, for at most so many seconds a subject."""
    return Timing(method="rotating_graph", max_seconds=seconds).to_dict()


def plan_groups(options: argparse.Namespace, names: Sequence[str]) -> list[dict[str, Any]]:
    """One group per op and operation: its cases, and its items for a measuring process."""
    groups = []
    for op in options.ops:
        for operation in options.operations:
            planned = cases.plan(op, operation, options.dtypes, options.shapes)
            if options.cells:
                planned = [c for c in planned if any(fnmatch.fnmatchcase(c.id, p) for p in options.cells)]
            if not planned:
                continue
            items = [cases.item(c, cases.rotated(names, n), roof=True, check=True) for n, c in enumerate(planned)]
            groups.append({"cases": planned, "items": items, "events": []})
    return groups


def save(folder: Path | None, found: Mapping[str, Any]) -> None:
    """Write all three files, each at once or not at all."""
    if folder is None:
        return
    text, mark = written(found)
    for name, content in (("json", json.dumps(found, default=str)), ("txt", text), ("md", mark)):
        new = folder / f".kernels.{name}"
        new.write_text(content, encoding="utf-8")
        new.replace(folder / f"kernels.{name}")


def warm(groups: Sequence[Mapping[str, Any]], names: Sequence[str], count: int, seconds: float) -> str:
    """Fill the compilers' caches with `count` processes; a line about how that went."""
    planned = [c for g in groups for c in g["cases"]]
    shares = cases.warm_shares(planned, names, count)
    begun = time.monotonic()
    events = processes.together([{"items": s, "policy": {}, "warm": True} for s in shares], seconds)
    no_device = [e for e in events if e.get("why") == "no device"]
    if no_device:
        raise RuntimeError(no_device[0]["reason"])
    done, wanted = len(processes.results(events)), sum(len(s) for s in shares)
    took = time.monotonic() - begun
    return f"caches: {done} of {wanted} (cell, subject) called by {len(shares)} processes in {took:.0f} s"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse exits with 2 and one sentence where it is wrong."""
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks.kernels",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ops = cases.available_ops()
    parser.add_argument("--ops", nargs="+", choices=ops, default=list(ops), metavar="OP", help=f"of {', '.join(ops)}")
    parser.add_argument(
        "--operations",
        nargs="+",
        choices=[o for o in OPERATIONS if o != "full"],
        default=list(cases.OPERATIONS),
        metavar="OPERATION",
        help="of forward (with grad), no-grad-forward, backward",
    )
    parser.add_argument("--dtypes", nargs="+", choices=("bf16", "fp16", "fp32"), default=["bf16", "fp16", "fp32"])
    parser.add_argument(
        "--shapes", nargs="+", type=_shape, default=[], metavar="ROWSxHIDDEN", help="instead of the list"
    )
    parser.add_argument("--cells", nargs="+", default=[], metavar="PATTERN", help="of all, those (*/backward/bf16/*)")
    present = [p for p in cases.PEERS if _has(p)]
    parser.add_argument("--peers", nargs="*", default=present, metavar="PEER", help=f"providers ({' '.join(present)})")
    parser.add_argument(
        "--modes",
        nargs="+",
        default=["auto"],
        choices=("auto", "all", *cases.MODES),
        metavar="MODE",
        help="of ours beside auto: all, or by name",
    )
    parser.add_argument(
        "--budget", type=positive_seconds, default=540.0, metavar="SECONDS", help="for everything (540)"
    )
    parser.add_argument(
        "--max-seconds", type=positive_seconds, default=0.3, help="of samples for one subject of a case (0.3)"
    )
    parser.add_argument(
        "--warm",
        type=_count,
        default=min(8, max(1, (os.cpu_count() or 2) // 2)),
        metavar="N",
        help="processes that fill the compilers' caches first; 0: none",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where kernels.json, .txt and .md go")
    parser.add_argument("--gate", action="store_true", help="exit 1 where a bar is missed")
    options = parser.parse_args(argv)
    unknown = [p for p in options.peers if not _has(p)]
    if unknown:
        parser.error(f"argument --peers: no provider {unknown[0]!r} under farm/providers")
    if "all" in options.modes:
        options.modes = list(cases.MODES)
    options.dtypes = [DTYPE_ALIASES[d] for d in options.dtypes]
    every = [
        c.id
        for op in options.ops
        for o in options.operations
        for c in cases.plan(op, o, options.dtypes, options.shapes)
    ]
    for pattern in options.cells:
        if not fnmatch.filter(every, pattern):
            parser.error(f"argument --cells: {pattern!r} matches none of {len(every)} cells, such as {every[0]}")
    return options


def _has(provider: str) -> bool:
    return provider.isidentifier() and (ROOT / "farm" / "providers" / f"{provider}.py").is_file()


def _shape(text: str) -> tuple[int, int]:
    try:
        return cases.parse_shape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"needs a number of processes, 0 or more; got {text!r}")
    return int(text)


def positive_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"needs a number of seconds above 0; got {text!r}")
    return value


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    budget = Deadline(options.budget)
    names = cases.subjects(options.peers, options.modes)
    groups = plan_groups(options, names)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    try:
        if options.warm > 0:
            print(warm(groups, names, options.warm, WARM_SHARE * options.budget), flush=True)
    except RuntimeError as error:
        print(f"benchmarks.kernels: {error}", file=sys.stderr)
        return 2
    for n, group in enumerate(groups):
        begun = time.monotonic()
        plan = {"items": group["items"], "policy": policy(options.max_seconds)}

        saved = Deadline(SAVE_EVERY_S)

        def keep(events: list[Event], group: dict[str, Any] = group) -> None:
            nonlocal saved
            group["events"] = events
            if saved.expired:
                save(options.out, report(groups, names))
                saved = Deadline(SAVE_EVERY_S)

        group["events"] = processes.supervise(plan, cases.share(budget.remaining, len(groups) - n), tick=keep)
        group["seconds"] = round(time.monotonic() - begun, 1)
        last = processes.ended(group["events"])
        if last and last["why"] == "no device":
            print(f"benchmarks.kernels: {last['reason']}", file=sys.stderr)
            return 2
    found = report(groups, names)
    save(options.out, found)
    print(written(found)[0])
    print(f"{options.budget - budget.remaining:.0f} s of {options.budget:.0f}")
    return exit_code(found, options.gate)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
