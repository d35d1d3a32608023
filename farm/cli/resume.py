"""`farm resume`: continue an interrupted run in its directory, with the cells that have no result."""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farm import backends
from farm.cli import ab, ab_noise, common, run_command
from farm.cli.text import counted, printable, sentence
from farm.cluster.base import DeviceHandle, NoCluster
from farm.coordinator import RunRequest, rounds
from farm.coordinator.request import KIND, RunArm
from farm.errors import Message, StoreError, UsageError
from farm.judge.digest import judging_digest
from farm.matrix import MatrixInfo, Plan
from farm.matrix.plan import plan_hash
from farm.shipping import providers as shipping
from farm.shipping import revision
from farm.sites import planfile
from farm.store import Run, RunWriter, Store, recovery
from farm.store.journal import Damage, Journal
from farm.store.recovery import Recovery
from farm.store.results import ALIKE
from farm.subject import command_line
from farm.subject.command_line import LoadedSubject

#: Options whose value is that of the first command line, unless they are given again: option -> default in `farm run`.
_FIRST: dict[str, Any] = {
    "address": None,
    "devices": None,
    "environment": None,
    "wait_for_devices": None,
    "wait": None,
    "strict_peers": False,
    "sanitize": None,
    "sandbox": False,
    **dict.fromkeys(command_line.OPTIONS),  # which subject
    "a": None,
    "b": None,
    "same": False,
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "resume",
        help="continue an interrupted run: run the cells that have no result",
        description="Run the cells of an interrupted run that are lost or have no result, and add the results to "
        "this run. The options of the original command apply again, unless you give other values here.",
        epilog="example: farm resume last --address auto",
    )
    p.add_argument("run", metavar="RUN", help="run to continue: a run ID, an ID prefix, or `last`")
    common.store_option(p)
    p.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="[OP:]NAME=module:function",
        help="import one of the run's own providers from this path",
    )
    p.add_argument(
        "--other-revision",
        action="store_true",
        help="continue even if the kernels, or the run's own providers, have changed since the run began",
    )
    common.subject_options(p)
    run_command.options(p, resumed=True)


def run(args: argparse.Namespace) -> int:
    """Lock, read what is known, run the rest and print the summary."""
    store = common.store(args)
    known, writer = _opened(store, args.run, lambda text: print(f"farm resume: {text}", file=sys.stderr, flush=True))
    cluster: Any = None
    unpacked = tempfile.TemporaryDirectory(prefix="farm-contracts-")
    try:
        common.use_kept_contracts(store.run(writer.id), unpacked.name)
        _as_begun(args, known.head.get("argv") or [])
        run_command.check(args)
        plan, arms = _plan(known), _arms(args, known.head)
        now = {**revision.of(), "kernels": revision.content()}
        providers, shipped = _providers(args, known.head)
        subject = _subject(args, writer.id, known.head)
        providers = {**providers, **(subject.calls if subject else {})}
        _same_code(args, writer.id, known.head, now, providers)
        _same_judge(writer.id, known)
        ready: tuple[RunArm, ...] = ()
        if arms:
            ready = arms.ready(args, {name: its["path"] for name, its in providers.items()}).arms
            known = rounds.whole(known, ready)
        begun = time.monotonic()
        wanted = list(dict.fromkeys(c.backend for c in (known.cells if ready else known.open)))
        cluster, slots = _connect(args, writer.id, wanted, plan)
    except BaseException:
        if cluster is not None:
            cluster.close()
        writer.close()
        raise
    print(
        f"run {writer.id}: {len(known.rows)} of {counted(len(known.cells), 'cell')} already finished", file=sys.stderr
    )
    request = RunRequest(
        plan,
        slots,
        "farm " + shlex.join(args.argv),
        args.argv,
        now,
        providers,
        environment=run_command.environment(args),
        shipped=shipped,
        subject=subject.packed if subject else None,
        strict_peers=args.strict_peers,
        stop_at_first=args.stop_at_first,
        calibrations=run_command.damaged_calibrations("resume", store),
        finished=known,
        arms=ready,
        kernels=arms.changes() if arms else (),
        only_kernels=arms.only_kernels() if arms else False,
        noise=ab_noise.read("resume", store) if arms else (),
        named_cells=common.names_cells([str(word) for word in known.head.get("argv") or ()]),
        whole=common.whole([str(word) for word in known.head.get("argv") or []]),
        wait_for_devices_s=run_command.grace(args),
        wait_s=run_command.busy_wait(args),
        limit_s=args.limit_s,
        began=run_command.began(args),
    )
    return run_command.go(args, store, writer, cluster, request, known.open, begun)


