"""Large cells on the CPU: what the judge needs for each is printed, and planted faults are found."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from torch_contracts import cell_of, evaluated_here

from farm.accuracy import evaluate
from farm.accuracy.dtypes import encode
from farm.contracts import discovery
from farm.matrix.plan import judging_seconds

#: op, operation, sizes, the rows that are compared (None: all).
LARGE = [
    pytest.param("matmul", "forward", {"m": 16384, "n": 16384, "k": 16384}, 1026, marks=pytest.mark.soak(seconds=60)),
    pytest.param(
        "block_scaled_matmul", "forward", {"m": 16384, "n": 16384, "k": 16384}, 1026, marks=pytest.mark.soak(seconds=60)
    ),
    *(
        pytest.param(
            "attention",
            operation,
            {"batch": 1, "shared": 2, "kv_heads": 1, "queries": 4096, "keys": 32768, "width": 128},
            None,
            marks=pytest.mark.soak(seconds=seconds),
        )
        for operation, seconds in (("forward", 15), ("backward", 50))
    ),
    *(
        pytest.param(
            "cross_entropy",
            operation,
            {"rows": 512, "classes": 262144, "ignore": -100},
            None,
            marks=pytest.mark.soak(seconds=40),
        )
        for operation in ("forward", "backward")
    ),
]


@pytest.mark.parametrize("op, operation, sizes, compared", LARGE)
def test_a_large_cell_is_judged(op: str, operation: str, sizes: dict[str, int], compared: int | None) -> None:
    import torch

    contract = discovery.contract(op)
    cell = cell_of(contract, operation, contract.dtypes[0] if op == "block_scaled_matmul" else "bfloat16", **sizes)
    start, used = time.monotonic(), _cpu()
    with evaluated_here(), ThreadPoolExecutor(2) as pool:
        torch.set_num_threads(2)

        def mapped(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
            return pool.map(work, items)

        inputs = evaluate.fill_inputs(cell, contract, map=mapped)
        reference = evaluate.fill_reference(cell, contract, inputs, map=mapped)
        outputs = {t.name: _right(cell, t, reference[t.name]) for t in evaluate.judged_tensors(cell, contract)}

        def judged(found: dict[str, Any]) -> evaluate.Judgement:
            return evaluate.evaluate(cell, contract, found, inputs, reference=reference, map=mapped)

        right = judged(outputs)
        assert right.ok, right.reason
        assert right.sampled_rows == compared
        took = f"{time.monotonic() - start:.0f} s, {_cpu() - used:.0f} CPU s of {judging_seconds(cell, contract):.0f}"
        print(f"{op} {operation}: {took} estimated, peak {_peak():.1f} GiB")
        for name, values in outputs.items():
            # the last column; the last row, which of dk and dv is the key that only the last query sees
            rows = [(..., -1, slice(None))] if values.ndim > 1 else []
            for place in [(..., -1), *rows]:
                wrong = values.copy()
                wrong[place] = 0
                assert not judged({**outputs, name: wrong}).ok, f"{name}{place} is not found"


def _right(cell: Any, tensor: Any, reference: Any) -> Any:
    """The reference, rounded; zeros where it has no rows because a sample is compared."""
    if reference.shape == tuple(tensor.dims):
        return encode(reference, tensor.dtype)
    part = encode(reference, tensor.dtype)
    found = np.zeros(tensor.dims, part.dtype)
    found[evaluate.row_sample(cell, tensor.size)] = part
    return found


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
