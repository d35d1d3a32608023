"""TileGym's RMS norm (cuTile, NVIDIA), forward and backward, with the modes of its own op.

Rounding class: single (gemma), everything in float32 and one cast.  Its dispatcher would fall back to another backend
after one warning, so the fallback is forbidden and backend `cutile` is asked for by name.  Its ops have no norm that
adds a residual; the one of its Liger suite is not called here.  Bias is not used, a weight must be there.

Written from its source of 2026 and not yet run on a device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

NAME = "tilegym"
ROLE = "peer"
MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached")
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = "tilegym"
SETTINGS = {mode: f"backend=cutile, mode={None if mode == 'auto' else mode}" for mode in MODES}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where TileGym, or cuda.tile under it, is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    if op == "fused_add_rms_norm":
        raise NotImplementedError("TileGym's ops have no norm that adds a residual")
    os.environ["DISABLE_FALLBACK"] = "1"  # read by TileGym alone, in this child
    from tilegym import ops

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, mode: str = "auto") -> Any:
        if weight is None:
            raise NotImplementedError("TileGym's norm always has a weight")
        given = {"offset": offset} if offset else {}
        chosen = None if mode == "auto" else mode
        return ops.rms_norm(x, (x.shape[-1],), weight, eps, mode=chosen, backend="cutile", **given)

    return rms_norm
