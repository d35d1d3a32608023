"""Tensors as raw files: how inputs come from the judge and outputs go back, without NumPy."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
    if hasattr(torch, name)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def load(path: str, dtype: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A tensor of its own memory on `device` from a raw file."""
    kind = DTYPES[dtype]
    size = 1
    for n in shape:
        size *= n
    if size == 0:
        return torch.empty(shape, dtype=kind, device=device)
    raw = torch.uint8 if dtype.startswith("float8") else kind  # of which torch reads no files
    mapped = torch.from_file(path, shared=False, size=size, dtype=raw).view(kind)
    return mapped.to(device, copy=True).reshape(shape)


def save(tensor: torch.Tensor, path: str) -> dict[str, Any]:
    """Write a tensor row-major to a raw file; returns its description.  OSError where the disk is full.

    By plain writes from a pinned buffer: a mapped file would cost a page fault every 4 KiB, and a bus error on a full
    disk.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    step = max(1, _CHUNK // flat.element_size())
    with Path(path).open("wb", buffering=0) as file:
        for start in range(0, flat.numel(), step):
            host = _on_host(flat[start : start + step])
            left = memoryview((ctypes.c_char * host.nbytes).from_address(host.data_ptr())).cast("B")
            while left:
                left = left[file.write(left) :]
    return {"path": path, "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape)}


_CHUNK = 32 << 20
_PINNED: list[torch.Tensor] = []


def _on_host(piece: torch.Tensor) -> torch.Tensor:
    """A piece in this process's memory: itself on a CPU, else in the one pinned buffer."""
    if piece.device.type == "cpu":
        return piece
    if not _PINNED:
        _PINNED.append(torch.empty(_CHUNK, dtype=torch.uint8, pin_memory=True))
    host = _PINNED[0][: piece.nbytes].view(piece.dtype)
    host.copy_(piece)
    return host


def checksum(tensor: torch.Tensor) -> int:
    """A cheap sum over the raw bits, to see whether a tensor was changed; integer, on the tensor's device."""
    if tensor.numel() == 0:
        return 0
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.detach().contiguous().view(width)
    return int(bits.sum(dtype=torch.int64)) ^ int((bits.reshape(-1)[::7]).sum(dtype=torch.int64))
