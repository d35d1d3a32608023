"""The roof of one number of bytes: what copy kernels reach at best over as many as a case moves, on this device, by the
same policy.  The kernels and their configurations are the farm's (`farm.calibration`).

It depends on the bytes alone, and is measured once per (rounded) number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farm.calibration.copies import COPIES, Copy

#: Leading bits of a byte count that are kept: roofs within 0.2 % of each other's bytes are one.
BITS = 9
#: A copy moves whole multiples of this: every load is 16 bytes wide, read and written alike.
GRAIN = 4096


@dataclass(frozen=True)
class Roof:
    """The envelope over `nbytes` (read and written together), in 1e9 B/s, and what each configuration reached."""

    nbytes: int
    gbps: float
    best: str
    us: float
    all_gbps: dict[str, float]


def bucket(nbytes: int) -> int:
    """The byte count whose roof stands for that of `nbytes`: its leading bits, in whole grains, at least one."""
    step = max(GRAIN, 1 << max(0, nbytes.bit_length() - BITS))
    return max(step, round(nbytes / step) * step)


def envelope(
    nbytes: int,
    measure: Callable[[Callable[[Any], Any], int, int], float],
    cores: int,
    copies: tuple[Copy, ...] = COPIES,
) -> Roof:
    """The roof of `bucket(nbytes)`.  `measure(function, size, nbytes)` gives the median microseconds of
    function(source) -> target for a source of `size` int32 elements.  ValueError for a time that is none."""
    moved = bucket(nbytes)
    size = moved // 8  # int32 elements, each read once and written once
    times = {}
    for config in copies:
        us = measure(copier(config, cores), size, moved)
        if not us > 0:
            raise ValueError(f"copy {config.name} of {moved} bytes took {us} us")
        times[config.name] = us
    best = min(times, key=lambda n: times[n])
    return Roof(moved, moved / times[best] / 1e3, best, times[best], {n: moved / t / 1e3 for n, t in times.items()})


def copier(config: Copy, cores: int) -> Callable[[Any], Any]:
    """source (int32, dense) -> a copy of it, by one kernel of this configuration, as this device can launch it."""
    from farm.child.calibration import device

    return device.copier(config, cores, _overlaps())


def _overlaps() -> bool:
    """Whether this device knows programmatic dependent launch: NVIDIA's, from sm_90 on."""
    from kernels.ops.rms_norm import dispatch

    backend, _, arch = dispatch.machine()[0].partition(":")
    return backend == "cuda" and int(arch) >= 90
