"""NVIDIA Apex's fused RMS norm, forward and backward, through its own functions.  Rounding class: single (gemma).

Apex is built from its sources; a package of that name on PyPI is another project, and has no `apex.normalization`.
It has no fused addition and norm, no offset, and its functions for unlike dtypes return the weight's.

Written from its source of 2026 and not yet run on a device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

NAME = "apex"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = "apex"
SETTINGS = {"auto": "memory_efficient=False, the default"}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where Apex, or its compiled part, is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    if op == "fused_add_rms_norm":
        raise NotImplementedError("Apex has no norm that adds a residual")
    norms = importlib.import_module("apex.normalization.fused_layer_norm")
    importlib.import_module("fused_layer_norm_cuda")  # else it is missed at the first call

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
        if weight is None:
            return norms.fused_rms_norm(x, (x.shape[-1],), eps)
        if weight.dtype != x.dtype:
            raise NotImplementedError(
                f"Apex returns the weight's dtype where it is not x's; x is {x.dtype}, but weight is {weight.dtype}"
            )
        return norms.fused_rms_norm_affine(x, weight, (x.shape[-1],), eps)

    return rms_norm
