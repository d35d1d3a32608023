"""`farm contract check`: what is wrong with an op's contract, and which planted faults it finds."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from typing import Any

from farm.accuracy import contract_check, contract_score
from farm.accuracy.contract_score import Score
from farm.cli import common
from farm.cli.text import counted, printable
from farm.contracts import discovery
from farm.contracts.base import Contract
from farm.contracts.torch_contract import evaluate_with
from farm.deadline import Deadline
from farm.errors import ContractError, FarmError, UsageError
from farm.judge.references import References
from farm.node import config, reference
from farm.subject import command_line

MAX_SHOWN = 40
#: Of planting faults, and between two lines of progress.
SECONDS, EVERY = 300.0, 5.0
MAX_SECONDS = 86400.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "contract",
        help="check the contract of an op: is it sound, and which faults does it find?",
        description="Work on the contracts of ops.",
        epilog="example: farm contract check softmax --contracts contracts",
    )
    inner = p.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = inner.add_parser(
        "check",
        help="check the contract of an op",
        description="Check what a contract declares and computes, on small cells. Then plant a fixed list of faults in "
        "its reference, for each input and output, and report which of them its inputs and tolerances find. Exit code "
        "2: the contract is wrong; 1: a planted fault escapes, or a correct result is rejected; 4: the time was over "
        "before every fault was planted.",
        epilog="example: farm contract check softmax --contracts contracts",
    )
    check.add_argument("op", metavar="OP", help="op whose contract to check")
    check.add_argument("--json", action="store_true", help="print the result as JSON")
    check.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="N",
        help=f"plant no more faults after N seconds (default {SECONDS:g})",
    )
    common.contracts_option(check)


def run(args: argparse.Namespace) -> int:
    """Check, print, and say by the exit code whether something escaped."""
    common.use_contracts(args)
    op = args.op
    if not 0 < args.seconds <= MAX_SECONDS:
        raise UsageError(
            f"--seconds {args.seconds:g}: must be more than 0 and at most {MAX_SECONDS:g}", id="contract-seconds"
        )
    command_line.know([op], args.contracts)
    found = named(op)
    with tempfile.TemporaryDirectory(prefix="farm-contract-") as place:
        references = References(place, command=reference.reference_command(config.load(), place))
        evaluate_with(references)
        try:
            wrong = contract_check.problem(found, op)
            if wrong:
                raise ContractError(f"{discovery.file_of(op)}: {wrong}", id="contract-wrong")
            progress, deadline = Progress(op), Deadline(args.seconds)
            score = contract_score.score(found, told=progress, go_on=lambda: not deadline.expired)
            progress.end()
        finally:
            evaluate_with(None)
            references.close()
    if args.json:
        print(json.dumps(plain(score), indent=1))
    else:
        tell(score)
    if score.escaped or score.accused:
        return 1
    return 4 if score.done < score.cells else 0


def named(op: str) -> Contract:
    """The contract of an op, imported.  ContractError, in one sentence, for a file that cannot be."""
    try:
        return discovery.named(op)
    except FarmError:
        raise
    except Exception as error:  # anything that its code raises
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]
        raise ContractError(
            f"{discovery.file_of(op)}: cannot be imported ({why}); correct that file", id="contract-import"
        ) from error


class Progress:
    """Says on stderr how far a check is: in place on a terminal, else a line every EVERY seconds."""

    def __init__(self, op: str) -> None:
        self._op, self._deadline = op, Deadline(EVERY)
        self._terminal = sys.stderr.isatty()

    def __call__(self, done: int, cells: int, found: int, open: int) -> None:
        text = f"{self._op}: {done} of {cells} cells, {counted(found, 'fault')} found, {open} not yet"
        if self._terminal:
            print(f"\r\x1b[K{printable(text)[:100]}", end="", file=sys.stderr, flush=True)
        elif self._deadline.expired:
            self._deadline = Deadline(EVERY)
            print(f"  {printable(text)}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def plain(score: Score) -> dict[str, Any]:
    """A score as JSON-able data."""

    def listed(pairs: Any) -> list[dict[str, str]]:
        return [{"dtype": dtype, "where": plant.where, "fault": plant.name} for dtype, plant in pairs]

    return {
        "op": score.op,
        "share": round(score.share, 4),
        "found": listed(score.found),
        "escaped": listed(score.escaped),
        "same": listed(score.same),
        "accused": list(score.accused),
        "undecided": listed(score.undecided),
        "cells": score.cells,
        "done": score.done,
    }


def tell(score: Score) -> None:
    """Print a score."""
    total = len(score.found) + len(score.escaped) + len(score.undecided)
    print(f"{score.op}: the contract is sound; {len(score.found)} of {counted(total, 'planted fault')} found")
    if score.same:
        print(f"  {counted(len(score.same), 'fault')} left out, which change no value in any input family")
    if score.done < score.cells:
        print(f"  the time was over after {score.done} of {score.cells} cells; give more with --seconds")
    for dtype, plant in score.escaped[:MAX_SHOWN]:
        print(f"  escaped: {dtype}: {plant}")
    if len(score.escaped) > MAX_SHOWN:
        print(f"  and {len(score.escaped) - MAX_SHOWN} more (--json prints all)")
    for text in score.accused[:MAX_SHOWN]:
        print(f"  a correct result is rejected: {printable(text)}")
