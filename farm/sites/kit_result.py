"""The result of a kit, as it comes back: checked against its kit, and unpacked as a run that can be merged.

Somebody else wrote it, so nothing in it is believed because it says so: the archive is read by the one unpacker, the
manifest of the kit comes from this store or from the kit itself, the plan must be the kit's byte for byte, and every
line of the journal must be of a cell of that plan.  That does not prove who ran it, or that it was not made up: there
is no signature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.cell import Cell, canonical_json
from farm.errors import Message, UsageError
from farm.shipping import archives, files
from farm.sites import kit as kits
from farm.sites import planfile
from farm.sites.kit import Kit, Result
from farm.store import RUN_ID
from farm.store import journal as journals
from farm.store.journal import Journal
from farm.store.kit_runs import write_tables

MOST_BYTES = 256 << 20  # of an archive, as a file
ManifestOf = Callable[[str], str]


def kit_of(path: Path, option: str) -> Kit:
    """The manifest of a kit's archive, whose files are those that it lists.  UsageError for anything else."""
    where = f"{option} {path}"
    content = _content(path, where)
    kit = kits.read(content.get(kits.KIT, b""), where)
    there = {name: kits.sha(data) for name, data in content.items() if name != kits.KIT}
    if why := kits.unfit(kit, there):
        raise UsageError(f"{where}: {why}; copy the kit again, or make it again with farm kit", id="kit-damaged")
    return kit


def arrived(path: Path, known: Sequence[Kit], manifest_of: ManifestOf, place: Path) -> tuple[Path, Kit]:
    """Unpack a result below `place`; (its run's folder, with the tables of a complete run, its kit).  `known`: kits
    that were named; `manifest_of`: digest -> the manifest of a kit that was made here, "" for none.  UsageError."""
    where = str(path)
    result = kits.read_result(_content(path, where), where, RUN_ID)
    kit = next((k for k in known if k.digest == result.kit), None)
    if kit is None:
        text = manifest_of(result.kit)
        if not text:
            raise UsageError(
                f"{where}: is the result of kit {result.kit[:12]}, which was not made in this store; name the kit's "
                "archive with --kit, or the store with --out",
                id="kit-unknown",
            )
        kit = kits.read(text.encode(), f"kit {result.kit[:12]}")
    folder = files.write_all(result.run.items(), place / result.run_id)
    try:
        wrong = _wrong(folder, result, kit)
        if wrong is None and (folder / "run.json").is_file():
            write_tables(folder)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RecursionError) as error:
        cause = f"{type(error).__name__}: {error}"[:200]
        raise UsageError(
            f"{where}: this result is damaged and cannot be read ({cause}); ask for the file that run.py has written",
            id="kit-result-unreadable",
        ) from None
    if wrong:
        raise UsageError(f"{where}: {wrong}", id=wrong.id)
    return folder, kit


def _content(path: Path, where: str) -> dict[str, bytes]:
    try:
        blob = files.read(path, MOST_BYTES, whole=True)
    except OSError as error:
        raise UsageError(
            f"{where}: cannot be read ({error.strerror or error}); give the path of an archive", id="kit-unreadable"
        ) from None
    try:
        return archives.unpack(blob)
    except files.NotInside as error:
        raise UsageError(f"{where}: {error}; copy it again", id="kit-archive") from None


def _wrong(folder: Path, result: Result, kit: Kit) -> Message | None:
    """Why the run in `folder` is no run of this kit: a clause with what to do; None if it is."""
    digests = {name: kits.sha(result.run[name]) for name in (kits.PLAN, kits.CONTRACTS) if name in result.run}
    journal = Journal(folder / journals.NAME)
    lines = list(journal)
    if journal.damage:
        return Message(
            f"line {journal.damage.first} of its journal is damaged; copy it again", id="kit-journal-damaged"
        )
    head = {k: v for k, v in (lines[0] if lines else {}).items() if k != "event"}
    if not lines or lines[0]["event"] != "run" or head.get("run_id") != result.run_id:
        return Message(
            "its journal is of another run; ask for the file that run.py has written", id="kit-journal-other"
        )
    if wrong := kits.wrong(kit, head, digests):
        return wrong
    file = planfile.read(result.run[kits.PLAN].decode("utf-8"), "its plan")
    cells = planfile.part(file.plan, kit.target).cells
    if wrong := _outside(lines, cells):
        return wrong
    if "run.json" in result.run:
        return kits.malformed(json.loads(result.run["run.json"]), head)
    return None


def _outside(lines: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> Message | None:
    """Whether a line of the journal is of a cell that the kit does not have."""
    planned = {cell.index: canonical_json(cell.to_dict()) for cell in cells}
    names = {cell.cell_id for cell in cells}
    seen = set()
    for line in lines:
        index = None
        if line["event"] == "cell":
            index = line["cell"].get("index")
            if canonical_json(line["cell"]) != planned.get(index, ""):
                return _not_planned(str(line["cell"].get("cell_id")))
            seen.add(index)
        elif line["event"] == "result":
            index = line["row"].get("index")
            if line["row"].get("cell_id") != (cells[index].cell_id if index in planned else None):
                return _not_planned(str(line["row"].get("cell_id")))
        elif line["event"] == "round":
            if more := {row.get("cell_id") for row in line["rows"]} - names:
                return _not_planned(str(more.pop()))
        elif "cell" in line:
            index = line["cell"]
        if index is not None and index not in planned:
            return _not_planned(f"number {index}")
    missing = len(planned) - len(seen)
    if missing:
        return Message(
            f"its journal lacks {missing} of the kit's {len(planned)} cells; ask for the file that run.py has written",
            id="kit-cells-missing",
        )
    return None


def _not_planned(name: str) -> Message:
    return Message(
        f"claims a cell that its kit does not have ({name:.200}); ask for the file that run.py has written",
        id="kit-cell-unplanned",
    )
