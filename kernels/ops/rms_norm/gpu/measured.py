"""From the tables of measured configurations to what a target can have of them.  Pure, but for the file of `carried`.

Each threshold says on which chip it was measured, or that it is reasoned.
"""

from __future__ import annotations

import math
from typing import Any

from ..choice import divide_up, next_power_of_2
from . import carried, ring_plan, split_plan, tuned
from .description import describe
from .options import BYTES, DEFAULTS, MAX_BACKWARD_BLOCK, RINGS, SPLITS, UNALIGNED, VECTOR

#: Before a kernel of split.py another has to clear its words, some 2 us (reasoned).  Rows of up to so many bytes are
#: worth that only in matrices of so many: H200 2026-11, the plain and the fused forward gain 0.5 and 1.7 % at 32,768
#: bfloat16 columns in 1 GiB, 0.3 and (float16) 2 % at 16,384 in 128 MiB.  Wider rows always: they are read twice else.
SPLIT_ROW, SPLIT_MATRIX = 65536, 2**27
#: An entry of split.py serves rows from so much of its measured width on (reasoned): narrower ones fit other kernels.
SPLIT_LEAST = 0.75
#: Backwards that read a row twice, or move what they sum.
READ_AGAIN = ("backward_twice", "backward_columns")
#: So many float32 of dw are half the registers of a multiprocessor.
MANY_SUMS = 32768


def find(
    target: str,
    op: str,
    operation: str,
    dtype: str,
    rows: int,
    hidden: int,
    *,
    unaligned: bool = False,
    ring: bool = False,
    split: bool = False,
    cores: int = 1,
) -> dict[str, Any] | None:
    """What tuned.py has for a shape among the kernels that can serve it, as `target` can have it: those of unaligned.py
    alone, or all others, but for those of ring.py and of split.py where these are false.  None where it has nothing
    near: then a rule decides."""
    own = carried.entries(target, cores)
    for measured_rows, measured_hidden, exact in own.get((op, operation, dtype), ()):
        if (measured_rows, measured_hidden) == (rows, hidden) and _can(exact["kernel"], unaligned, ring, split):
            return exact
    config = _nearest(target, op, operation, dtype, rows, hidden, unaligned, ring, split, cores, own)
    if config is None or not describe(target).blackwell:
        return config
    if dtype == "float32" and "hold" in DEFAULTS[config["kernel"]] and config["kernel"] not in RINGS:
        return {**config, "hold": False}  # held, 4096x4096 float32 spilled 4 bytes there (offline, triton 3.7.1)
    return config


def _nearest(
    target: str,
    op: str,
    operation: str,
    dtype: str,
    rows: int,
    hidden: int,
    unaligned: bool,
    ring: bool,
    split: bool,
    cores: int,
    own: carried.Table,
) -> dict[str, Any] | None:
    row = hidden * BYTES[dtype]
    split = split and (row > SPLIT_ROW or rows * row >= SPLIT_MATRIX)

    def found(rings: bool, splits: bool) -> dict[str, Any] | None:
        def serves(kernel: str, measured: int) -> bool:
            return (
                (kernel in UNALIGNED) is unaligned
                and (rings or kernel not in RINGS)
                and (kernel not in SPLITS or (splits and hidden >= SPLIT_LEAST * measured))
            )

        nearest = tuned.find(target, op, operation, dtype, rows, hidden, serves, own)
        if nearest is None:
            return None
        measured, config = nearest
        if config["kernel"] in SPLITS:
            return _divided(target, measured, hidden, config)
        if config["kernel"] in RINGS:
            return _ring(target, op, operation, config, hidden, dtype) or found(False, splits)
        return config

    config = found(ring, split)
    if operation == "backward" and split and row > SPLIT_ROW and (config is None or config["kernel"] in READ_AGAIN):
        config = _parted(target, op, dtype, hidden) or config
    if config is not None and config["kernel"] in SPLITS and not at_once(config, cores):
        return found(ring, False)
    return config


def _can(kernel: str, unaligned: bool, ring: bool, split: bool) -> bool:
    """Whether tensors that these words describe can have a kernel."""
    return (kernel in UNALIGNED) is unaligned and (ring or kernel not in RINGS) and (split or kernel not in SPLITS)


