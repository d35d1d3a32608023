"""The Ray edge of a cluster's nodes: the registry on the head, the nodes of the cluster, and whether a node is idle.

The registry (farm.cluster.registry) is a detached actor named `nodes` in the namespace `farm`.  The first process that
reports to it creates it.  Every call here has a deadline.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from farm.cluster import address as addresses
from farm.cluster import connect, ray_token
from farm.cluster import registry as registries
from farm.cluster.inventory import ClusterNode, nodes, resource
from farm.errors import InfraError

NAMESPACE, NAME = "farm", "nodes"
ANSWER_SECONDS = 10.0  # the registry's process may have to be started
HEAD = "node:__internal_head__"


def settings() -> None:
    """Set what Ray reads from the environment; call it before Ray's first import."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "true")


def explicit_auth() -> None:
    """Set the authentication mode, which Ray would otherwise guess from files of this host."""
    if "RAY_AUTH_MODE" not in os.environ:
        has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        os.environ["RAY_AUTH_MODE"] = "token" if has_token else "disabled"


class RegistryClient:
    """A connection to a cluster, to manage its nodes.  Close it after use."""

    def __init__(self, address: str):
        addresses.check(address)
        ray_token.refuse_empty(os.environ)
        settings()
        explicit_auth()
        import ray

        self._ray = ray
        connect.join(ray, address, {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR})

    def close(self) -> None:
        """Leave the cluster."""
        with contextlib.suppress(Exception):
            self._ray.shutdown()

    def table(self) -> list[ClusterNode]:
        """Every node that is, or was, in the cluster."""
        return nodes(self._ray.nodes())

    def here(self) -> str:
        """Ray's id of the node on this host (of several, the one that this process is connected to)."""
        return str(self._ray.get_runtime_context().get_node_id())

    def told(self) -> dict[str, Any]:
        """The state of the registry; an empty state if there is no registry."""
        found = self._call("told", create=False) or {}
        return {**registries.sound(found), "damaged": registries.damage(found)}

    def runs(self) -> dict[str, dict[str, Any]]:
        """The runs that have devices of the cluster; {} if the registry cannot say (it may be an older one)."""
        with contextlib.suppress(InfraError, AttributeError):
            return registries.sound_runs(self._call("runs", create=False))
        return {}

    def drain(self, node: ClusterNode, reason: str, who: str, once: bool) -> None:
        """Give it no more work."""
        self._call("drain", node.name, node.id, reason, who, once, [n.id for n in self.table() if n.alive])

    def restore(self, node: ClusterNode) -> bool:
        """Give it work again; returns whether it was drained."""
        return bool(self._call("restore", node.name, node.id, create=False))

    def idle(self, found: Sequence[ClusterNode], wait_s: float) -> list[ClusterNode]:
        """Those of the nodes whose devices no run uses, or stops using within `wait_s`; the registry is informed.

        A task that requests every device of a node can start only once all of them are free.  A node whose devices Ray
        does not count is considered idle.
        """
        asked: dict[Any, ClusterNode] = {}
        free: list[ClusterNode] = []
        for node in found:
            wanted = {name: node.resources[name] for b in node.backends if (name := resource(b)) in node.resources}
            if not wanted:
                free.append(node)
                continue
            gpus = wanted.pop("GPU", 0)
            task = self._ray.remote(_nothing).options(
                num_cpus=0, num_gpus=gpus, resources=wanted, max_retries=0, label_selector={"ray.io/node-id": node.id}
            )
            asked[task.remote()] = node
        end = time.monotonic() + wait_s
        waiting = list(asked)
        while waiting and time.monotonic() < end:
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=max(0.0, end - time.monotonic()))
            free += [asked[ref] for ref in done]
        for ref in waiting:
            with contextlib.suppress(Exception):
                self._ray.cancel(ref)
        for node in free:
            self._call("drained", node.name, node.id, create=False)
        return free

    def _call(self, method: str, *arguments: Any, create: bool = True) -> Any:
        actor = find(self._ray, create=create)
        if actor is None:
            return None
        try:
            return self._ray.get(getattr(actor, method).remote(*arguments), timeout=ANSWER_SECONDS)
        except Exception as error:
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InfraError(
                f"the cluster's registry of nodes did not answer ({cause[:200]}); run farm doctor on the head to "
                "check that kernel-farm is installed",
                id="registry-silent",
            ) from error


