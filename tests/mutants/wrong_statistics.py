"""Mutants of the forward: statistics, loads, what is not a number.  Each replaces one step of `Norm`."""

from __future__ import annotations

import torch
from mutant_registry import BFLOAT16, FLOAT16, FLOAT32, NARROW, mutant
from norm_steps import TILE, Call, Norm, Tensor, tiles

FORWARD, BACKWARD = "forward", "backward"


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# ---- statistics ----------------------------------------------------------------------------------------------------


@mutant(FORWARD, BACKWARD)
class MeanOverTheTile(Norm):
    """The mean divides by the tile's width, a power of two, instead of hidden."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        return s.square().sum(-1, keepdim=True) / next_power_of_2(c.hidden)


@mutant(FORWARD, BACKWARD)
class MeanOverOneLess(Norm):
    """The mean divides by hidden - 1, as an unbiased variance does."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        return s.square().sum(-1, keepdim=True) / (c.hidden - 1)


@mutant(FORWARD, BACKWARD)
class EpsDropped(Norm):
    """No eps."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.rsqrt(mean)


@mutant(FORWARD, BACKWARD)
class EpsDroppedAndHidden(Norm):
    """No eps, and the NaN of a zero row is turned into 0."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.where(mean > 0, torch.rsqrt(mean), 0.0)


@mutant(FORWARD, BACKWARD)
class EpsOutsideTheRoot(Norm):
    """eps is added to the root, not under it."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return 1.0 / (mean.sqrt() + c.eps)


@mutant(FORWARD, BACKWARD)
class EpsTenfold(Norm):
    """Ten times the eps."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.rsqrt(mean + 10 * c.eps)


@mutant(FORWARD, BACKWARD)
class EpsAddedBeforeTheMean(Norm):
    """eps is added to the sum of squares, before it is divided."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.rsqrt((mean * c.hidden + c.eps) / c.hidden)


@mutant(FORWARD, BACKWARD)
class EpsFixed(Norm):
    """eps is 1e-6 whatever was passed."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.rsqrt(mean + 1e-6)


@mutant(FORWARD, BACKWARD)
class EpsAsAFloor(Norm):
    """eps is a lower bound of the mean square instead of a summand."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.rsqrt(mean.clamp_min(c.eps))


@mutant(FORWARD, BACKWARD)
class MeanOfAbs(Norm):
    """The mean of |x| stands for its root mean square."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        return (s.abs().sum(-1, keepdim=True) / c.hidden).square()


@mutant(FORWARD, BACKWARD)
class CentredAsLayerNorm(Norm):
    """The mean is taken away first, as LayerNorm does."""

    def load(self, c: Call, stored: Tensor) -> Tensor:
        return stored.float() - stored.float().mean(-1, keepdim=True)


@mutant(FORWARD, right_in=(FLOAT32,), note="in float32 it is the right sum")
class SquaresAccumulatedInTheDtype(Norm):
    """The sum of squares is kept in x's dtype, 16 columns a step."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        total = torch.zeros(c.rows, 1, dtype=c.dtype, device=s.device)
        for at in range(0, c.hidden, 16):
            total = (total.float() + s[:, at : at + 16].square().sum(-1, keepdim=True)).to(c.dtype)
        return total.float() / c.hidden


@mutant(
    FORWARD,
    BACKWARD,
    right_in=(FLOAT32,),
    unseen_in=(BFLOAT16,),
    note="float32 squares are right; errors of bfloat16 ones average out to less than the output's own rounding",
)
class SquaresInTheDtype(Norm):
    """x is squared in its own dtype: float16 overflows, and loses what is small."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        narrow = s.to(c.dtype)
        return (narrow * narrow).float().sum(-1, keepdim=True) / c.hidden


@mutant(FORWARD, BACKWARD)
class LastColumnNotSummed(Norm):
    """The tail mask of the statistics is off by one: the last column is not summed."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        return s[:, :-1].square().sum(-1, keepdim=True) / c.hidden


@mutant(FORWARD, BACKWARD)
class TwoPercentNotSummed(Norm):
    """The last 2 % of the columns are not summed."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        return s[:, : c.hidden - max(1, c.hidden // 50)].square().sum(-1, keepdim=True) / c.hidden


