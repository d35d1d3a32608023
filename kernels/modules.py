"""Norms as modules, in place of torch's: same constructor, same state dict."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .ops.fused_add_rms_norm.function import fused_add_rms_norm
from .ops.rms_norm.function import CASTINGS, rms_norm


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm over the last dimension by `rms_norm`: x [..., hidden] -> y [..., hidden] in x's dtype.

    normalized_shape: hidden, or (hidden,).  eps: None is the machine epsilon of x's dtype, as torch's.  offset, casting
    and mode: as in `rms_norm`; Gemma's norm has offset=1.0, casting="gemma", and a weight that begins at 0.
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offset: float = 0.0,
        casting: str = "llama",
        mode: str = "auto",
    ):
        self.offset, self.casting, self.mode = offset, casting, mode  # reset_parameters asks for the offset
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        if len(self.normalized_shape) != 1:
            raise ValueError(f"RMSNorm norms the last dimension alone; got normalized_shape {self.normalized_shape}")
        if casting not in CASTINGS:
            raise ValueError(f"RMSNorm has no casting {casting!r}; it has {', '.join(CASTINGS)}")

    def reset_parameters(self) -> None:
        """weight + offset begins at 1."""
        if self.elementwise_affine:
            nn.init.constant_(self.weight, 1.0 - self.offset)

    def _eps(self, x: torch.Tensor) -> float:
        return torch.finfo(x.dtype).eps if self.eps is None else self.eps

    def _check(self, x: torch.Tensor) -> None:
        if x.shape[-1] != self.normalized_shape[0]:
            raise ValueError(f"RMSNorm of {self.normalized_shape[0]} columns; got x of shape {list(x.shape)}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x)
        return rms_norm(x, self.weight, self._eps(x), offset=self.offset, casting=self.casting, mode=self.mode)

    def extra_repr(self) -> str:
        more = {"offset": (self.offset, 0.0), "casting": (self.casting, "llama"), "mode": (self.mode, "auto")}
        return super().extra_repr() + "".join(f", {k}={v!r}" for k, (v, usual) in more.items() if v != usual)


class FusedAddRMSNorm(RMSNorm):
    """The residual's addition and the norm in one pass: (x, residual) -> (norm of the sum, the sum)."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        self._check(x)
        options = {"offset": self.offset, "casting": self.casting, "mode": self.mode}
        return fused_add_rms_norm(x, residual, self.weight, self._eps(x), **options)