def _nothing() -> None:
    """A task of which only the node matters."""


def find(ray: Any, *, create: bool) -> Any:
    """The registry's handle; None if there is none and `create` is false, or no head is known to create it on."""
    with contextlib.suppress(ValueError):
        return ray.get_actor(NAME, namespace=NAMESPACE)
    if not create:
        return None
    head = next((n["NodeID"] for n in ray.nodes() if n["Alive"] and HEAD in n["Resources"]), None)
    if head is None:
        return None
    file = registries.default_file(ray.get_runtime_context().gcs_address)
    return (
        ray.remote(registries.Registry)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=3,  # every call is idempotent
            label_selector={"ray.io/node-id": head},
        )
        .remote(str(file))
    )


def who() -> str:
    """USER@HOST of this process."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container without an entry for its user
        return f"{os.getuid()}@{socket.gethostname()}"


class NodeWatch:
    """A run's connection to the registry, which never waits long for an answer."""

    def __init__(self, ray: Any):
        self._ray = ray
        self._actor: Any = None
        self._asked: dict[str, Any] = {}  # method -> its pending request
        self._out: Mapping[str, Mapping[str, Any]] = {}
        self._runs: Mapping[str, Mapping[str, Any]] = {}

    def look(self, seconds: float, *, runs: bool = False) -> None:
        """Request the drained nodes, or the `runs`.  After `seconds` without an answer the known state is kept, and the
        next look takes the answer, so that a registry that hangs costs a run nothing."""
        try:
            if self._actor is None:
                self._actor = find(self._ray, create=False)
            if runs:
                self._runs = registries.sound_runs(self._answer("runs", seconds, self._runs))
            else:
                self._out = registries.sound_out(self._answer("out", seconds, self._out))
        except Exception:
            self._actor = None
            self._asked.clear()

    def _answer(self, method: str, seconds: float, known: Any) -> Any:
        """The registry's answer if it has come, else what is known."""
        if method not in self._asked and self._actor is not None:
            self._asked[method] = getattr(self._actor, method).remote()
        asked = self._asked.get(method)
        if asked is None or not self._ray.wait([asked], timeout=seconds)[0]:
            return known
        del self._asked[method]
        return self._ray.get(asked, timeout=ANSWER_SECONDS)

    def away(self, node: ClusterNode) -> str:
        """Why a node is drained; "" if it is up."""
        drain = registries.away(self._out, node.name, node.id)
        return f"drained by {drain.get('who', '?')}: {drain.get('reason', '')}" if drain else ""

    def holders(self, node: str, backend: str, but: str) -> str:
        """Which other runs have devices of a backend on a node, see `registry.holders`."""
        return registries.holders(self._runs, node, backend, but)

    def seen(self, node: str, device: str, event: Mapping[str, Any]) -> None:
        """Report on a device, without waiting; no run depends on it."""
        self._tell("seen", node, device, dict(event))

    def standing(self, key: str, said: Mapping[str, Any]) -> None:
        """Report what the run of this key has now, without waiting."""
        self._tell("run", key, dict(said))

    def ended(self, key: str, seconds: float) -> None:
        """The run of this key has ended; waits up to `seconds`, because its process is about to end too."""
        with contextlib.suppress(Exception):
            if self._actor is not None:
                self._ray.wait([self._actor.ended.remote(key)], timeout=seconds)

    def _tell(self, method: str, *said: Any) -> None:
        with contextlib.suppress(Exception):
            self._actor = self._actor or find(self._ray, create=True)
            if self._actor is not None:
                getattr(self._actor, method).remote(*said)
