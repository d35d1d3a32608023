"""Mutants of the backward: dx and its projection, the sum's gradient, dw and its partial sums."""

from __future__ import annotations

import torch
from mutant_registry import FLOAT16, FLOAT32, FUSED, RMS, mutant
from norm_steps import TILE, Call, Norm, Tensor
from wrong_outputs import truncated

BACKWARD = "backward"


@mutant(BACKWARD)
class ProjectionMissing(Norm):
    """dx without the projection term."""

    def gradient(self, c: Call, m: Tensor, n: Tensor, slope: Tensor, rstd: Tensor) -> Tensor:
        return rstd * m


@mutant(BACKWARD)
class ProjectionAdded(Norm):
    """The projection is added instead of taken away."""

    def gradient(self, c: Call, m: Tensor, n: Tensor, slope: Tensor, rstd: Tensor) -> Tensor:
        return rstd * (m + n * slope)


@mutant(BACKWARD)
class ProjectionNotDivided(Norm):
    """The projection's sum is not divided by hidden."""

    def slope(self, c: Call, m: Tensor, n: Tensor, dy: Tensor, s: Tensor) -> Tensor:
        return (m * n).sum(-1, keepdim=True)


@mutant(BACKWARD)
class ProjectionWithoutTheWeight(Norm):
    """The projection takes dy instead of dy (weight + offset)."""

    def slope(self, c: Call, m: Tensor, n: Tensor, dy: Tensor, s: Tensor) -> Tensor:
        return (dy * n).sum(-1, keepdim=True) / c.hidden


@mutant(BACKWARD)
class ProjectionOfX(Norm):
    """The projection takes x instead of x/rms."""

    def slope(self, c: Call, m: Tensor, n: Tensor, dy: Tensor, s: Tensor) -> Tensor:
        return (m * s).sum(-1, keepdim=True) / c.hidden


@mutant(BACKWARD)
class ProjectionWithoutTheLastColumn(Norm):
    """The projection's mask is off by one: the last column is not summed."""

    def slope(self, c: Call, m: Tensor, n: Tensor, dy: Tensor, s: Tensor) -> Tensor:
        return (m[:, :-1] * n[:, :-1]).sum(-1, keepdim=True) / c.hidden


@mutant(BACKWARD)
class ProjectionStale(Norm):
    """Each row has the projection of the row before."""

    def slope(self, c: Call, m: Tensor, n: Tensor, dy: Tensor, s: Tensor) -> Tensor:
        return torch.roll((m * n).sum(-1, keepdim=True) / c.hidden, 1, 0)


@mutant(BACKWARD)
class RstdSquaredInDx(Norm):
    """dx has 1/rms squared."""

    def gradient(self, c: Call, m: Tensor, n: Tensor, slope: Tensor, rstd: Tensor) -> Tensor:
        return rstd * rstd * (m - n * slope)


@mutant(BACKWARD)
class RstdMissingInDx(Norm):
    """dx is not divided by the rms."""

    def gradient(self, c: Call, m: Tensor, n: Tensor, slope: Tensor, rstd: Tensor) -> Tensor:
        return m - n * slope


@mutant(BACKWARD)
class RstdStaleInTheBackward(Norm):
    """The backward reads the 1/rms of the row before."""

    def kept_rstd(self, c: Call, s: Tensor, rstd: Tensor) -> Tensor:
        return torch.roll(rstd, 1, 0)


@mutant(BACKWARD)
class RstdAgainWithoutEps(Norm):
    """The backward computes 1/rms again, without eps."""

    def kept_rstd(self, c: Call, s: Tensor, rstd: Tensor) -> Tensor:
        return torch.rsqrt(s.float().square().mean(-1, keepdim=True))


@mutant(BACKWARD, right_in=(FLOAT32,), note="in float32 it is kept as it is")
class RstdKeptInTheDtype(Norm):
    """1/rms is kept for the backward in x's dtype."""

    def kept_rstd(self, c: Call, s: Tensor, rstd: Tensor) -> Tensor:
        return rstd.to(c.dtype).float()


@mutant(BACKWARD, ops=(RMS,), right_in=(FLOAT32,), note="float32 is stored as it is")
class DxTruncates(Norm):
    """dx's store drops bits instead of rounding."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return value.to(c.dtype) if name == "y" or c.dtype == torch.float32 else truncated(value, c.dtype)


@mutant(
    BACKWARD,
    ops=(FUSED,),
    right_in=(FLOAT32,),
    unseen_in=(FLOAT16,),
    note="float32 is stored as it is; in float16 it is 4.1e-4 off (rel_l2), and the gate, for compositions, 5e-4",
)
class DxTruncatesAfterTheSum(DxTruncates):
    """The store of both gradients, dsum added, drops bits instead of rounding."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return super().store(c, value, name)


@mutant(BACKWARD, ops=(FUSED,))
class DsumIgnored(Norm):
    """The upstream gradient of the sum is not added."""

    def with_sum(self, c: Call, dx: Tensor, dsum: Tensor | None, name: str) -> Tensor:
        return dx


