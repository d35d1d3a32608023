"""`farm run --watch`: run, then run again what each save concerns, with children that have imported torch by then."""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from farm import kernel_package
from farm.actor import waiting
from farm.cli import common, failed, run_command
from farm.cli.text import counted, sentence
from farm.cluster.local import spool_folder
from farm.contracts import discovery
from farm.errors import ContractError, FarmError, InfraError, MatrixError, UsageError
from farm.judge.pool import KeptJudges, keeping
from farm.node import config as nodes
from farm.process import interrupts
from farm.shipping import providers as shipping
from farm.store import spool

#: How often files are looked at, and how long they must stay as they are: an editor writes in several steps.
LOOK_SECONDS, SETTLED_SECONDS = 0.1, 0.05
#: What a file concerns: (`provider` or `op`, its name); None: every cell.
Concern = tuple[str, str] | None
Concerns = dict[Path, set[Concern]]
_FARM = Path(__file__).resolve().parents[1]


def run(args: argparse.Namespace, once: Callable[[argparse.Namespace], int]) -> int:
    """Run until Ctrl-C; the exit code of the last run that ended by itself, 3 if there is none.  `once`: makes a run of
    these options."""
    _check(args)
    farm = Seen.of(_FARM.rglob("*.py"))
    known: Concerns = {}
    code: int | None = None
    clause = ""
    with interrupts.heard() as heard, waiting.waiting() as children, _judges(args):
        while True:
            known = concerns(args, known)
            seen = Seen.of(known)  # before the run reads them: what is saved from now on counts
            try:
                found = once(narrowed(args, clause))
                code = code if heard.noted else found
            except FarmError as error:
                if not clause and code is None and not _of_a_file(error):
                    raise
                print(f"farm run: {sentence(error)}", file=sys.stderr)
            if not heard.noted:
                children.fill()
                print(f"\nwatching {counted(len(known), 'file')}; Ctrl-C ends this", file=sys.stderr)
            changed = wait(seen, lambda: heard.noted)
            if changed is None:
                code = InfraError.exit_code if code is None else code
                print(f"ended: exit {code}, of the last complete run", file=sys.stderr)
                return code
            if farm.changed():
                raise InfraError(
                    "files of the farm itself were changed while it runs, so its verdicts could mix both; start this "
                    "command again",
                    id="watch-farm-changed",
                )
            clause = selection(known, changed)
            names = ", ".join(sorted(path.name for path in changed))
            print(f"\nsaved: {names}; running {clause or 'every cell'}", file=sys.stderr)


@contextmanager
def _judges(args: argparse.Namespace) -> Iterator[None]:
    """All runs share judges, where no sandbox or container hides their files from children."""
    if args.sandbox or args.environment or not nodes.environment(nodes.load(), "default").own:
        yield
        return

    def remove(folder: str) -> None:
        spool.remove(folder)
        spool.remove(spool.reserve(folder))

    with keeping(KeptJudges(lambda: spool_folder(f"watch-{secrets.token_hex(2)}"), remove)):
        yield


def _of_a_file(error: FarmError) -> bool:
    """Whether a save can correct it; what is wrong with the command line, none can."""
    of_content = isinstance(error, (ContractError, MatrixError)) and error.id != "matrix-file-missing"
    return of_content or (error.id or "").startswith("shipping-provider")


def _check(args: argparse.Namespace) -> None:
    """UsageError for what cannot be run again and again."""
    run_command.check(args)
    if args.address != "inline":
        raise UsageError(
            f"--watch runs on this host alone, not on the cluster at {args.address}; add --address inline",
            id="watch-address",
        )
    for option, given in (
        ("--plan", args.plan),
        ("--failed", args.failed),
        ("--run-id", args.run_id),
        ("--json", args.json),
    ):
        if given:
            raise UsageError(f"--watch makes many runs, which {option} does not allow; omit one", id="watch-with")


def narrowed(args: argparse.Namespace, clause: str) -> argparse.Namespace:
    """The options of one run: of every cell, or of those that `clause` selects, then without a page."""
    made = argparse.Namespace(**vars(args))
    if clause:
        made.select = joined(args.select or "", clause)
        made.no_page = True
    made.argv = failed.words(made)
    return made


