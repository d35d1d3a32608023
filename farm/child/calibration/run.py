"""A calibration in the child: the session's device, measured by the farm's procedure."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from farm.calibration import procedure
from farm.calibration.copies import COPIES
from farm.child.calibration.npu import COPIES as NPU_COPIES
from farm.child.protocol import LONGEST_TRACE, Calibrate, Calibrated, Failed, Message, Phase
from farm.errors import CannotMeasure


def calibrate(session: Any, message: Calibrate, say: Callable[[Message], None]) -> Calibrated | Failed:
    """One calibration; every end is a message.  A session with a `measurer(policy)` of its own says what to measure;
    else its torch device is."""
    ids = (message.revision, message.round, message.attempt)

    def step(text: str) -> None:
        say(Phase(*ids, text))

    try:
        device = session.measurer(message.policy) if hasattr(session, "measurer") else _torch(session, message.policy)
        npu = getattr(session, "backend", "") == "ascend"
        return Calibrated(*ids, procedure.calibrate(device, message.seconds, step, NPU_COPIES if npu else COPIES))
    except CannotMeasure as reason:
        return Failed(*ids, "unsupported", "device", str(reason), "", True)
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return Failed(*ids, "crashed", "device", told, traceback.format_exc()[-LONGEST_TRACE:], True)


def _torch(session: Any, policy: dict[str, Any]) -> Any:
    if policy["method"] not in session.timing_methods:
        raise CannotMeasure(f"backend {session.backend} has no timing method {policy['method']}")
    import torch

    from farm.child.calibration import npu
    from farm.child.calibration.device import TorchMeasurer

    api = torch.get_device_module(session.device.type)
    found = api.get_device_properties(session.device)
    nvidia = session.backend == "cuda"
    return TorchMeasurer(
        session.device,
        policy=policy,
        cache_bytes=session.cache_bytes,
        cores=int(getattr(found, "multi_processor_count", 0) or getattr(found, "vector_core_num", 0) or 1),
        overlaps=nvidia and int(getattr(found, "major", 0)) >= 9,
        extras={
            "max_launches": getattr(session, "max_graph_launches", None),
            "recorder": getattr(session, "recorder", None),
        },
        make_copy=npu.copier if session.backend == "ascend" else None,
    )
