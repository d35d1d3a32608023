"""Wrong kernels that friendly inputs do not tell from right ones: plain torch, each with one thing wrong.

Each is a provider's function, `farm run matrices/unfriendly.yaml --provider rms_norm:abs_weight=wrong_unfriendly:
abs_weight`.  They are `norm_steps.Norm` with a step replaced, or with its inputs read otherwise than they lie.
"""

# ruff: noqa: N801 (a name is the provider's)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from norm_steps import Call, Norm

Tensor = torch.Tensor
Function = Callable[..., Any]
#: Name -> function, by op.
RMS: dict[str, Function] = {}
FUSED: dict[str, Function] = {}
LAYER: dict[str, Function] = {}
#: The first six: those that passed every cell of smoke.yaml until 2026-11-22.
FIRST = ("abs_weight", "relu_weight", "clamp_weight", "ignores_strides", "only_2d", "dense_dy")


def rms_norm(norm: Norm, x: Tensor, weight: Tensor, eps: float, **how: Any) -> Tensor:
    """Right for every layout and number of dimensions, if `norm` is."""
    y: Tensor = norm.function("rms_norm")(x.reshape(-1, x.shape[-1]), weight, eps, **how)
    return y.reshape(x.shape)


def fused_add_rms_norm(norm: Norm, x: Tensor, residual: Tensor, weight: Tensor, eps: float, **how: Any) -> Any:
    rows = [t.reshape(-1, t.shape[-1]) for t in (x, residual)]
    y, total = norm.function("fused_add_rms_norm")(*rows, weight, eps, **how)
    return y.reshape(x.shape), total.reshape(x.shape)


