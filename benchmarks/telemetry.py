"""Does reading a device's telemetry move the times of what runs on it?  The same cells with it and without, in turns.

    python -m benchmarks.telemetry --out results                     on the GPU of this host, six fresh processes

While a cell is timed the farm's supervisor reads clocks, power and errors fifty times a second.  Here a process of its
own does the same through the same reader (`farm.guard.sampler`), and a measuring process times each cell four times:
without, with, with, without; the next round's processes the other way round.  A process gives one number per cell and
policy, ln(time with / time without); the interval of their mean, 99 %, is that of `farm/compare/intervals.py`, whose
unit is the process too.

Writes telemetry.json (every median), .txt and .md to --out while it runs.  Exit codes: 0 measured, 1 nothing was, 2
wrong usage, or no GPU or no telemetry here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import cases, kernels, processes
from benchmarks.cases import Case
from farm.compare import intervals
from farm.deadline import Deadline

Event = dict[str, Any]
PROGRAM = (sys.executable, "-m", "benchmarks.telemetry", "--child")
#: From 6 to 130 us on an H200, one kernel and two.
CELLS = (
    ("rms_norm", "forward", 2048, 2048),
    ("rms_norm", "forward", 4096, 4096),
    ("rms_norm", "forward", 32768, 4096),
    ("rms_norm", "backward", 4096, 1024),
    ("rms_norm", "backward", 4096, 16384),
    ("fused_add_rms_norm", "forward", 8192, 4096),
)
METHODS = ("rotating_graph", "events")
#: Whether sampling is on, of the four times that a cell is timed; odd rounds the other way round.
TURNS = (False, True, True, False)
ANSWER_S = 15.0


def items(subject: str) -> list[dict[str, Any]]:
    """What each process measures."""
    subjects = [f"{subject}|{m}" for m in METHODS]
    return [cases.item(Case(op, o, "bfloat16", *shape), subjects, check=True) for op, o, *shape in CELLS]


def turns(round_number: int) -> tuple[bool, ...]:
    """Without, with, with, without; in odd rounds with, without, without, with."""
    return TURNS if round_number % 2 == 0 else tuple(not on for on in TURNS)


def compared(rounds: Sequence[Sequence[Event]]) -> dict[str, Any]:
    """Per cell and policy the interval of time with sampling over time without, and the same of the mean over all cells
    that every process measured."""
    off: dict[tuple[str, str], list[float]] = {}
    on: dict[tuple[str, str], list[float]] = {}
    samples: dict[tuple[str, str], int] = {}
    for events in rounds:
        for key, found in processes.results(events).items():
            if found["status"] == "ok" and found.get("off_us") and found.get("on_us"):
                off.setdefault(key, []).append(_middle(found["off_us"]))
                on.setdefault(key, []).append(_middle(found["on_us"]))
                samples[key] = samples.get(key, 0) + int(found["telemetry_samples"])
    rows = [_row(case, subject, off[case, subject], on[case, subject], samples[case, subject]) for case, subject in off]
    return {"rows": rows, "all": {m: _mean(off, on, m, len(rounds)) for m in METHODS}, "rounds": len(rounds)}


def _middle(us: Sequence[float]) -> float:
    """The geometric mean of a process's two times."""
    return math.exp(math.fsum(map(math.log, us)) / len(us))


def _row(case: str, subject: str, off: list[float], on: list[float], samples: int) -> dict[str, Any]:
    found = intervals.interval(off, on)
    return {
        "case": case,
        "subject": subject,
        "off_us": off,
        "on_us": on,
        "telemetry_samples": samples,
        "on_over_off": _told(found),
    }


def _mean(
    off: Mapping[tuple[str, str], list[float]], on: Mapping[tuple[str, str], list[float]], method: str, rounds: int
) -> dict[str, Any]:
    whole = [k for k in off if k[1].endswith(f"|{method}") and len(off[k]) == rounds]
    pairs = [
        [sum(math.log(side[k][r]) for k in whole) / len(whole) for side in (off, on)]
        for r in range(rounds if whole else 0)
    ]
    found = intervals.interval([math.exp(a) for a, _ in pairs], [math.exp(b) for _, b in pairs])
    return {"cells": len(whole), "on_over_off": _told(found)}


def _told(found: intervals.Interval | None) -> list[float] | None:
    """[estimate, lower, upper end], None of too few rounds."""
    return None if found is None else [found.ratio, found.low, found.high]


def lines(found: Mapping[str, Any]) -> list[list[str]]:
    """The table's head and lines, as text."""
    out = [["cell", "policy", "without us", "with us", "change %", "99 % interval", "processes", "samples"]]
    for row in found["rows"]:
        off, on = (_middle(row[k]) for k in ("off_us", "on_us"))
        out.append(
            [
                row["case"],
                row["subject"].partition("|")[2],
                f"{off:.2f}",
                f"{on:.2f}",
                *_change(row["on_over_off"]),
                str(len(row["off_us"])),
                str(row["telemetry_samples"]),
            ]
        )
    for method, tally in found["all"].items():
        out.append(
            [
                f"mean of {tally['cells']} cells",
                method,
                "",
                "",
                *_change(tally["on_over_off"]),
                str(found["rounds"]),
                "",
            ]
        )
    return out


def _change(ratio: Sequence[float] | None) -> list[str]:
    if ratio is None:
        return ["?", "too few rounds"]
    estimate, low, high = (100 * (r - 1) for r in ratio)
    return [f"{estimate:+.2f}", f"{low:+.2f} to {high:+.2f}"]


