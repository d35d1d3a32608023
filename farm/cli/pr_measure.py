"""`farm pr` as a measuring job: base against head, without a device and on what is here, into result.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from farm import __version__, atomic_files, backends
from farm.cli import ab, common, pr_base, pr_inputs, pr_known, run_command, stage_zero
from farm.cli.pr_asked import Asked
from farm.cli.text import printable
from farm.compare import kernel_changes
from farm.errors import InfraError, UsageError
from farm.node import config as node_config
from farm.node import sandbox, sandbox_host
from farm.node.environment import Environment, child_variables
from farm.pr import comment as comments
from farm.pr import decision, event_file, measured, own_box, own_tests, test_reports
from farm.pr import result as results
from farm.pr.commands import Command
from farm.pr.config_block import Config
from farm.pr.events import Ignored, Policy, Refusal, Request
from farm.pr.repeating import Links
from farm.pr.result_schema import VERSION
from farm.pr.selection import SENTINELS, Selection, select
from farm.process import supervisor
from farm.shipping import revision
from farm.stage_zero.answer import Answer
from farm.subject import arms, repository
from farm.subject.arms import ArmContent

TARGETS = "sm_90,gfx942"
EMPTY = "0" * 40
TOKEN, PACKAGE = "GITHUB_TOKEN", "FARM_PACKAGE"


def options(p: argparse.ArgumentParser) -> None:
    """Add what a measuring job takes."""
    common.matrix_options(p, needed=False)
    p.add_argument("--repo", metavar="PATH", default=".", help="the repository (default: this folder's)")
    p.add_argument("--subject", metavar="FILE", help="describe the subject by this farm.yaml, not by base's own")
    p.add_argument("--base", metavar="REV", help="the branch that head will be merged into (default: the event's)")
    p.add_argument("--head", metavar="REV", help="what will be merged (default: the event's, else HEAD)")
    p.add_argument(
        "--target", default=TARGETS, metavar="T,..", help=f"compile both arms for these, or none (default: {TARGETS})"
    )
    p.add_argument("--all", action="store_true", help="run every cell on devices, not only those a change can touch")
    p.add_argument("--no-device", action="store_true", help="run nothing on devices, even where there are some")
    p.add_argument("--sandbox", action="store_true", help="run everything in sandboxes; code of a fork always is")
    p.add_argument(
        "--no-sandbox",
        action="store_true",
        help="run code of a fork without a sandbox; only on a host that is thrown away afterwards",
    )
    p.add_argument(
        "--decision", type=Path, metavar="FILE", help="measure what this decision asks for, as --decide printed it"
    )
    p.add_argument("--result", type=Path, metavar="FILE", help="where the result is written (default: result.json)")
    p.add_argument("--seconds", type=float, default=own_tests.SECONDS, metavar="S", help="for each own test file")
    common.store_option(p)
    pr_known.option(p)
    pr_base.option(p)
    run_command.address_option(p)


def run(args: argparse.Namespace) -> int:
    """Measure, write the result and the comment, print the answer."""
    refuse_token()
    run_command.resolve_address(args)
    work = _Work(args)
    if work.nothing:
        print(f"farm pr: {printable(work.nothing)}")
        return 0
    result = work.result()
    text = json.dumps(result, indent=1)
    try:
        results.read(text)  # what a publishing job would refuse is an error here
    except ModuleNotFoundError as error:  # what was measured is kept all the same
        print(f"farm pr: {error.name} is not installed, so the form of the result is not checked here", file=sys.stderr)
    place = args.result or Path("result.json")
    write(place, text)
    if args.comment is not None:
        package = os.environ.get(PACKAGE) or revision.origin()
        write(args.comment, comments.comment(result, links=Links(package=package)))
    outcome = results.outcome(result)
    print(f"\nfarm pr: {comments.headline(result, outcome, printable)}")
    print(f"{outcome.name}: exit {outcome.exit_code}; {place}")
    return outcome.exit_code


def refuse_token() -> None:
    """UsageError where a token is in the environment of code that nobody has read."""
    if os.environ.get(TOKEN):
        raise UsageError(
            f"${TOKEN} is set, and this job runs code of the pull request, which could take it; unset it here, and "
            "publish the result in another job",
            id="pr-token-in-measuring-job",
        )


def write(place: Path, text: str) -> None:
    """A file in place of whatever file or link has its name: a link in a checkout says where its author wants to write.
    A device is written to.  UsageError."""
    try:
        atomic_files.write(place, text, links=False)
    except OSError as error:
        raise UsageError(f"{place}: cannot be written ({error.strerror}); name another file", id="pr-write") from None


class _Work:
    """One measuring job.  `nothing`: why there is nothing to do."""

    nothing = ""
    from_fork = False
    sentinels = SENTINELS
    given = pr_base.Named()

    command = Command("run")
    request: Request | None = None

    def __init__(self, args: argparse.Namespace):
        self.args, self.stages, self.faults = args, list[dict[str, Any]](), list[str]()
        self.launched: Sequence[Mapping[str, Any]] = ()
        self.chosen: Selection | None = None
        self.repository, self.number, self.config = "local/repository", 0, Config()
        base, head = args.base, args.head
        if args.event is not None or args.decision is not None:
            found = _decided(args)
            if isinstance(found, Ignored):
                self.nothing = found.why
                return
            if isinstance(found, Refusal):
                raise UsageError(found.why, id="pr-refused")
            self.repository, self.number, self.config = found.repository, found.number, found.config
            self.command, self.request = found.command, found
            base, head, self.from_fork = base or found.base, head or found.head, found.from_fork
        else:
            self.repository, self.number = pr_inputs.named(args)
        if not base:
            raise UsageError(
                "nothing says what head is compared with; give --base REV, or --event FILE", id="pr-no-base"
            )
        self.repo = Path(args.repo)
        top = repository.top(self.repo) if self.repo.is_dir() else None
        if top is None:
            raise UsageError(
                f"--repo {self.repo}: is in no git repository; give the path of one", id="pr-no-repository"
            )
        self.history = repository.history(top, base, head or "HEAD")
        self.top = top
        self.sandbox = args.sandbox or sandbox.required(self.from_fork, args.no_sandbox)
        if self.sandbox and (why := sandbox_host.refusal()):
            raise UsageError(
                f"code of a fork runs in a sandbox only, and none can be made here: {why}; --no-sandbox runs it "
                "without one, on a host that is thrown away afterwards",
                id="pr-no-sandbox",
            )
        self.id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-pr-{secrets.token_hex(2)}"
        if self.command.matrix:  # in place of those of the command line
            args.matrices = []
        self.given = pr_base.Named.of(args, top, self.history)
        self.asked.narrow(args)
        self.narrowed = bool(args.select)

    @cached_property
    def asked(self) -> Asked:
        """What of it was asked for."""
        return Asked(self.command, self.request, self.top, self.history)

    def result(self) -> dict[str, Any]:
        """All of it."""
        with self.asked.patched():
            return self._result()

    def _result(self) -> dict[str, Any]:
        a, b = self._contents()
        self.asked.check(a, b)
        described = a.subject or b.subject
        if described:
            self.sentinels = described.subject.selection.get("sentinel", SENTINELS)
            self.args.all = self.args.all or described.subject.selection.get("kernels") == "all"
        wanted = "sanity" in self.config.test
        only_comments = wanted and not self.args.all and self._timed("read", lambda: _same_code(a, b))
        answer = self._timed("stage 0", lambda: self._stage_zero(a, b)) if wanted and not only_comments else None
        static = measured.static(answer) if answer else _unchanged() if only_comments or a.digest == b.digest else None
        if static and (self.command.cell or self.command.matrix):  # what fewer cells do not reach is no finding
            static["unreached"] = []
        pairs = measured.interpreted(answer) if answer else []
        skipped = self._skipped()
        if only_comments and a.digest != b.digest:
            alone = "head changes comments and docstrings alone; --all runs them"
            skipped.append({"what": "the farm's cells", "why": alone})
        if described and a.digest == b.digest and (described.subject.tests or described.subject.benchmarks):
            same = "head changes none of the subject's files"
            skipped.append({"what": "the repository's own tests and benchmarks", "why": same})
        if answer and self._touched(answer, static or {}) and (where := self._devices()):
            device = self._timed("devices", lambda: self._arms(where, answer))
            ran = {p["cell"] for p in device}
            pairs = [*device, *(p for p in pairs if p["cell"] not in ran)]
            static = measured.with_launches(static or {}, self.launched)
            if self.chosen and self.chosen.left_out:
                what = f"{self.chosen.left_out} of {self.chosen.planned} cells on devices"
                skipped.append({"what": what, "why": "they launch no kernel that changed; --all runs them, too"})
        tests = self._timed("own tests", lambda: self._own_tests(a, b))
        known = self._known(a, pairs, static) if answer else {}
        given = pr_inputs.given(self.args, self.top, described.subject if described else None)
        pr_inputs.keep(given, (self.args.result or Path("result.json")).parent)
        return {
            "schema": VERSION,
            "farm": _own_version(),
            "python": platform.python_version(),
            "inputs": pr_inputs.told(given),
            **({"working_tree": [n[:300] for n in self.given.working[:100]]} if self.given.working else {}),
            **{
                f"counts_{what}": described is not None and described.subject.selection.get(what) == "counts"
                for what in ("simulated", "memory")
            },
            "repository": self.repository,
            "number": self.number,
            "run": self.id,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "config": self.config.digest,
            **self.asked.told(),
            **known,
            **({"selection": self.chosen.told()} if self.chosen and self.chosen.planned else {}),
            "base": self._arm(self.asked.base, a),
            "head": self._arm(self.asked.head, b),
            "behind": self.history.behind,
            "static": static,
            "pairs": [{**p, "repeat": self._repeat(p)} for p in pairs],
            "tests": tests,
            "not_run": [
                *measured.not_run(backends.accelerators(), pairs),
                *(measured.unsupported(answer) if answer else ()),
                *skipped,
            ],
            "faults": self.faults,
            "stages": self.stages,
            "repeat": self._repeat_all(),
        }

    def _known(
        self, base: ArmContent, pairs: Sequence[dict[str, Any]], static: dict[str, Any] | None
    ) -> dict[str, Any]:
        """What base's known failures explain."""
        read = pr_known.Read(self.args, base.subject, self.top, self.history)
        if static is not None:
            static["harness"] = [*static["harness"], *read.notes, *self.given.notes, *self.asked.notes][:1000]
        whole = not (self.narrowed or (self.chosen and self.chosen.left_out))
        return read.note(pairs, static, whole)

    def _contents(self) -> tuple[ArmContent, ArmContent]:
        a, b = arms.pair(*self.asked.arms())
        given = self.args.subject or ""
        return arms.contents(a, b, repo=str(self.top), subject=given, sandbox=self.sandbox, rules=self.asked.rules)

    def _stage_zero(self, a: ArmContent, b: ArmContent) -> Answer | None:
        told = ["--target", self.args.target] if self.args.target != "none" else []
        return stage_zero.answered(self._ab("--stage-0", *told))

    def _touched(self, answer: Answer, static: Mapping[str, Any]) -> bool:
        """Whether a device could find anything: some kernel, or the code that launches it, is not the same."""
        return bool(static["changed"] or static["unknown"] or static["host"])

    def _devices(self) -> list[str]:
        """The backends whose devices take part."""
        named = common.named_backends(self.args)
        if self.args.no_device:
            return []
        if self.command.backends or self.command.cell:  # of a comment, whose author does not know this host
            named = [b for b in named if b in backends.accelerators()]
            return named if self.args.address not in ("local", "inline") else [*filter(run_command.host_has, named)]
        if named or self.args.address not in ("local", "inline"):
            return named or backends.accelerators()
        return [b for b in backends.accelerators() if run_command.host_has(b)]

    def _arms(self, where: list[str], answer: Answer) -> list[dict[str, Any]]:
        kernels = measured.launched(answer)
        if not self.args.all:
            chosen = self.chosen = select(
                measured.built(answer), kernels, host=(*answer.host, *answer.other), sentinels=self.sentinels
            )
            print(f"farm pr: {chosen.why}", file=sys.stderr)
            self.args.select = ",".join(filter(None, (self.args.select, chosen.rule))) or None
        code = ab.run(self._ab("--backend", ",".join(where), "--address", self.args.address, "--no-page"))
        supervisor.concluded(InfraError.exit_code, complete=False)  # the comparison's end is not the command's
        if code == 2:
            raise UsageError("the comparison on devices could not begin", id="pr-devices")
        run_ = common.store(self.args).run(self.id)
        if not run_.complete:
            self.faults.append(f"the comparison on devices ended early (exit {code}), so its cells say nothing")
            return []
        self.launched = (run_.head.get("comparison") or {}).get("kernels") or ()
        return measured.executed(run_.table("pairs"), run_.rows, kernels)

    def _own_tests(self, a: ArmContent, b: ArmContent) -> list[dict[str, Any]]:
        loaded = a.subject or b.subject
        if loaded is None or a.digest == b.digest or self.command.cell:
            return []
        of = loaded.subject
        tests = of.tests if "ops" in self.config.test else ()
        benchmarks = of.benchmarks if "benchmark" in self.config.test else ()
        if not tests and not benchmarks:
            return []
        both = []
        for content in (a, b):
            if content.folder is None:
                return []
            both.append(
                own_tests.run(
                    content.folder,
                    tests,
                    benchmarks,
                    python=sys.executable,
                    variables=self._variables(),
                    path=(content.folder / (of.source.path or "."), content.folder),
                    seconds=self.args.seconds,
                    box=self._box if self.sandbox else own_box.Open,
                )
            )
        return test_reports.joined(*both)

    def _variables(self) -> dict[str, str]:
        given = child_variables({}, Environment.default())
        return sandbox.variables(given, sandbox_host.limits({}), grouped=False) if self.sandbox else given

    @cached_property
    def _limits(self) -> Mapping[str, float]:
        """Those of this host's default environment, if its node configuration has any."""
        named = node_config.load().environments.get("default")
        return (named.sandbox if named else None) or {}

    def _box(self) -> own_box.Sandboxed:
        """Around one process of the repository's own tests.  UsageError where no sandbox can be made."""
        if why := sandbox_host.unfit(Environment.default()):
            raise UsageError(f"no sandbox can be made here: {why}", id="run-no-sandbox")
        return own_box.Sandboxed(self._limits)

    def _skipped(self) -> list[dict[str, str]]:
        """What the config block asked not to run."""
        what = {"ops": "the repository's own tests", "benchmark": "its benchmarks", "sanity": "the farm's cells"}
        return [
            {"what": what[name], "why": "the config block does not ask for it"}
            for name in what
            if name not in self.config.test
        ]

    def _arm(self, sha: str, content: ArmContent) -> dict[str, Any]:
        tree = self.history.trees.get(sha) or EMPTY
        return {"sha": sha, "tree": tree, "digest": content.digest, "name": (content.revision or sha)[:300]}

    def _told(self) -> list[str]:
        """What every command that runs this code takes."""
        own = ["--subject", self.given.called(self.args.subject)] if self.args.subject else []
        return [*own, *(["--sandbox"] if self.sandbox else [])]

    def _named(self) -> list[str]:
        """The matrices, as whoever repeats it names them."""
        return [self.command.matrix] if self.command.matrix else [*map(self.given.called, self.args.matrices)]

    def _repeat_all(self) -> str:
        if self.asked.patch:
            return shlex.join(["farm", "ab", *self._named(), *self.asked.shown(), *self._told()])[:1000]
        words = ["farm", "pr", *self._named(), "--base", self.history.base[:12]]
        words += ["--head", self.history.head[:12], *self._told()]
        words += ["--target", self.args.target] if self.args.target != TARGETS else []
        words += ["--known", str(self.args.known)] if self.args.known is not None else []
        words += ["--working-tree"] if self.given.working else []
        return shlex.join(words)[:1000]

    def _repeat(self, pair: Mapping[str, Any]) -> str:
        words = ["farm", "ab", *self._named(), *self.asked.shown(), *self._told(), "--backend", pair["backend"]]
        return shlex.join([*words, "--select", f"id={pair['cell']}"])[:1000]

    def _ab(self, *more: str) -> argparse.Namespace:
        """The command line of `farm ab` for these arms."""
        from farm.cli.main import parser

        args = self.args
        a, b = self.asked.arms()
        argv = ["ab", *map(str, args.matrices), "--a", a, "--b", b]
        argv += ["--repo", str(self.top), *(["--sandbox"] if self.sandbox else []), "--run-id", self.id, *more]
        for option, value in (("--subject", args.subject), ("--select", args.select), ("--out", args.out)):
            argv += [option, str(value)] if value else []
        for option, values in (
            ("--set", args.overrides),
            ("--provider", args.provider),
            ("--contracts", args.contracts),
        ):
            for value in values or ():
                argv += [option, str(value)]
        made = parser("ab").parse_args(argv)
        made.argv, made.debug = argv, args.debug
        # the known.yaml beside a matrix of the working tree may be head's; the verdict is worked out of the pairs, by
        # base's (`_known`), so that the comparison itself excuses nothing
        made.known_entries = ()
        made.rules = self.asked.rules
        return made

    def _timed(self, stage: str, do: Any) -> Any:
        begun = time.monotonic()
        try:
            return do()
        finally:
            self.stages.append({"stage": stage, "seconds": round(time.monotonic() - begun, 1)})


def _decided(args: argparse.Namespace) -> decision.Decision:
    """What the event or the decision asks for.  UsageError."""
    if args.decision is None:
        return decision.decided(event_file.payload(args.event), Policy(tuple(args.allow), tuple(args.label)))
    if args.event is not None:
        raise UsageError("--decision says all that an event would; omit --event", id="pr-decision-and-event")
    return decision.read(event_file.text(args.decision))


def _own_version() -> str:
    """The farm that measured: its version, and its commit where it is one."""
    found = revision.of()
    changed = ", with changes" if found["dirty"] else ""
    return f"{__version__} (commit {found['commit'][:12]}{changed})" if found["commit"] else __version__


def _same_code(a: ArmContent, b: ArmContent) -> bool:
    """Whether nothing differs between two arms but comments and docstrings of Python files."""
    left, right = ({n: d for n, d in c.content() if not n.endswith(".py") and ".dist-info/" not in n} for c in (a, b))
    return left == right and not kernel_changes.code_changes(a.sources(), b.sources())


def _unchanged() -> dict[str, Any]:
    """What stage 0 says of two arms that hold the same files."""
    names = ("changed", "unknown", "unreached", "host", "harness", "targets", "tools")
    return {"kernels": 0, **{name: [] for name in names}}
