"""Inputs that are not finite: what must come out, and that no correct kernel is accused of it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from test_accuracy_evaluate import DTYPES, NORMS, cell, inputs_of, kernel, right_outputs, run

from farm.accuracy import evaluate as core
from farm.accuracy import prepare
from farm.accuracy.dtypes import decode, encode
from farm.accuracy.evaluate import fill_reference
from farm.contracts.discovery import contract

FAMILIES = ("nan", "inf")
SHAPES = [(16, 256), (3, 63), (1, 1), (1, 4096), (2, 1), (5, 2048)]


@pytest.mark.parametrize("operation", ["forward", "backward", "full"])
@pytest.mark.parametrize("op", NORMS)
def test_the_reference_is_ieee_arithmetic_row_by_row_and_warns_of_nothing(op: str, operation: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in FAMILIES:
            c = cell(op, "bfloat16", operation, dims=(6, 300), family=family)
            found = fill_reference(c, contract(op), inputs_of(c))
            assert run(c).ok
            spoiled, clean = slice(0, None, 2), slice(1, None, 2)
            for name in {"y", "sum", "dx", "dresidual"} & set(found):
                assert np.isfinite(found[name][clean]).all() and not np.isfinite(found[name][spoiled]).all()
            if "dx" in found:
                assert np.isnan(found["dx"][spoiled]).all()
            if "y" in found and family == "nan":
                assert np.isnan(found["y"][spoiled]).all()
            elif "y" in found:
                assert 3 <= np.isnan(found["y"][spoiled]).sum() <= 6  # where an infinity is, one a summand
                assert not found["y"][spoiled][np.isfinite(found["y"][spoiled])].any()
            if "dw" in found:
                share = np.isnan(found["dw"]).mean()
                assert share == 1 if family == "nan" else 0 < share < 0.05


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulated kernel computes with them
@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", NORMS)
def test_correct_kernels_pass(op: str, dtype: str, dims: tuple[int, int]) -> None:
    for family in FAMILIES:
        for operation in ("forward", "backward"):
            for casting in ("llama", "gemma", "none"):
                for seed in range(3):
                    c = cell(op, dtype, operation, casting=casting, dims=dims, family=family, seed=seed, offset=1.0)
                    found = run(c, kernel(c, casting))
                    assert found.ok, found.reason
                    assert all(np.isfinite(v) for m in found.metrics.values() for v in m.values())


def nan_swallowed(y: Any) -> Any:
    return np.nan_to_num(y)


def leaks_into_the_next_row(y: Any) -> Any:
    y[1, 3] = np.nan
    return y


def one_element_is_lost(y: Any) -> Any:
    """In a row whose other elements are all NaN, or zero."""
    y[0, 7] = 3.5
    return y


def infinity_stays(y: Any) -> Any:
    y[1, 5] = np.inf
    return y


@pytest.mark.parametrize("fault", [nan_swallowed, leaks_into_the_next_row, one_element_is_lost, infinity_stays])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["y", "dx"])
def test_faults_fall(name: str, family: str, fault: Any) -> None:
    c = cell("rms_norm", "bfloat16", "forward" if name == "y" else "backward", family=family)
    outputs = right_outputs(c)
    assert run(c, outputs).ok
    outputs[name] = encode(fault(decode(outputs[name], "bfloat16")), "bfloat16")
    found = run(c, outputs)
    assert not found.ok and found.worst_output == name
    assert found.worst_metric == "nonfinite" or (family, fault) == ("inf", one_element_is_lost)


def test_a_clean_column_of_dw_is_held_beside_one_that_is_not() -> None:
    c = cell("rms_norm", "float32", "backward", family="inf")
    outputs = right_outputs(c)
    column = int(np.flatnonzero(np.isfinite(outputs["dw"]))[5])
    outputs["dw"][column] *= 1.01
    found = run(c, outputs)
    assert not found.ok and (found.worst_output, found.worst_metric) == ("dw", "max_ulp")


def test_a_sum_at_an_infinity_keeps_its_sign() -> None:
    c = cell("fused_add_rms_norm", "float32", family="inf", dims=(8, 64))
    outputs = right_outputs(c)
    at = np.argwhere(np.isinf(outputs["sum"]))[0]
    outputs["sum"][tuple(at)] *= -1
    found = run(c, outputs)
    assert not found.ok and found.worst_output == "sum" and found.metrics["sum"]["nonfinite"] == 1


def test_a_sampled_cell_with_rows_that_are_not_finite_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SAMPLE_ABOVE", 1000)
    monkeypatch.setattr(prepare, "SAMPLE_ROWS", 8)
    for family in FAMILIES:
        c = cell("rms_norm", "bfloat16", "full", dims=(64, 32), family=family)
        outputs = {n: encode(a, "bfloat16") for n, a in _whole_reference(c).items()}
        found = run(c, outputs)
        assert found.ok and found.sampled_rows == len(core.row_sample(c, 64 * 32)), found.reason
        chosen = core.row_sample(c, 64 * 32)
        outputs["y"][next(r for r in chosen if r % 2), 3] = 0x7FC0
        assert not run(c, outputs).ok


def _whole_reference(c: Any) -> dict[str, Any]:
    op = contract(c.op)
    made = core.make_reference(c, op, inputs_of(c), (0, core.row_count(c)))
    return {name: a for name, a in made.items() if "." not in name}
