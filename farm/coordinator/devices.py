"""The devices of a run: the known ones, the awaited ones, and what each has reported."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from farm import limits
from farm.actor import compile_ahead
from farm.cell import Target
from farm.cluster.base import Cluster, DeviceHandle
from farm.coordinator.calibration_lookup import CalibrationLookup
from farm.coordinator.colocation import Colocation
from farm.coordinator.journal import line
from farm.deadline import Deadline
from farm.device_pattern import pattern_of
from farm.errors import Message, UsageError
from farm.scheduler.events import (
    Away,
    AwayNode,
    CellPool,
    DeviceAdded,
    DeviceDown,
    DeviceUp,
    DeviceWaits,
    Drain,
    Event,
    JudgeDown,
)
from farm.store import RunWriter, device_health
from farm.utilisation import DeviceTimes

if TYPE_CHECKING:
    from farm.coordinator.request import RunProgress, RunRequest

REFRESH_SECONDS = 2.0
PLACE_SECONDS = 60.0  # for Ray to start a process on a free device, however short the wait for a busy one
REPEAT_SECONDS = 600.0  # how often the run says again what it waits for
MOST_FIRST = 8  # cells whose inputs may be made before a device is there
DRAINED = "the device's node was drained"
RELEASED, RETIRED = "released", "retired"  # printed for a device that the run uses no longer


@dataclass
class _Unplaced:
    """A device whose actor Ray has not placed, since when; whether another run uses it, known since `changed`; and what
    was said of that."""

    since: float
    changed: float
    busy: bool = False
    reason: str = "Ray has not started the device's actor"

    def expired(self, now: float, wait_s: float) -> bool:
        """Whether the run has waited long enough; a process needs its time on a free device, however short the wait."""
        waited = now - self.since > wait_s
        return waited and (self.busy or now - self.changed > PLACE_SECONDS)


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
        self.health: list[dict[str, Any]] = []  # who was suspect, quarantined, gone or drained, in order
        self.neighbours = Colocation()
        self.compiles_ahead = os.environ.get(compile_ahead.VARIABLE, "").strip() != "0"
        self.times = DeviceTimes(request.began or time.monotonic(), time.monotonic())
        asked = sorted({(cell.backend, pattern_of(cell.target)) for cell in request.plan.cells})
        self._patterns = {backend: [p for b, p in asked if b == backend] for backend, _ in asked}
        self._unplaced: dict[str, _Unplaced] = {}  # devices whose actors have not begun
        self._starting: dict[str, Deadline] = {}
        self._away: tuple[AwayNode, ...] = ()
        self._said: dict[CellPool, tuple[tuple[str, ...], float]] = {}  # pools that wait: for which nodes, said when
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        self.deadlines = limits.loosest(m.deadlines for m in request.plan.matrices)

    def hosts(self) -> dict[str, str]:
        """Device -> its host."""
        return {device: host_of(slot) for device, slot in self.slots.items()}

    def backends(self) -> set[str]:
        """The backends that have, or had, a device."""
        return {slot.backend for slot in self.slots.values()}

    # starting, replacing and retiring a device

    def start(self, device: str) -> None:
        slot = self.slots[device]
        self._forget(device)
        now = time.monotonic()
        self.times.starts(device, now)
        self._unplaced[device] = _Unplaced(now, now)
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
                "subject": self._request.subject.plain() if self._request.subject else None,
                "wait_s": self._request.wait_s,
                "patterns": self._patterns.get(slot.backend, []),
                "compile_ahead": self._sharing(slot),
                "first": self._first(slot.backend),
                **({"arms": {a.arm.name: a.plain() for a in self._request.arms}} if self._request.arms else {}),
            },
        )

    def _sharing(self, slot: DeviceHandle) -> int:
        """How many devices of this run share the cores that can build kernels ahead on the slot's host; 0 where nothing
        is to be built ahead."""
        return 0 if not self.compiles_ahead else sum(host_of(other) == host_of(slot) for other in self.slots.values())

    def _first(self, backend: str) -> list[dict[str, Any]]:
        """Cells that are likely to be the first of a device: their inputs can be made while it starts."""
        done = self._request.finished.rows if self._request.finished else {}
        cells = (c for c in self._request.plan.cells if c.backend == backend and not c.skip_reason)
        return [c.to_dict() for c in islice((c for c in cells if c.index not in done), MOST_FIRST)]

    def _forget(self, device: str) -> None:
        """Its start has no deadline any more."""
        self._unplaced.pop(device, None)
        self._starting.pop(device, None)

    def replace(self, device: str, reason: str) -> None:
        self._journal("replaced", {"device": device, "reason": reason}, "device", "reason")
        self.times.stopped(device, time.monotonic())
        self.neighbours.idle(device, time.monotonic())
        self._report("device_down", device, reason)
        self._cluster.stop(device)
        self.start(device)

    def retire(self, device: str, reason: str, *, drained: bool) -> None:
        self.neighbours.idle(device, time.monotonic())
        self.times.stopped(device, time.monotonic())
        self._forget(device)
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

    def placed(self, said: Mapping[str, Any]) -> None:
        """The device is this run's, and its actor has begun to start; said again where it has come further."""
        device = said["device"]
        if device in self._unplaced or device in self._starting:
            self._forget(device)
            self._starting[device] = Deadline(self.deadlines["spawn"] + 60.0)

    def up(self, said: dict[str, Any]) -> Event:
        device, target = said["device"], str(Target(**said["target"]))  # before anything of it is kept
        self._refuse_unlike(device, said["backend"], target)
        self._forget(device)
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
            "subject",
            "versions",
            "arms",
        )
        self._progress.device(f"{device}: {said['name']}, ready")
        self._find_roof(said)
        module = str((said.get("identity") or {}).get("module") or "")
        self.neighbours.placed(device, host_of(self.slots[device]), module)
        return DeviceUp(said["at"], device, target, module)

    def _refuse_unlike(self, device: str, backend: str, target: str) -> None:
        """UsageError for a second kind of device, on which some rounds would run and others not."""
        if not self._request.arms or self._patterns.get(backend) != [""]:
            return
        for other, known in self.devices.items():
            if known["backend"] == backend and str(Target(**known["target"])) != target:
                raise UsageError(
                    f"{device} is {target}, but {other} is {Target(**known['target'])}, and rounds of unlike targets "
                    f"are not compared; name the target in the matrix, as --backend {backend} has several",
                    id="arm-unlike-targets",
                )

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

    def waits(self, said: Mapping[str, Any]) -> Event | None:
        """Another run, or another farm, uses the device: its time to start is extended by the wait."""
        unplaced = self._unplaced.get(said["device"])
        if unplaced:
            unplaced.busy, unplaced.reason = bool(said.get("busy")), said["reason"]
            unplaced.changed = time.monotonic()
        deadline = self._starting.get(said["device"])
        if deadline:
            self._starting[said["device"]] = Deadline(deadline.seconds + float(said.get("up_to_s", 0.0)))
        self._journal("device_waits", said, "device", "reason")
        self._progress.device(f"{said['device']}: {said['reason']}")
        return DeviceWaits(said["at"], said["device"], unplaced.busy) if unplaced else None

    def differs(self, said: Mapping[str, Any]) -> None:
        """A node supervises its devices by other sources than this farm's, which speak the same protocol."""
        self._journal("node_differs", said, "node", "content", "ours")
        what = f"{said['node']}: its farm has other sources ({said['content']}) than this run's ({said['ours']})"
        more = "it only supervises its devices, but install the same revision on both"
        self._progress.device(Message(f"{what}; {more}", id="node-differs"))

    def down(self, said: Mapping[str, Any]) -> Event:
        self._forget(said["device"])
        self.times.stopped(said["device"], said["at"])
        self._journal("device_down", said, "device", "reason", "final", "busy")
        if said.get("subject_refused"):  # as on every device of its kind: nothing that this run measured would be true
            raise UsageError(f"{said['device']}: {said['reason']}", id="subject-not-taken")
        self._progress.device(f"{said['device']}: {said['reason']}")
        return DeviceDown(
            said["at"], said["device"], said["reason"], bool(said.get("final")), busy=bool(said.get("busy"))
        )

    # deadlines and periodic checks

    def overdue(self, now: float) -> list[Event]:
        """Devices whose actors should be ready by now, and those that another run has kept for too long."""
        late = [
            (device, False, f"the device's actor was not ready within {deadline.seconds:g} s")
            for device, deadline in self._starting.items()
            if deadline.expired
        ]
        for device, one in self._unplaced.items():
            if one.expired(now, self._request.wait_s):
                over = f"the wait of {now - one.since:.0f} s is over, which --wait sets"
                late.append((device, True, f"{one.reason}: {over}"))
        at = {"event": "device_down", "at": now}
        return [self.down({**at, "device": d, "final": busy, "busy": busy, "reason": why}) for d, busy, why in late]

    def news(self, now: float, waiting: Mapping[CellPool, tuple[str, ...]]) -> list[tuple[CellPool, tuple[str, ...]]]:
        """Of the pools that wait for a device, those of which that is to be said, for the first time or once more."""
        self._said = {pool: said for pool, said in self._said.items() if pool in waiting}
        out = []
        for pool, nodes in waiting.items():
            said = self._said.get(pool)
            if said is None or said[0] != nodes or now - said[1] >= REPEAT_SECONDS:
                self._said[pool] = (nodes, now)
                out.append((pool, nodes))
        return out

    def lacks(self, pool: str, nodes: tuple[str, ...], why: str) -> None:
        """Cells wait because no device is left for them; `nodes`: the drained ones that could be restored."""
        grace = self._request.wait_for_devices_s
        if nodes and grace:
            until = f"until a drained node is restored: farm nodes restore {' '.join(nodes)}"
        else:
            until = f"for one to join, for up to {grace:g} s" if grace else "while other cells run"
        text = Message(f"{pool}: no device is left{why}; its cells wait {until}", id="run-waits-for-devices")
        self._journal("cells_wait", {"pool": pool, "nodes": list(nodes), "reason": text}, "pool", "nodes", "reason")
        self._progress.device(text)

    def refresh(self, now: float) -> list[Event]:
        """New and drained devices of the cluster, requested every few seconds."""
        if now < self._next_refresh:
            return []
        self._next_refresh = now + REFRESH_SECONDS
        changes = self._cluster.refresh()
        out: list[Event] = []
        away = tuple(node for name, backend in changes.away for node in self._away_nodes(name, backend))
        if away != self._away:
            self._away = away
            out.append(Away(now, away))
        for device in changes.drained:
            if device in self.slots:
                self._journal("drain", {"device": device, "reason": DRAINED}, "device", "reason")
                self._progress.device(f"{device}: {DRAINED}; the device finishes its lease")
                out.append(Drain(now, device, DRAINED))
        for slot in changes.new:
            if slot.backend in self._patterns:
                out.append(self._added(now, slot))
        return out

    def _away_nodes(self, name: str, backend: str) -> list[AwayNode]:
        """A drained node as what its devices were; as anything of its backend if the run never had one of them."""
        mine = [s.device for s in self.slots.values() if s.backend == backend and node_of(s) == name]
        targets = {str(Target(**self.devices[d]["target"])) for d in mine if d in self.devices}
        return [AwayNode(name, backend, target) for target in sorted(targets) or [""]]

    def _added(self, now: float, slot: DeviceHandle) -> Event:
        self.slots[slot.device] = slot
        self._journal("device_added", {"device": slot.device, "backend": slot.backend}, "device", "backend")
        self._progress.device(f"{slot.device}: joined")
        return DeviceAdded(now, slot.device, slot.backend, host_of(slot))

    def _journal(self, event: str, said: Mapping[str, Any], *names: str) -> None:
        told = line(event, said, *names)
        self._writer.append(told)
        if noted := device_health.of_line(told):
            self.health.append(noted)


def node_of(slot: DeviceHandle) -> str:
    """The name of its node, as `farm nodes` lists it."""
    return slot.labels.get("node", slot.host)


def host_of(slot: DeviceHandle) -> str:
    """Equal for the devices of one host."""
    return slot.host or slot.node
