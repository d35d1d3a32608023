"""The measuring half of a calibration on the CPU: real copies and products, a fake timer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farm.calibration.copies import COPIES
from farm.calibration.procedure import GEMMS, calibrate
from farm.child.calibration import device as module
from farm.child.calibration.copy_kernels import copy_once, copy_strided
from farm.child.calibration.device import TorchMeasurer, copier
from farm.child.timing import Bench, TimingResult
from farm.errors import CannotMeasure, CaptureFailed

POLICY = {"method": "rotating_graph", "version": 2, "cache": "cold", "min_samples": 10}


class Timer:
    """Ten microseconds, whatever it is; keeps what it was asked for, and the outputs of one call."""

    def __init__(self) -> None:
        self.benches: list[Bench] = []
        self.outputs: list[Any] = []
        self.precisions: list[str] = []

    def __call__(self, bench: Bench) -> TimingResult:
        self.benches.append(bench)
        self.precisions.append(torch.get_float32_matmul_precision())
        problem = bench.make()
        self.outputs.append((problem.inputs, problem.run(bench.function)[0]))
        return TimingResult("rotating_graph", [10.0, 10.1, 9.9] * 7, floor_us=1.5)


class Api:
    """What torch's module for a device has and the one for the CPU lacks."""

    def __init__(self, free: int = 1 << 40, lost: bool = False):
        self.free, self.lost, self.emptied = free, lost, 0

    def empty_cache(self) -> None:
        self.emptied += 1

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.free, 1 << 40

    def synchronize(self, device: Any) -> None:
        if self.lost:
            raise RuntimeError("the context is lost")


@pytest.fixture
def timer() -> Timer:
    return Timer()


def measurer(timer: Any, monkeypatch: pytest.MonkeyPatch, api: Api | None = None) -> TorchMeasurer:
    found = api or Api()
    monkeypatch.setattr(TorchMeasurer, "_api", found)
    return TorchMeasurer(
        torch.device("cpu"),
        policy=POLICY,
        cache_bytes=1 << 20,
        cores=4,
        overlaps=False,
        timers={"rotating_graph": timer, "events": timer},
    )


@pytest.mark.parametrize("config", COPIES, ids=lambda c: c.name)
@pytest.mark.parametrize("size", [1024, 4096 + 16, 3 * 8192 + 1024])
def test_every_copy_kernel_copies_every_element(config: Any, size: int) -> None:
    source = torch.randint(-(1 << 30), 1 << 30, (size,), dtype=torch.int32)
    assert torch.equal(copier(config, 1, False)(source), source)


def test_copies_reach_both_kernels_and_every_hint() -> None:
    assert {c.hint for c in COPIES} == {"", "stream", "last"} and {bool(c.per_core) for c in COPIES} == {False, True}
    assert len({c.name for c in COPIES}) == len(COPIES)
    assert copy_once.fn is not copy_strided.fn


