"""What `benchmarks.tune` searches: the tasks; where it starts and where it goes is the kernels' own `gpu/space.py`.
Pure."""

from __future__ import annotations

import re

from kernels.ops.rms_norm.gpu.forced import mode_of
from kernels.ops.rms_norm.gpu.space import (
    DOMAIN,
    OPS,
    SIZE,
    Config,
    Task,
    held,
    key_of,
    neighbours,
    options,
    seeds,
    sensible,
)

__all__ = [
    "DOMAIN",
    "OPS",
    "SHAPES",
    "SIZE",
    "Config",
    "Task",
    "held",
    "key_of",
    "mode_of",
    "neighbours",
    "options",
    "seeds",
    "sensible",
    "task_of",
]

#: rows x hidden, which operations: those of the published tables, and what lies between them.
SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "forward": (
        (32768, 128),
        (32768, 256),
        (32768, 512),
        (4096, 1024),
        (32768, 1024),
        (2048, 2048),
        (4096, 4096),
        (8192, 4096),
        (32768, 4096),
        (8192, 8192),
        (32768, 8192),
        (4096, 16384),
        (16384, 32768),
        (8192, 65536),
        (8192, 131072),
        (32768, 1000),
        (16384, 3584),
        (8192, 5120),
        (8192, 7168),
        (32768, 127),
        (32768, 129),
        (8192, 1001),
        (6144, 4095),
        (6144, 4097),
        (4096, 16383),
    ),
    "backward": (
        (32768, 128),
        (32768, 256),
        (2048, 1024),
        (32768, 1024),
        (2048, 2048),
        (4096, 4096),
        (8192, 4096),
        (8192, 8192),
        (4096, 16384),
        (8192, 32768),
        (4096, 65536),
        (16384, 1000),
        (8192, 3584),
        (8192, 5120),
        (32768, 127),
        (32768, 129),
        (8192, 1001),
        (6144, 4095),
        (6144, 4097),
        (4096, 8191),
    ),
}


def task_of(name: str) -> Task:
    """The task of a name such as `rms_norm/forward/bfloat16/8192x131072`; ValueError in one sentence for another."""
    found = re.fullmatch(r"([a-z_]+)/([a-z]+)/([a-z0-9]+)/([1-9]\d*)x([1-9]\d*)", name)
    if not found or found[1] not in OPS or found[2] not in SHAPES or found[3] not in SIZE:
        raise ValueError(f"{name!r} is not like rms_norm/forward/bfloat16/8192x4096")
    return Task(found[1], found[2], found[3], int(found[4]), int(found[5]))