@mutant(FORWARD, BACKWARD)
class PaddingCountsAsOne(Norm):
    """Masked lanes of the tile load 1 instead of 0 into the sum."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        padding = next_power_of_2(c.hidden) - c.hidden
        return (s.square().sum(-1, keepdim=True) + padding) / c.hidden


@mutant(FORWARD, BACKWARD)
class NextRowsFirstElementSummed(Norm):
    """The tail mask is one too wide: each row also sums the first element of the next."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        extra = torch.roll(s[:, :1], -1, 0).square()
        extra[-1] = 0
        return (s.square().sum(-1, keepdim=True) + extra) / c.hidden


@mutant(FORWARD, BACKWARD, right_in=(FLOAT32,), note="in float32 it is the right statistic")
class RstdInTheDtype(Norm):
    """1/rms is rounded to x's dtype."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.rsqrt(mean + c.eps).to(c.dtype).float()


@mutant(
    FORWARD,
    BACKWARD,
    unseen_in=(BFLOAT16,),
    note="at most 0.18 % wrong, less than half a unit in bfloat16's last place",
)
class RootByOneNewtonStep(Norm):
    """1/sqrt is the bit trick with one Newton step, at most 0.18 % off."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        value = (mean + c.eps).contiguous()
        guess = (0x5F3759DF - (value.view(torch.int32) >> 1)).view(torch.float32)
        return guess * (1.5 - 0.5 * value * guess * guess)


@mutant(FORWARD, BACKWARD)
class RstdStale(Norm):
    """Each row is scaled by the row before's 1/rms."""

    def normalize(self, c: Call, s: Tensor, rstd: Tensor) -> Tensor:
        return s * torch.roll(rstd, 1, 0)


@mutant(FORWARD, BACKWARD)
class RstdOfTheTile(Norm):
    """The rows of a tile share one statistic."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        shared = tiles(s.square()).sum((1, 2), keepdim=True) / (TILE * c.hidden)
        return shared.expand(-1, TILE, 1).reshape(-1, 1)[: c.rows].contiguous()


@mutant(FORWARD)
class RmsNotReciprocal(Norm):
    """Multiplied by sqrt instead of 1/sqrt."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        return torch.sqrt(mean + c.eps)


# ---- loads ---------------------------------------------------------------------------------------------------------


@mutant(FORWARD, BACKWARD, right_in=(FLOAT16,), note="float16 values fit")
class LoadedThroughFloat16(Norm):
    """Finite values pass through float16 and saturate at 65504."""

    def load(self, c: Call, stored: Tensor) -> Tensor:
        whole = stored.float()
        return torch.where(whole.isfinite(), whole.clamp(-65504, 65504).half().float(), whole)


@mutant(FORWARD, BACKWARD, right_in=NARROW, note="of 16 bits nothing is lost")
class LoadedThroughTf32(Norm):
    """float32 values lose 13 bits, as on a TF32 path."""

    def load(self, c: Call, stored: Tensor) -> Tensor:
        whole = stored.float().contiguous()
        return ((whole.view(torch.int32) >> 13) << 13).view(torch.float32)


@mutant(FORWARD)
class ReadTransposed(Norm):
    """x is addressed with its strides exchanged."""

    def normed(self, c: Call, x: Tensor, residual: Tensor | None, total: Tensor) -> Tensor:
        return total.reshape(c.hidden, c.rows).t()


@mutant(FORWARD)
class OffsetsWrap(Norm):
    """Element offsets are integers too small and wrap.  A fault at 2^31 elements, planted at 2^13."""

    def normed(self, c: Call, x: Tensor, residual: Tensor | None, total: Tensor) -> Tensor:
        flat = total.reshape(-1)
        offset = torch.arange(flat.numel(), device=flat.device)
        return flat[offset & 0x1FFF].view(c.rows, c.hidden)


@mutant(FORWARD)
class NanSwallowed(Norm):
    """NaN on the way to the store becomes 0."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return torch.where(value.isnan(), 0.0, value).to(c.dtype)


@mutant(FORWARD)
class InfinityClamped(Norm):
    """An infinity in x is clamped to a large number."""

    def load(self, c: Call, stored: Tensor) -> Tensor:
        large = torch.finfo(stored.dtype).max
        return stored.clamp(-large, large).float()


@mutant(FORWARD)
class NanSpreads(Norm):
    """A NaN in one row of a tile reaches the tile's other rows."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        right = torch.rsqrt(mean + c.eps)
        spread = (tiles(right) * 0).sum(1, keepdim=True).expand(-1, TILE, 1).reshape(-1, 1)[: c.rows]
        return right + spread
