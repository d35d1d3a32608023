"""`farm resume`: an interrupted run goes on, in its own directory, with the cells that have no result."""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from farm import backends, revision
from farm.cli import common, launching
from farm.cli.text import printable
from farm.coordinator import RunRequest
from farm.coordinator.clusters import Changes, Slot
from farm.errors import StoreError, UsageError
from farm.matrix import MatrixInfo, Plan
from farm.matrix.plan import plan_hash
from farm.results import SCHEMA
from farm.shipping import providers as shipping
from farm.sites import planfile
from farm.store import Store, before
from farm.store.before import Before

#: What the run was started with, unless the command line says otherwise: option -> its default in `farm run`.
_FIRST = {"address": "local", "devices": None, "environment": None, "wait_for_devices": None, "strict_peers": False}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "resume",
        help="an interrupted run goes on with the cells that have no result",
        description="Runs the cells of an interrupted run that have no result, or are lost, in its own directory. What "
        "the run was started with holds again, unless it is given anew.",
        epilog="example: farm resume last --address auto",
    )
    p.add_argument("run", metavar="RUN", help="a run id, its beginning, or `last`")
    common.store_option(p)
    p.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="[OP:]NAME=module:function",
        help="where one of the run's own providers is now",
    )
    p.add_argument(
        "--other-revision",
        action="store_true",
        help="go on though the kernels, or the run's own providers, are not those that the run began with",
    )
    launching.options(p, address=None)


def run(args: argparse.Namespace) -> int:
    """Lock, read what is known, run the rest, say how it went."""
    store = common.store(args)
    writer = store.reopen(args.run, lambda text: print(f"farm resume: {text}", file=sys.stderr, flush=True))
    cluster: Any = None
    try:
        known = _known(store, writer.id)
        _as_begun(args, known.head.get("argv") or [])
        launching.check(args)
        plan = _plan(known)
        now = {**revision.of(), "kernels": revision.content()}
        providers, shipped = _providers(args, known.head)
        _same_code(args, writer.id, known.head, now, providers)
        begun = time.monotonic()
        wanted = list(dict.fromkeys(c.backend for c in known.open))
        cluster, slots = _connect(args, writer.id, wanted, plan)
    except BaseException:
        if cluster is not None:
            cluster.close()
        writer.close()
        raise
    print(f"run {writer.id}: {len(known.rows)} of {len(known.cells)} cells have their result", file=sys.stderr)
    request = RunRequest(
        plan,
        slots,
        "farm " + shlex.join(args.argv),
        args.argv,
        now,
        providers,
        environment=launching.environment(args),
        options={"shipped": shipped} if shipped else {},
        strict_peers=args.strict_peers,
        calibrations=launching.damaged_calibrations("resume", store),
        finished=known,
        wait_for_devices_s=args.wait_for_devices or 0.0,
    )
    return launching.go(args, store, writer, cluster, request, known.open, begun)


def _known(store: Store, run_id: str) -> Before:
    """What the run's journal says, refused where nothing can go on from it."""
    run = store.run(run_id)
    with common.readable(run):
        known = before.read(run.journal())
    head = known.head
    if not head:
        raise StoreError(f"{run.dir}: its plan was not written whole, so nothing had begun; run it again")
    if head.get("schema") != SCHEMA:
        raise StoreError(
            f"{run.dir}: the run was written with schema {head.get('schema')}, this farm goes on with {SCHEMA}; "
            "resume it with the farm that began it"
        )
    if head.get("kind"):
        word = {"compile": "compiled", "judged": "judged again"}.get(str(head["kind"]), str(head["kind"]))
        raise UsageError(f"{run.id} was {word}, not run, and needs no device; do that again")
    if not known.planned:
        raise StoreError(f"{run.dir}: its plan was not written whole, so nothing had begun; run it again")
    if plan_hash(known.cells) != head.get("plan_hash") or len(known.cells) != head.get("planned"):
        raise StoreError(f"{run.dir}: its cells do not fit its plan's hash, so its journal was damaged or edited")
    return known


def _as_begun(args: argparse.Namespace, argv: list[str]) -> None:
    """Give every option that was not given now the value that the run was started with."""
    from farm.cli.main import parser

    first: Any = argparse.Namespace()
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        first = parser().parse_args([str(word) for word in argv])  # of another farm's options: as if none were given
    for name, default in _FIRST.items():
        if getattr(args, name) is None or getattr(args, name) is False:  # 0 seconds are said
            setattr(args, name, getattr(first, name, default))


def _plan(known: Before) -> Plan:
    """The run's plan again, from its journal."""
    try:
        matrices = tuple(MatrixInfo.from_dict(m) for m in known.head["matrices"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the run's journal does not say what its matrices were ({error}); run it again") from None
    unfit = planfile.unfit(known.cells, launching.contract_version)
    if unfit:
        raise UsageError(f"{known.head['run_id']}: {unfit}; resume it with the farm that began it, or run it again")
    return Plan(known.cells, matrices, known.head["plan_hash"], {})


def _providers(
    args: argparse.Namespace, head: Mapping[str, Any]
) -> tuple[dict[str, dict[str, str]], dict[str, Any] | None]:
    """The run's own providers as they are here, and their files."""
    paths = {name: str(told["path"]) for name, told in (head.get("providers") or {}).items()}
    for spec in args.provider:
        name, path = shipping.parse(spec)
        if name not in paths:
            have = ", ".join(paths) or "none"
            raise UsageError(f"--provider {name}: the run has no such provider of its own (it has {have})")
        paths[name] = path
    return launching.packed(paths)


def _same_code(
    args: argparse.Namespace,
    run_id: str,
    head: Mapping[str, Any],
    now: Mapping[str, Any],
    providers: Mapping[str, Mapping[str, str]],
) -> None:
    """Refuse to mix two revisions in one run, unless that is wanted; then say it."""
    then = head.get("revision") or {}
    unlike = []
    if then.get("kernels") != now["kernels"]:
        unlike.append(f"its kernels are of revision {then.get('name', 'unknown')}, here they are of {now['name']}")
    for name, told in (head.get("providers") or {}).items():
        if told.get("sha256", "") != providers[name]["sha256"]:
            unlike.append(f"the files of its provider {name} are others now")
    if not unlike:
        return
    told = f"{run_id}: {'; '.join(unlike)}"
    if not args.other_revision:
        raise UsageError(f"{told}; check out what it began with, or mix them in one run with --other-revision")
    print(f"farm resume: {printable(told)}; its rows say which revision each cell is of", file=sys.stderr)


def _connect(args: argparse.Namespace, run_id: str, wanted: list[str], plan: Plan) -> tuple[Any, list[Slot]]:
    """The cluster and its devices for what is left; none where nothing is."""
    if not wanted:
        return _NoCluster(), []

    def choose(has: launching.Has, absent: bool) -> list[str]:
        for name in wanted:
            backends.usable(name)
        if not absent:
            launching.present(wanted, has)
        return wanted

    cluster, slots, _ = launching.connect(args, run_id, choose, lambda _: plan)
    return cluster, slots


class _NoCluster:
    """For a run that was killed while it wrote its tables: there is nothing left to run."""

    def refresh(self) -> Changes:
        return Changes()

    def report(self, slot: Slot, event: Mapping[str, Any]) -> None:
        """There is no device to report."""

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        """There is nothing to close."""
