"""The copies of an NPU's calibration: right in the interpreter, and chosen for that backend alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farm.calibration import copies
from farm.child.calibration import npu
from farm.child.calibration import run as child
from farm.child.protocol import Calibrate, Calibrated
from farm.compile.targets import TARGETS


@pytest.mark.parametrize("copy", npu.COPIES, ids=lambda c: c.name)
@pytest.mark.parametrize("size", [1, 2048, 16384 * 3 + 5])
def test_each_copies_every_element_and_no_more(copy: copies.Copy, size: int) -> None:
    source = torch.arange(1, size + 1, dtype=torch.int32)
    assert torch.equal(npu.copier(copy, 2, False)(source), source)


def test_a_double_buffered_tile_fits_the_unified_buffer() -> None:
    assert all(2 * 4 * c.block < TARGETS["ascend910b"].block_memory for c in npu.COPIES)
    assert all(c.per_core == 1 and not c.pdl and not c.hint for c in npu.COPIES)


@pytest.mark.parametrize(("backend", "wanted"), [("ascend", npu.COPIES), ("cuda", copies.COPIES)])
def test_a_session_copies_by_its_own_backends_kernels(
    backend: str, wanted: tuple[copies.Copy, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def procedure(device: Any, seconds: float, step: Any, configurations: tuple[copies.Copy, ...]) -> dict[str, Any]:
        asked.update(copies=configurations, device=device)
        return {}

    monkeypatch.setattr(child.procedure, "calibrate", procedure)
    props = SimpleNamespace(multi_processor_count=None, vector_core_num=40, major=9)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: SimpleNamespace(get_device_properties=lambda d: props))
    session = SimpleNamespace(
        backend=backend,
        device=torch.device("cpu"),
        cache_bytes=1 << 20,
        timing_methods=("rotating_graph",),
        max_graph_launches=1000,
        recorder=None,
    )
    reply = child.calibrate(session, Calibrate("r", 0, 1, {"method": "rotating_graph"}, 5.0), lambda said: None)
    assert isinstance(reply, Calibrated) and asked["copies"] == wanted
    assert asked["device"].cores == 40 and asked["device"].extras == {"max_launches": 1000, "recorder": None}
    assert (asked["device"]._copier is npu.copier) is (backend == "ascend")
