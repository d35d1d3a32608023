"""What a measuring job was given beside the commits: the pull request's name, and files that its repository lacks."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from farm.cli import pr_base
from farm.errors import UsageError
from farm.pr import events
from farm.subject.model import Subject

#: Beside result.json: files that whoever repeats a command needs, under the names that it has for them.
FOLDER = "farm-inputs"
LOCAL = "local/repository"
MOST, LARGEST = 100, 1_000_000


def named(args: argparse.Namespace) -> tuple[str, int]:
    """(repository, pull request) of the command line; (LOCAL, 0) where it names none.  UsageError."""
    repository = args.repository or LOCAL
    if not events.is_repository(repository):
        raise UsageError(f"{repository!r} is no repository; give --repository OWNER/NAME", id="pr-repository")
    return repository, (args.number or 0) if args.repository else 0


def given(args: argparse.Namespace, top: Path, described: Subject | None = None) -> list[tuple[str, bytes]]:
    """(path as it was named, content) of matrices and of the subject's description with the Python files beside it that
    it names, and of the matrices and contracts of this description, as far as they lie outside of the repository, whose
    commits have the others."""
    found = [Path(m) for m in (*(args.matrices or ()), *filter(None, [getattr(args, "known", None)]))]
    if args.subject:
        place = Path(args.subject)
        text = place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""
        found += [
            place,
            *_described(place, described),
            *(p for p in sorted(place.parent.glob("*.py")) if re.search(rf"\b{re.escape(p.stem)}:", text)),
        ]
    out = dict[str, bytes]()
    for file in found[:MOST]:
        if not _is_named(file) or not file.is_file() or pr_base.inside(file, top):
            continue
        if file.stat().st_size <= LARGEST:
            out[file.as_posix()] = file.read_bytes()
    return list(out.items())


def _described(place: Path, of: Subject | None) -> list[Path]:
    """The matrices and contracts that a description names, beside it or below."""
    if of is None or Path(of.folder).resolve() != place.parent.resolve():
        return []
    home = Path(of.folder)
    files = [*map(Path, of.matrices), *(p for folder in of.contracts for p in sorted(Path(folder).rglob("*.py")))]
    return [place.parent / f.relative_to(home) for f in files if f.is_relative_to(home)]


def _is_named(file: Path) -> bool:
    """Whether a path means the same in another folder."""
    return not file.is_absolute() and ".." not in PurePath(file).parts


def told(files: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """What a result says of them."""
    return [{"path": name[:300], "sha256": hashlib.sha256(content).hexdigest()} for name, content in files]


def keep(files: Sequence[tuple[str, bytes]], folder: Path) -> None:
    """Copies beside the result.  UsageError where they cannot be written."""
    for name, content in files:
        place = folder / FOLDER / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if folder.resolve() not in place.parent.resolve().parents:  # a checkout may hold a link of that name
                raise UsageError(f"{folder / FOLDER}: leads elsewhere; name another --result", id="pr-write")
            place.unlink(missing_ok=True)
            place.write_bytes(content)
        except OSError as error:
            raise UsageError(f"{place}: cannot be written ({error.strerror})", id="pr-write") from None
