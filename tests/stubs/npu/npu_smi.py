"""A stub of npu-smi, the tool of Ascend's driver, for hosts of 910B1 to 910B4 and of a two-die part (9392).

Written from the vendor's npu-smi command references (hiascend.com, "npu-smi", HDK 23.0 to 26.1, for the Atlas A2 and A3
series): the commands `info`, `info -m`, `info -l`, and `info -t TYPE -i NPU [-c CHIP]` (board, common, ecc, health,
proc-mem, usages) with their fields, the order of a chip's id and its fields, and the five states of health.  Values are
made up.

    printed(words, **host)     what it prints
    npu-smi WORDS              the same as a program (put this folder on PATH), the host from the environment:
                               FARM_STUB_NPU='{"part": "910B3", "count": 8}'

A host: part, count (NPUs), version, layout ("narrow", or "wide" as newer versions pad), mapping (False: no `-m`), table
(False: no table), health {"NPU/CHIP": state}, codes (the error code of one that is not OK), processes {"NPU/CHIP":
[pid, ...]}, ecc (double-bit errors of the first chip), first (id of the first NPU), hang (seconds), fails (exit code).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

#: Cores, rated MHz, HBM in MiB, chips an NPU.
PARTS = {
    "910B1": (25, 1850, 65536, 1),
    "910B2": (24, 1800, 65536, 1),
    "910B3": (20, 1800, 65536, 1),
    "910B4": (20, 1650, 32768, 1),
    "9392": (24, 1800, 65536, 2),
}
BUSES = ("C1", "C2", "81", "82", "01", "02", "41", "42", "9D", "9F", "99", "9B", "95", "97", "91", "93")


class Host:
    """One host as the tool sees it."""

    def __init__(self, **host: Any):
        self.part = host.get("part", "910B3")
        self.cores, self.mhz, self.hbm, self.chips = PARTS[self.part]
        self.count = int(host.get("count", 8))
        self.version = host.get("version", "24.1.rc3")
        self.layout = host.get("layout", "narrow")
        self.mapping, self.table = host.get("mapping", True), host.get("table", True)
        self.health, self.codes = host.get("health", {}), host.get("codes", "0x80E01801")
        self.processes, self.ecc = host.get("processes", {}), int(host.get("ecc", 0))
        self.first = int(host.get("first", 0))
        self.two = self.chips > 1

    def all(self) -> list[tuple[int, int]]:
        return [(self.first + n, c) for n in range(self.count) for c in range(self.chips)]

    def bus(self, npu: int, chip: int) -> str:
        return f"0000:{BUSES[((npu - self.first) * self.chips + chip) % len(BUSES)]}:00.0"

    def state(self, npu: int, chip: int) -> str:
        return str(self.health.get(f"{npu}/{chip}", "OK"))

    def name(self) -> str:
        return "Ascend910" if self.two else self.part


def printed(words: Sequence[str], **given: Any) -> str:
    """What `npu-smi WORDS` prints on this host; the words as the program gets them, with or without `info`."""
    host = Host(**given)
    rest = list(words[1:] if words[:1] == ["info"] or words[:1] == ("info",) else words)
    if not rest:
        return _table(host) if host.table else ""
    if rest == ["-m"]:
        return _map(host) if host.mapping else "Unsupported option.\n"
    if rest == ["-l"]:
        return _list(host)
    options = dict(zip(rest[::2], rest[1::2]))
    npu, only = int(options["-i"]), options.get("-c")
    if (npu, int(only or 0)) not in host.all():
        return "This device is not exist.\n"
    return _typed(host, options["-t"], npu, None if only is None else int(only))


def _table(host: Host) -> str:
    wide = host.layout == "wide"
    widths = (27, 15, 70 if wide else 52)
    rule = "+" + "+".join("-" * w for w in widths) + "+"
    thick = "+" + "+".join("=" * w for w in widths) + "+"
    whole = sum(widths) + 2

    def row(*cells: str) -> str:
        return "|" + "|".join(f" {c}".ljust(w) for c, w in zip(cells, widths)) + "|"

    pad = "          " if wide else " "
    out = [
        f"+{'-' * whole}+",
        "|" + f" npu-smi {host.version}".ljust(34) + f"Version: {host.version}".ljust(whole - 34) + "|",
        rule,
        row("NPU   Name", "Health", f"Power(W)   {pad}Temp(C)   {pad}Hugepages-Usage(page)"),
        row("Chip  Phy-ID" if host.two else "Chip", "Bus-Id", f"AICore(%)  {pad}Memory-Usage(MB) {pad}HBM-Usage(MB)"),
        thick,
    ]
    for place, (npu, chip) in enumerate(host.all()):
        power = "-" if chip else f"{90 + npu}.5"
        used = 3379 + 100 * place
        out.append(row(f"{npu:<5} {host.name()}", host.state(npu, chip), f"{power:<10}{pad} {36:<10}{pad}  0    / 0"))
        ids = f"{chip:<5} {place}" if host.two else f"{chip}"
        out.append(row(ids, host.bus(npu, chip), f"0          {pad}0    / 0        {pad} {used:<5}/ {host.hbm}"))
        out.append(f"+{'-' * whole}+" if chip + 1 < host.chips else thick)
    heads = (25, 17, 26, 25)
    names = ("NPU     Chip", "Process id", "Process name", "Process memory(MB)")
    out.append("|" + "|".join(f" {t}".ljust(w) for t, w in zip(names, heads)) + "|")
    for npu, chip in host.all():
        pids = host.processes.get(f"{npu}/{chip}", [])
        for pid in pids:
            cells = (f"{npu:<7} {chip}", str(pid), "python", "177")
            out.append("|" + "|".join(f" {t}".ljust(w) for t, w in zip(cells, heads)) + "|")
        if not pids:
            out.append("|" + f" No running processes found in NPU {npu}".ljust(whole) + "|")
    return "\n".join([*out, thick, ""])


def _map(host: Host) -> str:
    heads = ["NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if host.two else []), "Chip Name"]
    rows = [heads]
    for place, (npu, chip) in enumerate(host.all()):
        name = "Ascend910" if host.two else f"Ascend {host.part}"
        rows.append([str(npu), str(chip), str(place), *([str(place)] if host.two else []), name])
        if chip + 1 == host.chips:
            rows.append([str(npu), str(host.chips), "-", *(["-"] if host.two else []), "Mcu"])
    return "".join("\t" + "".join(c.ljust(31) for c in row).rstrip() + "\n" for row in rows)


def _list(host: Host) -> str:
    out = [("Total Count", host.count)]
    for n in range(host.count):
        out += [("NPU ID", host.first + n), ("Chip Count", host.chips)]
    return _fields(out)


def _typed(host: Host, kind: str, npu: int, only: int | None) -> str:
    shown = [only] if only is not None else list(range(host.chips))
    head = [] if only is not None else [("NPU ID", npu), ("Chip Count", host.chips)]
    leads = kind in ("common", "health")  # the chip's id stands before its fields; in the other types after them
    out: list[str] = [_fields(head)] if head else []
    for chip in shown:
        own = _CHIP[kind](host, npu, chip)
        mark = [("Chip ID", chip)] if only is None else []
        body = own if isinstance(own, str) else _fields(own)
        out.append((_fields(mark) + body) if leads else (body + _fields(mark)))
    if only is None and kind == "common":
        out.append(_fields([("Chip Name", "mcu"), ("Temperature(C)", 28)]))
    if only is None and kind == "health":
        out.append(_fields([("Health", "OK"), ("Chip Name", "mcu")]))
    return "\n".join(out)


def _common(host: Host, npu: int, chip: int) -> list[tuple[str, Any]]:
    return [
        ("Memory Usage Rate(%)", 0),
        ("HBM Usage Rate(%)", 5),
        ("Aicore Usage Rate(%)", 0),
        ("Aicore Freq(MHZ)", host.mhz),
        ("Aicore curFreq(MHZ)", 800 + chip),
        ("Aicore Count", host.cores),
        ("Temperature(C)", 36 + npu),
        ("NPU Real-time Power(W)", "-" if chip else 90.5 + npu),
    ]


def _usages(host: Host, npu: int, chip: int) -> list[tuple[str, Any]]:
    return [
        ("DDR Capacity(MB)", 0),
        ("DDR Usage Rate(%)", 0),
        ("HBM Capacity(MB)", host.hbm),
        ("HBM Usage Rate(%)", 5),
        ("Aicore Usage Rate(%)", 0),
        ("Aivector Usage Rate(%)", 0),
        ("HBM Bandwidth Usage Rate(%)", 0),
    ]


def _ecc(host: Host, npu: int, chip: int) -> list[tuple[str, Any]]:
    double = host.ecc if (npu, chip) == host.all()[0] else 0
    return [
        ("DDR Single-bit Error Count", 0),
        ("DDR Double-bit Error Count", 0),
        ("HBM Single-bit Error Count", 3),
        ("HBM Double-bit Error Count", double),
    ]


def _health(host: Host, npu: int, chip: int) -> list[tuple[str, Any]]:
    state = host.state(npu, chip)
    code = "NA" if state == "OK" else host.codes
    return [("Health Status", state), ("Error Code", code), ("Error Information", "NA")]


def _proc_mem(host: Host, npu: int, chip: int) -> str:
    pids = host.processes.get(f"{npu}/{chip}", [])
    lines = [f"Process id:{pid:<7} Process name:{'python':<16} Process memory(MB):177" for pid in pids]
    return "".join(f"\t{line}\n" for line in lines or ["No process in device."])


def _board(host: Host, npu: int, chip: int) -> list[tuple[str, Any]]:
    die = f"{npu:08X} {chip:08X} 1223F2B2 84528485 104301E2"
    kind = [] if host.two else [("Chip Type", "Ascend")]
    names = [("Chip Name", "Ascend910"), ("NPU Name", host.part)] if host.two else [("Chip Name", host.part)]
    return [
        ("NPU ID", npu),
        ("Chip ID", chip),
        *kind,
        *names,
        ("Chip Version", "V1"),
        ("Board ID", "0x30"),
        ("PCB ID", "NA"),
        ("BOM ID", 1),
        ("VDie ID", die),
        ("NDie ID", "00000000 00000000 00000000 00000000 00000000"),
        ("Chip Position ID", chip),
        ("PCIe Bus Info", host.bus(npu, chip)),
        ("Firmware Version", "NA"),
    ]


_CHIP: dict[str, Any] = {
    "common": _common,
    "usages": _usages,
    "ecc": _ecc,
    "health": _health,
    "proc-mem": _proc_mem,
    "board": _board,
}


def _fields(pairs: Sequence[tuple[str, Any]]) -> str:
    return "".join(f"\t{name:<31}: {value}\n" for name, value in pairs)


def main(argv: list[str]) -> int:
    given = json.loads(os.environ.get("FARM_STUB_NPU", "{}"))
    time.sleep(float(given.pop("hang", 0)))
    code = int(given.pop("fails", 0))
    sys.stdout.write("dcmi module initialize failed. ret is -8005\n" if code else printed(argv, **given))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
