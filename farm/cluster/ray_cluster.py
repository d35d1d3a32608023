"""A Ray cluster: one actor pinned to each device by node, and a judge pool on each node.

These choices follow from measurements of Ray: with `max_restarts=0` a death is reported in 15 ms with its cause, while
restarts by Ray take over a second and report no cause; events are fetched by a call that waits, because yielded items
are lost with an actor; nodes are chosen by the farm's own label, because NVIDIA and AMD share the resource GPU.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm import PROTOCOL, __version__, backends
from farm.cluster import connect, event_checks, node_actors, ray_folder, ray_token, raylet_watchdog
from farm.cluster.base import Changes, DeviceHandle
from farm.cluster.inventory import LABEL, NAME_LABEL, PREFIX, ClusterNode, Inventory, nodes
from farm.cluster.local import host_devices, spool_folder
from farm.cluster.registry_client import NodeWatch, explicit_auth, settings
from farm.deadline import Deadline
from farm.errors import BackendError, InfraError, Message
from farm.judge.pool import GROUPS
from farm.kernel_package import ROOT
from farm.node import config as node_config
from farm.node.join_command import label_of
from farm.process import procfs
from farm.shipping import bundle, revision
from farm.store import spool

POLL_SECONDS = 2.0
STOP_SECONDS = 2.0  # then the actor is killed, and its child with it; for all silent actors of a round together,
LAST_STOP_SECONDS = 0.1  # plus this for each: a frozen node may have many devices, and other leases expire meanwhile
SILENCE_SECONDS = 45.0  # after this without an answer to a poll, the actor or its node hangs
LOOK_SECONDS = 2.0  # how often the farm checks for nodes that have left
GONE = "the device's node has left the cluster"
ANSWER_SECONDS = 0.1  # how long each look during a run waits for the registry of nodes
FIRST_ANSWER_SECONDS = 5.0  # and before the run: drained nodes are not offered
COMMON: dict[str, Any] = {"namespace": "farm", "log_to_driver": False, "logging_level": "ERROR"}  # for every ray.init


def _stale(labels: Mapping[str, str]) -> str:
    """Why a node cannot serve, by what it stated when it joined; "" if it can.  One that states no protocol joined with
    a farm that was held to its version."""
    protocol, version = labels.get("protocol", ""), labels.get("version", "")
    if protocol:
        return "" if protocol == str(PROTOCOL) else _other_protocol(protocol)
    if version and version != label_of(__version__):
        text = f"its node has kernel-farm {version}, but this run has {__version__}; install the same version on both"
        return Message(text, id="cluster-version")
    return ""


def _other_protocol(there: Any) -> Message:
    text = f"its node's farm has protocol {there}, but this run's has {PROTOCOL}"
    return Message(f"{text}; install the same revision on both, and join the node again", id="cluster-protocol")


class RayCluster:
    """`address`: `local` starts Ray on this host; `auto` or HOST:PORT joins a cluster."""

    def __init__(self, address: str, devices: int | None, run_id: str, wanted: list[str] | None = None):
        self._count = devices
        self.spool = spool_folder(run_id)
        self._actors: dict[str, Any] = {}
        self._slots: dict[str, DeviceHandle] = {}
        self._polls: dict[Any, tuple[str, float]] = {}
        self._judges: dict[str, list[Any]] = {}
        self._local = address == "local"
        self._run = run_id
        self._roster = Inventory(devices, self._local)
        self._packed: list[dict[str, Any]] | None = None
        self._content = ""  # of this farm's sources
        self._differing: set[str] = set()  # nodes whose farm has other sources
        self._next_look = Deadline(LOOK_SECONDS)
        self._in_vain = 0.0  # seconds of this round spent waiting for actors that did not stop
        self._folder: Path | None = None  # of Ray's sessions and its token, closed to other users
        self.lost = False
        try:
            settings()
            ray_token.refuse_empty(os.environ)
            if self._local:
                self._host = {b: host_devices(b, devices) for b in wanted or []}
                self._alone()
            else:
                self._authenticate()
            import ray

            self._ray = ray
            ray.cloudpickle.register_pickle_by_value(node_actors)
            if self._local:
                connect.start(ray, address, self._init_arguments())
            else:
                connect.join(ray, address, COMMON, "RAY_AUTH_TOKEN" if self._folder else "")
        except BaseException:
            spool.remove(self.spool)
            if self._folder and not (self._folder / "r").exists():  # else Ray's logs say why; a later run sweeps them
                spool.remove(self._folder)
            raise
        self._raylet = raylet_watchdog.of_node(ray.get_runtime_context().get_node_id())
        self._deaths = raylet_watchdog.RayletWatchdog(self._raylet, run_id) if self._raylet else None
        self._watch = None if self._local else NodeWatch(ray)
        if self._watch:
            self._watch.look(FIRST_ANSWER_SECONDS)

    def _alone(self) -> None:
        """Ray's environment for one that this process starts: a token of its own, and no port that another host can
        reach (by this variable Ray takes the loopback address for the node's, and listens there alone)."""
        self._folder = ray_folder.of_run(os.environ)
        ray_token.hand_over(self._folder / "token", "")
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)

    def _authenticate(self) -> None:
        """Ray's environment for a cluster that somebody else started."""
        explicit_auth()
        if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" in os.environ:
            self._folder = ray_folder.of_run(os.environ)
            ray_token.hand_over(self._folder / "token", os.environ["RAY_AUTH_TOKEN"])

    def _init_arguments(self) -> dict[str, Any]:
        """For a Ray that this process starts."""
        resources: dict[str, float] = {}
        gpus = 0
        for backend, found in self._host.items():
            for name, amount in backends.usable(backend).RESOURCE.items():
                if name == "num_gpus":
                    gpus += amount * len(found)
                else:
                    resources[name] = amount * len(found)
        labels = {f"{PREFIX}{k}": v for k, v in node_config.load().labels.items()}
        if self._host:
            labels |= {LABEL: ".".join(self._host), NAME_LABEL: label_of(socket.gethostname()) or "localhost"}
        return {
            "include_dashboard": False,
            "num_cpus": max(2, os.cpu_count() or 2),
            "num_gpus": gpus,
            "resources": resources,
            "labels": labels,
            "object_store_memory": 128 << 20,
            "_temp_dir": str(self._folder / "r") if self._folder else None,
            **COMMON,
        }

    def available(self) -> dict[str, int]:
        """Backend -> devices that a run could have, by the nodes' labels and resources."""
        return self._roster.available(self._table(), self._away)

    def _table(self) -> list[ClusterNode]:
        return nodes(self._ray.nodes())

    def _away(self, node: ClusterNode) -> str:
        return self._watch.away(node) if self._watch else ""

    def slots(self, wanted: list[str], *, absent: bool = False) -> list[DeviceHandle]:
        """One handle per device of each wanted backend.  BackendError names what the cluster has instead, unless
        backends may be `absent` for now (`refresh` returns their devices when they join)."""
        for backend in wanted:
            backends.usable(backend)
        table = self._table()
        out = self._roster.begin(table, wanted, self._away)
        for backend in wanted if not absent else ():
            if not any(slot.backend == backend for slot in out):
                have = ", ".join(f"{b} ({n})" for b, n in self.available().items()) or "none"
                drained = [n.name for n in table if n.alive and backend in n.backends and self._away(n)]
                cure = (
                    f"restore the drained node {drained[0]} with farm nodes restore {drained[0]},"
                    if drained
                    else f"add a node with the label {LABEL}={backend} (farm nodes join),"
                )
                raise BackendError(
                    f"--backend {backend}: the cluster has no device of this backend (available: {have}); {cure} or "
                    "omit the backend",
                    id="cluster-backend-absent",
                )
        return out

    def refresh(self) -> Changes:
        """Devices of nodes that joined or were restored, and devices whose nodes an operator has drained."""
        if self._watch is None:
            return Changes()
        self._watch.look(ANSWER_SECONDS)
        return self._roster.refresh(self._table(), self._away, self._actors)

    def report(self, slot: DeviceHandle, event: Mapping[str, Any]) -> None:
        """Report a device's event to the cluster's registry, for `farm nodes`."""
        if self._watch is not None:
            self._watch.seen(slot.labels.get("node", slot.host), slot.device, {**event, "run": self._run})

    def _settle(self) -> None:
        if self._deaths:
            self._deaths.settle()

    def _judges_on(self, node: str) -> list[Any]:
        if node not in self._judges:
            cpus = next((int(n.resources.get("CPU", 2)) for n in self._table() if n.id == node and n.alive), 2)
            # Processes rather than threads: NumPy's calls on a block are short, and threads of one interpreter then
            # mostly wait for each other (4 processes of 8 threads fell 8 s behind two H200, 16 of 2 did not).
            count, threads = max(1, min(16, cpus // 2)), 2
            self._judges[node] = [self._judge(node, threads) for _ in range(count)]
        return self._judges[node]

    def _judge(self, node: str, threads: int) -> Any:
        ray: Any = self._ray  # whose types do not know this option
        actor = ray.remote(concurrency_groups=GROUPS)(node_actors.JudgeActor)
        where = {"ray.io/node-id": node}
        actor = actor.options(num_cpus=0, label_selector=where, max_restarts=3, max_task_retries=1)
        # As bytes: of a reference among an actor's arguments Ray prints that a restart might not find it.  This process
        # keeps it as long as the run lasts.
        farms = [{**b, "blob": ray.cloudpickle.dumps(b["blob"])} for b in self._bundles() if b["name"] == "farm"]
        return actor.remote(farms, self.spool, threads)

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None:
        module = backends.usable(slot.backend)
        self._slots[slot.device] = slot
        node = next((n for n in self._table() if n.alive and n.id == slot.node), None)
        if node is None:
            self._dead_on_arrival(slot, GONE)
            return
        stale = _stale(slot.labels)
        if stale:
            self._dead_on_arrival(slot, stale)
            return
        request = dict(getattr(module, "RESOURCE", {}))
        gpus = request.pop("num_gpus", 0)
        request = {k: v for k, v in request.items() if node.resources.get(k)}
        remote = self._ray.remote(node_actors._RayDevice)
        actor = remote.options(
            num_cpus=0,
            num_gpus=gpus,
            resources=request,
            label_selector={"ray.io/node-id": slot.node},
            max_restarts=0,
            max_concurrency=4,
        ).remote(
            {
                "labels": dict(slot.labels),
                **config,
                "spool": self.spool,
                "protocol": PROTOCOL,
                "bundles": self._bundles(),
            },
            self._judges_on(slot.node),
        )
        self._actors[slot.device] = actor
        self._poll(slot.device)

    def _bundles(self) -> list[dict[str, Any]]:
        """What children import, for nodes where another revision, or none, is installed: put into the object store
        once, and fetched once by each node."""
        if self._local:
            return []
        if self._packed is None:
            self._packed = [{**b.plain(), "blob": self._ray.put(b.blob)} for b in bundle.pack_all()]
        return self._packed

    def _dead_on_arrival(self, slot: DeviceHandle, reason: str) -> None:
        ref = self._ray.put([{"event": "device_down", "device": slot.device, "reason": reason, "final": True}])
        self._actors[slot.device] = None
        self._polls[ref] = (slot.device, time.monotonic())

    def _poll(self, device: str) -> None:
        actor = self._actors.get(device)
        if actor is not None:
            self._polls[actor.poll.remote(POLL_SECONDS)] = (device, time.monotonic())

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        actor = self._actors.get(device)
        if actor is not None:
            actor.submit.remote(lease)

    def stop(self, device: str) -> None:
        actor = self._actors.pop(device, None)
        self._slots.pop(device, None)
        self._polls = {r: v for r, v in self._polls.items() if v[0] != device}
        if actor is not None:
            begun = time.monotonic()
            try:
                self._ray.get(actor.stop.remote(), timeout=max(LAST_STOP_SECONDS, STOP_SECONDS - self._in_vain))
            except Exception:
                self._in_vain += time.monotonic() - begun
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        self._in_vain = 0.0
        if self._raylet and not procfs.alive(self._raylet):
            self.lost = True
            self._settle()
            raise InfraError(raylet_watchdog.DIED, id="raylet-died")
        gone = self._left()
        if gone or not self._polls:
            time.sleep(0 if gone else min(wait_s, 0.05))
            return gone
        ready, _ = self._ray.wait(list(self._polls), num_returns=1, timeout=wait_s)
        if ready:  # take all answers: an event of one device must not wait for as many rounds as there are devices
            ready, _ = self._ray.wait(list(self._polls), num_returns=len(self._polls), timeout=0)
        now = time.monotonic()
        out: list[dict[str, Any]] = []
        for ref in ready:
            device, _ = self._polls.pop(ref)
            try:
                found = self._ray.get(ref, timeout=5)
            except Exception as error:
                out.append(self._down(device, error))
                continue
            found, well = event_checks.taken(device, found, now)
            for event in found:
                out += self._met(event) if event["event"] == "node_farm" else [event]
                if event["event"] == "device_up" and device in self._slots:
                    self.report(self._slots[device], event)
            if well:
                self._poll(device)
        silent = [ref for ref, (_, since) in self._polls.items() if now - since > POLL_SECONDS + SILENCE_SECONDS]
        if silent:
            # Only those without an answer: answers may have arrived while this loop was busy elsewhere.
            _, silent = self._ray.wait(silent, num_returns=len(silent), timeout=0)
        for ref in silent:
            device, _ = self._polls.pop(ref)
            out.append(
                {
                    "event": "device_down",
                    "device": device,
                    "at": now,
                    "final": False,
                    "reason": f"the device's actor did not answer for {SILENCE_SECONDS:g} s",
                }
            )
        return out

    def _met(self, farm: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What follows from the farm that a device's node has: one of another protocol cannot serve, one with other
        sources is reported once for each node."""
        at = {name: farm[name] for name in ("device", "at")}
        if farm["protocol"] != PROTOCOL:
            return [{"event": "device_down", **at, "final": True, "reason": _other_protocol(farm["protocol"])}]
        ours = self._content = self._content or revision.content(ROOT / "farm")
        slot = self._slots.get(farm["device"])
        if slot is None or farm["content"] == ours or slot.node in self._differing:
            return []
        self._differing.add(slot.node)
        node = slot.labels.get("node", slot.host)
        return [{"event": "node_differs", **at, "node": node, "content": farm["content"], "ours": ours}]

    def _left(self) -> list[dict[str, Any]]:
        """Devices whose nodes have left the cluster, without a pending answer.

        An actor that was about to start there would wait for its node forever.
        """
        if self._local or not self._next_look.expired:
            return []
        self._next_look = Deadline(LOOK_SECONDS)
        alive = {n.id for n in self._table() if n.alive}
        waiting = [ref for ref, (d, _) in self._polls.items() if d in self._slots and self._slots[d].node not in alive]
        if waiting:
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        out = []
        for ref in waiting:
            device, _ = self._polls.pop(ref)
            out.append(
                {"event": "device_down", "device": device, "at": time.monotonic(), "final": True, "reason": GONE}
            )
        return out

    def _down(self, device: str, error: Exception) -> dict[str, Any]:
        """The event of an actor that died, with Ray's reason; or with that of an error in a task of the farm."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        kind = type(error).__name__
        cause = next(
            (line for line in lines if "exit" in line.lower() or "died" in line.lower()), lines[0] if lines else ""
        )
        return {
            "event": "device_down",
            "device": device,
            "at": time.monotonic(),
            "final": False,
            "reason": f"the device's actor died ({kind}: {cause[:300]})",
        }

    def close(self) -> None:
        """Stop every actor with its child, then Ray if this process started it; bounded in time."""
        if self.lost:  # actors and judges died with the raylet, and a call would end this process
            spool.remove(self.spool)
            return
        stopping = [a.stop.remote() for a in self._actors.values() if a is not None]
        with contextlib.suppress(Exception):
            self._ray.wait(stopping, num_returns=len(stopping), timeout=10)
        alive: set[str] = set()
        with contextlib.suppress(Exception):
            alive = {n.id for n in self._table() if n.alive}
        cleaning = [pool[0].clean.remote() for node, pool in self._judges.items() if node in alive]
        with contextlib.suppress(Exception):
            self._ray.wait(cleaning, num_returns=len(cleaning), timeout=10)
        for actor in [*self._actors.values(), *(j for pool in self._judges.values() for j in pool)]:
            if actor is not None:
                with contextlib.suppress(Exception):
                    self._ray.kill(actor)
        self._settle()  # the raylet of this process is about to end
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        spool.remove(self.spool)
        if self._folder:
            spool.remove(self._folder)
