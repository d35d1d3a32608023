"""Mutants of the forward: weight and rounding, what is written, the sum.  Each replaces one step of `Norm`.

Some replace the store of y and of the gradients alike.
"""

from __future__ import annotations

import torch
from mutant_registry import BFLOAT16, FLOAT32, FUSED, RMS, mutant
from norm_steps import TILE, Call, Norm, Tensor

FORWARD, BACKWARD = "forward", "backward"


# ---- weight and rounding -------------------------------------------------------------------------------------------


@mutant(FORWARD, BACKWARD)
class WeightIgnored(Norm):
    """The weight is not applied."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return torch.ones_like(weight, dtype=torch.float32)


@mutant(FORWARD, BACKWARD)
class OffsetIgnored(Norm):
    """The weight's offset is not added."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.float()


@mutant(FORWARD, BACKWARD)
class OffsetAlwaysOne(Norm):
    """The weight's offset is 1 whatever was passed."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.float() + 1.0


@mutant(FORWARD)
class OffsetAfterTheProduct(Norm):
    """The offset is added to the product instead of the weight."""

    def weigh(self, c: Call, n: Tensor, factor: Tensor) -> Tensor:
        return self.round(c, n) * (factor - c.offset) + c.offset


@mutant(FORWARD, right_in=(FLOAT32,), note="in float32 it is the right sum")
class OffsetAddedInTheDtype(Norm):
    """weight + offset is rounded to the weight's dtype."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return (weight + c.offset).float()


@mutant(FORWARD, BACKWARD)
class WeightOfTheNextColumn(Norm):
    """Each column has the weight of the next."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return torch.roll(weight, -1).float() + c.offset


@mutant(FORWARD)
class WeightOfTheFirstTile(Norm):
    """Beyond 64 columns the weight's first 64 are taken again."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        columns = torch.arange(c.hidden, device=weight.device) % 64
        return weight[columns].float() + c.offset


@mutant(FORWARD)
class WeightTwice(Norm):
    """The weight is applied twice."""

    def weigh(self, c: Call, n: Tensor, factor: Tensor) -> Tensor:
        return self.round(c, n) * factor * factor


@mutant(FORWARD, right_in=(FLOAT32,), note="in float32 nothing is rounded")
class CastBeforeTheWeight(Norm):
    """x/rms is rounded before the weight where the casting says that it is not."""

    def round(self, c: Call, value: Tensor) -> Tensor:
        return value.to(c.dtype).float()


@mutant(FORWARD, BACKWARD)
class ScaledByTwoPercent(Norm):
    """Outputs are 2 % too large."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return (value * 1.02).to(c.dtype)


@mutant(FORWARD, BACKWARD)
class ScaledByHalfAPercent(Norm):
    """Outputs are 0.5 % too large."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return (value * 1.005).to(c.dtype)


@mutant(FORWARD, BACKWARD)
class SignTurned(Norm):
    """Outputs have the other sign."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return (-value).to(c.dtype)


@mutant(FORWARD, BACKWARD)
class SignLost(Norm):
    """Outputs are positive."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return value.abs().to(c.dtype)


