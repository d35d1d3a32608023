"""rms_norm and fused_add_rms_norm in plain torch, step by step as our Triton kernels compute them, on any device.

Each step is a method, so that a wrong kernel is this one with one step replaced.  As in `kernels/ops/rms_norm`: float32
from the load to the one cast at the store; `rounds` (the castings llama and none) rounds x/rms to x's dtype before it
meets the weight, and each row's product in dw; dw is the sum of float32 partial sums, one per tile of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
#: Rows of one tile: each tile gives one partial row of dw.
TILE = 4


@dataclass(frozen=True)
class Call:
    """What a step may know of the call: parameters, and the dtype and shape of x."""

    eps: float
    offset: float
    rounds: bool
    dtype: torch.dtype
    rows: int
    hidden: int


class Norm:
    """Both norms, right.  Names: s is what is normed (x, or the stored sum), n = s * rstd, m = dy * (weight + offset).

    Shapes: matrices [rows, hidden], statistics [rows, 1], weight and dw [hidden].
    """

    def forward(self, c: Call, x: Tensor, residual: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(y, what is stored as the sum, rstd); without a residual the sum is x."""
        total = x if residual is None else self.add(c, x, residual)
        s = self.load(c, self.normed(c, x, residual, total))
        rstd = self.rstd(c, self.mean_square(c, s))
        n = self.normalize(c, s, rstd)
        y = self.store(c, self.weigh(c, n, self.factor(c, weight)), "y")
        return y, total if residual is None else self.store_sum(c, total, x, residual), rstd

    def add(self, c: Call, x: Tensor, residual: Tensor) -> Tensor:
        """The sum, rounded to x's dtype."""
        return (x.float() + residual.float()).to(c.dtype)

    def normed(self, c: Call, x: Tensor, residual: Tensor | None, total: Tensor) -> Tensor:
        """What y is the norm of."""
        return total

    def load(self, c: Call, stored: Tensor) -> Tensor:
        return stored.float()

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        return s.square().sum(-1, keepdim=True) / c.hidden

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.rsqrt(mean + c.eps)

    def normalize(self, c: Call, s: Tensor, rstd: Tensor) -> Tensor:
        return s * rstd

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.float() + c.offset

    def weigh(self, c: Call, n: Tensor, factor: Tensor) -> Tensor:
        return self.round(c, n) * factor

    def round(self, c: Call, value: Tensor) -> Tensor:
        """The rounding that a casting declares."""
        return value.to(c.dtype).float() if c.rounds else value

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        """The one cast, into memory of its own; `name` is y, dx or dresidual."""
        return value.to(c.dtype, copy=True)

    def store_sum(self, c: Call, total: Tensor, x: Tensor, residual: Tensor) -> Tensor:
        return total

    def backward(
        self, c: Call, dy: Tensor, dsum: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """(dx, dresidual where there is a dsum, dw) from what the forward kept: s as stored, weight, rstd."""
        kept, dy, rstd = self.load(c, s), dy.float(), self.kept_rstd(c, s, rstd)
        n = self.normalize(c, kept, rstd)
        m = dy * self.factor(c, weight)
        slope = self.slope(c, m, n, dy, kept)
        dx = self.gradient(c, m, n, slope, rstd)
        upstream = None if dsum is None else dsum.float()
        dw = self.reduce(c, self.partials(c, self.terms(c, dy, n, kept, weight)))
        return (
            self.store(c, self.with_sum(c, dx, upstream, "dx"), "dx"),
            None if dsum is None else self.store(c, self.with_sum(c, dx, upstream, "dresidual"), "dresidual"),
            self.store_dw(c, dw, weight),
        )

    def kept_rstd(self, c: Call, s: Tensor, rstd: Tensor) -> Tensor:
        """1/rms as the backward has it."""
        return rstd

    def slope(self, c: Call, m: Tensor, n: Tensor, dy: Tensor, s: Tensor) -> Tensor:
        """mean(m n) of each row: the factor of the projection."""
        return (m * n).sum(-1, keepdim=True) / c.hidden

    def gradient(self, c: Call, m: Tensor, n: Tensor, slope: Tensor, rstd: Tensor) -> Tensor:
        return rstd * (m - n * slope)

    def with_sum(self, c: Call, dx: Tensor, dsum: Tensor | None, name: str) -> Tensor:
        """The norm's gradient with that of the sum, where there is one."""
        return dx if dsum is None else dx + dsum

    def terms(self, c: Call, dy: Tensor, n: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        """Each row's share of dw."""
        return self.round(c, dy * self.round(c, n))

    def partials(self, c: Call, terms: Tensor) -> Tensor:
        """[tiles, hidden]: the sum of each tile of rows."""
        return tiles(terms).sum(1)

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        return partials.sum(0)

    def store_dw(self, c: Call, dw: Tensor, weight: Tensor) -> Tensor:
        return dw.to(weight.dtype)

    def function(self, op: str) -> Callable[..., Any]:
        """What a provider of `op` gives: `f(x, weight, eps, *, offset, casting)`, or with the residual second."""

        def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0, casting: str = "llama") -> Any:
            return _Norm.apply(self, _call(x, eps, offset, casting), x, None, weight)

        def fused_add_rms_norm(
            x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0, casting: str = "llama"
        ) -> Any:
            return _Norm.apply(self, _call(x, eps, offset, casting), x, residual, weight)

        return rms_norm if op == "rms_norm" else fused_add_rms_norm


def _call(x: Tensor, eps: float, offset: float, casting: str) -> Call:
    return Call(eps, offset, casting != "gemma", x.dtype, *x.shape)


def tiles(matrix: Tensor) -> Tensor:
    """[tiles, TILE, hidden], the last tile filled up with zeros."""
    missing = -len(matrix) % TILE
    padded = torch.cat([matrix, matrix.new_zeros(missing, matrix.shape[1])]) if missing else matrix
    return padded.view(-1, TILE, matrix.shape[1])


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, norm: Norm, c: Call, x: Tensor, residual: Tensor | None, weight: Tensor) -> Any:
        y, total, rstd = norm.forward(c, x, residual, weight)
        kept = x if residual is None else total
        ctx.save_for_backward(kept, weight, rstd)
        ctx.norm, ctx.call = norm, c
        return y if residual is None else (y, total)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, dsum: Tensor | None = None) -> Any:
        s, weight, rstd = ctx.saved_tensors
        dx, dresidual, dw = ctx.norm.backward(ctx.call, dy, dsum, s, weight, rstd)
        return None, None, dx, dresidual, dw
