"""npu-smi, Ascend's tool: what it prints, as chips, fields and readings.  Nothing here opens a device, nothing raises.

Layouts and names of fields are those of the vendor's npu-smi command references (hiascend.com, HDK 23.0 to 26.1) for
`info`, `info -m`, `info -l` and `info -t TYPE -i NPU`.  A field that a version lacks, or a board does not tell
("This device does not support querying ..."), is unknown.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.backends.api import Counters, Process, Sample
from farm.process import command, host

#: Where the driver puts the tool, for a PATH without it.
PLACES = ("/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi", "/usr/sbin/npu-smi")
#: One answer takes a fraction of a second a chip; a driver that hangs never gives one.
DEADLINE_S = 20.0
#: What the tool said is good for so many seconds.
LATELY_S = 5.0
#: States that the references know of; those from `Alarm` on are major.
HEALTHY = ("OK", "WARNING")
_DAVINCI = re.compile(r"davinci(\d+)")
_WIDE = re.compile(r"\s{2,}")
_PROCESS = re.compile(r"Process id\s*:\s*(\d+)")
_DOUBLE_BIT = re.compile(r"double[- ]bit error count", re.IGNORECASE)


@dataclass(frozen=True)
class Chip:
    """One chip (die) that computes.  `logic`: the id that the runtime and its mask know it by; `npu` and `chip`: those
    of the tool.  `used_mib`: HBM in use.  Empty, None: not told."""

    npu: int
    chip: int
    logic: int
    name: str = ""
    health: str = ""
    bus: str = ""
    used_mib: float | None = None


class Tool:
    """The tool on this host.  One that did not answer in time is not asked again: `silent` says so then."""

    def __init__(self, deadline_s: float | None = None):
        self.path = shutil.which("npu-smi") or next((p for p in PLACES if Path(p).is_file()), "")
        self.silent = "" if self.path else "npu-smi is not installed on this host"
        self._deadline_s = DEADLINE_S if deadline_s is None else deadline_s

    def __call__(self, *words: str) -> str:
        """What it prints for `npu-smi info WORDS`; "" where there is none, it fails, or it does not answer in time."""
        if self.silent:
            return ""
        try:
            done = command.run([self.path, "info", *words], self._deadline_s)
        except OSError as error:
            self.silent = f"npu-smi cannot be started ({error})"
            return ""
        if done.code is None:
            self.silent = f"npu-smi did not answer within {self._deadline_s:g} s: the driver hangs"
        return done.out if done.code == 0 else ""


Ask = Callable[..., str]


def chips(ask: Ask) -> list[Chip]:
    """The chips of this host by their logic ids: the mapping (`-m`) says which there are, the table (`info`) their
    health, bus and memory; where a version prints no mapping, the table's or the list's (`-l`) order numbers them."""
    table = {(c.npu, c.chip): c for c in parse_table(ask())}
    mapped = parse_map(ask("-m"))
    if not mapped:
        return list(table.values()) or parse_list(ask("-l"))
    found = []
    for m in mapped:
        seen = table.get((m.npu, m.chip))
        found.append(m if seen is None else replace(seen, logic=m.logic, name=seen.name or m.name))
    return sorted(found, key=lambda c: c.logic)


def parse_table(text: str) -> list[Chip]:
    """The table of `npu-smi info`: two lines a chip, whatever the widths and the second line's columns.

    The first line has the NPU's id and name, the health, power and temperature; the second the chip's id (and, by the
    version, its device or physical id), the bus id, and at its end the memory: HBM where the part has it.
    """
    found: list[Chip] = []
    first: tuple[int, str, str] | None = None
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line.lstrip().startswith("|") else []
        words = cells[0].split() if len(cells) == 3 else []
        if not words or not words[0].isdigit():
            first = None
        elif len(words) > 1 and not words[1].isdigit():
            first = (int(words[0]), " ".join(words[1:]), cells[1])
        elif first is not None:
            usage = re.findall(r"(\d+)\s*/\s*\d+", cells[2])
            bus = cells[1] if ":" in cells[1] else ""
            used = float(usage[-1]) if usage else None
            found.append(Chip(first[0], int(words[0]), len(found), first[1], first[2], bus, used))
            first = None
    return found


def driver(text: str) -> str:
    """The driver's version in the table's first line."""
    found = re.search(r"\bVersion:\s*(\S+)", text)
    return found.group(1) if found else ""


def parse_map(text: str) -> list[Chip]:
    """`npu-smi info -m`: a line a chip, columns by their header; those without a logic id (management chips) left
    out, and those of an NPU that is not available (id -1)."""
    lines = [_WIDE.split(line.strip()) for line in text.splitlines() if line.strip()]
    at = next((i for i, cells in enumerate(lines) if "NPU ID" in cells and "Chip Logic ID" in cells), None)
    if at is None:
        return []
    found = []
    for cells in lines[at + 1 :]:
        row = dict(zip(lines[at], cells))
        ids = [row.get(k, "") for k in ("NPU ID", "Chip ID", "Chip Logic ID")]
        if len(cells) == len(lines[at]) and all(i.isdigit() for i in ids):
            npu, chip, logic = map(int, ids)
            found.append(Chip(npu, chip, logic, name=row.get("Chip Name", "")))
    return found


def parse_list(text: str) -> list[Chip]:
    """`npu-smi info -l`: NPUs with how many chips each has, numbered as they come."""
    found: list[Chip] = []
    npu: int | None = None
    for key, value in _pairs(text):
        if key == "NPU ID" and value.isdigit():
            npu = int(value)
        elif key == "Chip Count" and value.isdigit() and npu is not None:
            found += [Chip(npu, i, len(found) + i) for i in range(int(value))]
            npu = None
    return found


def fields(text: str, chip: int) -> dict[str, str]:
    """The fields of one chip in what `npu-smi info -t TYPE -i NPU` prints, the first of each name.

    By type and version a chip's id stands before its fields or after them, or (asked with `-c`) not at all; the
    management chip's, which are last, belong to nobody.
    """
    pairs = _pairs(text)
    end = next((i for i, (k, v) in enumerate(pairs) if k == "Chip Name" and v.lower() == "mcu" and i), len(pairs))
    head = ("NPU ID", "Slot ID", "Chip Count")
    marks = [i for i, (k, _) in enumerate(pairs) if k == "Chip ID"]
    if not marks:
        return _first(p for p in pairs[:end] if p[0] not in head)
    leads = all(k in head for k, _ in pairs[: marks[0]])
    for n, mark in enumerate(marks):
        if pairs[mark][1] != str(chip):
            continue
        if leads:
            stop = marks[n + 1] if n + 1 < len(marks) else len(pairs)
            return _first(pairs[mark + 1 : min(stop, end) if end > mark else stop])
        begin = marks[n - 1] + 1 if n else 0
        return _first(p for p in pairs[begin:mark] if p[0] not in head)
    return {}


def processes(text: str, chip: int) -> list[int] | None:
    """Pids in what `npu-smi info -t proc-mem -i NPU` prints for a chip, whose id comes after them; None where it says
    nothing of processes."""
    found: list[int] = []
    told = False
    for line in text.splitlines():
        match = _PROCESS.search(line)
        if match:
            found.append(int(match.group(1)))
        told = told or match is not None or "No process" in line
        after = re.match(r"\s*Chip ID\s*:\s*(\d+)", line)
        if after and (told or found):
            if int(after.group(1)) == chip:
                return found
            found, told = [], False
    return found if told else None


def soc(name: str, npu_name: str = "") -> str:
    """The part as the runtime names it ("Ascend910B3", "Ascend910_9392"), from the tool's names: the table says
    "910B3", the mapping "Ascend 910B3", and of two-die parts both only "Ascend910", their board `npu_name` "9392"."""
    plain = name.replace(" ", "").replace("_", "")
    plain = plain[len("ascend") :] if plain.lower().startswith("ascend") else plain
    if not plain:
        return ""
    return f"Ascend{plain}" + (f"_{npu_name}" if plain == "910" and npu_name else "")


def nodes(folder: str = "/dev") -> list[int]:
    """Numbers of the device files davinci0, davinci1, ...; the manager's has none."""
    with contextlib.suppress(OSError):
        names = (_DAVINCI.fullmatch(p.name) for p in Path(folder).iterdir())
        return sorted(int(m.group(1)) for m in names if m)
    return []


