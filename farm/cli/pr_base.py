"""Files of the repository that a command line names: base's, as all that judges, whatever head makes of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path, PurePath

from farm.errors import UsageError
from farm.subject import repository
from farm.subject.repository import History


def option(p: argparse.ArgumentParser) -> None:
    """Add --working-tree."""
    p.add_argument(
        "--working-tree",
        action="store_true",
        help="read matrices, --subject and --contracts that lie in the repository from the working tree, which may be "
        "head's; without it, base's version counts",
    )


def inside(file: Path, top: Path) -> PurePath | None:
    """A path below the root of a repository, or None for one elsewhere.  Links do not lead out: head may hold some."""
    top, place = top.resolve(), Path(os.path.abspath(file))  # noqa: PTH100 - resolve() would follow links
    for parent in reversed(place.parents):  # the outermost: a link to the root may lie in it
        if parent.resolve() == top:
            return place.relative_to(parent)
    real = place.parent.resolve() / place.name
    return real.relative_to(top) if real.is_relative_to(top) else None


class Named:
    """`notes`: which of them head changes; `working`: which were read from the working tree, as --working-tree asks."""

    def __init__(self, called: Mapping[str, str] | None = None):
        self._called = dict(called or {})
        self.notes: list[str] = []
        self.working: list[str] = []

    def called(self, path: object) -> str:
        """The name on the command line of a path that took its place."""
        return self._called.get(str(path), str(path))

    @classmethod
    def of(cls, args: argparse.Namespace, top: Path, history: History) -> Named:
        """Put base's files in the command line in place of the repository's.  UsageError for one that base lacks."""
        made = cls()
        if args.matrices:
            args.matrices = [made._taken(args, "matrix", Path(m), top, history) for m in args.matrices]
        if args.contracts:
            args.contracts = [made._taken(args, "folder of contracts", Path(c), top, history) for c in args.contracts]
        if args.subject and args.subject != "none":
            args.subject = str(made._taken(args, "subject's description", Path(args.subject), top, history))
        return made

    def _taken(self, args: argparse.Namespace, what: str, file: Path, top: Path, history: History) -> Path:
        name = inside(file, top)
        if name is None:
            return file
        if args.working_tree:
            self.working.append(name.as_posix())
            return file
        base, head = (repository.at(str(top), sha, "--base").folder / name for sha in (history.base, history.head))
        if not base.exists():
            raise UsageError(
                f"{file}: the commit that head starts from has no such file, and head's does not decide what is run; "
                "merge the branch that has it, name a file outside of the repository, or give --working-tree",
                id="pr-not-in-base",
            )
        if _content(base) != _content(head):
            self.notes.append(f"the {what} {name.as_posix()}")
        self._called[str(base)] = str(file)
        return base


def _content(place: Path) -> dict[str, bytes]:
    """Of a file, or of all files of a folder."""
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return {f.relative_to(place).as_posix(): f.read_bytes() for f in files if f.is_file()}
