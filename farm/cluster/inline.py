"""The cluster that is threads of this process and processes of its own (`--address inline`)."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from farm import limits
from farm.actor.device import DeviceActor
from farm.cluster import event_checks
from farm.cluster.base import Changes, DeviceHandle
from farm.cluster.local import host_devices, spool_folder
from farm.judge.pool import LocalJudges
from farm.node import config as node_config
from farm.node.reference import leave as leave_reference
from farm.process import host as this_host
from farm.process import variables
from farm.store import spool


class InlineCluster:
    """Actors as objects with a thread each; judges in processes.  No Ray."""

    def __init__(self, devices: int | None, run_id: str):
        variables.forget("RAY_AUTH_TOKEN")  # of some cluster: nothing here needs it, and children could read it
        self._count = devices
        self._actors: dict[str, DeviceActor] = {}
        self._queue: queue.SimpleQueue[tuple[DeviceActor, dict[str, Any]]] = queue.SimpleQueue()
        self.spool = spool_folder(run_id)
        self._judges = LocalJudges(self.spool)
        self._closed = False
        self._ending: threading.Thread | None = None

    def slots(self, wanted: list[str]) -> list[DeviceHandle]:
        host, labels = this_host.name(), dict(node_config.load().labels)
        return [
            DeviceHandle(f"{backend}:{d.id}", backend, "", d.id, host, labels)
            for backend in wanted
            for d in host_devices(backend, self._count)
        ]

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None:
        leave_reference(self._judges.spool)
        self._judges.begin(limits.of(config["deadlines"], node_config.load().deadlines))
        actor = DeviceActor({**config, "spool": self.spool, "device_id": slot.device_id}, self._judges)
        self._actors[slot.device] = actor
        self._queue.put((actor, {"event": "placed", "device": slot.device, "at": time.monotonic()}))
        threading.Thread(target=self._pump, args=(slot.device, actor), daemon=True).start()

    def _pump(self, device: str, actor: DeviceActor) -> None:
        while not self._closed and self._actors.get(device) is actor:
            found, well = event_checks.taken(device, actor.poll(0.5), time.monotonic())
            for event in found:
                self._queue.put((actor, event))
            if not well:
                return

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

    def report(self, slot: DeviceHandle, event: Mapping[str, Any]) -> None:
        """Nobody outside the run is to know."""

    def wind_down(self) -> None:
        """Begin to end all of it, the judges too, of which nobody will ask anything more."""
        self._ending = threading.Thread(target=self._end, args=(True,), name="ending")
        self._ending.start()

    def close(self) -> None:
        if self._ending:
            self._ending.join()
        else:
            self._end(False)

    def _end(self, together: bool) -> None:
        """End actors with their children, then the judges, or all `together`; then the run's folder."""
        self._closed = True
        steps: list[Callable[[], None]] = [functools.partial(self.stop, device) for device in list(self._actors)]
        steps += [self._judges.close] if together else []
        ends = [threading.Thread(target=step) for step in steps]
        for end in ends:  # together: each waits for its child
            end.start()
        for end in ends:
            end.join()
        if not together:
            self._judges.close()
        spool.remove(self.spool)
        spool.remove(spool.reserve(self.spool))
