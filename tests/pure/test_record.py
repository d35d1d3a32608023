"""farm record: what a watched call means to its op, and the matrix that is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farm.contracts import discovery
from farm.contracts.layouts import placement
from farm.errors import UsageError
from farm.matrix import builtin_providers, load_all, plan
from farm.record import matrix_text
from farm.record.calls import Counts, Recorded, Run, layout_of, recorded
from farm.record.targets import KNOWN, Given, Target, UnfitCallError, asked

TARGETS = {t.path.partition(":")[2]: t for t in KNOWN if t.path.startswith("torch")}


def given(*shape: int, dtype: str = "float32", layout: str = "dense") -> Given:
    place = placement(layout, shape)
    return Given(shape, place.strides, place.offset, dtype)


def call(function: str, **arguments: Any) -> Recorded:
    target = TARGETS[function]
    return recorded(target, discovery.contract(target.op), arguments)


@pytest.mark.parametrize(
    ("function", "arguments", "dims", "params"),
    [
        ("rms_norm", {"input": given(2, 3, 8), "normalized_shape": [8], "weight": given(8), "eps": 1e-5},
         {"rows": 6, "hidden": 8}, {"eps": 1e-5}),
        ("rms_norm", {"input": given(5, 2, 8), "normalized_shape": [2, 8], "weight": None, "eps": None},
         {"rows": 5, "hidden": 16}, {"eps": 2.0**-23, "weight": False}),
        ("layer_norm", {"input": given(8), "normalized_shape": [8], "weight": given(8), "bias": given(8), "eps": 1e-5},
         {"rows": 1, "hidden": 8}, {}),
        ("softmax", {"input": given(2, 3, 4), "dim": 2}, {"rows": 6, "columns": 4}, {}),
        ("cross_entropy", {"input": given(9, 5), "target": given(9, dtype="int64"), "label_smoothing": 0.1},
         {"rows": 9, "classes": 5}, {"smoothing": 0.1}),
        ("scaled_dot_product_attention",
         {"query": given(2, 6, 4, 8), "key": given(2, 3, 7, 8), "value": given(2, 3, 7, 8), "scale": 8**-0.5},
         {"batch": 2, "shared": 2, "kv_heads": 3, "queries": 4, "keys": 7, "width": 8}, {"causal": False}),
        ("Tensor.__matmul__", {"input": given(2, 3, 4), "other": given(4, 5)}, {"m": 6, "n": 5, "k": 4}, {}),
    ],
)  # fmt: skip
def test_a_call_has_the_sizes_of_its_op(
    function: str, arguments: Mapping[str, Any], dims: dict[str, int], params: dict[str, Any]
) -> None:
    found = call(function, **arguments)
    assert (dict(found.dims), dict(found.params), found.layout) == (dims, params, ())


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        ("softmax", {"input": given(2, 3), "dim": 0}, "over the last dimension"),
        ("softmax", {"input": given(2, 3, dtype="float64"), "dim": 1}, "x is float64; softmax has float32"),
        ("softmax", {"input": given(2, 3, dtype="complex64"), "dim": 1}, "complex64, which the farm does not know"),
        ("cross_entropy", {"input": given(2, 3, 4), "target": given(2, 4, dtype="int64")}, "3 dimensions"),
        ("cross_entropy", {"input": given(2, 3), "target": given(2, 3)}, "2 dimensions"),
        ("scaled_dot_product_attention", {"query": given(1, 1, 2, 4), "key": given(1, 1, 3, 4),
         "value": given(1, 1, 3, 4), "is_causal": True}, "aligns the first"),
        ("matmul", {"input": given(2, 3, 4), "other": given(2, 4, 5)}, "3 and 3 dimensions"),
        ("layer_norm", {"input": given(2, 8), "normalized_shape": [8], "weight": None, "bias": None},
         "no tensor for weight"),
        ("rms_norm", {"input": given(2, 8), "normalized_shape": [8], "weight": given(9), "eps": 1e-6}, "weight has"),
        ("rms_norm", {"input": given(2, 8), "normalized_shape": [8], "weight": given(8), "eps": -1.0}, "out of bounds"),
    ],
)  # fmt: skip
def test_a_call_that_is_none_of_its_op_says_why(function: str, arguments: Mapping[str, Any], why: str) -> None:
    with pytest.raises(UnfitCallError, match=why):
        call(function, **arguments)


@pytest.mark.parametrize("name", ["dense", "row_strided", "packed", "transposed", "strided", "offset"])
def test_every_layout_is_found_again_by_its_strides(name: str) -> None:
    allowed = ("row_strided", "transposed", "packed", "strided", "offset")
    for shape in ((6, 8), (3, 5), (2, 3, 7)):
        if name == "offset" or len(shape) == 2:
            assert layout_of(given(*shape, layout=name), shape, allowed) == name
    assert layout_of(given(6, 8, layout=name), (6, 8), ()) == (None if name not in ("dense", "offset") else "dense")


def test_strides_of_no_layout_are_said_and_recorded_as_dense() -> None:
    x = Given((4, 8), (0, 1), 0, "float32")
    found = call("softmax", input=x, dim=-1)
    assert found.layout == () and "strides [0, 1]" in found.notes[0]


def test_a_function_by_name_and_order() -> None:
    contract = discovery.contract("rms_norm")
    target = Target("m:f", "rms_norm")
    arguments = {"hidden_states": given(4, 8, dtype="bfloat16"), "weight": given(8), "eps": 1e-5, "chunk": 3}
    found = recorded(target, contract, arguments)
    assert dict(found.dtypes) == {"x": "bfloat16", "weight": "float32"} and dict(found.params) == {"eps": 1e-5}
    assert found.notes == ("chunk=3 is not recorded: rms_norm has no such parameter",)
    with pytest.raises(UnfitCallError, match="3 tensors"):
        recorded(target, contract, {"a": given(4, 8), "b": given(8), "c": given(8)})


def test_what_is_written_is_a_matrix_of_exactly_these_calls(tmp_path: Path) -> None:
    run = Run()
    target, contract = TARGETS["rms_norm"], discovery.contract("rms_norm")
    for rows, dtype, graded, count, backward in (
        *((4, "float32", True, 3, 3), (7, "float32", True, 2, 1)),
        *((4, "float32", False, 5, 0), (9, "bfloat16", False, 1, 0)),
    ):
        x = {"shape": [rows, 8], "strides": [8, 1], "offset": 0, "dtype": dtype}
        arguments = {"input": x, "normalized_shape": [8], "weight": {**x, "shape": [8], "strides": [1]}, "eps": 1e-5}
        run.add(target, contract, {"arguments": arguments, "graded": graded}, count, backward)
    documents, left = matrix_text.texts(run, discovery.contract, lambda op: ["torch"], "python x.py")
    (tmp_path / "m.yaml").write_text("---\n".join(documents))
    matrices = load_all(tmp_path / "m.yaml", registry=builtin_providers())
    cells = plan(matrices, ["cpu"]).cells
    assert left == 0 and {(c.dims["rows"], c.dtype, c.operation) for c in cells} == {
        *((4, "float32", o) for o in ("forward", "no-grad-forward", "backward")),
        *((7, "float32", o) for o in ("forward", "backward")),
        (9, "bfloat16", "no-grad-forward"),
    }
    assert {c.params["eps"] for c in cells} == {1e-5}
    assert "tag: calls-8}" in documents[0]
    # an op that only somebody's own provider does: the matrix names none, and can be read with it
    (own,), _ = matrix_text.texts(Run(calls=dict([*run.calls.items()][-1:])), discovery.contract, lambda op: [], "x")
    (tmp_path / "own.yaml").write_text(own)
    (read,) = load_all(tmp_path / "own.yaml", extra_providers={"mine": "module:function"})
    assert {c.provider for c in plan([read], ["cpu"]).cells} >= {"mine"}


def test_a_file_has_the_shapes_that_were_called_most() -> None:
    run = Run()
    for rows in range(matrix_text.MOST_SHAPES + 5):
        dims = (("rows", rows), ("columns", 4))
        run.calls[Recorded("softmax", dims, (("x", "float32"),), (), ())] = Counts(plain=rows + 1)
    documents, left = matrix_text.texts(run, discovery.contract, lambda op: ["torch"], "c")
    assert left == 5 and "rows: 4," not in documents[0] and "rows: 5," in documents[0]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("norms.rms=rms_norm", "is not MODULE:FUNCTION=OP"),
        ("norms:rms=rms_nrm", "there is no op"),
        ("__main__:rms=rms_norm", "started script itself"),
    ],
)
def test_a_function_that_cannot_be_watched_is_refused(word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        asked([word], discovery.known_ops())
