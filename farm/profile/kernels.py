"""A kernel as a profiler saw it, whichever profiler, and what limits it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

#: A part of the device that is this busy (percent) is what the kernel waits for.
BUSY = 80.0
#: Global accesses that use less of what they move (percent) are not coalesced: 32-byte sectors with one number each.
COALESCED = 50.0
#: Occupancy (percent) below which latency is not hidden, if nothing is busy.
LOW_OCCUPANCY = 50.0
#: Units of Nsight Compute and of other tools -> factor to bytes, and to microseconds.
BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "KB": 1024, "": 1}
MICROSECONDS = {"nsecond": 1e-3, "usecond": 1, "msecond": 1e3, "second": 1e6, "ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class KernelProfile:
    """One launch.  None: the profiler does not say.  `read_bytes`, `written_bytes`: from and to device memory;
    `occupancy`: achieved, percent; `possible`: the most that the launch could have, and `limited_by` what limits that;
    `waves`: of blocks over the device; `busy`: part of the device -> percent of what it could do; `load_use`,
    `store_use`: percent of the bytes moved by global loads and stores that are used."""

    name: str
    duration_us: float | None = None
    read_bytes: float | None = None
    written_bytes: float | None = None
    occupancy: float | None = None
    possible: float | None = None
    limited_by: str = ""
    waves: float | None = None
    busy: Mapping[str, float] = field(default_factory=dict)
    load_use: float | None = None
    store_use: float | None = None
    launch: Mapping[str, str] = field(default_factory=dict)  # words -> grid, block, registers, ...

    @property
    def moved(self) -> float | None:
        parts = [n for n in (self.read_bytes, self.written_bytes) if n is not None]
        return sum(parts) if parts else None


def limiter(k: KernelProfile) -> str:
    """What limits the kernel first, with the number that says so."""
    for use, what in ((k.load_use, "loads"), (k.store_use, "stores")):
        if use is not None and use < COALESCED:
            return f"uncoalesced global {what}: {use:.0f} % of the bytes that they move are used"
    first = max(k.busy.items(), key=lambda part: part[1], default=("", 0.0))
    if first[1] >= BUSY:
        return f"{first[0]}: {first[1]:.0f} % busy"
    if k.waves is not None and k.waves < 1:
        return f"low occupancy: too few blocks, they fill {100 * k.waves:.0f} % of the device"
    if k.possible is not None and k.possible < LOW_OCCUPANCY:
        by = f", limited by {k.limited_by}" if k.limited_by else ""
        return f"low occupancy: at most {k.possible:.0f} %{by}"
    if k.occupancy is not None and k.occupancy < LOW_OCCUPANCY:
        return f"low occupancy: {k.occupancy:.0f} % achieved"
    if k.busy:
        return f"latency: nothing is busy ({first[0]} most, {first[1]:.0f} %)"
    return "unknown: the profiler reports no part of the device"


def merged(passes: Sequence[Sequence[KernelProfile]]) -> list[KernelProfile]:
    """The kernels of several passes over the same call, each with what every pass says of it."""
    out = list(passes[0]) if passes else []
    for other in passes[1:]:
        for i, (mine, its) in enumerate(zip(out, other)):
            if mine.name == its.name:
                named = {name: value for name, value in its.__dict__.items() if value not in (None, "", {})}
                busy, launch = {**mine.busy, **its.busy}, {**mine.launch, **its.launch}
                out[i] = replace(mine, **{**named, "busy": busy, "launch": launch})
    return out


def of_call(found: Sequence[KernelProfile], names: Sequence[str]) -> list[KernelProfile]:
    """Of all that a process launched, the kernels of its last call: the last launch of each name in `names`, of every
    name where none of these is there."""
    last = {k.name: k for k in found}
    mine = [k for name, k in last.items() if any(name == n or name.startswith(n) for n in names)]
    return mine or list(last.values())


def lines(kernels: Sequence[KernelProfile], needed: float | None) -> list[str]:
    """The profile for people; `needed`: the bytes that the op has to move."""
    out = []
    for k in kernels:
        out.append(f"kernel      {k.name}" + "".join(f"  {word} {value}" for word, value in k.launch.items()))
        if k.read_bytes is not None and k.written_bytes is not None:
            out.append(f"  bytes     {size(k.read_bytes)} read, {size(k.written_bytes)} written")
        if k.occupancy is not None or k.possible is not None:
            achieved = "" if k.occupancy is None else f"{k.occupancy:.0f} % achieved"
            most = "" if k.possible is None else f"at most {k.possible:.0f} %"
            by = f", limited by {k.limited_by}" if k.limited_by else ""
            out.append(f"  occupancy {', '.join(part for part in (achieved, most) if part)}{by}")
        if k.busy:
            out.append("  busy      " + ", ".join(f"{part} {share:.0f} %" for part, share in k.busy.items()))
        if k.duration_us is not None:
            out.append(f"  duration  {k.duration_us:.2f} us under the profiler, which is no measurement of speed")
        out.append(f"  limiter   {limiter(k)}")
    moved = [k.moved for k in kernels if k.moved is not None]
    if moved:
        beside = f", {sum(moved) / needed:.2f} times the {size(needed)} that the op needs" if needed else ""
        out.append(f"moved       {size(sum(moved))}{beside}")
    return out


def size(n: float) -> str:
    """`68.2 MB`, by powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= factor:
            return f"{n / factor:.1f} {unit}"
    return f"{n:.0f} B"


def number(text: object) -> float | None:
    """A number of a table, with separators of thousands; None for anything else."""
    try:
        found = float(str(text).replace(",", ""))
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None
