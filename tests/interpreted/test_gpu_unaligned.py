"""The GPU family's kernels for rows that are not 16-byte aligned: who gets them, who must not, and that they are right
at the widths and heights where a body, an edge or a tile begins or ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from judged import Launch, norm_cell

from kernels import fused_add_rms_norm, launches, rms_norm
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.gpu import choose, launch

OPS = ("rms_norm", "fused_add_rms_norm")
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def launched(op: str, operation: str, height: int, hidden: int, dtype: str, **changed: Any) -> Launch:
    """What the rule asks for, with some of it changed, on one core; also where `auto` would not take it."""
    size = SIZES[dtype]
    config = choose._unaligned("interpreter", height, hidden, size, operation, 1, op) | changed
    choice = choose.build(operation, config, height, hidden, size, 1, "interpreter")
    cell = norm_cell(op, choice.mode, operation, dtype, "same", height, hidden)
    return Launch(cell, choice, launch, layout="dense")


@pytest.mark.parametrize("hidden", [1, 7, 127, 129, 4095, 4096, 4097, 16385])
@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_widths_around_whole_tiles(operation: str, hidden: int) -> None:
    """As few rows as leave residues without one, and more than one turn of a program."""
    for number, rows in enumerate((1, 3, 17)):
        dtype, op = ("bfloat16", "float32", "float16")[number], OPS[number % 2]
        launched(op, operation, rows, hidden, dtype).check(again=rows == 3)


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tiles_of_many_rows_over_many_turns(dtype: str, operation: str, num_stages: int) -> None:
    """150 rows are two turns and a rest of tiles of eight rows, eight rows apart."""
    for op, hidden in zip(OPS, (25, 31)):
        case = launched(op, operation, 150, hidden, dtype, rows=8, num_stages=num_stages, per_core=1)
        assert case.choice.rows == 8 and case.choice.programs == choose.period(hidden, SIZES[dtype])
        case.check(again=False)


@pytest.mark.parametrize("hidden", [100, 129, 130, 132])
def test_a_grid_is_a_multiple_of_the_period(hidden: int) -> None:
    """Else a program would meet rows whose bodies begin elsewhere, with the weight of another column."""
    size = 2
    period = choose.period(hidden, size)
    config = {"mode": "static_persistent", "kernel": "backward_unaligned", "num_warps": 4, "per_core": 1}
    choice = choose.build("backward", config, 100, hidden, size, 3, "interpreter")
    assert choice.programs % period == 0
    cell = norm_cell("rms_norm", "auto", "backward", "bfloat16", "same", 100, hidden)
    case = Launch(cell, choice, launch, layout="dense")
    case.check(again=False)


def kernels_of(function: Any, *args: Any) -> list[str]:
    launches.enable()
    function(*args)
    records = launches.drain()
    launches.disable()
    return [r["kernel"] for r in records]


def shifted(rows: int, hidden: int) -> torch.Tensor:
    """Dense, but one element behind a multiple of 16 bytes."""
    return torch.randn(rows * hidden + 1, generator=torch.Generator().manual_seed(1))[1:].view(rows, hidden)


def test_only_dense_rows_at_16_bytes_get_them() -> None:
    hidden = 129
    dense = torch.randn(5, hidden)
    apart = torch.randn(5, hidden + 3)[:, :hidden]
    w = torch.ones(hidden)
    assert kernels_of(rms_norm, dense, w) == ["forward_unaligned"]
    assert kernels_of(rms_norm, apart, w) == ["forward_rows"]
    assert kernels_of(rms_norm, shifted(5, hidden), w) == ["forward_rows"]
    assert kernels_of(fused_add_rms_norm, dense, dense, w) == ["forward_unaligned"]
    assert kernels_of(fused_add_rms_norm, dense, apart, w) == ["forward_rows"]
    assert kernels_of(rms_norm, torch.randn(5, 128), torch.ones(128)) == ["forward_rows"]


def test_where_a_gradient_is_not_dense_the_backward_has_another_kernel() -> None:
    """And the same values: each launch is chosen by the tensors that it meets."""
    hidden = 129
    for upstream, kernel in ((torch.randn(5, hidden), "backward_unaligned"), (shifted(5, hidden), "backward_rows")):
        x, w = torch.randn(5, hidden).requires_grad_(), torch.randn(hidden).requires_grad_()
        y = rms_norm(x, w)
        assert kernels_of(y.backward, upstream)[0] == kernel
        want_x, want_w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        torch.nn.functional.rms_norm(want_x, (hidden,), want_w, 1e-6).backward(upstream)
        torch.testing.assert_close(x.grad, want_x.grad, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(w.grad, want_w.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_a_launch_on_rows_that_lie_apart_is_refused(operation: str) -> None:
    """Its addresses would be those of dense rows."""
    case = launched("rms_norm", operation, 5, 129, "float32")
    case.given["x"] = torch.randn(5, 132)[:, :129]
    with pytest.raises(ValueError, match=f"{operation}_unaligned needs contiguous tensors .* choose with dense=False"):
        case.run()


def test_are_dense() -> None:
    a = torch.zeros(4, 5)
    assert dispatch.are_dense(a, None, a[:2])
    assert dispatch.are_dense(torch.zeros(1, 9)[:, :5])  # of one row the stride plays no part
    assert not dispatch.are_dense(a, a[1:])  # 20 bytes further
    assert not dispatch.are_dense(torch.zeros(4, 6)[:, :5])
