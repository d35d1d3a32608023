"""Providers that call our norms with the kernels of split.py in the table of measured configurations."""

from __future__ import annotations

from typing import Any

import kernels
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.gpu import tuned

FORWARD = {"mode": "multi_wave_cached", "kernel": "forward_split", "parts": 8, "num_warps": 16}
BACKWARD = {"mode": "static_persistent", "kernel": "backward_split", "parts": 16, "num_warps": 16, "per_core": 1}
COLUMNS = {"mode": "multi_wave_reload", "kernel": "backward_columns", "block": 2048, "num_warps": 4, "per_core": 8}


def _planted(hidden: int) -> None:
    """What is planted stays: the backward comes later."""
    tuned.TABLE = {
        ("rms_norm", "forward", "bfloat16"): ((4096, hidden, FORWARD),),
        ("rms_norm", "backward", "bfloat16"): ((4096, hidden, BACKWARD), (4096, hidden, COLUMNS)),
    }
    dispatch.choose.cache_clear()


def divided(x: Any, weight: Any, eps: float) -> Any:
    _planted(x.shape[1])
    return kernels.rms_norm(x, weight, eps)


def divided_in_place(x: Any, weight: Any, eps: float) -> Any:
    _planted(x.shape[1])
    return kernels.rms_norm(x, weight, eps, in_place=True)
