"""Tensors without rows are made and decoded once for all blocks, and give the same values as in each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch_contracts import cell_of, evaluated_here

from farm.accuracy import evaluate, prepare
from farm.accuracy.inputs import Family, WholeOnce
from farm.contracts import discovery

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("op", ["matmul", "rms_norm", "layer_norm", "rms_norm_quantize"])
@pytest.mark.parametrize("family", ["mixed", "normal"])
def test_blocks_make_what_one_block_makes(op: str, family: str) -> None:
    contract = discovery.contract(op)
    cell = cell_of(contract, "forward", "bfloat16", family=family, **{contract.dimensions[0].name: 9})
    whole, parts = (evaluate.fill_inputs(cell, contract, rows_per_block=n) for n in (9, 2))
    assert whole.keys() == parts.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(values, parts[name])


def test_a_whole_tensor_is_made_once_and_may_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    plain = Family.normal

    def normal(self: Family, name: str, block: tuple[int, int], *rest: Any, **how: Any) -> Any:
        made.append((name, block))
        return plain(self, name, block, *rest, **how)

    monkeypatch.setattr(Family, "normal", normal)
    contract = discovery.contract("matmul")
    evaluate.fill_inputs(cell_of(contract, m=6, n=4, k=4), contract, rows_per_block=2)
    assert made == [("a", (0, 2)), ("b", (0, 4)), ("a", (2, 4)), ("a", (4, 6))]
    family = WholeOnce(Family("normal", 1)).of_block((0, 2))
    family.vector("w", 5, "float32")[:] = 0
    assert family.vector("w", 5, "float32").any() and family.asked == Family("normal", 1).asked


def test_a_matmul_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.contracts.ops.matmul import contract as module

    contract = discovery.contract("matmul")
    cell = cell_of(contract, "forward", "float32", m=5, n=7, k=9)
    inputs = evaluate.fill_inputs(cell, contract)
    whole = evaluate.fill_reference(cell, contract, inputs)
    monkeypatch.setattr(module, "_CHUNK", 20)
    monkeypatch.setattr(prepare, "KEPT_ELEMENTS", 1)  # decoded once
    for name, values in evaluate.fill_reference(cell, contract, inputs, rows_per_block=2).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries, keys", [(9, 9), (5, 12), (12, 5)])
def test_attention_by_blocks_of_queries_is_attention(
    causal: bool, queries: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.contracts.ops.attention import contract as module

    contract = discovery.contract("attention")
    sizes = {"batch": 2, "shared": 2, "kv_heads": 1, "queries": queries, "keys": keys, "width": 4, "causal": causal}
    cell = cell_of(contract, "full", "float32", **sizes)
    with evaluated_here():
        inputs = evaluate.fill_inputs(cell, contract)
        whole = evaluate.fill_reference(cell, contract, inputs)
        monkeypatch.setattr(module, "SCORES", 2 * 2 * 2 * keys)
        for name, values in evaluate.fill_reference(cell, contract, inputs).items():
            np.testing.assert_allclose(values, whole[name], rtol=1e-4 if "own" in name else 1e-9, atol=1e-6)
