"""`farm run`: matrices, or a site's part of a plan, through the devices of a cluster."""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm import backends, revision
from farm.cli import common, launching
from farm.coordinator import RunRequest
from farm.errors import BackendError, StoreError, UsageError
from farm.matrix import Matrix, Plan, plan
from farm.nodes import config
from farm.sites import planfile
from farm.sites.planfile import PlanFile
from farm.store import Store


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "run",
        help="run matrices on every accelerator",
        description="Runs every cell of the matrices, or of a plan's part, judges each, writes the run and its page.",
        epilog="example: farm run matrices/rms_norm.yaml --backend cuda --select hidden=4096,dtype=bf16",
    )
    common.matrix_options(p, needed=False)
    common.store_option(p)
    p.add_argument("--plan", type=Path, metavar="PLAN", help="a plan of farm plan --out, instead of matrices")
    p.add_argument("--target", metavar="T", help="with --plan, the part to run: a backend, or backend:PATTERN")
    p.add_argument("--run-id", metavar="ID", help="a name for the run (default: made from the time)")
    launching.options(p)


def run(args: argparse.Namespace) -> int:
    """Plan, run, say how it went."""
    launching.check(args)
    launching.check_run_id(args.run_id)
    work: Any = _PlanPart(args) if args.plan else _Matrices(args)
    providers, shipped = launching.packed(work.providers)
    work.check_providers(providers)
    store = common.store(args)
    run_id = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    begun = time.monotonic()
    cluster, slots, planned = launching.connect(
        args, run_id, work.choose, work.planned, lambda: _check_store(store, run_id)
    )
    if work.note:
        print(f"farm run: {work.note}", file=sys.stderr)
    try:
        writer = store.create(run_id)
        if work.file:
            writer.keep_plan(work.file.text)
    except BaseException:
        cluster.close()
        raise
    request = RunRequest(
        planned,
        slots,
        "farm " + shlex.join(args.argv),
        args.argv,
        {**revision.of(), "kernels": revision.content()},
        providers,
        environment=launching.environment(args),
        options={"shipped": shipped} if shipped else {},
        strict_peers=args.strict_peers,
        calibrations=launching.damaged_calibrations("run", store),
        part=work.file.described(args.target) if work.file else {},
        wait_for_devices_s=args.wait_for_devices or 0.0,
    )
    return launching.go(args, store, writer, cluster, request, planned.cells, begun)


class _Matrices:
    """What matrix files and the options that narrow them ask for."""

    file: PlanFile | None = None
    note = ""  # what is told before the run begins

    def __init__(self, args: argparse.Namespace):
        if args.target is not None:
            raise UsageError("--target names a part of a plan; give --plan too, or name a backend with --backend")
        if not args.matrices:
            raise UsageError("there is no MATRIX and no --plan; name one, farm run --help has an example")
        self._select = args.select
        self._local = args.address in ("local", "inline")
        self._asked = common.named_backends(args)
        self._matrices: list[Matrix] = common.matrices(args)
        self.providers = common.own_providers(args)

    def check_providers(self, found: dict[str, dict[str, str]]) -> None:
        """They are what the command line says."""

    def choose(self, has: launching.Has, absent: bool) -> list[str]:
        """Backends to run on: the named and the required ones (each must be there, unless it may be `absent` for now),
        else all accelerators, else cpu."""
        required = [b for m in self._matrices for b in m.require]
        for name in required:
            if name not in self._asked and self._asked:
                asked = ",".join(self._asked)
                raise BackendError(f"--backend {asked}: the matrix requires {name}; add it or take it out of require:")
            backends.usable(name)
        named = self._asked or list(dict.fromkeys(required))
        if named and not absent:
            launching.present(named, has)
        return named or [b for b in backends.accelerators() if has(b)] or self._cpu()

    def _cpu(self) -> list[str]:
        """The interpreter stands in, and says so.  BackendError where this node's configuration promises a device."""
        here = config.load() if self._local else config.NodeConfig()
        if here.backend in backends.accelerators():
            raise BackendError(
                f"{here.file}: this node's backend is {here.backend}, and there is no such device here; "
                f"farm doctor --backend {here.backend} says what was looked for, --backend cpu runs without"
            )
        if here.backend != "cpu":
            self.note = (
                "no accelerator was found, so the CPU's interpreter runs this: it proves numerics and never speed; "
                "farm doctor says what was looked for"
            )
        return ["cpu"]

    def planned(self, wanted: list[str]) -> Plan:
        return plan(self._matrices, wanted, select=self._select)


class _PlanPart:
    """What a site's part of a plan asks for; the plan says all of it."""

    note = ""

    def __init__(self, args: argparse.Namespace):
        given = {"MATRIX": args.matrices, "--select": args.select is not None, "--backend": args.backend is not None,
                 "--set": args.overrides, "--provider": args.provider}  # fmt: skip
        for name in (name for name, there in given.items() if there):
            raise UsageError(f"--plan says what runs, and {name} would change it; leave {name} out, or plan again")
        where = f"--plan {args.plan}"
        self.file = read_plan(args.plan, "--plan")
        if not args.target:
            have = ", ".join(planfile.parts(self.file.plan))
            raise UsageError(f"{where}: --target is missing; it says which part runs here: {have}")
        self._part = planfile.part(self.file.plan, args.target)
        unfit = planfile.unfit(self._part.cells, launching.contract_version)
        if unfit:
            raise UsageError(f"{where}: {unfit}; use the farm that planned, or plan again with this one")
        self._where = where
        self._told = planfile.providers_of(self.file, self._part.cells)
        self.providers = {name: told["path"] for name, told in self._told.items()}

    def check_providers(self, found: dict[str, dict[str, str]]) -> None:
        """UsageError for one whose files are not those that were planned with."""
        for name, told in self._told.items():
            if told["sha256"] != found[name]["sha256"]:
                raise UsageError(
                    f"{self._where}: the files of provider {name} ({told['path']}) are others here than where it was "
                    "planned; bring those of that place"
                )

    def choose(self, has: launching.Has, absent: bool) -> list[str]:
        """The part's backend, which must be there, unless it may be `absent` for now."""
        wanted = list(self._part.backends)
        for name in wanted:
            backends.usable(name)
        if not absent:
            launching.present(wanted, has)
        return wanted

    def planned(self, wanted: list[str]) -> Plan:
        return self._part


def read_plan(path: Path, option: str) -> PlanFile:
    """The plan in a file.  UsageError for what cannot be read, or is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UsageError(f"{option} {path}: cannot be read ({why}); farm plan --out PLAN writes one") from None
    return planfile.read(text, f"{option} {path}")


def _check_store(store: Store, run_id: str) -> None:
    """Find out now, not after the start, that the store cannot be written, or has such a run."""
    store.probe()
    if any(r.id == run_id for r in store.runs()):
        raise StoreError(f"{store.path}: a run {run_id} is there already; choose another --run-id")
