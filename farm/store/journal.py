"""A journal as a file: lines that carry a checksum, a reader that no content can harm, and repairs after a kill, a
power cut, or a writer that was only stopped.

    {"event":"started",...,"crc":"1f0a2b3c"}     the CRC-32 of the line's bytes before `,"crc":`

Each line stands for itself, so a reader leaves out a damaged line and reads on: a result that is whole counts, wherever
the damage is.  Journals of schema 4 and older have no checksums; there a line is damaged if it is no event.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from farm.cell import Status
from farm.store.results import COLUMNS, LATER_COLUMNS

Line = dict[str, Any]

NAME = "journal.jsonl"
#: What was cut off the ends of a run's journal, piece by piece.
CUT = "journal.cut.jsonl"
#: A longer line is damaged, and never in memory as a whole.  The longest that a farm writes is a plan's head of a few
#: hundred kilobytes, or the samples of one cell.
MAX_LINE = 16 << 20
#: From this schema on every line has a checksum.
SUMMED_SCHEMA = 5
_KEY = b',"crc":"'
_TAIL = len(_KEY) + 8 + len(b'"}')
_encode = json.JSONEncoder(separators=(",", ":")).encode


def encoded(line: Mapping[str, Any]) -> str:
    """An event as a line of the journal: ASCII, with its checksum."""
    body = _encode(line)[:-1]
    return f'{body},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'


def decoded(raw: bytes, summed: bool = False) -> tuple[Line | None, bool]:
    """(the event of a line without its checksum, or None if the line is damaged; whether it has a checksum).
    `summed`: a line without one is damaged."""
    body = raw.rstrip(b"\r\n")
    has = len(body) > _TAIL and body[-_TAIL:].startswith(_KEY) and body.endswith(b'"}')
    if has:
        if body[-10:-2] != b"%08x" % zlib.crc32(body[:-_TAIL]):
            return None, True
        body = body[:-_TAIL] + b"}"
    elif summed:
        return None, False
    try:
        line = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None, has
    return (line if _formed(line) else None), has


def _formed(line: Any) -> bool:
    """Whether a line is an event, with what its readers rely on."""
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        return False
    if not isinstance(line.get("time", 0.0), int | float):
        return False
    check = _FORMS.get(line["event"])
    return check is None or check(line)


def _index(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _row(line: Line) -> bool:
    row = line.get("row")
    return (
        isinstance(row, dict)
        and _index(row.get("index"))
        and row.get("status") in _STATUSES
        and COLUMNS.keys() - row.keys() <= LATER_COLUMNS
        and all(isinstance(row.get(name), kinds) for name, kinds in _COLUMN_KINDS)
    )


def _measured(line: Line) -> bool:
    telemetry = line.get("telemetry")
    return (
        _index(line.get("cell"))
        and isinstance(line.get("timing"), dict)
        and (telemetry is None or (isinstance(telemetry, dict) and isinstance(telemetry.get("raw", []), list)))
    )


def _roof(line: Line) -> bool:
    calibration = line.get("calibration", {"id": ""})
    named = isinstance(calibration, dict) and isinstance(calibration.get("id"), str)
    return named and isinstance(line.get("device"), str) and "choice" in line


_STATUSES = {s.value for s in Status}
_KINDS: Mapping[str, tuple[type, ...]] = {
    "text": (str, type(None)),
    "int": (int, float, type(None)),
    "float": (int, float, type(None)),
}
_COLUMN_KINDS = [(name, _KINDS[kind]) for name, kind in COLUMNS.items()]


def _end(line: Line) -> bool:
    return _index(line.get("cell")) and _index(line.get("attempt")) and isinstance(line.get("status"), str)


def _round(line: Line) -> bool:
    rows = line.get("rows")
    if not isinstance(rows, list) or len(rows) != 2 or not _index(line.get("round")):
        return False
    return all(isinstance(row, dict) and row.get("status") in _STATUSES for row in rows)


_FORMS: Mapping[str, Callable[[Line], bool]] = {
    "cell": lambda line: isinstance(line.get("cell"), dict) and _index(line["cell"].get("index")),
    "started": lambda line: _index(line.get("cell")) and _index(line.get("attempt")),
    "measured": _measured,
    "judged": _end,
    "ended": _end,
    "device_up": lambda line: isinstance(line.get("device"), str),
    "roof": _roof,
    "resumed": lambda line: "time" in line,
    "result": _row,
    "round": _round,
}


@dataclass(frozen=True)
class Damage:
    """The damaged lines of a journal: their number, the first one's number in the file (from 1), and how many whole
    lines, with how many results, stand behind it.  A last line that a kill cut short is not among them."""

    lines: int = 0
    first: int = 0
    behind: int = 0
    results: int = 0

    def __bool__(self) -> bool:
        return self.lines > 0


class Journal:
    """The events of a journal, in order, read as they are asked for.  After a complete reading, `damage` is known and
    `end`: the offset behind the last whole line."""

    def __init__(self, path: Path):
        self.path = path
        self.damage = Damage()
        self.end = 0
        self.read = False  # completely

    def __iter__(self) -> Iterator[Line]:
        for _, line in self.located():
            yield line

    def located(self) -> Iterator[tuple[int, Line]]:
        """(offset of a line in the file, its event)."""
        summed = False
        bad = first = behind = results = at = end = 0
        with self.path.open("rb") as file:
            for number, (size, raw) in enumerate(_lines(file), 1):
                line, has = (None, False) if raw is None else decoded(raw, summed)
                begin, at = at, at + size
                if line is None:
                    if raw is None or raw.endswith(b"\n"):  # else a kill cut it short, or it is being written
                        bad, first = bad + 1, first or number
                    continue
                summed = summed or has or (line["event"] == "run" and _summed(line))
                if summed and not has:  # the head of a journal whose lines all have one
                    bad, first = bad + 1, first or number
                    continue
                end = at
                if bad:
                    behind, results = behind + 1, results + (line["event"] == "result")
                yield begin, line
        self.damage, self.end, self.read = Damage(bad, first, behind, results), end, True

    def read_through(self) -> Journal:
        """This journal, after a complete reading."""
        if not self.read:
            for _ in self.located():
                pass
        return self


class Follower:
    """The lines of a journal that another process writes, as they come.  Damaged ones are left out."""

    def __init__(self, path: Path):
        self._path, self._at = path, 0

    def new(self) -> list[Line]:
        """The whole lines since the last call; none while there is no journal."""
        found = []
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                for size, raw in _lines(file):
                    if raw is not None and not raw.endswith(b"\n"):  # it is being written
                        break
                    self._at += size
                    line, _ = (None, False) if raw is None else decoded(raw)
                    if line is not None:
                        found.append(line)
        except FileNotFoundError:
            pass
        return found


class LineReader:
    """Reads lines of a journal by their offsets; a context manager."""

    def __init__(self, path: Path):
        self._file = path.open("rb")

    def __call__(self, at: int) -> Line:
        """The event of the line that begins there.  ValueError if it is damaged now."""
        self._file.seek(at)
        line, _ = decoded(self._file.readline(MAX_LINE))
        if line is None:
            raise ValueError(f"{self._file.name}: the line at byte {at} is damaged")
        return line

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def _summed(head: Line) -> bool:
    schema = head.get("schema")
    return isinstance(schema, int) and schema >= SUMMED_SCHEMA


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """(size of a line, its bytes, or None for one that is too long)."""
    while raw := file.readline(MAX_LINE):
        size = len(raw)
        if size < MAX_LINE or raw.endswith(b"\n"):
            yield size, raw
            continue
        while (more := file.readline(MAX_LINE)) and not more.endswith(b"\n"):
            size += len(more)
        yield size + len(more), None


def cut(journal: Path, end: int) -> int:
    """Prepare a journal for more lines: what stands behind the offset `end` (that of its last whole line) goes to the
    end of `journal.cut.jsonl` beside it, and a last line without its newline gets one.  Returns the bytes cut off."""
    with journal.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size > end:
            file.seek(end)
            with journal.with_name(CUT).open("ab") as kept:
                shutil.copyfileobj(file, kept)
                kept.write(b"\n")
                kept.flush()
                os.fsync(kept.fileno())
            file.truncate(end)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
    return size - end


def fence(journal: Path) -> None:
    """Replace the journal by a copy.  A writer on another host that was only stopped still has the old file open.  What
    it, or its kernel's cache, still writes there is discarded, and does not appear among the lines that follow."""
    if journal.is_file():
        copy = journal.with_suffix(".tmp")
        copy.unlink(missing_ok=True)  # never write into the copy of a process that was stopped here and may continue
        with journal.open("rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
        copy.replace(journal)


def fencing(journal: Path) -> bool:
    """Whether a process ended during `fence`, which then has to be repeated."""
    return journal.with_suffix(".tmp").exists()