def right(x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama") -> Tensor:
    """The same code without a mutation."""
    return rms_norm(Norm(), x, weight, eps, offset=offset, casting=casting)


def right_fused(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Any:
    return fused_add_rms_norm(Norm(), x, residual, weight, eps, offset=offset, casting=casting)


def step(made: type[Norm]) -> Function:
    """A `Norm` with a step replaced, as a provider of rms_norm."""

    def function(
        x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
    ) -> Tensor:
        return rms_norm(made(), x, weight, eps, offset=offset, casting=casting)

    RMS[made.__name__] = function
    return function


def wrapped(reads: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Function:
    """What reads x and the weight otherwise than they lie, as a provider of rms_norm."""

    def function(
        x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
    ) -> Tensor:
        return rms_norm(Norm(), *reads(x, weight), eps, offset=offset, casting=casting)

    RMS[reads.__name__] = function
    return function


# Signs, zeros and sizes of weights


@step
class abs_weight(Norm):
    """Multiplies by the weight's size."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.float().abs() + c.offset


@step
class relu_weight(Norm):
    """Negative weights become 0."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.float().relu() + c.offset


@step
class clamp_weight(Norm):
    """Weights are cut at 2."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.float().clamp(-2, 2) + c.offset


@step
class zero_weight_is_none(Norm):
    """A weight of 0 counts as no weight."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return torch.where(weight == 0, 1.0, weight.float()) + c.offset


@step
class half_weight(Norm):
    """The weight passes through float16."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.half().float() + c.offset


@step
class weight_by_exponent(Norm):
    """The weight is exp(log(w))."""

    def factor(self, c: Call, weight: Tensor) -> Tensor:
        return weight.float().log().exp() + c.offset


@step
class abs_weight_in_backward(Norm):
    """The backward multiplies by the weight's size, the forward by the weight."""

    def backward(self, c: Call, dy: Tensor, dsum: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor) -> Any:
        return super().backward(c, dy, dsum, s, weight.abs(), rstd)


@step
class divides_by_weight(Norm):
    """dw is the sum of dy y / w."""

    def terms(self, c: Call, dy: Tensor, n: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        factor = self.factor(c, weight)
        return dy * (n * factor) / factor


# Upstream gradients


@step
class clips_dy(Norm):
    """dy is cut at 1000."""

    def backward(self, c: Call, dy: Tensor, *rest: Any) -> Any:
        return super().backward(c, dy.clamp(-1000, 1000), *rest)


@step
class half_dy(Norm):
    """dy passes through float16."""

    def backward(self, c: Call, dy: Tensor, *rest: Any) -> Any:
        return super().backward(c, dy.half().to(c.dtype), *rest)


@step
class swallows_dy_not_finite(Norm):
    """What is not finite in dy counts as 0."""

    def backward(self, c: Call, dy: Tensor, *rest: Any) -> Any:
        return super().backward(c, dy.nan_to_num(0, 0, 0), *rest)


@step
class saturates_dy(Norm):
    """An infinity in dy becomes the largest number."""

    def backward(self, c: Call, dy: Tensor, *rest: Any) -> Any:
        return super().backward(c, torch.where(dy.isinf(), torch.zeros_like(dy), dy), *rest)


@step
class scales_dy_by_its_largest(Norm):
    """dy is divided by its row's largest element, and dx multiplied by it: 0 / 0 in a row of zeros."""

    def backward(self, c: Call, dy: Tensor, dsum: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor) -> Any:
        largest = dy.float().abs().amax(-1, keepdim=True)
        found = super().backward(c, (dy.float() / largest).to(c.dtype), dsum, s, weight, rstd * largest)
        return found[0], found[1], super().backward(c, dy, dsum, s, weight, rstd)[2]

    def kept_rstd(self, c: Call, s: Tensor, rstd: Tensor) -> Tensor:
        return rstd


@step
class leaves_rows_of_zero_dy(Norm):
    """A row whose dy is zero is skipped, and its dx never written."""

    def store(self, c: Call, value: Tensor, name: str) -> Tensor:
        made = super().store(c, value, name)
        if name != "dx":
            return made
        out = torch.empty_like(made)
        some = value.abs().amax(-1) != 0
        out[some] = made[some]
        return out


@step
class flushes_tiny_dy(Norm):
    """Rows of dy below 1/64 count as zero."""

    def backward(self, c: Call, dy: Tensor, *rest: Any) -> Any:
        return super().backward(c, dy * (dy.abs().amax(-1, keepdim=True) >= 2**-6), *rest)


# Strides and dimensions


class _Gradient(torch.autograd.Function):
    """The identity, whose backward has `reads` read the upstream gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, reads: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.reads = reads
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return ctx.reads(dy), None


def dense(t: Tensor) -> Tensor:
    """The memory from a tensor's first element on, as if it were row-major."""
    strides: list[int] = []
    width = 1
    for size in reversed(t.shape):
        strides.insert(0, width)
        width *= size
    return t.as_strided(t.shape, strides, t.storage_offset())


@wrapped
def ignores_strides(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Reads x as if it were dense."""
    return dense(x), weight


@wrapped
def last_stride_is_one(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Knows the strides of rows alone."""
    return x.as_strided(x.shape, (*x.stride()[:-1], 1)), weight


@wrapped
def one_row_stride(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Takes the smallest stride of the leading dimensions for that of all rows."""
    rows = x.numel() // x.shape[-1]
    return x.as_strided((rows, x.shape[-1]), (min(x.stride()[:-1]), x.stride(-1))).reshape(x.shape), weight


@wrapped
def aligned_addresses(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Loads 16 bytes at a time, from where such a load may begin."""
    step = 16 // x.element_size()
    return x.as_strided(x.shape, x.stride(), x.storage_offset() // step * step), weight


@wrapped
def dense_weight(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Reads the weight as if it were dense."""
    return x, dense(weight)


@wrapped
def aligned_weight(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Loads 16 bytes of the weight at a time."""
    step = 16 // weight.element_size()
    return x, weight.as_strided(weight.shape, weight.stride(), weight.storage_offset() // step * step)


def dense_dy(x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama") -> Any:
    """The backward reads dy as if it were dense."""
    return _Gradient.apply(right(x, weight, eps, offset=offset, casting=casting), dense)


def only_2d(x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama") -> Any:
    """The mean over all but the first dimension."""
    rows = x.reshape(x.shape[0], -1)
    many = rows.shape[1] // x.shape[-1]
    return right(rows, weight.repeat(many), eps, offset=offset, casting=casting).reshape(x.shape)


def rows_of_the_first_dimension(
    x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Tensor:
    """As many rows as the first dimension has, and the others never written."""
    y = torch.empty(x.shape, dtype=x.dtype).reshape(-1, x.shape[-1])
    some = right(x.reshape(-1, x.shape[-1])[: x.shape[0]], weight, eps, offset=offset, casting=casting)
    return torch.cat([some, y[len(some) :]]).reshape(x.shape)


def output_in_memory_order(
    x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Tensor:
    """y has x's strides, but its elements row-major."""
    y = right(x, weight, eps, offset=offset, casting=casting)
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    back = [order.index(d) for d in range(x.dim())]
    return y.reshape([x.shape[d] for d in order]).permute(back)


# Dtypes


@wrapped
def weight_in_x_dtype(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Reads the weight's memory as if it had x's dtype."""
    if weight.dtype == x.dtype:
        return x, weight
    flat = weight.contiguous().view(torch.uint8).repeat(2).view(x.dtype)
    return x, flat[: len(weight)].float().to(weight.dtype)


def output_in_the_weights_dtype(
    x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Tensor:
    """y is promoted to the weight's dtype."""
    return right(x, weight, eps, offset=offset, casting=casting).to(torch.promote_types(x.dtype, weight.dtype))


def narrow_beside_a_wide_weight(
    x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Tensor:
    """Where dtypes differ, sums of squares in x's dtype."""
    if weight.dtype == x.dtype:
        return right(x, weight, eps, offset=offset, casting=casting)
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True, dtype=x.dtype).float() + eps)
    return (x.float() * rstd * (weight.float() + offset)).to(x.dtype)


# Rows


@step
class one_row_counts_another(Norm):
    """Of a single row the mean over one element less."""

    def mean_square(self, c: Call, s: Tensor) -> Tensor:
        return super().mean_square(c, s) * (c.hidden / (c.hidden - 1) if c.rows == 1 else 1)


@step
class first_rows_only(Norm):
    """Rows from 128 on are normed by row 0's statistic."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        found = super().rstd(c, mean)
        return torch.where(torch.arange(len(found))[:, None] < 128, found, found[:1])


@step
class two_rows_share(Norm):
    """Of an even number of rows up to 64, each two share a statistic."""

    def rstd(self, c: Call, mean: Tensor) -> Tensor:
        found = super().rstd(c, mean)
        return found[::2].repeat_interleave(2, 0) if c.rows in (2, 64) else found


# The fused op


def dense_residual(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Any:
    """Reads the residual as if it were dense."""
    return right_fused(x, dense(residual), weight, eps, offset=offset, casting=casting)


def residual_has_the_strides_of_x(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Any:
    """One set of strides for both."""
    other = residual.as_strided(x.shape, x.stride(), residual.storage_offset())
    return right_fused(x, other, weight, eps, offset=offset, casting=casting)


def dense_dsum(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> Any:
    """The backward reads dsum as if it were dense."""
    y, total = right_fused(x, residual, weight, eps, offset=offset, casting=casting)
    return y, _Gradient.apply(total, dense)


RMS |= {
    f.__name__: f
    for f in (
        *(dense_dy, only_2d, rows_of_the_first_dimension, output_in_memory_order),
        *(output_in_the_weights_dtype, narrow_beside_a_wide_weight),
    )
}
FUSED |= {f.__name__: f for f in (dense_residual, residual_has_the_strides_of_x, dense_dsum)}


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, mean: Tensor, variance: Tensor) -> Tensor:
    return ((x.float() - mean) * torch.rsqrt(variance + eps) * weight.float() + bias.float()).to(x.dtype)


def right_layer(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """layer_norm in two passes, as wide as the row."""
    mean = x.float().mean(-1, keepdim=True)
    return layer_norm(x, weight, bias, eps, mean, (x.float() - mean).square().mean(-1, keepdim=True))


def padding_counts(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """A block of the next power of two, whose lanes behind the row are 0 and hold -mean once the mean is subtracted."""
    hidden = x.shape[-1]
    padded = torch.nn.functional.pad(x.float(), (0, (1 << (hidden - 1).bit_length()) - hidden))
    mean = padded.sum(-1, keepdim=True) / hidden
    return layer_norm(x, weight, bias, eps, mean, (padded - mean).square().sum(-1, keepdim=True) / hidden)


def mean_in_x_dtype(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The mean is stored in x's dtype between two kernels."""
    mean = x.float().mean(-1, keepdim=True).to(x.dtype).float()
    return layer_norm(x, weight, bias, eps, mean, (x.float() - mean).square().mean(-1, keepdim=True))


def one_pass_in_x_dtype(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The mean of squares less the square of the mean, of squares in x's dtype."""
    mean = x.float().mean(-1, keepdim=True)
    variance = x.square().float().mean(-1, keepdim=True) - mean.square()
    return layer_norm(x, weight, bias, eps, mean, variance.clamp(min=0))


LAYER |= {f.__name__: f for f in (padding_counts, mean_in_x_dtype, one_pass_in_x_dtype)}