def number(text: str | None) -> float | None:
    """A field's number; None for one that is missing, "NA" or "-"."""
    with contextlib.suppress(ValueError, TypeError):
        value = float(text)  # type: ignore[arg-type]
        return value if math.isfinite(value) else None
    return None


class NpuReader:
    """One chip by npu-smi: a reading in seconds.  Why a clock is low the tool does not say: that stays unknown, and so
    does what a driver would tell of critical errors."""

    def __init__(self, ask: Ask, chip: Chip):
        self._ask, self._chip = ask, chip
        self._kept: dict[str, tuple[float, Any]] = {}

    def _lately(self, what: str, read: Callable[[], Any]) -> Any:
        at, value = self._kept.get(what, (-math.inf, None))
        if time.monotonic() - at > LATELY_S:
            value = read()
            self._kept[what] = (time.monotonic(), value)
        return value

    def _fields(self, kind: str) -> Mapping[str, str]:
        npu, chip = str(self._chip.npu), self._chip.chip
        found: Mapping[str, str] = self._lately(kind, lambda: fields(self._ask("-t", kind, "-i", npu), chip))
        return found

    def sample(self) -> Sample:
        common = self._fields("common")
        power = number(common.get("NPU Real-time Power(W)")) or number(common.get("Power Dissipation(W)"))
        clock = number(common.get("Aicore curFreq(MHZ)"))
        return Sample(0.0, clock, None, number(common.get("Temperature(C)")), power, None)

    def counters(self) -> Counters:
        double = [number(v) for k, v in self._fields("ecc").items() if _DOUBLE_BIT.search(k)]
        told = [int(v) for v in double if v is not None]
        pids = self._lately("proc-mem", self._pids)
        seen: tuple[Process, ...] | None = (
            None if pids is None else tuple(Process(p, host.process_name(p)) for p in pids)
        )
        return Counters(sum(told) if told else None, None, seen)

    def _pids(self) -> list[int] | None:
        return processes(self._ask("-t", "proc-mem", "-i", str(self._chip.npu)), self._chip.chip)

    def memory_used_mib(self) -> float | None:
        mine = (self._chip.npu, self._chip.chip)
        return next((c.used_mib for c in parse_table(self._ask()) if (c.npu, c.chip) == mine), None)

    def close(self) -> None:
        return


def _pairs(text: str) -> list[tuple[str, str]]:
    """`name : value` lines in order; a name may hold anything but a colon."""
    split = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return [(k.strip(), v.strip()) for k, v in split]


def _first(pairs: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found
