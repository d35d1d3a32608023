"""What `farm run` and `farm resume` share: how a run is run, its cluster, and how it went."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farm import address, backends, ops
from farm.actor.supervise import Environment
from farm.cell import Cell
from farm.cli import common, progress
from farm.cli.progress import Live, Plain
from farm.cli.text import printable
from farm.coordinator import RunRequest, execute
from farm.coordinator.clusters import InlineCluster, Slot, describe, local_devices
from farm.coordinator.ray_cluster import RayCluster
from farm.errors import BackendError, InfraError, UsageError
from farm.matrix import Plan
from farm.nodes import config
from farm.shipping import providers as shipping
from farm.store import RunWriter, Store

MAX_FINDINGS = 10
PAGE_CELLS = 10_000  # an interrupted run of more has no page at once: 10^5 cells take tens of seconds
MAX_DEVICES = 256
MAX_WAIT_SECONDS = 7 * 24 * 3600.0
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ENVIRONMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
Has = Callable[[str], bool]


def options(p: argparse.ArgumentParser, *, address: str | None = "local") -> None:
    """How a run is run, whatever it runs.  `address` None: every default is that of the run that goes on."""
    told = " (default: as the run was started)" if address is None else ""
    p.add_argument(
        "--address",
        default=address,
        metavar="local|inline|auto|HOST:PORT",
        help=f"local: an own Ray on this host{told or ' (default)'}; inline: no Ray; auto or HOST:PORT: join a cluster",
    )
    p.add_argument(
        "--devices", type=int, metavar="N", help="devices per backend and node (default: all; cpu and sim: 2)"
    )
    p.add_argument(
        "--environment",
        metavar="NAME",
        help="the nodes' environment of that name, which their configuration has, for the children (default: default)",
    )
    p.add_argument(
        "--wait-for-devices",
        type=float,
        metavar="SECONDS",
        help="how long a backend or target without a device waits for one to join before its cells are lost",
    )
    p.add_argument("--strict-peers", action="store_true", help="failures of peers are findings too")
    p.add_argument("--json", action="store_true", help="print the finished run's run.json")
    p.add_argument("--no-page", action="store_true", help="do not build the page")


def check(args: argparse.Namespace) -> None:
    """UsageError for an option that cannot be meant."""
    if args.devices is not None and not 1 <= args.devices <= MAX_DEVICES:
        raise UsageError(f"--devices {args.devices}: between 1 and {MAX_DEVICES} devices can be asked for")
    if args.environment is not None and not _ENVIRONMENT.fullmatch(args.environment):
        raise UsageError(f"--environment {args.environment!r} cannot be the name of an environment; nodes name theirs")
    wait = args.wait_for_devices
    if wait is not None and not (math.isfinite(wait) and 0 <= wait <= MAX_WAIT_SECONDS):
        raise UsageError(f"--wait-for-devices {wait:g}: between 0 and {MAX_WAIT_SECONDS:g} seconds can be waited for")


def check_run_id(run_id: str | None) -> None:
    """UsageError for a name that cannot be a folder's."""
    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"--run-id {run_id!r} cannot name a folder; use letters, digits, '.', '_' and '-', "
            "at most 100, and begin with a letter or a digit"
        )


def environment(args: argparse.Namespace) -> Environment:
    """The environment that the run asks its nodes for."""
    found = Environment.default()
    return replace(found, name=args.environment) if args.environment else found


def contract_version(op: str) -> int | None:
    """The version of an op's contract in this farm; None for no such op."""
    return ops.contract(op).version if op in ops.known_ops() else None


def packed(providers: Mapping[str, str]) -> tuple[dict[str, dict[str, str]], dict[str, Any] | None]:
    """(`[OP:]NAME` -> {"path", "sha256" of its files, "" if installed}, the files that travel to the devices)."""
    told = {}
    for name, path in providers.items():
        alone = shipping.pack([path])
        told[name] = {"path": path, "sha256": alone["sha"] if alone else ""}
    return told, shipping.pack(providers.values())


def present(named: Sequence[str], has: Has) -> None:
    """BackendError where a named backend has no device."""
    absent = [b for b in named if not has(b)]
    if absent:
        there = [b for b in backends.known() if not getattr(backends.get(b), "NOT_YET", None) and has(b)]
        raise BackendError(
            f"backend {absent[0]}: no such device here (there are: {', '.join(there) or 'none'}); "
            "farm doctor says what was looked for"
        )


def host_has(backend: str) -> bool:
    """Whether this host has a device of the backend, or plays one."""
    backends.usable(backend)
    return bool(local_devices(backend))


