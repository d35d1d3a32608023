"""Which nodes of a cluster operators have drained, what runs have seen of its devices, and which runs have them now.

The registry is a detached actor on the head (farm.cluster.registry_client).  Without one, every node is up.  It saves
its state after each change, so that a drained node stays drained after the actor dies or the head restarts; the runs it
hears of again within a minute.  What is not as it should be, in its file or in its answer, counts as not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm import atomic_files, device_pattern
from farm.actor.child_messages import TARGET
from farm.errors import Message
from farm.field_checks import BadField, Check, listed, mapped, number, one_of, record, text

UP, DRAINING, DRAINED = "up", "draining", "drained"
KEEP_DEVICES = 2000  # beyond this, the devices that were not seen for longest are dropped
REPORT_SECONDS = 60.0  # how often a run says that it goes on
RUN_SECONDS = 180.0  # a run that was silent for longer is over
MAX_NAMED = 3  # runs that one message names
#: The parts of a device's fingerprint that are kept.
VERSIONS = ("torch", "triton", "driver", "stack", "cuda", "rocm", "cann", "python", "environment")


def _target(value: Any, where: str | None) -> None:
    if value:  # a device of an older farm may have none
        TARGET(value, where)


_SHORT, _LONG = text(300), text(1 << 17)
_DRAIN = record(
    {"state": one_of(DRAINING, DRAINED), "who": _SHORT, "since": number()}, {"reason": _LONG, "name": _SHORT}, open=True
)
_UP = {"at": number(), "run": _SHORT, "name": _LONG, "evidence": _SHORT, "versions": mapped(_LONG)}
_FAULT = record({"at": number(), "reason": _LONG}, {"run": _SHORT}, open=True)
_SEEN = record(
    {"node": _SHORT, "last": number()},
    {"up": record({**_UP, "target": _target}, open=True), "fault": _FAULT},
    open=True,
)
_HELD = record({"node": _SHORT, "backend": _SHORT, "target": _SHORT, "since": number()}, open=True)
_RUN = record(
    {"run": _SHORT, "user": _SHORT, "devices": mapped(_HELD, KEEP_DEVICES), "patterns": mapped(listed(_SHORT))},
    open=True,
)


def default_file(address: str) -> Path:
    """Where the registry of the cluster at `address` keeps its state on the head."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "farm" / f"nodes-{address.rpartition(':')[2] or 'ray'}.json"


def _sound(found: Any, check: Check) -> dict[str, dict[str, Any]]:
    """The entries that are as they should be."""
    out = {}
    for name, entry in found.items() if isinstance(found, dict) else ():
        with contextlib.suppress(BadField):
            _SHORT(name, "name")
            check(entry, name)
            out[name] = entry
    return out


def sound(told: Any) -> dict[str, Any]:
    """What a registry told, or had written, without the entries that are not as they should be."""
    told = told if isinstance(told, dict) else {}
    return {"out": sound_out(told.get("out")), "devices": _sound(told.get("devices"), _SEEN)}


def sound_out(out: Any) -> dict[str, dict[str, Any]]:
    """The drained nodes, as `sound` has them."""
    return _sound(out, _DRAIN)


def sound_runs(runs: Any) -> dict[str, dict[str, Any]]:
    """The answer of `Registry.runs`, as `sound` has it."""
    return _sound(runs, _RUN)


