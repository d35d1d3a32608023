"""A Ray cluster: one actor pinned to each device by node, a judge pool on each node.

What is measured of Ray and behind these choices: `max_restarts=0` tells a death in 15 ms with its cause, restarts by
Ray take over a second and tell none; events are fetched by a call that waits (yielded items die with an actor);
nodes are chosen by our own label, since NVIDIA and AMD share the resource GPU.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from farm import __version__, backends, spool
from farm.coordinator import joining, raylet
from farm.coordinator.clusters import Changes, Slot, host_devices, spool_folder
from farm.coordinator.nodes import Watch, explicit_auth, settings
from farm.coordinator.roster import LABEL, NAME_LABEL, PREFIX, Node, Roster, nodes
from farm.deadline import Deadline
from farm.errors import BackendError, InfraError
from farm.nodes import config as node_config
from farm.nodes.command import label_of

POLL_SECONDS = 2.0
STOP_SECONDS = 2.0  # then it is killed; its child dies with it.  Of all that do not answer in one round together,
LAST_STOP_SECONDS = 0.1  # but for this: the devices of a node that froze are many, and other leases run out meanwhile
SILENCE_SECONDS = 45.0  # a poll that is not answered by then: its actor or its node hangs
LOOK_SECONDS = 2.0  # how often nodes that have left are looked for
FETCH_SECONDS = 60.0  # a bundle is some hundred KiB
GONE = "its node has left the cluster"
ANSWER_SECONDS = 0.1  # what the registry of nodes is waited for at each look while a run goes on
FIRST_ANSWER_SECONDS = 5.0  # and before it: what is out then is not offered
COMMON: dict[str, Any] = {"namespace": "farm", "log_to_driver": False, "logging_level": "ERROR"}  # of every ray.init


class RayCluster:
    """`address`: `local` starts an own Ray; `auto` or HOST:PORT joins one."""

    def __init__(self, address: str, devices: int | None, run_id: str, wanted: list[str] | None = None):
        self._count = devices
        self.spool = spool_folder(run_id)
        self._actors: dict[str, Any] = {}
        self._slots: dict[str, Slot] = {}
        self._polls: dict[Any, tuple[str, float]] = {}
        self._judges: dict[str, list[Any]] = {}
        self._local = address == "local"
        self._run = run_id
        self._roster = Roster(devices, self._local)
        self._packed: list[dict[str, Any]] | None = None
        self._next_look = Deadline(LOOK_SECONDS)
        self._in_vain = 0.0  # seconds of this round that were waited for actors which did not stop
        settings()
        if self._local:
            self._host = {b: host_devices(b, devices) for b in wanted or []}
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        else:
            explicit_auth()
        self.lost = False
        try:
            import ray

            self._ray = ray
            if self._local:
                joining.start(ray, address, self._init_arguments())
            else:
                joining.join(ray, address, COMMON)
        except BaseException:
            spool.remove(self.spool)
            raise
        self._raylet = raylet.of_node(ray.get_runtime_context().get_node_id())
        self._deaths = raylet.Watch(self._raylet, run_id) if self._raylet else None
        self._watch = None if self._local else Watch(ray)
        if self._watch:
            self._watch.look(FIRST_ANSWER_SECONDS)

    def _init_arguments(self) -> dict[str, Any]:
        """Of an own Ray."""
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
            **COMMON,
        }

    def available(self) -> dict[str, int]:
        """Backend -> devices that a run could have, as the nodes' labels and resources say."""
        return self._roster.available(self._table(), self._away)

    def _table(self) -> list[Node]:
        return nodes(self._ray.nodes())

    def _away(self, node: Node) -> str:
        return self._watch.away(node) if self._watch else ""

    def slots(self, wanted: list[str], *, absent: bool = False) -> list[Slot]:
        """One slot per device of each wanted backend.  BackendError names what the cluster has instead, unless
        backends may be `absent` for now (`refresh` gives their devices when they come)."""
        for backend in wanted:
            backends.usable(backend)
        table = self._table()
        out = self._roster.begin(table, wanted, self._away)
        for backend in wanted if not absent else ():
            if not any(slot.backend == backend for slot in out):
                have = ", ".join(f"{b} ({n})" for b, n in self.available().items()) or "none"
                drained = [n.name for n in table if n.alive and backend in n.backends and self._away(n)]
                cure = (
                    f"farm nodes restore {drained[0]}, which is drained," if drained else
                    f"label its nodes {LABEL}={backend} (farm nodes join does)"
                )  # fmt: skip
                raise BackendError(
                    f"--backend {backend}: the cluster has no such device (it has: {have}); "
                    f"{cure} or leave the backend out"
                )
        return out

    def refresh(self) -> Changes:
        """Devices of nodes that joined or were restored, and devices whose nodes an operator has drained."""
        if self._watch is None:
            return Changes()
        self._watch.look(ANSWER_SECONDS)
        return self._roster.refresh(self._table(), self._away, self._actors)

    def report(self, slot: Slot, event: Mapping[str, Any]) -> None:
        """Tell the cluster's registry what became of a device, for `farm nodes`."""
        if self._watch is not None:
            self._watch.seen(slot.labels.get("node", slot.host), slot.device, {**event, "run": self._run})

    def _settle(self) -> None:
        if self._deaths:
            self._deaths.settle()

    def _judges_on(self, node: str) -> list[Any]:
        if node not in self._judges:
            from farm.judges import ray_judge

            cpus = next((int(n.resources.get("CPU", 2)) for n in self._table() if n.id == node and n.alive), 2)
            # Processes rather than threads: NumPy's calls on a block are short, and threads of one interpreter then
            # mostly wait for each other (4 processes of 8 threads fell 8 s behind two H200, 16 of 2 did not).
            count, threads = max(1, min(16, cpus // 2)), 2
            self._judges[node] = [ray_judge(self._ray, node, self.spool, threads) for _ in range(count)]
        return self._judges[node]

    def start(self, slot: Slot, config: dict[str, Any]) -> None:
        module = backends.usable(slot.backend)
        self._slots[slot.device] = slot
        node = next((n for n in self._table() if n.alive and n.id == slot.node), None)
        if node is None:
            self._dead_on_arrival(slot, GONE)
            return
        there = slot.labels.get("version", "")
        if there and there != label_of(__version__):
            self._dead_on_arrival(
                slot, f"its node has kernel-farm {there}, this run's is {__version__}: install one on both"
            )
            return
        request = dict(getattr(module, "RESOURCE", {}))
        gpus = request.pop("num_gpus", 0)
        request = {k: v for k, v in request.items() if node.resources.get(k)}
        remote = self._ray.remote(_RayDevice)
        actor = remote.options(
            num_cpus=0,
            num_gpus=gpus,
            resources=request,
            label_selector={"ray.io/node-id": slot.node},
            max_restarts=0,
            max_concurrency=4,
        ).remote(
            {
                "labels": dict(slot.labels), **config, "spool": self.spool, "farm_version": __version__,
                "bundles": self._bundles(),
            },
            self._judges_on(slot.node),
        )  # fmt: skip
        self._actors[slot.device] = actor
        self._poll(slot.device)

    def _bundles(self) -> list[dict[str, Any]]:
        """What children import, for nodes where another revision of it, or none, is installed: put into the object
        store once, fetched once by each node."""
        if self._local:
            return []
        if self._packed is None:
            from farm.shipping import bundle

            self._packed = [{**b.plain(), "blob": self._ray.put(b.blob)} for b in bundle.pack_all()]
        return self._packed

    def _dead_on_arrival(self, slot: Slot, reason: str) -> None:
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
        if self._raylet and not raylet.alive(self._raylet):
            self.lost = True
            self._settle()
            raise InfraError(raylet.DIED)
        gone = self._left()
        if gone or not self._polls:
            time.sleep(0 if gone else min(wait_s, 0.05))
            return gone
        ready, _ = self._ray.wait(list(self._polls), num_returns=1, timeout=wait_s)
        if ready:  # all that is there: what one device says must not wait for as many rounds as there are devices
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
            # by how long ago the actor says it was: several come in one answer, and hosts' clocks differ
            out += [{**event, "device": device, "at": now - event.pop("age_s", 0.0)} for event in found]
            for event in found:
                if event["event"] == "device_up" and device in self._slots:
                    self.report(self._slots[device], event)
            self._poll(device)
        silent = [ref for ref, (_, since) in self._polls.items() if now - since > POLL_SECONDS + SILENCE_SECONDS]
        if silent:
            # Only what has truly not answered: answers may wait here while this loop was busy elsewhere.
            _, silent = self._ray.wait(silent, num_returns=len(silent), timeout=0)
        for ref in silent:
            device, _ = self._polls.pop(ref)
            out.append({"event": "device_down", "device": device, "at": now, "final": False,
                        "reason": f"its actor answered nothing for {SILENCE_SECONDS:g} s"})  # fmt: skip
        return out

    def _left(self) -> list[dict[str, Any]]:
        """Devices whose nodes have left the cluster and that have nothing more to say.

        An actor that was being started there would wait for its node for ever.
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
            out.append({"event": "device_down", "device": device, "at": time.monotonic(), "final": True,
                        "reason": GONE})  # fmt: skip
        return out

    def _down(self, device: str, error: Exception) -> dict[str, Any]:
        """An actor that died, by whatever Ray calls it; a task error of ours is one too, and says so."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        kind = type(error).__name__
        told = next(
            (line for line in lines if "exit" in line.lower() or "died" in line.lower()), lines[0] if lines else ""
        )
        return {"event": "device_down", "device": device, "at": time.monotonic(), "final": False,
                "reason": f"its actor died ({kind}: {told[:300]})"}  # fmt: skip

    def close(self) -> None:
        """Stop every actor with its child, then Ray if it is ours; bounded in time."""
        if self.lost:  # actors and judges died with it, and a call would end this process
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
        self._settle()  # an own raylet is about to end
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        spool.remove(self.spool)


class _RayDevice:
    """The Ray actor: a `DeviceActor` whose device Ray chose."""

    def __init__(self, config: dict[str, Any], judges: list[Any]):
        import ray

        from farm import __version__ as here
        from farm.actor.device import DeviceActor
        from farm.judges import RayJudges
        from farm.nodes.masks import granted

        if here != config["farm_version"]:
            raise RuntimeError(f"this node has kernel-farm {here}, the coordinator {config['farm_version']}")
        ids = [str(x) for found in ray.get_runtime_context().get_accelerator_ids().values() for x in found]
        index = config["device"].rsplit(":", 1)[-1].split("~")[0]
        device_id = granted(config["backend"], os.environ, ids, index)
        bundles = [{**b, "blob": ray.get(b["blob"], timeout=FETCH_SECONDS)} for b in config.get("bundles", [])]
        self._inner = DeviceActor({**config, "device_id": device_id, "bundles": bundles}, RayJudges(judges))

    def submit(self, lease: dict[str, Any]) -> None:
        self._inner.submit(lease)

    def poll(self, wait_s: float) -> list[dict[str, Any]]:
        return self._inner.poll(wait_s)

    def stop(self) -> None:
        self._inner.stop()

    def pids(self) -> tuple[int, int | None]:
        """(this process, its child)."""
        return os.getpid(), self._inner.child_pid()
