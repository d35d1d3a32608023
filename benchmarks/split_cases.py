"""The cases of `benchmarks.split_check`.  No device is needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from benchmarks.ring_cases import FEWEST, Case
from benchmarks.tune_space import SIZE, Config
from kernels.ops.rms_norm.choice import divide_up

#: Columns of rows; 50,001 of no dtype are a multiple of 16 bytes.
WIDTHS = {2: (32768, 65536, 131072, 100008, 50001), 4: (16384, 65536, 50001)}
#: Elements past the 2^31st, in a child of their own.
FAR = (
    Case("forward", False, "bfloat16", 16400, 131072, {"parts": 8, "num_warps": 16}),
    Case("backward", False, "bfloat16", 16400, 131072, {"parts": 16, "num_warps": 16, "num_stages": 3}),
)
#: Bytes of x in a part.
PART_BYTES = {"forward": 32768, "backward": 16384}


def configs(operation: str, hidden: int, size: int) -> list[Config]:
    """Parts of half the size and twice as wide, an odd number of them; and one in which nearly every program gives up
    on the others."""
    parts = max(2, divide_up(hidden * size, PART_BYTES[operation]))
    if operation == "forward":
        return [
            {"parts": parts, "num_warps": 16},
            {"parts": 2 * parts, "num_warps": 8, "weight": "first", "load": "evict_first"},
            {"parts": parts + 1, "num_warps": 16, "weight": "first", "store": "evict_first", "registers": 48},
            {"parts": parts, "num_warps": 16, "polls": 1},
        ]
    return [
        {"parts": parts, "num_warps": 16, "num_stages": 3},
        {"parts": parts, "num_warps": 8, "num_stages": 2, "per_core": 2, "later": False, "load": "evict_first"},
        {"parts": parts + 1, "num_warps": 16, "num_stages": 2, "store": "evict_first"},
        {"parts": parts, "num_warps": 16, "num_stages": 3, "later": False, "polls": 1},
    ]


def gives_up(case: Case) -> bool:
    """Whether programs of this case give up on others without need."""
    return bool(case.config.get("polls", 0))


def groups(sample: int = 1) -> list[list[Case]]:
    """Cases by child: every `sample`-th one, each kind of kernel and dtype before any comes again."""
    kinds: list[list[list[Case]]] = []
    for operation in ("forward", "backward"):
        for dtype in ("bfloat16", "float32", "float16"):
            for fused in (False, True):
                widths = WIDTHS[SIZE[dtype]] if dtype != "float16" else (32768,)
                kinds.append([list(_cases(operation, fused, dtype, hidden)) for hidden in widths])
    found: list[list[Case]] = []
    for number, together in enumerate(zip_longest(*kinds, fillvalue=[])):
        for place, cases in enumerate(together):  # not the same places of each kind, nor of each width
            kept = [case for at, case in enumerate(cases) if (at + number + place) % sample == 0]
            if sample > 1 and found and len(found[-1]) < FEWEST:
                found[-1].extend(kept)
            elif kept:
                found.append(kept)
    return [*found, list(FAR)]


def _cases(operation: str, fused: bool, dtype: str, hidden: int) -> Iterator[Case]:
    """Few rows with every configuration, the number of rows and what is given alternating, then many rows."""
    rows = (1, 3, 131, 132, 133, 500, 700)
    other = "bfloat16" if dtype == "float32" else "float32"
    given: tuple[dict[str, Any], ...] = (
        {},
        {"rounds": False, "offset": 1.0},
        {"weight": "none"},
        {"weight": other, "gap": 64},
        {"weight": "shifted", "gap": 3},
        {"rounds": False},
        {"offset": 0.5},
    )
    tried = configs(operation, hidden, SIZE[dtype])
    at = hidden // 8 + 3 * fused
    for config in tried:
        for _ in range(2):
            yield Case(operation, fused, dtype, rows[at % 7], hidden, config, **given[(at // 2) % 7])
            at += 1
    yield Case(operation, fused, dtype, 8192 if hidden <= 65536 else 2048, hidden, tried[0])
    yield Case(operation, fused, dtype, 2000, hidden, tried[1], rounds=False)
