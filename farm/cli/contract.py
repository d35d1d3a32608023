"""`farm contract check`: what is wrong with an op's contract, and which planted faults it finds."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from typing import Any

from farm.accuracy import contract_check
from farm.accuracy.contract_check import Score
from farm.cli import common
from farm.cli.text import counted, printable
from farm.contracts import discovery
from farm.contracts.base import Contract
from farm.contracts.from_torch import evaluate_with
from farm.errors import ContractError, FarmError
from farm.judge.references import References
from farm.node import config, reference

MAX_SHOWN = 40


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
        "2: the contract is wrong; 1: a planted fault escapes, or a correct result is rejected.",
        epilog="example: farm contract check softmax --contracts contracts",
    )
    check.add_argument("op", metavar="OP", help="op whose contract to check")
    check.add_argument("--json", action="store_true", help="print the result as JSON")
    common.contracts_option(check)


def run(args: argparse.Namespace) -> int:
    """Check, print, and say by the exit code whether something escaped."""
    common.use_contracts(args)
    op = args.op
    found = named(op)
    with tempfile.TemporaryDirectory(prefix="farm-contract-") as place:
        references = References(place, command=reference.reference_command(config.load(), place))
        evaluate_with(references)
        try:
            wrong = contract_check.problem(found, op)
            if wrong:
                raise ContractError(f"{discovery.file_of(op)}: {wrong}", id="contract-wrong")
            score = contract_check.score(found, told=lambda text: _progress(f"{op}: {text}"))
        finally:
            _progress("")
            evaluate_with(None)
            references.close()
    if args.json:
        print(json.dumps(plain(score), indent=1))
    else:
        tell(score)
    return 1 if score.escaped or score.accused else 0


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


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(text)[:100]}", end="", file=sys.stderr, flush=True)


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
    }


def tell(score: Score) -> None:
    """Print a score."""
    total = len(score.found) + len(score.escaped)
    print(f"{score.op}: the contract is sound; {len(score.found)} of {counted(total, 'planted fault')} found")
    if score.same:
        print(f"  {counted(len(score.same), 'fault')} left out, which change no value in any input family")
    for dtype, plant in score.escaped[:MAX_SHOWN]:
        print(f"  escaped: {dtype}: {plant}")
    if len(score.escaped) > MAX_SHOWN:
        print(f"  and {len(score.escaped) - MAX_SHOWN} more (--json prints all)")
    for text in score.accused[:MAX_SHOWN]:
        print(f"  a correct result is rejected: {printable(text)}")
