"""`farm confirm`: measure both sides of a suspected slowdown in turn, and record whether it is one."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cli import ab, common, run_command
from farm.cli.text import counted, printable
from farm.errors import InfraError, UsageError
from farm.process import supervisor
from farm.report.confirming import arms_of, chosen, lines, verdicts
from farm.report.nights import News
from farm.store import Store, confirmations

#: The most cells that are measured: some of each group.
CELLS = 24
EXIT = {confirmations.CONFIRMED: 1, confirmations.NOT_CONFIRMED: 0, confirmations.UNDECIDED: 4}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "confirm",
        help="measure both sides of a suspected slowdown in turn, and record whether it is one",
        description="Take the newest slowdown (or speed-up) of the store's nights, check out the last good and the "
        "first bad revision, run some of its cells in both as farm ab does, and record whether it is confirmed. "
        "Exit codes: 0 nothing to confirm or not confirmed, 1 confirmed, 3 infrastructure failure, 4 undecided, or no "
        "commit lies between.",
        epilog="example: farm confirm --backend cuda --repo ~/Liger-Kernel",
    )
    common.matrix_options(p, needed=False)
    p.add_argument("--cell", metavar="ID", help="confirm the step of this cell (default: the newest step)")
    p.add_argument("--faster", action="store_true", help="confirm a speed-up instead of a slowdown")
    p.add_argument("--a", metavar="KEY=VALUE,..", help="what to compare with (default: the last good revision)")
    p.add_argument("--b", metavar="KEY=VALUE,..", help="what to compare (default: the first bad revision)")
    p.add_argument("--repo", metavar="PATH|URL", help="the repository of the revisions (default: that of this folder)")
    p.add_argument("--subject", metavar="FILE", help="describe the subject of both arms by this farm.yaml")
    p.add_argument("--devices", type=int, metavar="N", help="use N devices per backend and node (default: all)")
    p.add_argument("--json", action="store_true", help="print the record as JSON")
    run_command.address_option(p)
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Choose, measure, record, print."""
    from farm.dashboards import views

    if bool(args.a) != bool(args.b):
        raise UsageError("--a and --b go together; name both arms, or neither", id="confirm-arms")
    if args.select is not None:
        text = "--select: farm confirm chooses cells of the step itself; name a step by one of its cells, with --cell"
        raise UsageError(text, id="confirm-select")
    store = common.store(args)
    found = views.newest(views.checked(store))
    news = [n for n in found.nights.news if n.kind == ("faster" if args.faster else "slower")] if found else []
    step = chosen(news, args.cell)
    if step is None:
        what = f"{args.cell} has no step" if args.cell else f"no cell is {'faster' if args.faster else 'slower'}"
        print(f"{printable(what)} in the nights of {store.path}: nothing to confirm")
        return 0
    groups = [n for n in news if (n.before, n.since) == (step.before, step.since)]
    arms = (args.a, args.b) if args.a else arms_of(step)
    if isinstance(arms, str):
        print(f"farm confirm: {printable(arms)}", file=sys.stderr)
        return 4
    code, record = _measured(args, store, groups, arms)
    if record is None:
        return code
    path = confirmations.keep(store.path, record)
    if args.json:
        print(json.dumps(record, indent=1))
    else:
        for line in lines(record):
            print(printable(line))
    others = {(n.before.id, n.since.id) for n in news if n.before} - {(record["before"], record["since"])}
    if others:
        print(f"{counted(len(others), 'other step')} of the nights: name a cell of it with --cell", file=sys.stderr)
    code = EXIT[record["verdict"]]
    print(f"{record['verdict']}: exit {code}; {path}", file=sys.stderr)
    supervisor.concluded(code, complete=True)
    return code


def _measured(
    args: argparse.Namespace, store: Store, groups: Sequence[News], arms: tuple[str, str]
) -> tuple[int, dict[str, Any] | None]:
    """(the exit code of the comparison, the record; None where it did not come to an end)."""
    from farm.cli.main import parser

    first = groups[0]
    assert first.before is not None
    head = store.run(first.since.id).head
    rows = _some(groups)
    run_id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-confirm-{secrets.token_hex(2)}"
    words = ["ab", *(str(m) for m in args.matrices or _matrices(head, rows)), "--a", arms[0], "--b", arms[1]]
    words += ["--select", "id=" + "|".join(str(r["cell_id"]) for r in rows), "--run-id", run_id, "--no-page"]
    words += ["--backend", args.backend or ",".join(dict.fromkeys(str(r["backend"]) for r in rows))]
    words += [w for text in args.overrides for w in ("--set", text)]
    words += [w for text in args.provider for w in ("--provider", text)]
    words += [w for folder in args.contracts for w in ("--contracts", str(folder))]
    for name in ("address", "repo", "subject", "out", "devices"):
        value = getattr(args, name)
        words += [f"--{name}", str(value)] if value is not None else []
    made = parser("ab").parse_args(words)
    made.argv = words
    print(f"farm confirm: {counted(len(rows), 'cell')}, {arms[0]} against {arms[1]}", file=sys.stderr)
    code = ab.run(made)
    supervisor.concluded(InfraError.exit_code, complete=False)  # the comparison's end is not this command's
    if not any(r.id == run_id and r.complete for r in store.runs()):
        # both arms hold the same files, or the comparison was interrupted
        return (4 if code == 0 else code), None
    pairs = store.run(run_id).table("pairs")
    cells = verdicts(rows, pairs, slower=first.kind == "slower")
    return code, {
        "id": run_id,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "run": run_id,
        "before": first.before.id,
        "since": first.since.id,
        "kind": first.kind,
        "arms": list(arms),
        "range": [] if args.a else [first.before.revision, first.since.revision],
        **cells,
    }


def _some(groups: Sequence[News]) -> list[Mapping[str, Any]]:
    """Some cells of each group, spread over it."""
    each = max(1, CELLS // len(groups))
    out: list[Mapping[str, Any]] = []
    for group in groups[:CELLS]:
        rows = [r for r in group.rows if not set(str(r["cell_id"])) & set(",|")]
        some = min(each, len(rows))
        out += [rows[i * len(rows) // some] for i in range(some)]
    return out


def _matrices(head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The matrix files of the cells.  UsageError where one is not here."""
    paths = {m.get("name"): str(m.get("path") or "") for m in head.get("matrices") or ()}
    found = list(dict.fromkeys(paths.get(r.get("matrix"), "") for r in rows))
    missing = next((p or "?" for p in found if not p or not Path(p).is_file()), "")
    if missing:
        raise UsageError(
            f"the matrix {missing}, of which these cells are, is not here; name its file: farm confirm MATRIX",
            id="confirm-matrix-missing",
        )
    return found
