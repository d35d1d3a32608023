"""Layouts in the child: the same values placed otherwise, between NaN that no call may read or overwrite."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from farm.child import measure, placing, provider_call  # noqa: E402
from farm.child.checked_calls import CheckedCalls  # noqa: E402
from farm.child.findings import disqualifying  # noqa: E402
from farm.contracts import layouts  # noqa: E402
from farm.errors import WrongAnswer  # noqa: E402

CPU = torch.device("cpu")
ROWS, WIDTH = 12, 5


def plans(layout: dict[str, str], operation: str = "backward") -> list[dict[str, Any]]:
    whole: list[dict[str, Any]] = [
        {"name": "x", "role": "input", "shape": [ROWS, WIDTH]},
        {"name": "w", "role": "input", "shape": [WIDTH], "blocked": False},
        {"name": "dy", "role": "upstream", "shape": [ROWS, WIDTH]},
        {"name": "dx", "role": "gradient", "shape": [ROWS, WIDTH], "of": "x"},
        {"name": "dw", "role": "gradient", "shape": [WIDTH], "of": "w", "blocked": False},
    ]
    if operation == "forward":
        whole = [*whole[:2], {"name": "y", "role": "output", "shape": [ROWS, WIDTH]}]
    more: dict[str, Any] = {"dtype": "float32", "file": "there", "blocked": True}
    return [layouts.described({**more, **p}, layout, ROWS) for p in whole]


def values(plan: dict[str, Any]) -> Any:
    generator = torch.Generator().manual_seed(len(plan["name"]))
    return torch.randn(plan["shape"], generator=generator)


def problem(found: list[dict[str, Any]], operation: str) -> provider_call.Problem:
    by_name = {p["name"]: placing.placed(values(p), p) for p in found if p["role"] in ("input", "upstream")}
    inputs = [by_name[p["name"]].requires_grad_(True) for p in found if p["role"] == "input"]
    wrt = [by_name[p["of"]] for p in found if p["role"] == "gradient"]
    return provider_call.Problem(inputs, [by_name["dy"]] if "dy" in by_name else [], wrt, operation)


def right(x: Any, w: Any) -> Any:
    return x * w + x.sum(-1, keepdim=True)


def called(function: Any, layout: dict[str, str], operation: str = "backward") -> tuple[tuple[Any, ...], CheckedCalls]:
    found = plans(layout, operation)
    calls = CheckedCalls(CPU, found, problem(found, operation), values, lambda: None)
    outputs = calls.first(function)
    assert calls.others(function, stranger=True) is None
    return outputs, calls


EVERY: list[dict[str, str]] = (
    [{"x": name} for name in layouts.LAYOUTS if name != "dense"]
    + [{"dy": name} for name in layouts.STRIDES]
    + [{"w": "strided"}, {"w": "offset"}, {"x": "heads", "dy": "transposed"}]
)


@pytest.mark.parametrize("layout", EVERY, ids=str)
@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_a_call_gets_the_same_values_and_its_answers_are_those_of_dense_ones(
    layout: dict[str, str], operation: str
) -> None:
    dense, _ = called(right, {}, operation)
    outputs, calls = called(right, layout, operation)
    assert [t.shape for t in outputs] == [t.shape for t in dense]
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(outputs, dense)) and calls.findings == []


@pytest.mark.parametrize("name", ["row_strided", "packed", "strided", "offset"])
def test_what_lies_between_the_elements_is_nan_and_no_call_may_write_there(name: str) -> None:
    def writes_beside(x: Any, w: Any) -> Any:
        y = right(x, w)
        placing.whole(x)[-1] = 0.0
        return y

    plan = plans({"x": name})[0]
    made = placing.placed(values(plan), plan)
    assert torch.equal(made, values(plan)) and made.data_ptr() % 16 == (4 if name == "offset" else made.data_ptr() % 16)
    everything = placing.whole(made)
    assert int(torch.isnan(everything).sum()) == everything.numel() - made.numel() >= 128
    _, calls = called(writes_beside, {"x": name}, "forward")
    assert disqualifying(calls.findings)[0].startswith("changed its inputs")


def test_a_tensor_without_a_layout_is_handed_on_as_it_is() -> None:
    plan = plans({})[0]
    given = values(plan)
    assert placing.placed(given, plan) is given and placing.with_rows(plan, given) is given
    split = plans({"x": "3d"})[2]  # dy, dense, whose rows are split with those of x
    assert placing.placed(given, split).shape == (3, 4, WIDTH) and placing.placed(given, split).is_contiguous()


@pytest.mark.parametrize("wrong", [lambda x, w: right(x, w).reshape(ROWS, WIDTH), lambda x, w: right(x, w).mT])
def test_an_output_whose_rows_are_not_split_as_the_inputs_are_is_a_wrong_answer(wrong: Any) -> None:
    with pytest.raises(WrongAnswer, match=r"y has the shape .* but \[2, 2, 3, 5\] expected"):
        called(wrong, {"x": "4d"}, "forward")


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_buffers_that_are_timed_have_the_layout_too(layout: dict[str, str]) -> None:
    own = problem(plans(layout), "backward")
    for made in (measure.copied(own), measure.rolled(own, 1), measure.drawn(own, 1)):
        for a, b in zip((*own.inputs, *own.upstream), (*made.inputs, *made.upstream)):
            assert (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())
            assert placing.whole(b).data_ptr() != placing.whole(a).data_ptr() and bool(torch.isfinite(b).all())
    copied = measure.copied(own)
    assert all(torch.equal(a, b) for a, b in zip(own.inputs, copied.inputs))
    assert not torch.equal(measure.rolled(own, 1).inputs[0], own.inputs[0])
