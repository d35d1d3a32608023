"""What is known of AMD's parts, their masks and the forms in which their tools give values.  Pure.

Sources, read 2026-11-21 in stored copies: PCI ids from the tables of Ray and vLLM, and others that agree; caches
from "AMD GPU specifications" (rocm.docs.amd.com/en/latest/reference/gpu-specs.html); masks from "GPU isolation
techniques" (rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html); places and partitions from "GPU partitioning"
(rocm.docs.amd.com/projects/amdsmi, conceptual/partition).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

VENDOR = 0x1002
#: Where a tool has no name for a part, or only its family's ("AMD Radeon Graphics"): by PCI device id.  A virtual
#: function of a part computes as the part does.
PARTS = {
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X",
    0x740F: "AMD Instinct MI210",
    0x7410: "AMD Instinct MI210 VF",
    0x74A8: "AMD Instinct MI308X HF",
    0x74BC: "AMD Instinct MI308X HF VF",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
    0x74B6: "AMD Instinct MI308X VF",
    0x74B9: "AMD Instinct MI325X VF",
    0x74BD: "AMD Instinct MI300X HF VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
    0x75B0: "AMD Instinct MI350X VF",
    0x75B3: "AMD Instinct MI355X VF",
}
_PART = re.compile(r"\bMI\d{2,3}[A-Z]?\b")
#: The last cache before memory, bytes.  Of the MI300 and MI350 series that is the Infinity Cache, shared by all dies
#: and all partitions; HIP reports the L2 of one die (4 MiB).  Of an MI210, or one die of an MI250X, it is the L2.
_INFINITY, _L2 = 256 << 20, 8 << 20
LAST_LEVEL = {"gfx90a": _L2, "gfx942": _INFINITY, "gfx950": _INFINITY}
#: What a tool says where it has nothing to say.
_NOTHING = frozenset({"", "N/A", "NA", "NONE", "UNKNOWN", "NOT SUPPORTED"})
#: All ones in 16, 32 or 64 bits: unsupported.
_ALL_ONES = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
_BDF = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """One GPU, or one partition of one, as a tool lists it.

    id: its place in the order in which ROCm's runtimes count the host's devices, no mask set.  place: PCI domain, bus
    and device, which partitions of one GPU share.  tool: its number for `amd-smi --gpu`.  handle: the library's.
    """

    id: str
    name: str
    place: str = ""
    partition: int = 0
    uuids: tuple[str, ...] = ()
    device: int | None = None
    tool: str = ""
    handle: Any = None

    @property
    def physical(self) -> str:
        """What tells it from every other on its host, whatever tool lists it: UUIDs changed with ROCm 7.0 and 7.13, and
        before 7.0 the partitions of a GPU shared one."""
        return f"amd-{self.place}-{self.partition}" if self.place else ""


def text(value: Any) -> str:
    """A tool's text, "" where it says that it has none."""
    plain = "" if value is None else str(value).strip()
    return "" if plain.upper() in _NOTHING else plain


def number(value: Any) -> float | None:
    """A tool's number: plain, in a text with its unit, or as {"value": n, "unit": u}; None where it has none."""
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return None if value in _ALL_ONES else float(value)
    match = _NUMBER.match(text(value))
    return None if match is None else number(float(match.group()))


def integer(value: Any) -> int | None:
    """The same for an id, which may be hexadecimal ("0x74a1")."""
    try:
        return int(value, 16) if isinstance(value, str) and value.lower().startswith("0x") else int(value)
    except (TypeError, ValueError):
        return None


def watts(value: Any) -> int | None:
    """A power limit in W; AMD SMI gives microwatts, older ones watts.  None for 0: no limit is told."""
    found = number(value)
    if not found or found < 0:
        return None
    return round(found / 1e6) if found >= 1e5 else round(found)


def celsius(value: Any) -> float | None:
    """A temperature; documented in millidegrees, given in degrees by most releases."""
    found = number(value)
    return found if found is None or abs(found) < 1000 else found / 1e3


def part(name: str, device: int | None) -> str:
    """A part's name: what the tool says where that names one, else by the PCI id, else what the tool says."""
    said = text(name)
    return said if _PART.search(said) else PARTS.get(device or 0, said)


def located(bdf: str) -> tuple[str, int]:
    """("0000:0c:00", function) of "0000:0c:00.3" or "0c:00.3"; ("", 0) for what is none."""
    match = _BDF.fullmatch(text(bdf))
    if match is None:
        return "", 0
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}", int(function, 16)


