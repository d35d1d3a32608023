"""From a shape to a launch: mode, block, warps, programs.  Pure, but for `target` and `machine`.

Every threshold says on which chip it was measured, or that it is reasoned.  Figures are GB/s of model bytes (forward: x
and y; backward: x, dy and dx), one rotating-graph run each: read ratios.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from typing import Any

MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed", "column_tiled")
LATER = ("row_packed", "column_tiled")
WHOLE_ROW = ("multi_wave_cached", "static_persistent")

#: The widest row that one block may hold.  Reasoned: 65,536 float32 over the 1,024 threads of a block fill the 64
#: registers that each may have; beyond, every kernel spills.
MAX_BLOCK = 65536
#: A grid's first dimension ends here on CUDA and HIP; the kernels walk on by themselves.
MAX_PROGRAMS = 2**31 - 1


@dataclass(frozen=True)
class Choice:
    """One launch, decided.  `programs` is the grid's size; each takes about `rows_per_program` rows, a block of `block`
    columns at a time."""

    mode: str
    block: int
    num_warps: int
    num_stages: int  # of the loop over rows; 1 where there is none to run ahead in
    programs: int
    rows_per_program: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n (1 for n < 2)."""
    return 1 << max(n - 1, 0).bit_length()


def refusal(mode: str, rows: int, hidden: int) -> str | None:
    """Why `mode` cannot serve [rows, hidden], or None.  Not one of MODES: ValueError."""
    if mode not in MODES:
        raise ValueError(f"rms_norm has no mode {mode!r}; it has {', '.join(MODES)}")
    if mode in LATER:
        return f"mode {mode} of rms_norm comes with a later version"
    if mode in WHOLE_ROW and hidden > MAX_BLOCK:
        return f"mode {mode} keeps a whole row in one block, at most {MAX_BLOCK} elements; hidden is {hidden}"
    if mode == "multi_wave_cached" and rows > MAX_PROGRAMS:
        return f"mode {mode} takes a program a row, at most {MAX_PROGRAMS}; rows is {rows}"
    return None


@lru_cache(maxsize=4096)
def choose(target: str, rows: int, hidden: int, dtype: str, operation: str, sms: int, mode: str = "auto") -> Choice:
    """The launch for [rows, hidden] of `dtype` on `target` with `sms` multiprocessors.

    `operation` is "forward" or "backward" (dx, and dw where a row fits a block).  `auto` serves every shape; another
    mode raises NotImplementedError with the reason where it cannot.
    """
    reason = refusal(mode, rows, hidden)
    if reason:
        raise NotImplementedError(reason)
    if mode == "auto":
        mode = _auto(target, rows, hidden, dtype, operation, sms)
    if mode == "multi_wave_reload":
        choice = _reload(rows, hidden)
    elif operation == "backward":
        choice = _whole_row_backward(mode, rows, hidden, sms)
    else:
        choice = _cached(rows, hidden) if mode == "multi_wave_cached" else _persistent(rows, hidden, sms)
    # A block holds 1,024 threads: 32 warps, but 16 of CDNA's 64-lane waves (a launch with more is refused).
    widest = 16 if target.startswith("hip") else 32
    return replace(choice, num_warps=min(choice.num_warps, widest))


