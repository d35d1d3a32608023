"""`farm run`: run matrices, or a site's part of a plan, on the devices of a cluster."""

from __future__ import annotations

import argparse
import errno
import shlex
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import backends
from farm.actor import tools
from farm.cli import common, run_command
from farm.cli.text import sentence
from farm.coordinator import RunRequest
from farm.errors import BackendError, Message, UsageError
from farm.matrix import Matrix, Plan, plan
from farm.node import config
from farm.shipping import revision
from farm.sites import planfile
from farm.sites.planfile import PlanFile
from farm.store import Store, new_id
from farm.subject import command_line
from farm.subject.command_line import LoadedSubject

if TYPE_CHECKING:
    from farm.cli.failed import FailedCells

MOST_PLAN_BYTES = 256 << 20  # 10^5 cells take a quarter of that


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "run",
        help="run matrices on every accelerator",
        description=(
            "Run and judge every cell of the matrices, or of a part of a plan, then write the run and the run's page."
        ),
        epilog="example: farm run matrices/rms_norm.yaml --backend cuda --select hidden=4096,dtype=bf16",
    )
    common.matrix_options(p, needed=False)
    common.subject_options(p)
    common.store_option(p)
    common.known_option(p)
    p.add_argument(
        "--plan", type=Path, metavar="PLAN", help="run this plan file, written by farm plan --out, instead of matrices"
    )
    p.add_argument(
        "--target", metavar="T", help="run only this part of the plan file (--plan): a backend, or backend:PATTERN"
    )
    p.add_argument("--run-id", metavar="ID", help="name the run (default: a timestamped name)")
    p.add_argument(
        "--failed",
        nargs="?",
        const="last",
        metavar="RUN",
        help="run only the cells that failed in RUN (default: the newest run), with the matrices and options of that "
        "run; --select may name their status, for example status=crashed",
    )
    p.add_argument(
        "--cells", type=Path, metavar="FILE", help="run only the cells whose IDs stand in this file, one per line"
    )
    p.add_argument(
        "--watch",
        action="store_true",
        help="after each save of a provider, contract or matrix, run its cells again, until Ctrl-C",
    )
    run_command.options(p)


def run(args: argparse.Namespace) -> int:
    """Plan, run and print the summary."""
    if args.watch:
        from farm.cli import watch

        return watch.run(args, once)
    return once(args)


def once(args: argparse.Namespace) -> int:
    """One run."""
    again = None
    if args.failed is not None:  # before any option gets its default
        from farm.cli import failed

        args, again = failed.again(args, common.store(args))
    if args.sanitize is not None and args.sanitize.endswith((".yaml", ".yml")):  # `--sanitize` takes the word behind it
        args.matrices, args.sanitize = [*args.matrices, Path(args.sanitize)], tools.CHECKS[0]
    run_command.check(args)
    common.check_run_id(args.run_id)
    common.use_contracts(args)
    if again is not None and not again.statuses:
        return _nothing_failed(common.store(args), again.run_id)
    if args.plan:
        check_plan_alone(args)
    file = read_plan(args.plan, "--plan") if args.plan else None
    if file and file.arms:
        from farm.cli import ab

        return ab.run_part(args, file)
    work: Any = PlanPart(args, file, again) if file else Matrices(args, again)
    providers, shipped = common.packed(work.providers)
    work.check_providers(providers)
    subject = work.subject
    providers = {**providers, **(subject.calls if subject else {})}
    store = common.store(args)
    run_id = args.run_id or new_id(datetime.now(timezone.utc))
    begun = time.monotonic()

    def plan_cells(wanted: list[str]) -> Plan:
        return run_command.under_tool(args, work.planned(wanted))

    cluster, slots, planned = run_command.connect(
        args, run_id, work.choose, plan_cells, lambda: _check_store(store, run_id)
    )
    if work.note:
        print(f"farm run: {sentence(work.note)}", file=sys.stderr)
    try:
        writer = store.create(run_id)
        common.keep_contracts(writer)
        if work.file and again is None:
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
        environment=run_command.environment(args),
        shipped=shipped,
        subject=subject.packed if subject else None,
        strict_peers=args.strict_peers,
        stop_at_first=args.stop_at_first,
        calibrations=run_command.damaged_calibrations("run", store),
        part=work.file.described(args.target) if work.file and again is None else {},
        known=work.known,
        whole=common.whole(args.argv),
        wait_for_devices_s=run_command.grace(args),
        wait_s=run_command.busy_wait(args),
        limit_s=args.limit_s,
        began=run_command.began(args),
    )
    return run_command.go(args, store, writer, cluster, request, planned.cells, begun)


