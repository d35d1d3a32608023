"""The subject that a command line names, loaded: its file, its content, and what matrices and runs need of it."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm import backends
from farm.contracts import discovery
from farm.errors import MatrixError, UsageError
from farm.kernel_package import ROOT
from farm.matrix import ProviderInfo
from farm.matrix.document import suggest
from farm.node.environment import Environment, child_variables
from farm.process import command
from farm.process.own_modules import module_words
from farm.shipping import subjects
from farm.shipping.subjects import PackedSubject
from farm.subject import content, repository
from farm.subject.model import AUTOGRAD, FILE, Subject, SubjectProvider
from farm.subject.read import SubjectReader, check_release
from farm.subject.repository import Repository

NONE = "none"
ASK_SECONDS = 120.0
#: The options, as argparse names them; `farm resume` repeats those of the run.
OPTIONS = ("repo", "subject", "wheel", "release")


@dataclass(frozen=True)
class LoadedSubject:
    """`subject` with its functions asked for their modes."""

    subject: Subject
    packed: PackedSubject

    @property
    def providers(self) -> dict[str, ProviderInfo]:
        """As a matrix knows them."""
        return {
            p.name: ProviderInfo(
                p.name,
                p.role,
                ops=tuple(p.ops),
                declares={op: e.declares for op, e in p.ops.items() if e.declares},
                op_modes={op: _everywhere(p, op, e.modes) for op, e in p.ops.items()},
                backend_modes={op: found for op, e in p.ops.items() if (found := _by_backend(p, op, e.modes))},
            )
            for p in self.subject.providers.values()
        }

    @property
    def calls(self) -> dict[str, dict[str, Any]]:
        """`OP:NAME` -> what a child is told of the provider, as a run keeps it."""
        out = {}
        for provider, op, entry in self.subject.entries():
            differs = {
                backend: {
                    **({"path": override.ops[op][0]} if override.ops[op][0] else {}),
                    **({"backward": _own(override.ops[op][1])} if override.ops[op][1] else {}),
                }
                for backend, override in provider.backends.items()
                if op in override.ops
            }
            out[f"{op}:{provider.name}"] = {
                "path": entry.call,
                "sha256": self.packed.digest,
                "subject": self.subject.name,
                **({"backward": entry.backward} if entry.backward != AUTOGRAD else {}),
                **({"backends": differs} if differs else {}),
            }
        return out

    @property
    def line(self) -> str:
        """For people: what is tested, of which revision, from where."""
        p = self.packed
        return f"subject: {p.name} {p.revision or 'without a revision'} (digest {p.digest}), by {self.subject.file}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --repo, --subject, --wheel and --release."""
    parser.add_argument(
        "--repo",
        metavar="PATH|URL[@REV]",
        help=f"test the kernels of this repository, as its {FILE} describes them; with @REV, of that revision",
    )
    parser.add_argument(
        "--subject",
        metavar="FILE",
        help=f"describe the subject by this file, instead of the repository's own {FILE}; none: no subject",
    )
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="test the subject as this wheel has it")
    parser.add_argument("--release", metavar="NAME==VERSION", help="test the subject as this published release has it")


def load(args: argparse.Namespace) -> LoadedSubject | None:
    """The subject that the options name, or that the working folder's repository describes; None for none.  MatrixError
    or UsageError for what is wrong with it."""
    home = repository.find(args.repo) if args.repo else None
    file = _file(args, home)
    if file is None:
        given = next((o for o in ("wheel", "release") if getattr(args, o, None)), "")
        if given:
            raise UsageError(
                f"--{given} replaces the files of a subject, but there is none; name one with --subject FILE or --repo",
                id="subject-none-for-option",
            )
        return None
    if args.wheel and args.release:
        raise UsageError(
            "--wheel and --release both replace the subject's files; give one of them", id="subject-two-options"
        )
    if args.wheel and not args.wheel.is_file():
        raise UsageError(
            f"--wheel {args.wheel}: no such file; give the path of a .whl file", id="subject-wheel-missing"
        )
    release = check_release(args.release, "--release") if args.release else ""
    if args.repo or args.subject:
        subject = described(file)
    else:  # nobody named it: it may be somebody else's file of that name
        try:
            subject = described(file)
        except MatrixError as error:
            raise MatrixError(f"{error}; to run without it: --subject {NONE}", id=error.id) from None
    boxed = bool(getattr(args, "sandbox", False))
    if boxed:
        refuse_unboxed(subject, operators=bool(args.subject))
    home = home or repository.working_tree(repository.top(file.parent) or file.parent)
    return loaded(subject, home, args.wheel, release, boxed=boxed)


def know(ops: Iterable[str], folders: Sequence[Path] = ()) -> None:
    """Where one of these ops is unknown: also know those of the working folder's farm.yaml, unless `folders` has them
    already.  MatrixError for a file that is wrong."""
    if set(ops) <= set(discovery.known_ops()):
        return
    file = repository.top(Path.cwd()) or Path()
    if (file / FILE).is_file():
        there = {p.resolve() for p in folders}
        for place in described(file / FILE).contracts:
            if Path(place).resolve() not in there:
                discovery.add(Path(place))


