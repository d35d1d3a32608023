"""The op rms_norm_quantize: (add and) rms_norm, then symmetric quantisation, with a scale of a row, of 128 columns, or
given.

y = x / sqrt(mean(x^2) + eps) * weight      (Zhang and Sennrich, arXiv:1910.07467, equation 4; not rounded)
dynamic: scale = max|y| / L,  q = y / scale, rounded half to even;  where scale is 0, infinite or NaN, q is 0
static:  q = y / static_scale, rounded half to even and saturated; a NaN is NaN, in int8 0

L is the largest value of q's dtype: 127 of int8, 448 of float8_e4m3fn, 240 of float8_e4m3fnuz.  int8 saturates at -128
and 127, floats at -L and L.  With a residual, x is x + residual, added in float32 and rounded to x's dtype, and `sum`
is an output.

The scheme is that of vLLM's scaled_int8_quant (max|y| / 127, no lower bound, static: cvt.rni.sat), of its fp8 ones but
for their lower bound of the scale, and of CANN's AddRmsNormDynamicQuant (row_max(|y|) / 127); all read on 2026-11-23.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farm.contracts import gates as g
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes
from farm.contracts.dtypes import get
from farm.contracts.layouts import LEADING, STRIDES
from farm.contracts.ops.rms import SPILL_FREE, half_of, interpreted_forward, rounded

#: How far from a rounding tie float32 arithmetic may still fall to the other side, in quantisation steps.
TIE_WIDTH = 2.0**-9
#: q's dtype -> (lowest value of a static q, the divisor L).
RANGES = {"int8": (-128.0, 127.0), "float8_e4m3fn": (-448.0, 448.0), "float8_e4m3fnuz": (-240.0, 240.0)}
#: The given scale is a whole multiple of the step, about 0.01: of int8 a fifth of plain rows saturates.
_STEPS, _STEP = (1000, 1700), 2.0**-17


class RmsNormQuantize(Contract):
    """Outputs of different dtypes; q is judged by its distance from the unrounded ratio.

    `sum` says of what y is the norm: of the rounded sum, or of x + residual as float32 holds it, where implementations
    differ.  A cell of an older run lacks some parameters, and is what their defaults make of it.
    """

    op = "rms_norm_quantize"
    version = 1
    dimensions = (Dimension("rows", 0, 2**40), Dimension("hidden", 1, 2**30))
    parameters = (
        Parameter("eps", float, 1e-6, low=0.0, positional=True),
        Parameter("quantized", str, "int8", allowed=tuple(RANGES)),
        Parameter("group", int, 0, allowed=(0, 128)),  # columns that share a scale; 0: all
        Parameter("residual", bool, False, nullifies="residual"),
        Parameter("static", bool, False, nullifies="static_scale"),
        Parameter("sum", str, "rounded", allowed=("rounded", "unrounded"), declared=True),
    )
    check_sizes = {"hidden": 256}
    check_values = {"quantized": ("float8_e4m3fn",), "group": (128,), "residual": (True,), "static": (True,)}
    typed = ("x", "weight")
    operations = ("forward", "no-grad-forward")  # ours has no backward, and refuses what requires grad
    families = ("mixed", "normal", "outlier", "alternating", "tiny", "large", "nan", "inf", "signed", "large_weight")
    layouts = {"x": (*STRIDES, *LEADING), "weight": ("strided", "offset"), "residual": STRIDES}
    spill_free = SPILL_FREE

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """x, residual [rows, hidden], weight [hidden], static_scale float32 [1]; q [rows, hidden], scale float32
        [rows, groups] where none is given, sum as x where there is a residual."""
        shape = rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        dtype = cell.dtypes["x"]
        found = [
            Tensor("x", dtype, shape, "input"),
            Tensor("weight", cell.dtypes["weight"], (hidden,), "input", blocked=False),
        ]
        if _has(cell, "residual"):
            found.append(Tensor("residual", dtype, shape, "input"))
        if _has(cell, "static"):
            found.append(Tensor("static_scale", "float32", (1,), "input", blocked=False))
        found.append(Tensor("q", _quantized(cell), shape, "output"))
        if not _has(cell, "static"):
            found.append(Tensor("scale", "float32", (rows, hidden // _group(cell)), "output"))
        if _has(cell, "residual"):
            found.append(Tensor("sum", dtype, shape, "output"))
        return tuple(found)

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """x and residual in the family's kinds, weight varied; a positive given scale."""
        (rows, hidden), dtype = (cell.dims["rows"], cell.dims["hidden"]), cell.dtypes["x"]
        made = {
            "x": family.rows("x", block, hidden, dtype, total=rows),
            "weight": family.vector("weight", hidden, cell.dtypes["weight"]),
        }
        if _has(cell, "residual"):
            made["residual"] = half_of(family.rows("residual", block, hidden, dtype, total=rows), made["x"], dtype)
        if _has(cell, "static"):
            made["static_scale"] = (family.integers("static_scale", (0, 1), 1, *_STEPS)[0] * _STEP).astype(np.float32)
        return made

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """q, of int8 rounded; scale float64 [rows, groups]; sum; and `q.real`, the ratio y / scale, saturated."""
        total, y = _normed(inputs, cell)
        to = _quantized(cell)
        found = {"sum": total} if _has(cell, "residual") else {}
        if _has(cell, "static"):
            real = _saturated(y / inputs["static_scale"].astype(np.float64), to)
        else:
            scale = _scale(y, to, _group(cell))
            real, found["scale"] = _ratio(y, scale), scale
        return {"q": np.rint(real).astype(np.int8) if to == "int8" else real, "q.real": real, **found}

    def judge(
        self, cell: CellLike, outputs: Mapping[str, Array], reference: Mapping[str, Array], block: tuple[int, int]
    ) -> dict[str, dict[str, float]] | None:
        """q: `max_steps`, the largest |q - y/scale| in steps.  Half a step is rounding; a q on the other side of a tie
        is right only within TIE_WIDTH of it.  A NaN is right where the reference is one."""
        if "q" not in outputs:
            return None
        real, q = reference["q.real"], outputs["q"]
        with np.errstate(invalid="ignore"):
            steps = np.abs(q - real) / _step(real, _quantized(cell))
        neither = np.isnan(real) & np.isnan(q)
        steps = np.where(np.isnan(steps), np.where(neither, 0.0, np.inf), steps)
        return {"q": {"max_steps": float(steps.max(initial=0.0))}}

    def faults(
        self, inputs: Mapping[str, Array], cell: CellLike, correct: Mapping[str, Array]
    ) -> dict[str, dict[str, Array]]:
        """The faults of quantising kernels: how q is rounded and saturated, and with which scale."""
        to, group = _quantized(cell), _group(cell)
        largest = RANGES[to][1]
        _, y = _normed(inputs, cell)
        real = correct["q.real"]
        found = {"rounded towards zero": {"q": _truncated(real, to)}}
        coarse = cell.dtypes["x"] != "float32"  # in float32 to round the norm is no fault
        narrow = rounded(y, cell.dtypes["x"])
        if _has(cell, "static"):
            given = inputs["static_scale"].astype(np.float64)
            ratio = y / given
            found["not saturated"] = {"q": _wrapped(ratio) if to == "int8" else ratio}
            found["multiplied by the scale"] = {"q": _saturated(y * given, to)}
            if coarse:
                found["norm rounded first"] = {"q": _saturated(narrow / given, to)}
            return {name: {"q": _finished(made["q"], to)} for name, made in found.items()}
        scale = correct["scale"]

        def with_scale(used: Array, values: Array = y) -> Array:
            return _saturated(_ratio(values, used), to)

        first = np.roll(scale, 1, axis=0)
        found["the scale of the row before"] = {"q": with_scale(first), "scale": first}
        found["q with the scale of the row before"] = {"q": with_scale(first)}
        found["scale inverted"] = {"scale": np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)}
        found["largest value one too large"] = {
            "q": with_scale(scale * largest / (largest + 1)), "scale": scale * largest / (largest + 1)
        }  # fmt: skip
        found["maximum without abs"] = {"scale": _scale(np.maximum(y, 0.0), to, group)}
        if coarse:
            found["norm rounded first"] = {"q": with_scale(_scale(narrow, to, group), narrow)}
        found["maximum without the last column"] = {"scale": _scale(y[:, :-1], to, group, pad=1)}
        if group < y.shape[1]:
            beside = np.roll(scale, 1, axis=1)
            found["q with the scale of the group before"] = {"q": with_scale(beside)}
            found["one scale a row"] = {"scale": np.broadcast_to(scale.max(axis=1, keepdims=True), scale.shape)}
            found["groups one column off"] = {"scale": _scale(np.roll(y, 1, axis=1), to, group)}
        return {name: {k: _finished(v, to) if k == "q" else v for k, v in made.items()} for name, made in found.items()}

    def work(self, cell: CellLike) -> Work:
        """Each tensor once; 7 operations an element, and one more for a residual."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        residual, static = _has(cell, "residual"), _has(cell, "static")
        matrix = rows * hidden * nbytes(cell.dtypes["x"])
        read = (1 + residual) * matrix + hidden * nbytes(cell.dtypes["weight"]) + 4 * static
        scales = 0 if static else 4 * rows * (hidden // _group(cell))
        return Work(read, rows * hidden + scales + residual * matrix, {"vector": (7 + residual) * rows * hidden})

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """scale as any float32 statistic; q within half a step, and a tie's width for float32 arithmetic; sum as one
        addition."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        growth = g.root_growth(hidden, 16384)
        found = {"q": {"max_steps": 0.5 + TIE_WIDTH * growth}}
        if not _has(cell, "static"):
            groups = hidden // _group(cell)
            found["scale"] = g.limits(g.SINGLE["float32"], groups, rows * groups, growth=growth)
        if _has(cell, "residual"):
            found["sum"] = g.limits(g.ADDED[cell.dtypes["x"]], hidden, rows * hidden)
        return found

    def supports(self, cell: CellLike, target: str | None = None) -> str | None:
        """Whole groups only, and one given scale."""
        hidden, group = cell.dims["hidden"], _group(cell)
        if _has(cell, "static") and cell.params.get("group", 0):
            return "a given scale is one for all elements, so group must be 0"
        return None if hidden % group == 0 else f"hidden must be a multiple of the group, {group}, but is {hidden}"

    def interpreted_seconds(self, cell: CellLike) -> float:
        return interpreted_forward(cell.dims["rows"], cell.dims["hidden"])


