"""The devices of a run: which there are, which are awaited, what each has said of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from farm.cell import Target
from farm.coordinator.clusters import Cluster, Slot
from farm.coordinator.journal import line
from farm.coordinator.neighbours import Neighbours
from farm.coordinator.roofs import Roofs
from farm.deadline import Deadline
from farm.scheduler.events import DeviceAdded, DeviceDown, DeviceUp, Drain, Event
from farm.store import RunWriter

if TYPE_CHECKING:
    from farm.coordinator.request import Progress, RunRequest

REFRESH_SECONDS = 2.0
DRAINED = "its node is drained"


class Fleet:
    """Turns what the cluster says of devices into events, and starts and stops their actors."""

    def __init__(self, request: RunRequest, cluster: Cluster, writer: RunWriter, progress: Progress, roofs: Roofs):
        self._request, self._cluster, self._writer, self._progress, self._roofs = (
            request, cluster, writer, progress, roofs,
        )  # fmt: skip
        self.slots = {slot.device: slot for slot in request.slots}
        self.devices: dict[str, dict[str, Any]] = {}  # by name: what its last device_up said
        self.neighbours = Neighbours()
        self._backends = {cell.backend for cell in request.plan.cells}
        self._starting: dict[str, Deadline] = {}
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        limits = [m.deadlines for m in request.plan.matrices]
        self._deadlines = {phase: max(d[phase] for d in limits) for phase in limits[0]} if limits else {}

    def hosts(self) -> dict[str, str]:
        """Device -> its host."""
        return {device: host_of(slot) for device, slot in self.slots.items()}

    def backends(self) -> set[str]:
        """Those of which there is, or was, a device."""
        return {slot.backend for slot in self.slots.values()}

    # what becomes of a device

    def start(self, device: str) -> None:
        slot = self.slots[device]
        self._starting[device] = Deadline(self._deadlines["spawn"] + 60.0)
        self._cluster.start(
            slot,
            {
                "device": device,
                "backend": slot.backend,
                "labels": dict(slot.labels),
                "options": dict(self._request.options.get(slot.backend, {})),
                "environment": self._request.environment.plain(),
                "revision": self._request.revision["name"],
                "run_id": self._writer.id,
                "deadlines": dict(self._deadlines),
                "shipped": self._request.options.get("shipped"),
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
        self._journal("retired", {"device": device, "reason": reason, "drained": drained}, "device", "reason",
                      "drained")  # fmt: skip
        self._progress.device(f"{device}: {'handed back' if drained else 'given up'} ({reason})")
        if not drained:
            self._report("quarantine", device, f"{reason}; the run gave it up")

    def _report(self, event: str, device: str, reason: str) -> None:
        """What a cluster that outlives the run remembers of a device's faults."""
        self._cluster.report(self.slots[device], line(event, {"device": device, "reason": reason}, "device", "reason"))

    # what the cluster says

    def up(self, said: dict[str, Any]) -> Event:
        device = said["device"]
        self._starting.pop(device, None)
        self.devices[device] = said
        self._journal("device_up", said, "device", "backend", "target", "name", "node", "fingerprint", "pid",
                      "evidence", "identity", "environment", "command", "labels")  # fmt: skip
        self._progress.device(f"{device}: {said['name']}, ready")
        self._find_roof(said)
        module = str((said.get("identity") or {}).get("module") or "")
        self.neighbours.placed(device, host_of(self.slots[device]), module)
        return DeviceUp(said["at"], device, said["backend"], str(Target(**said["target"])), module)

    def _find_roof(self, said: Mapping[str, Any]) -> None:
        """Choose the device's calibration, and keep in the journal what it says: the store's may be deleted."""
        known = set(self._roofs.used())
        _, told = self._roofs.device_up(said["device"], said["backend"], said, datetime.now(timezone.utc))
        for choice in reversed(self._roofs.serving(said["device"])):  # the last one told is the device's
            kept = {"device": said["device"], "choice": choice.to_dict()}
            if choice.calibration.id not in known:
                kept["calibration"] = self._roofs.used()[choice.calibration.id]
            self._journal("roof", kept, "device", "choice", "calibration")
        if told:
            self._progress.device(f"{said['device']}: {told}")

    def waits(self, said: Mapping[str, Any]) -> None:
        """Another farm has the device: its time to start begins when that is over."""
        deadline = self._starting.get(said["device"])
        if deadline:
            self._starting[said["device"]] = Deadline(deadline.seconds + float(said.get("up_to_s", 0.0)))
        self._journal("device_waits", said, "device", "reason")
        self._progress.device(f"{said['device']}: {said['reason']}")

    def down(self, said: Mapping[str, Any]) -> Event:
        self._starting.pop(said["device"], None)
        self._journal("device_down", said, "device", "reason", "final")
        self._progress.device(f"{said['device']}: {said['reason']}")
        return DeviceDown(said["at"], said["device"], said["reason"], bool(said.get("final")))

    # what time brings

    def overdue(self, now: float) -> list[Event]:
        """Devices whose actors should be there by now."""
        return [
            self.down({"event": "device_down", "device": device, "at": now, "final": False,
                       "reason": f"its actor was not ready within {deadline.seconds:g} s"})
            for device, deadline in list(self._starting.items())
            if deadline.expired
        ]  # fmt: skip

    def refresh(self, now: float) -> list[Event]:
        """What the cluster gained and what is wanted back, asked every few seconds."""
        if now < self._next_refresh:
            return []
        self._next_refresh = now + REFRESH_SECONDS
        changes = self._cluster.refresh()
        out: list[Event] = []
        for device in changes.drained:
            if device in self.slots:
                self._journal("drain", {"device": device, "reason": DRAINED}, "device", "reason")
                self._progress.device(f"{device}: {DRAINED}; it ends what it has begun")
                out.append(Drain(now, device, DRAINED))
        for slot in changes.new:
            if slot.backend in self._backends:
                out.append(self._added(now, slot))
        return out

    def _added(self, now: float, slot: Slot) -> Event:
        self.slots[slot.device] = slot
        self._journal("device_added", {"device": slot.device, "backend": slot.backend}, "device", "backend")
        self._progress.device(f"{slot.device}: joined")
        return DeviceAdded(now, slot.device, slot.backend, host_of(slot))

    def _journal(self, event: str, said: Mapping[str, Any], *names: str) -> None:
        self._writer.append(line(event, said, *names))


def host_of(slot: Slot) -> str:
    """Equal for the devices of one host."""
    return slot.host or slot.node
