"""`farm sweep`: run ops at shapes that nobody chose, and say how the best peer's times relate to ours."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm import atomic_files, backends
from farm.cli import common, run_command
from farm.cli.phases import Phases
from farm.cli.text import counted, printable
from farm.contracts import discovery
from farm.errors import StoreError, UsageError
from farm.matrix import builtin_providers, drawn
from farm.process import supervisor
from farm.shipping import providers as shipping
from farm.shipping import revision
from farm.store import Run

FOLDER = "sweeps"
OWN = "farm"
COUNT = 20
MOST_MINUTES = 7 * 24 * 60.0
MIB = 1 << 20
SMALL = 1  # MiB, where nothing computes that is fast: the interpreter takes 2 ms for a row


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "sweep",
        help="measure ops at randomly drawn shapes, and show the distribution against the best peer",
        description="Draw shapes that no kernel was tuned for, and run our kernels and every peer on them as farm run "
        "does; then all modes and tuned peers where we are less than 2 % ahead. Print the losses first, then the best "
        "peer's time divided by ours by size and direction. The same command continues a sweep that was interrupted, "
        "and shows one that is finished.",
        epilog="example: farm sweep rms_norm fused_add_rms_norm --backend cuda --count 20",
    )
    p.add_argument("ops", nargs="+", metavar="OP", help="op with the dimensions rows and hidden")
    p.add_argument(
        "--seed",
        metavar="TEXT",
        help="draw the shapes of this seed (default: git's hash of the folder kernels, else the hash of its content: "
        "no kernel can have been tuned on these shapes)",
    )
    p.add_argument("--count", type=int, default=COUNT, metavar="N", help=f"how many shapes to draw (default: {COUNT})")
    p.add_argument(
        "--largest",
        type=float,
        metavar="MIB",
        help=f"draw no matrix of more than MIB mebibytes (default: {drawn.MOST_BYTES // MIB}; on the CPU {SMALL})",
    )
    p.add_argument("--limit-minutes", type=float, metavar="M", help="stop after M minutes; the same command continues")
    p.add_argument("--provider", action="append", default=[], metavar="[OP:]NAME=module:function")
    p._actions[-1].help = "add your own provider, which is measured as a subject"
    p.add_argument("--peers", metavar="NAME,..", help="compare with these peers only (default: all)")
    p.add_argument("--of", metavar="PROVIDER", default="", help="whose times peers are compared with (default: farm)")
    p.add_argument(
        "--backend", metavar="B", help="use this backend (default: the accelerators that are here, else cpu)"
    )
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    p._actions[-1].help = "replace one value in the matrices, for example deadlines.check=5"
    run_command.address_option(p)
    p.add_argument("--devices", type=int, metavar="N", help="use N devices per backend and node (default: all)")
    p.add_argument("--environment", metavar="NAME", help="start children in this environment of the nodes")
    p.add_argument("--wait", type=float, metavar="SECONDS", help="wait so long for devices that other runs use")
    p.add_argument("--wait-for-devices", type=float, metavar="SECONDS", help="wait so long for devices to join")
    p.add_argument("--run-id", metavar="ID", help="name the first run; ID-modes is the second (default: by content)")
    p.add_argument("--dry-run", action="store_true", help="print the matrix of the first phase, and run nothing")
    p.add_argument("--picture", type=Path, metavar="FILE", help="draw the distribution into this SVG file")
    p.add_argument("--json", action="store_true", help="print the distribution as JSON")
    p.add_argument("--no-page", action="store_true", help="do not build the runs' pages")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Draw, run both phases, print the distribution."""
    begun = time.monotonic()
    _check(args)
    seed, source = (args.seed, "given") if args.seed is not None else default_seed()
    wanted = _backends(args)
    largest = args.largest if args.largest is not None else SMALL if set(wanted) <= {"cpu", "sim"} else None
    most = drawn.MOST_BYTES if largest is None else int(largest * MIB)
    shapes = drawn.draws(seed, args.count, most)
    own, peers = _providers(args, wanted)
    supported = {op: contract.operations for op in args.ops if (contract := discovery.find(op)) is not None}
    text = drawn.first(supported, shapes, own, peers)
    if args.dry_run:
        print(text, end="")
        return 0
    store = common.store(args)
    print(f"farm sweep: {counted(len(shapes), 'shape')} of seed {printable(seed)} ({source})", file=sys.stderr)
    if wanted == ["cpu"]:
        text_ = f"on the CPU no speed is measured: this checks numerics alone, at matrices of up to {most / MIB:g} MiB"
        print(f"farm sweep: {text_}", file=sys.stderr)
    what = "\0".join((text, revision.content(), *args.provider, *args.overrides, args.backend or ""))
    work = Phases("sweep", FOLDER, args, store, what, begun)
    code, first = work.phase(work.name, text)
    second = None
    if first is not None:
        again = _again(first, args, own, wanted)
        if again:
            more, second = work.phase(f"{work.name}-modes", again)
            code = max(code, more)
    first_known = first or work.partial()
    if first_known is None:
        return code
    facts = {"seed": seed, "seed_is": source, "count": len(shapes), "largest_bytes": most, "ops": list(args.ops)}
    names = [r.id for r in (first_known, second) if r is not None]
    _tell(args, first_known, second, {**facts, "runs": names, "complete": first is not None})
    supervisor.concluded(code, complete=True)
    return code


def default_seed() -> tuple[str, str]:
    """(git's hash of the kernels' tree, or that of their content; which of the two it is).  UsageError without them."""
    if tree := revision.kernels_tree():
        return tree, "git's hash of the folder kernels"
    if content := revision.content():
        return content, "the hash of the kernels' content"
    raise UsageError("our kernels are not on this host, so there is no default seed; give --seed", id="sweep-seed")


