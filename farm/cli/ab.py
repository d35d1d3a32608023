"""`farm ab`: run the cells of a matrix in two arms, round by round on one device, and say whether b is worse than a."""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cli import ab_noise, common, run_command, stage_zero
from farm.cli.run import Matrices, PlanPart
from farm.cli.text import printable, sentence
from farm.compare import kernel_changes
from farm.compare.arms import WORKING_TREE, Arm, differences
from farm.compare.kernel_changes import Change
from farm.contracts import discovery
from farm.coordinator import RunRequest
from farm.coordinator.request import RunArm
from farm.errors import FarmError, Message, UsageError
from farm.matrix import Plan, plan
from farm.matrix.arms import two
from farm.node import config
from farm.shipping import revision
from farm.sites.planfile import PlanFile
from farm.subject import arms as contents
from farm.subject import repository
from farm.subject.arms import ArmContent
from farm.subject.command_line import LoadedSubject

SKIP = 125  # tells git bisect to skip a commit
EXAMPLE = "farm ab matrices/rms_norm.yaml --a revision=main --b revision=. --backend cuda"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "ab",
        help="compare two arms on the same devices: revisions, versions, environments, providers, modes",
        description="Run each cell in two arms on the same device and say whether b is worse than a. An arm is "
        "KEY=VALUE,.. of revision=REV (. for the working tree), version=NAME==VERSION, wheel=FILE, patch=FILE (a diff "
        "on the revision), environment=NAME, env.NAME=VALUE, provider=NAME, mode=NAME, tuning=freeze|each|none. Exit "
        "codes: 0 not worse, 1 worse, 3 infrastructure failure, 4 inconclusive.",
        epilog=f"example: {EXAMPLE}",
    )
    common.matrix_options(p, needed=False)
    p.add_argument("--a", metavar="KEY=VALUE,..", help="the first arm: what b is compared with")
    p.add_argument("--b", metavar="KEY=VALUE,..", help="the second arm")
    p.add_argument(
        "--same",
        action="store_true",
        help="compare arm a with itself (no --b): how much do times of identical code differ here? The records set the "
        "thresholds of later comparisons",
    )
    p.add_argument(
        "--tally",
        action="store_true",
        help="run nothing; print how many pairs of identical code were measured in the store, and how many of them "
        "were called changed",
    )
    p.add_argument("--repo", metavar="PATH|URL", help="the repository of the revisions (default: that of this folder)")
    p.add_argument("--subject", metavar="FILE", help="describe the subject of both arms by this farm.yaml")
    common.store_option(p)
    common.known_option(p)
    p.add_argument("--run-id", metavar="ID", help="name the run (default: a timestamped name)")
    p.add_argument(
        "--bisect",
        action="store_true",
        help="exit with 0, 1, or 125 for what cannot be built or decided, as git bisect run expects",
    )
    run_command.options(p)
    stage_zero.options(p)


def run(args: argparse.Namespace) -> int:
    """Find both arms, plan, run and print the comparison."""
    if args.tally:
        return ab_noise.tally(args)
    if not args.bisect:
        return _run(args)
    try:
        code = _run(args)
    except FarmError as error:
        print(f"farm ab: {sentence(error)}", file=sys.stderr)
        return SKIP
    return code if code in (0, 1) else SKIP


def _run(args: argparse.Namespace) -> int:
    _check_arms(args)
    if args.stage_0:
        return stage_zero.run(args)
    stage_zero.refuse_options(args)
    run_command.check(args)
    common.check_run_id(args.run_id)
    if args.stop_at_first:
        raise UsageError(
            "-x stops at the first finding, and a comparison needs both arms of each cell; omit it", id="arm-stop"
        )
    common.use_contracts(args)
    arms = Arms(args)
    for line in arms.lines():
        print(printable(line), file=sys.stderr)
    if arms.same:
        same = f"a and b hold the same files (digest {arms.same}) and nothing else differs: nothing was run"
        print(f"{same}; --same instead of --b measures how much an arm differs from itself")
        return 0
    return _compare(args, arms, PlannedArms(args, arms))


