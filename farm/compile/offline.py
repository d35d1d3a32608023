"""A Triton driver for a device that is not here: kernels are compiled and noted where a launch would be.

A kernel is launched as ever, `kernel[grid](...)`, on tensors of torch's `meta` device, which have shapes, strides and
an alignment but no memory, so that every specialisation is the one that a real call would meet.  One target a process:
Triton's caches of compiled kernels and of tuning are keyed by device or by arguments, not by target.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

from farm.child.offline_driver import OfflineDriver
from farm.compile.targets import CompileTarget


@contextlib.contextmanager
def offline(target: CompileTarget) -> Iterator[OfflineDriver]:
    """Makes Triton compile for `target`, and keeps every compiled kernel.  ImportError where this Triton has no
    compiler for it."""
    from triton.backends import backends
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver

    if not any(b.compiler.supports_target(_gpu_target(target)) for b in backends.values()):
        raise ImportError(f"this Triton has no compiler for {target.name} (available: {', '.join(sorted(backends))})")
    made = OfflineDriver(target)
    driver.set_active(made)
    original = CompiledKernel.__init__

    def keep(self: Any, src: Any, metadata_group: Any, hash: str) -> None:
        original(self, src, metadata_group, hash)
        made.kernels[hash] = self

    CompiledKernel.__init__ = keep
    try:
        yield made
    finally:
        CompiledKernel.__init__ = original


def _gpu_target(target: CompileTarget) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(target.triton, target.arch, target.warp)


_NO_BITS = 8  # a section that takes no room in the file
#: Of an ELF file what a device runs, and the constants that it reads, by the beginning of a section's name.
_CODE, _CONSTANTS = b".text", (b".nv.constant", b".nv.global", b".rodata", b".data")


def code(binary: bytes) -> tuple[int, str]:
    """(bytes, digest) of the machine code in an ELF file of 64 bits: its sections `.text*`, without debug lines, which
    tell where the source lies.  The digest is of its constants too.  ValueError for any other file."""
    if binary[:5] != b"\x7fELF\x02":
        raise ValueError("the compiled kernel is not a 64-bit ELF file")

    def number(at: int, size: int) -> int:
        return int.from_bytes(binary[at : at + size], "little")

    table, size, count, names = number(0x28, 8), number(0x3A, 2), number(0x3C, 2), number(0x3E, 2)
    strings = number(table + names * size + 0x18, 8)
    total, digest = 0, hashlib.sha256()
    for section in range(table, table + count * size, size):
        name = strings + number(section, 4)
        start, length = number(section + 0x18, 8), number(section + 0x20, 8)
        if binary.startswith((_CODE, *_CONSTANTS), name) and number(section + 0x04, 4) != _NO_BITS:
            total += length if binary.startswith(_CODE, name) else 0
            digest.update(binary[start : start + length])
    return total, digest.hexdigest()[:16]


def constants(kernel: Any) -> dict[str, Any]:
    """The compile-time constants of a kernel by name: tile sizes, switches, arguments that are None or 1."""
    names = kernel.src.fn.arg_names
    found = {}
    for key, value in kernel.src.constants.items():
        name = names[key[0]] if isinstance(key, tuple) and len(key) == 1 else str(key)
        if value is None or isinstance(value, (bool, int, float, str)):
            found[name] = value
    return found