def truncated(value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value` (float32) in `dtype`, rounded towards zero."""
    near = value.to(dtype)
    beyond = near.float().abs() > value.abs()
    bits = near.view(torch.int16) - beyond.to(torch.int16)  # sign and magnitude: one less is nearer to zero
    return bits.view(dtype)


@mutant(FORWARD, right_in=(FLOAT32,), note="float32 is stored as it is")
class StoreTruncates(Norm):
    """The cast at the store drops bits instead of rounding."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return value.to(c.dtype) if c.dtype == torch.float32 else truncated(value, c.dtype)


@mutant(FORWARD, BACKWARD, right_in=(BFLOAT16,), note="in bfloat16 it is the right store")
class StoredThroughBfloat16(Norm):
    """Outputs pass through bfloat16 on the way to the store."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return value.bfloat16().to(c.dtype)


# ---- what is written -----------------------------------------------------------------------------------------------


def unwritten(c: Call, value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=c.dtype, device=value.device)


@mutant(FORWARD, BACKWARD)
class LastRowNotWritten(Norm):
    """The last row is not written."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = unwritten(c, value)
        out[:-1] = value[:-1].to(c.dtype)
        return out


@mutant(FORWARD, BACKWARD)
class LastColumnNotWritten(Norm):
    """The store's mask is off by one: the last column is not written."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = unwritten(c, value)
        out[:, :-1] = value[:, :-1].to(c.dtype)
        return out


@mutant(FORWARD, BACKWARD)
class OneElementNotWritten(Norm):
    """One element is not written."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = unwritten(c, value)
        at = value.numel() * 2 // 3
        out.view(-1)[:at], out.view(-1)[at + 1 :] = value.reshape(-1)[:at], value.reshape(-1)[at + 1 :]
        return out


@mutant(FORWARD, BACKWARD)
class LastTileOfRowsNotWritten(Norm):
    """The grid is rounded down: rows beyond the last whole tile are not written."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out, whole = unwritten(c, value), (c.rows - 1) // TILE * TILE
        out[:whole] = value[:whole].to(c.dtype)
        return out


@mutant(FORWARD, BACKWARD)
class LastColumnZero(Norm):
    """The last column is 0."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = super().store(c, value, name)
        out[:, -1] = 0
        return out


@mutant(FORWARD, BACKWARD)
class OneElementZero(Norm):
    """One element, in a row of plain size, is 0."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = super().store(c, value, name)
        out[c.rows // 2 // 5 * 5, c.hidden // 3] = 0
        return out


@mutant(FORWARD, BACKWARD)
class OneRowZero(Norm):
    """One row is 0."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = super().store(c, value, name)
        out[1] = 0
        return out


@mutant(FORWARD, BACKWARD)
class OneBitFlipped(Norm):
    """The significand's highest stored bit of one element is turned over."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = super().store(c, value, name)
        bits = out.view(torch.int32 if c.dtype == torch.float32 else torch.int16)
        stored = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}[c.dtype]
        bits[c.rows // 2 // 5 * 5, c.hidden // 3] ^= 1 << (stored - 1)
        return out


@mutant(FORWARD, BACKWARD)
class TwoRowsExchanged(Norm):
    """The first two rows are exchanged."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return torch.cat([value[1:2], value[:1], value[2:]]).to(c.dtype)


@mutant(FORWARD, BACKWARD)
class Every64thFromTheNeighbour(Norm):
    """Every 64th column holds its left neighbour's value."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = super().store(c, value, name)
        columns = torch.arange(64, c.hidden, 64, device=out.device)
        out[:, columns] = out[:, columns - 1]
        return out


@mutant(FORWARD)
class StoredTransposed(Norm):
    """y is written with its strides exchanged."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return value.to(c.dtype).t().contiguous().view(c.rows, c.hidden)


@mutant(FORWARD)
class StoreOneOff(Norm):
    """Each row is written one element to the right, the last element into its own row's first place."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        return torch.roll(value, 1, 1).to(c.dtype)


@mutant(FORWARD)
class WritesBeyondTheEnd(Norm):
    """All is right, and one element more is written behind the last."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        out = unwritten(c, value)
        out.copy_(value)
        if name == "y" and out.storage_offset() + out.numel() < out.untyped_storage().nbytes() // out.element_size():
            out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0)
        return out


@mutant(FORWARD)
class OfThePreviousCall(Norm):
    """y is that of the previous call of this shape and dtype; the first call's is right."""

    def __init__(self) -> None:
        self.kept: dict[tuple[object, ...], Tensor] = {}

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        now, key = super().store(c, value, name), (tuple(value.shape), c.dtype)
        before, self.kept[key] = self.kept.get(key, now), now
        return before.clone()


# ---- the sum -------------------------------------------------------------------------------------------------------


@mutant(FORWARD, ops=(FUSED,))
class SumNotStored(Norm):
    """The sum is not written."""

    def store_sum(self, c: Call, total: Tensor, x: Tensor, residual: Tensor) -> Tensor:
        return unwritten(c, total)


@mutant(FORWARD, ops=(FUSED,))
class SumIsX(Norm):
    """x is stored as the sum."""

    def store_sum(self, c: Call, total: Tensor, x: Tensor, residual: Tensor) -> Tensor:
        return x.clone()


@mutant(
    FORWARD,
    ops=(FUSED,),
    right_in=(FLOAT32,),
    note="float32 is stored as it is; float16's gates see it only in short rows, by a twentieth",
)
class SumTruncates(Norm):
    """The sum's store drops bits instead of rounding."""

    def store_sum(self, c: Call, total: Tensor, x: Tensor, residual: Tensor) -> Tensor:
        return total if c.dtype == torch.float32 else truncated(x.float() + residual.float(), c.dtype)


@mutant(FORWARD, ops=(FUSED,), right_in=(BFLOAT16,), note="in bfloat16 it is the right sum")
class SumInBfloat16(Norm):
    """The sum is rounded to bfloat16."""

    def add(self, c: Call, x: Tensor, residual: Tensor) -> Tensor:
        return (x.float() + residual.float()).bfloat16().to(c.dtype)


@mutant(FORWARD, BACKWARD, ops=(FUSED,))
class ResidualIgnored(Norm):
    """y is the norm of x alone; the sum is right."""

    def normed(self, c: Call, x: Tensor, residual: Tensor | None, total: Tensor) -> Tensor:
        return x


@mutant(FORWARD, BACKWARD, ops=(FUSED,))
class ResidualTwice(Norm):
    """The residual is added twice."""

    def add(self, c: Call, x: Tensor, residual: Tensor) -> Tensor:
        return (x.float() + 2 * residual.float()).to(c.dtype)


@mutant(FORWARD, ops=(FUSED,), right_in=(FLOAT32,), note="in float32 the stored sum is the sum")
class NormOfTheUnroundedSum(Norm):
    """y is the norm of the sum before it is rounded, which its provider did not declare."""

    def normed(self, c: Call, x: Tensor, residual: Tensor | None, total: Tensor) -> Tensor:
        return total if residual is None else x.float() + residual.float()


@mutant(FORWARD, ops=(FUSED,))
class SumIntoTheResidual(Norm):
    """The sum also overwrites the residual's memory, which the contract does not give up."""

    def store_sum(self, c: Call, total: Tensor, x: Tensor, residual: Tensor) -> Tensor:
        residual.data.copy_(total)
        return total


@mutant(FORWARD, ops=(FUSED,))
class SumOfTheNextRow(Norm):
    """Each row gets the residual of the next."""

    def add(self, c: Call, x: Tensor, residual: Tensor) -> Tensor:
        return (x.float() + torch.roll(residual, -1, 0).float()).to(c.dtype)


@mutant(FORWARD, ops=(RMS,))
class OverX(Norm):
    """y is written over x."""

    def forward(self, c: Call, x: Tensor, residual: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, total, rstd = super().forward(c, x, residual, weight)
        x.data.copy_(y)
        return y, total, rstd