def test_a_copy_is_timed_over_what_it_moves(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    here = measurer(timer, monkeypatch)
    assert here.copy_us(COPIES[0], 1 << 16) == 10.0
    bench, ((source,), target) = timer.benches[0], timer.outputs[0]
    assert bench.bytes_moved == 1 << 16 == 2 * source.numel() * source.element_size()
    assert torch.equal(source, target) and len(source.unique()) > source.numel() // 2  # random, not zeros
    assert bench.policy["method"] == "rotating_graph" and bench.cache_bytes == 1 << 20
    one, two = bench.make().inputs[0], bench.make().inputs[0]
    assert one.data_ptr() != two.data_ptr()  # every buffer set is its own memory


def test_a_copy_that_does_not_copy_is_no_roof(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    here = measurer(timer, monkeypatch)
    monkeypatch.setattr(module, "copier", lambda *a: torch.zeros_like)
    with pytest.raises(CannotMeasure, match="the copy is wrong"):
        here.copy_us(COPIES[0], 1 << 16)
    assert timer.benches == []


@pytest.mark.parametrize("dtype", GEMMS)
def test_products_are_of_their_dtype_and_leave_no_setting_behind(
    dtype: str, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, before = measurer(timer, monkeypatch), torch.get_float32_matmul_precision()
    try:
        assert here.gemm_us(dtype, 64) == 10.0
    except CannotMeasure as reason:  # what this torch cannot do on a CPU is told, never raised
        assert dtype in ("float8_e4m3fn", "int8") and str(reason)
        return
    finally:
        assert torch.get_float32_matmul_precision() == before
    (a, b), c = timer.outputs[0]
    assert a.dtype is (torch.float32 if dtype == "tf32" else getattr(torch, dtype))
    want = a.double() @ (b.double().t() if dtype in ("float8_e4m3fn", "int8") else b.double())
    torch.testing.assert_close(c.double(), want, rtol=0.02, atol=0.5)
    assert timer.precisions == ["high" if dtype == "tf32" else "highest"]
    assert timer.benches[0].bytes_moved == 3 * 64 * 64 * a.element_size()


def test_floors_are_those_of_the_policies(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    here = measurer(timer, monkeypatch)
    assert here.floors() == {"rotating_graph": 1.5, "events": 1.5}
    here.timers = {"rotating_graph": timer, "events": _raising(RuntimeError("no events"))}
    assert here.floors() == {"rotating_graph": 1.5}


def _raising(error: Exception) -> Any:
    def timer(bench: Bench) -> TimingResult:
        raise error

    return timer


def test_one_measurement_that_fails_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, said in ((torch.OutOfMemoryError("x"), "does not fit"), (ValueError("a\nb"), "ValueError: a b")):
        with pytest.raises(CannotMeasure, match=said):
            measurer(_raising(error), monkeypatch).copy_us(COPIES[0], 1 << 16)


def test_a_spent_process_ends_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureFailed):
        measurer(_raising(CaptureFailed("x")), monkeypatch).copy_us(COPIES[0], 1 << 16)
    with pytest.raises(RuntimeError, match="the context is lost"):
        measurer(_raising(ValueError("x")), monkeypatch, Api(lost=True)).copy_us(COPIES[0], 1 << 16)


def test_memory_is_given_back_where_it_is_short(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(free=1 << 38)
    here = measurer(timer, monkeypatch, api)
    here.copy_us(COPIES[0], 1 << 16)
    assert api.emptied == 1 and here.free_bytes() == 1 << 38 and api.emptied == 2
    roomy = Api()
    measurer(timer, monkeypatch, roomy).copy_us(COPIES[0], 1 << 16)
    assert roomy.emptied == 0


def test_the_whole_procedure_runs_on_it(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.calibration.procedure.ANCHORS", (1 << 20,))
    monkeypatch.setattr("farm.calibration.procedure.LARGEST", 2 << 20)
    monkeypatch.setattr("farm.calibration.procedure.DRIFT_BYTES", 1 << 20)
    monkeypatch.setattr("farm.calibration.procedure.GEMMS", {"bfloat16": (64,)})
    found = calibrate(measurer(timer, monkeypatch), 600.0, copies=COPIES[3:6])
    assert {p["us"] for p in found["curve"]} == {10.0} and found["gemm"][0]["tflops"] > 0
    assert found["floors"]["events"] == 1.5


def test_a_cuda_session_is_measured_by_its_own_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.child.calibration import run as child

    properties = SimpleNamespace(multi_processor_count=132, major=9)
    api = SimpleNamespace(get_device_properties=lambda device: properties)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: api)
    session = SimpleNamespace(
        backend="cuda",
        device=torch.device("cuda", 0),
        cache_bytes=60 << 20,
        timing_methods=("rotating_graph", "events"),
    )
    found = child._torch(session, POLICY)
    assert (found.cores, found.overlaps, found.cache_bytes) == (132, True, 60 << 20)
    properties.major = 8
    assert child._torch(session, POLICY).overlaps is False
