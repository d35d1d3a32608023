"""Tolerances that follow from a function's own error: no correct kernel is accused because one sample was small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from farm.accuracy import evaluate  # noqa: E402
from farm.accuracy.dtypes import decode, encode  # noqa: E402
from farm.child import reference  # noqa: E402
from farm.contracts import Spec, discovery, from_torch, own_errors  # noqa: E402
from tests.pure.torch_contracts import cell_of, evaluated_here  # noqa: E402


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    with evaluated_here():
        yield


def judged(contract: Any, cell: Any, kernel: Callable[..., Any]) -> evaluate.Judgement:
    """What the judge says of a function of tensors at the cell's dtype, and its gradients by autograd."""
    inputs = evaluate.fill_inputs(cell, contract)
    kinds = {t.name: t.dtype for t in evaluate.given_tensors(cell, contract)}
    given = {n: torch.from_numpy(np.array(decode(a, kinds[n]))).to(getattr(torch, kinds[n])) for n, a in inputs.items()}
    leaves = [given[n].requires_grad_(True) for n in contract.given]
    made = kernel(*leaves)
    (output,) = contract.made
    made.backward(given[f"d{output}"])
    found = {output: made.detach(), **{f"d{n}": t.grad for n, t in zip(contract.given, leaves)}}
    stored = {t.name: encode(found[t.name].double().numpy(), t.dtype) for t in evaluate.judged_tensors(cell, contract)}
    return evaluate.evaluate(cell, contract, stored, inputs)


def mixed(blocks: Any, query: Any) -> Any:
    keys = blocks * (blocks * 0.125).square().mean(-1, keepdim=True).rsqrt() * 0.1
    return ((keys * query).sum(-1).softmax(0).unsqueeze(-1) * blocks).sum(0)


def mixed_otherwise(blocks: Any, query: Any) -> Any:
    """In float32, but for the keys: the error of a score is common to a whole token."""
    wide = blocks.float()
    keys = (wide * 0.125).to(blocks.dtype).float()
    keys = (wide * keys.square().mean(-1, keepdim=True).rsqrt() * 0.1).to(blocks.dtype).float()
    return ((keys * query.float()).sum(-1).softmax(0).unsqueeze(-1) * wide).sum(0).to(blocks.dtype)


def test_the_error_of_few_tokens_has_more_than_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = from_torch(
        mixed,
        inputs={"blocks": Spec("depth rows hidden", kind="normal"), "query": Spec("hidden", kind="normal")},
        outputs={"h": "rows hidden"},
    )
    contract.op = "mixed"
    cell = cell_of(contract, "full", "bfloat16", depth=4, rows=3, hidden=64)
    cells = [replace(cell, seed=seed, cell_key="") for seed in range(30)]
    accused = [c.seed for c in cells if not judged(contract, c, mixed_otherwise).ok]
    assert accused == []
    monkeypatch.setattr(own_errors, "SAMPLES", ())
    assert any(not judged(contract, c, mixed_otherwise).ok for c in cells), "one sample was enough: the law is empty"


def test_samples_are_fewer_in_larger_cells_and_none_where_rows_are_independent() -> None:
    assert [own_errors.samples(n) for n in (1, 1 << 16, 1 << 24)] == [8, 4, 1]
    contract = discovery.contract("layer_norm")
    cell = cell_of(contract, "full", "bfloat16", rows=8, hidden=64)
    inputs = evaluate.fill_inputs(cell, contract)
    found = evaluate.fill_reference(cell, contract, inputs)
    assert {n for n in found if n.endswith(".others")} == {"dweight.others", "dbias.others"}
    cut = evaluate.fill_reference(cell, contract, inputs, rows_per_block=3)["dbias.others"]
    size = np.abs(found["dbias"]).max()
    assert cut.shape == found["dbias.others"].shape == (7, 64)
    for others in (cut, found["dbias.others"]):  # the shares of the blocks add up to the whole
        assert 0 < np.abs(others - found["dbias"]).max() < 0.05 * size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sample_is_no_worse_conditioned_than_the_cell_itself(dtype: str) -> None:
    """The family `mixed` has constant rows, whose variance is 0: beside them it is the error of a difference."""
    contract = discovery.contract("layer_norm")
    cell = cell_of(contract, "full", dtype, rows=40, hidden=72, family="mixed")
    found = evaluate.fill_reference(cell, contract, evaluate.fill_inputs(cell, contract))
    for name in ("dweight", "dbias"):
        own, others = (np.abs(found[f"{name}.{kind}"] - found[name]).max() for kind in ("own", "others"))
        assert others < 4 * own
        assert own / 4 < others or dtype == "float32", "there, own is also that of inputs a rounding beside these"


