"""From a shape to a choice, for whatever Triton compiles for here.  Pure, but for `machine`.

Each family of hardware has its own folder with its own thresholds; this asks the one that the target belongs to.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType

from kernels.ops.rms_norm.choice import MODES, Choice

#: What the interpreter pretends to have: few, so that persistent kernels walk more than one row group there.
INTERPRETED_CORES = 4


def family(target: str, part: str = "choose") -> ModuleType:
    """The module that chooses (or `launch`es) for "cuda:90", "hip:gfx942", "npu:Ascend910B3" or "interpreter", which
    has a GPU's kernels."""
    name = "ascend" if target.startswith("npu") else "gpu"
    return import_module(f"kernels.ops.rms_norm.{name}.{part}")


def refusal(target: str, mode: str, rows: int, hidden: int, dtype: str, operation: str, op: str) -> str | None:
    """Why `mode` cannot serve, or None.  Not one of MODES: ValueError."""
    if mode not in MODES:
        raise ValueError(f"{op} has no mode {mode!r}; it has {', '.join(MODES)}")
    reason: str | None = family(target).refusal(target, mode, rows, hidden, dtype, operation, op)
    return reason


@lru_cache(maxsize=4096)
def choose(
    target: str,
    rows: int,
    hidden: int,
    dtype: str,
    operation: str,
    *,
    cores: int,
    op: str = "rms_norm",
    mode: str = "auto",
) -> Choice:
    """The launch of `op` for [rows, hidden] of `dtype` on `target` with `cores` (SMs, CUs, or vector cores).

    `operation` is "forward" or "backward" (dx and dw).  `auto` serves every shape with rows >= 1; another mode raises
    NotImplementedError with the reason where it cannot.
    """
    reason = refusal(target, mode, rows, hidden, dtype, operation, op)
    if reason:
        raise NotImplementedError(reason)
    choice: Choice = family(target).choose(target, rows, hidden, dtype, operation, cores=cores, op=op, mode=mode)
    return choice


def machine() -> tuple[str, int]:
    """(target, cores) of Triton's current device.  Asks Triton's own driver: a vendor's torch module may be missing, or
    lie."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "interpreter", INTERPRETED_CORES
    from triton.runtime import driver

    return _machine(driver.active.get_current_device())


@cache
def _machine(device: int) -> tuple[str, int]:
    from triton.runtime import driver

    found = driver.active.get_current_target()
    properties = driver.active.utils.get_device_properties(device)
    cores = properties["num_vectorcore"] if found.backend == "npu" else properties["multiprocessor_count"]
    return f"{found.backend}:{found.arch}", int(cores)
