"""From a shape to a choice on NVIDIA and AMD GPUs.  Pure.

`auto` first asks `measured.py` what it has of `tuned.py`, the outcome of `benchmarks/tune.py` on the chips that were
measured; where that has nothing near, and for every other mode, the rules below decide.  Each threshold says on which
chip it was measured, or that it is reasoned.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..choice import Choice, divide_up, is_launch, next_power_of_2
from . import carried, fit, forced, measured, split_plan, tuned
from .description import MAX_PROGRAMS, describe
from .options import BYTES, DEFAULTS, FEW, MAX_BACKWARD_BLOCK, RINGS, SPLITS, UNALIGNED, VECTOR
from .rules import BACKWARD, FORWARD, MAX_BACKWARD_BYTES, clamp

#: The widest row that one tile may hold forward.  Reasoned: 65,536 float32 over the 1,024 threads of a block fill the
#: 64 registers that each may have; beyond, every kernel spills.
MAX_BLOCK = 65536
#: Rows this wide still leave room for a second one in the tile.
MAX_PACKED = 8192
#: More chunks than this are not unrolled (reasoned).
MAX_TRIPS = 16
#: A grid's second dimension ends here on CUDA and HIP.
MAX_SPLITS = 65535
#: 32-bit registers of a multiprocessor, and the most of a thread, on every NVIDIA GPU from sm_70 on.
REGISTERS, MAX_REGISTERS = 65536, 255
#: Offsets inside a tile are int32: fewer rows where these are so wide.
MAX_OFFSET = 2**31
#: Rows of so many bytes are fetched ahead where no table says how.
MAX_AHEAD_BYTES = 16384
#: The kernels of unaligned.py serve rows from so many vectors on: the edges are a quarter of narrower rows (reasoned).
MIN_VECTORS = 8


def refusal(target: str, mode: str, rows: int, hidden: int, dtype: str, operation: str, op: str) -> str | None:
    """Why `mode` cannot serve [rows, hidden], or None."""
    if is_launch(mode):
        if op not in forced.OPS:
            raise ValueError(f"{op} takes no launch that is stated in full; {' and '.join(forced.OPS)} do")
        config = forced.parse(mode)
        if forced.operation_of(config) != operation:
            return None  # `auto` serves the other direction
        reason = forced.refusal(config, rows, hidden, dtype, op)
        return reason and f"launch {mode} of {op}: {reason}"
    if mode in ("multi_wave_cached", "static_persistent"):
        widest = MAX_BLOCK if operation == "forward" else MAX_BACKWARD_BLOCK
        if hidden > widest:
            return f"mode {mode} of {op} keeps a row in one tile, {operation} at most {widest}; hidden is {hidden}"
    if mode == "row_packed" and hidden > MAX_PACKED:
        return f"mode {mode} of {op} packs several rows in one tile, at most {MAX_PACKED} wide; hidden is {hidden}"
    if operation == "forward" and mode in ("multi_wave_cached", "row_packed"):
        most = _most_rows(target, mode, hidden, BYTES[dtype])
        if rows > most:
            return f"mode {mode} of {op} takes a program a tile, at most {most}; rows is {rows}"
    return None


def _most_rows(target: str, mode: str, hidden: int, size: int) -> int:
    """The most rows that a forward with a program a tile can have."""
    config = FORWARD[mode](MAX_PROGRAMS, hidden, size, 1)
    return min(MAX_PROGRAMS, config.get("rows", 1) * describe(target).programs(config["num_warps"]))


def choose(
    target: str,
    rows: int,
    hidden: int,
    dtype: str,
    operation: str,
    *,
    cores: int,
    op: str,
    mode: str,
    dense: bool = True,
    ring: bool = False,
    split: bool = False,
) -> Choice:
    """See kernels.ops.rms_norm.dispatch.choose; `mode` is one that serves.

    `auto` takes rows that are not 16-byte aligned to the kernels of unaligned.py, where they are `dense` and such a
    kernel has a tile for them: of tuned.py then their entries alone are asked, and else all others, but for those of
    the kernels of ring.py where `ring` is false, and of split.py where `split` is.
    """
    config = configuration(
        target, rows, hidden, dtype, operation, cores=cores, op=op, mode=mode, dense=dense, ring=ring, split=split
    )
    return _bound(build(operation, config, rows, hidden, BYTES[dtype], cores, target), target)


def configuration(
    target: str,
    rows: int,
    hidden: int,
    dtype: str,
    operation: str,
    *,
    cores: int,
    op: str,
    mode: str = "auto",
    dense: bool = True,
    ring: bool = False,
    split: bool = False,
    fitted: bool = True,
) -> dict[str, Any]:
    """What `build` makes the choice of.  Without `fitted`, `auto` asks the measured table and the modes' rules alone,
    not fit.py."""
    if is_launch(mode):
        config = forced.parse(mode)
        if forced.operation_of(config) == operation:
            return _forced(target, mode, config, rows, hidden, dtype, op, cores, dense, ring, split)
        mode = "auto"
    if mode == "auto" and fitted:
        better = _fitted(target, rows, hidden, dtype, operation, cores, op)
        if better is not None:
            return better
    unaligned = dense and unaligned_serves(operation, hidden, BYTES[dtype])
    found = None
    if mode == "auto":
        found = measured.find(
            target, op, operation, dtype, rows, hidden, unaligned=unaligned, ring=ring, split=split, cores=cores
        )
    if found is not None:
        return found
    if mode == "auto" and unaligned:
        return _unaligned(target, rows, hidden, BYTES[dtype], operation, cores, op)
    asked = mode
    if mode == "auto":
        mode = _auto(target, rows, hidden, dtype, operation, cores)
    rule = FORWARD[mode] if operation == "forward" else BACKWARD[mode]
    config = rule(rows, hidden, BYTES[dtype], cores)
    if asked == "auto" and operation == "backward" and target not in tuned.TARGETS:
        return _ahead(target, config, hidden, BYTES[dtype], op)
    return config


def _forced(
    target: str,
    mode: str,
    config: dict[str, Any],
    rows: int,
    hidden: int,
    dtype: str,
    op: str,
    cores: int,
    dense: bool,
    ring: bool,
    split: bool,
) -> dict[str, Any]:
    """The configuration of a launch that is stated in full; NotImplementedError with the reason where these tensors or
    this device cannot have it: nothing else is put in its place."""
    operation, kernel = forced.operation_of(config), config["kernel"]
    config = {"mode": forced.mode_of(config, hidden), **config}
    reason = forced.refusal(config, rows, hidden, dtype, op, cores)
    if kernel in UNALIGNED and not dense:
        reason = f"{kernel} needs tensors that are contiguous and begin at a multiple of {VECTOR} bytes"
    elif (kernel in RINGS and not ring) or (kernel in SPLITS and not split):
        reason = f"{kernel} is not to be had on {target}, with this Triton, or for these tensors"
    elif reason is None:
        choice = _bound(build(operation, config, rows, hidden, BYTES[dtype], cores, target), target)
        if choice.num_warps != config["num_warps"]:
            reason = f"{target} has no block of {config['num_warps']} warps"
        elif not forced.covers(config, choice, rows):
            reason = f"the grid of {choice.programs} programs does not reach all of {rows} rows"
    if reason:
        raise NotImplementedError(f"launch {mode} of {op}: {reason}")
    return config


def _fitted(
    target: str, rows: int, hidden: int, dtype: str, operation: str, cores: int, op: str
) -> dict[str, Any] | None:
    """What fit.py has for a shape that no table of the caller's own has."""
    size = BYTES[dtype]
    own = carried.entries(target, cores).get((op, operation, dtype), ())
    if any((measured_rows, width) == (rows, hidden) for measured_rows, width, _ in own):
        return None
    found = fit.few_rows(operation, rows, hidden, size, cores)
    if found or operation == "backward" or not describe(target).ptx or hidden * size % VECTOR:
        return found
    known = tuned.TABLE.get((op, operation, "float32" if size == 4 else "bfloat16"), ())
    widths = {width for _, width, _ in (*known, *own)}
    return fit.narrow_rows(rows, hidden, size, cores) or fit.two_tiles(
        rows, hidden, size, cores, op.startswith("fused"), widths, target in tuned.TARGETS
    )