def run_part(args: argparse.Namespace, file: PlanFile) -> int:
    """`farm run --plan` of a plan with two arms: compare them on the cells of a part."""
    if args.stop_at_first:
        raise UsageError(
            "-x stops at the first finding, and the plan compares two arms of each cell; omit it", id="arm-stop"
        )
    for option in ("wheel", "release"):
        if getattr(args, option) is not None:
            raise UsageError(
                f"--plan {args.plan}: the plan says what its arms hold, but --{option} would change both; omit it",
                id="run-plan-with-more",
            )
    arms = Arms(args, told=file.arms)
    for arm, content in zip((arms.a, arms.b), arms.contents or (None, None)):
        planned, here = str(file.arms[arm.name]["digest"]), content.digest if content else ""
        if planned != here:
            raise UsageError(
                f"--plan {args.plan}: arm {arm.name} ({arm.called}) has digest {planned or 'none'} in the plan, and "
                f"{here or 'none'} here; name its repository with --repo, its farm.yaml with --subject, and copy its "
                "patch or wheel here",
                id="run-plan-arm-differs",
            )
    for line in arms.lines():
        print(printable(line), file=sys.stderr)
    return _compare(args, arms, _PlannedPart(args, file))


def _compare(args: argparse.Namespace, arms: Arms, work: PlannedArms | _PlannedPart) -> int:
    """Run the comparison; the exit code."""
    ready = arms.ready(args, work.providers)
    work.check_providers({name: dict(its) for name, its in ready.providers.items()})
    store = common.store(args)
    run_id = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    begun = time.monotonic()

    def check_store() -> None:
        store.probe()
        store.refuse_existing(run_id)

    cluster, slots, planned = run_command.connect(args, run_id, work.choose, work.planned, check_store)
    if work.note:
        print(f"farm ab: {sentence(work.note)}", file=sys.stderr)
    try:
        writer = store.create(run_id)
        common.keep_contracts(writer)
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
        ready.providers,
        environment=run_command.environment(args),
        shipped=ready.shipped,
        strict_peers=args.strict_peers,
        calibrations=run_command.damaged_calibrations("ab", store),
        wait_for_devices_s=run_command.grace(args),
        wait_s=run_command.busy_wait(args),
        part=work.file.described(args.target) if work.file else {},
        kernels=arms.changes(),
        only_kernels=arms.only_kernels(),
        noise=ab_noise.read("ab", store),
        named_cells=common.names_cells(args.argv),
        arms=ready.arms,
        known=work.known,
        whole=common.whole(args.argv),
        began=run_command.began(args),
    )
    return run_command.go(args, store, writer, cluster, request, planned.cells, begun)


def _check_arms(args: argparse.Namespace) -> None:
    """UsageError unless both arms are given, or arm a alone with --same."""
    if not args.same and not (args.a and args.b):
        missing = "--a and --b are" if not (args.a or args.b) else f"--{'b' if args.a else 'a'} is"
        raise UsageError(
            f"{missing} missing; write for example --a revision=main --b revision=., or --same to compare an arm "
            "with itself",
            id="arm-missing",
        )
    given = {"--b": args.b, "--bisect": args.bisect, "--stage-0": args.stage_0} if args.same else {}
    for name in (name for name, there in given.items() if there):
        raise UsageError(f"--same compares arm a with itself, so {name} says nothing; omit one of them", id="arm-same")


class ReadyArms:
    """Both arms as a run needs them.  `providers`, `shipped`: those that both have."""

    def __init__(self, arms: tuple[RunArm, RunArm], providers: Mapping[str, Any], shipped: Mapping[str, Any] | None):
        self.arms, self.providers, self.shipped = arms, providers, shipped