def save(folder: Path | None, found: Mapping[str, Any], rounds: Sequence[Sequence[Event]]) -> str:
    """Write all three files, each at once or not at all; the table for a terminal."""
    table = lines(found)
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    text = (
        "\n".join(
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths)))
            for line in table
        )
        + "\n"
    )
    head, *body = table
    rule = "|".join("---" if i < 2 else "--:" for i in range(len(head)))
    mark = "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(line)} |" for line in body)]) + "\n"
    if folder is not None:
        contents = {
            "json": json.dumps({**found, "events": [list(e) for e in rounds]}, default=str),
            "txt": text,
            "md": mark,
        }
        for kind, content in contents.items():
            new = folder / f".telemetry.{kind}"
            new.write_text(content, encoding="utf-8")
            new.replace(folder / f"telemetry.{kind}")
    return text


# the process that reads the device


def sample(device_id: str) -> int:
    """Read the device as a supervisor does, between `on` and `off` on standard input; answers each with a line."""
    from farm.backends import cuda
    from farm.guard.sampler import Sampler

    reader = cuda.telemetry(device_id, {}, "")
    print("none" if reader is None else "ready", flush=True)
    if reader is None:
        return 0
    watch = Sampler(reader)
    for line in sys.stdin:
        if line.strip() == "on":
            watch.begin()
            print("on", flush=True)
        else:
            print(len(watch.end()), flush=True)
    watch.close()
    return 0


class Sampler:
    """That process, from the side of the one that measures."""

    def __init__(self, device_id: str, command: Sequence[str] = (sys.executable, "-m", "benchmarks.telemetry")):
        self.samples = 0
        self.process = subprocess.Popen(
            [*command, "--sample", device_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        if self._answer() != "ready":
            raise RuntimeError("the device's telemetry cannot be read here (farm doctor says what is missing)")

    @contextlib.contextmanager
    def sampling(self, on: bool) -> Iterator[None]:
        """Within it the device is read, or not."""
        if not on:
            yield
            return
        self._say("on")
        try:
            yield
        finally:
            self.samples += int(self._say("off"))

    def _say(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        import select

        out = self.process.stdout
        assert out is not None
        if not select.select([out], [], [], ANSWER_S)[0]:
            raise RuntimeError(f"the telemetry's reader did not answer within {ANSWER_S:g} s: the driver is stuck")
        return out.readline().strip()


def measuring() -> Any:
    """The measuring process's class; torch comes with it."""
    from benchmarks import child
    from benchmarks.work import Work
    from farm.child.timing import POLICIES, Bench, TimingResult
    from farm.timing.statistics import quantile

    class Process(child.Process):
        """As `benchmarks.child`; a subject is `PROVIDER|METHOD`, timed four times."""

        sampler: Any = None

        def measured(self, work: Work, subject: str) -> dict[str, Any]:
            provider, _, method = subject.partition("|")
            sampler = self.sampler
            times: dict[bool, list[float]] = {False: [], True: []}
            before = sampler.samples

            def timer(bench: Bench) -> TimingResult:
                for on in turns(int(self.plan["round"])):
                    with sampler.sampling(on):
                        result = POLICIES[method](bench)
                    times[on].append(quantile(sorted(result.samples_us), 0.5))
                return result

            self.device.timer = timer
            found = super().measured(work, provider)
            return {
                **found,
                "off_us": times[False],
                "on_us": times[True],
                "telemetry_samples": sampler.samples - before,
            }

    return Process


def child_main(argv: Sequence[str]) -> int:
    """One measuring process with its reader beside it."""
    from benchmarks import child

    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    kind = measuring()
    try:
        kind.sampler = Sampler(shown)
    except RuntimeError as error:
        told = {"event": "end", "why": "no device", "reason": str(error)}
        Path(argv[1]).write_text(json.dumps(told) + "\n", encoding="utf-8")
        return 0
    return child.main(list(argv), kind)


# the command


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse exits with 2 and one sentence where it is wrong."""
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks.telemetry",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes")
    parser.add_argument("--budget", type=kernels.positive_seconds, default=120.0, metavar="SECONDS", help="(120)")
    parser.add_argument("--rounds", type=kernels._count, default=6, metavar="N", help="fresh processes (6)")
    parser.add_argument("--provider", choices=(cases.OURS, *cases.PEERS), default=cases.OURS)
    parser.add_argument(
        "--max-seconds", type=kernels.positive_seconds, default=0.06, help="of samples for one of a cell's times (0.06)"
    )
    options = parser.parse_args(argv)
    if options.rounds < intervals.MIN_ROUNDS:
        parser.error(f"argument --rounds: fewer than {intervals.MIN_ROUNDS} processes give no interval")
    return options


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["--sample"]:
        return sample(argv[1])
    options = parse(argv)
    budget, rounds, longest = Deadline(options.budget), list[list[Event]](), 0.0
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    for number in range(options.rounds):
        # A process that is cut short would cost its last cells a round; one that is not started costs every cell one.
        if budget.remaining < max(longest, processes.LEAST_S):
            print(f"round {number + 1} of {options.rounds}: not started, the time is up")
            break
        left = budget.remaining
        plan = {"items": items(options.provider), "policy": kernels.policy(options.max_seconds), "round": number}
        events = processes.supervise(plan, left, program=PROGRAM)
        last = processes.ended(events)
        if last and last["why"] == "no device":
            print(f"benchmarks.telemetry: {last['reason']}", file=sys.stderr)
            return 2
        longest = max(longest, left - budget.remaining)
        rounds.append(events)
        save(options.out, compared(rounds), rounds)
    found = compared(rounds)
    print(save(options.out, found, rounds))
    print(f"{options.budget - budget.remaining:.0f} s of {options.budget:.0f}")
    return int(not found["rows"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        code = child_main(sys.argv[2:])
        sys.stdout.flush()
        os._exit(code)  # a context that is lost would hang or crash the interpreter's own end
    sys.exit(main(sys.argv[1:]))
