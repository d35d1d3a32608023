"""Measures a torch device: copies and GEMMs by the farm's own timing policy.  Only a child loads this."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from farm.calibration.copies import Copy
from farm.calibration.procedure import MIB
from farm.child.provider_call import Problem
from farm.child.timing import POLICIES, Bench, TimingResult
from farm.errors import CannotMeasure, CaptureFailed
from farm.timing.statistics import summarize

Function = Callable[..., Any]
Timer = Callable[[Bench], TimingResult]


def copier(copy: Copy, cores: int, overlaps: bool) -> Callable[[Any], Any]:
    """source (int32, dense) -> a copy of it, by one kernel of this configuration.

    `cores`: multiprocessors, for a persistent grid; `overlaps`: whether the device knows programmatic dependent launch
    (NVIDIA's, from sm_90 on); without it, or with a Triton that does not, such a configuration is launched like any
    other.
    """

    def function(source: Any) -> Any:
        from farm.child.calibration.copy_kernels import KNOWS_PDL, copy_once, copy_strided

        size = source.numel()
        blocks = -(-size // copy.block)
        target = torch.empty_like(source)
        extra = {"launch_pdl": True} if copy.pdl and overlaps and KNOWS_PDL else {}
        common = (copy.block, copy.hint, bool(extra))
        if copy.per_core:
            grid = (min(blocks, copy.per_core * cores),)
            copy_strided[grid](source, target, size, blocks, *common, num_warps=copy.warps, **extra)
        else:
            copy_once[(blocks,)](source, target, size, *common, num_warps=copy.warps, **extra)
        return target

    return function


class TorchMeasurer:
    """`policy`: the timing policy as plain data, its `method` among `timers`; `cores`: multiprocessors."""

    def __init__(
        self,
        device: torch.device,
        *,
        policy: Mapping[str, Any],
        cache_bytes: int,
        cores: int,
        overlaps: bool,
        timers: Mapping[str, Timer] = POLICIES,
        extras: Mapping[str, Any] | None = None,
        make_copy: Callable[[Copy, int, bool], Function] | None = None,
    ):
        """`extras`: what the session's device brings to a `Bench` (`max_launches`, `recorder`); `make_copy`: as
        `copier`, for a device that copies by other kernels."""
        self.device, self.policy, self.timers, self.extras = device, dict(policy), timers, dict(extras or {})
        self.cache_bytes, self.cores, self.overlaps, self._copier = cache_bytes, cores, overlaps, make_copy
        self._source: torch.Tensor | None = None  # of the last copy: a size's configurations share it

    def now(self) -> float:
        return time.perf_counter()

    @property
    def _api(self) -> Any:
        return torch.get_device_module(self.device.type)

    def free_bytes(self) -> int:
        """After what is cached has been given back: graphs keep the memory of their outputs."""
        self._source = None
        self._api.empty_cache()
        return int(self._api.mem_get_info(self.device)[0])

    def copy_us(self, copy: Copy, nbytes: int) -> float:
        with self._told():
            if self._source is None or self._source.numel() != nbytes // 8:
                self._source = None
                # random, as a kernel's data is: a part that moves zeros draws less power and keeps its clock
                self._source = torch.randint(0, 1 << 30, (nbytes // 8,), dtype=torch.int32, device=self.device)
            source = self._source
            function = (self._copier or copier)(copy, self.cores, self.overlaps)
            if not torch.equal(function(source), source):
                raise CannotMeasure("the copy is wrong")
            return self._time(function, lambda: Problem([source.clone()], [], [], "no-grad-forward"), nbytes)

    def gemm_us(self, dtype: str, edge: int) -> float:
        with self._told(), _float32_as("high" if dtype == "tf32" else "highest"):
            self._source = None
            function, inputs = _gemm(dtype, edge, self.device)
            moved = 3 * edge * edge * inputs[0].element_size()
            return self._time(function, lambda: Problem([t.clone() for t in inputs], [], [], "no-grad-forward"), moved)

    def floors(self) -> dict[str, float]:
        """By the calibration's policy and by event pairs, each as the policy itself measures its floor."""
        found = {}
        for method in dict.fromkeys((str(self.policy["method"]), "events")):
            if method not in self.timers:
                continue
            with suppress(CannotMeasure), self._told():
                bench = self._bench(lambda x: x + 1, self._tiny, MIB)
                floor = self.timers[method](bench).floor_us
                if floor:
                    found[method] = float(floor)
        return found

    def _tiny(self) -> Problem:
        return Problem([torch.zeros(MIB // 8, dtype=torch.int32, device=self.device)], [], [], "no-grad-forward")

    def _time(self, function: Function, make: Callable[[], Problem], nbytes: int) -> float:
        """The median time in microseconds by the policy."""
        found = summarize(self.timers[str(self.policy["method"])](self._bench(function, make, nbytes)).samples_us)
        if self._api.mem_get_info(self.device)[0] < self._api.mem_get_info(self.device)[1] / 2:
            self._api.empty_cache()  # what the graph held, before the next one needs it
        return found.p50 if found else 0.0

    def _bench(self, function: Function, make: Callable[[], Problem], nbytes: int) -> Bench:
        return Bench(function, make, self.device, self.cache_bytes, nbytes, self.policy, **self.extras)

    @contextmanager
    def _told(self) -> Any:
        """What one measurement cannot do costs that one; a failed capture or a lost context is passed on."""
        try:
            yield
        except (CannotMeasure, CaptureFailed):
            raise
        except (torch.OutOfMemoryError, MemoryError):
            self._source = None
            self._api.empty_cache()
            raise CannotMeasure("does not fit in the device's memory") from None
        except Exception as error:
            self._api.synchronize(self.device)  # raises where the context is lost
            told = " ".join(f"{type(error).__name__}: {error}".split())
            raise CannotMeasure(told[:200]) from error


@contextmanager
def _float32_as(precision: str) -> Any:
    """float32 products by their own arithmetic ("highest"), or by tensor cores from TF32 ("high")."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _gemm(dtype: str, edge: int, device: torch.device) -> tuple[Function, list[torch.Tensor]]:
    """(function, its inputs): the vendor's product of two square matrices of random numbers.

    8-bit operands are laid out as the vendor's fastest kernels want them: the first by rows, the second by columns.
    """
    made = [torch.randn(edge, edge, device=device) for _ in range(2)]
    if dtype == "float8_e4m3fn":
        if not hasattr(torch, "_scaled_mm") or not hasattr(torch, dtype):
            raise CannotMeasure("this torch has no matrix product of this dtype")
        one = torch.ones((), device=device)
        eight = [t.to(torch.float8_e4m3fn) for t in made]

        def scaled(a: Any, b: Any) -> Any:
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        return scaled, eight
    if dtype == "int8":
        if not hasattr(torch, "_int_mm"):
            raise CannotMeasure("this torch has no matrix product of this dtype")
        return lambda a, b: torch._int_mm(a, b.t()), [(t * 32).clamp(-127, 127).to(torch.int8) for t in made]
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    return torch.matmul, [t.to(kind) for t in made]
