"""What the two arms of a comparison hold: their files, found, patched, packed, and their digests.

Nothing is checked out in anybody's working tree: a revision is a folder of the cache, and a patch is applied to a copy.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.compare.arms import WORKING_TREE, Arm, identical, planned_arm
from farm.compare.arms import pair as named
from farm.errors import InfraError, UsageError
from farm.kernel_package import ROOT
from farm.process import command
from farm.shipping import bundle, files
from farm.shipping.bundle import Bundle
from farm.shipping.subjects import PackedSubject, pack
from farm.subject import cache, command_line, repository
from farm.subject.command_line import NONE, LoadedSubject
from farm.subject.model import FILE, Subject
from farm.subject.read import NODES
from farm.subject.repository import Repository

MOST_PATCH_BYTES = 32 << 20
PATCH_SECONDS = 60.0
OWN = Path("kernels", "launches.py")  # what tells our own kernels from others of that name
_SHOWN = 3


@dataclass(frozen=True)
class ArmContent:
    """One arm's files.  Either a `subject`, as a `farm.yaml` describes it, or our own `kernels` of another revision.

    `digest`: of all that its children import; equal digests are the same code.  `notes`: what a reader has to know.
    `folder`: where its repository's files lie on this host; they are not its content for a release or wheel.
    """

    arm: Arm
    revision: str
    digest: str
    subject: LoadedSubject | None = None
    kernels: Bundle | None = None
    notes: tuple[str, ...] = ()
    folder: Path | None = None

    def content(self) -> Iterator[tuple[str, bytes]]:
        """(name, bytes) of every file: below `overlay/` and `adapters/`, or below `kernels/`."""
        of = self.subject.packed if self.subject else self.kernels
        yield from files.members(of.blob) if of else ()

    @property
    def packed(self) -> PackedSubject:
        """As it is sent.  Our own kernels are sent as a subject is: each child proves that it would import these."""
        if self.subject:
            return self.subject.packed
        return pack(
            {f"overlay/{name}": data for name, data in self.content()},
            name="kernels",
            revision=self.revision,
            source=self.arm.called,
            modules=("kernels",),
            over=False,
        )

    def sources(self) -> dict[str, str]:
        """The text of its Python files by name."""
        return {name: data.decode("utf-8", "replace") for name, data in self.content() if name.endswith(".py")}


def pair(a: str, b: str, *, same: bool = False) -> tuple[Arm, Arm]:
    """Both arms, as --a and --b say them; `same`: arm a twice.  UsageError."""
    return identical(a, refused=NODES) if same else named(a, b, refused=NODES)


def planned(told: Mapping[str, Mapping[str, Any]]) -> tuple[Arm, Arm]:
    """Both arms, as a plan file or a run describes them.  UsageError."""
    return planned_arm(told["a"], "a", refused=NODES), planned_arm(told["b"], "b", refused=NODES)


def contents(
    a: Arm, b: Arm, *, repo: str = "", subject: str = "", sandbox: bool = False, rules: str = ""
) -> tuple[ArmContent, ArmContent]:
    """What both hold.  `repo`: PATH or URL, default the working folder's repository; `subject`: a `farm.yaml` kept
    elsewhere, or NONE; `sandbox`: run nothing of theirs outside of one.  Without a `subject` that of arm a counts for
    both: what head changes there is told, and does not decide.  `rules`: a folder with the `farm.yaml` that counts in
    its place, where arm a is not what judges.

    UsageError, MatrixError or InfraError for what cannot be had.
    """
    homes = [_home(arm, repo) for arm in (a, b)]
    described = _described(homes, subject, rules)
    if described is None:
        return _own(a, homes[0]), _own(b, homes[1])
    notes = described.notes
    left, right = (
        _subjects(arm, home, own, subject, sandbox) for arm, home, own in zip((a, b), homes, described.subjects)
    )
    adapters = [{n: d for n, d in side.content() if n.startswith("adapters/")} for side in (left, right)]
    if adapters[0] != adapters[1]:
        names = sorted(n for n in {**adapters[0], **adapters[1]} if adapters[0].get(n) != adapters[1].get(n))
        notes += (f"the adapters differ ({_some(names)}), so what is called may differ, not only what it does",)
    return left, replace(right, notes=(*right.notes, *notes))


# where the files are


def _home(arm: Arm, repo: str) -> Repository:
    place = repo or str(repository.top(Path.cwd()) or Path.cwd())
    if arm.kind == "revision" and arm.source != WORKING_TREE:
        home = repository.at(place, arm.source, f"--{arm.name} revision")
    elif arm.kind == "revision" and not Path(place).is_dir():
        raise UsageError(
            f"--{arm.name} revision={WORKING_TREE}: {place} has no working tree here; name a revision",
            id="arm-no-working-tree",
        )
    else:
        home = repository.find(place)
    return _patched(home, arm) if arm.patch else home


def _patched(home: Repository, arm: Arm) -> Repository:
    """The repository's files with a diff applied, in a folder of the cache by the content of both."""
    option = f"--{arm.name} patch={arm.patch}"
    try:
        diff = files.read(Path(arm.patch), MOST_PATCH_BYTES, whole=True)
    except OSError as error:
        message = f"{option}: cannot be read ({error.strerror or error}); give the file of a diff"
        raise UsageError(message, id="arm-patch-unreadable") from None
    found = dict(_tree(home))
    digest = hashlib.sha256(diff)
    for name, data in sorted(found.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    place = cache.root() / "trees" / f"patched-{digest.hexdigest()[:40]}"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(prefix="farm-patch-") as scratch:
            tree = files.write_all(found.items(), Path(scratch, "tree"))
            _apply(diff, tree, option)
            try:
                files.write_all(((p.relative_to(tree).as_posix(), p.read_bytes()) for p in _plain(tree)), place)
            except OSError as error:
                message = f"{place}: cannot be written ({error.strerror or error}); make room, or set FARM_CACHE"
                raise InfraError(message, id="subject-cache") from None
    name = Path(arm.patch).name
    return replace(home, folder=place, revision=f"{home.revision}+{name}", source=f"{home.source} with {name}")


def _apply(diff: bytes, tree: Path, option: str) -> None:
    file = tree.parent / "diff"
    file.write_bytes(diff)
    words = ["git", "apply", "--whitespace=nowarn", str(file)]
    variables = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent), "LC_ALL": "C"}
    variables = {n: v for n, v in variables.items() if n not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    try:
        done = command.run(words, PATCH_SECONDS, cwd=tree, env=variables)
    except FileNotFoundError:
        raise UsageError(
            "git is not installed on this host, and a patch needs it; install git", id="subject-git"
        ) from None
    if done.code != 0:
        why = (done.err.strip().splitlines() or [f"not applied within {PATCH_SECONDS:g} s"])[0]
        raise UsageError(
            f"{option}: does not apply ({why.removeprefix('error: ')[:300]}); make it with "
            "git diff, against this arm's revision",
            id="arm-patch-fails",
        )
    links = [p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_symlink()]
    if links:
        raise UsageError(
            f"{option}: makes a link ({_some(links)}); a subject has plain files only", id="arm-patch-link"
        )


def _tree(home: Repository) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of a repository's plain files; of a working tree those that git would keep."""
    names = None if cache.root() in home.folder.parents else repository.kept(home.folder)
    for path in (home.folder / n for n in names) if names is not None else _plain(home.folder):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(home.folder).as_posix(), path.read_bytes()


def _plain(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


# what they are


@dataclass(frozen=True)
class _Described:
    subjects: tuple[Subject, Subject]
    notes: tuple[str, ...] = ()


def _described(homes: list[Repository], given: str, rules: str = "") -> _Described | None:
    """How both arms are described; None for our own kernels."""
    if given == NONE:
        return None
    if given:
        one = command_line.described(Path(given))
        return _Described((one, one))
    of = Path(rules, FILE) if rules else None
    if of is not None and of.is_file():
        subject = command_line.described(of)
        same = all((h.folder / FILE).is_file() and (h.folder / FILE).read_bytes() == of.read_bytes() for h in homes)
        notes: tuple[str, ...] = () if same else (f"{FILE} of the arms is not base's, which counts for both",)
        return _Described(
            (replace(subject, folder=str(homes[0].folder)), replace(subject, folder=str(homes[1].folder))), notes
        )
    own = [home.folder / FILE for home in homes]
    there = [file.is_file() for file in own]
    if not any(there):
        if all((home.folder / OWN).is_file() for home in homes):
            return None
        lacks = next(home for home in homes if not (home.folder / OWN).is_file())
        raise UsageError(
            f"{lacks.source} has no {FILE} at its root; write one with farm init, or give your own: --subject FILE",
            id="arm-without-file",
        )
    counts = 0 if there[0] else 1
    subject = command_line.described(own[counts])
    notes = ()
    if not all(there):
        notes = (f"only arm {'ab'[counts]} has a {FILE}; it describes both",)
    elif own[0].read_bytes() != own[1].read_bytes():
        notes = (f"{FILE} differs between the arms; that of arm a counts for both",)
    # adapters are those of each arm; contracts and matrices stay those of the description
    return _Described(
        (replace(subject, folder=str(homes[0].folder)), replace(subject, folder=str(homes[1].folder))), notes
    )


def _own(arm: Arm, home: Repository) -> ArmContent:
    """Our own package `kernels`."""
    if arm.kind in ("version", "wheel"):
        raise UsageError(
            f"--{arm.name} {arm.kind}={arm.source}: there is no subject whose files it could replace; name one with "
            "--subject FILE or --repo",
            id="subject-none-for-option",
        )
    folder = home.folder if (home.folder / OWN).is_file() or arm.kind else ROOT
    if not (folder / OWN).is_file():
        raise UsageError(
            f"--{arm.name} {arm.kind}={arm.source}: has no package kernels; choose a later revision",
            id="arm-without-kernels",
        )
    packed = bundle.pack("kernels", folder)
    return ArmContent(arm, home.revision, packed.sha[:16], kernels=packed, folder=folder)


def _subjects(arm: Arm, home: Repository, subject: Subject, given: str, sandbox: bool) -> ArmContent:
    """A subject's files at one arm."""
    wheel = Path(arm.source) if arm.kind == "wheel" else None
    if wheel and not wheel.is_file():
        raise UsageError(
            f"--{arm.name} wheel={arm.source}: no such file; give the path of a .whl file", id="subject-wheel-missing"
        )
    if arm.kind == "revision" and subject.source.release:
        raise UsageError(
            f"{subject.file}: its files are those of the release {subject.source.release}, so a revision would change "
            "nothing; describe where they are in the repository, as overlay: {path: src, modules: [...]}, or compare "
            "version=NAME==VERSION",
            id="arm-revision-of-release",
        )
    if sandbox:
        command_line.refuse_unboxed(subject, operators=bool(given))
    made = command_line.loaded(subject, home, wheel, arm.source if arm.kind == "version" else "", boxed=sandbox)
    notes = _left_out(arm, home, subject)
    arm = replace(arm, tuning=arm.tuning or subject.tuning.get("triton", ""))
    return ArmContent(arm, made.packed.revision, made.packed.digest, made, notes=notes, folder=home.folder)


def _left_out(arm: Arm, home: Repository, subject: Subject) -> tuple[str, ...]:
    """What the subject's modules hold in this revision that was not unpacked: links are not followed."""
    if arm.kind != "revision" or arm.source == WORKING_TREE or subject.source.path is None:
        return ()
    base = "" if subject.source.path == "." else f"{subject.source.path}/"
    modules = tuple(f"{base}{module}" for module in subject.source.modules)
    found = [name for name in home.not_files if name.startswith(modules)]
    return (f"not part of arm {arm.name}, since only plain files are: {_some(found)}",) if found else ()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
