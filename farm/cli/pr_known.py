"""The known failures of a pull request: read from base, or from the operator's own file, never from head."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cell import Cell
from farm.cli import common, pr_base
from farm.cli.text import printable
from farm.errors import FarmError
from farm.matrix import plan
from farm.matrix.known import FILE, KnownFailure, load_known
from farm.pr import known
from farm.pr.known import Known
from farm.subject import repository
from farm.subject.command_line import LoadedSubject
from farm.subject.repository import History


def option(p: argparse.ArgumentParser) -> None:
    """Add --known."""
    p.add_argument(
        "--known",
        type=Path,
        metavar="FILE",
        help="failures that do not count until they are fixed or expire (default: known.yaml beside the matrices). Of "
        "a file in the repository base's version counts, whatever head makes of it",
    )


class Read:
    """The entries of base or the operator.  `notes`: what head changes of them, for the comment."""

    def __init__(self, args: argparse.Namespace, subject: LoadedSubject | None, top: Path, history: History):
        self._top, self._history = top.resolve(), history
        self._matrices = common.matrices(args, subject)
        self.notes: list[str] = []
        self.entries: list[KnownFailure] = []
        removed: set[Any] = set()
        for base, head, name in self._files(args):
            entries = self._load(base, name) if base is not None and base.is_file() else ()
            if args.known is not None and not entries:
                print(f"farm pr: base has no {printable(name)}, so it excuses nothing", file=sys.stderr)
            self.entries += entries
            if head is not None:
                removed |= {known.key(e) for e in entries} - self._of_head(head, name, entries)
                if _text(base) != _text(head):
                    self.notes.append(f"known failures in {name}")
        self.known = Known(self.entries, removed, f"{datetime.now(timezone.utc):%Y-%m-%d}")

    def note(
        self, pairs: Sequence[dict[str, Any]], static: dict[str, Any] | None, whole: bool
    ) -> dict[str, list[dict[str, Any]]]:
        """Mark in pairs and compiled cells what is known; what result.json has of the entries."""
        if not self.entries:
            return {}
        failed = [f for t in (static or {"targets": ()})["targets"] for f in t["failed"]]
        cells = self._cells({*(p["backend"] for p in pairs), *(f["cell"].partition("/")[0] for f in failed)})
        rows = []
        for row in (*pairs, *failed):
            cell = cells.get(row["cell"]) or cells.get(row["cell"].partition("@")[0])
            if cell is None:
                continue
            rows.append((cell, row["status_a"], row["status_b"]))
            if where := self.known.excuse(cell, row["status_b"]):
                row["known"] = where
        return {"known": self.known.told(rows, whole)[:1000]}

    def _cells(self, backends: set[str]) -> Mapping[str, Cell]:
        """The planned cells of these backends by id, with and without the target."""
        found: dict[str, Cell] = {}
        for backend in sorted(backends):
            for cell in plan(self._matrices, [backend]).cells:
                found.setdefault(cell.cell_id.partition("@")[0], cell)
                found[cell.cell_id] = cell
        return found

    def _files(self, args: argparse.Namespace) -> Iterator[tuple[Path | None, Path | None, str]]:
        """(the file that counts, head's version of it or None where there is none of head, its name)."""
        base, head = (
            repository.at(str(self._top), sha, "--base").folder.resolve()
            for sha in (self._history.base, self._history.head)
        )
        named = [args.known] if args.known is not None else [Path(m.path).parent / FILE for m in self._matrices]
        for path in dict.fromkeys(map(Path, named)):
            file = path.parent.resolve() / path.name
            root = next((r for r in (base, head) if file.is_relative_to(r)), None)
            name = file.relative_to(root) if root else pr_base.inside(path, self._top)
            if name is not None:
                yield base / name, head / name, name.as_posix()
            else:
                yield file, None, str(args.known or file.name)

    def _load(self, file: Path, name: str) -> tuple[KnownFailure, ...]:
        entries = load_known(file, self._matrices)
        return tuple(replace(e, where=e.where.replace(str(file), name)) for e in entries)

    def _of_head(self, file: Path, name: str, before: Sequence[KnownFailure]) -> set[Any]:
        """The keys of the entries that head keeps; all where its file cannot be read."""
        try:
            return {known.key(e) for e in self._load(file, name)} if file.is_file() else set()
        except FarmError:
            return {known.key(e) for e in before}


def _text(file: Path | None) -> bytes:
    return file.read_bytes() if file is not None and file.is_file() else b""