def joined(select: str, clause: str) -> str:
    """Both as one --select, which may name a key once: of a key in both, the values of `clause` that `select` has.
    `select` where it has none of them: then nothing of it was touched, but its cells may depend on it unseen."""
    key, _, values = clause.partition("=")
    parts = [part.strip() for part in select.split(",") if part.strip()]
    own = next((part for part in parts if part.partition("=")[0].strip(" !") == key), None)
    if own is None:
        return ",".join([*parts, clause])
    named = {value.strip() for value in own.partition("=")[2].split("|")}
    wanted = own.partition("=")[0].strip() == key  # else those with !=
    both = [value for value in values.split("|") if (value in named) == wanted]
    return ",".join([*(part for part in parts if part != own), f"{key}={'|'.join(both)}"]) if both else select


# which files


def concerns(args: argparse.Namespace, before: Mapping[Path, set[Concern]]) -> Concerns:
    """Each file that a run of these options reads -> what it concerns.  What cannot be read at the moment, a file with
    a syntax error above all, keeps what it concerned `before`."""
    found: Concerns = {}

    def add(path: Path, concern: Concern) -> None:
        found.setdefault(path.absolute(), set()).add(concern)

    for path in args.matrices:
        for file in sorted(path.glob("*.y*ml")) if path.is_dir() else [path]:
            add(file, None)
    try:
        common.use_contracts(args)
        subject = common.subject(args)
        matrices = common.matrices(args, subject)
        calls = {**common.own_providers(args), **common.declared_calls(matrices)}
        if subject:
            add(Path(subject.subject.file), None)
            for file in _of_subject(subject.packed.origins, subject.packed.modules):
                for name in subject.subject.providers:
                    add(file, ("provider", name))
        for folder in discovery.outside():
            for name in folder.files:
                op = name.split("/")[0]
                add(folder.path / name, ("op", op) if op in folder.ops else None)
        views = [view for m in matrices for view in (m.base, *m.views.values()) if view]
        if any(p.name == "farm" for view in views for p in view.providers) and (ours := kernel_package.folder()):
            for file in ours.rglob("*.py"):
                add(file, ("provider", "farm"))
        for name, path in calls.items():
            for file in _of_provider(path):
                add(file, ("provider", name.rpartition(":")[2]))
    except FarmError:
        for path, concern in before.items():
            found.setdefault(path, set()).update(concern)
    return found


def _of_provider(call: str) -> Iterator[Path]:
    """The files that are sent for `module:function`; at least its own."""
    with suppress(FarmError):
        yield shipping.file_of(call)
    packed = shipping.pack([call])
    for name in packed["files"] if packed else ():
        yield Path(packed["origins"][name.split("/")[0]], name) if packed else Path(name)


def _of_subject(origins: Mapping[str, str], modules: tuple[str, ...]) -> Iterator[Path]:
    for place, folder in origins.items():
        tops = [Path(folder, m) for m in modules] if place == "overlay" else [Path(folder)]
        for top in tops:
            yield from top.rglob("*.py") if place == "overlay" else top.glob("*.py")
            if top.with_suffix(".py").is_file():
                yield top.with_suffix(".py")


def selection(known: Mapping[Path, set[Concern]], changed: set[Path]) -> str:
    """The condition of --select for what these files concern; "" for every cell."""
    every = set().union(*(known.get(path) or {None} for path in changed))
    keys = {concern[0] for concern in every if concern is not None}
    if None in every or len(keys) != 1:
        return ""
    (key,) = keys
    return f"{key}={'|'.join(sorted(name for _, name in filter(None, every)))}"


# whether they change


@dataclass
class Seen:
    """Files as they were: (time of change, size) and a hash of each; None for one that is not there."""

    stats: dict[Path, tuple[int, int] | None]
    sums: dict[Path, str]

    @classmethod
    def of(cls, paths: Iterator[Path] | Mapping[Path, object]) -> Seen:
        every = list(paths)
        return cls({path: _stat(path) for path in every}, {path: _sum(path) for path in every})

    def changed(self) -> set[Path]:
        """Files with another content.  One that was written without a change is not among them."""
        found = set()
        for path, before in self.stats.items():
            now = _stat(path)
            if now != before:
                self.stats[path] = now
                if _sum(path) != self.sums[path]:
                    found.add(path)
        return found


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def wait(seen: Seen, ended: Callable[[], bool]) -> set[Path] | None:
    """The files that were saved, once nothing more is; None if `ended()` first."""
    changed: set[Path] = set()
    while not ended():
        more = seen.changed()
        changed |= more
        if changed and not more:
            return changed
        time.sleep(SETTLED_SECONDS if changed else LOOK_SECONDS)
    return None
