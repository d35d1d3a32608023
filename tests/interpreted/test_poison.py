"""Poisoned allocations: the unwritten is NaN, a store beside the tensor is seen, a compiled function stays so."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from farm.child.poison import Poisoned  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_not_written_is_nan(dtype: torch.dtype) -> None:
    with Poisoned(CPU):
        out = torch.empty(3, 5, dtype=dtype)
        out[:, :4] = 1
    assert torch.isnan(out[:, 4]).all()
    assert not torch.isnan(out[:, :4]).any()


def test_integers_get_a_value_that_no_quantizer_gives() -> None:
    with Poisoned(CPU):
        out = torch.empty(4, dtype=torch.int8)
    assert out.tolist() == [-128] * 4


@pytest.mark.parametrize("make", ["empty", "empty_like", "empty_strided", "new_empty"])
def test_every_way_to_allocate_is_poisoned_and_keeps_its_layout(make: str) -> None:
    x = torch.zeros(4, 6).t()
    with Poisoned(CPU):
        out = {
            "empty": lambda: torch.empty(6, 4),
            "empty_like": lambda: torch.empty_like(x),
            "empty_strided": lambda: torch.empty_strided((6, 4), (1, 6)),
            "new_empty": lambda: x.new_empty(6, 4),
        }[make]()
    assert torch.isnan(out).all()
    assert out.shape == (6, 4)
    assert out.data_ptr() % 16 == 0
    if make in ("empty_like", "empty_strided"):
        assert out.stride() == (1, 6)


def test_kernels_that_compile_nothing_do_not_wait_for_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process, in which torch's own wrapper of a mode would import it with the first operator."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # to import it now fails
    monkeypatch.delattr(Poisoned.__torch_dispatch__.__wrapped__, "__dynamo_disable", raising=False)
    with Poisoned(CPU) as mode:
        out = torch.empty(4) + 1
    assert torch.isnan(out).all()
    assert mode.work == {"aten.empty.memory_format": 1, "aten.add.Tensor": 1}


@pytest.mark.parametrize("offset", [-1, 12])
def test_a_store_beside_the_tensor_is_named(offset: int) -> None:
    mode = Poisoned(CPU)
    with mode:
        out = torch.empty(3, 4)
    out.fill_(0.0)
    assert mode.broken() == []
    out.as_strided((1,), (1,), out.storage_offset() + offset).fill_(7.0)
    assert mode.broken() == ["wrote outside an allocation of (3, 4) float32"]


def test_a_compiled_function_is_still_compiled_after_the_checked_call() -> None:
    calls = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        def run(*args: torch.Tensor) -> object:
            calls.append(1)
            return module(*args)

        return run

    compiled = torch.compile(lambda x: x * 2, backend=backend)
    x = torch.ones(4)
    compiled(x)
    with Poisoned(CPU):
        compiled(x)
    compiled(x)
    assert len(calls) == 3