def described(file: Path) -> Subject:
    """What a `farm.yaml` says.  MatrixError."""
    return SubjectReader(discovery.known_ops(), discovery.find, backends.known()).file(file)


def loaded(
    subject: Subject, home: Repository, wheel: Path | None = None, release: str = "", *, boxed: bool = False
) -> LoadedSubject:
    """What a description says, with the files of its repository, or of a wheel or release in their place.  `boxed`:
    whatever is run of it meanwhile runs in a sandbox."""
    made = content.packed(subject, home, wheel=wheel, release=release)
    return LoadedSubject(_asked(subject, made, boxed), made)


def refuse_unboxed(subject: Subject, *, operators: bool) -> None:
    """UsageError for what would run outside of the sandbox.  `operators`: the file is not the repository's own."""
    if subject.source.build:
        raise UsageError(
            f"{subject.file}: build.command would run outside of the sandbox; build it elsewhere, and name the result "
            "with --wheel and a file without build, or run without --sandbox",
            id="subject-sandbox-build",
        )
    if subject.contracts and not operators:
        raise UsageError(
            f"{subject.file}: the contracts of the repository under test would run outside of the sandbox, and decide "
            "what is right; name your own file with --subject, or run without --sandbox",
            id="subject-sandbox-contracts",
        )


def _file(args: argparse.Namespace, home: Repository | None) -> Path | None:
    """The subject's file; a repository without one is a mistake only where it was named."""
    if args.subject == NONE:
        if args.repo:
            raise UsageError(
                "--subject none and --repo contradict each other; give one of them", id="subject-none-and-repo"
            )
        return None
    if args.subject:
        return Path(args.subject)
    if home is not None:
        file = home.folder / FILE
        if not file.is_file():
            near = suggest(FILE, sorted(p.name for p in home.folder.glob("*.y*ml")), "YAML files")
            raise UsageError(
                f"--repo {args.repo}: has no {FILE} at its root ({near}); write one with farm init, or give your own: "
                "--subject FILE",
                id="subject-repo-without-file",
            )
        return file
    here = repository.top(Path.cwd())
    found = here / FILE if here else None
    return found if found and found.is_file() else None


def _everywhere(provider: SubjectProvider, op: str, modes: tuple[str, ...]) -> tuple[str, ...]:
    """The modes of an op on any backend, those of no backend's own first."""
    others = (m for override in provider.backends.values() for m in override.modes.get(op, ()))
    return tuple(dict.fromkeys((*modes, *others)))


def _by_backend(provider: SubjectProvider, op: str, modes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Backend -> the modes of an op there, "" for all others; {} where they are the same on all."""
    found = {backend: o.modes[op] for backend, o in provider.backends.items() if op in o.modes}
    return {"": modes, **found} if found else {}


def _own(backward: str) -> str:
    return "" if backward == AUTOGRAD else backward


def _asked(subject: Subject, made: PackedSubject, boxed: bool) -> Subject:
    """The subject once the functions that list its modes were called, in a child of this host."""
    asks = list(dict.fromkeys(e.asks for _, _, e in subject.entries() if e.asks))
    if not asks:
        return subject
    answers = _answers(made, asks, boxed)
    providers = dict(subject.providers)
    for provider, op, entry in subject.entries():
        if entry.asks:
            modes = _listed(entry.asks, answers.get(entry.asks) or {"error": "it gave no answer"}, entry.where)
            now = providers[provider.name]
            providers[provider.name] = replace(now, ops={**now.ops, op: entry.with_modes(modes)})
    return replace(subject, providers=providers)


def _listed(path: str, answer: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if "error" in answer:
        raise MatrixError(f"{where}.modes: {path} cannot list its modes ({answer['error']})", id="subject-modes-asked")
    modes = tuple(dict.fromkeys(answer["modes"]))
    wrong = next(
        (m for m in modes if not m.isascii() or not m.replace("_", "").replace("-", "").replace(".", "").isalnum()),
        None,
    )
    if wrong is not None:
        raise MatrixError(
            f"{where}.modes: {path} lists the mode {wrong!r:.80}, which is no name", id="subject-modes-name"
        )
    return modes


def _answers(made: PackedSubject, paths: list[str], boxed: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="farm-modes-") as folder:
        place, first = subjects.unpack(made.plain(), folder)
        told = {**made.described(), "folder": str(place)}
        environment = Environment.default()
        environment = replace(environment, path=(*first, str(ROOT), *environment.path))
        words = [*module_words("farm.child.ask_modes"), json.dumps({"subject": told, "paths": paths})]
        if boxed:
            from farm.node import sandbox, sandbox_host
            from farm.shipping import bundle

            farm = (str(bundle.install(b.sha, b.blob, folder)) for b in bundle.pack_all())
            environment = replace(environment, path=(*first, *farm, *sandbox_host.own_path(environment.path)))
            words = sandbox_host.words(environment, words, [folder])
            env = sandbox.variables(child_variables({}, environment), sandbox_host.limits({}), grouped=False)
        else:
            env = child_variables({}, environment)
        done = command.run(words, ASK_SECONDS, env=env, cwd=folder)
    try:
        return dict(json.loads(done.out.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        why = "no answer within its time" if done.code is None else (done.err.strip().splitlines() or ["it ended"])[-1]
        return {path: {"error": why[:300]} for path in paths}
