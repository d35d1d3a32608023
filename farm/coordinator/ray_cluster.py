"""A Ray cluster: one actor pinned to each device by node, a judge pool on each node.

What is measured of Ray and behind these choices: `max_restarts=0` tells a death in 15 ms with its cause, restarts by
Ray take over a second and tell none; events are fetched by a call that waits (yielded items die with an actor);
nodes are chosen by our own label, since NVIDIA and AMD share the resource GPU.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from farm import __version__, backends, spool
from farm.coordinator.clusters import Slot, host_devices, spool_folder
from farm.errors import BackendError, InfraError

POLL_SECONDS = 2.0
STOP_SECONDS = 2.0  # then it is killed; its child dies with it
SILENCE_SECONDS = 45.0  # a poll that is not answered by then: its actor or its node hangs
LABEL = "farm/backend"


def _settings() -> None:
    """What Ray reads from the environment, all before its first import."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "true")


class RayCluster:
    """`address`: `local` starts an own Ray; `auto` or HOST:PORT joins one."""

    def __init__(self, address: str, devices: int | None, run_id: str, wanted: list[str] | None = None):
        self._count = devices
        self.spool = spool_folder(run_id)
        self._actors: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}  # device -> node id
        self._polls: dict[Any, tuple[str, float]] = {}
        self._judges: dict[str, list[Any]] = {}
        self._local = address == "local"
        _settings()
        if self._local:
            self._host = {b: host_devices(b, devices) for b in wanted or []}
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        elif "RAY_AUTH_MODE" not in os.environ:
            has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
            os.environ["RAY_AUTH_MODE"] = "token" if has_token else "disabled"
        import ray

        self._ray = ray
        self.lost = False
        try:
            ray.init(**self._init_arguments(address))
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            token = "" if self._local else "if the cluster has a token, set RAY_AUTH_TOKEN; "
            raise InfraError(
                f"--address {address}: Ray did not {'start' if self._local else 'answer'} ({first}); {token}"
                "farm doctor checks this host, --address inline runs without Ray"
            ) from error
        self._raylet = _own_raylet() if self._local else None

    def _init_arguments(self, address: str) -> dict[str, Any]:
        common: dict[str, Any] = {"namespace": "farm", "log_to_driver": False, "logging_level": "ERROR"}
        if not self._local:
            return {"address": address, **common}
        resources: dict[str, float] = {}
        gpus = 0
        for backend, found in self._host.items():
            for name, amount in backends.usable(backend).RESOURCE.items():
                if name == "num_gpus":
                    gpus += amount * len(found)
                else:
                    resources[name] = amount * len(found)
        return {
            "address": "local",
            "include_dashboard": False,
            "num_cpus": max(2, os.cpu_count() or 2),
            "num_gpus": gpus,
            "resources": resources,
            "labels": {LABEL: ".".join(self._host)} if self._host else {},
            "object_store_memory": 128 << 20,
            **common,
        }

    def available(self) -> dict[str, int]:
        """Backend -> devices, as the nodes' labels and resources say."""
        out: dict[str, int] = {}
        for node in self._alive():
            for backend in self._backends_of(node):
                out[backend] = out.get(backend, 0) + self._devices_of(node, backend)
        return out

    def _alive(self) -> list[dict[str, Any]]:
        return [n for n in self._ray.nodes() if n["Alive"]]

    def _backends_of(self, node: dict[str, Any]) -> list[str]:
        return [b for b in str(node.get("Labels", {}).get(LABEL, "")).split(".") if b]

    def _devices_of(self, node: dict[str, Any], backend: str) -> int:
        module = backends.get(backend)
        resource = next(iter(getattr(module, "RESOURCE", {"GPU": 1})))
        name = "GPU" if resource == "num_gpus" else resource
        have = int(node["Resources"].get(name, 0))
        if not have and not getattr(module, "ACCELERATOR", False):
            have = min(2, int(node["Resources"].get("CPU", 0)))  # a node that offers cpu by its label alone
        return min(have, self._count) if self._count else have

    def slots(self, wanted: list[str]) -> list[Slot]:
        """One slot per device of each wanted backend.  BackendError names what the cluster has instead."""
        out: list[Slot] = []
        for backend in wanted:
            backends.usable(backend)
            mine = [
                Slot(
                    f"{node['NodeName']}/{backend}:{i}" if not self._local else f"{backend}:{i}",
                    backend,
                    node["NodeID"],
                )
                for node in self._alive()
                if backend in self._backends_of(node)
                for i in range(self._devices_of(node, backend))
            ]
            if not mine:
                have = ", ".join(f"{b} ({n})" for b, n in self.available().items()) or "none"
                raise BackendError(
                    f"--backend {backend}: the cluster has no such device (it has: {have}); "
                    f"label its nodes {LABEL}={backend} or leave the backend out"
                )
            out += mine
        names: dict[str, int] = {}
        unique = []
        for slot in out:  # fake clusters have several nodes of one name
            n = names[slot.device] = names.get(slot.device, 0) + 1
            unique.append(slot if n == 1 else Slot(f"{slot.device}~{n}", slot.backend, slot.node))
        return unique

    def _judges_on(self, node: str) -> list[Any]:
        if node not in self._judges:
            from farm.judge import ray_judge

            cpus = next((int(n["Resources"].get("CPU", 2)) for n in self._alive() if n["NodeID"] == node), 2)
            # Processes rather than threads: NumPy's calls on a block are short, and threads of one interpreter then
            # mostly wait for each other (4 processes of 8 threads fell 8 s behind two H200, 16 of 2 did not).
            count, threads = max(1, min(16, cpus // 2)), 2
            self._judges[node] = [ray_judge(self._ray, node, self.spool, threads) for _ in range(count)]
        return self._judges[node]

    def start(self, slot: Slot, config: dict[str, Any]) -> None:
        module = backends.usable(slot.backend)
        node = next((n for n in self._alive() if n["NodeID"] == slot.node), None)
        if node is None:
            self._dead_on_arrival(slot, "its node has left the cluster")
            return
        request = dict(getattr(module, "RESOURCE", {}))
        gpus = request.pop("num_gpus", 0)
        request = {k: v for k, v in request.items() if node["Resources"].get(k)}
        remote = self._ray.remote(_RayDevice)
        actor = remote.options(
            num_cpus=0,
            num_gpus=gpus,
            resources=request,
            label_selector={"ray.io/node-id": slot.node},
            max_restarts=0,
            max_concurrency=4,
        ).remote({**config, "spool": self.spool, "farm_version": __version__}, self._judges_on(slot.node))
        self._actors[slot.device] = actor
        self._nodes[slot.device] = slot.node
        self._poll(slot.device)

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
        self._polls = {r: v for r, v in self._polls.items() if v[0] != device}
        if actor is not None:
            with contextlib.suppress(Exception):
                self._ray.get(actor.stop.remote(), timeout=STOP_SECONDS)
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        if self._raylet and not _alive(self._raylet):
            self.lost = True
            raise InfraError("Ray's own process on this host died (killed from outside, or the host is out of memory)")
        if not self._polls:
            time.sleep(min(wait_s, 0.05))
            return []
        ready, _ = self._ray.wait(list(self._polls), num_returns=1, timeout=wait_s)
        now = time.monotonic()
        out: list[dict[str, Any]] = []
        for ref in ready:
            device, _ = self._polls.pop(ref)
            try:
                found = self._ray.get(ref, timeout=5)
            except Exception as error:
                out.append(self._down(device, error))
                continue
            out += [{**event, "device": device, "at": now} for event in found]
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
        cleaning = [j[0].clean.remote() for j in self._judges.values() if j]
        with contextlib.suppress(Exception):
            self._ray.wait(cleaning, num_returns=len(cleaning), timeout=10)
        for actor in [*self._actors.values(), *(j for pool in self._judges.values() for j in pool)]:
            if actor is not None:
                with contextlib.suppress(Exception):
                    self._ray.kill(actor)
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        spool.remove(self.spool)


def _own_raylet() -> int | None:
    """The pid of the raylet that this process started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            name, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
            if name.partition("(")[2] == "raylet" and int(rest.split()[1]) == os.getpid():
                return int(path.parent.name)
    return None


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
            not in "ZX"
        )
    return False


class _RayDevice:
    """The Ray actor: a `DeviceActor` whose device Ray chose."""

    def __init__(self, config: dict[str, Any], judges: list[Any]):
        import ray

        from farm import __version__ as here
        from farm.actor import DeviceActor
        from farm.judge import RayJudges

        if here != config["farm_version"]:
            raise RuntimeError(f"this node has kernel-farm {here}, the coordinator {config['farm_version']}")
        ids = ray.get_runtime_context().get_accelerator_ids()
        mine = [str(x) for found in ids.values() for x in found]
        device_id = os.environ.get("CUDA_VISIBLE_DEVICES", "") if mine else ""
        index = config["device"].rsplit(":", 1)[-1].split("~")[0]
        self._inner = DeviceActor({**config, "device_id": device_id or (mine[0] if mine else index)}, RayJudges(judges))

    def submit(self, lease: dict[str, Any]) -> None:
        self._inner.submit(lease)

    def poll(self, wait_s: float) -> list[dict[str, Any]]:
        return self._inner.poll(wait_s)

    def stop(self) -> None:
        self._inner.stop()

    def pids(self) -> tuple[int, int | None]:
        """(this process, its child)."""
        return os.getpid(), self._inner.child_pid()
