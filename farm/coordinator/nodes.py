"""The Ray edge of a cluster's nodes: the registry on the head, who is in the cluster, and whether a node is idle.

The registry (farm.nodes.registry) is a detached actor named `nodes` in the namespace `farm`, made by whoever first has
something to say to it.  Every call here has a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from farm import address as addresses
from farm.coordinator import joining
from farm.coordinator.roster import Node, nodes, resource
from farm.errors import InfraError
from farm.nodes import registry as registries

NAMESPACE, NAME = "farm", "nodes"
ANSWER_SECONDS = 10.0  # the registry's process may have to be started
HEAD = "node:__internal_head__"


def settings() -> None:
    """What Ray reads from the environment, all before its first import."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "true")


def explicit_auth() -> None:
    """Ray guesses whether a cluster has a token by files of this host; nobody should have to know them."""
    if "RAY_AUTH_MODE" not in os.environ:
        has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        os.environ["RAY_AUTH_MODE"] = "token" if has_token else "disabled"


class Nodes:
    """A connection to a cluster, to look after its nodes.  To be closed."""

    def __init__(self, address: str):
        addresses.check(address)
        settings()
        explicit_auth()
        import ray

        self._ray = ray
        joining.join(ray, address, {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR})

    def close(self) -> None:
        """Leave the cluster."""
        with contextlib.suppress(Exception):
            self._ray.shutdown()

    def table(self) -> list[Node]:
        """Every node that is in the cluster or was."""
        return nodes(self._ray.nodes())

    def here(self) -> str:
        """Ray's id of the node on this host (of several, the one that this process is connected by)."""
        return str(self._ray.get_runtime_context().get_node_id())

    def told(self) -> dict[str, Any]:
        """What the registry says; of no registry, that nothing was said."""
        found: dict[str, Any] = self._call("told", create=False) or {"out": {}, "devices": {}}
        return found

    def drain(self, node: Node, reason: str, who: str, once: bool) -> None:
        """No more work for it."""
        self._call("drain", node.name, node.id, reason, who, once, [n.id for n in self.table() if n.alive])

    def restore(self, node: Node) -> bool:
        """Work for it again; whether it was out."""
        return bool(self._call("restore", node.name, node.id, create=False))

    def idle(self, found: Sequence[Node], wait_s: float) -> list[Node]:
        """Of these nodes those whose devices nobody uses, or has stopped using within `wait_s`; told to the registry.

        A task that asks for every device of a node can only start once all of them are free.  A node whose devices Ray
        does not count is taken for idle.
        """
        asked: dict[Any, Node] = {}
        free: list[Node] = []
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
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InfraError(
                f"the cluster's registry of nodes did not answer ({said[:200]}); "
                "is kernel-farm installed on the head? farm doctor there tells"
            ) from error


def _nothing() -> None:
    """A task that only its place matters of."""


def find(ray: Any, *, create: bool) -> Any:
    """The registry's handle; None where there is none and none is to be made, or no head is known to make it on."""
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
            max_task_retries=3,  # each call says the whole of what it means: twice is once
            label_selector={"ray.io/node-id": head},
        )
        .remote(str(file))
    )


class Watch:
    """What a run asks of the registry while it goes on, without ever waiting long for it."""

    def __init__(self, ray: Any):
        self._ray = ray
        self._actor: Any = None
        self._asked: Any = None  # a question that is not answered yet
        self._out: Mapping[str, Mapping[str, Any]] = {}

    def look(self, seconds: float) -> None:
        """Ask who is out; after `seconds` without an answer what was known stands, and the answer is taken when the
        next look finds it: a registry that hangs costs a run nothing."""
        try:
            if self._actor is None:
                self._actor = find(self._ray, create=False)
            if self._asked is None and self._actor is not None:
                self._asked = self._actor.out.remote()
            if self._asked is None or not self._ray.wait([self._asked], timeout=seconds)[0]:
                return
            asked, self._asked = self._asked, None
            self._out = self._ray.get(asked, timeout=ANSWER_SECONDS)
        except Exception:
            self._actor = self._asked = None

    def away(self, node: Node) -> str:
        """Why a node is out, in words; "" where it is up."""
        said = registries.away(self._out, node.name, node.id)
        return f"drained by {said.get('who', '?')}: {said.get('reason', '')}" if said else ""

    def seen(self, node: str, device: str, event: Mapping[str, Any]) -> None:
        """Tell of a device; nobody waits for it, and nothing of a run depends on it."""
        with contextlib.suppress(Exception):
            self._actor = self._actor or find(self._ray, create=True)
            if self._actor is not None:
                self._actor.seen.remote(node, device, dict(event))
