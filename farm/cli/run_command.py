"""What `farm run` and `farm resume` share: the options, the cluster, the run itself and its summary."""

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
from pathlib import Path
from typing import Any, TypeVar

from farm import STARTED, backends, utilisation
from farm.actor import tools, waiting
from farm.cell import FINDINGS, Cell, Status
from farm.cli import ab_noise, common, progress
from farm.cli.progress import Live, Plain
from farm.cli.text import counted, printable, sentence
from farm.cluster import address
from farm.cluster.base import DeviceHandle, describe
from farm.cluster.inline import InlineCluster
from farm.cluster.local import local_devices
from farm.contracts import discovery
from farm.coordinator import RunRequest, execute
from farm.errors import BackendError, FarmError, InfraError, Message, StoreError, UsageError, id_of
from farm.matrix import Plan
from farm.node import config, sandbox_host
from farm.node.environment import Environment
from farm.process import supervisor
from farm.store import RunWriter, Store, known, results

MAX_WAIT_SECONDS = 7 * 24 * 3600.0
GRACE_SECONDS = 600.0  # on a cluster, for cells whose backend or target has no device left
BUSY_SECONDS = 1800.0  # for a device that another run uses
FEW_CELLS = 8
_ENVIRONMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
Has = Callable[[str], bool]
Planned = TypeVar("Planned")


def address_option(p: argparse.ArgumentParser, first: str = "") -> None:
    """Add --address; `first`: what counts before the environment where the option is not given."""
    p.add_argument(
        "--address",
        metavar="local|inline|auto|HOST:PORT",
        help=(
            "inline: use this host, without Ray; local: start Ray on this host; auto or HOST:PORT: join a cluster "
            f"(default: {first}$FARM_ADDRESS, else the cluster that this host has joined by farm nodes, else inline)"
        ),
    )


def resolve_address(args: argparse.Namespace) -> None:
    """Give --address its default, and report where that comes from if it names a cluster."""
    if args.address is not None:
        address.check_form(args.address)
        return
    args.address, source = address.default(os.environ)
    address.check_form(args.address)
    if source and args.address not in ("local", "inline"):
        print(f"farm {args.command}: joins the cluster at {args.address} ({source})", file=sys.stderr)


def options(p: argparse.ArgumentParser, *, resumed: bool = False) -> None:
    """Add the options that say how to run.  If a run is `resumed`, every default is that run's own."""
    address_option(p, "that of the original command, else " if resumed else "")
    p.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="use N devices per backend and node (default: all; for cpu and sim: 2, "
        "for a few cells on this host's cpu: 1)",
    )
    p.add_argument(
        "--environment",
        metavar="NAME",
        help="start children in this environment of each node's configuration (default: the one named default)",
    )
    p.add_argument(
        "--sandbox",
        action="store_true",
        help="run every child in a sandbox (bubblewrap), without a network, your files and the judge's; needed for "
        "code that nobody has read (docs/trust.md)",
    )
    p.add_argument(
        "--wait-for-devices",
        type=float,
        metavar="SECONDS",
        help=(
            "on a cluster, wait up to SECONDS for a device to join where cells have none, and without a limit while "
            "its node is only drained, before the run ends as interrupted; if given, also at the start; 0: do not wait "
            f"(default: {GRACE_SECONDS:g})"
        ),
    )
    p.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help=(
            "wait up to SECONDS for devices that other runs use before the run ends as interrupted (default: "
            f"{BUSY_SECONDS:g})"
        ),
    )
    p.add_argument(
        "-x",
        "--stop-at-first",
        action="store_true",
        help="stop at the first finding; farm resume runs the remaining cells",
    )
    p.add_argument(
        "--sanitize",
        nargs="?",
        const=tools.CHECKS[0],
        metavar="CHECK",
        help="run the cells under NVIDIA's compute-sanitizer, untimed; what it finds is a finding of the cell "
        f"({', '.join(tools.CHECKS)}; default: {tools.CHECKS[0]})",
    )
    p.set_defaults(tool="", tool_out="")  # what children run under: of --sanitize, or of farm profile
    p.set_defaults(limit_s=0.0)  # after how long the run ends as interrupted: of farm sweep; 0: never
    p.add_argument("--strict-peers", action="store_true", help="count failures of peers as findings, too")
    p.add_argument(
        "--write",
        action="append",
        default=[],
        metavar="KIND=FILE",
        help="at the end, write the run to this file as junit (with the cells' logs), markdown, json, csv or table, "
        "whatever its result; repeatable",
    )
    p.add_argument("--json", action="store_true", help="print the finished run's run.json")
    p.add_argument("--no-page", action="store_true", help="do not build the run's page")


