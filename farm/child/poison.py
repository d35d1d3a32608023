"""Proof that outputs were written: what the code under test allocates is filled with NaN and padded with guards.

The NaN is one of the farm's own (farm/accuracy/poison_bits.py), so that the judge can tell what was never written from
what was computed.

Two nets, since neither sees everything (measured on an H200: the first sees what Python allocates, Liger's 3 buffers
and QuACK's 2, and nothing inside native ops or Inductor's code, for which the second is there):

- `Poisoned`, a dispatch mode over `aten.empty*`, which gives every new tensor poisoned storage between guard bands;
- `poison_freed`, which fills and frees blocks of the outputs' sizes, so that the allocator hands those out next.

In checked calls only; a timed launch never runs under either.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from farm.accuracy import poison_bits

GUARD_ELEMENTS = 64
_EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}
_OTHER = poison_bits.INTEGERS["int32"]  # of integers that are not listed
_SENTINEL = {getattr(torch, name): value for name, value in poison_bits.INTEGERS.items()}
_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATTERN = {
    getattr(torch, name): bits - (1 << 8 * size if size > 1 and bits >> 8 * size - 1 else 0)  # as a signed integer
    for name, bits in poison_bits.FLOATS.items()
    if hasattr(torch, name)
    for size in [getattr(torch, name).itemsize]
}


def fill(tensor: torch.Tensor) -> torch.Tensor:
    """Fill contiguous memory with the farm's NaN, or for integers with a sentinel; returns the tensor."""
    dtype = tensor.dtype
    if dtype in _PATTERN:
        tensor.view(_WIDTH[dtype.itemsize]).fill_(_PATTERN[dtype])
        return tensor
    if dtype.is_floating_point or dtype.is_complex:
        return tensor.fill_(float("nan"))
    return tensor.fill_(_SENTINEL.get(dtype, _OTHER))


class Poisoned(TorchDispatchMode):
    """Within it every `empty*` on `device` is poisoned and stands between two guard bands of the same fill.

    `broken()` names the allocations whose guards were overwritten: a store outside the tensor.  `work` counts what
    torch was asked for, by operator; `streams` holds the handles of the streams on which it was.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device
        self._guards: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._api = None if device.type == "cpu" else torch.get_device_module(device.type)
        self.work: Counter[str] = Counter()
        self.streams: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Without this a compiled function called within the mode runs eagerly, and silently ever after: Dynamo marks
        its frame as skipped (seen on an H200 with torch 2.11: 242 us timed for what compiled takes 19)."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.work[str(func)] += 1
        if self._api is not None:
            self.streams.add(handle(self._api.current_stream(self.device)))
        out = func(*args, **(kwargs or {}))
        if func in _EMPTY and isinstance(out, torch.Tensor) and out.device.type == self.device.type and out.numel():
            return self._padded(out)
        return out

    def _padded(self, like: torch.Tensor) -> torch.Tensor:
        span = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride()))
        # keep the data's alignment: vectorised loads ask for 16 bytes, and 64 elements are at least that
        whole = like.new_empty(0).set_(  # a fresh storage, made below this mode, so not padded again
            torch.empty(0, dtype=like.dtype, device=like.device).untyped_storage()
        )
        whole.resize_(span + 2 * GUARD_ELEMENTS)
        fill(whole)
        name = f"{tuple(like.shape)} {str(like.dtype).removeprefix('torch.')}"
        self._guards.append((name, whole[:GUARD_ELEMENTS], whole[GUARD_ELEMENTS + span :]))
        return whole.as_strided(like.shape, like.stride(), GUARD_ELEMENTS)

    def broken(self) -> list[str]:
        """Allocations with a guard band that no longer holds its fill."""
        return [
            f"wrote outside an allocation of {name}"
            for name, before, after in self._guards
            if not (_intact(before) and _intact(after))
        ]


def _import_no_dynamo() -> None:
    """Have the mode answer without importing torch._dynamo, where nobody else has.

    Torch wraps what a mode answers with so that Dynamo never compiles it, and imports Dynamo for that with the first
    operator: 1.4 s of a processor, as long as torch itself takes, for kernels that compile nothing.  While Dynamo is
    not loaded there is nothing to keep it from; once it is, torch's own wrapper answers.
    """
    wrapped = Poisoned.__torch_dispatch__
    plain = getattr(wrapped, "__wrapped__", None)
    if plain is None:  # a torch that wraps nothing
        return

    # Dynamo, once it is there, must not compile this frame either: it is marked below.
    def answer(self: Poisoned, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        loaded = hasattr(sys.modules.get("torch._dynamo"), "disable")
        return (wrapped if loaded else plain)(self, func, types, args, kwargs)

    answer.__wrapped__ = plain  # type: ignore[attr-defined]
    with contextlib.suppress(ImportError, AttributeError, TypeError):  # else this torch's own wrapper stays
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        eval_frame.set_code_exec_strategy(answer.__code__, eval_frame._FrameExecStrategy(*skip))
        Poisoned.__torch_dispatch__ = answer  # type: ignore[method-assign]


_import_no_dynamo()


def handle(stream: Any) -> int:
    """The vendor's handle of one of torch's streams; its own number where it has no other name for it."""
    return int(getattr(stream, "cuda_stream", None) or getattr(stream, "npu_stream", None) or 0)


def forget_skipped_frames() -> None:
    """On a torch whose Dynamo does not know `ignore_compile_internals` (before 2.9), undo what the mode did to compiled
    functions: without it they would be timed as eager ones."""
    if not hasattr(TorchDispatchMode, "ignore_compile_internals") and "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


def _intact(guard: torch.Tensor) -> bool:
    if guard.dtype.is_floating_point:
        return bool(torch.isnan(guard).all())
    return bool((guard == _SENTINEL.get(guard.dtype, _OTHER)).all())


def poison_freed(device: torch.device, sizes: list[int]) -> None:
    """Leave freed, NaN-filled blocks of `sizes` bytes to the caching allocator of `device` (no-op on a CPU)."""
    if device.type == "cpu":
        return
    blocks = []
    with contextlib.suppress(torch.OutOfMemoryError):  # where the last block does not fit, those before it did
        for n in sizes:
            blocks.append(torch.full((max(1, n // 4),), poison_bits.WORD, dtype=torch.int32, device=device))
    del blocks