def choose_columns(rows: int, hidden: int, sms: int) -> tuple[Choice, int]:
    """The launch of dw by columns for wide rows, and its number of column blocks: the grid is (blocks, programs).

    2,048 columns with 8 warps measured on H200 (bf16, 8192 to 131072 wide: best of 512, 1024, 2048).  Rows are split
    until about eight programs a multiprocessor are at work (reasoned), which bounds the float32 partial rows too.
    """
    block = min(next_power_of_2(hidden), 2048)
    blocks = -(-hidden // block)
    splits = max(1, min(rows, 8 * sms // blocks))
    return Choice("multi_wave_reload", block, _clamp(block // 256, 1, 8), 1, splits, -(-rows // splits)), blocks


def _auto(target: str, rows: int, hidden: int, dtype: str, operation: str, sms: int) -> str:
    """All thresholds measured on H200 with triton 3.6 (2026-11), most in bf16; elsewhere they stand in, unmeasured."""
    del target, dtype
    if operation == "backward":
        # 4096x16384 whole 2893 GB/s, in chunks 2053; 4096x32768 whole 837 (it spills), in chunks 2070.
        return "static_persistent" if hidden <= 16384 else "multi_wave_reload"
    if hidden > 32768:
        return "multi_wave_reload"  # 2048x65536 cached 2256, reload 2663; 2048x32768 fp32 cached 3920, reload 2713
    if rows > MAX_PROGRAMS or (hidden <= 512 and rows > 32 * sms):
        # A program a row is bound by launching programs: 32768x128 cached 783, persistent 1865; 32768x256 1538 and
        # 2698; even from 1024 on.  512 itself is reasoned.
        return "static_persistent"
    return "multi_wave_cached"


def _cached(rows: int, hidden: int) -> Choice:
    """H200, bf16 and fp32: 16 elements a thread up to 8 warps, then 32; more warps lose 2 to 7 %."""
    block = next_power_of_2(hidden)
    warps = _clamp(block // 512, 1, 8) if block <= 8192 else _clamp(block // 1024, 16, 32)
    return Choice("multi_wave_cached", block, warps, 1, rows, 1)


def _persistent(rows: int, hidden: int, sms: int) -> Choice:
    """H200, bf16: 32 elements a thread; 64 warps a multiprocessor, half of that where a row alone takes many registers.
    Fetching the next row ahead: 32768x1024 3511 to 3600, 4096x4096 3270 to 3197, 8192x8192 3662 to 3132."""
    block = next_power_of_2(hidden)
    warps = _clamp(block // 1024, 1, 16) if block <= 32768 else 32
    programs = min(rows, sms * max(1, (64 if block <= 8192 else 32) // warps))
    return Choice("static_persistent", block, warps, 2 if block <= 2048 else 1, programs, _share(rows, programs))


def _reload(rows: int, hidden: int) -> Choice:
    """H200: chunks of 8192 with 16 warps, the best or within 1 % of it from 16384 to 131072 wide, both directions."""
    block = min(next_power_of_2(hidden), 8192)
    programs = min(rows, MAX_PROGRAMS)
    return Choice("multi_wave_reload", block, _clamp(block // 512, 1, 16), 1, programs, _share(rows, programs))


def _whole_row_backward(mode: str, rows: int, hidden: int, sms: int) -> Choice:
    """The same launch for every mode that keeps whole rows: few programs, each with one float32 row of partial dw.

    H200, bf16: 16 warps a multiprocessor (4096x4096 2501 GB/s, with 32 2309), 32 for narrow rows; a row that takes more
    than 16384 spills, least with 32 warps.
    """
    block = next_power_of_2(hidden)
    warps = _clamp(block // 512, 1, 16) if block <= 16384 else 32
    programs = min(rows, sms * max(1, (32 if block <= 512 else 16) // warps))
    return Choice(mode, block, warps, 1, programs, _share(rows, programs))


def _share(rows: int, programs: int) -> int:
    return -(-rows // max(programs, 1))


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def target() -> str:
    """What Triton compiles for: "cuda:90", "hip:gfx942", or "interpreter"."""
    return machine()[0]


def machine() -> tuple[str, int]:
    """(target, multiprocessors) of Triton's current device; under the interpreter 4, so that persistent kernels walk
    more than one row there.  Asks Triton's own driver: a vendor's torch module may be missing, or lie."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "interpreter", 4
    from triton.runtime import driver

    return _machine(driver.active.get_current_device())


@cache
def _machine(device: int) -> tuple[str, int]:
    from triton.runtime import driver

    found = driver.active.get_current_target()
    properties = driver.active.utils.get_device_properties(device)
    return f"{found.backend}:{found.arch}", int(properties["multiprocessor_count"])