def check(args: argparse.Namespace) -> None:
    """UsageError for an option whose value is impossible.  Afterwards, --address has a value."""
    resolve_address(args)
    writes(args)
    if args.sanitize is not None and args.sanitize not in tools.CHECKS:
        raise UsageError(
            f'--sanitize: "{args.sanitize}" is not a check; available: {", ".join(tools.CHECKS)}', id="sanitize-unknown"
        )
    args.tool = args.sanitize or args.tool
    common.check_devices(args.devices)
    if args.environment is not None and not _ENVIRONMENT.fullmatch(args.environment):
        raise UsageError(
            f"--environment {args.environment!r} is not a valid name; use a name from the nodes' configuration",
            id="option-environment-invalid",
        )
    for option, wait in (("--wait-for-devices", args.wait_for_devices), ("--wait", args.wait)):
        if wait is not None and not (math.isfinite(wait) and 0 <= wait <= MAX_WAIT_SECONDS):
            raise UsageError(
                f"{option} {wait:g}: must be between 0 and {MAX_WAIT_SECONDS:g} seconds", id="option-wait-range"
            )


def writes(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """(format, file) of every --write.  UsageError for an unknown format, and for a file that cannot be written."""
    found: list[tuple[str, Path]] = []
    for text in args.write:
        kind, equals, name = text.partition("=")
        if not equals or not name or kind not in common.FORMATS:
            raise UsageError(
                f'--write "{text}": must be KIND=FILE, with KIND one of {", ".join(common.FORMATS)}; write for example '
                "--write junit=report.xml",
                id="option-write-malformed",
            )
        path = Path(name)
        if path in [p for _, p in found]:
            raise UsageError(f"--write {text}: this file is named twice; name two files", id="option-write-twice")
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"--write {text}: this file cannot be written; name a file in a folder that exists and is writable",
                id="option-write-unwritable",
            )
        found.append((kind, path))
    return found


def grace(args: argparse.Namespace) -> float:
    """How long cells without a device wait for one.  Nothing joins a cluster that is only this host or this process."""
    if args.address in ("local", "inline"):
        return 0.0
    return GRACE_SECONDS if args.wait_for_devices is None else float(args.wait_for_devices)


def busy_wait(args: argparse.Namespace) -> float:
    """How long the run waits for a device that another run uses."""
    return BUSY_SECONDS if args.wait is None else float(args.wait)


def began(args: argparse.Namespace) -> float:
    """When the command began, on the monotonic clock; now, for the runs of one that repeats them."""
    return time.monotonic() if getattr(args, "watch", False) else STARTED


def environment(args: argparse.Namespace) -> Environment:
    """The environment that the run requests from its nodes."""
    found = replace(Environment.default(), sandbox={} if args.sandbox else None)
    found = replace(found, name=args.environment) if args.environment else found
    return replace(found, tool=args.tool, tool_out=args.tool_out) if args.tool else found


def under_tool(args: argparse.Namespace, planned: Plan) -> Plan:
    """The plan, with deadlines for children that run under a tool if these do.  UsageError where it is not for the
    plan's backends; BackendError where this host, if the run is on it, does not have the tool."""
    if not args.tool:
        return planned
    tool, what = tools.TOOLS[args.tool], "--sanitize" if args.sanitize else "farm profile"
    other = next((c.backend for c in planned.cells if c.backend != tool.backend), None)
    if other:
        raise UsageError(
            f"{what}: {tool.program} knows devices of {tool.backend}, but {other} has cells in this run; name "
            f"--backend {tool.backend} on a host with such a device",
            id="tool-backend",
        )
    if args.address in ("local", "inline") and not tools.found(tool):
        raise BackendError(str(missing := tools.missing(tool, what)), id=missing.id)
    slower = [replace(m, deadlines=tools.deadlines(m.deadlines)) for m in planned.matrices]
    return replace(planned, matrices=tuple(slower))


def check_sandbox(there: Environment, asked: bool) -> None:
    """UsageError where the children of this host's environment are to run in a sandbox, and cannot."""
    why = sandbox_host.unfit(there) if asked or there.sandbox is not None else ""
    if why:
        whose = "--sandbox" if asked else f"environment {there.name} has sandbox: true"
        raise UsageError(f"{whose}: no sandbox can be made here: {why}", id="run-sandbox-impossible")


