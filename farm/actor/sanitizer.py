"""What compute-sanitizer wrote of a cell: kernel, source line, thread and address of each wrong access.  Pure but for
`read`.

Each line begins with `=========`.  A report is a head, `Invalid __global__ write of size 4 bytes`, and indented lines:
where in the code, by which thread, at which address.  The place is written in another order by each release:

    at 0x3c8 in /src/a.cu:42:kernel(int*)            until 2021
    at kernel(int*):0x160 in /src/a.cu:6             2022
    at kernel(int*)+0x50 in /src/a.cu:14             2023 and later
    at 0x60 in kernel(int*)                          without line information
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

_PREFIX = re.compile(r"^=========\s?(?P<text>.*)$")
#: Heads of what is no report of an access.
_ASIDE = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
    "LEAK SUMMARY",
    "Target application",
    "Program hit",
)
_HEAD = re.compile(
    r"(?:Error: |Warning: )?(?:Invalid|Uninitialized|Misaligned|Barrier|Race|Potential|Unused|Stack|Illegal)"
)
_OLD = re.compile(r"^at (?P<offset>0x[0-9a-f]+) in (?:(?P<file>[^:]+):(?P<line>\d+):)?(?P<kernel>.+)$")
_NEW = re.compile(r"^at (?P<kernel>.+?)(?::|\+)(?P<offset>0x[0-9a-f]+)(?: in (?P<file>.+):(?P<line>\d+))?$")
_THREAD = re.compile(r"^by thread \((?P<thread>[\d,]+)\) in block \((?P<block>[\d,]+)\)")
_RACE = re.compile(r"^(?P<head>(?:Error: |Warning: )?.*?access) at (?P<where>.+)$")
_HAZARDS = re.compile(r"\s*\[\d+ hazards?\]$")
MOST = 8 << 20  # bytes of a log that are read


@dataclass(frozen=True)
class Access:
    """One kind of wrong access.  `where`: `kernel at file:line`, or as much of it as is known; `count`: reports."""

    what: str
    kernel: str = ""
    place: str = ""
    thread: str = ""
    address: str = ""
    count: int = 1

    def sentence(self) -> str:
        """What, in which kernel, at which line, by which thread, at which address."""
        where = (f" in kernel {self.kernel}" if self.kernel else "") + (f" at {self.place}" if self.place else "")
        by = f", by {self.thread}" if self.thread else ""
        return f"{self.what}{where}{by}" + (f": {self.address}" if self.address else "")


def accesses(text: str) -> list[Access]:
    """The wrong accesses of a log, each kind (what, and where in the code) once, in the order of their first report."""
    found: dict[tuple[str, str, str], Access] = {}
    for lines in _reports(text):
        made = _access(lines)
        key = (made.what, made.kernel, made.place)
        first = found.get(key)
        found[key] = made if first is None else Access(*(*_fields(first)[:-1], first.count + 1))
    return list(found.values())


def _fields(access: Access) -> tuple[str, str, str, str, str, int]:
    return (access.what, access.kernel, access.place, access.thread, access.address, access.count)


def _reports(text: str) -> list[list[str]]:
    """The lines of each report, without the prefix."""
    out: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        match = _PREFIX.match(line)
        if not match:
            continue
        said = match["text"]
        if said.strip() and not said.startswith(" "):
            inside = not said.startswith(_ASIDE) and bool(_HEAD.match(said))
            if inside:
                out.append([said.strip()])
        elif inside and said.strip():
            out[-1].append(said.strip())
    return out


def _access(lines: list[str]) -> Access:
    what, kernel, place, thread = lines[0], "", "", ""
    address: list[str] = []
    race = _RACE.match(what)
    if race:  # the place stands in the head
        what, lines = race["head"], [lines[0], f"at {race['where']}", *lines[1:]]
    for line in lines[1:]:
        if line.startswith("at ") and not kernel:
            kernel, place = _place(_HAZARDS.sub("", line))
        elif match := _THREAD.match(line):
            thread = thread or f"thread ({match['thread']}) of block ({match['block']})"
        elif line.startswith(("Address ", "and ")):
            address.append(_HAZARDS.sub("", line))
    return Access(what, kernel, place, thread, ", ".join(address).replace(", and ", " and "))


def _place(line: str) -> tuple[str, str]:
    """(kernel, file:line) of an `at` line."""
    match = _OLD.match(line) or _NEW.match(line)
    if match is None:
        return line.removeprefix("at "), ""
    file = match["file"]
    return match["kernel"], f"{file}:{match['line']}" if file else ""


def reason(found: list[Access], check: str) -> str:
    """The sentence of a cell with wrong accesses."""
    more = len(found) - 1
    times = f" ({found[0].count} reports)" if found[0].count > 1 else ""
    return f"{check}: {found[0].sentence()}{times}" + (f"; and {more} more kinds of access" if more else "")


def listed(found: list[Access]) -> str:
    """A line for each, for the log."""
    return "\n".join(f"{access.sentence()} ({access.count} reported)" for access in found)


def read(path: Path | None, program: str) -> tuple[list[Access], str]:
    """(the wrong accesses in a log, why it proves nothing): a log without its first line says that nobody looked."""
    text = ""
    if path is not None:
        with contextlib.suppress(OSError), path.open("rb") as file:
            text = file.read(MOST).decode("utf-8", "replace")
    if not _PREFIX.match(text.partition("\n")[0]):
        return [], f"{program} wrote no report, so nothing was checked"
    return accesses(text), ""
