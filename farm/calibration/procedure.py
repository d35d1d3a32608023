"""What a calibration measures, in which order, and how it is cut short.  Pure: the device and its clock are handed in.

    floors, drift, all copy configurations at the ANCHORS, what is left of them at the other powers of two, drift, the
    GEMMs, then sizes between the powers of two while there is time, drift

Everything but those last sizes is measured whatever the time, up to twice the budget; what was left out is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from farm.calibration.copies import COPIES, Copy
from farm.errors import CannotMeasure

MIB = 1 << 20
#: Bytes moved (read and written together): every power of two in between, and what lies halfway on a log scale.
SMALLEST, LARGEST = MIB, 8 << 30
#: Where every configuration is measured.
ANCHORS = (1 * MIB, 16 * MIB, 128 * MIB, 2 << 30)
#: A configuration within this of the best at a neighbouring anchor is measured between the anchors too.
MARGIN = 1.04
#: The copy that tells whether the device stays as it is: the second configuration, of so many bytes.
DRIFT_BYTES = 64 * MIB
#: dtype -> edges of the square matrices whose product is timed; the best counts.  "tf32" is float32 by tensor cores.
GEMMS: Mapping[str, tuple[int, ...]] = {
    "bfloat16": (4096, 8192),
    "float16": (4096, 8192),
    "float32": (4096,),
    "tf32": (4096, 8192),
    "float8_e4m3fn": (4096, 8192),
    "int8": (4096, 8192),
}


class Measurer(Protocol):
    """A device that is measured.  Times are medians in microseconds; CannotMeasure for what it cannot do."""

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""

    def free_bytes(self) -> int:
        """Memory that can be taken now."""

    def copy_us(self, copy: Copy, nbytes: int) -> float:
        """A copy of nbytes/2 bytes, nbytes moved."""

    def gemm_us(self, dtype: str, edge: int) -> float:
        """A product of two square matrices of random numbers."""

    def floors(self) -> dict[str, float]:
        """Timing policy -> what an empty launch takes by it, microseconds."""


def sizes(largest: int) -> tuple[list[int], list[int]]:
    """(powers of two from SMALLEST to `largest`, sizes halfway between them) in bytes moved, whole pages each."""
    powers = [SMALLEST << i for i in range((largest // SMALLEST).bit_length())]
    between = [round(p * math.sqrt(2) / 4096) * 4096 for p in powers[:-1]]
    return powers, between


def fits(nbytes: int, free: int) -> bool:
    """Whether a copy that moves `nbytes` can be timed in `free` bytes: its source, two buffer sets, their outputs, and
    what the warm-up took."""
    return 4 * nbytes <= 0.9 * free


def survivors(found: Mapping[int, Mapping[str, float]], nbytes: int, copies: tuple[Copy, ...] = COPIES) -> list[Copy]:
    """The configurations worth measuring at `nbytes`: near the best at the anchor below or above it (bytes -> name ->
    microseconds).  All of them where no anchor was measured."""
    below, above = [a for a in found if a <= nbytes], [a for a in found if a >= nbytes]
    near = {*([max(below)] if below else []), *([min(above)] if above else [])}
    good = {name for a in near for name, us in found[a].items() if us <= MARGIN * min(found[a].values())}
    return [c for c in copies if c.name in good or not near]


@dataclass
class _Found:
    """What is known so far."""

    copies: dict[int, dict[str, float]] = field(default_factory=dict)  # bytes moved -> configuration -> microseconds
    skipped: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    drift: list[tuple[float, float]] = field(default_factory=list)  # seconds since the start, microseconds
    gemm: list[dict[str, Any]] = field(default_factory=list)


def calibrate(
    device: Measurer, seconds: float, say: Callable[[str], None] = lambda text: None, copies: tuple[Copy, ...] = COPIES
) -> dict[str, Any]:
    """Measure within about `seconds`: {"curve", "skipped", "floors", "gemm", "drift", "notes", "seconds"}, as the file
    of a calibration has them; `copies`: two configurations at least.  CannotMeasure where not one copy could be timed.
    """
    begun, found = device.now(), _Found()
    spent = lambda: device.now() - begun  # noqa: E731 - a name for a clock

    def over(limit: float) -> bool:
        return spent() > limit

    def copy(nbytes: int, candidates: list[Copy]) -> None:
        if not fits(nbytes, device.free_bytes()):
            found.skipped[nbytes] = "does not fit in the device's memory"
            return
        for config in candidates:
            try:
                us = device.copy_us(config, nbytes)
            except CannotMeasure as reason:
                _note(found, f"copy {config.name}: {reason}")
                continue
            if us > 0:
                found.copies.setdefault(nbytes, {})[config.name] = us
        if nbytes not in found.copies:
            found.skipped[nbytes] = "no copy could be timed"

    def drift() -> None:
        if fits(DRIFT_BYTES, device.free_bytes()):
            try:
                found.drift.append((round(spent(), 3), device.copy_us(copies[1], DRIFT_BYTES)))
            except CannotMeasure as reason:
                _note(found, f"drift: {reason}")

    say("launch floors")
    floors = device.floors()
    drift()
    powers, between = sizes(LARGEST)
    say(f"{len(copies)} copy kernels at {len(ANCHORS)} sizes")
    for nbytes in ANCHORS:
        copy(nbytes, list(copies))
    anchors = {a: found.copies[a] for a in ANCHORS if a in found.copies}
    if not anchors:
        raise CannotMeasure("; ".join(found.notes or found.skipped.values()) or "no copy could be timed")
    say("the best copy kernels at every power of two")
    for nbytes in sorted(set(powers) - set(ANCHORS), key=lambda n: (n != LARGEST, n)):  # the end of the range first
        if over(2 * seconds):
            found.skipped[nbytes] = f"no time left of the {seconds:g} s"
        else:
            copy(nbytes, survivors(anchors, nbytes, copies))
    drift()
    say("matrix products")
    for dtype, edges in GEMMS.items():
        for edge in edges:
            if over(2 * seconds):
                _note(found, f"GEMM {dtype}: no time left of the {seconds:g} s")
                break
            try:
                us = device.gemm_us(dtype, edge)
            except CannotMeasure as reason:
                _note(found, f"GEMM {dtype}: {reason}")
                break
            if us > 0:
                found.gemm.append({"dtype": dtype, "edge": edge, "us": us, "tflops": 2 * edge**3 / us / 1e6})
    say("intermediate sizes")
    for nbytes in between:
        if over(0.95 * seconds):
            break
        copy(nbytes, survivors(anchors, nbytes, copies))
    drift()
    return {
        "curve": [_point(nbytes, times) for nbytes, times in sorted(found.copies.items())],
        "skipped": [{"bytes": b, "why": why} for b, why in sorted(found.skipped.items())],
        "floors": floors,
        "gemm": found.gemm,
        "drift": _drift(found.drift, copies[1]),
        "notes": found.notes,
        "seconds": round(spent(), 2),
    }


def _note(found: _Found, text: str) -> None:
    if text not in found.notes:
        found.notes.append(text)


def _point(nbytes: int, times: Mapping[str, float]) -> dict[str, Any]:
    best = min(times, key=lambda name: times[name])
    us = times[best]
    return {"bytes": nbytes, "us": us, "gbps": nbytes / us / 1e3, "config": best, "all": dict(times)}


def _drift(found: list[tuple[float, float]], copy: Copy) -> dict[str, Any]:
    """The same copy over the whole time; `spread` is the widest difference over the smallest."""
    times = [us for _, us in found]
    spread = (max(times) - min(times)) / min(times) if times and min(times) > 0 else None
    at = [s for s, _ in found]
    return {"bytes": DRIFT_BYTES, "config": copy.name, "us": times, "at_s": at, "spread": spread}
