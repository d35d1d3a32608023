"""A Triton driver for a device that is not here: kernels are compiled and noted where a launch would be.

A kernel is launched as ever, `kernel[grid](...)`, on tensors of torch's `meta` device, which have shapes, strides and
an alignment but no memory, so that every specialisation is the one that a real call would meet.  One target a process:
Triton's caches of compiled kernels and of tuning are keyed by device or by arguments, not by target.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from farm.compile.targets import CompileTarget


class Launched(NamedTuple):
    """One launch that would have been: `candidates` are all the variants among which tuning would choose on a device,
    and this one only stands for them; empty where the code chose by itself."""

    kernel: str
    grid: tuple[int, int, int]
    hash: str
    candidates: tuple[str, ...] = ()


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(".")[:2])


class _Utils:
    """What Triton asks of a vendor's runtime.  Loading a binary gives handles that nobody uses, and 1,024 as the most
    threads of a block, beyond which Triton itself raises OutOfResources."""

    def __init__(self, target: CompileTarget):
        self._properties = {
            "max_shared_mem": target.block_memory,
            "max_num_regs": 65536,
            "multiprocessor_count": target.cores,
            "warpSize": target.warp,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
            "sm_clock_rate": 0,
        }

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self._properties

    def load_binary(self, *binary: Any) -> tuple[int, ...]:
        import triton

        found = (1, 1, 0, 0, 1024)
        return found if _version(triton.__version__) >= (3, 4) else found[:4]  # before, the most threads are not asked

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class OfflineDriver:
    """The active driver while a target is compiled for.

    `kernels`: hash -> compiled kernel.  `launches`: in order, to be cleared by who reads them.  `refused`: exceptions
    of variants that tuning tried and that do not compile, which Triton's autotuner swallows.
    """

    def __init__(self, target: CompileTarget):
        from triton.backends.compiler import GPUTarget

        self._target = target
        self.target = GPUTarget(target.triton, target.arch, target.warp)
        self.utils = _Utils(target)
        self.kernels: dict[str, Any] = {}
        self.launches: list[Launched] = []
        self.refused: list[Exception] = []
        self._tried: list[str] = []  # variants of the tuning that goes on
        self._rivals: dict[str, tuple[str, ...]] = {}
        driver = self

        class Launcher:
            def __init__(self, src: Any, metadata: Any):
                self.name, self.hash = src.fn.__name__, metadata.hash

            def __call__(self, x: int, y: int, z: int, *args: Any) -> None:
                driver._launched(self.name, (x, y, z), self.hash)

        self.launcher_cls = Launcher

    def _launched(self, name: str, grid: tuple[int, int, int], hash: str) -> None:
        if hash in self._tried:  # what tuning chose, by timings that say nothing
            for rival in self._tried:
                self._rivals[rival] = tuple(dict.fromkeys(self._tried))
        self._tried = []
        self.launches.append(Launched(name, grid, hash, self._rivals.get(hash, ())))

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return divmod(int(self._target.arch), 10) if self._target.triton == "cuda" else (9, 4)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("meta")

    def map_python_to_cpp_type(self, name: str) -> str:
        return name

    def get_benchmarker(self) -> Any:
        """Compiles each variant that tuning tries; all are equally fast, so the first that compiles is chosen."""

        def bench(function: Any, quantiles: Any = None, **options: Any) -> list[float]:
            before, tried = len(self.launches), self._tried
            try:
                function()
            except Exception as error:
                self.refused.append(error)
                raise
            finally:
                self._tried = [*tried, *(launch.hash for launch in self.launches[before:])]
                del self.launches[before:]
            return [1.0, 1.0, 1.0]

        return bench


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
