"""Our own kernels: the package `kernels` first on the import path (the revision under test), or farm-kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm import kernel_package

NAME = "farm"
ROLE = "subject"
TRITON = True
MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed", "column_tiled")
#: Beside MODES: a launch that is stated in full, as `farm tune` tries them; the kernels check its settings.
MODE_PATTERN = r"(forward|backward)_[a-z]{1,30}(\+[a-z_]{1,30}=[A-Za-z0-9_]{0,30}){1,30}"
OPS = ("rms_norm", "fused_add_rms_norm", "rms_norm_quantize")
DISTRIBUTION = kernel_package.DISTRIBUTION


def load(op: str) -> Callable[..., Any]:
    """The public function of `op`; ImportError where torch, triton or our kernels are missing."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    function: Callable[..., Any] = getattr(kernel_package.load(), op)
    return function
