"""From the table of measured configurations to what a target can have of it.  Pure.

Each threshold says on which chip it was measured, or that it is reasoned.
"""

from __future__ import annotations

import math
from typing import Any

from kernels.ops.rms_norm.choice import divide_up
from kernels.ops.rms_norm.gpu import ring_plan, split_plan, tuned
from kernels.ops.rms_norm.gpu.options import (
    BYTES,
    DEFAULTS,
    MAX_BACKWARD_BLOCK,
    RINGS,
    SPLITS,
    UNALIGNED,
    VECTOR,
)

#: Before a kernel of split.py another has to clear its words, some 2 us.  Rows of up to so many bytes are worth that
#: only in matrices of so many (H200 2026-11: 1 % faster at 4096x16384 bfloat16, 2 to 10 % at 32,768 columns; reasoned
#: below).  Wider rows are: few of them leave most of the device without work, many are read twice.
SPLIT_ROW, SPLIT_MATRIX = 65536, 2**27
#: Backwards that read a row twice, or move what they sum.
READ_AGAIN = ("backward_twice", "backward_columns")
#: Targets that take what sm_90 was measured to be fastest with, but for what spills there.
BLACKWELL = ("cuda:100", "cuda:103")
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
    config = _nearest(target, op, operation, dtype, rows, hidden, unaligned, ring, split, cores)
    if config is None or target not in BLACKWELL:
        return config
    if config["kernel"] in SPLITS:
        return _roomier(config)
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
) -> dict[str, Any] | None:
    row = hidden * BYTES[dtype]
    split = split and (row > SPLIT_ROW or rows * row >= SPLIT_MATRIX)

    def found(rings: bool) -> dict[str, Any] | None:
        def serves(kernel: str) -> bool:
            return (
                (kernel in UNALIGNED) is unaligned
                and (rings or kernel not in RINGS)
                and (split or kernel not in SPLITS)
            )

        return tuned.find(target, op, operation, dtype, rows, hidden, serves)

    config = found(ring)
    if config is not None and config["kernel"] in RINGS:
        config = _ring(target, op, operation, config, hidden, dtype) or found(False)
    if operation == "backward" and split and row > SPLIT_ROW and (config is None or config["kernel"] in READ_AGAIN):
        config = _parted(target, op, dtype, hidden) or config
    if config is not None and config["kernel"] == "backward_split" and not _at_once(config, hidden, cores):
        return _nearest(target, op, operation, dtype, rows, hidden, unaligned, ring, False, cores)
    return config


def _at_once(config: dict[str, Any], hidden: int, cores: int) -> bool:
    """Whether the programs of a row of `backward_split` can run at once; else each would wait in vain."""
    parts = split_plan.plan(hidden, config["parts"]).parts
    return parts <= cores * (config.get("per_core", 0) or 1)


def _parted(target: str, op: str, dtype: str, hidden: int) -> dict[str, Any] | None:
    """`backward_split` for rows that were not searched with it, with parts as wide as at the nearest measured width.

    Reasoned: a program has the same work there, and only more of them meet.  What serves such rows else reads them
    twice: H200 2026-11, 4096x32768 float32 at 0.69 of the roof, where parts of 4,096 columns reach 0.96 at 16,384.
    """
    if target not in tuned.TARGETS or hidden * BYTES[dtype] % VECTOR:
        return None
    near = []
    for name in (dtype, "bfloat16") if dtype == "float16" else (dtype,):
        for place, (_, measured, config) in enumerate(tuned.TABLE.get((op, "backward", name), ())):
            if config["kernel"] == "backward_split":
                near.append((abs(math.log2(measured / hidden)), place, measured, config))
    if not near:
        return None
    _, _, measured, config = min(near, key=lambda n: n[:2])
    width = split_plan.plan(measured, config["parts"]).width
    return {**config, "parts": divide_up(hidden, width)}


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
    if target not in BLACKWELL or dw < MANY_SUMS:
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
        hidden, config["block"], streams * size, size if config["hold"] else 0, config.get("per_core", 1),
        config["regs"], config["spare"], config["slots"],
    )  # fmt: skip
