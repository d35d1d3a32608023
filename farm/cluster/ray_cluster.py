"""A Ray cluster: one actor pinned to each device by node, and a judge pool on each node.

These choices follow from measurements of Ray: with `max_restarts=0` a death is reported in 15 ms with its cause, while
restarts by Ray take over a second and report no cause; events are fetched by a call that waits, because yielded items
are lost with an actor; nodes are chosen by the farm's own label, because NVIDIA and AMD share the resource GPU.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm import PROTOCOL, __version__, backends, limits
from farm.cell import Target
from farm.cluster import connect, event_checks, node_actors, ray_folder, ray_token, raylet_watchdog
from farm.cluster.base import Changes, DeviceHandle
from farm.cluster.inventory import LABEL, NAME_LABEL, PREFIX, ClusterNode, Inventory, nodes
from farm.cluster.local import host_devices, spool_folder
from farm.cluster.registry import REPORT_SECONDS
from farm.cluster.registry_client import NodeWatch, explicit_auth, settings, who
from farm.deadline import Deadline
from farm.errors import BackendError, InfraError, Message
from farm.judge.pool import GROUPS
from farm.kernel_package import ROOT
from farm.node import config as node_config
from farm.node.join_command import label_of
from farm.process import interrupts, supervisor
from farm.scheduler.health import JudgeHealth
from farm.shipping import bundle, contracts, revision
from farm.store import spool

POLL_SECONDS = 2.0
STOP_SECONDS = 2.0  # then the actor is killed, and its child with it; for all silent actors of a round together,
LAST_STOP_SECONDS = 0.1  # plus this for each: a frozen node may have many devices, and other leases expire meanwhile
JUDGE_THREADS = 2  # of each judge's process
LOOK_SECONDS = 2.0  # how often the farm checks for nodes that have left
LAST_ANSWERS_SECONDS = 10.0  # how long a run waits for its actors to stop, and for its judges to clean up
GROUP_SECONDS = 1.0  # a signal for all processes of a run may reach Ray's first
FIRST_SECONDS = 180.0  # and of a Ray of this host's own, after this without its first answer
GONE = "the device's node has left the cluster"
ANSWER_SECONDS = 0.1  # how long each look during a run waits for the registry of nodes
FIRST_ANSWER_SECONDS = 5.0  # and before the run: drained nodes are not offered
UNPLACED_SECONDS = 60.0  # after this it is said that an actor is not placed, although no other run has its device
REPEAT_SECONDS = 600.0  # how often it is said again
COMMON: dict[str, Any] = {"namespace": "farm", "log_to_driver": False, "logging_level": "ERROR"}  # for every ray.init


@dataclass
class _NodeJudge:
    """A judge's actor on a node (None while it waits to be replaced) and its record."""

    actor: Any
    generation: int = 0
    health: JudgeHealth = field(default_factory=JudgeHealth)
    due: float | None = None  # when the next one takes its place


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


@dataclass
class _Unplaced:
    """An actor that Ray has not placed: since when, and what was said of it, when."""

    since: float
    by: str = ""
    said: float = float("-inf")


def _node_of(slot: DeviceHandle) -> str:
    return slot.labels.get("node", slot.host)