def _nothing_failed(store: Store, run_id: str) -> int:
    """Nothing is to run again.  That is a success only if the run passed."""
    code = int(store.run(run_id).head.get("exit_code", 4))
    words = "passed" if code == 0 else "inconclusive, because that run proved nothing more"
    print(f"no cell of {run_id} failed, so nothing runs again\n{words}: exit {0 if code == 0 else 4}", file=sys.stderr)
    return 0 if code == 0 else 4


class Matrices:
    """What the matrix files, and the options that narrow them, request."""

    file: PlanFile | None = None
    note = ""  # printed before the run begins
    _again: FailedCells | None = None

    def __init__(self, args: argparse.Namespace, again: FailedCells | None = None):
        self._again = again
        if args.target is not None:
            raise UsageError(
                "--target names a part of a plan file; give this file with --plan, or name a backend with --backend",
                id="run-target-without-plan",
            )
        self.subject = common.subject(args)
        if not args.matrices and not (self.subject and self.subject.subject.matrices):
            raise UsageError(
                "none of MATRIX, --plan and --failed is given, and "
                + ("the subject's farm.yaml names no matrices" if self.subject else "no subject is found here or named")
                + "; give one of them, or write a farm.yaml with farm init (farm run --help shows an example)",
                id="run-nothing-named",
            )
        self._select = args.select
        self._ids = None if args.cells is None else read_ids(args.cells)
        self._local = args.address in (None, "local", "inline")
        self._asked = common.named_backends(args)
        self._matrices: list[Matrix] = common.matrices(args, self.subject)
        self.providers = {**common.own_providers(args), **common.declared_calls(self._matrices)}
        self.known = common.known_failures(args, self._matrices)

    def check_providers(self, found: dict[str, dict[str, str]]) -> None:
        """Nothing to check: the command line names them."""

    def choose(self, has: run_command.Has, absent: bool) -> list[str]:
        """Backends to run on: the named and the required ones (each must be available, unless it may be `absent` for
        now), else all accelerators, else cpu."""
        if self._again:
            if not absent:
                run_command.present(self._again.backends, has)
            return self._again.backends
        required = [b for m in self._matrices for b in m.require]
        for name in required:
            if name not in self._asked and self._asked:
                asked = ",".join(self._asked)
                raise BackendError(
                    f"--backend {asked}: the matrix requires {name}; add {name} to --backend, or remove {name} from "
                    "require: in the matrix",
                    id="run-backend-required",
                )
            backends.usable(name)
        named = self._asked or list(dict.fromkeys(required))
        if named and not absent:
            run_command.present(named, has)
        return named or [b for b in backends.accelerators() if has(b)] or self._cpu()

    def _cpu(self) -> list[str]:
        """Use the interpreter and report that.  BackendError if this node's configuration names an accelerator."""
        here = config.load() if self._local else config.NodeConfig()
        if here.backend in backends.accelerators():
            raise BackendError(
                f"{here.file}: this node's backend is {here.backend}, but this host has no device of that backend; "
                f"see farm doctor --backend {here.backend}, or run on the CPU with --backend cpu",
                id="run-node-backend-absent",
            )
        if here.backend != "cpu":
            self.note = Message(
                "no accelerator was found, so the cells run in the interpreter on the CPU, which proves numerics, "
                "never speed; farm doctor lists what was checked",
                id="run-on-interpreter",
            )
        return ["cpu"]

    def planned(self, wanted: list[str]) -> Plan:
        if not self._again:
            return plan(self._matrices, wanted, select=self._select, ids=self._ids)
        found = plan(self._matrices, wanted, select=self._select, statuses=self._again.statuses, ids=self._ids)
        if not self._select and self._ids is None:
            self._again.report_missing(found)
        return found


def check_plan_alone(args: argparse.Namespace) -> None:
    """UsageError for what would change a plan beside --plan."""
    given = {
        "MATRIX": args.matrices,
        "--select": args.select is not None,
        "--backend": args.backend is not None,
        "--set": args.overrides,
        "--cells": args.cells is not None,
        "--provider": args.provider,
    }
    for name in (name for name, there in given.items() if there):
        raise UsageError(
            f"--plan determines what runs, but {name} would change the plan; omit {name}, or plan again",
            id="run-plan-with-more",
        )


