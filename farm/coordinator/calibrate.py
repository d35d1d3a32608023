"""The edge around `farm calibrate`: measure every device of a cluster once, in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm import backends, limits
from farm.cell import Timing
from farm.cluster.base import Cluster, DeviceHandle
from farm.deadline import Deadline
from farm.node.environment import Environment

TICK_SECONDS = 0.2
#: Samples of one copy: fewer than for a cell, because a calibration uses the envelope of hundreds of copies.
POLICY: dict[str, Any] = {"min_samples": 10, "max_samples": 40, "target_rel_width": 0.005, "max_seconds": 0.04}


@dataclass
class DeviceCalibration:
    """The result for one device: `found` (see `farm.calibration.procedure`), or the reason of the failure."""

    slot: DeviceHandle
    up: dict[str, Any] = field(default_factory=dict)  # what the device reported: target, name, node, fingerprint
    policy: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] | None = None
    telemetry: dict[str, Any] | None = None  # the device's telemetry during the measurement
    reason: str = ""
    log: str = ""


def policy_of(backend: str) -> dict[str, Any]:
    """The backend's default timing policy, with fewer samples."""
    return Timing(method=backends.usable(backend).DEFAULT_TIMING, **POLICY).to_dict()


def otherwise_of(backend: str) -> dict[str, Any] | None:
    """The policy for a device whose process dies or hangs in a graph capture; None if no capture is used."""
    tried = backends.trial_capture(backend) and policy_of(backend)["method"] == "rotating_graph"
    return Timing(method=backends.fallback_timing(backend), **POLICY).to_dict() if tried else None


def calibrate(
    slots: Sequence[DeviceHandle], cluster: Cluster, seconds: float, revision: str, report: Callable[[str, str], None]
) -> list[DeviceCalibration]:
    """Measure every device within about `seconds`; `report(device, text)` gets the progress.  Closes the cluster."""
    out = {slot.device: DeviceCalibration(slot, policy=policy_of(slot.backend)) for slot in slots}
    limit = 3 * seconds + 120.0  # the procedure may take twice its budget, and kernels must be compiled
    start = limits.start(limits.TABLE) + limit + 30.0
    waiting = {device: Deadline(start) for device in out}
    try:
        for slot in slots:
            cluster.start(slot, _config(slot, revision))
        while waiting:
            for device in [d for d, deadline in waiting.items() if deadline.expired]:
                out[device].reason = f"the device did not answer within {waiting.pop(device).seconds:g} s"
            for said in cluster.events(TICK_SECONDS):
                device, kind = said["device"], said["event"]
                if device not in waiting:
                    continue
                mine = out[device]
                if kind == "device_up":
                    mine.up = said
                    report(device, f"{said['name']}, ready")
                    order = {"policy": mine.policy, "seconds": seconds, "deadline": limit}
                    order["otherwise"] = otherwise_of(mine.slot.backend)
                    cluster.grant(device, {"id": 0, "attempts": [], "calibrate": order})
                elif kind == "device_waits":
                    waiting[device] = Deadline(waiting[device].remaining + float(said.get("up_to_s", 0.0)))
                    report(device, said["reason"])
                elif kind == "calibrating":
                    report(device, said["step"])
                elif kind in ("calibrated", "device_down"):
                    mine.found, mine.telemetry = said.get("found"), said.get("telemetry")
                    mine.policy = said.get("policy") or mine.policy
                    mine.reason, mine.log = said.get("reason", ""), said.get("log", "")
                    del waiting[device]
    finally:
        cluster.close()
    return list(out.values())


def _config(slot: DeviceHandle, revision: str) -> dict[str, Any]:
    return {
        "device": slot.device,
        "backend": slot.backend,
        "environment": Environment.default().plain(),
        "revision": revision,
        "deadlines": limits.of({}),
        "shipped": None,
        "run_id": f"calibration-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}",
    }
