"""`farm pr --remeasure`: measure a share of a store's past verdicts again, and say how many were overturned."""

from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cli import ab, common, run_command
from farm.cli.pr_measure import refuse_token, write
from farm.cli.text import counted, printable, sentence
from farm.compare import overturned
from farm.compare.arms import SOURCES, VARIABLE
from farm.compare.overturned import Again, Past
from farm.errors import FarmError, InfraError, StoreError, UsageError
from farm.process import supervisor
from farm.store import Run, Store

MAX_RUNS = 1000
MARK = "-again-"  # in the id of a run that measured again; its verdicts are not drawn
SHOWN = 20
#: What the command line of a comparison says, apart from its arms, repository, matrices and name.
_KEPT = (
    "backend", "select", "overrides", "provider", "contracts", "subject", "address", "devices", "environment",
    "wait_for_devices", "wait", "sandbox", "strict_peers",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Draw, measure, count.  0: none was overturned; 1: some were; 3: a fault of the farm's; 4: nothing was decided."""
    refuse_token()
    if not (math.isfinite(args.remeasure) and 0 < args.remeasure <= 1):
        raise UsageError(
            f"--remeasure {args.remeasure:g}: must be a share, more than 0 and at most 1", id="pr-remeasure-share"
        )
    run_command.resolve_address(args)
    store = common.store(args)
    runs = {r.id: r for r in _comparisons(store)}
    every = [v for r in runs.values() for v in _past(r)]
    if not every:
        raise UsageError(
            f"{store.path}: no verdict of a comparison of two arms is here to be measured again; name another store "
            "with --out",
            id="pr-remeasure-nothing",
        )
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    chosen = overturned.drawn(every, args.remeasure, seed)
    print(
        f"farm pr: measures {counted(len(chosen), 'verdict')} of {len(every)} again, drawn by --seed {seed}",
        file=sys.stderr,
    )
    found, faults = list[Again](), 0
    for name in dict.fromkeys(v.run for v in chosen):
        asked = [v for v in chosen if v.run == name]
        try:
            found += _again(args, store, runs[name], asked)
        except FarmError as error:
            faults += isinstance(error, InfraError)
            found += [Again(v, "", None, sentence(error)[:300]) for v in asked]
    return _report(args, found, len(every), seed, faults)


def _comparisons(store: Store) -> list[Run]:
    out = []
    for run_ in store.runs()[-MAX_RUNS:]:
        try:
            if run_.complete and MARK not in run_.id and run_.head.get("kind") == "ab":
                out.append(run_)
        except StoreError as error:
            print(f"farm pr: {sentence(error)}", file=sys.stderr)
    return out


def _past(run_: Run) -> list[Past]:
    try:
        with common.readable(run_):
            return overturned.past(run_.id, run_.table("pairs"))
    except StoreError as error:
        print(f"farm pr: {sentence(error)}", file=sys.stderr)
        return []


def _again(args: argparse.Namespace, store: Store, before: Run, asked: Sequence[Past]) -> list[Again]:
    """The same arms, for these cells alone.  UsageError where the run cannot be repeated exactly."""
    name = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}{MARK}{secrets.token_hex(2)}"
    code = ab.run(_command(args, before, [v.cell for v in asked], name))
    supervisor.concluded(InfraError.exit_code, complete=False)  # the comparison's end is not the command's
    try:
        made = store.run(name)
        complete = made.complete
    except StoreError:
        complete = False
    if not complete:
        raise InfraError(f"the comparison ended early (exit {code})", id="pr-remeasure-ended")
    for arm, known in before.head["arms"].items():
        if known.get("digest") != made.head["arms"][arm].get("digest"):
            raise UsageError(f"arm {arm} has other files than then", id="pr-remeasure-files")
    return overturned.answers(asked, made.table("pairs"))


def _command(args: argparse.Namespace, before: Run, cells: Sequence[str], name: str) -> argparse.Namespace:
    """The command line of `farm ab` that repeats a run for some of its cells."""
    from farm.cli.main import parser

    head = before.head
    try:
        first = parser("ab").parse_args([str(word) for word in head.get("argv") or ()])
    except SystemExit:
        raise UsageError("its command line is none that this farm knows", id="pr-remeasure-command") from None
    if any("," in cell or "|" in cell for cell in cells):
        raise UsageError("a cell's id has a comma, which --select cannot name", id="pr-remeasure-command")
    argv = ["ab", *map(str, first.matrices)]
    for arm in "ab":
        argv += [f"--{arm}", _arm(head["arms"][arm])]
    for option in _KEPT:
        value = getattr(first, option)
        flag = "--set" if option == "overrides" else f"--{option.replace('_', '-')}"
        if option == "select" or (option == "backend" and args.backend):
            continue
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                argv += [flag]
            elif one not in (None, False):
                argv += [flag, str(one)]
    argv += ["--backend", args.backend] if args.backend else []
    argv += ["--select", "id=" + "|".join(cells), "--run-id", name, "--no-page"]
    argv += ["--repo", args.repo] if first.repo else []
    argv += ["--out", args.out] if args.out else []
    made = parser("ab").parse_args(argv)
    made.argv, made.debug = argv, args.debug
    return made


def _arm(known: Mapping[str, Any]) -> str:
    """An arm as the run recorded it: a branch may have moved since."""
    kind, source = known.get("kind", ""), known.get("source", "")
    revision = str((known.get("subject") or known).get("revision") or "")  # without a subject, of our own kernels
    if kind == "revision":
        source = revision.partition("+")[0]
        if revision.endswith("+") or not source:
            raise UsageError("an arm was a working tree with changes, which are not kept", id="pr-remeasure-tree")
    if known.get("patch") and not Path(known["patch"]).is_file():
        raise UsageError("an arm had a patch that is not there any more", id="pr-remeasure-patch")
    told = [f"{kind}={source}"] if kind in SOURCES else []
    told += [f"{key}={known[key]}" for key in ("patch", "environment", "provider", "mode") if known.get(key)]
    told += [f"{VARIABLE}{name}={value}" for name, value in (known.get("variables") or {}).items()]
    return ",".join(told)


def _report(args: argparse.Namespace, found: Sequence[Again], of: int, seed: int, faults: int) -> int:
    decided = [a for a in found if a.said]
    wrong = [a for a in decided if a.overturned]
    most = overturned.at_most(len(wrong), len(decided))
    code = 1 if wrong else 0 if decided else InfraError.exit_code if faults else 4
    for one in wrong[:SHOWN]:
        print(printable(f"overturned: {one.past.cell}: {_words(one.past)} in {one.past.run}, {_words(one)} now"))
    if len(wrong) > SHOWN:
        print(f"and {len(wrong) - SHOWN} more")
    for why, count in Counter(a.why for a in found if not a.said).most_common(SHOWN):
        print(printable(f"not decided again: {counted(count, 'verdict')}: {why}"))
    bound = f"at most {100 * most:.1f} % of such verdicts are (95 %)" if decided else "nothing was decided again"
    print(f"farm pr: {len(wrong)} of {len(decided)} verdicts overturned; {bound}; seed {seed}: exit {code}")
    if args.result is not None:
        told: dict[str, Any] = {"seed": seed, "verdicts": of, "drawn": len(found), "decided": len(decided)}
        told |= {
            "overturned": len(wrong),
            "at_most": most,
            "level": overturned.LEVEL,
            "again": [asdict(a) for a in found],
        }
        write(args.result, json.dumps(told, indent=1))
    return code


def _words(of: Past | Again) -> str:
    return f"{of.said}{f' ({of.ratio:.4g})' if of.ratio else ''}"