def _ahead(target: str, config: dict[str, Any], hidden: int, size: int, op: str) -> dict[str, Any]:
    """What the table of sm_90 taught, for a device that no table knows: a persistent backward fetches rows ahead, in
    three stages of rows of up to 16 KiB, as far as shared memory holds them.  H200: 4096x4096 68.7 us without, 54.1
    with.  Elsewhere reasoned; compiled for sm_80, 86, 89 and 120 without spills (triton 3.7.1)."""
    row = next_power_of_2(hidden) * size
    if config["kernel"] != "backward_rows" or config["mode"] != "static_persistent" or row > MAX_AHEAD_BYTES:
        return config
    inputs = 3 if op.startswith("fused") else 2
    return {**config, "num_stages": describe(target).stages(3, inputs * row, config["per_core"])}


def build(operation: str, config: dict[str, Any], rows: int, hidden: int, size: int, cores: int, target: str) -> Choice:
    """The choice that `config` (of tuned.py, or of a rule) means for a shape of elements of `size` bytes.

    Its keys: mode, kernel, rows and block of the tile, num_warps, num_stages; `per_core` programs a core where the grid
    does not follow from the shape; and the kernel's own options, those of DEFAULTS where they are left out.  `span` is
    "row" (a row over all warps) or "warp" (each warp rows of its own); `tail` says whether columns beyond a power of
    two are a second, smaller tile.
    """
    config = {**DEFAULTS[config["kernel"]], **config}
    kernel = config["kernel"]
    block = min(config.pop("block", next_power_of_2(hidden)), next_power_of_2(hidden))
    tile = min(config.pop("rows", 1), next_power_of_2(rows), max(1, MAX_OFFSET // next_power_of_2(hidden)))
    groups, whole = divide_up(rows, tile), 1
    if kernel in UNALIGNED:
        block, whole = unaligned_block(hidden, size), period(hidden, size)
        tile = min(tile, next_power_of_2(divide_up(rows, whole)))
        groups = rows if tile == 1 else whole * divide_up(rows, whole * tile)
    if kernel in SPLITS or kernel == "forward_parts":
        config["parts"], config["width"], block = split_plan.plan(hidden, config["parts"])
    per_core = config.pop("per_core", 0)
    mode, warps, stages = config.pop("mode"), config.pop("num_warps"), config.pop("num_stages", 1)
    config["pdl"] = bool(config["pdl"]) and describe(target).dependent
    if kernel == "forward_rows":
        rest = hidden - block // 2 if block > hidden else 0
        if config["tail"] and 0 < rest <= block // 4:
            block //= 2
            config["tail"] = next_power_of_2(rest)
        else:
            config["tail"] = 0
    vectors = warps * 512 // size  # columns that all warps load at once, 16 bytes a lane
    if kernel == "forward_chunks":
        config["keep"] = config["keep"] if config["keep"] <= hidden else 0
        config["span"] = min(block, vectors, config["keep"] or block)
        config["trips"] = _trips(config.pop("unroll"), hidden - config["keep"], block)
    elif kernel == "backward_twice":
        block = next_power_of_2(hidden)
        config["chunk"] = min(config["chunk"], block)
        config["span"] = max(1, min(block // 4, config["chunk"], vectors))
        config["trips"] = _trips(config.pop("unroll"), hidden, config["chunk"])
    elif "span" in config:
        config["span"] = min(block, 512 // size) if config["span"] == "warp" else block
    if not describe(target).ptx and "ahead" in config:
        config["ahead"] = 0  # the prefetch is PTX
    if kernel == "backward_columns":
        blocks = divide_up(hidden, block)
        programs = blocks * max(1, min(groups, MAX_SPLITS, cores * per_core // blocks))
        config["target"] = target
    elif kernel in FEW:
        config["parts"] = config.get("parts", divide_up(hidden, block))
        config["lanes"] = next_power_of_2(config["parts"])
        programs = config["parts"] * (rows if kernel == "forward_parts" else 1)
    elif kernel in SPLITS:
        config |= _shared(config, warps, per_core or 1, target)
        programs = config["parts"] * (
            rows if kernel == "forward_split" else split_plan.groups(rows, config["parts"], cores * (per_core or 1))
        )
    else:
        if kernel in RINGS:
            block, per_core = max(block, vectors), per_core or 1
            config["per_core"] = per_core
        most = cores * per_core if per_core else describe(target).programs(warps)
        programs = groups if groups <= most else max(whole, most // whole * whole)
    return Choice(mode, tile, block, warps, stages, programs, tuple(sorted(config.items())))


def _shared(config: dict[str, Any], warps: int, per_core: int, target: str) -> dict[str, Any]:
    """What the kernels of split.py need to know of a target.  `registers`: the most of a thread on NVIDIA, 0 for as
    many as the compiler wants; of a backward so that `per_core` programs run at once."""
    known = describe(target)
    polls = config["polls"] or (split_plan.POLLS if known.lanes else split_plan.INTERPRETED_POLLS)
    lanes = max(warps * known.lanes, next_power_of_2(config["parts"]))
    found = {"polls": polls, "spin": known.ptx, "lanes": lanes}
    most = min(MAX_REGISTERS, REGISTERS // (32 * warps * per_core) // 8 * 8)
    found["registers"] = (most if config["kernel"] == "backward_split" else config["registers"]) if known.ptx else 0
    return found


def period(hidden: int, size: int) -> int:
    """After how many dense rows of elements of `size` bytes a row is 16-byte aligned again."""
    vector = VECTOR // size
    return vector // math.gcd(hidden, vector)


def unaligned_block(hidden: int, size: int) -> int:
    """The tile that holds all whole vectors of a row, wherever it begins: it has at most hidden // V of them."""
    vector = VECTOR // size
    return next_power_of_2(max(hidden // vector, 1)) * vector


def unaligned_serves(operation: str, hidden: int, size: int) -> bool:
    """Whether `auto` takes dense rows to unaligned.py: not 16-byte aligned, wide enough, and held by a tile of whole
    rows (backward as wide as one that `backward_rows` holds)."""
    if hidden * size % VECTOR == 0 or hidden * size < MIN_VECTORS * VECTOR:
        return False
    block = unaligned_block(hidden, size)
    return block <= MAX_BLOCK // 2 if operation == "forward" else block * size <= MAX_BACKWARD_BYTES


def _trips(unroll: bool, columns: int, chunk: int) -> int:
    """How many chunks to unroll: none where they are many, for the kernel would grow with them."""
    count = divide_up(columns, chunk)
    return count if unroll and count <= MAX_TRIPS else 0


def sweep(rows: int, hidden: int, size: int, target: str) -> Choice:
    """The launch of `row_means`.  H200: chunks of 8192 with 16 warps were the best or within 1 % of it from 16384 to
    131072 wide (measured on the two-sweep kernel before it)."""
    block = min(next_power_of_2(hidden), 8192)
    warps = clamp(block // 512, 1, 16)
    span = (("span", min(block, warps * 512 // size)),)
    programs = min(rows, describe(target).programs(warps))
    return _bound(Choice("multi_wave_reload", 1, block, warps, 1, programs, span), target)


def reduction(count: int, hidden: int) -> Choice:
    """The launch of `sum_partials`: narrow column blocks, so that many programs share a small matrix (reasoned)."""
    block = 16 if hidden <= 4096 else 32
    rows = min(next_power_of_2(count), 256 if block == 16 else 128)
    return Choice("static_persistent", rows, block, 4, 1, divide_up(hidden, block))


def _bound(choice: Choice, target: str) -> Choice:
    return replace(choice, num_warps=min(choice.num_warps, describe(target).warps))


def _auto(target: str, rows: int, hidden: int, dtype: str, operation: str, cores: int) -> str:
    """Measured on H200 with triton 3.6 (2026-11), mostly in bf16; elsewhere these stand in, unmeasured."""
    if operation == "backward":
        if hidden > MAX_BACKWARD_BLOCK:
            return "column_tiled"
        return "row_packed" if hidden <= 1024 else "static_persistent"
    if hidden > 32768:
        return "multi_wave_reload"  # 2048x65536 cached 2256 GB/s, reload 2663; 2048x32768 fp32 cached 3920, reload 2713
    mode = "row_packed" if hidden <= 1024 and rows > 4 * cores else "multi_wave_cached"
    return mode if rows <= _most_rows(target, mode, hidden, BYTES[dtype]) else "static_persistent"


def _unaligned(target: str, rows: int, hidden: int, size: int, operation: str, cores: int, op: str) -> dict[str, Any]:
    """Tiles and warps near those of aligned rows, so that programs of 16 warps fit a core: 128 registers a thread, as
    both Tritons compile them for sm_90.  Reasoned; on H200 the table is asked first.

    Offline, triton 3.7.1: fused tiles of 16 elements a thread spilled 4 bytes (sm_80, 86, 89; 513 bfloat16 columns),
    and the weight asked for last 20 to 28 (sm_120; 16,383 float32 columns, without a residual)."""
    fused = op.startswith("fused")
    block = unaligned_block(hidden, size)
    packed = hidden <= 1024 and (operation == "backward" or rows > 4 * cores)
    tile = max(2, min(16, 2048 // block)) if packed else 1
    if operation == "forward":
        warps = clamp(tile * block // 512, 1, 8) if block <= 8192 else clamp(block * size // 2048, 16, 32)
        mode = "row_packed" if packed else "multi_wave_cached"
        tile = max(2, tile // 2) if packed and fused else tile
        config = {"kernel": "forward_unaligned", "rows": tile, "num_warps": warps}
        if rows > _most_rows(target, mode, hidden, size):
            return {**config, "mode": "static_persistent", "rows": 1, "per_core": max(1, 32 // warps)}
        first = block <= (16384 if size == 4 and not fused else 8192)
        return {**config, "mode": mode, "weight": "first" if first else "last"}
    warps = clamp(tile * block // 256, 1, 8) if packed else clamp(block * size // 1024, 1, 16)
    per_core = 16 // warps
    return {
        "mode": "row_packed" if packed else "static_persistent",
        "kernel": "backward_unaligned",
        "rows": tile,
        "num_warps": warps,
        "per_core": per_core,
        "hold": packed or (block * size < MAX_BACKWARD_BYTES and (per_core == 1 or not fused)),
        "fold": not packed,
        "num_stages": describe(target).unaligned_stages if block * size <= MAX_BACKWARD_BYTES // 2 else 1,
    }