def connect(
    args: argparse.Namespace,
    run_id: str,
    choose: Callable[[Has, bool], list[str]],
    planned: Callable[[list[str]], Plan],
    ready: Callable[[], None] = lambda: None,
) -> tuple[Any, list[Slot], Plan]:
    """(cluster, its devices for the run, the plan).

    `choose(has, absent)` names the backends by what is there; where `absent`, one that is not there yet is waited for.
    `planned(backends)` refuses what is wrong, which on this host is before Ray takes its seconds; `ready()` is called
    after that and before the cluster.
    """
    joins = args.address not in ("local", "inline")
    wanted: list[str] = []
    found: Plan | None = None
    if not joins:
        if args.environment:
            config.environment(config.load(), args.environment)  # else every cell would end as lost
        wanted = choose(host_has, False)
        found = planned(wanted)  # 10^5 cells take seconds: once
    ready()
    address.check(args.address)
    waits = joins and bool(args.wait_for_devices)
    if args.address == "inline":
        cluster: Any = InlineCluster(args.devices, run_id)
    else:
        try:
            cluster = RayCluster(args.address, args.devices, run_id, None if joins else wanted)
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            need = "pip install 'ray>=2.55'" + ("" if joins else ", or run without it: --address inline")
            raise InfraError(f"there is no Ray in this Python ({sys.executable}); {need}") from None
    try:
        if joins:
            there = cluster.available()
            wanted = choose(lambda b: there.get(b, 0) > 0, waits)
        slots = cluster.slots(wanted, absent=True) if waits else cluster.slots(wanted)
        return cluster, slots, planned(wanted) if found is None else found
    except BaseException:
        cluster.close()
        raise


def go(
    args: argparse.Namespace,
    store: Store,
    writer: RunWriter,
    cluster: Any,
    request: RunRequest,
    cells: Sequence[Cell],
    begun: float,
) -> int:
    """Run it, say how it went; the exit code.  `cells`: those that are to be run."""
    shown = Live if sys.stderr.isatty() else Plain
    with shown(cells) as telling:
        telling.line(f"run {writer.id}: {len(cells)} cells on {_devices(request.slots) or 'no device'}")
        try:
            outcome = execute(request, cluster, writer, telling)
        except InfraError as error:
            if not getattr(cluster, "lost", False):
                raise
            _end_without_cluster(args, store, writer.id, error)
    code = tell(args, store, writer.id, outcome, time.monotonic() - begun)
    if args.json and not outcome.interrupted:
        print(json.dumps(store.run(writer.id).head, indent=1))
    return code


def damaged_calibrations(command: str, store: Store) -> list[Any]:
    """The store's calibrations; those that cannot be read are told."""
    calibrations, damaged = store.calibrations()
    for sentence in damaged:
        print(f"farm {command}: {printable(sentence)}", file=sys.stderr)
    return calibrations


def _end_without_cluster(args: argparse.Namespace, store: Store, run_id: str, error: InfraError) -> None:
    """The cluster under us is dead: say so, build the page, and leave before Ray ends this process with a code that
    means findings."""
    print(
        f"farm {args.command}: {printable(str(error))}; what finished is in the journal of {run_id}, "
        f"{_resume(args, run_id)} goes on",
        file=sys.stderr,
    )
    if not args.no_page:
        common.tell_page(args, store, run_id)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(3)


def _resume(args: argparse.Namespace, run_id: str) -> str:
    """The command that goes on with a run, in the store that this one was told."""
    return shlex.join(["farm", "resume", run_id, *(("--out", args.out) if args.out else ())])


def _devices(slots: Any) -> str:
    return ", ".join(f"{n} {backend} device{'s' if n > 1 else ''}" for backend, n in describe(slots).items())


def tell(args: argparse.Namespace, store: Store, run_id: str, outcome: Any, seconds: float) -> int:
    """The summary, and the page's address; the exit code."""
    err = sys.stderr
    print("", file=err)
    for line in progress.summary(outcome.rows, seconds):
        print(line, file=err)
    for line in progress.unsupported(outcome.rows):
        print(f"  {printable(line)}"[:300], file=err)
    bad = [r for r in outcome.rows if progress.needs_a_look(r, args.strict_peers)]
    if bad and not outcome.interrupted:
        print(f"{len(bad)} cell{'s need' if len(bad) > 1 else ' needs'} a look; the first:", file=err)
        for row in bad[:MAX_FINDINGS]:
            print(f"  {printable(progress.told(row))}"[:300], file=err)
            if row["log"]:
                print(f"    log: {store.path / 'runs' / run_id / row['log']}", file=err)
    if outcome.interrupted:
        lost = sum(r["status"] == "lost" for r in outcome.rows)
        print(f"interrupted: {lost} cells were not run; what finished is in the journal, "
              f"{_resume(args, run_id)} goes on", file=err)  # fmt: skip
    if not args.no_page:
        _page(args, store, run_id, outcome.interrupted and len(outcome.rows) > PAGE_CELLS)
    return 3 if outcome.interrupted else outcome.exit_code


def _page(args: argparse.Namespace, store: Store, run_id: str, later: bool) -> None:
    """The run's page; or, where whoever interrupted a long run should not have to wait for it, how to make it."""
    if later:
        again = shlex.join(["farm", "dashboard", "build", run_id, *(("--out", args.out) if args.out else ())])
        print(f"page: not made, since the run was interrupted and is large; {again} makes it", file=sys.stderr)
        return
    common.tell_page(args, store, run_id)
