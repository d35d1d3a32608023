"""Which devices of a Ray cluster a run is offered, and under which names.  Pure: its input is `ray.nodes()`.

The label `farm/backend` makes a node part of the farm.  Its name is the label `farm/node`, else Ray's name for it.  A
host that leaves and returns is another node with the same name.  Nodes that share a machine have equal `farm/host`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm import backends
from farm.cluster.base import Changes, DeviceHandle

PREFIX = "farm/"
LABEL = "farm/backend"
NAME_LABEL = "farm/node"
#: The devices of a backend on a node that offers it by its label alone, without a resource (cpu).
BY_LABEL_ALONE = 2


@dataclass(frozen=True)
class ClusterNode:
    """One node of the cluster."""

    id: str
    name: str
    host: str  # its machine's name
    address: str
    alive: bool
    backends: tuple[str, ...]
    labels: Mapping[str, str]  # its `farm/...` labels without that prefix
    resources: Mapping[str, float] = field(default_factory=dict)

    def count(self, backend: str) -> int:
        """Devices of a backend."""
        have = int(self.resources.get(resource(backend), 0))
        if not have and not getattr(backends.get(backend), "ACCELERATOR", False):
            have = min(BY_LABEL_ALONE, int(self.resources.get("CPU", 0)))
        return have


def resource(backend: str) -> str:
    """The resource by which Ray counts a backend's devices: GPU, NPU, farm_cpu, ..."""
    name = next(iter(getattr(backends.get(backend), "RESOURCE", {"num_gpus": 1})))
    return "GPU" if name == "num_gpus" else name


def nodes(table: Iterable[Mapping[str, Any]]) -> list[ClusterNode]:
    """`ray.nodes()` as nodes, including those that have left."""
    out = []
    for row in table:
        labels = row.get("Labels") or {}
        known = backends.known()
        out.append(
            ClusterNode(
                id=row["NodeID"],
                name=labels.get(NAME_LABEL) or row.get("NodeName") or row.get("NodeManagerAddress", ""),
                host=row.get("NodeManagerHostname", ""),
                address=row.get("NodeManagerAddress", ""),
                alive=bool(row["Alive"]),
                backends=tuple(b for b in str(labels.get(LABEL, "")).split(".") if b in known),
                labels={k.removeprefix(PREFIX): str(v) for k, v in labels.items() if k.startswith(PREFIX)},
                resources=row.get("Resources") or {},
            )
        )
    return out


class Inventory:
    """The devices that one run was offered.  `away(node)`: why an operator has drained the node, or ""."""

    def __init__(self, count: int | None, local: bool = False):
        self._count = count  # at most this many devices per backend and node
        self._local = local  # device names without the node's name
        self._wanted: tuple[str, ...] = ()
        self._offered: dict[tuple[str, str, int], DeviceHandle] = {}  # (node, backend, index)
        self._told: set[str] = set()  # nodes whose devices the run was asked to release

    def available(self, table: Sequence[ClusterNode], away: Callable[[ClusterNode], str]) -> dict[str, int]:
        """Backend -> devices that a run could have."""
        out: dict[str, int] = {}
        for node in table:
            if node.alive and not away(node):
                for backend in node.backends:
                    out[backend] = out.get(backend, 0) + self._count_of(node, backend)
        return out

    def begin(
        self, table: Sequence[ClusterNode], wanted: Sequence[str], away: Callable[[ClusterNode], str]
    ) -> list[DeviceHandle]:
        """One handle for each device of the wanted backends."""
        self._wanted = tuple(wanted)
        self._told |= {n.id for n in table if n.alive and away(n)}
        return self._new(table, away, held=())

    def refresh(
        self, table: Sequence[ClusterNode], away: Callable[[ClusterNode], str], held: Collection[str]
    ) -> Changes:
        """Devices that joined since the last look, those to release, and what is drained.  `held`: names of devices
        that the run has not released yet."""
        drained: list[str] = []
        out: list[tuple[str, str]] = []
        for node in table:
            if not node.alive:
                continue
            mine = {key: slot for key, slot in self._offered.items() if key[0] == node.id}
            if away(node):
                out += [(node.name, backend) for backend in node.backends if backend in self._wanted]
                if node.id not in self._told:
                    self._told.add(node.id)
                    drained += [slot.device for slot in mine.values()]
            elif node.id in self._told and not any(slot.device in held for slot in mine.values()):
                self._told.discard(node.id)  # restored, and every earlier device is released: they are new now
                for key in mine:
                    del self._offered[key]
        return Changes(tuple(self._new(table, away, held)), tuple(drained), tuple(out))

    def _new(
        self, table: Sequence[ClusterNode], away: Callable[[ClusterNode], str], held: Collection[str]
    ) -> list[DeviceHandle]:
        alive = {n.id for n in table if n.alive}
        out: list[DeviceHandle] = []
        for backend in self._wanted:
            for node in table:
                if not node.alive or away(node) or node.id in self._told or backend not in node.backends:
                    continue
                for index in range(self._count_of(node, backend)):
                    key = (node.id, backend, index)
                    if key in self._offered:
                        continue
                    name = self._name(node, backend, index, alive)
                    if name in held:
                        continue  # its former owner left, which the run does not know yet: at the next look
                    slot = DeviceHandle(
                        name, backend, node.id, "", node.labels.get("host", node.name), dict(node.labels)
                    )
                    self._offered[key] = slot
                    out.append(slot)
        return out

    def _name(self, node: ClusterNode, backend: str, index: int, alive: Collection[str]) -> str:
        """HOST/BACKEND:INDEX; with `~2` for a second living node of that name (in tests, or after a raylet hung)."""
        plain = f"{backend}:{index}" if self._local else f"{node.name}/{backend}:{index}"
        taken = {slot.device for key, slot in self._offered.items() if key[0] in alive}
        name, n = plain, 1
        while name in taken:
            n += 1
            name = f"{plain}~{n}"
        return name

    def _count_of(self, node: ClusterNode, backend: str) -> int:
        have = node.count(backend)
        return min(have, self._count) if self._count else have