def _opened(store: Store, name: str, waiting: Callable[[str], None] = lambda text: None) -> tuple[Recovery, RunWriter]:
    """(what the run's journal says, its locked directory).  Nothing in the directory has changed."""
    writer = store.reopen(name, waiting)
    try:
        return _known(store.run(writer.id), writer.journal), writer
    except BaseException:
        writer.close()
        raise


def _known(run: Run, journal: Journal) -> Recovery:
    """What the run's journal says; refused if the run cannot be continued from it."""
    with common.readable(run):
        known = recovery.read_located(journal.located())
    head = known.head
    if not head:
        raise _not_begun(run.dir, journal.damage)
    if head.get("schema") not in ALIKE:
        raise StoreError(
            f"{run.dir}: the run has schema {head.get('schema')}, but this farm continues schemas {ALIKE[0]} to "
            f"{ALIKE[-1]}; resume with the farm version that started this run",
            id="resume-schema",
        )
    if head.get("kind", KIND) != KIND:
        word = {"compile": "compiled", "judged": "judged again"}.get(str(head["kind"]), str(head["kind"]))
        raise UsageError(
            f"{run.id} was {word}, not executed, so it cannot be resumed; repeat the command that made this run",
            id="resume-kind",
        )
    if plan_hash(known.cells) != head.get("plan_hash") or len(known.cells) != head.get("planned"):
        if not known.planned and not known.rows:
            raise _not_begun(run.dir, journal.damage)
        raise StoreError(
            f"{run.dir}: the cells do not match the hash of the run's plan, so the journal was damaged or edited"
            f"{_where(journal.damage)}; start a new run",
            id="resume-plan-hash",
        )
    if journal.damage:
        text = (
            f"{run.id}: the run's journal is damaged{_where(journal.damage)}; the whole lines count, and cells whose "
            "results were in damaged lines run again"
        )
        print(f"farm resume: {sentence(Message(text, id='resume-journal-damaged'))}", file=sys.stderr)
    if known.contradicted:
        first = next(c.cell_id for c in known.cells if c.index == known.contradicted[0])
        text = (
            f"{run.id}: {counted(len(known.contradicted), 'result')} in the run's journal, first of {first}, differ "
            "from how the attempt ended; these cells run again"
        )
        print(f"farm resume: {sentence(Message(text, id='resume-contradiction'))}", file=sys.stderr)
    return known


def _where(damage: Damage) -> str:
    """Where a journal is damaged, in brackets; "" if it is not."""
    if not damage:
        return ""
    behind = f"{counted(damage.behind, 'whole line')} behind it, with {counted(damage.results, 'result')}"
    return f" ({counted(damage.lines, 'damaged line')}, the first is line {damage.first}; {behind})"


def _not_begun(folder: Path, damage: Damage) -> StoreError:
    if damage:
        text = f"{folder}: the run's plan cannot be read, because its journal is damaged{_where(damage)}"
        return StoreError(f"{text}; start a new run; this one stays as it is", id="resume-plan-unreadable")
    return StoreError(
        f"{folder}: the run's plan is incomplete, so no cell had started; start a new run, with the same --run-id if "
        "you like",
        id="resume-plan-incomplete",
    )


def _as_begun(args: argparse.Namespace, argv: list[str]) -> None:
    """Set every option that is not given now to the value that the run was started with."""
    from farm.cli.main import parser

    first: Any = argparse.Namespace()  # of another farm: as if none were given
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        words = [str(word) for word in argv]
        first = parser(KIND if words[:1] == [KIND] else "run").parse_args(words)
    for name, default in _FIRST.items():
        given = getattr(args, name, None)
        if given is None or given is False:  # 0 seconds count as given
            setattr(args, name, getattr(first, name, default))


