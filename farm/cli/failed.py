"""`farm run --failed [RUN]`: the command line of an earlier run again, for the cells that failed in it."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.cli import common, progress
from farm.cli.text import counted, sentence
from farm.errors import Message, UsageError
from farm.matrix import Plan
from farm.report.queries import Row
from farm.shipping import providers as shipping
from farm.store import Run, Store
from farm.store.results import NO_RESULT, place
from farm.store.run_reader import PLAN
from farm.subject.command_line import NONE
from farm.subject.command_line import OPTIONS as SUBJECT

_OPTIONS = ("address", "devices", "environment", "wait_for_devices", "wait", "sanitize")  # values; None: not given


@dataclass(frozen=True)
class FailedCells:
    """The cells of an earlier run that are to run again.  `statuses`: (key, target pattern) -> status; `ids`: the same
    -> id."""

    run_id: str
    statuses: Mapping[tuple[str, str], str] = field(default_factory=dict)
    ids: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def backends(self) -> list[str]:
        return list(dict.fromkeys(i.partition("/")[0] for i in self.ids.values()))

    def report_missing(self, found: Plan) -> None:
        """Report the failed cells that the matrices do not have any more."""
        # those that --select leaves out are still in the matrices: without one, all of them count
        missing = [i for at, i in self.ids.items() if at not in {(c.cell_key, c.target) for c in found.cells}]
        if missing:
            text = (
                f"{counted(len(missing), 'cell')} that failed in {self.run_id}, first {missing[0]}, cannot run again: "
                "the matrices or the contract have changed"
            )
            print(f"farm run: {sentence(Message(text, id='run-failed-missing'))}", file=sys.stderr)


def again(args: argparse.Namespace, store: Store) -> tuple[argparse.Namespace, FailedCells]:
    """(the options of the earlier run, those that are given now taking precedence; its failed cells).  The new `argv`
    is the complete command line, so that everything that repeats or resumes the new run works from it.

    A run of a part of a plan is repeated from the plan that it kept, as a run of its own: `farm merge` does not take
    it.  UsageError if no farm run made the earlier one."""
    name = args.failed
    if name.endswith((".yaml", ".yml")):  # `--failed` takes the word behind it
        args.matrices, name = [*args.matrices, Path(name)], "last"
    run = store.run(name)
    common.refuse_newer(run, "repeats failed cells of")
    with common.readable(run):
        first = first_options(store, run)
        rows = run.rows
    if args.plan:
        raise UsageError(
            f"--failed repeats {run.id} with the plan that it kept, if it is of a plan; omit --plan",
            id="run-failed-with-plan",
        )
    made = argparse.Namespace(**{**vars(args), "failed": run.id})
    for option in _OPTIONS:
        if getattr(made, option) is None:
            setattr(made, option, getattr(first, option))
    if first.plan:
        kept = run.dir / PLAN
        made.plan, made.target = kept if kept.is_file() else first.plan, first.target
    made.strict_peers = args.strict_peers or first.strict_peers
    made.sandbox = args.sandbox or first.sandbox
    made.matrices = args.matrices or first.matrices
    made.backend = args.backend if args.backend is not None else first.backend
    made.contracts = args.contracts or first.contracts
    for option, value in _subject(args, first).items():
        setattr(made, option, value)
    made.overrides = [*first.overrides, *args.overrides]
    now = {shipping.parse(spec)[0] for spec in args.provider}
    made.provider = [*(s for s in first.provider if shipping.parse(s)[0] not in now), *args.provider]
    made.argv = words(made)
    return made, _failed(run.id, rows, made.strict_peers)


def _subject(args: argparse.Namespace, first: argparse.Namespace) -> dict[str, Any]:
    """The options that name the subject: those given now, else those of the first run that do not contradict them."""
    now = {option: getattr(args, option) for option in SUBJECT if getattr(args, option) is not None}
    was = {option: getattr(first, option) for option in SUBJECT}
    if "wheel" in now or "release" in now:  # each replaces the subject's files
        was["wheel"] = was["release"] = None
    if now.get("subject") == NONE:
        was = dict.fromkeys(was)
    elif "repo" in now and was["subject"] == NONE:
        was["subject"] = None
    return {**was, **now}


def first_options(store: Store, run: Run) -> Any:
    """The options of the `farm run` that made a run, or the run that it was derived from.  UsageError if none did."""
    from farm.cli.main import parser

    seen = [run.id]
    while run.head.get("derived_from") and len(seen) < 100:
        run = store.run(str(run.head["derived_from"]))
        seen.append(run.id)
    argv = [str(word) for word in run.head.get("argv") or []]
    if not run.head.get("kind") or run.head.get("kind") == "run":
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            found = parser("run").parse_args(argv)
            if found.command == "run":
                return found
    raise UsageError(
        f"{seen[0]} was not made by farm run with options that this farm knows, so its failed cells cannot run again; "
        "name the matrices, and select the cells with --select",
        id="run-failed-kind",
    )


def _failed(run_id: str, rows: Sequence[Row], strict_peers: bool) -> FailedCells:
    found = {}
    for row in rows:
        if progress.needs_a_look(row, strict_peers) and (row["status"], row["reason"]) != ("lost", NO_RESULT):
            backend, _, pattern = place(row).partition("@")
            found[row["cell_key"], f"{backend}:{pattern}" if pattern else ""] = row
    return FailedCells(
        run_id, {at: r["status"] for at, r in found.items()}, {at: r["cell_id"] for at, r in found.items()}
    )


def words(args: argparse.Namespace) -> list[str]:
    """The command line of these options, without those that only concern what is printed or written."""
    out = ["run", *map(str, args.matrices)]
    for option, name in (
        ("--backend", "backend"),
        ("--select", "select"),
        ("--address", "address"),
        ("--devices", "devices"),
        ("--environment", "environment"),
        ("--wait-for-devices", "wait_for_devices"),
        ("--wait", "wait"),
        ("--sanitize", "sanitize"),
        ("--plan", "plan"),
        ("--target", "target"),
        ("--failed", "failed"),
        ("--run-id", "run_id"),
        ("--out", "out"),
        *((f"--{option}", option) for option in SUBJECT),
    ):
        if getattr(args, name) is not None:
            out += [option, str(getattr(args, name))]
    for option, values in (("--set", args.overrides), ("--provider", args.provider), ("--contracts", args.contracts)):
        out += [word for value in values for word in (option, str(value))]
    flags = {"--sandbox": args.sandbox, "--strict-peers": args.strict_peers, "-x": args.stop_at_first}
    return [*out, *(flag for flag, given in flags.items() if given)]