def partition(compute: str, memory: str) -> str:
    """The mode as part of a target, "cpx-nps4"; "" for a whole device in its default mode (SPX, NPS1), for a part that
    has no modes, and in a guest, from which its host's mode is kept."""
    parts = [p.lower() for p in (text(compute), text(memory)) if p]
    return "" if parts in ([], ["spx"], ["nps1"], ["spx", "nps1"]) else "-".join(parts)


def clocks(level: Any, limit_mhz: float | None) -> str:
    """Whether an operator has set the clocks: "" for the vendor's own policy (level AUTO), else the level, with the
    highest clock where there is a limit ("determinism-1900mhz")."""
    name = text(getattr(level, "name", level)).upper().rpartition("PERF_LEVEL_")[2].removeprefix("PERF_")
    if name in ("", "AUTO", "UNKNOWN") or name.isdigit():
        return ""
    limited = f"-{limit_mhz:.0f}mhz" if limit_mhz and name in ("DETERMINISM", "MANUAL") else ""
    return f"{name.lower().replace('_', '-')}{limited}"


def numbered(devices: Sequence[Found], hip_ids: Sequence[Any]) -> list[Found]:
    """The devices in the order of ROCm's runtimes, each with its id.

    A tool tells HIP's numbers; in a container it may tell those of the whole host, of which the runtimes see a part.
    Where they are not 0, 1, 2, ... in some order, the tool's own order counts.
    """
    ids = [integer(i) for i in hip_ids]
    if len(ids) != len(devices) or sorted(i for i in ids if i is not None) != list(range(len(devices))):
        ids = list(range(len(devices)))
    told = [replace(d, id=str(i)) for d, i in zip(devices, ids)]
    return sorted(told, key=lambda d: int(d.id))


def matches(device: Found, token: str) -> bool:
    """Whether a mask's entry means it: its index, or a UUID's beginning, with or without "GPU-"."""
    plain = token.strip().lower().removeprefix("gpu-")
    if token.strip().isdigit() and len(token.strip()) < 8:
        return device.id == token.strip()
    return bool(plain) and any(u.lower().removeprefix("gpu-").startswith(plain) for u in device.uuids)


def masked(environment: Mapping[str, str]) -> list[str] | None:
    """What the mask variables leave, as entries that mean the host's devices; None where no mask is set.

    ROCm's lower runtime obeys ROCR_VISIBLE_DEVICES, and HIP then counts what is left anew: HIP_VISIBLE_DEVICES=1 beside
    ROCR_VISIBLE_DEVICES=4,6 is the host's device 6.  CUDA_VISIBLE_DEVICES counts where HIP_VISIBLE_DEVICES is not set.
    """
    lower = _entries(environment.get("ROCR_VISIBLE_DEVICES"))
    upper = _entries(environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES")))
    return upper if lower is None else lower if upper is None else _chosen(upper, lower)


def granted(environment: Mapping[str, str], ids: Sequence[str]) -> str:
    """The one device that a scheduler gave this process, as the host counts it; "" where that cannot be told.

    Ray sets HIP_VISIBLE_DEVICES to it, or, where it takes the node for NVIDIA's (no `amdsmi` in its Python),
    CUDA_VISIBLE_DEVICES, beside a HIP_VISIBLE_DEVICES that still lists the whole node.  `ids`: Ray's own numbers, which
    count what the node's mask left; they decide where a mask names no single device.
    """
    hip, cuda = (_entries(environment.get(f"{who}_VISIBLE_DEVICES")) for who in ("HIP", "CUDA"))
    lower = _entries(environment.get("ROCR_VISIBLE_DEVICES"))
    if hip is not None and len(hip) == 1:
        chosen = hip
    elif cuda is not None and len(cuda) == 1:
        chosen = _chosen(cuda, hip)
    else:
        chosen = _chosen([str(i) for i in ids][:1], hip)
    left = _chosen(chosen, lower)
    return left[0] if left else ""


def _chosen(entries: list[str], of: list[str] | None) -> list[str]:
    """Entries that count in a list, as that list's own; the first that means none of it ends them."""
    if of is None:
        return entries
    out: list[str] = []
    for entry in entries:
        if entry.isdigit() and int(entry) < len(of):
            out.append(of[int(entry)])
        elif not entry.isdigit() and entry in of:
            out.append(entry)
        else:
            break
    return out


def _entries(mask: str | None) -> list[str] | None:
    """A mask's entries up to the first that can mean nothing (empty, negative); None where it is not set."""
    if mask is None:
        return None
    out: list[str] = []
    for entry in (e.strip() for e in mask.split(",")):
        if not entry or entry.startswith("-"):
            break
        out.append(entry)
    return out