@mutant(BACKWARD, ops=(FUSED,))
class DsumTwice(Norm):
    """The upstream gradient of the sum is added twice."""

    def with_sum(self, c: Call, dx: Tensor, dsum: Tensor | None, name: str) -> Tensor:
        return dx if dsum is None else dx + 2 * dsum


@mutant(BACKWARD, ops=(FUSED,))
class DsumOnlyInDx(Norm):
    """dresidual lacks the upstream gradient of the sum."""

    def with_sum(self, c: Call, dx: Tensor, dsum: Tensor | None, name: str) -> Tensor:
        return dx + dsum if name == "dx" and dsum is not None else dx


@mutant(BACKWARD, ops=(FUSED,))
class DsumScaledToo(Norm):
    """The upstream gradient of the sum is multiplied by the weight's mean, as if it had passed the norm."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        self.mean = weight.float().mean() + c.offset
        return super().factor(c, weight)

    def with_sum(self, c: Call, dx: Tensor, dsum: Tensor | None, name: str) -> Tensor:
        return dx if dsum is None else dx + dsum * self.mean


@mutant(BACKWARD)
class DwWithoutOneTile(Norm):
    """The partial sum of one tile of rows is not added."""

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        return partials.sum(0) - partials[len(partials) // 2]


@mutant(BACKWARD)
class DwCountsOneTileTwice(Norm):
    """The partial sum of one tile of rows is added twice."""

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        return partials.sum(0) + partials[len(partials) // 2]


@mutant(BACKWARD)
class DwOfTheFirstTiles(Norm):
    """Only each program's first tile counts: half of the tiles."""

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        return partials[: (len(partials) + 1) // 2].sum(0)


@mutant(BACKWARD)
class DwWithoutTheLastRow(Norm):
    """The mask of the rows is off by one: the last row is not in dw."""

    def terms(self, c: Call, dy: Tensor, n: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        terms = super().terms(c, dy, n, s, weight)
        return terms * (torch.arange(c.rows, device=terms.device) < c.rows - 1)[:, None]


@mutant(BACKWARD)
class DwLosesAnAddition(Norm):
    """A race: in every eighth column the last tile's partial sum is lost."""

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        lost = torch.where(torch.arange(c.hidden, device=partials.device) % 8 == 7, partials[-1], 0.0)
        return partials.sum(0) - lost


@mutant(BACKWARD)
class DwOfX(Norm):
    """dw takes x instead of x/rms."""

    def terms(self, c: Call, dy: Tensor, n: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        return dy * s


@mutant(BACKWARD)
class DwWithTheWeight(Norm):
    """dw takes dy (weight + offset) instead of dy."""

    def terms(self, c: Call, dy: Tensor, n: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        return dy * self.factor(c, weight) * n


@mutant(BACKWARD)
class DwAsAMean(Norm):
    """dw is the mean over rows instead of the sum."""

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        return partials.sum(0) / c.rows


@mutant(BACKWARD, right_in=(FLOAT32,), note="in float32 it is the right sum")
class DwAccumulatedInTheDtype(Norm):
    """Partial sums are added up in x's dtype."""

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        total = torch.zeros(c.hidden, dtype=c.dtype, device=partials.device)
        for partial in partials:
            total = (total.float() + partial).to(c.dtype)
        return total.float()


@mutant(BACKWARD)
class DwNotCleared(Norm):
    """dw's memory is added to without being cleared, and still holds the previous call's of this shape and dtype."""

    def __init__(self) -> None:
        self.kept: dict[tuple[object, ...], Tensor] = {}

    def reduce(self, c: Call, partials: Tensor) -> Tensor:
        key = (c.hidden, c.rows, c.dtype)
        self.kept[key] = self.kept.get(key, 0) + partials.sum(0)
        return self.kept[key]


@mutant(BACKWARD)
class DwLastColumnNotWritten(Norm):
    """dw's last element is not written."""

    def store_dw(self, c: Call, dw: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty(c.hidden, dtype=weight.dtype, device=dw.device)
        out[:-1] = dw[:-1].to(weight.dtype)
        return out


@mutant(BACKWARD)
class DwShifted(Norm):
    """dw is written one element to the right."""

    def store_dw(self, c: Call, dw: Tensor, weight: Tensor) -> Tensor:
        return torch.roll(dw, 1).to(weight.dtype)


@mutant(BACKWARD)
class DwTwoPercent(Norm):
    """dw is 2 % too large."""

    def store_dw(self, c: Call, dw: Tensor, weight: Tensor) -> Tensor:
        return (dw * 1.02).to(weight.dtype)


@mutant(BACKWARD)
class DwPartialsOverlap(Norm):
    """Tiles overlap by a row: each tile's last row is in the next tile's partial sum too."""

    def partials(self, c: Call, terms: Tensor) -> Tensor:
        right = super().partials(c, terms)
        last = terms[TILE - 1 :: TILE][: len(right) - 1]
        return torch.cat([right[:1], right[1:] + last])