def normed_in_another_order(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """layer_norm in float32, whose mean is a unit beside torch's."""
    mean = x.mean(-1, keepdim=True)
    mean = mean + (torch.nextafter(mean, 2 * mean) - mean).detach()
    centred = x - mean
    return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias


def test_a_kernel_that_adds_up_in_another_order_is_not_accused_of_what_conditioning_makes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's own on a GPU is one: a constant row's mean is a unit off, which 1 / sqrt(eps) magnifies."""
    contract = discovery.contract("layer_norm")
    cells = [
        replace(cell_of(contract, "full", "float32", rows=37, hidden=1000, family="mixed"), seed=seed, cell_key="")
        for seed in range(3)
    ]
    for cell in cells:
        found = judged(contract, cell, normed_in_another_order)
        assert found.ok, found.reason
        assert not judged(contract, cell, lambda *given: normed_in_another_order(*given) * (1 + 2e-5)).ok
    monkeypatch.setattr(reference, "_LARGEST_RESPONSE", 0.0)
    assert any(not judged(contract, c, normed_in_another_order).ok for c in cells), "the law is empty"


def split(x: Any) -> Any:
    """Whatever is the row's largest; of a tie, all of it."""
    return x * (x == x.amax(-1, keepdim=True))


def test_a_tie_that_a_rounding_would_break_makes_nothing_right() -> None:
    contract = from_torch(split, inputs={"x": "rows hidden"}, outputs={"y": "rows hidden"}, rows="rows")
    contract.op = "split"
    cell = cell_of(contract, "full", "float32", rows=8, hidden=64, family="mixed")  # it has constant rows
    assert judged(contract, cell, split).ok
    assert not judged(contract, cell, lambda x: x * torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1])).ok


def softmax_through_the_maximum(x: Any) -> Any:
    grown = (x - x.amax(-1, keepdim=True)).exp()
    return grown / grown.sum(-1, keepdim=True)


@pytest.mark.parametrize("sizes", [(37, 1000), (256, 1024), (5, 200), (3, 16000)])
def test_an_element_may_have_the_rounding_errors_of_a_sum_over_its_row(sizes: tuple[int, int]) -> None:
    """The gradient through the maximum is 0, and rounded the sum of all others."""
    contract = discovery.contract("softmax")
    cell = cell_of(contract, "full", "float32", rows=sizes[0], columns=sizes[1])
    found = judged(contract, cell, softmax_through_the_maximum)
    assert found.ok, found.reason
    assert not judged(contract, cell, lambda x: softmax_through_the_maximum(x) * (1 + 2e-5)).ok


class SoftmaxStored(torch.autograd.Function):
    """Softmax as torch computes it on a GPU: y is stored, and so is dy * y."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.float().softmax(-1).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (y,) = ctx.saved_tensors
        stored = (dy.float() * y.float()).to(y.dtype).float()
        return (stored - y.float() * stored.sum(-1, keepdim=True)).to(y.dtype)


def test_a_gradient_that_a_few_elements_make_up_may_have_two_roundings() -> None:
    contract = discovery.contract("softmax")
    cell = cell_of(contract, "full", "bfloat16", rows=37, columns=128)
    cells = [replace(cell, seed=seed, cell_key="") for seed in range(12)]
    assert [c.seed for c in cells if not judged(contract, c, SoftmaxStored.apply).ok] == []
    assert not judged(contract, cell, lambda x: SoftmaxStored.apply(x) * 1.01).ok
