"""From a shape to a choice on NVIDIA and AMD GPUs.  Pure.

`auto` first looks into `tuned.py`, the outcome of `benchmarks/tune.py` on the chips that were measured; where that has
nothing near, and for every other mode, the rules below decide.  Each threshold says on which chip it was measured, or
that it is reasoned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernels.ops.rms_norm.choice import Choice, divide_up, next_power_of_2
from kernels.ops.rms_norm.gpu import tuned

#: The widest row that one tile may hold forward.  Reasoned: 65,536 float32 over the 1,024 threads of a block fill the
#: 64 registers that each may have; beyond, every kernel spills.
MAX_BLOCK = 65536
#: Backward keeps a float32 share of dw beside the row.
MAX_BACKWARD_BLOCK = 32768
#: Rows this wide still leave room for a second one in the tile.
MAX_PACKED = 8192
#: More chunks than this are not unrolled (reasoned).
MAX_TRIPS = 16
#: A grid's first dimension ends here on CUDA and HIP; its second at 65,535.
MAX_PROGRAMS = 2**31 - 1
MAX_SPLITS = 65535
#: HIP launches fewer threads than this in a dimension of the grid, 64 a wave (HIP's kernel language, grid limits).
MAX_HIP_THREADS = 2**32
MAX_HIP_WAVES = 16
#: Offsets inside a tile are int32: fewer rows where these are so wide.
MAX_OFFSET = 2**31

#: The options of each kernel, as they are where a configuration says nothing.  PDL (programmatic dependent launch, from
#: sm_90 on) saves 0.3 us a launch, H200 2026-11.
DEFAULTS: dict[str, dict[str, Any]] = {
    "forward_rows": {
        "span": "row", "spread": False, "weight": "first", "load": "", "store": "", "tail": True, "pdl": True,
    },
    "forward_persistent": {"span": "row", "spread": False, "load": "", "store": "", "pdl": True},
    "forward_chunks": {"keep": 0, "unroll": False, "load": "evict_last", "store": "evict_first", "pdl": True},
    "backward_rows": {
        "span": "row", "spread": False, "hold": True, "fold": True, "ahead": 0, "load": "", "store": "", "pdl": True,
    },
    "backward_twice": {"chunk": 4096, "unroll": False, "ahead": 0, "store": "", "pdl": True},
    "backward_columns": {"store": "", "pdl": True},
}  # fmt: skip

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def refusal(target: str, mode: str, rows: int, hidden: int, dtype: str, operation: str, op: str) -> str | None:
    """Why `mode` cannot serve [rows, hidden], or None."""
    if mode in ("multi_wave_cached", "static_persistent"):
        widest = MAX_BLOCK if operation == "forward" else MAX_BACKWARD_BLOCK
        if hidden > widest:
            return f"mode {mode} of {op} keeps a row in one tile, {operation} at most {widest}; hidden is {hidden}"
    if mode == "row_packed" and hidden > MAX_PACKED:
        return f"mode {mode} of {op} packs several rows in one tile, at most {MAX_PACKED} wide; hidden is {hidden}"
    if operation == "forward" and mode in ("multi_wave_cached", "row_packed"):
        most = _most_rows(target, mode, hidden, _BYTES[dtype])
        if rows > most:
            return f"mode {mode} of {op} takes a program a tile, at most {most}; rows is {rows}"
    return None


def _most_rows(target: str, mode: str, hidden: int, size: int) -> int:
    """The most rows that a forward with a program a tile can have."""
    config = _FORWARD[mode](MAX_PROGRAMS, hidden, size, 1)
    return min(MAX_PROGRAMS, config.get("rows", 1) * _most_programs(target, config["num_warps"]))


def _most_programs(target: str, warps: int) -> int:
    """The largest grid of programs of so many warps, in its first dimension."""
    if target.startswith("hip"):
        return min(MAX_PROGRAMS, (MAX_HIP_THREADS - 1) // (64 * min(warps, MAX_HIP_WAVES)))
    return MAX_PROGRAMS


def choose(
    target: str, rows: int, hidden: int, dtype: str, operation: str, *, cores: int, op: str, mode: str
) -> Choice:
    """See kernels.ops.rms_norm.dispatch.choose; `mode` is one that serves."""
    found = tuned.find(target, op, operation, dtype, rows, hidden) if mode == "auto" else None
    if found is not None:
        if target == "cuda:100" and dtype == "float32" and "hold" in DEFAULTS[found["kernel"]]:
            found = {**found, "hold": False}  # held, 4096x4096 float32 spilled 4 bytes there (offline, triton 3.7.1)
        return _bound(build(operation, found, rows, hidden, _BYTES[dtype], cores, target), target)
    if mode == "auto":
        mode = _auto(target, rows, hidden, dtype, operation, cores)
    rule = _FORWARD[mode] if operation == "forward" else _BACKWARD[mode]
    config = rule(rows, hidden, _BYTES[dtype], cores)
    return _bound(build(operation, config, rows, hidden, _BYTES[dtype], cores, target), target)


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
    groups = divide_up(rows, tile)
    per_core = config.pop("per_core", 0)
    mode, warps, stages = config.pop("mode"), config.pop("num_warps"), config.pop("num_stages", 1)
    nvidia = target.startswith("cuda:") and int(target.split(":")[1]) >= 90
    config["pdl"] = bool(config["pdl"]) and nvidia
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
    if not target.startswith("cuda:") and "ahead" in config:
        config["ahead"] = 0  # the prefetch is PTX
    if kernel == "backward_columns":
        blocks = divide_up(hidden, block)
        programs = blocks * max(1, min(groups, MAX_SPLITS, cores * per_core // blocks))
        config["target"] = target
    elif per_core:
        programs = min(groups, cores * per_core)
    else:
        programs = min(groups, _most_programs(target, warps))
    return Choice(mode, tile, block, warps, stages, programs, tuple(sorted(config.items())))


def _trips(unroll: bool, columns: int, chunk: int) -> int:
    """How many chunks to unroll: none where they are many, for the kernel would grow with them."""
    count = divide_up(columns, chunk)
    return count if unroll and count <= MAX_TRIPS else 0


def sweep(rows: int, hidden: int, size: int, target: str) -> Choice:
    """The launch of `row_means`.  H200: chunks of 8192 with 16 warps were the best or within 1 % of it from 16384 to
    131072 wide (measured on the two-sweep kernel before it)."""
    block = min(next_power_of_2(hidden), 8192)
    warps = _clamp(block // 512, 1, 16)
    span = (("span", min(block, warps * 512 // size)),)
    programs = min(rows, _most_programs(target, warps))
    return _bound(Choice("multi_wave_reload", 1, block, warps, 1, programs, span), target)


def reduction(count: int, hidden: int) -> Choice:
    """The launch of `sum_partials`: narrow column blocks, so that many programs share a small matrix (reasoned)."""
    block = 16 if hidden <= 4096 else 32
    rows = min(next_power_of_2(count), 256 if block == 16 else 128)
    return Choice("static_persistent", rows, block, 4, 1, divide_up(hidden, block))


def _bound(choice: Choice, target: str) -> Choice:
    """A block holds 1,024 threads: 32 warps, but 16 of CDNA's 64-lane waves (a launch with more is refused)."""
    widest = MAX_HIP_WAVES if target.startswith("hip") else 32
    return replace(choice, num_warps=min(choice.num_warps, widest))