def _divided(target: str, measured: int, hidden: int, config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of split.py for `hidden` columns, with parts as wide as at `measured` columns.

    Where parts do not fill their tile, masks take registers: three programs a multiprocessor spilled 8 to 16 bytes then
    (sm_90, fused backward, 20,000 to 50,000 bfloat16 columns, offline, triton 3.7.1)."""
    config = {**DEFAULTS[config["kernel"]], **config}
    width = split_plan.plan(measured, config["parts"]).width
    config["parts"], width, block = split_plan.plan(hidden, divide_up(hidden, width))
    if describe(target).blackwell:
        config = _roomier(config)
    if config["kernel"] == "backward_split" and (width < block or hidden % width):
        config["per_core"] = min(config.get("per_core", 1), 2)
    return config


def at_once(config: dict[str, Any], cores: int) -> bool:
    """Whether the programs of a row can run at once; else each would wait in vain.  Backward two rows', or much of the
    device might have no work.  A thread asks for one word."""
    parts = config["parts"]
    if config["kernel"] == "forward_split":
        return parts <= cores
    return 2 * parts <= cores * (config.get("per_core", 0) or 1) and parts <= 32 * config["num_warps"]


def _parted(target: str, op: str, dtype: str, hidden: int) -> dict[str, Any] | None:
    """`backward_split` for rows that were not searched with it, with parts as wide as at the nearest measured width.
    None where there is no such width, or where the table's own serves here.  A search that finds another kernel
    faster there has to be told here.

    Reasoned: a program has the same work there, and only more of them meet.  What serves such rows else reads them
    twice: H200 2026-11, 4096x32768 float32 at 0.69 of the roof, where parts of 4,096 columns reach 0.96 at 16,384.
    """
    if target not in tuned.TARGETS or hidden * BYTES[dtype] % VECTOR:
        return None
    entries = tuned.TABLE.get((op, "backward", dtype), ())
    if dtype == "float16":
        entries += tuned.TABLE.get((op, "backward", "bfloat16"), ())
    near = [
        (abs(math.log2(measured / hidden)), place, measured, config)
        for place, (_, measured, config) in enumerate(entries)
        if config["kernel"] == "backward_split"
    ]
    own = [n for n in near if next_power_of_2(n[2]) == next_power_of_2(hidden) and hidden >= SPLIT_LEAST * n[2]]
    if not near or own:
        return None
    _, _, measured, config = min(near, key=lambda n: n[:2])
    return _divided(target, measured, hidden, config)


def _roomier(config: dict[str, Any]) -> dict[str, Any]:
    """Registers for the code of sm_100 and sm_103, which spilled 8 bytes forward and 24 in a fused backward where sm_90
    did not (32,768 bfloat16 columns, offline, triton 3.7.1)."""
    if config["kernel"] == "backward_split":
        return {**config, "per_core": min(config.get("per_core", 1), 2)}
    return {**config, "registers": config.get("registers", 0) and max(config["registers"], 48)}


def _ring(
    target: str, op: str, operation: str, config: dict[str, Any], hidden: int, dtype: str
) -> dict[str, Any] | None:
    """The configuration of a ring kernel as `target` can have it; None where another kernel has to stand in.

    sm_100 and sm_103, offline with triton 3.7.1: a backward of 32,768 bfloat16 columns spills 12 to 116 bytes, but
    nothing in the chunks below (29,000 columns: 300, and `backward_twice` 732 at 32,768); where it is fused or
    float32, every configuration that was compiled spills 44 bytes and more.
    """
    fitted = ring_of(op, operation, config, hidden, dtype)
    if fitted is None:
        return None
    dw = fitted.chunks * config["block"] * config.get("per_core", 1) if operation == "backward" else 0
    if not describe(target).blackwell or dw < MANY_SUMS:
        return config
    if hidden > MAX_BACKWARD_BLOCK or BYTES[dtype] > 2 or op.startswith("fused"):
        return None
    return {**config, "block": 4096, "num_warps": 8, "per_core": 1, "regs": 1, "slots": 0}


def ring_of(op: str, operation: str, config: dict[str, Any], hidden: int, dtype: str) -> ring_plan.Plan | None:
    """How rows pass through the ring of `config`, with a weight of x's dtype; None where they are no multiple of 16
    bytes, or too wide."""
    config, size = {**DEFAULTS[config["kernel"]], **config}, BYTES[dtype]
    streams = 2 if operation == "backward" or op.startswith("fused") else 1
    if hidden * size % VECTOR:
        return None
    return ring_plan.plan(
        hidden,
        config["block"],
        streams * size,
        size if config["hold"] else 0,
        config.get("per_core", 1),
        config["regs"],
        config["spare"],
        config["slots"],
    )
