"""The repaired interpreter: bfloat16 rounds to nearest even, and no access out of bounds goes unseen."""

from __future__ import annotations

import struct
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from farm.child import interpreter, interpreter_types
from farm.child.interpreter import OutOfBounds, to_bfloat16, to_float32
from farm.child.interpreter_progress import FILE, FORMAT
from farm.child.tuning import Tuning


@triton.jit
def copy(X, Y, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols, mask=cols < n).to(Y.dtype.element_ty), mask=cols < n)


@triton.jit
def load_without_mask(X, Y, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols), mask=cols < n)


@triton.jit
def store_without_mask(X, Y, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols, mask=cols < n))


@triton.jit
def load_before(X, Y, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols - 1, mask=cols < n), mask=cols < n)


@triton.jit
def _inner(X, cols):
    return tl.load(X + cols)


@triton.jit
def load_in_helper(X, Y, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, _inner(X, cols), mask=cols < n)


@triton.jit
def arithmetic(X, Z, OUT, DOT, scale, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x, z = tl.load(X + cols), tl.load(Z + cols)
    tl.store(OUT + cols, x + z)
    tl.store(OUT + BLOCK + cols, x * z)
    tl.store(OUT + 2 * BLOCK + cols, tl.where(x > z, x, z))
    tl.store(OUT + 3 * BLOCK + cols, tl.sum(x) + tl.zeros([BLOCK], tl.float32).to(tl.bfloat16))
    tl.store(OUT + 4 * BLOCK + cols, tl.max(x, axis=0) + tl.zeros([BLOCK], tl.float32).to(tl.bfloat16))
    tl.store(OUT + 5 * BLOCK + cols, x * scale.to(tl.bfloat16))
    tl.store(DOT + cols[:, None] * BLOCK + cols[None, :], tl.dot(x[:, None] * z[None, :], x[:, None] * z[None, :]))


@triton.jit
def both_masks(X, Y, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    some = (cols < 2) | ((cols >= 5) & (n > 3))  # a scalar comparison beside a tile's
    tl.store(Y + cols, tl.load(X + cols, mask=some, other=-1.0), mask=some | (n < 3))


@triton.autotune(configs=[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=["n"])
@triton.jit
def tuned(X, Y, n, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols, mask=cols < n), mask=cols < n)


def bits(x: torch.Tensor) -> np.ndarray:
    return x.view(torch.int16).numpy().view(np.uint16)


def test_a_comparison_of_scalars_is_a_mask():
    for n, want in ((4, [0, 1, 9, 9, 9, 5, 6, 7]), (2, [0, 1, -1, -1, -1, -1, -1, -1])):
        y = torch.full((8,), 9.0)
        both_masks[(1,)](torch.arange(8.0), y, n, 8)
        assert y.tolist() == want


def test_what_compared_integers_gives_is_a_truth_value():
    """Before triton 3.9 nobody minds that stock says int32."""
    handle = lambda *values: interpreter.interp.TensorHandle(np.array(values, dtype=np.int32), tl.int32)  # noqa: E731
    builder = interpreter.interp.interpreter_builder
    assert builder.binary_op(handle(1, 5), handle(3, 3), np.less).dtype == tl.int1
    assert builder.binary_op(handle(1, 5), handle(3, 3), np.add).dtype == tl.int32


@triton.jit
def keeps_its_own(X, Y, num_consumer_groups, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols) + num_consumer_groups)


def test_words_for_a_compiler_do_not_reach_a_kernel_that_does_not_have_them():
    """Triton after 3.2 sees to the first half itself; ours must not take a kernel's own argument."""
    x, y = torch.arange(8.0), torch.zeros(8)
    load_in_helper[(1,)](x, y, 8, 8, num_consumer_groups=2, reg_dec_producer=0)
    assert torch.equal(x, y)
    keeps_its_own[(1,)](x, y, num_consumer_groups=2, BLOCK=8)
    assert torch.equal(x + 2, y)


def test_every_bfloat16_survives_the_way_there_and_back():
    every = np.arange(65536, dtype=np.uint16)
    number = ~np.isnan(to_float32(every))
    assert np.array_equal(to_bfloat16(to_float32(every))[number], every[number])
    assert np.isnan(to_float32(to_bfloat16(to_float32(every)))[~number]).all()


def test_ties_go_to_the_even_neighbour():
    low = np.arange(0, 0x7F7F, dtype=np.uint32)  # all positive finite bfloat16 but the largest
    halfway = ((low << 16) | 0x8000).view(np.float32)
    assert np.array_equal(to_bfloat16(halfway), (low + (low & 1)).astype(np.uint16))
    above, below = ((low << 16) | 0x8001).view(np.float32), ((low << 16) | 0x7FFF).view(np.float32)
    assert np.array_equal(to_bfloat16(above), (low + 1).astype(np.uint16))
    assert np.array_equal(to_bfloat16(below), low.astype(np.uint16))


def test_a_kernel_stores_what_torch_rounds_to():
    """Stock truncates: half of these would be one ULP low."""
    random = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    x = torch.from_numpy(random[np.isfinite(random)][:2048].copy())
    y = torch.empty(2048, dtype=torch.bfloat16)
    copy[(1,)](x, y, 2048, BLOCK=2048)
    assert np.array_equal(bits(y), bits(x.bfloat16()))
    assert (bits(y) != (x.numpy().view(np.uint32) >> 16).astype(np.uint16)).mean() > 0.4


def test_bfloat16_arithmetic_is_float32_rounded_once():
    make = torch.Generator().manual_seed(0)
    x, z = (torch.randn(16, generator=make).bfloat16() for _ in range(2))
    out, dot = torch.empty(6, 16, dtype=torch.bfloat16), torch.empty(16, 16)
    arithmetic[(1,)](x, z, out, dot, 1.7, BLOCK=16)
    total, largest = x.float().sum().bfloat16(), x.max()
    want = torch.stack(
        [x + z, x * z, torch.maximum(x, z), total.expand(16), largest.expand(16), x * torch.tensor(1.7).bfloat16()]
    )
    assert torch.equal(out, want)
    outer = (x[:, None] * z[None, :]).float()
    torch.testing.assert_close(dot, outer @ outer)


@pytest.mark.parametrize(
    "kernel, verb, side, name",
    [
        (load_without_mask, "load", "24 bytes past the end", "X"),
        (load_in_helper, "load", "24 bytes past the end", "X"),
        (store_without_mask, "store", "24 bytes past the end", "Y"),
        (load_before, "load", "4 bytes before the start", "X"),
    ],
)
def test_an_access_outside_every_tensor_is_caught(kernel, verb, side, name):
    """Inside the storage, which is padded on both sides; stock reads and writes the pads and says nothing."""
    room = torch.zeros(2, 100)
    x, y = room[0, 40:50], room[1, 40:50]
    with pytest.raises(OutOfBounds) as caught:
        kernel[(1,)](x, y, 10, BLOCK=16)
    text = str(caught.value)
    assert text.startswith(f"{kernel.fn.__name__}: {verb} in program (0, 0, 0)") and side in text
    assert f"of {name} (float32 [10])" in text
    assert torch.equal(room, torch.zeros(2, 100))


def test_masked_lanes_may_point_anywhere_and_count_for_nothing():
    x, y = torch.arange(10.0), torch.empty(10)
    interpreter.traffic(reset=True)
    copy[(1,)](x, y, 10, BLOCK=1 << 14)
    assert torch.equal(x, y)
    assert interpreter.traffic(reset=True) == {"loaded": 40, "stored": 40}
    assert interpreter.traffic() == {"loaded": 0, "stored": 0}


def test_other_errors_stay_what_they_were():
    with pytest.raises(triton.runtime.errors.InterpreterError):
        copy[(1,)](torch.arange(4.0), torch.empty(4), 4, BLOCK=3)  # a block is a power of two


def test_autotune_takes_its_first_configuration():
    x, y = torch.arange(20.0), torch.empty(20)
    tuned[lambda meta: (triton.cdiv(20, meta["BLOCK"]),)](x, y, 20)
    assert torch.equal(x, y) and tuned.best_config.kwargs == {"BLOCK": 8}


@pytest.mark.parametrize("asked", ["", "none"])
def test_tuning_is_counted_and_can_be_left_out(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_TUNING", asked)
    monkeypatch.setattr(triton.runtime.autotuner.Autotuner, "_bench", triton.runtime.autotuner.Autotuner._bench)
    tuned.cache.clear()
    found = Tuning()
    found.begin()
    x, y = torch.arange(20.0), torch.empty(20)
    for _ in range(2):  # the second call tunes nothing
        tuned[lambda meta: (triton.cdiv(20, meta["BLOCK"]),)](x, y, 20)
    assert torch.equal(x, y) and found.tried == 2 and (found.seconds == 0) == bool(asked)
    found.begin()
    assert found.tried == 0 and found.seconds == 0


def test_too_late_is_an_error_and_twice_is_not():
    interpreter.install()
    code = "import triton\nfrom farm.child import interpreter\ninterpreter.install()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_without_switch(), check=False
    )
    assert done.returncode == 1
    assert "triton was imported before the interpreter" in done.stderr


def _without_switch() -> dict[str, str]:
    import os
    from pathlib import Path

    import farm

    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return {**env, "PYTHONPATH": str(Path(farm.__file__).parent.parent)}


def test_tensors_are_noted_by_a_triton_without_descriptors(monkeypatch):
    """3.2, which belongs to torch 2.6, has neither descriptors nor a function that unwraps a tensor."""
    older = types.SimpleNamespace()
    monkeypatch.setattr(interpreter, "interp", older)
    monkeypatch.setattr(interpreter, "_regions", [])
    interpreter._register("x", torch.zeros(4))
    interpreter._register("bits", triton.reinterpret(torch.zeros(2, 3, dtype=torch.int8), tl.float8e5))
    assert [(end - begin, name) for begin, end, name in interpreter._regions] == [
        (16, "x (float32 [4])"),
        (6, "bits (int8 [2, 3])"),
    ]


@triton.jit
def shapes(X, W, OUT, SUM, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows against columns, scalars against blocks, pointers of both, expanded, reshaped, summed, compared, cast."""
    row, col = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    at = X + row[:, None] * BLOCK + col[None, :]
    x = tl.load(at, mask=(row[:, None] < n) & (col < BLOCK - 1)[None, :], other=0.0)
    w = tl.load(W + col)[None, :]
    y = tl.where(x > w, x * w.to(tl.float32), -x) + 1 + tl.full([1, BLOCK], 2, tl.int32)
    folded = tl.sum(tl.reshape(y.to(tl.float32), [ROWS, 2, BLOCK // 2]), 1)
    tl.store(OUT + row[:, None] * BLOCK + col[None, :], y.to(OUT.dtype.element_ty))
    tl.store(SUM + row, tl.sum(folded, 1) + tl.max(tl.trans(y), 0))


def test_what_is_worked_out_once_is_what_triton_works_out(monkeypatch):
    """Of each value that a kernel makes, and of what the kernel gives."""

    def run(dtype: torch.dtype) -> tuple[list[torch.Tensor], list[Any]]:
        x = torch.linspace(-3, 3, 64).reshape(4, 16).to(dtype)
        w, out, total = torch.linspace(0, 2, 16).to(dtype), torch.empty(4, 16, dtype=dtype), torch.empty(4)
        made.clear()
        shapes[(1,)](x, w, out, total, 3, 4, 16)
        return [out, total], [*made]

    made: list[Any] = []
    core = tl.core
    quick = {}
    for dtype in (torch.float32, torch.bfloat16):
        with monkeypatch.context() as patch:
            patch.setattr(core.tensor, "__init__", noted(core.tensor.__init__, made))
            quick[dtype] = run(dtype)
    for owner, name, stock in interpreter_types.stock:
        assert getattr(owner, name) is not stock
        monkeypatch.setattr(owner, name, stock)
    old = not hasattr(interpreter.interp, "interpreter_semantic")  # before triton 3.4
    names = [name for _, name, _ in interpreter_types.stock]
    assert (
        names
        == ["_get_np_dtype", "_unwrap_if_constexpr", "__init__", "__init__", "broadcast_impl_value"][
            : 1 if old else None
        ]
    )
    monkeypatch.setattr(core.tensor, "__init__", noted(core.tensor.__init__, made))
    for dtype, (outputs, values) in quick.items():
        want, stocks = run(dtype)
        assert all(torch.equal(a, b) for a, b in zip(outputs, want))
        assert len(values) > 40 and values == stocks


def noted(init: Callable[..., None], made: list[Any]) -> Callable[..., None]:
    def wrapper(self: Any, handle: Any, type: Any) -> None:
        init(self, handle, type)
        of_type = (str(type), str(type.shape) if type.is_block() else "", getattr(type, "numel", None))
        made.append(
            (
                str(self.shape),
                self.numel.value,
                str(self.dtype),
                of_type,
                sorted(vars(self)),
                np.shape(getattr(handle, "data", ())),
            )
        )

    return wrapper


def test_programs_are_counted_as_they_begin(tmp_path: Path) -> None:
    x, y = torch.ones(8), torch.zeros(8)
    interpreter.programs.begin(str(tmp_path))
    try:
        copy[(5, 2)](x, y, 8, BLOCK=8)
    finally:
        interpreter.programs.end()
    assert struct.unpack(FORMAT, (tmp_path / FILE).read_bytes()) == (9, 10)


@triton.jit
def add_all(X, SUM, OLD, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + cols, mask=cols < n, other=0.0)
    tl.store(OLD + cols, tl.atomic_add(SUM + cols // 4, x, mask=cols < n), mask=cols < n)


def test_bfloat16_is_added_atomically_each_sum_rounded():
    x = torch.tensor([1.0, 256.0, 1.0, 1.0, 0.5, -0.5, 3.0, 9.0], dtype=torch.bfloat16)
    total, old = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    add_all[(1,)](x, total, old, 7, 8)
    assert total.tolist() == [256.0, 3.0]  # 1 + 256 is 257, a tie that goes to 256; so do the next two
    assert old.tolist() == [0, 1, 256, 256, 0, 0.5, 0, 0]