def contract_version(op: str) -> int | None:
    """The version of an op's contract in this farm; None if it has no such op."""
    found = discovery.find(op)
    return found.version if found else None


def contract_content(op: str) -> str:
    """What the contract of an op is made of here, if it is outside the farm."""
    found = discovery.find(op)
    return found.content if found else ""


def present(named: Sequence[str], has: Has) -> None:
    """BackendError where a named backend has no device."""
    absent = [b for b in named if not has(b)]
    if absent:
        there = [b for b in backends.known() if not backends.get(b).NOT_YET and has(b)]
        raise BackendError(
            f"backend {absent[0]}: no device of this backend was found (available backends: "
            f"{', '.join(there) or 'none'}); farm doctor lists what was checked",
            id="run-backend-absent",
        )


def host_has(backend: str) -> bool:
    """Whether this host has a device of the backend, or simulates one."""
    backends.usable(backend)
    return bool(local_devices(backend))


def connect(
    args: argparse.Namespace,
    run_id: str,
    choose: Callable[[Has, bool], list[str]],
    planned: Callable[[list[str]], Planned],
    ready: Callable[[], None] = lambda: None,
) -> tuple[Any, list[DeviceHandle], Planned]:
    """(cluster, its devices for the run, what is planned).

    `choose(has, absent)` names the backends, given which are available; if `absent`, a missing one may still join.
    `planned(backends)` refuses what is wrong; on this host that happens before Ray starts, which takes seconds.
    `ready()` is called after that and before the cluster starts.
    """
    joins = args.address not in ("local", "inline")
    wanted: list[str] = []
    found: Planned | None = None
    if not joins:
        there = config.environment(config.load(), args.environment or "default")  # else every cell would end as lost
        check_sandbox(there, args.sandbox)
        wanted = choose(host_has, False)
        waiting.keep(wanted if args.address == "inline" else ())  # actors of Ray's have processes of their own
        found = planned(wanted)  # 10^5 cells take seconds: once
    else:
        waiting.keep(())
    ready()
    address.check(args.address)
    patient = joins and bool(args.wait_for_devices)
    if args.address == "inline":
        cluster: Any = InlineCluster(args.devices or _enough(wanted, found), run_id)
    else:
        from farm.cluster.ray_cluster import RayCluster

        try:
            cluster = RayCluster(args.address, args.devices, run_id, None if joins else wanted)
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            need = "pip install 'ray>=2.55'" + ("" if joins else ", or run without Ray: --address inline")
            raise InfraError(
                f"Ray is not installed in this Python ({sys.executable}); {need}", id="ray-missing"
            ) from None
    try:
        if joins:
            there = cluster.available()
            # as if all were there: what is not, the cluster refuses, since it knows which nodes are drained
            wanted = choose(lambda b: there.get(b, 0) > 0, True)
        slots = cluster.slots(wanted, absent=True) if patient else cluster.slots(wanted)
        waiting.at_most(2 * len(slots))  # one to measure and one to compile for each
        return cluster, slots, planned(wanted) if found is None else found
    except BaseException:
        cluster.close()
        raise


def _enough(wanted: Sequence[str], planned: Any) -> int | None:
    """One slot of the processor for a few cells: a second child imports torch for longer than it would help."""
    cells = getattr(planned, "cells", None)  # a calibration has none
    return 1 if list(wanted) == ["cpu"] and cells is not None and len(cells) <= FEW_CELLS else None


def go(
    args: argparse.Namespace,
    store: Store,
    writer: RunWriter,
    cluster: Any,
    request: RunRequest,
    cells: Sequence[Cell],
    begun: float,
) -> int:
    """Run it and print the summary; the exit code.  `cells`: the cells to run."""
    told = tell_arms if request.arms else tell
    shown = Live if sys.stderr.isatty() else Plain
    supervisor.running(run=writer.id, out=args.out, store=str(store.path), no_page=args.no_page)
    page = None if args.no_page else common.PageAhead(store, writer.id)
    if page:
        request.complete = page.start
    with shown(cells) as telling:
        telling.line(f"run {writer.id}: {counted(len(cells), 'cell')} on {_devices(request.slots) or 'no device'}")
        try:
            outcome = execute(request, cluster, writer, telling)
        except FarmError as error:
            if not (isinstance(error, InfraError) and getattr(cluster, "lost", False)):
                error.last_line = progress.broken_off(error.exit_code)
                raise
            _end_without_cluster(args, store, writer.id, error)
    if not args.sandbox:  # what strangers' code has measured sets nobody's thresholds
        ab_noise.keep(args.command, store, outcome.noise)
    outcome.page = page
    code = told(args, store, writer.id, outcome, time.monotonic() - begun)
    if args.json and not outcome.interrupted:
        print(json.dumps(store.run(writer.id).head, indent=1))
    if getattr(cluster, "lost", False):
        supervisor.leave(code)
    return code