def _auto(target: str, rows: int, hidden: int, dtype: str, operation: str, cores: int) -> str:
    """Measured on H200 with triton 3.6 (2026-11), mostly in bf16; elsewhere these stand in, unmeasured."""
    if operation == "backward":
        if hidden > MAX_BACKWARD_BLOCK:
            return "column_tiled"
        return "row_packed" if hidden <= 1024 else "static_persistent"
    if hidden > 32768:
        return "multi_wave_reload"  # 2048x65536 cached 2256 GB/s, reload 2663; 2048x32768 fp32 cached 3920, reload 2713
    mode = "row_packed" if hidden <= 1024 and rows > 4 * cores else "multi_wave_cached"
    return mode if rows <= _most_rows(target, mode, hidden, _BYTES[dtype]) else "static_persistent"


def _forward_cached(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16 and fp32: 16 elements a thread up to 8 warps, then 32; more warps lose 2 to 7 %.  The weight asked for
    first takes as many registers as the row: 4096x4096 3366 / 3326 GB/s first / last, 2048x65536 1128 / 2256."""
    block = next_power_of_2(hidden)
    warps = _clamp(block // 512, 1, 8) if block <= 8192 else _clamp(block // 1024, 16, 32)
    weight = "first" if block <= 16384 else "last"
    return {**_rows_kernel("multi_wave_cached", weight), "num_warps": warps}


def _forward_packed(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """Tiles of 2,048 elements and more, 16 a thread (reasoned)."""
    block = next_power_of_2(hidden)
    tile = max(2, min(16, 2048 // block))
    warps = _clamp(tile * block // 512, 1, 16)
    return {**_rows_kernel("row_packed", "first"), "rows": tile, "num_warps": warps}


def _rows_kernel(mode: str, weight: str) -> dict[str, Any]:
    return {"mode": mode, "kernel": "forward_rows", "weight": weight}


def _forward_persistent(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16: 32 elements a thread; 64 warps a multiprocessor, half of that where a row alone takes many registers.
    Fetching the next row ahead: 32768x1024 3511 to 3600 GB/s, 4096x4096 3270 to 3197, 8192x8192 3662 to 3132."""
    block = next_power_of_2(hidden)
    warps = _clamp(block // 1024, 1, 16) if block <= 32768 else 32
    return {
        "mode": "static_persistent",
        "kernel": "forward_persistent",
        "num_warps": warps,
        "num_stages": 2 if block <= 2048 else 1,
        "per_core": max(1, (64 if block <= 8192 else 32) // warps),
    }


def _forward_reload(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200: chunks of 8192 with 16 warps, the best or within 1 % of it from 16384 to 131072 wide."""
    block = min(next_power_of_2(hidden), 8192)
    return _chunks_kernel("multi_wave_reload", 1, block, _clamp(block // 512, 1, 16), 0)


def _forward_tiled(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """Four rows a tile on a persistent grid (reasoned: one weight load for four rows)."""
    block = min(next_power_of_2(hidden), 2048)
    return _chunks_kernel("column_tiled", 4, block, _clamp(4 * block // 1024, 1, 8), 4)


def _chunks_kernel(mode: str, tile: int, block: int, warps: int, per_core: int) -> dict[str, Any]:
    kernel = {"mode": mode, "kernel": "forward_chunks"}
    return {**kernel, "rows": tile, "block": block, "num_warps": warps, "per_core": per_core}


def _backward_persistent(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16: 16 warps a multiprocessor (4096x4096 2501 GB/s, with 32 2309), 32 for narrow rows."""
    block = next_power_of_2(hidden)
    if block * size > 32768:
        return {"mode": "static_persistent", "kernel": "backward_twice", "num_warps": 32, "per_core": 1}
    warps = _clamp(block // 512, 1, 16) if block * size <= 32768 else 32
    per_core = max(1, (32 if block <= 512 else 16) // warps)
    return _backward_kernel("static_persistent", 1, warps, per_core, block * size)


def _backward_cached(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """More programs than run at once (reasoned: two waves)."""
    config = _backward_persistent(rows, hidden, size, cores)
    return {**config, "mode": "multi_wave_cached", "per_core": 4 * config["per_core"]}


def _backward_packed(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    block = next_power_of_2(hidden)
    tile = max(2, min(16, 4096 // block))
    warps = _clamp(tile * block // 512, 1, 8)
    return _backward_kernel("row_packed", tile, warps, max(1, 16 // warps), block * size)


def _backward_kernel(mode: str, tile: int, warps: int, per_core: int, row_bytes: int) -> dict[str, Any]:
    return {
        "mode": mode,
        "kernel": "backward_rows",
        "rows": tile,
        "num_warps": warps,
        "per_core": per_core,
        "hold": row_bytes < 32768,
    }


def _backward_reload(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16: 2,048 columns with 8 warps, 8192 to 131072 wide the best of 512, 1024 and 2048 (dw alone).  About
    eight programs a multiprocessor (reasoned), which bounds the float32 partial rows too."""
    block = min(next_power_of_2(hidden), 2048)
    return _columns_kernel("multi_wave_reload", 1, block, _clamp(block // 256, 1, 8))


def _backward_tiled(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    block = min(next_power_of_2(hidden), 1024)
    return _columns_kernel("column_tiled", 4, block, _clamp(block // 256, 1, 8))


def _columns_kernel(mode: str, tile: int, block: int, warps: int) -> dict[str, Any]:
    kernel = {"mode": mode, "kernel": "backward_columns"}
    return {**kernel, "rows": tile, "block": block, "num_warps": warps, "per_core": 8}


_FORWARD = {
    "multi_wave_cached": _forward_cached,
    "row_packed": _forward_packed,
    "static_persistent": _forward_persistent,
    "multi_wave_reload": _forward_reload,
    "column_tiled": _forward_tiled,
}
_BACKWARD = {
    "multi_wave_cached": _backward_cached,
    "row_packed": _backward_packed,
    "static_persistent": _backward_persistent,
    "multi_wave_reload": _backward_reload,
    "column_tiled": _backward_tiled,
}


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)
