"""Our own kernels, from the `kernels` package that is first on the import path: the revision under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "farm"
ROLE = "subject"
MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed", "column_tiled")
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = "kernel-farm"


def load(op: str) -> Callable[..., Any]:
    """The public function of `op`; ImportError where torch or triton is missing."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; it has {', '.join(OPS)}")
    import kernels

    function: Callable[..., Any] = getattr(kernels, op)
    return function