def _plan(known: Recovery) -> Plan:
    """The run's plan, read from its journal."""
    try:
        matrices = tuple(MatrixInfo.from_dict(m) for m in known.head["matrices"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"the run's journal does not contain the matrices ({error}); start a new run", id="resume-matrices-missing"
        ) from None
    unfit = planfile.unfit(known.cells, run_command.contract_version, run_command.contract_content)
    if unfit:
        raise UsageError(
            f"{known.head['run_id']}: {unfit}; resume with the farm version that started this run, or start a new run",
            id="resume-unfit",
        )
    return Plan(known.cells, matrices, known.head["plan_hash"], {})


def _arms(args: argparse.Namespace, head: Mapping[str, Any]) -> ab.Arms | None:
    """Both arms as they are now, by the run's own options; None if the run has none."""
    if head.get("kind") != KIND:
        return None
    found = ab.Arms(args, contracts=False, told=None if args.a and args.b else head.get("arms"))
    if changed := ab.changed(found, head):
        raise UsageError(changed, id="arm-changed")
    for line in found.lines():
        print(printable(line), file=sys.stderr)
    return found


def _providers(
    args: argparse.Namespace, head: Mapping[str, Any]
) -> tuple[dict[str, dict[str, str]], dict[str, Any] | None]:
    """The run's own providers as they are now, and their files."""
    told = (head.get("providers") or {}).items()
    paths = {name: str(its["path"]) for name, its in told if not its.get("subject")}
    for spec in args.provider:
        name, path = shipping.parse(spec)
        if name not in paths:
            have = ", ".join(paths) or "none"
            raise UsageError(
                f"--provider {name}: not one of the run's own providers ({have})", id="resume-provider-unknown"
            )
        paths[name] = path
    return common.packed(paths)


def _subject(args: argparse.Namespace, run_id: str, head: Mapping[str, Any]) -> LoadedSubject | None:
    """The run's subject as it is now, by the run's own options; None if it had none."""
    told = head.get("subject")
    if not told:
        return None
    found = common.subject(args, contracts=False)
    if found is None:
        raise UsageError(
            f"{run_id}: its subject {told.get('name')} is not described here any more; resume in the folder that the "
            "run was started in, or name it with --repo or --subject",
            id="resume-subject-missing",
        )
    return found


def _same_code(
    args: argparse.Namespace,
    run_id: str,
    head: Mapping[str, Any],
    now: Mapping[str, Any],
    providers: Mapping[str, Mapping[str, str]],
) -> None:
    """Refuse to mix two revisions in one run, unless --other-revision permits it; then report the mix."""
    then = head.get("revision") or {}
    changed = []
    if then.get("kernels") != now["kernels"]:
        changed.append(f"the run's kernels had revision {then.get('name', 'unknown')} and now have {now['name']}")
    for name, its in (head.get("providers") or {}).items():
        if name not in providers:
            changed.append(f"provider {name} is gone from the run's subject")
        elif its.get("sha256", "") != providers[name]["sha256"]:
            whose = (
                f"subject {its['subject']}, which provider {name} is of," if its.get("subject") else f"provider {name}"
            )
            changed.append(f"the files of the run's {whose} have changed")
    if not changed:
        return
    what = f"{run_id}: {' and '.join(changed)}"
    if not args.other_revision:
        raise UsageError(
            f"{what}; check out the original code, or mix both revisions in one run with --other-revision",
            id="resume-code-changed",
        )
    note = Message(f"{what}; the row of each cell records the revision that it ran with", id="resume-code-mixed")
    print(f"farm resume: {sentence(note)}", file=sys.stderr)


def _same_judge(run_id: str, known: Recovery) -> None:
    """Report results that other contracts, or another judge, gave than those that the remaining cells get."""
    ours = judging_digest()
    others = {str(row.get("judged_by") or "") for row in known.rows.values()} - {"", ours}
    if others and known.open:
        what = f"{run_id}: its results were judged by {', '.join(sorted(others))}, and the rest will be by {ours}"
        note = Message(f"{what}; each row records what judged it", id="resume-judge-mixed")
        print(f"farm resume: {sentence(note)}", file=sys.stderr)


def _connect(args: argparse.Namespace, run_id: str, wanted: list[str], plan: Plan) -> tuple[Any, list[DeviceHandle]]:
    """The cluster and its devices for the remaining cells; no device if no cell remains."""
    if not wanted:
        return NoCluster(), []

    def choose(has: run_command.Has, absent: bool) -> list[str]:
        for name in wanted:
            backends.usable(name)
        if not absent:
            run_command.present(wanted, has)
        return wanted

    cluster, slots, _ = run_command.connect(args, run_id, choose, lambda _: plan)
    return cluster, slots