def damaged_calibrations(command: str, store: Store) -> list[Any]:
    """The store's calibrations.  Those that cannot be read are reported."""
    calibrations, damaged = store.calibrations()
    for warning in damaged:
        print(f"farm {command}: {sentence(warning)}", file=sys.stderr)
    return calibrations


def _end_without_cluster(args: argparse.Namespace, store: Store, run_id: str, error: InfraError) -> None:
    """The cluster has died: report it, build the page, and exit before Ray ends this process with the exit code that
    means findings."""
    told = f"{error}; finished results are in the journal of {run_id}; to continue, run {_resume(args, run_id)}"
    print(f"farm {args.command}: {sentence(Message(told, id=error.id or 'cluster-lost'))}", file=sys.stderr)
    if not args.no_page:
        common.tell_page(args, store, run_id)
    _write(args, store, run_id)
    print(progress.interrupted(InfraError.exit_code), file=sys.stderr)
    supervisor.leave(InfraError.exit_code)


def explain(command: str, outcome: supervisor.Outcome) -> None:
    """Report the end of a run that its own process did not report, and build the page if nobody waits."""
    facts = outcome.facts
    if not facts:
        how = "it was interrupted" if outcome.kind == "interrupted" else f"its process ended with {outcome.how}"
        told = Message(f"{how} before the run began; repeat the command", id="run-ended-early")
        print(f"farm {command}: {sentence(told)}", file=sys.stderr)
        print(progress.interrupted(outcome.code), file=sys.stderr)
        return
    args = argparse.Namespace(command=command, out=facts["out"])
    kept, again = f"finished results are in the journal of {facts['run']}", _resume(args, facts["run"])
    told = {
        "interrupted": Message(f"interrupted; {kept}; to continue, run {again}", id="run-interrupted"),
        "unannounced": Message(
            f"the process of the run ended with {outcome.how} (it was killed, the host ran out of memory, or Ray ended "
            f"it, as it does when its raylet or its GCS is gone); {kept}; to continue, run {again}",
            id="run-ended-unannounced",
        ),
        "page missing": Message(f"the run is complete, but {_page_later(args, facts['run'])}", id="run-page-missing"),
    }[outcome.kind]
    print(f"\nfarm {command}: {sentence(told)}", file=sys.stderr)
    if outcome.kind == "unannounced" and not facts["no_page"]:
        common.tell_page(args, Store(facts["store"]), facts["run"])
    complete = outcome.kind == "page missing"
    print(progress.without_page(outcome.code) if complete else progress.interrupted(outcome.code), file=sys.stderr)


def _resume(args: argparse.Namespace, run_id: str) -> str:
    """The command that continues a run, in the store that this command used."""
    return shlex.join(["farm", "resume", run_id, *(("--out", args.out) if args.out else ())])


def _page_later(args: argparse.Namespace, run_id: str) -> str:
    again = shlex.join(["farm", "dashboard", "build", run_id, *(("--out", args.out) if args.out else ())])
    return f"its page was not built; to build it, run {again}"


def _devices(slots: Any) -> str:
    return ", ".join(counted(n, f"{backend} device") for backend, n in describe(slots).items())


def tell(args: argparse.Namespace, store: Store, run_id: str, outcome: Any, seconds: float) -> int:
    """Print the summary and the path of the page; the exit code."""
    err = sys.stderr
    print("", file=err)
    for line in progress.summary(outcome.rows, seconds):
        print(line, file=err)
    _tell_utilisation(outcome)
    for line in progress.unsupported(outcome.rows):
        print(f"  {printable(line)}"[:300], file=err)
    for hint in progress.not_sent(outcome.rows, lambda module: any(map(os.path.exists, (f"{module}.py", module)))):
        print(f"  {hint}"[:300], file=err)
    covered = known.covered(outcome.known)
    bad = [r for r in outcome.rows if progress.needs_a_look(r, args.strict_peers) and r["cell_id"] not in covered]
    if outcome.by_finding:  # the cells that did not run are counted, but nobody has to look at them
        bad = [r for r in bad if (r["status"], r["reason"]) != ("lost", results.NO_RESULT)]
    if bad and (outcome.stopped or not outcome.interrupted):
        for line in _apart(store, run_id, bad):
            print(printable(line)[:300], file=err)
        progress.print_findings(bad, store.path / "runs" / run_id)
    common.tell_known(args.command, outcome.known)
    code = _end(args, store, run_id, outcome)
    print(progress.ending(outcome, code, args.strict_peers), file=err)
    return code