def _quantized(cell: CellLike) -> str:
    """The dtype of q; int8 in runs that are older than the parameter."""
    return str(cell.params.get("quantized", "int8"))


def _group(cell: CellLike) -> int:
    """Columns that share a scale, at least 1."""
    return int(cell.params.get("group", 0)) or cell.dims["hidden"]


def _has(cell: CellLike, name: str) -> bool:
    """Whether the cell has a residual, or a given scale; neither in runs that are older."""
    return bool(cell.params.get(name, False))


def _normed(inputs: Mapping[str, Array], cell: CellLike) -> tuple[Array, Array]:
    """The sum, unrounded, and y, float64 [rows, hidden]."""
    x = inputs["x"].astype(np.float64)
    total = x
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if _has(cell, "residual"):
            total = x + inputs["residual"]
            single = total.astype(np.float32).astype(np.float64)  # kernels of 16 bits add in float32 first
            x = single if cell.params.get("sum") == "unrounded" else rounded(single, cell.dtypes["x"])
        mean = np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1]
        return total, x / np.sqrt(mean + cell.params["eps"]) * inputs["weight"].astype(np.float64)


def _scale(y: Array, to: str, group: int, pad: int = 0) -> Array:
    """max|y| / L of each group, [rows, groups]; `pad` columns of zeros are added."""
    if pad:
        y = np.concatenate([y, np.zeros((len(y), pad))], axis=1)
    with np.errstate(invalid="ignore"):
        found: Array = np.abs(y.reshape(len(y), y.shape[1] // group, group)).max(axis=2) / RANGES[to][1]
    return found


def _ratio(y: Array, scale: Array) -> Array:
    """y / scale of each group; 0 where the scale is 0, infinite or NaN."""
    groups = y.reshape(*scale.shape, y.shape[1] // max(scale.shape[1], 1))
    usable = (scale > 0) & np.isfinite(scale)
    each = np.broadcast_to(usable[:, :, None], groups.shape)
    with np.errstate(invalid="ignore"):
        found: Array = np.divide(groups, scale[:, :, None], out=np.zeros_like(groups), where=each).reshape(y.shape)
    return found


def _saturated(ratio: Array, to: str) -> Array:
    """Clamped to what q's dtype holds; NaN stays, in int8 it is 0."""
    found: Array = np.clip(ratio, *RANGES[to])
    return np.where(np.isnan(found), 0.0, found) if to == "int8" else found


def _finished(values: Array, to: str) -> Array:
    return np.rint(values) if to == "int8" else values


def _truncated(real: Array, to: str) -> Array:
    """Rounded towards zero to q's dtype."""
    step = _step(real, to)
    with np.errstate(invalid="ignore"):
        found: Array = np.trunc(real / step) * step
    return found


def _wrapped(ratio: Array) -> Array:
    """Rounded, and what eight bits of it are."""
    whole = np.rint(np.where(np.isfinite(ratio), np.clip(ratio, -(2.0**31), 2.0**31 - 1), 0.0))
    found: Array = (whole + 128) % 256 - 128
    return found


def _step(values: Array, dtype: str) -> Array:
    """The distance of neighbours of q's dtype at `values`."""
    if dtype == "int8":
        return np.ones_like(values)
    d = get(dtype)
    exponent = np.frexp(np.abs(values))[1] - 1
    return np.ldexp(1.0, np.maximum(exponent, d.smallest) - (d.precision - 1))


CONTRACT = RmsNormQuantize()
