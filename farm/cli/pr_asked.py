"""What a comment asked a measuring job for: fewer cells, another matrix, or a patch on top of an arm."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farm import backends
from farm.errors import UsageError
from farm.pr import patches
from farm.pr.commands import Command
from farm.pr.events import Request
from farm.subject import repository
from farm.subject.arms import ArmContent
from farm.subject.repository import History

PATCH = "what-if.diff"


class Asked:
    """One request.  A what-if compares a commit with the same commit and the patch: the question is whether the patch
    helps, and a pair of arms in rounds answers it; a third arm would cost every cell half as many rounds again to say
    what the product of both comparisons says already."""

    def __init__(self, command: Command, request: Request | None, top: Path, history: History):
        self.command, self.request, self.top, self.history = command, request, top, history
        self.patch, self.notes = "", list[str]()
        self._file: Path | None = None
        self._names: tuple[str, ...] = ()
        if command.kind == "what-if":
            self.patch = command.patch or self._suggested()
            self._names = patches.files(self.patch)

    @property
    def base(self) -> str:
        """The commit of arm a."""
        return self.history.head if self.patch and self.command.on == "head" else self.history.base

    @property
    def head(self) -> str:
        """The commit of arm b, which may have a patch on top."""
        return self.base if self.patch else self.history.head

    @property
    def rules(self) -> str:
        """Base's folder where arm a is not base: what judges is base's all the same; else ""."""
        if self.base == self.history.base:
            return ""
        return str(repository.at(str(self.top), self.history.base, "--base").folder)

    def narrow(self, args: argparse.Namespace) -> None:
        """Give the command line what the request says.  UsageError for what it cannot have together."""
        command = self.command
        if command.kind == "rerun":
            backend, _, rest = command.cell.partition("/")
            bare = rest.partition("@")[0]
            if not bare or "," in bare or backend not in backends.known():
                raise UsageError(f"{command.cell} is no id of a cell; copy one from the comment", id="pr-rerun")
            if args.select:
                raise UsageError("the request names a cell; omit --select", id="pr-rerun")
            args.select, args.all = f"id=*/{bare}", True
            _devices(args, (backend,))
        elif command.backends:
            _devices(args, command.backends)
        if command.matrix:
            # of base, as all that judges
            base, head = (
                repository.at(str(self.top), sha, "--base").folder / command.matrix
                for sha in (self.history.base, self.history.head)
            )
            if not base.is_file():
                raise UsageError(f"base has no matrix {command.matrix}; name one of its files", id="pr-no-matrix")
            self.notes += [f"the matrix {command.matrix}"] * (
                not head.is_file() or base.read_bytes() != head.read_bytes()
            )
            args.matrices = [base]

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """While the patch lies in a file."""
        with tempfile.TemporaryDirectory(prefix="farm-what-if-") as folder:
            if self.patch:
                self._file = Path(folder, PATCH)
                self._file.write_text(self.patch if self.patch.endswith("\n") else f"{self.patch}\n", encoding="utf-8")
            yield

    def arms(self) -> tuple[str, str]:
        """Both, as `farm ab` takes them."""
        more = f",patch={self._file}" if self.patch else ""
        return f"revision={self.base}", f"revision={self.head}{more}"

    def shown(self) -> list[str]:
        """Both, as whoever repeats it writes them, with the patch in a file of the working folder."""
        more = f",patch={PATCH}" if self.patch else ""
        return ["--a", f"revision={self.base[:12]}", "--b", f"revision={self.head[:12]}{more}"]

    def check(self, a: ArmContent, b: ArmContent) -> None:
        """UsageError if the patch, as git applied it, changes anything but the subject's own files, or nothing."""
        if not self.patch:
            return
        assert a.folder is not None and b.folder is not None
        changed = _differing(a.folder, b.folder)
        if wrong := patches.outside(changed, _inside(a)):
            raise UsageError(
                f"the what-if changes {wrong[0]}, which is not part of the subject; it may change what is compared, "
                "not what judges it or what runs it",
                id="pr-patch-outside",
            )
        if a.digest == b.digest:
            raise UsageError("the what-if changes nothing of the subject", id="pr-patch-nothing")

    def told(self) -> dict[str, Any]:
        """As result.json has it; nothing where all is run that a pull request brings."""
        command = self.command
        if not (command.cell or command.matrix or command.backends or self.patch):
            return {}
        return {
            "asked": {
                "kind": command.kind,
                "head": self.history.head,
                "matrix": command.matrix,
                "backends": list(command.backends),
                "cell": command.cell,
                "on": command.on,
                "patch": hashlib.sha256(self.patch.encode()).hexdigest() if self.patch else "",
                "files": list(self._names),
            }
        }

    def _suggested(self) -> str:
        """The suggestion as a patch of the file of head."""
        suggestion = self.request.suggestion if self.request else None
        if suggestion is None:
            raise UsageError("the what-if has no patch", id="pr-patch")
        file = repository.at(str(self.top), self.history.head, "--head").folder / suggestion.path
        try:
            text = file.read_text(encoding="utf-8") if not file.is_symlink() else None
        except (OSError, UnicodeDecodeError):
            text = None
        if text is None:
            raise UsageError(f"head has no plain text in {suggestion.path}", id="pr-patch")
        return patches.of_suggestion(text, suggestion)


def _devices(args: argparse.Namespace, named: tuple[str, ...]) -> None:
    """Run on devices of these backends alone."""
    on = [b for b in named if b in backends.accelerators()]
    args.backend, args.no_device = ",".join(on) or None, args.no_device or not on


def _inside(content: ArmContent) -> list[str]:
    """Folders and files of a repository that are the subject's."""
    if content.subject is None:
        return ["kernels/"]
    source = content.subject.subject.source
    place = "" if source.path in (None, ".", "") else f"{str(source.path).rstrip('/')}/"
    return [f"{place}{module}{end}" for module in source.modules for end in ("/", ".py")]


def _differing(a: Path, b: Path) -> list[str]:
    """Names of the files that differ between two folders: by content, by rights, or in being there."""
    left, right = _files(a), _files(b)
    return [n for n in {**left, **right} if n not in left or n not in right or _unlike(left[n], right[n])]


def _files(folder: Path) -> Mapping[str, Path]:
    return {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_symlink() or p.is_file()}


def _unlike(a: Path, b: Path) -> bool:
    return a.is_symlink() or b.is_symlink() or a.read_bytes() != b.read_bytes()
