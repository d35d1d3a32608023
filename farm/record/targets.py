"""The functions that `farm record` watches, each with its op and with what its arguments mean to that op.  Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm.errors import FarmSignal, UsageError


class UnfitCallError(FarmSignal):
    """A call that is not one of its op.  Its text says why."""


@dataclass(frozen=True)
class Given:
    """A tensor that a function was given: sizes, strides and offset in elements, and the dtype's name in PyTorch."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str

    def transposed(self) -> Given:
        """With the last two dimensions exchanged."""
        shape, strides = ((*v[:-2], v[-1], v[-2]) for v in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    def with_last_as_one(self, count: int) -> Given:
        """With the last `count` dimensions as one, where their strides allow it."""
        if count == 1:
            return self
        inner = self.strides[-1:]
        for n in reversed(self.shape[len(self.shape) - count + 1 :]):
            inner = (inner[0] * n, *inner)
        if inner[: count if count else None] != self.strides[len(self.strides) - count :]:
            raise UnfitCallError(f"strides {list(self.strides)} of which the last {count} dimensions are not one")
        kept = len(self.shape) - count
        return replace(
            self,
            shape=(*self.shape[:kept], math.prod(self.shape[kept:])),
            strides=(*self.strides[:kept], self.strides[-1]),
        )


@dataclass(frozen=True)
class OpCall:
    """What a call means to its op.  `tensors`: input -> tensor, None where it was given as None.  `params`: parameter
    -> value.  `left`: argument -> value, of those that the op has not."""

    tensors: Mapping[str, Given | None]
    params: Mapping[str, Any] = field(default_factory=dict)
    left: Mapping[str, Any] = field(default_factory=dict)


Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A function `module:attribute` that does `op`.  `after`: the module whose import must be complete before it can be
    wrapped.  `names`: of its arguments by position, where Python cannot be asked for them.  `means`: its arguments in
    the terms of the op; None: matched by name and order (`farm.record.calls.by_name`), of which `called` has those
    that the op calls otherwise."""

    path: str
    op: str
    means: Callable[[Arguments], OpCall] | None = None
    names: tuple[str, ...] = ()
    after: str = ""
    called: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return self.after or self.path.partition(":")[0]


def tensor(arguments: Arguments, name: str) -> Given:
    """An argument that must be a tensor."""
    value = arguments.get(name)
    if not isinstance(value, Given):
        raise UnfitCallError(f"{name} is not a tensor")
    return value


def _normalized(a: Arguments) -> tuple[Given, int]:
    shape = a.get("normalized_shape")
    count = len(shape) if isinstance(shape, (list, tuple)) else 1
    return tensor(a, "input").with_last_as_one(count), count


def _affine(a: Arguments, name: str, count: int) -> Given | None:
    value = a.get(name)
    return value.with_last_as_one(count) if isinstance(value, Given) else None


#: What torch takes for eps where it is given None: the distance of 1 to the next number.
_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _rms_norm(a: Arguments) -> OpCall:
    x, count = _normalized(a)
    eps = a.get("eps")
    eps = _EPSILON.get(x.dtype, 2.0**-23) if eps is None else eps
    return OpCall({"x": x, "weight": _affine(a, "weight", count)}, {"eps": eps})


def _layer_norm(a: Arguments) -> OpCall:
    x, count = _normalized(a)
    weight, bias = (_affine(a, name, count) for name in ("weight", "bias"))
    return OpCall({"x": x, "weight": weight, "bias": bias}, {"eps": a.get("eps", 1e-5)})


def _softmax(a: Arguments) -> OpCall:
    x, dim, dtype = tensor(a, "input"), a.get("dim"), a.get("dtype")
    if dim not in (-1, len(x.shape) - 1):
        raise UnfitCallError(f"dim {dim}, and the op softmax is over the last dimension")
    if dtype not in (None, x.dtype):
        raise UnfitCallError(f"dtype {dtype} for an input of {x.dtype}, and the op softmax has one dtype")
    return OpCall({"x": x})


def _cross_entropy(a: Arguments) -> OpCall:
    x, target = tensor(a, "input"), tensor(a, "target")
    if len(x.shape) != 2 or len(target.shape) != 1:
        raise UnfitCallError(f"an input of {len(x.shape)} dimensions; the op cross_entropy has [rows, classes]")
    if a.get("weight") is not None:
        raise UnfitCallError("class weights, which the op cross_entropy has not")
    params = {"ignore": a.get("ignore_index", -100), "smoothing": a.get("label_smoothing", 0.0)}
    return OpCall({"x": x, "target": target}, params, {"reduction": a.get("reduction", "mean")})


def _attention(a: Arguments) -> OpCall:
    q, k, v = (tensor(a, name) for name in ("query", "key", "value"))
    if a.get("attn_mask") is not None:
        raise UnfitCallError("an attention mask, which the op attention has not")
    if a.get("dropout_p"):
        raise UnfitCallError("dropout, which the op attention has not")
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise UnfitCallError(f"a query of {len(q.shape)} dimensions; the op attention has 4")
    scale = a.get("scale")
    if scale is not None and not math.isclose(scale, q.shape[-1] ** -0.5, rel_tol=1e-6):
        raise UnfitCallError(f"scale {scale}; that of the op attention is 1 / sqrt(width)")
    causal = bool(a.get("is_causal", False))
    if causal and q.shape[-2] != k.shape[-2]:
        raise UnfitCallError("is_causal with fewer or more queries than keys, where torch aligns the first of each")
    return OpCall({"q": q, "k": k, "v": v}, {"causal": causal})


def _matmul(a: Arguments) -> OpCall:
    left, right = tensor(a, "input"), tensor(a, "other")
    if len(right.shape) != 2 or len(left.shape) < 2:
        raise UnfitCallError(
            f"operands of {len(left.shape)} and {len(right.shape)} dimensions; the second of the op matmul has 2"
        )
    return OpCall({"a": left, "b": right})


def _linear(a: Arguments) -> OpCall:
    left, weight = tensor(a, "input"), tensor(a, "weight")
    if len(weight.shape) != 2:
        raise UnfitCallError(f"a weight of {len(weight.shape)} dimensions")
    found = {"bias": "given"} if a.get("bias") is not None else {}
    return OpCall({"a": left, "b": weight.transposed()}, left=found)


_F = "torch.nn.functional"
_PAIR = ("input", "other")
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_SOFTMAX = ("input", "dim", "dtype")
_LIGER = {"X": "x", "W": "weight", "B": "bias", "casting_mode": "casting", "dim": "", "row_mode": ""}
#: In the order in which they are wrapped.
KNOWN: tuple[Target, ...] = (
    Target(f"{_F}:rms_norm", "rms_norm", _rms_norm, after="torch"),
    Target(f"{_F}:layer_norm", "layer_norm", _layer_norm, after="torch"),
    Target(f"{_F}:softmax", "softmax", _softmax, after="torch"),
    Target("torch:softmax", "softmax", _softmax, _SOFTMAX, "torch"),
    Target("torch:Tensor.softmax", "softmax", _softmax, _SOFTMAX, "torch"),
    Target(f"{_F}:cross_entropy", "cross_entropy", _cross_entropy, after="torch"),
    Target(f"{_F}:scaled_dot_product_attention", "attention", _attention, _ATTENTION, "torch"),
    Target(f"{_F}:linear", "matmul", _linear, ("input", "weight", "bias"), "torch"),
    *(Target(f"torch:{n}", "matmul", _matmul, _PAIR, "torch") for n in ("matmul", "mm", "Tensor.matmul", "Tensor.mm")),
    Target("torch:Tensor.__matmul__", "matmul", _matmul, _PAIR, "torch"),
    *(
        Target(f"{package}.ops.{op}.function:{op}", op, called={"mode": ""})
        for package in ("kernels", "farm_kernels")
        for op in ("rms_norm", "fused_add_rms_norm")
    ),
    Target("liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply", "rms_norm", called=_LIGER),
    Target("liger_kernel.ops.layer_norm:LigerLayerNormFunction.apply", "layer_norm", called=_LIGER),
    Target("liger_kernel.ops.softmax:LigerSoftmaxFunction.apply", "softmax"),
    Target("liger_kernel.ops.swiglu:LigerSiLUMulFunction.apply", "swiglu", called={"a": "gate", "b": "up"}),
)
_FUNCTION = re.compile(
    r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=([A-Za-z_][\w.-]*)", re.ASCII
)


def asked(words: Sequence[str], ops: Sequence[str]) -> list[Target]:
    """The targets of `--function MODULE:FUNCTION=OP`.  UsageError for one that is not written so."""
    found = []
    for word in words:
        read = _FUNCTION.fullmatch(word)
        if read is None:
            raise UsageError(
                f"--function {word[:200]}: is not MODULE:FUNCTION=OP; write for example my_model.norms:rms=rms_norm",
                id="record-function-form",
            )
        path, op = read.groups()
        if op not in ops:
            raise UsageError(
                f'--function {word}: there is no op "{op}"; the ops are {", ".join(ops)}', id="record-function-op"
            )
        if path.partition(":")[0] == "__main__":
            raise UsageError(
                f"--function {word}: the functions of the started script itself cannot be watched; move them to a "
                "module that it imports",
                id="record-function-main",
            )
        found.append(Target(path, op))
    return found
