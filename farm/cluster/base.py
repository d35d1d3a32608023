"""What a coordinator needs of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class DeviceHandle:
    """One device to pin an actor to."""

    device: str  # unique in the run: cpu:0, host/cuda:1
    backend: str
    node: str = ""  # Ray's id of its node
    device_id: str = ""
    host: str = ""  # the node's name: of one host's devices, equal
    labels: Mapping[str, str] = field(default_factory=dict)  # the node's `farm/...` labels, without that prefix


@dataclass(frozen=True)
class Changes:
    """What a cluster has gained, and which of the run's devices an operator wants back."""

    new: tuple[DeviceHandle, ...] = ()
    drained: tuple[str, ...] = ()  # each device once, until its node is restored
    away: tuple[tuple[str, str], ...] = ()  # (node, backend) of all that is drained now, of the run's backends


class Cluster(Protocol):
    """Devices by name; events as plain mappings with `event`, `device` and `at` (monotonic seconds)."""

    def slots(self, wanted: list[str]) -> list[DeviceHandle]: ...

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None: ...

    def grant(self, device: str, lease: dict[str, Any]) -> None: ...

    def stop(self, device: str) -> None: ...

    def events(self, wait_s: float) -> list[dict[str, Any]]: ...

    def refresh(self) -> Changes: ...

    def report(self, slot: DeviceHandle, event: Mapping[str, Any]) -> None: ...

    def wind_down(self) -> None:
        """Nothing more will be granted: what takes a while to end may begin to end beside what the run still writes."""

    def close(self) -> None: ...


class NoCluster:
    """For a run that was ended while it wrote its result: no cell is left to run."""

    def slots(self, wanted: list[str]) -> list[DeviceHandle]:
        return []

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None:
        """No device exists."""

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        """No device exists."""

    def stop(self, device: str) -> None:
        """No device exists."""

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        return []

    def refresh(self) -> Changes:
        return Changes()

    def report(self, slot: DeviceHandle, event: Mapping[str, Any]) -> None:
        """No device exists."""

    def wind_down(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


def describe(slots: list[DeviceHandle]) -> Mapping[str, int]:
    """Backend -> number of devices."""
    out: dict[str, int] = {}
    for slot in slots:
        out[slot.backend] = out.get(slot.backend, 0) + 1
    return out