def _tell_utilisation(outcome: Any) -> None:
    """Where the time of devices went; not of a processor, on which nothing is timed."""
    if outcome.utilisation and any(row["evidence"] in ("executed", "simulated") for row in outcome.rows):
        print(utilisation.line(outcome.utilisation), file=sys.stderr)


def _apart(store: Store, run_id: str, bad: Sequence[Mapping[str, Any]]) -> list[str]:
    """What sets the cells that need attention apart from those that pass, from the rows of the stored run."""
    from farm.report import failing_cells  # only where something failed

    index = {r["index"] for r in bad if Status(r["status"]) in FINDINGS}
    return failing_cells.sentences(store.run(run_id).rows, index)[: progress.MAX_FINDINGS] if index else []


def tell_arms(args: argparse.Namespace, store: Store, run_id: str, outcome: Any, seconds: float) -> int:
    """Print what the two arms of a run say: on standard error how it went, then the comparison; the exit code."""
    from farm.report import pairs_text

    print("", file=sys.stderr)
    for line in progress.summary(outcome.rows, seconds):
        print(line, file=sys.stderr)
    _tell_utilisation(outcome)
    code = _end(args, store, run_id, outcome)
    head = store.run(run_id).head
    found = head.get("comparison") or {}
    arms, kernels = head.get("arms") or {}, found.get("kernels") or []
    whole = not outcome.interrupted
    if not args.json:
        texts = pairs_text.lines(
            arms, outcome.pairs, outcome.summary, complete=whole, kernels=kernels, told=found if whole else None
        )
        for line in texts:
            print(printable(line))
        for line in ab_noise.lines(store, outcome.noise):
            print(printable(line))
    if outcome.interrupted:
        print(progress.interrupted(code), file=sys.stderr)
    elif getattr(args, "bisect", False) and outcome.summary:
        return int(outcome.summary.for_bisect)
    return code


def _end(args: argparse.Namespace, store: Store, run_id: str, outcome: Any) -> int:
    """Print how to go on with an interrupted run, write the page and the files of --write; the exit code."""
    if outcome.interrupted:
        lost = sum(r["status"] == "lost" for r in outcome.rows)
        why = f"stopped: {outcome.stopped}; " if outcome.stopped else "interrupted: "
        told = (
            f"{why}{counted(lost, 'cell')} did not run; finished results are in the journal; "
            f"to continue, run {_resume(args, run_id)}"
        )
        print(sentence(Message(told, id=id_of(outcome.stopped) or "run-interrupted")), file=sys.stderr)
    if not args.no_page:
        later = outcome.interrupted and len(outcome.rows) > common.PAGE_CELLS
        _page(args, store, run_id, later, outcome.page)
    code = int(outcome.final_code)
    if not _write(args, store, run_id) and code == 0:
        code = InfraError.exit_code  # who reads the file would take its absence for a success
    return code


def _write(args: argparse.Namespace, store: Store, run_id: str) -> bool:
    """Write the files of --write; False if one cannot be written, which is reported."""
    written = True
    for kind, path in writes(args) if args.write else []:
        try:
            common.write_export(store.run(run_id), kind, path, f"--write {kind}")
        except StoreError as error:
            written = False
            print(f"farm {args.command}: {sentence(error)}", file=sys.stderr)
    return written


def _page(args: argparse.Namespace, store: Store, run_id: str, later: bool, ahead: common.PageAhead | None) -> None:
    """Build the run's page; after an interrupt of a large run only print the command, so that nobody has to wait."""
    if later:
        again = shlex.join(["farm", "dashboard", "build", run_id, *(("--out", args.out) if args.out else ())])
        print(f"page: not built, because the interrupted run is large; to build it, run {again}", file=sys.stderr)
        return
    common.tell_page(args, store, run_id, ahead)