class PlanPart:
    """What a site's part of a plan requests.  The plan determines all of it."""

    note = ""

    def __init__(self, args: argparse.Namespace, file: PlanFile, again: FailedCells | None = None):
        self.args, self.file = args, file
        where = f"--plan {args.plan}"
        if not args.target:
            have = ", ".join(planfile.parts(self.file.plan))
            raise UsageError(
                f"{where}: --target is missing; name the part to run here: {have}", id="run-plan-target-missing"
            )
        self._part = planfile.part(self.file.plan, args.target)
        unfit = planfile.unfit(self._part.cells, run_command.contract_version, run_command.contract_content)
        if unfit:
            raise UsageError(
                f"{where}: {unfit}; use the farm version that wrote the plan, or plan again with this version",
                id="run-plan-unfit",
            )
        self._again = again
        if again:
            failing = [c for c in self._part.cells if (c.cell_key, c.target) in again.statuses]
            if not failing:
                raise UsageError(
                    f"{where}: the plan has none of the cells that failed in {again.run_id}; name another run",
                    id="run-failed-missing",
                )
            self._part = planfile.of_cells(self._part, failing)
            self.subject = common.subject(args) if self.file.subject else None  # with today's files
        else:
            self.subject = self.find_subject(args, where)
        self._where = where
        self.known = common.known_failures(args, ())
        self._planned = planfile.providers_of(self.file, self._part.cells)
        self.providers = {name: its["path"] for name, its in self._planned.items()}

    def find_subject(self, args: argparse.Namespace, where: str) -> LoadedSubject | None:
        """The plan's subject as it is here.  UsageError if it differs."""
        return planned_subject(args, self.file.subject, where)

    def check_providers(self, found: dict[str, dict[str, str]]) -> None:
        """UsageError for a provider whose files differ from the planned ones, unless failed cells run again."""
        for name, its in {} if self._again else self._planned.items():
            if its["sha256"] != found[name]["sha256"]:
                raise UsageError(
                    f"{self._where}: the files of provider {name} ({its['path']}) differ from the files in the "
                    "plan; copy the planned files here",
                    id="run-plan-provider-differs",
                )

    def choose(self, has: run_command.Has, absent: bool) -> list[str]:
        """The part's backend, which must be available, unless it may be `absent` for now."""
        wanted = list(self._part.backends)
        for name in wanted:
            backends.usable(name)
        if not absent:
            run_command.present(wanted, has)
        return wanted

    def planned(self, wanted: list[str]) -> Plan:
        return self._part


def planned_subject(args: argparse.Namespace, planned: Mapping[str, Any], where: str) -> LoadedSubject | None:
    """The subject of a plan file, found here by the same options as without a plan.  UsageError if it differs."""
    if not planned:
        given = next((o for o in command_line.OPTIONS if getattr(args, o) not in (None, command_line.NONE)), "")
        if given:
            raise UsageError(
                f"{where}: the plan has no subject, but --{given} names one; omit it, or plan again",
                id="run-plan-subject-none",
            )
        return None
    found = common.subject(args)
    if found is None or found.packed.digest != planned["digest"]:
        told = f"has digest {found.packed.digest}" if found else "is not here"
        raise UsageError(
            f"{where}: the plan is of subject {planned['name']} {planned['revision']} (digest {planned['digest']}), "
            f"which {told}; name the planned one with --repo, --subject, --wheel or --release",
            id="run-plan-subject-differs",
        )
    return found


def read_ids(path: Path) -> list[str]:
    """The cells' IDs in a file, one a line.  UsageError if it cannot be read, or has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise UsageError(f"--cells {path}: cannot be read ({why}); name a file of cell IDs", id="run-cells") from None
    found = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not found:
        raise UsageError(f"--cells {path}: this file has no cell IDs; write one per line", id="run-cells")
    return found


def read_plan(path: Path, option: str) -> PlanFile:
    """The plan in a file.  UsageError if it cannot be read, or is not a plan."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_PLAN_BYTES + 1)
        if len(data) > MOST_PLAN_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_PLAN_BYTES >> 20} MiB")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise UsageError(
            f"{option} {path}: cannot be read ({why}); farm plan --out PLAN writes a plan", id="plan-unreadable"
        ) from None
    return planfile.read(text, f"{option} {path}")


def _check_store(store: Store, run_id: str) -> None:
    """Refuse now, not after the start, a store that cannot be written or already has this run."""
    store.probe()
    store.refuse_existing(run_id)
