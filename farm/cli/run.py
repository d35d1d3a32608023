"""`farm run`: matrices through the devices of a cluster."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shlex
import sys
import time
from datetime import datetime, timezone
from typing import Any

from farm import address, backends, revision, shipping
from farm.cli import common, progress
from farm.cli.progress import Live, Plain
from farm.cli.text import printable
from farm.coordinator import RunRequest, execute
from farm.coordinator.clusters import InlineCluster
from farm.coordinator.ray_cluster import RayCluster
from farm.errors import BackendError, FarmError, InfraError, StoreError, UsageError
from farm.matrix import Matrix, plan
from farm.store import Store

MAX_FINDINGS = 10
MAX_DEVICES = 256
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "run",
        help="run matrices on every accelerator",
        description="Runs every cell of the matrices, judges each, writes the run and its page.",
        epilog="example: farm run matrices/rms_norm.yaml --backend cuda --select hidden=4096,dtype=bf16",
    )
    common.matrix_options(p)
    common.store_option(p)
    p.add_argument(
        "--address",
        default="local",
        metavar="local|inline|auto|HOST:PORT",
        help="local: an own Ray on this host (default); inline: no Ray; auto or HOST:PORT: join a cluster",
    )
    p.add_argument(
        "--devices", type=int, metavar="N", help="devices per backend and node (default: all; cpu and sim: 2)"
    )
    p.add_argument("--strict-peers", action="store_true", help="failures of peers are findings too")
    p.add_argument("--run-id", metavar="ID", help="a name for the run (default: made from the time)")
    p.add_argument("--json", action="store_true", help="print the finished run's run.json")
    p.add_argument("--no-page", action="store_true", help="do not build the page")


def run(args: argparse.Namespace) -> int:
    """Plan, run, say how it went."""
    if args.devices is not None and not 1 <= args.devices <= MAX_DEVICES:
        raise UsageError(f"--devices {args.devices}: between 1 and {MAX_DEVICES} devices can be asked for")
    if args.run_id is not None and not _RUN_ID.fullmatch(args.run_id):
        raise UsageError(
            f"--run-id {args.run_id!r} cannot name a folder; use letters, digits, '.', '_' and '-', "
            "at most 100, and begin with a letter or a digit"
        )
    asked = common.named_backends(args)
    matrices = common.matrices(args)
    own = common.own_providers(args)
    shipped = shipping.pack(own.values())
    store = common.store(args)
    run_id = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    if args.address in ("local", "inline"):
        wanted = _wanted(asked, matrices, _host_has)
        plan(matrices, wanted, select=args.select)  # refuses what is wrong before Ray takes its seconds
    _check_store(store, run_id)
    address.check(args.address)
    begun = time.monotonic()
    if args.address == "inline":
        cluster: Any = InlineCluster(args.devices, run_id)
    else:
        local = args.address == "local"
        cluster = RayCluster(args.address, args.devices, run_id, wanted if local else None)
        if not local:
            has = cluster.available()
            try:
                wanted = _wanted(asked, matrices, lambda b: has.get(b, 0) > 0)
            except FarmError:
                cluster.close()
                raise
    try:
        slots = cluster.slots(wanted)
        planned = plan(matrices, wanted, select=args.select)
        writer = store.create(run_id)
    except BaseException:
        cluster.close()
        raise
    calibrations, damaged = store.calibrations()
    for sentence in damaged:
        print(f"farm run: {printable(sentence)}", file=sys.stderr)
    command = "farm " + shlex.join(args.argv)
    request = RunRequest(
        planned,
        slots,
        command,
        args.argv,
        revision.of(),
        {name: {"path": path} for name, path in own.items()},
        options={"shipped": shipped} if shipped else {},
        strict_peers=args.strict_peers,
        calibrations=calibrations,
    )
    shown = Live if sys.stderr.isatty() else Plain
    with shown(planned.cells) as telling:
        telling.line(f"run {run_id}: {len(planned.cells)} cells on {_devices(slots)}")
        try:
            outcome = execute(request, cluster, writer, telling)
        except InfraError as error:
            if not getattr(cluster, "lost", False):
                raise
            _end_without_cluster(args, store, run_id, error)
    code = _tell(args, store, run_id, outcome, time.monotonic() - begun)
    if args.json and not outcome.interrupted:
        print(json.dumps(store.run(run_id).head, indent=1))
    return code


def _end_without_cluster(args: argparse.Namespace, store: Store, run_id: str, error: InfraError) -> None:
    """The cluster under us is dead: say so, build the page, and leave before Ray ends this process with a code that
    means findings."""
    print(f"farm run: {printable(str(error))}; what finished is in the journal of {run_id}", file=sys.stderr)
    if not args.no_page:
        from dashboards.build import build

        print(f"page: {build(store, run_id).resolve()}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(3)


def _host_has(backend: str) -> bool:
    return bool(backends.usable(backend).detect())


def _wanted(asked: list[str], matrices: list[Matrix], has: Any) -> list[str]:
    """Backends to run on: the named and the required ones (each must be there), else all accelerators, else cpu."""
    required = [b for m in matrices for b in m.require]
    for name in required:
        if name not in asked and asked:
            raise BackendError(
                f"--backend {','.join(asked)}: the matrix requires {name}; add it or take it out of require:"
            )
        backends.usable(name)
    named = asked or list(dict.fromkeys(required))
    if named:
        absent = [b for b in named if not has(b)]
        if absent:
            there = [b for b in backends.known() if not getattr(backends.get(b), "NOT_YET", None) and has(b)]
            raise BackendError(
                f"backend {absent[0]}: no such device here (there are: {', '.join(there) or 'none'}); "
                "farm doctor says what was looked for"
            )
        return named
    return [b for b in backends.accelerators() if has(b)] or ["cpu"]


def _check_store(store: Store, run_id: str) -> None:
    """Find out now, not after the start, that the store cannot be written, or has such a run."""
    store.probe()
    if any(r.id == run_id for r in store.runs()):
        raise StoreError(f"{store.path}: a run {run_id} is there already; choose another --run-id")


def _devices(slots: Any) -> str:
    from farm.coordinator.clusters import describe

    return ", ".join(f"{n} {backend} device{'s' if n > 1 else ''}" for backend, n in describe(slots).items())


def _tell(args: argparse.Namespace, store: Store, run_id: str, outcome: Any, seconds: float) -> int:
    """The summary, and the page's address."""
    err = sys.stderr
    print("", file=err)
    for line in progress.summary(outcome.rows, seconds):
        print(line, file=err)
    bad = [r for r in outcome.rows if progress.needs_a_look(r, args.strict_peers)]
    if bad and not outcome.interrupted:
        print(f"{len(bad)} cell{'s need' if len(bad) > 1 else ' needs'} a look; the first:", file=err)
        for row in bad[:MAX_FINDINGS]:
            print(f"  {printable(progress.told(row))}"[:300], file=err)
            if row["log"]:
                print(f"    log: {store.path / 'runs' / run_id / row['log']}", file=err)
    if outcome.interrupted:
        lost = sum(r["status"] == "lost" for r in outcome.rows)
        print(f"interrupted: {lost} cells were not run; what finished is in the journal", file=err)
    if not args.no_page:
        print(f"page: {common.page(store, run_id).resolve()}", file=err)
    return 3 if outcome.interrupted else outcome.exit_code
