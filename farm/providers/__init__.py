"""The implementations of ops: one file per provider, shipped with the child, never taken from the revision under test.

A provider module imports nothing heavy at its top, so that a matrix can be read without torch.  It defines

    NAME, ROLE ("subject" or "peer"), MODES, OPS, DISTRIBUTION (its pip name, for the version report, or None)
    TRITON = True               where its kernels are Triton's: they are built ahead of their cells
    SETTINGS                    mode -> how the provider is called in it, in words; a peer has them for every mode
    load(op) -> callable        in the child; ImportError or NotImplementedError(reason) mean `unsupported`

The callable is called as `f(*inputs, *positional parameters, **parameters that differ from the op's defaults)`,
with `mode=` for every mode but `auto`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module


@lru_cache(maxsize=256)
def settings(name: str, mode: str) -> str:
    """How a built-in provider is called in a mode; "" if nothing is said of it, or if it is no built-in one."""
    if not name.isidentifier():
        return ""
    try:
        told: dict[str, str] = getattr(import_module(f"farm.providers.{name}"), "SETTINGS", {})
    except ModuleNotFoundError:
        return ""
    return told.get(mode, "")


@lru_cache(maxsize=256)
def of_triton(name: str) -> bool:
    """Whether a built-in provider is said to launch kernels that Triton compiles from what it imports (`TRITON`): these
    can be built ahead of its cells."""
    if not name.isidentifier():
        return False
    try:
        return bool(getattr(import_module(f"farm.providers.{name}"), "TRITON", False))
    except ModuleNotFoundError:
        return False
