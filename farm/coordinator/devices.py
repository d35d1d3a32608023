"""The devices of a run: the known ones, the awaited ones, and what each has reported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from farm.cell import Target
from farm.cluster.base import Cluster, DeviceHandle
from farm.coordinator.calibration_lookup import CalibrationLookup
from farm.coordinator.colocation import Colocation
from farm.coordinator.journal import line
from farm.deadline import Deadline
from farm.errors import Message
from farm.scheduler.events import DeviceAdded, DeviceDown, DeviceUp, Drain, Event, JudgeDown
from farm.store import RunWriter

if TYPE_CHECKING:
    from farm.coordinator.request import RunProgress, RunRequest

REFRESH_SECONDS = 2.0
DRAINED = "the device's node was drained"
RELEASED, RETIRED = "released", "retired"  # printed for a device that the run uses no longer


class RunDevices:
    """Turns what the cluster reports of devices into events, and starts and stops their actors."""

    def __init__(
        self, request: RunRequest, cluster: Cluster, writer: RunWriter, progress: RunProgress, roofs: CalibrationLookup
    ):
        self._request, self._cluster, self._writer, self._progress, self._roofs = (
            request,
            cluster,
            writer,
            progress,
            roofs,
        )
        self.slots = {slot.device: slot for slot in request.slots}
        self.devices: dict[str, dict[str, Any]] = {}  # by name: its last device_up
        self.neighbours = Colocation()
        self._backends = {cell.backend for cell in request.plan.cells}
        self._starting: dict[str, Deadline] = {}
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        limits = [m.deadlines for m in request.plan.matrices]
        self.deadlines = {phase: max(d[phase] for d in limits) for phase in limits[0]} if limits else {}

    def hosts(self) -> dict[str, str]:
        """Device -> its host."""
        return {device: host_of(slot) for device, slot in self.slots.items()}

    def backends(self) -> set[str]:
        """The backends that have, or had, a device."""
        return {slot.backend for slot in self.slots.values()}

    # starting, replacing and retiring a device

    def start(self, device: str) -> None:
        slot = self.slots[device]
        self._starting[device] = Deadline(self.deadlines["spawn"] + 60.0)
        self._cluster.start(
            slot,
            {
                "device": device,
                "backend": slot.backend,
                "labels": dict(slot.labels),
                "environment": self._request.environment.plain(),
                "revision": self._request.revision["name"],
                "run_id": self._writer.id,
                "deadlines": dict(self.deadlines),
                "shipped": self._request.shipped,
            },
        )

    def replace(self, device: str, reason: str) -> None:
        self._journal("replaced", {"device": device, "reason": reason}, "device", "reason")
        self.neighbours.idle(device, time.monotonic())
        self._report("device_down", device, reason)
        self._cluster.stop(device)
        self.start(device)

    def retire(self, device: str, reason: str, *, drained: bool) -> None:
        self.neighbours.idle(device, time.monotonic())
        self._starting.pop(device, None)
        self._cluster.stop(device)
        self._journal(
            "retired", {"device": device, "reason": reason, "drained": drained}, "device", "reason", "drained"
        )
        self._progress.device(f"{device}: {RELEASED if drained else RETIRED} ({reason})")
        if not drained:
            self._report("quarantine", device, f"{reason}; the run retired the device")

    def changed(self, device: str, state: str, reason: str) -> None:
        """The device is suspect, quarantined, or ready again."""
        said = {"device": device, "state": state, "reason": reason}
        self._journal("health", said, "device", "state", "reason")
        self._progress.device(f"{device}: {state} ({reason})")
        self._cluster.report(self.slots[device], line("health", said, "device", "state", "reason"))

    def judge_down(self, said: Mapping[str, Any]) -> Event:
        """A judge of the device's node died; the cluster replaces it."""
        self._journal("judge_down", said, "device", "judge", "reason")
        where = host_of(self.slots[said["device"]])
        self._progress.device(f"{where}: {said['reason']}")
        self._cluster.report(self.slots[said["device"]], line("judge_down", said, "device", "reason"))
        return JudgeDown(said["at"], said["device"], said["reason"])

    def _report(self, event: str, device: str, reason: str) -> None:
        """Report a device's fault to a cluster that outlives the run."""
        self._cluster.report(self.slots[device], line(event, {"device": device, "reason": reason}, "device", "reason"))

    # reports from the cluster

    def up(self, said: dict[str, Any]) -> Event:
        device, target = said["device"], str(Target(**said["target"]))  # before anything of it is kept
        self._starting.pop(device, None)
        self.devices[device] = said
        self._journal(
            "device_up",
            said,
            "device",
            "backend",
            "target",
            "name",
            "node",
            "fingerprint",
            "pid",
            "evidence",
            "identity",
            "environment",
            "command",
            "labels",
        )
        self._progress.device(f"{device}: {said['name']}, ready")
        self._find_roof(said)
        module = str((said.get("identity") or {}).get("module") or "")
        self.neighbours.placed(device, host_of(self.slots[device]), module)
        return DeviceUp(said["at"], device, target, module)

    def _find_roof(self, said: Mapping[str, Any]) -> None:
        """Choose the device's calibration and copy it into the journal, because the store's may be deleted."""
        known = set(self._roofs.used())
        _, message = self._roofs.device_up(said["device"], said["backend"], said, datetime.now(timezone.utc))
        for choice in reversed(self._roofs.serving(said["device"])):  # the last line is the one that counts
            kept = {"device": said["device"], "choice": choice.to_dict()}
            if choice.calibration.id not in known:
                kept["calibration"] = self._roofs.used()[choice.calibration.id]
            self._journal("roof", kept, "device", "choice", "calibration")
        if message:
            self._progress.device(f"{said['device']}: {message}")

    def waits(self, said: Mapping[str, Any]) -> None:
        """Another farm uses the device: its time to start is extended by the wait."""
        deadline = self._starting.get(said["device"])
        if deadline:
            self._starting[said["device"]] = Deadline(deadline.seconds + float(said.get("up_to_s", 0.0)))
        self._journal("device_waits", said, "device", "reason")
        self._progress.device(f"{said['device']}: {said['reason']}")

    def differs(self, said: Mapping[str, Any]) -> None:
        """A node supervises its devices by other sources than this farm's, which speak the same protocol."""
        self._journal("node_differs", said, "node", "content", "ours")
        what = f"{said['node']}: its farm has other sources ({said['content']}) than this run's ({said['ours']})"
        more = "it only supervises its devices, but install the same revision on both"
        self._progress.device(Message(f"{what}; {more}", id="node-differs"))

    def down(self, said: Mapping[str, Any]) -> Event:
        self._starting.pop(said["device"], None)
        self._journal("device_down", said, "device", "reason", "final")
        self._progress.device(f"{said['device']}: {said['reason']}")
        return DeviceDown(said["at"], said["device"], said["reason"], bool(said.get("final")))

    # deadlines and periodic checks

    def overdue(self, now: float) -> list[Event]:
        """Devices whose actors should be ready by now."""
        return [
            self.down(
                {
                    "event": "device_down",
                    "device": device,
                    "at": now,
                    "final": False,
                    "reason": f"the device's actor was not ready within {deadline.seconds:g} s",
                }
            )
            for device, deadline in list(self._starting.items())
            if deadline.expired
        ]

    def refresh(self, now: float) -> list[Event]:
        """New and drained devices of the cluster, requested every few seconds."""
        if now < self._next_refresh:
            return []
        self._next_refresh = now + REFRESH_SECONDS
        changes = self._cluster.refresh()
        out: list[Event] = []
        for device in changes.drained:
            if device in self.slots:
                self._journal("drain", {"device": device, "reason": DRAINED}, "device", "reason")
                self._progress.device(f"{device}: {DRAINED}; the device finishes its lease")
                out.append(Drain(now, device, DRAINED))
        for slot in changes.new:
            if slot.backend in self._backends:
                out.append(self._added(now, slot))
        return out

    def _added(self, now: float, slot: DeviceHandle) -> Event:
        self.slots[slot.device] = slot
        self._journal("device_added", {"device": slot.device, "backend": slot.backend}, "device", "backend")
        self._progress.device(f"{slot.device}: joined")
        return DeviceAdded(now, slot.device, slot.backend, host_of(slot))

    def _journal(self, event: str, said: Mapping[str, Any], *names: str) -> None:
        self._writer.append(line(event, said, *names))


def host_of(slot: DeviceHandle) -> str:
    """Equal for the devices of one host."""
    return slot.host or slot.node