def _check(args: argparse.Namespace) -> None:
    common.check_range("--count", args.count, 1, drawn.MOST_COUNT)
    common.check_run_id(args.run_id)
    for option, value, most in (
        ("--limit-minutes", args.limit_minutes, MOST_MINUTES),
        ("--largest", args.largest, 4096),
    ):
        if value is not None and not (math.isfinite(value) and 0 < value <= most):
            raise UsageError(f"{option} {value:g}: must be more than 0 and at most {most:g}", id="sweep-range")
    if args.largest is not None and args.largest * MIB < drawn.LEAST_LARGEST:
        raise UsageError(f"--largest {args.largest:g}: must be at least 1", id="sweep-range")
    for op in args.ops:
        contract = discovery.find(op)
        if contract is None:
            known = ", ".join(discovery.known_ops())
            raise UsageError(f"there is no op {op} (available ops: {known})", id="sweep-op-unknown")
        names = tuple(d.name for d in contract.dimensions)
        if names != drawn.DIMENSIONS:
            raise UsageError(
                f"{op} has the dimensions {', '.join(names)}, and a sweep draws rows and hidden; write a matrix for it",
                id="sweep-op-dimensions",
            )
    if len(set(args.ops)) < len(args.ops):
        raise UsageError("an op is named twice; name each op once", id="sweep-op-twice")
    if args.picture is not None and (args.picture.is_dir() or not args.picture.absolute().parent.is_dir()):
        raise UsageError(f"--picture {args.picture}: name a file in a folder that exists", id="sweep-picture")


def _backends(args: argparse.Namespace) -> list[str]:
    """The named backends; else this host's accelerators; else cpu.  Of a cluster that nobody named: every one."""
    run_command.resolve_address(args)
    if named := common.named_backends(args):
        return named
    if args.address not in ("local", "inline"):
        return list(backends.accelerators())
    return [b for b in backends.accelerators() if run_command.host_has(b)] or ["cpu"]


def _providers(args: argparse.Namespace, wanted: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """(built-in subjects, op -> peers).  Those of --provider come into every matrix by themselves."""
    known = builtin_providers()
    own = [OWN] if all(known[OWN].does(op) for op in args.ops) else []
    names = [shipping.parse(spec)[0].rpartition(":")[2] for spec in args.provider]
    if not own and not names:
        raise UsageError(
            f"farm has no kernel for {' and '.join(op for op in args.ops if not known[OWN].does(op))}; "
            "name yours with --provider",
            id="sweep-no-subject",
        )
    if args.of and args.of not in (*own, *names):
        have = ", ".join((*own, *names))
        raise UsageError(f"--of {args.of}: not a subject of this sweep; subjects are {have}", id="sweep-of-unknown")
    peers = {op: [n for n, i in known.items() if i.role == "peer" and i.does(op)] for op in args.ops}
    asked = [n.strip() for n in args.peers.split(",")] if args.peers is not None else None
    for name in asked or ():
        if not any(name in found for found in peers.values()):
            have = ", ".join(dict.fromkeys(n for found in peers.values() for n in found))
            raise UsageError(f'--peers: "{name}" is no peer of these ops; peers are {have}', id="sweep-peer-unknown")
    kept = {op: [n for n in found if asked is None or n in asked] for op, found in peers.items()}
    return own, {op: found if asked else drawn.on(found, wanted) for op, found in kept.items()}


def _again(first: Run, args: argparse.Namespace, own: Sequence[str], wanted: Sequence[str]) -> str:
    """The matrices of the second phase; "" where nothing has to be asked again."""
    from farm.report import sweep

    found = sweep.sweep(first, of=args.of)
    asked = sweep.ask_again(found)
    timed = {str(r["provider"]) for r in first.rows if r.get("time_us_p50") is not None}
    known = builtin_providers()
    modes = {op: {n: i.modes for n, i in known.items() if n in timed and i.does(op)} for op in args.ops}
    cells = dict.fromkeys((c.op, c.operation, drawn.Draw(c.rows, c.hidden, c.dtype)) for c in asked)
    if asked:
        print(
            f"farm sweep: {counted(len(cells), 'cell')} of {len(found.compared)} under {sweep.ASK_AGAIN}: all modes "
            "and tuned peers follow",
            file=sys.stderr,
        )
    return drawn.second(cells, own, modes)


def _tell(args: argparse.Namespace, first: Run, second: Run | None, facts: Mapping[str, Any]) -> None:
    """Print the distribution, and draw it."""
    from farm.report import sweep

    with common.readable(first):
        found = sweep.sweep(first, second, args.of)
    if args.json:
        print(sweep.as_json(found, dict(facts)))
    else:
        for line in sweep.lines(found):
            print(printable(line) if line else "")
        print(
            f"seed {printable(str(facts['seed']))}, {counted(facts['count'], 'shape')}, runs {', '.join(facts['runs'])}"
        )
        if not facts["complete"]:
            print("the sweep is not complete; repeat the command to continue it")
    if args.picture is not None:
        from farm.dashboards import sweep_picture

        title = f"best peer's time / {found.of}'s: seed {str(facts['seed'])[:12]}, {facts['count']} shapes"
        try:
            atomic_files.write(args.picture, sweep_picture.picture(found, title))
        except OSError as error:
            text = f"--picture {args.picture}: cannot be written ({error.strerror}); name another file"
            raise StoreError(text, id="sweep-picture") from None
