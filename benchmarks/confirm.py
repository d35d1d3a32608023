"""Is a cell truly slower than its best peer?  Interleaved rounds of fresh processes, and an interval of the ratio.

    python -m benchmarks.confirm results/kernels.json --out results                every cell that is in doubt
    python -m benchmarks.confirm results/kernels.json --cells '*/backward/bf16/*' --budget 300

Takes the cells of `benchmarks.kernels` whose ratio to their best peer is below 1.02 (forward) or 1.05 (backward), or
those that --cells names.  A round is two processes, one after the other: all cells by our kernels, and each cell by its
own best peer; the next round is the other way round.  A process gives one number per cell, the median of its samples.
The interval of the ratio, 99 %, and why: `farm/compare/intervals.py`.

`confirmed slower`, `confirmed faster` or `not distinguishable` are against 1; UNDER THE BAR means that the whole
interval lies under what the cell is held to (0.98 of the best peer forward, 1.00 backward).

Exit codes: 0 no cell is confirmed under its bar, 1 one is, or one has fewer rounds than asked for, 2 wrong usage or no
GPU here.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.bars import bars
from benchmarks.cases import OURS, Case, case_of, item
from benchmarks.kernels import policy, positive_seconds
from farm.compare import intervals
from farm.deadline import Deadline

Event = dict[str, Any]
ROUNDS = 5
#: Under these ratios a cell is in doubt: by one process's word it may be slower than its peer.
DOUBT = {"backward": 1.05}
DOUBT_ELSE = 1.02
SIDES = ("ours", "peer")


@dataclass(frozen=True)
class Pair:
    """A cell, the peer that it is held against, and their ratio by `benchmarks.kernels`."""

    case: Case
    peer: str
    ratio: float


@dataclass(frozen=True)
class Outcome:
    """What the rounds say of a pair: microseconds per round and side, and the interval (None: too few rounds)."""

    pair: Pair
    ours_us: list[float]
    peer_us: list[float]
    found: intervals.Interval | None
    trouble: str  # why rounds are missing, or empty

    @property
    def verdict(self) -> str:
        return intervals.verdict(self.found)

    @property
    def bar(self) -> float:
        return bars(self.pair.case.operation).ratio

    @property
    def under(self) -> bool:
        return intervals.under(self.found, self.bar)


def pairs(report: Mapping[str, Any], patterns: Sequence[str] = ()) -> list[Pair]:
    """The cells to confirm, the worst first; with patterns (of ids, as `*/backward/bf16/*`) those, whatever they are.

    ValueError in one sentence where a pattern names no cell that has both sides.
    """
    known = [
        Pair(case_of(row["case"]), row["best_peer"], row["ratio"])
        for group in report["groups"]
        for row in group["rows"]
        if row["ratio"] is not None
    ]
    if not patterns:
        chosen = [p for p in known if p.ratio < DOUBT.get(p.case.operation, DOUBT_ELSE)]
    else:
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(p.case.id, pattern) for p in known):
                raise ValueError(f"--cells {pattern}: matches no cell that has a time of ours and of a peer")
        chosen = [p for p in known if any(fnmatch.fnmatchcase(p.case.id, q) for q in patterns)]
    return sorted(chosen, key=lambda p: p.ratio)


def items(chosen: Sequence[Pair], side: str) -> list[dict[str, Any]]:
    """What one process of a side measures; not checked again, `benchmarks.kernels` did."""
    return [item(p.case, [OURS if side == "ours" else p.peer]) for p in chosen]


def order(round_number: int) -> tuple[str, str]:
    """The sides of a round in their order: A B, B A, A B, so that neither is always on the warmer device."""
    return SIDES if round_number % 2 == 0 else (SIDES[1], SIDES[0])


def rounds(
    chosen: Sequence[Pair], count: int, budget: Deadline, measure: Callable[[str, float], list[Event]]
) -> list[dict[str, list[Event]]]:
    """Events of each side, per round.  `measure(side, seconds)` runs one fresh process.

    Each process has an even share of the time that is left, so that early rounds cannot starve the last ones."""
    out = []
    for number in range(count):
        told: dict[str, list[Event]] = {}
        for place, side in enumerate(order(number)):
            left = 2 * (count - number) - place
            told[side] = measure(side, budget.remaining / left)
        out.append(told)
    return out


def outcomes(chosen: Sequence[Pair], told: Sequence[Mapping[str, Sequence[Event]]]) -> list[Outcome]:
    """Each pair with the rounds in which both sides gave a time; only such a round is one."""
    results = [{side: processes.results(events) for side, events in sides.items()} for sides in told]
    out = []
    for pair in chosen:
        ours, peer, trouble = [], [], ""
        for found in results:
            both = [found["ours"].get((pair.case.id, OURS)), found["peer"].get((pair.case.id, pair.peer))]
            times = [r.get("us") if r and r.get("gbps") else None for r in both]
            if times[0] and times[1]:
                ours.append(times[0])
                peer.append(times[1])
                continue
            for name, result in zip((OURS, pair.peer), both):
                if not (result and result.get("gbps")):
                    why = result.get("reason") or result.get("quality") if result else "out of time"
                    trouble = trouble or f"{name}: {why}"
        out.append(Outcome(pair, ours, peer, intervals.interval(ours, peer), trouble))
    return out


def text(found: Sequence[Outcome]) -> str:
    """A line a cell."""
    lines = [f"{'cell':44} {'best peer':14} {'by one':>7} {'ratio':>7}  {'99 % interval':15} n  verdict"]
    for o in found:
        i = o.found
        told = (
            f"{i.ratio:7.3f}  {i.low:.3f} to {i.high:.3f} {i.rounds:2}" if i else f"{'':7}  {'':14} {len(o.ours_us):2}"
        )
        more = f", UNDER THE BAR of {o.bar:.2f}" if o.under else ""
        more += f" ({o.trouble})" if o.trouble else ""
        lines.append(f"{o.pair.case.id:44} {o.pair.peer:14} {o.pair.ratio:7.3f} {told}  {o.verdict}{more}")
    count = {v: sum(o.verdict == v for o in found) for v in (intervals.SLOWER, intervals.SAME, intervals.FASTER)}
    lines.append(", ".join(f"{n} {v}" for v, n in count.items()) + f"; under the bar: {sum(o.under for o in found)}")
    return "\n".join(lines)


def markdown(found: Sequence[Outcome]) -> str:
    """The same for docs/facts.md."""
    lines = ["| cell | best peer | ratio | 99 % interval | rounds | |", "|---|---|--:|---|--:|---|"]
    for o in found:
        i = o.found
        told = f"{i.ratio:.3f} | {i.low:.3f} to {i.high:.3f} | {i.rounds}" if i else f" | | {len(o.ours_us)}"
        word = f"**{o.verdict}, under {o.bar:.2f}**" if o.under else o.verdict
        lines.append(f"| {o.pair.case.id} | {o.pair.peer} | {told} | {word} |")
    return "\n".join(lines)


def data(found: Sequence[Outcome], told: Sequence[Mapping[str, Sequence[Event]]]) -> dict[str, Any]:
    """Everything, samples included, as plain data."""
    return {
        "level": intervals.LEVEL,
        "cells": [
            {
                "id": o.pair.case.id,
                "case": o.pair.case.to_dict(),
                "peer": o.pair.peer,
                "ratio_of_one_process": o.pair.ratio,
                "ours_us": o.ours_us,
                "peer_us": o.peer_us,
                "interval": o.found.__dict__ if o.found else None,
                "verdict": o.verdict,
                "bar": o.bar,
                "under_the_bar": o.under,
                "trouble": o.trouble,
            }
            for o in found
        ],
        "rounds": [{side: list(events) for side, events in sides.items()} for sides in told],
    }


def exit_code(found: Sequence[Outcome], wanted: int = ROUNDS) -> int:
    """1 where a cell is confirmed under its bar, or has fewer rounds than wanted: of three, little can be confirmed."""
    return int(any(o.under or o.found is None or o.found.rounds < wanted for o in found))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    first, _, rest = __doc__.partition("\n")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.confirm", description=first, epilog=rest, formatter_class=raw
    )
    parser.add_argument("report", type=Path, metavar="KERNELS.JSON", help="what benchmarks.kernels wrote")
    parser.add_argument(
        "--cells", nargs="+", default=[], metavar="PATTERN", help="ids, with * and ?, instead of those in doubt"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, choices=range(3, 31), metavar="N", help=f"3 to 30 ({ROUNDS})"
    )
    parser.add_argument(
        "--budget", type=positive_seconds, default=540.0, metavar="SECONDS", help="for everything (540)"
    )
    parser.add_argument("--max-seconds", type=positive_seconds, default=0.3, help="of samples for one cell (0.3)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where confirm.json, .txt and .md go")
    options = parser.parse_args(argv)
    try:
        options.report = json.loads(options.report.read_text(encoding="utf-8"))
        options.chosen = pairs(options.report, options.cells)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}; run python -m benchmarks.kernels --out first")
    except json.JSONDecodeError as error:
        parser.error(f"KERNELS.JSON is no JSON ({error})")
    except (KeyError, TypeError) as error:
        parser.error(f"KERNELS.JSON was not written by benchmarks.kernels ({type(error).__name__}: {error})")
    except ValueError as error:
        parser.error(str(error))
    return options


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    chosen: list[Pair] = options.chosen
    if not chosen:
        print("no cell is in doubt: every ratio is at least 1.02 (forward) or 1.05 (backward)")
        return 0
    budget = Deadline(options.budget)

    def measure(side: str, seconds: float) -> list[Event]:
        plan = {"items": items(chosen, side), "policy": policy(options.max_seconds)}
        return processes.supervise(plan, seconds)

    told = rounds(chosen, options.rounds, budget, measure)
    lost = [e for sides in told for events in sides.values() for e in events if e.get("why") == "no device"]
    if lost:
        print(f"benchmarks.confirm: {lost[0]['reason']}", file=sys.stderr)
        return 2
    found = outcomes(chosen, told)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        contents = {"json": json.dumps(data(found, told), default=str), "txt": text(found), "md": markdown(found)}
        for name, content in contents.items():
            (options.out / f"confirm.{name}").write_text(content + "\n", encoding="utf-8")
    print(text(found))
    return exit_code(found, options.rounds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
