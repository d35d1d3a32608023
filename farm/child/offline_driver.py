"""The driver that Triton is given where no device is, or none may be opened: it compiles, and notes each launch.

A kernel is launched as ever, `kernel[grid](...)`, on tensors of torch's `meta` device, which have shapes, strides and
an alignment but no memory, so that every specialisation is the one that a real call would meet.  One target a process:
Triton's caches of compiled kernels and of tuning are keyed by device or by arguments, not by target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from farm.contracts import layouts


class OfflineTarget(Protocol):
    """What the driver must know of a target (farm.compile.targets.CompileTarget)."""

    @property
    def triton(self) -> str: ...  # Triton's name of the family: cuda, hip, npu

    @property
    def arch(self) -> int | str: ...

    @property
    def warp(self) -> int: ...

    @property
    def cores(self) -> int: ...

    @property
    def block_memory(self) -> int: ...  # bytes that one program may take


class Launched(NamedTuple):
    """One launch that would have been: `candidates` are all the variants among which tuning would choose on a device,
    and this one only stands for them; empty where the code chose by itself."""

    kernel: str
    grid: tuple[int, int, int]
    hash: str
    candidates: tuple[str, ...] = ()


def version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(".")[:2])


class Utils:
    """What Triton asks of a vendor's runtime.  Loading a binary gives handles that nobody uses, and 1,024 as the most
    threads of a block, beyond which Triton itself raises OutOfResources."""

    def __init__(self, target: OfflineTarget):
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
        return found if version(triton.__version__) >= (3, 4) else found[:4]  # before, the most threads are not asked

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class OfflineDriver:
    """The active driver while a target is compiled for.

    `kernels`: hash -> compiled kernel.  `launches`: in order, to be cleared by who reads them.  `refused`: exceptions
    of variants that tuning tried and that do not compile, which Triton's autotuner swallows.
    """

    def __init__(self, target: OfflineTarget):
        from triton.backends.compiler import GPUTarget

        self._target = target
        self.target = GPUTarget(target.triton, target.arch, target.warp)
        self.utils = Utils(target)
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


def problem(tensors: Sequence[dict[str, Any]], operation: str) -> Any:
    """A cell's tensors on the meta device (shapes, strides, alignment, no memory), as a `provider_call.Problem`."""
    import torch

    from farm.child import provider_call

    by_name: dict[str, Any] = {}
    inputs: list[Any] = []
    upstream: list[Any] = []
    for t in tensors:
        if t["role"] not in ("input", "mutated", "upstream"):
            continue
        if t.get("absent"):
            inputs.append(None)
            continue
        lies = layouts.placement(t.get("layout", layouts.DENSE), t["shape"], t.get("leading", ()))
        sizes = (lies.offset + lies.span,) if t.get("layout") else lies.shape
        tensor = torch.empty(sizes, dtype=getattr(torch, t["dtype"]), device="meta")
        if t.get("layout"):
            tensor = tensor.as_strided(lies.shape, lies.strides, lies.offset)
        if t["role"] == "upstream":
            upstream.append(tensor)
            continue
        if operation != "no-grad-forward" and tensor.dtype.is_floating_point:
            tensor.requires_grad_(True)
        by_name[t["name"]] = tensor
        inputs.append(tensor)
    wrt = [by_name[t["of"]] for t in tensors if t["role"] == "gradient"]
    return provider_call.Problem(inputs, upstream, wrt, operation)