class Arms:
    """Both arms of a command line, with their files.  With `contracts`, the ops that the subject of arm a defines are
    known from now on; a resumed run has kept its own.  `told`: what a plan file or a run says of both, for --a and
    --b.  UsageError, MatrixError, InfraError for what cannot be had."""

    def __init__(
        self, args: argparse.Namespace, contracts: bool = True, told: Mapping[str, Mapping[str, Any]] | None = None
    ):
        same = getattr(args, "same", False)
        self.a, self.b = contents.planned(told) if told else contents.pair(args.a or "", args.b or "", same=same)
        self.contents: tuple[ArmContent, ArmContent] | None = None
        if any(arm.kind for arm in (self.a, self.b)) or args.repo or args.subject:
            self.contents = contents.contents(
                self.a,
                self.b,
                repo=args.repo or "",
                subject=args.subject or "",
                sandbox=args.sandbox,
                rules=getattr(args, "rules", ""),
            )
        if same and self.contents and len({content.digest for content in self.contents}) > 1:
            raise UsageError(
                f"{self.a.called}: its files changed while they were read, so arm b would not be the same; repeat the "
                "command",
                id="arm-same-changed",
            )
        self.subjects: tuple[LoadedSubject | None, ...] = (None, None)
        if self.contents:
            self.subjects = tuple(content.subject for content in self.contents)
        first = self.subjects[0]
        self.moved = [*_changed_rules(self.subjects), *self._changed_harness(args)]
        for folder in first.subject.contracts if first and contracts else ():  # arm a's or the operator's judge both
            discovery.add(Path(folder))
        _check_environments(args, (self.a, self.b))

    @property
    def same(self) -> str:
        """The digest that both have, where nothing else differs; "" where there is something to compare."""
        if not self.contents or set(differences(self.a, self.b)) != {"files"}:
            return ""
        a, b = (content.digest for content in self.contents)
        return a if a == b else ""

    def _changed_harness(self, args: argparse.Namespace) -> list[str]:
        """Where both arms are revisions of the farm's own repository: that they differ in the farm, too."""
        if not self.contents or not all(c.kernels and c.arm.kind == "revision" for c in self.contents):
            return []
        place = args.repo or str(repository.top(Path.cwd()) or Path.cwd())
        homes = [
            repository.find(place) if arm.source == WORKING_TREE else repository.at(place, arm.source, f"--{arm.name}")
            for arm in (self.a, self.b)
        ]
        names = _differing(*(home.folder / "farm" for home in homes))
        told = (
            f"the arms differ in the farm itself ({', '.join(names[:3])}); the farm that runs this command measures and"
        )
        return [f"{told} judges both"] if names else []

    def changes(self) -> list[Change]:
        """Their kernels, and how each compares."""
        return kernel_changes.changes(*(c.sources() for c in self.contents)) if self.contents else []

    def only_kernels(self) -> bool:
        """Whether, of the files of both, nothing but kernels differs."""
        if not self.contents:
            return False
        others = [
            {n: d for n, d in c.content() if not n.endswith(".py") and ".dist-info/" not in n} for c in self.contents
        ]
        return others[0] == others[1] and not kernel_changes.host_changes(*(c.sources() for c in self.contents))

    def lines(self) -> list[str]:
        """What both are, for people."""
        out = []
        for arm, content in zip((self.a, self.b), self.contents or (None, None)):
            told = f" (revision {content.revision or 'none'}, digest {content.digest})" if content else ""
            out.append(f"arm {arm.name}: {arm.called}{told}")
        notes = [note for content in self.contents or () for note in content.notes]
        return [*out, *(f"note: {note}" for note in (*notes, *self.moved))]

    def described(self) -> dict[str, dict[str, Any]]:
        """Both as a plan file has them: a revision by its commit, since a branch moves on."""
        out = {}
        for arm, content in zip((self.a, self.b), self.contents or (None, None)):
            plain = {**arm.plain(), "called": arm.called, "digest": content.digest if content else ""}
            if content and arm.kind == "revision" and arm.source != WORKING_TREE and content.revision:
                plain["source"] = content.revision.partition("+")[0]
            out[arm.name] = {**plain, "revision": content.revision if content else ""}
        return out

    def ready(self, args: argparse.Namespace, paths: Mapping[str, str]) -> ReadyArms:
        """With everything that is sent to devices; `paths`: the providers of the command line and the matrices."""
        providers, shipped = common.packed(paths)
        both = [self._ready(args, i, arm, providers) for i, arm in enumerate((self.a, self.b))]
        return ReadyArms((both[0], both[1]), providers, shipped)

    def _ready(self, args: argparse.Namespace, place: int, arm: Arm, providers: Mapping[str, Any]) -> RunArm:
        asked = run_command.environment(args)
        environment = replace(asked, name=arm.environment) if arm.environment else asked
        content = self.contents[place] if self.contents else None
        subject = content.subject if content else None
        own = subject.packed if subject else None
        name = str(revision.of()["name"])
        if content and content.kernels and arm.kind:
            own, name = content.packed, content.revision
        calls = {**providers, **(subject.calls if subject else {})}
        return RunArm(arm, name, environment, calls, own, content.digest if content else "")


