"""Other values at the same addresses: made, undone and compared; and whose memory an output lies in."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from farm.child import permuted_inputs  # noqa: E402
from farm.child.launch_recorder import LaunchRecorder  # noqa: E402

X = {"name": "x", "role": "input", "blocked": True, "shape": [7, 5], "file": "x"}
W = {"name": "w", "role": "input", "blocked": False, "shape": [5], "file": "w"}
DY = {"name": "dy", "role": "upstream", "blocked": True, "shape": [7, 5], "file": "dy"}
Y = {"name": "y", "role": "output", "blocked": True, "shape": [7, 5]}
DX = {"name": "dx", "role": "gradient", "blocked": True, "shape": [7, 5]}
DW = {"name": "dw", "role": "gradient", "blocked": False, "shape": [5]}


def values(dtype: Any = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {p["name"]: torch.randn(p["shape"], generator=generator, dtype=torch.float64).to(dtype) for p in (X, W, DY)}


def answers(v: dict[str, Any]) -> dict[str, Any]:
    """Row-wise, linear in dy, and a sum over rows."""
    return {"y": v["x"] * v["w"] + v["x"].sum(1, keepdim=True), "dx": v["dy"] * v["w"], "dw": (v["dy"] * v["x"]).sum(0)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", [1, 2, 3, 6, 7])
def test_what_comes_out_of_changed_values_is_known_without_a_reference(number: int, dtype: Any) -> None:
    own, how = values(dtype), permuted_inputs.change([X, W, DY], number)
    assert 0 < how.shift < 7
    given = {name: t.clone() for name, t in own.items()}
    addresses = [t.data_ptr() for t in given.values()]
    permuted_inputs.refill([(p, given[p["name"]]) for p in (X, W, DY)], lambda p: own[p["name"]], how)
    assert [t.data_ptr() for t in given.values()] == addresses
    assert not torch.equal(given["x"], own["x"]) and torch.equal(given["w"], own["w"])
    first, second = answers(own), answers(given)
    for plan in (Y, DX, DW):
        name = plan["name"]
        assert permuted_inputs.as_expected(plan, first[name], second[name], how)
        back = permuted_inputs.restored(plan, second[name], how)
        assert torch.allclose(back.float(), first[name].float(), rtol=2e-2 if dtype is torch.bfloat16 else 1e-5)
        assert not permuted_inputs.as_expected(plan, first[name], first[name] + 1, how)
    assert not permuted_inputs.as_expected(Y, first["y"], first["y"], how)  # the answer to the values before
    if how.sign < 0:
        assert not permuted_inputs.as_expected(DX, first["dx"], first["dx"], how)
        assert not permuted_inputs.as_expected(DW, first["dw"], first["dw"], how)


def test_one_element_that_is_not_as_expected_is_seen_and_nan_is_itself() -> None:
    own, how = values(), permuted_inputs.change([X], 1)
    own["x"][3, 2] = float("nan")
    own["x"][4, 1] = float("inf")
    moved = torch.roll(own["x"], how.shift, 0)
    assert permuted_inputs.as_expected(Y, own["x"], moved, how)
    for spot in ((0, 0), (6, 4)):
        wrong = moved.clone()
        wrong[spot] = 1234.0
        assert not permuted_inputs.as_expected(Y, own["x"], wrong, how)
    assert not permuted_inputs.as_expected(Y, own["x"], torch.nan_to_num(moved), how)
    assert not permuted_inputs.as_expected(Y, own["x"], moved.double(), how)


def test_pieces_cover_a_tensor_that_is_compared_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permuted_inputs, "_PIECE", 10)
    own, how = values(), permuted_inputs.change([X], 1)
    for row in range(7):
        moved = torch.roll(own["x"], how.shift, 0)
        assert permuted_inputs.as_expected(Y, own["x"], moved, how)
        moved[row, 4] += 1
        assert not permuted_inputs.as_expected(Y, own["x"], moved, how)


def test_one_row_without_a_gradient_has_no_other_values() -> None:
    one = {**X, "shape": [1, 5]}
    assert permuted_inputs.change([one, W], 1) == permuted_inputs.SAME
    assert permuted_inputs.change([one, W, {**DY, "shape": [1, 5]}], 1) == permuted_inputs.InputChange(0, -1)
    assert not permuted_inputs.change([{**X, "shape": [0, 5]}], 1).any


def test_neighbouring_changes_differ() -> None:
    found = [permuted_inputs.change([{**X, "shape": [3, 5]}], n) for n in range(1, 9)]
    assert all(found[i] != found[i + 1] for i in range(7))


def test_whose_memory_an_output_lies_in() -> None:
    x, w, y = torch.ones(4, 4), torch.ones(4), torch.ones(4, 4)
    given = [("x", x), ("w", w)]
    assert permuted_inputs.shared([("y", y)], given) == []
    assert permuted_inputs.shared([("y", x.t()[1:])], given) == ["returned memory of input x as y"]
    assert permuted_inputs.returned_again([y], [x]) == []
    assert permuted_inputs.returned_again([y[2:]], [y[:2]]) == [permuted_inputs.RETURNED_AGAIN]
    empty = torch.empty(0, 4)
    assert (
        permuted_inputs.shared([("y", empty)], [("x", empty)]) == []
        and permuted_inputs.returned_again([empty], [empty]) == []
    )


def launches(records: list[dict[str, Any]], seen: dict[str, int] | None) -> LaunchRecorder:
    found = LaunchRecorder()
    found.records, found.seen = records, None if seen is None else Counter(seen)
    return found


FORWARD, BACKWARD = {"kernel": "f", "direction": "forward"}, {"kernel": "b", "direction": "backward"}


@pytest.mark.parametrize(
    ("records", "seen", "operation", "words"),
    [
        ([FORWARD], {"f": 1}, "forward", ""),
        ([FORWARD], {"f": 1, "other": 2}, "no-grad-forward", ""),
        ([FORWARD, BACKWARD], {"f": 1, "b": 1}, "full", ""),
        ([FORWARD], None, "forward", ""),  # no Triton that tells: the record stands
        ([], {}, "forward", "launched none of its kernels forward, but fell back (no Triton kernel ran instead)"),
        ([], {"g": 1}, "forward", "launched none of its kernels forward, but fell back (g ran instead)"),
        ([FORWARD], {"f": 1}, "backward", "launched none of its kernels backward"),
        ([BACKWARD], {"b": 1}, "full", "launched none of its kernels forward"),
        ([FORWARD, FORWARD], {"f": 1}, "forward", "claimed kernel launches that never happened (f)"),
        ([FORWARD], {}, "forward", "claimed kernel launches that never happened (f)"),
    ],
)
def test_a_direction_without_a_kernel_of_ours_is_a_fallback(
    records: list[dict[str, Any]], seen: dict[str, int] | None, operation: str, words: str
) -> None:
    found = launches(records, seen).findings(operation)
    assert bool(found) == bool(words)
    assert words in "".join(found)