class RayCluster:
    """`address`: `local` starts Ray on this host; `auto` or HOST:PORT joins a cluster."""

    _silence = limits.TABLE["silence"]  # after this without an answer to a poll, the actor or its node hangs

    def __init__(self, address: str, devices: int | None, run_id: str, wanted: list[str] | None = None):
        self._count = devices
        self.spool = spool_folder(run_id)
        self._actors: dict[str, Any] = {}
        self._slots: dict[str, DeviceHandle] = {}
        self._polls: dict[Any, tuple[str, float]] = {}
        self._judges: dict[str, list[_NodeJudge]] = {}  # by node
        self._contracts: Any = None  # the outside ones, in the object store; False: there are none
        self._lock_s: dict[str, float] = {}  # by node: how long its judges wait for a lock of the cache
        self._local = address == "local"
        self._run = run_id
        self._key = secrets.token_hex(8)  # by which the registry knows this run: two stores may have one of its id
        self._patterns: dict[str, list[str]] = {}  # backend -> what its cells' targets ask for
        self._held: dict[str, dict[str, Any]] = {}  # devices whose actors Ray has placed, as the registry has them
        self._unplaced: dict[str, _Unplaced] = {}  # the others: they are waiting, not silent
        self._reported: tuple[Any, Deadline] = (None, Deadline(0.0))  # what the registry was told, and until when
        self._roster = Inventory(devices, self._local)
        self._packed: list[dict[str, Any]] | None = None
        self._subject_blobs: dict[str, Any] = {}  # of the run's subjects by their hash, in the object store
        self._content = ""  # of this farm's sources
        self._differing: set[str] = set()  # nodes whose farm has other sources
        self._next_look = Deadline(LOOK_SECONDS)
        self._next_registry = Deadline(LOOK_SECONDS)
        self._in_vain = 0.0  # seconds of this round spent waiting for actors that did not stop
        self._folder: Path | None = None  # of Ray's sessions and its token, closed to other users
        self.lost = False  # Ray is left alone, and ends with this process
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
            parts = raylet_watchdog.parts(ray.get_runtime_context().get_node_id(), own=self._local)
        except BaseException:
            spool.remove(self.spool)
            if self._folder and not (self._folder / "r").exists():  # else Ray's logs say why; a later run sweeps them
                spool.remove(self._folder)
            raise
        self._deaths = raylet_watchdog.RayletWatchdog(parts, run_id)
        self._watch = None if self._local else NodeWatch(ray)
        if self._watch:
            self._watch.look(FIRST_ANSWER_SECONDS)

    def _alone(self) -> None:
        """Ray's environment for one that this process starts: a token of its own, and no port that another host can
        reach (by this variable Ray takes the loopback address for the node's, and listens there alone)."""
        self._folder = ray_folder.of_run(os.environ)
        supervisor.removes(str(self._folder))
        ray_token.hand_over(self._folder / "token", "")
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)

    def _authenticate(self) -> None:
        """Ray's environment for a cluster that somebody else started."""
        explicit_auth()
        if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" in os.environ:
            self._folder = ray_folder.of_run(os.environ)
            supervisor.removes(str(self._folder))
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
                have = ", ".join(f"{b} ({n})" for b, n in sorted(self.available().items())) or "none"
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

    def _look_at_registry(self) -> list[dict[str, Any]]:
        """Every other second: say what this run has, and hear who has the devices that it waits for."""
        if not self._next_registry.expired:
            return []
        self._next_registry = Deadline(LOOK_SECONDS)
        if self._watch:
            standing = {"run": self._run, "user": who(), "devices": dict(self._held), "patterns": self._patterns}
            if standing != self._reported[0] or self._reported[1].expired:
                self._reported = (standing, Deadline(REPORT_SECONDS))
                self._watch.standing(self._key, standing)
            if self._unplaced:
                self._watch.look(ANSWER_SECONDS, runs=True)
        found = [self._waits(device, one) for device, one in self._unplaced.items()]
        return [event for event in found if event]

    def _waits(self, device: str, one: _Unplaced) -> dict[str, Any] | None:
        """What is to be said of a device that another run uses, or that Ray gives nobody; rarely."""
        now = time.monotonic()
        slot = self._slots[device]
        by = self._watch.holders(_node_of(slot), slot.backend, self._key) if self._watch else ""
        if by == one.by and (now - one.said < REPEAT_SECONDS or (not by and now - one.since < UNPLACED_SECONDS)):
            return None
        freed, one.by, one.said = one.by and not by, by, now
        if by:
            reason = Message(f"waiting for the device, which {by} uses", id="cluster-device-busy")
        else:
            what = "no other run uses the device any more" if freed else "Ray has not given the device to this run yet"
            reason = Message(f"{what}; waiting for its actor to start", id="cluster-device-unplaced")
        return {"event": "device_waits", "device": device, "at": now, "reason": reason, "busy": bool(by)}

    def report(self, slot: DeviceHandle, event: Mapping[str, Any]) -> None:
        """Report a device's event to the cluster's registry, for `farm nodes`."""
        if self._watch is not None:
            self._watch.seen(_node_of(slot), slot.device, {**event, "run": self._run})

    def _judges_on(self, node: str, lock_s: float) -> list[tuple[int, int, Any]]:
        if node not in self._judges:
            cpus = next((int(n.resources.get("CPU", 2)) for n in self._table() if n.id == node and n.alive), 2)
            # Processes rather than threads: NumPy's calls on a block are short, and threads of one interpreter then
            # mostly wait for each other (4 processes of 8 threads fell 8 s behind two H200, 16 of 2 did not).
            count = max(1, min(16, cpus // 2))
            self._lock_s[node] = lock_s
            self._judges[node] = [_NodeJudge(self._judge(node, count)) for _ in range(count)]
        return [(i, judge.generation, judge.actor) for i, judge in enumerate(self._judges[node])]

    def _judge(self, node: str, sharers: int) -> Any:
        ray: Any = self._ray  # whose types do not know this option
        actor = ray.remote(concurrency_groups=GROUPS)(node_actors.JudgeActor)
        where = {"ray.io/node-id": node}
        actor = actor.options(
            num_cpus=0, label_selector=where, max_restarts=0
        )  # `_replace_judges` does it, and says so
        # As bytes: of a reference among an actor's arguments Ray prints that a restart might not find it.  This process
        # keeps it as long as the run lasts.
        farms = [{**b, "blob": ray.cloudpickle.dumps(b["blob"])} for b in self._bundles() if b["name"] == "farm"]
        if self._contracts is None:
            packed = contracts.pack()
            self._contracts = self._ray.put(packed) if packed else False
        sent = ray.cloudpickle.dumps(self._contracts) if self._contracts else None
        return actor.remote(farms, self.spool, JUDGE_THREADS, self._lock_s[node], sharers, sent)

    def _judge_down(self, event: dict[str, Any], now: float) -> list[dict[str, Any]]:
        """A device met a dead judge: reported once for the judge, which is replaced after a pause."""
        slot = self._slots.get(event["device"])
        mine = self._judges.get(slot.node, []) if slot else []
        if event["judge"] >= len(mine):
            return []
        judge = mine[event["judge"]]
        if judge.due is not None or judge.generation != event["generation"]:
            return []
        judge.due = now + judge.health.died(now)
        with contextlib.suppress(Exception):  # it may be merely out of reach
            self._ray.kill(judge.actor)
        judge.actor = None
        return [event]

    def _replace_judges(self, now: float) -> None:
        """Start judges in place of those that died, and tell the devices of their nodes."""
        for node, judges in self._judges.items():
            for index, judge in enumerate(judges):
                if judge.due is None or now < judge.due:
                    continue
                judge.due, judge.generation, judge.actor = None, judge.generation + 1, self._judge(node, len(judges))
                for device in [d for d, slot in self._slots.items() if slot.node == node]:
                    actor = self._actors.get(device)
                    if actor is not None:
                        actor.replace_judge.remote(index, judge.generation, judge.actor)

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None:
        module = backends.usable(slot.backend)
        self._slots[slot.device] = slot
        self._silence = config["deadlines"]["silence"]
        self._patterns[slot.backend] = list(config.get("patterns", [""]))
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
        arms = {n: {**own, "subject": self._subject(own.get("subject"))} for n, own in config.get("arms", {}).items()}
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
                "subject": self._subject(config.get("subject")),
                **({"arms": arms} if arms else {}),
            },
            self._judges_on(slot.node, config["deadlines"]["lock"]),
        )
        self._actors[slot.device] = actor
        self._unplaced[slot.device] = _Unplaced(time.monotonic())
        self._poll(slot.device)

    def _bundles(self) -> list[dict[str, Any]]:
        """What children import, for nodes where another revision, or none, is installed: put into the object store
        once, and fetched once by each node."""
        if self._local:
            return []
        if self._packed is None:
            self._packed = [{**b.plain(), "blob": self._ray.put(b.blob)} for b in bundle.pack_all()]
        return self._packed

    def _subject(self, given: dict[str, Any] | None) -> dict[str, Any] | None:
        """A subject of the run, whose content is put into the object store once."""
        if given is None:
            return None
        if given["sha"] not in self._subject_blobs:
            self._subject_blobs[given["sha"]] = self._ray.put(given["blob"])
        return {**given, "blob": self._subject_blobs[given["sha"]]}

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
        self._held.pop(device, None)
        if self._unplaced.pop(device, None):  # it would not answer
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        elif actor is not None:
            begun = time.monotonic()
            try:
                self._ray.get(actor.stop.remote(), timeout=max(LAST_STOP_SECONDS, STOP_SECONDS - self._in_vain))
            except Exception:
                self._in_vain += time.monotonic() - begun
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        self._in_vain = 0.0
        dead = self._dead()
        if dead:
            if interrupts.noted_soon(GROUP_SECONDS):
                return []
            raise InfraError(raylet_watchdog.died(dead))
        self._replace_judges(time.monotonic())
        gone = [*self._left(), *self._look_at_registry()]
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
            self._hold(device)
            for event in found:
                if event["event"] == "judge_down":
                    out += self._judge_down(event, now)
                else:
                    out += self._met(event) if event["event"] == "node_farm" else [event]
                if event["event"] == "device_up" and device in self._slots:
                    self.report(self._slots[device], event)
                    if device in self._held:
                        self._held[device] = {**self._held[device], "target": str(Target(**event["target"]))}
            if well:
                self._poll(device)
        late = [ref for ref, (_, since) in self._polls.items() if now - since > POLL_SECONDS + self._silence]
        # Only in a cluster that others use may Ray keep an actor waiting for its device.
        most = FIRST_SECONDS if self._local else float("inf")
        silent = [r for r in late if self._polls[r][0] not in self._unplaced or now - self._polls[r][1] > most]
        if silent:
            # Only those without an answer: answers may have arrived while this loop was busy elsewhere.
            _, silent = self._ray.wait(silent, num_returns=len(silent), timeout=0)
        for ref in silent:
            device, _ = self._polls.pop(ref)
            seconds = most if device in self._unplaced else self._silence
            out.append(
                {
                    "event": "device_down",
                    "device": device,
                    "at": now,
                    "final": False,
                    "reason": f"the device's actor did not answer for {seconds:g} s",
                }
            )
        return out

    def _dead(self) -> str:
        """A part of Ray that has died, so that a call could end this process."""
        dead = self._deaths.dead()
        if dead:
            self.lost = True
            self._deaths.settle()
        return dead

    def _hold(self, device: str) -> None:
        """The device's actor has answered: Ray has placed it, so the device is this run's."""
        if self._unplaced.pop(device, None):
            slot = self._slots[device]
            self._held[device] = {"node": _node_of(slot), "backend": slot.backend, "target": "", "since": time.time()}

    def _met(self, farm: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What follows from the farm that a device's node has: one of another protocol cannot serve, one with other
        sources is reported once for each node."""
        at = {name: farm[name] for name in ("device", "at")}
        if farm["protocol"] != PROTOCOL:
            return [{"event": "device_down", **at, "final": True, "reason": _other_protocol(farm["protocol"])}]
        placed = [{"event": "placed", **at}]  # once more: the rest of the start has its own time
        ours = self._content = self._content or revision.content(ROOT / "farm")
        slot = self._slots.get(farm["device"])
        if slot is None or farm["content"] == ours or slot.node in self._differing:
            return placed
        self._differing.add(slot.node)
        node = slot.labels.get("node", slot.host)
        return [*placed, {"event": "node_differs", **at, "node": node, "content": farm["content"], "ours": ours}]

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

    def wind_down(self) -> None:
        """Nothing: a part of Ray that is gone could end this process before its result is written."""

    def close(self) -> None:
        """Stop every actor with its child, then Ray if this process started it; bounded in time."""
        for step in (self._stop_actors, self._clean_judges, self._kill_actors, self._shut_down):
            if self.lost or self._dead():  # a call could end this process, or hold it
                break
            with contextlib.suppress(Exception):
                step()
        for folder in (self.spool, spool.reserve(self.spool), self._folder):
            if folder:
                spool.remove(folder)

    def _stop_actors(self) -> None:
        if self._watch:
            self._watch.ended(self._key, ANSWER_SECONDS)
        self._answered([a.stop.remote() for d, a in self._actors.items() if a is not None and d not in self._unplaced])

    def _clean_judges(self) -> None:
        if self._local:  # their folder is this process's, which removes it
            return
        alive = {n.id for n in self._table() if n.alive}
        living = {node: [j.actor for j in pool if j.actor is not None] for node, pool in self._judges.items()}
        self._answered([actors[0].clean.remote() for node, actors in living.items() if node in alive and actors])

    def _answered(self, calls: list[Any]) -> None:
        """Wait for calls, as long as Ray lives: after a signal for a whole group it dies now."""
        late = Deadline(LAST_ANSWERS_SECONDS)
        while calls and not late.expired and not self._deaths.dead():
            _, calls = self._ray.wait(calls, num_returns=len(calls), timeout=0.2)

    def _kill_actors(self) -> None:
        for actor in [*self._actors.values(), *(j.actor for pool in self._judges.values() for j in pool)]:
            if actor is not None:
                with contextlib.suppress(Exception):
                    self._ray.kill(actor)

    def _shut_down(self) -> None:
        self._deaths.settle()  # the raylet of this process is about to end
        if self._local and supervisor.there() and interrupts.noted_within():
            self.lost = True  # a signal for the whole group has reached Ray too, and a shutdown would wait for it
        else:
            self._ray.shutdown()
