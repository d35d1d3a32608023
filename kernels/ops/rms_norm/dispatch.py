"""From a shape to a choice, for whatever Triton compiles for here.  Pure, but for `machine`.

Each family of hardware has its own folder with its own thresholds; this asks the one that the target belongs to.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from .choice import MODES, Choice, is_launch
from .gpu import ring_plan
from .gpu.description import describe

#: What the interpreter pretends to have: few, so that persistent kernels walk more than one row group there.
INTERPRETED_CORES = 4


def family(target: str, part: str = "choose") -> ModuleType:
    """The module that chooses (or `launch`es) for "cuda:90", "hip:gfx942", "npu:Ascend910B3" or "interpreter", which
    has a GPU's kernels."""
    name = "ascend" if target.startswith("npu") else "gpu"
    return import_module(f".{name}.{part}", __package__)


def refusal(target: str, mode: str, rows: int, hidden: int, dtype: str, operation: str, op: str) -> str | None:
    """Why `mode` cannot serve, or None.  Neither one of MODES nor a launch (gpu/forced.py): ValueError."""
    if mode not in MODES and not is_launch(mode):
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
    dense: bool = True,
    ring: bool = False,
    split: bool = False,
) -> Choice:
    """The launch of `op` for [rows, hidden] of `dtype` on `target` with `cores` (SMs, CUs, or vector cores).

    `operation` is "forward" or "backward" (dx and dw).  `auto` serves every shape with rows >= 1; another mode raises
    NotImplementedError with the reason where it cannot.  `dense` is what `are_dense` says of the tensors: where they
    are not, rows that are not 16-byte aligned have another kernel; else it plays no part.  `ring` is what `can_ring`
    says: whether `auto` may choose among the kernels of gpu/ring.py, too, where they were measured to be the fastest,
    and `split` what `can_split` says, of those of gpu/split.py.
    """
    reason = refusal(target, mode, rows, hidden, dtype, operation, op)
    if reason:
        raise NotImplementedError(reason)
    seen = {} if target.startswith("npu") else {"dense": dense, "ring": ring, "split": split}
    choice: Choice = family(target).choose(
        target, rows, hidden, dtype, operation, cores=cores, op=op, mode=mode, **seen
    )
    return choice


def can_serve(choice: Choice, target: str, *tensors: Any) -> bool:
    """Whether the kernel of a choice for dense rows, and with `ring` or `split`, can have these matrices (None counts
    as one that it can).  Where it cannot, the choice for rows that are not dense, without either, can have any."""
    if choice.kernel.endswith("_unaligned"):
        return are_dense(*tensors)
    if choice.kernel.endswith("_ring"):
        return can_ring(target, *tensors)
    if choice.kernel.endswith("_split"):
        return can_split(target, *tensors)
    return True


def are_dense(*tensors: Any) -> bool:
    """Whether all tensors (None counts as one) are contiguous and begin at a multiple of 16 bytes, as what torch
    allocates does."""
    return all(t is None or (t.is_contiguous() and t.data_ptr() % 16 == 0) for t in tensors)


def can_ring(target: str, *tensors: Any) -> bool:
    """Whether the kernels of gpu/ring.py can have these matrices (None counts as one that they can have): on sm_90 or
    later with the shared memory that rings are planned for, compiled by a Triton of RING_TRITONS, and not interpreted;
    of one dtype; rows and bases at multiples of 16 bytes."""
    known = describe(target)
    if not known.dependent or known.shared < ring_plan.SHARED or not _has_gluon():
        return False
    return _are_aligned(*tensors) and len({t.dtype for t in tensors if t is not None}) == 1


def _are_aligned(*tensors: Any) -> bool:
    """Whether the rows and bases of all tensors (None counts as one) are at multiples of 16 bytes."""
    return all(
        (t.stride(0) | t.shape[1]) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0
        for t in tensors
        if t is not None
    )


def can_split(target: str, *tensors: Any) -> bool:
    """Whether the kernels of gpu/split.py can have these matrices (None counts as one that they can have): on NVIDIA
    (they compile for AMD, and ran on none), compiled by Triton SPLIT_TRITON or later, none of them another's storage,
    as dx is dy's in place, and rows and bases at multiples of 16 bytes: else they are right, but nothing is fetched
    ahead and they spill."""
    if not describe(target).ptx or _triton() < SPLIT_TRITON:
        return False
    return are_apart(*tensors) and _are_aligned(*tensors)


def are_apart(*tensors: Any) -> bool:
    """Whether all tensors (None counts as none) begin at different places; those without memory, of torch's device
    `meta`, are apart unless they are one object."""
    given = [t.data_ptr() or id(t) for t in tensors if t is not None]
    return len(set(given)) == len(given)


#: The Tritons whose Gluon compiles gpu/ring.py (2026-11): it is experimental, and 3.5 and 3.9 have other names.  Rings
#: ran with 3.6 only.
RING_TRITONS = ((3, 6), (3, 7), (3, 8))
SPLIT_TRITON = (3, 4)  # the first that compiles both kernels of gpu/split.py; they ran with 3.6 only


@cache
def _has_gluon() -> bool:
    try:
        import_module(".gpu.ring", __package__)
    except Exception:  # whatever another Triton's lacks
        return False
    return _triton() in RING_TRITONS


@cache
def _triton() -> tuple[int, ...]:
    """The minor version of the Triton that is here; () where there is none."""
    try:
        version = str(import_module("triton").__version__)
    except ImportError:
        return ()
    return tuple(int(n) for n in version.split(".")[:2])


def machine(device: int | None = None) -> tuple[str, int]:
    """(target, cores) of a device of Triton's, by number; None is the current one.

    Asks Triton's own driver: a vendor's torch module may be missing, or lie."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "interpreter", INTERPRETED_CORES
    if device is None:
        from triton.runtime import driver

        device = driver.active.get_current_device()
    return _machine(device)


@cache
def _machine(device: int) -> tuple[str, int]:
    from triton.runtime import driver

    current = driver.active.get_current_device()
    if device != current:
        driver.active.set_current_device(device)
    try:
        found = driver.active.get_current_target()
        properties = driver.active.utils.get_device_properties(device)
    finally:
        if device != current:
            driver.active.set_current_device(current)
    cores = properties["num_vectorcore"] if found.backend == "npu" else properties["multiprocessor_count"]
    return f"{found.backend}:{found.arch}", int(cores)
