"""What a coordinator needs of a cluster, and the cluster that is only threads in this process (`--address inline`)."""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from farm import backends, spool
from farm.actor.device import DeviceActor
from farm.errors import BackendError
from farm.nodes import config as node_config


@dataclass(frozen=True)
class Slot:
    """One device to pin an actor to."""

    device: str  # unique in the run: cpu:0, host/cuda:1
    backend: str
    node: str = ""  # Ray's id of its node
    device_id: str = ""
    host: str = ""  # the node's name: of one host's devices, equal
    labels: Mapping[str, str] = field(default_factory=dict)  # the node's `farm/...` labels, without that prefix


@dataclass(frozen=True)
class Changes:
    """What a cluster has gained, and which of the run's devices an operator wants back."""

    new: tuple[Slot, ...] = ()
    drained: tuple[str, ...] = ()  # each device once, until its node is restored


class Cluster(Protocol):
    """Devices by name; events as plain mappings with `event`, `device` and `at` (monotonic seconds)."""

    def slots(self, wanted: list[str]) -> list[Slot]: ...

    def start(self, slot: Slot, config: dict[str, Any]) -> None: ...

    def grant(self, device: str, lease: dict[str, Any]) -> None: ...

    def stop(self, device: str) -> None: ...

    def events(self, wait_s: float) -> list[dict[str, Any]]: ...

    def refresh(self) -> Changes: ...

    def report(self, slot: Slot, event: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def spool_folder(run_id: str) -> str:
    """The run's folder for tensors, claimed by this process; folders that killed runs left behind are removed."""
    path = spool.folder(f"{run_id}-{secrets.token_hex(4)}")  # two stores may have a run of one id
    spool.sweep(Path(path).parent)
    spool.claim(path)
    return path


def local_devices(backend: str, count: int | None = None) -> list[backends.HostDevice]:
    """Devices of this host as its configuration has them: fakes where it simulates the backend, at most its `devices`;
    at most `count`."""
    config = node_config.load()
    most = count or (config.devices if config.backend == backend else None)
    if config.simulate and config.backend == backend:
        fakes: list[backends.HostDevice] = backends.get("sim").detect(most or config.simulate.get("devices"))
        return fakes
    found: list[backends.HostDevice] = backends.usable(backend).detect(most)
    return found


def host_devices(backend: str, count: int | None) -> list[backends.HostDevice]:
    """Devices of this host, or a BackendError that says what was looked for."""
    found = local_devices(backend, count)
    if not found:
        raise BackendError(
            f"--backend {backend}: this host has no such device (farm doctor says what was looked for); "
            "leave --backend out to run on the CPU"
        )
    return found


class InlineCluster:
    """Actors as objects with a thread each; the judge in a thread pool.  No Ray."""

    def __init__(self, devices: int | None, run_id: str):
        from farm.judges import LocalJudges

        self._count = devices
        self._actors: dict[str, DeviceActor] = {}
        self._queue: queue.Queue[tuple[DeviceActor, dict[str, Any]]] = queue.Queue()
        self.spool = spool_folder(run_id)
        self._judges = LocalJudges(self.spool)
        self._closed = False

    def slots(self, wanted: list[str]) -> list[Slot]:
        host, labels = socket.gethostname(), dict(node_config.load().labels)
        return [
            Slot(f"{backend}:{d.id}", backend, "", d.id, host, labels)
            for backend in wanted
            for d in host_devices(backend, self._count)
        ]

    def start(self, slot: Slot, config: dict[str, Any]) -> None:
        actor = DeviceActor({**config, "spool": self.spool, "device_id": slot.device_id}, self._judges)
        self._actors[slot.device] = actor
        threading.Thread(target=self._pump, args=(slot.device, actor), daemon=True).start()

    def _pump(self, device: str, actor: DeviceActor) -> None:
        while not self._closed and self._actors.get(device) is actor:
            for event in actor.poll(0.5):
                self._queue.put((actor, {**event, "at": time.monotonic() - event.pop("age_s")}))

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        self._actors[device].submit(lease)

    def stop(self, device: str) -> None:
        actor = self._actors.pop(device, None)
        if actor:
            actor.stop()

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        said = []
        try:
            said.append(self._queue.get(timeout=wait_s))
            while True:
                said.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        # an actor that was replaced speaks of attempts that another one has by now
        return [event for actor, event in said if self._actors.get(event["device"]) is actor]

    def refresh(self) -> Changes:
        """Nothing joins or leaves a process."""
        return Changes()

    def report(self, slot: Slot, event: Mapping[str, Any]) -> None:
        """Nobody outside the run is to know."""

    def close(self) -> None:
        self._closed = True
        for device in list(self._actors):
            self.stop(device)
        self._judges.close()
        spool.remove(self.spool)


def describe(slots: list[Slot]) -> Mapping[str, int]:
    """Backend -> number of devices."""
    out: dict[str, int] = {}
    for slot in slots:
        out[slot.backend] = out.get(slot.backend, 0) + 1
    return out