def _check_environments(args: argparse.Namespace, arms: tuple[Arm, Arm]) -> None:
    """UsageError for an environment that this host does not have, where the run is on this host."""
    if args.address in ("local", "inline"):
        for arm in arms:
            if arm.environment:
                config.environment(config.load(), arm.environment)


def _changed_rules(subjects_: tuple[LoadedSubject | None, ...]) -> list[str]:
    """What arm b changes of contracts and matrices, which are those of arm a for both."""
    a, b = subjects_
    if a is None or b is None:
        return []
    home, other = Path(a.subject.file).parent.resolve(), Path(b.subject.folder).resolve()
    out = []
    for what, places in (("contracts", a.subject.contracts), ("matrices", a.subject.matrices)):
        inside = [p for place in places if (p := Path(place).resolve()).is_relative_to(home)]
        pairs = [(p, other / p.relative_to(home)) for p in inside]
        names = [name for mine, theirs in pairs if theirs.exists() for name in _differing(mine, theirs)]
        if names:
            out.append(f"arm b changes {what} ({', '.join(names[:3])}); for both arms those of arm a count")
    return out


def _differing(mine: Path, theirs: Path) -> list[str]:
    """The names of the files that differ, in two files or folders."""
    if mine.is_file():
        return [] if theirs.is_file() and mine.read_bytes() == theirs.read_bytes() else [mine.name]
    a, b = _texts(mine), _texts(theirs)
    return sorted(f"{mine.name}/{name}" for name in {**a, **b} if a.get(name) != b.get(name))


def _texts(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


class PlannedArms(Matrices):
    """What the matrices request in both arms."""

    def __init__(self, args: argparse.Namespace, arms: Arms):
        self._args, self._arms, self._select = args, arms, args.select
        self._local = args.address in (None, "local", "inline")
        self._asked = common.named_backends(args)
        self._of_arms = [common.matrices(args, subject) for subject in arms.subjects]
        self._matrices = self._of_arms[0]
        self.providers = {**common.own_providers(args), **common.declared_calls(self._matrices)}
        self.known = common.known_failures(args, self._matrices)  # arm a's, as its matrices are

    def planned(self, wanted: list[str]) -> Plan:
        plans = [plan(matrices, wanted, select=self._select) for matrices in self._of_arms]
        return run_command.under_tool(self._args, two(plans, (self._arms.a, self._arms.b)))


class _PlannedPart(PlanPart):
    """A site's part of a plan with two arms."""

    def find_subject(self, args: argparse.Namespace, where: str) -> LoadedSubject | None:
        return None  # each arm has its own

    def planned(self, wanted: list[str]) -> Plan:
        return run_command.under_tool(self.args, super().planned(wanted))


def planned_arms(args: argparse.Namespace) -> tuple[Arms, Callable[[list[str]], Plan], dict[str, str]]:
    """For `farm plan`: both arms, what plans the cells of both, and the providers.  UsageError where they are the same,
    or only one is given."""
    if not (args.a and args.b):
        raise UsageError(
            f"--{'b' if args.a else 'a'} is missing: a comparison has two arms; give both, or neither", id="arm-missing"
        )
    everywhere = argparse.Namespace(**{**vars(args), "sandbox": False, "address": "", "tool": ""})  # sites differ
    arms = Arms(everywhere)
    if arms.same:
        raise UsageError(
            f"a and b hold the same files (digest {arms.same}) and nothing else differs, so there is nothing to plan; "
            "change one of them",
            id="arm-no-difference",
        )
    work = PlannedArms(everywhere, arms)
    return arms, work.planned, work.providers


def changed(arms: Arms, head: Mapping[str, Any]) -> str:
    """Which arm of an interrupted run has other files now; "" for none."""
    for arm, content in zip((arms.a, arms.b), arms.contents or (None, None)):
        was = (head.get("arms") or {}).get(arm.name, {}).get("digest", "")
        now = content.digest if content else ""
        if was != now:
            told = f"{head.get('run_id')}: arm {arm.name} ({arm.called}) had digest {was or 'none'} when the run began"
            return Message(
                f"{told} and has {now or 'none'} now; restore its files, or start a new comparison", id="arm-changed"
            )
    return ""
