"""Liger-Kernel's RMS norm, through its autograd function.  Rounding class: what `casting` names, as Liger means it.

Its `none` keeps everything in x's dtype, the row's sum included; ours keeps sums in float32.  It is called with
`in_place=False` unless asked otherwise: its own default lets backward write into the upstream gradient, which a second
call would then read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "liger"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm",)
DISTRIBUTION = "liger-kernel"


def load(op: str) -> Callable[..., Any]:
    """The norm; ImportError where liger-kernel is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; it has {', '.join(OPS)}")
    from liger_kernel.ops import LigerRMSNormFunction

    def rms_norm(
        x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama", in_place: bool = False
    ) -> Any:
        if x.shape[-1] > 65536:
            raise NotImplementedError(f"Liger keeps a row in one block of at most 65536; hidden is {x.shape[-1]}")
        return LigerRMSNormFunction.apply(x, weight, eps, offset, casting, in_place)

    return rms_norm
