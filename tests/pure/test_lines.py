"""Lines of an output are compared one by one: a lost key of a causal attention is found, a right kernel is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from farm.accuracy import evaluate, lines  # noqa: E402
from farm.accuracy.dtypes import decode, encode  # noqa: E402
from farm.contracts import discovery, own_errors  # noqa: E402
from tests.pure.torch_contracts import cell_of, evaluated_here  # noqa: E402

SIZES = {"batch": 2, "shared": 2, "kv_heads": 2, "queries": 256, "keys": 256, "width": 16}


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    with evaluated_here():
        yield


def case(dtype: str, **sizes: int) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    contract = discovery.contract("attention")
    cell = cell_of(contract, "full", dtype, **{**SIZES, **sizes})
    inputs = evaluate.fill_inputs(cell, contract)
    return contract, cell, inputs, evaluate.fill_reference(cell, contract, inputs)


def stored(reference: dict[str, Any], dtype: str) -> dict[str, Any]:
    return {name: encode(reference[name], dtype) for name in ("o", "dq", "dk", "dv")}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["dk", "dv", "o"])
def test_one_lost_line_of_one_head_is_found_and_told(dtype: str, name: str) -> None:
    contract, cell, inputs, reference = case(dtype)
    right = stored(reference, dtype)
    assert evaluate.evaluate(cell, contract, right, inputs, reference=reference).ok
    wrong = right[name].copy()
    wrong[1, 1, 200] = 0
    found = evaluate.evaluate(cell, contract, {**right, name: wrong}, inputs, reference=reference)
    assert not found.ok and found.metrics[name]["line_max"] > 1
    assert found.places[name]["first"][:3] == [1, 1, 200] and found.places[name]["count"] == 16


def test_the_last_key_of_a_causal_attention_is_found_by_nothing_else() -> None:
    """Which one query alone sees: beside the others of its batch it is smaller than their rounding errors."""
    contract, cell, inputs, reference = case("bfloat16", batch=1, queries=2048, keys=2048)
    right = stored(reference, "bfloat16")
    wrong = right["dk"].copy()
    wrong[..., -1, :] = 0
    found = evaluate.evaluate(cell, contract, {**right, "dk": wrong}, inputs, reference=reference)
    over = [m for m, limit in found.gates["dk"].items() if found.metrics["dk"][m] > limit]
    assert over == ["line_max"]


def flash(q: Any, k: Any, v: Any, upstream: Any, dtype: Any) -> dict[str, Any]:
    """As blocked kernels do: float32, but P and dS rounded before their products, and delta from the rounded output."""

    def rounded(t: Any) -> Any:
        return t.to(dtype).float()

    shared = q.shape[1] // k.shape[1]
    q, k, v, upstream = (t.float() for t in (q, k, v, upstream))
    k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2])
    scores = scores.masked_fill(~seen, -math.inf)
    grown = (scores - scores.amax(-1, keepdim=True)).exp()
    p = grown / grown.sum(-1, keepdim=True)
    o = rounded(rounded(grown) @ v / grown.sum(-1, keepdim=True))
    ds = rounded(p * (upstream @ v.transpose(-1, -2) - (o * upstream).sum(-1, keepdim=True)))
    dk, dv = ds.transpose(-1, -2) @ q / q.shape[-1] ** 0.5, rounded(p).transpose(-1, -2) @ upstream
    dk, dv = (t.reshape(len(t), -1, shared, *t.shape[2:]).sum(2) for t in (dk, dv))
    return {"o": o, "dq": ds @ k / q.shape[-1] ** 0.5, "dk": dk, "dv": dv}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [{}, {"batch": 32, "kv_heads": 8, "queries": 16, "keys": 16}])
def test_right_attentions_stay_below_half(dtype: str, sizes: dict[str, int]) -> None:
    contract, cell, inputs, reference = case(dtype, **sizes)
    kind = getattr(torch, dtype)
    q, k, v, up = (torch.from_numpy(np.array(decode(inputs[n], dtype))).to(kind) for n in ("q", "k", "v", "do"))
    wide = [t.float().requires_grad_(True) for t in (q, k, v)]
    o = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, enable_gqa=True)
    o.backward(up.float())
    whole = {"o": o, **{f"d{n}": t.grad for n, t in zip("qkv", wide)}}
    for outputs in (whole, flash(q, k, v, up, kind)):
        given = {n: encode(t.detach().numpy().astype(np.float64), dtype) for n, t in outputs.items()}
        found = evaluate.evaluate(cell, contract, given, inputs, reference=reference)
        assert found.ok, found.reason
        assert max(of["line_max"] for of in found.metrics.values()) < 0.5


def test_lines_are_those_of_more_axes_than_the_rows_own() -> None:
    assert own_errors.has_lines((2, 4, 8, 16), blocked=True) and own_errors.has_lines((64, 16), blocked=False)
    assert not own_errors.has_lines((64, 16), blocked=True) and not own_errors.has_lines((2, 4, 4, 16), blocked=True)


def test_what_is_small_beside_the_whole_row_has_no_tolerance_of_its_own() -> None:
    want = np.ones((1, 64, 8))
    want[0, 10] = 1e-7
    got = want.copy()
    got[0, 10] = 0
    assert lines.errors(encode(got, "float32"), want, want, "float32", 6e-6).max() < 1
    want[0, 10] = got[0, 11] = 1e-2
    assert lines.errors(encode(got, "float32"), want, want, "float32", 6e-6)[0, 10:12].min() > 1
