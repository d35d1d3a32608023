"""A cluster that is a script, and runs over it: devices that come, go, are refused, or sit beside each other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from farm.cluster.base import Changes, DeviceHandle
from farm.coordinator import RunRequest, execute
from farm.coordinator.request import RunOutcome
from farm.judge.digest import judging_digest
from farm.matrix import load_all, plan
from farm.store import Store, recovery


class Quiet:
    """A RunProgress that keeps what it receives."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def device(self, text: str) -> None:
        self.lines.append(text)

    def cell(self, row: Mapping[str, Any]) -> None: ...

    def eta(self, seconds: Mapping[str, float]) -> None: ...


class ScriptedCluster:
    """Every device is up when it is started and passes every cell; `up` changes what a device says then.  `changes`:
    what `refresh` gives, in turn.  A lease is answered when the next events are asked for."""

    def __init__(self, up: Mapping[str, Mapping[str, Any]] | None = None, changes: list[Changes] | None = None):
        self.up, self.changes = dict(up or {}), list(changes or [])
        self.configs: dict[str, dict[str, Any]] = {}
        self.grants: list[tuple[str, list[int]]] = []
        self.calls: list[dict[str, Any]] = []
        self.reports: list[tuple[str, str, str]] = []
        self.stopped: list[str] = []
        self.judge: dict[str, Any] = {"judged_by": judging_digest()}
        self.pace = 0.0  # seconds between two looks for events
        self.bad: set[str] = set()  # devices that fail every cell and every probe
        self.crashing: set[int] = set()  # cells whose kernel crashes
        self.probes: list[tuple[str, dict[str, Any]]] = []
        self._queue: list[list[dict[str, Any]]] = []

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None:
        self.configs[slot.device] = config
        said = {
            "event": "device_up",
            "backend": slot.backend,
            "target": {"backend": slot.backend, "model": "NVIDIA H200"},
            "name": "H200",
            "node": slot.host,
            "fingerprint": {},
            "pid": 1,
            **self.up.get(slot.device, {}),
        }
        self._queue.append([{**said, "device": slot.device}])

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        failure = {"status": "infra_error", "owner": "device", "reason": "ECC"}
        said: list[dict[str, Any]] = []
        if "probe" in lease:
            self.probes.append((device, lease["probe"]))
            at = {"event": "probe", "device": device, "probe": lease["probe"]["id"]}
            self._queue.append(
                [{**at, **(failure if device in self.bad else {"status": "passed", "owner": None, **self.judge})}]
            )
            return
        self.grants.append((device, [a["cell"]["index"] for a in lease["attempts"]]))
        for a in lease["attempts"]:
            self.calls.append(a["call"])
            index, number = a["cell"]["index"], a["number"]
            origin = {
                "target": {"backend": "cuda", "model": "NVIDIA H200"},
                "device": device,
                "node": "n",
                "fingerprint": {},
                "revision": "r",
                "started": 0.0,
                "seconds": 0.1,
                "evidence": "simulated",
            }
            at = {"device": device, "cell": index, "attempt": number}
            if device in self.bad:
                said += [{"event": "started", **at}, {"event": "ended", **at, **failure, "origin": origin}]
                continue
            if index in self.crashing:
                crash = {"status": "crashed", "owner": "kernel", "reason": "SIGSEGV", "origin": origin}
                said += [{"event": "started", **at}, {"event": "ended", **at, **crash}]
                continue
            said += [
                {"event": "started", **at},
                {"event": "measured", **at, "facts": {"flags": []}, "timing": {"method": "none"}, "origin": origin},
                {"event": "judged", **at, "status": "passed", "metrics": {}, "gates": {}, **self.judge},
            ]
        said.append({"event": "lease_done", "device": device, "lease": lease["id"]})
        self._queue.append(said)

    def stop(self, device: str) -> None:
        self.stopped.append(device)

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        time.sleep(self.pace)
        batches, self._queue = self._queue, []
        said = [e for turn in zip_longest(*batches) for e in turn if e]  # devices speak in turn
        return [{**e, "at": time.monotonic()} for e in said]

    def wind_down(self) -> None: ...

    def refresh(self) -> Changes:
        return self.changes.pop(0) if self.changes else Changes()

    def report(self, slot: DeviceHandle, event: Mapping[str, Any]) -> None:
        self.reports.append((slot.device, event["event"], event["reason"]))

    def slots(self, wanted: list[str]) -> list[DeviceHandle]:
        return []

    def close(self) -> None: ...


def slot(name: str, host: str = "h") -> DeviceHandle:
    return DeviceHandle(name, name.split(":")[0], "id-of-" + host, "0", host, {"model": "H200"})


def run(
    tmp_path: Path,
    cluster: ScriptedCluster,
    slots: list[DeviceHandle],
    *,
    cells: int = 3,
    grace: float = 0.0,
    wait: float = 0.0,
    strict_peers: bool = False,
    stop_at_first: bool = False,
    finished: recovery.Recovery | None = None,
    complete: Callable[[], None] = lambda: None,
    **more: Any,
) -> tuple[RunOutcome, list[dict[str, Any]], Quiet]:
    file = tmp_path / "m.yaml"
    data = {
        "name": "m",
        "op": "rms_norm",
        "providers": ["torch"],
        "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"},
        **more,
    }
    file.write_text(json.dumps(data), encoding="utf-8")
    matrices = load_all(file)
    store = Store(tmp_path / "store")
    writer = store.reopen("run") if finished else store.create("run")
    progress = Quiet()
    backends = list(dict.fromkeys(s.backend for s in slots)) or ["cuda"]
    request = RunRequest(
        plan(matrices, backends),
        slots,
        "farm run",
        ["run"],
        {"name": "r"},
        strict_peers=strict_peers,
        stop_at_first=stop_at_first,
        finished=finished,
        wait_for_devices_s=grace,
        wait_s=wait,
        complete=complete,
    )
    outcome = execute(request, cluster, writer, progress)
    journal = [json.loads(line) for line in (tmp_path / "store/runs/run/journal.jsonl").read_text().splitlines()]
    return outcome, journal, progress


def events(journal: list[dict[str, Any]], *names: str) -> list[tuple[str, str]]:
    return [(e["event"], e["device"]) for e in journal if e["event"] in names]