class Registry:
    """Plain data in, plain data out, because other processes call it."""

    def __init__(self, file: str = ""):
        self._file = Path(file) if file else None
        self._out: dict[str, dict[str, Any]] = {}  # node's name, or `id:...` if drained only until it leaves
        self._devices: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, dict[str, Any]] = {}  # by a key of each run's own
        self._damaged = ""  # what of the file could not be read, until an operator has seen to it
        if self._file:
            with contextlib.suppress(OSError):
                self._read(self._file.read_bytes())

    def _read(self, content: bytes) -> None:
        kept: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            kept = json.loads(content)
        good = sound(kept)
        self._out, self._devices = good["out"], good["devices"]
        if not isinstance(kept, dict) or any(kept.get(name) != good[name] for name in good):
            what = f"{self._file}: the registry of nodes is damaged, and what could not be read is ignored"
            self._damaged = f"{what}: drain again what was drained and is now up"

    def drain(
        self, name: str, node: str, reason: str, who: str, once: bool = False, alive: Collection[str] = ()
    ) -> None:
        """Give the node (`name`, Ray's id `node`) no more work; with `once` only until it leaves the cluster.  `alive`:
        ids of the current nodes; `once` entries of other nodes are removed."""
        if alive:
            self._out = {k: v for k, v in self._out.items() if not k.startswith("id:") or k[3:] in alive}
        self._damaged = ""
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

    def run(self, key: str, said: Mapping[str, Any]) -> None:
        """What a run has: {"run", "user", "devices": device -> {"node", "backend", "target", "since"}, "patterns":
        backend -> the patterns of its cells' targets, "" for any device}."""
        self._runs = self.runs()
        self._runs[key] = {**said, "last": time.time()}

    def ended(self, key: str) -> None:
        """The run has ended."""
        self._runs.pop(key, None)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Those that go on."""
        oldest = time.time() - RUN_SECONDS
        return {key: run for key, run in self._runs.items() if run["last"] > oldest}

    def told(self) -> dict[str, Any]:
        """{"out": node's name or `id:...` -> its drain, "devices": device -> what was seen, "damaged": a sentence}."""
        return {"out": self._out, "devices": self._devices, "damaged": self._damaged}

    def out(self) -> dict[str, dict[str, Any]]:
        """The drained nodes."""
        return self._out

    def _keep(self) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # then the state lasts as long as this process
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_files.write(self._file, json.dumps({"out": self._out, "devices": self._devices}))


def away(out: Mapping[str, Mapping[str, Any]], name: str, node: str) -> dict[str, Any] | None:
    """The drain of a node, or None if it is up.  `out`: the result of `Registry.out`."""
    found = out.get(name) or out.get(f"id:{node}")
    return dict(found) if found else None


def holders(runs: Mapping[str, Mapping[str, Any]], node: str, backend: str, but: str) -> str:
    """Which runs have devices of a backend on a node, and since when, in a clause; "" for none.  `but`: the key of
    whoever asks."""
    found = []
    for key, run in runs.items():
        held = [d["since"] for d in run["devices"].values() if (d["node"], d["backend"]) == (node, backend)]
        if held and key != but:
            since = datetime.fromtimestamp(min(held), timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
            found.append(f"run {run['run']} of {run['user']} since {since}")
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return ", ".join(sorted(found)[:MAX_NAMED]) + more


def bereft(runs: Mapping[str, Mapping[str, Any]], node: str, out: Collection[str]) -> list[tuple[str, list[str]]]:
    """The runs that have devices of a node, and for some of their cells none elsewhere: (`ID of WHO`, the backends and
    targets).  `out`: the names of drained nodes."""
    found = []
    for run in runs.values():
        parts = [f"{b}:{p}" if p else b for b, some in sorted(run["patterns"].items()) for p in some]
        lost = [part for part in parts if _only_there(part, run["devices"].values(), node, out)]
        if lost:
            found.append((f"{run['run']} of {run['user']}", lost))
    return sorted(found)


def _only_there(part: str, devices: Iterable[Mapping[str, Any]], node: str, out: Collection[str]) -> bool:
    backend, _, pattern = part.partition(":")
    nodes = {
        d["node"]
        for d in devices
        if d["backend"] == backend and (not pattern or not d["target"] or device_pattern.serves(pattern, d["target"]))
    }
    return node in nodes and not nodes - {node, *out}


def damage(told: Mapping[str, Any]) -> str:
    """The warning that a registry told, "" for none."""
    text = str(told.get("damaged") or "")[:1000]
    return Message(text, id="registry-damaged") if text else ""
