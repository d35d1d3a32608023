"""Which nodes of a cluster operators have drained, and what runs have seen of its devices.

The registry is a detached actor on the head (farm.cluster.registry_client).  Without one, every node is up.  It saves
its state after each change, so that a drained node stays drained after the actor dies or the head restarts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

UP, DRAINING, DRAINED = "up", "draining", "drained"
KEEP_DEVICES = 2000  # beyond this, the devices that were not seen for longest are dropped
#: The parts of a device's fingerprint that are kept.
VERSIONS = ("torch", "triton", "driver", "stack", "cuda", "rocm", "cann", "python", "environment")


def default_file(address: str) -> Path:
    """Where the registry of the cluster at `address` keeps its state on the head."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "farm" / f"nodes-{address.rpartition(':')[2] or 'ray'}.json"


class Registry:
    """Plain data in, plain data out, because other processes call it."""

    def __init__(self, file: str = ""):
        self._file = Path(file) if file else None
        self._out: dict[str, dict[str, Any]] = {}  # node's name, or `id:...` if drained only until it leaves
        self._devices: dict[str, dict[str, Any]] = {}
        if self._file:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                kept = json.loads(self._file.read_text(encoding="utf-8"))
                self._out, self._devices = dict(kept["out"]), dict(kept["devices"])

    def drain(
        self, name: str, node: str, reason: str, who: str, once: bool = False, alive: Collection[str] = ()
    ) -> None:
        """Give the node (`name`, Ray's id `node`) no more work; with `once` only until it leaves the cluster.  `alive`:
        ids of the current nodes; `once` entries of other nodes are removed."""
        if alive:
            self._out = {k: v for k, v in self._out.items() if not k.startswith("id:") or k[3:] in alive}
        drain = {"state": DRAINING, "reason": reason, "who": who, "since": time.time(), "name": name}
        self._out[f"id:{node}" if once else name] = drain
        self._keep()

    def drained(self, name: str, node: str) -> None:
        """No run uses its devices any more."""
        for key in (name, f"id:{node}"):
            if key in self._out:
                self._out[key]["state"] = DRAINED
        self._keep()

    def restore(self, name: str, node: str) -> bool:
        """Give the node work again; returns whether it was drained."""
        was = [self._out.pop(key, None) for key in (name, f"id:{node}")]
        self._keep()
        return any(was)

    def seen(self, node: str, device: str, event: Mapping[str, Any]) -> None:
        """A run received `device_up`, `device_down`, `judge_down` or `health` of a device (with the `run`'s id)."""
        known = self._devices.setdefault(device, {"node": node})
        known.update(node=node, last=time.time())
        run = event.get("run", "")
        if event["event"] == "device_up" and known.get("health", {}).get("run") != run:
            known.pop("health", None)  # what an earlier run found of it
        if event["event"] == "health":
            reason = str(event.get("reason", ""))
            known["health"] = {"at": time.time(), "run": run, "state": str(event["state"]), "reason": reason}
        elif event["event"] == "device_up":
            print_of = event.get("fingerprint") or {}
            known["up"] = {
                "at": time.time(),
                "run": event.get("run", ""),
                "name": event.get("name", ""),
                "target": event.get("target") or {},
                "evidence": event.get("evidence", ""),
                "versions": {k: str(print_of[k]) for k in VERSIONS if print_of.get(k)},
            }
        else:
            known["fault"] = {"at": time.time(), "run": event.get("run", ""), "reason": str(event.get("reason", ""))}
        if len(self._devices) > KEEP_DEVICES:
            oldest = min(self._devices, key=lambda d: float(self._devices[d].get("last", 0)))
            del self._devices[oldest]
        self._keep()

    def told(self) -> dict[str, Any]:
        """{"out": node's name or `id:...` -> its drain, "devices": device -> what was seen}."""
        return {"out": self._out, "devices": self._devices}

    def out(self) -> dict[str, dict[str, Any]]:
        """The drained nodes."""
        return self._out

    def _keep(self) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # then the state lasts as long as this process
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = self._file.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(self.told()), encoding="utf-8")
            temporary.replace(self._file)


def away(out: Mapping[str, Mapping[str, Any]], name: str, node: str) -> dict[str, Any] | None:
    """The drain of a node, or None if it is up.  `out`: the result of `Registry.out`."""
    found = out.get(name) or out.get(f"id:{node}")
    return dict(found) if found else None
