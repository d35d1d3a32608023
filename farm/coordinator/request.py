"""What a run is asked to do, who is told how it goes, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from farm.actor.environment import Environment
from farm.coordinator.clusters import Slot
from farm.matrix import Plan
from farm.store.before import Before
from farm.timing.roof import Calibration


class Progress(Protocol):
    """Who is told how it goes."""

    def device(self, text: str) -> None: ...

    def cell(self, row: Mapping[str, Any]) -> None: ...

    def eta(self, seconds: Mapping[str, float]) -> None: ...


@dataclass
class RunRequest:
    """Everything a run needs besides its cluster and its directory."""

    plan: Plan
    slots: list[Slot]
    command: str
    argv: list[str]
    revision: dict[str, Any]
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # "NAME" or "OP:NAME" -> file, path
    environment: Environment = field(default_factory=Environment.default)
    options: Mapping[str, Any] = field(default_factory=dict)  # for the backends
    strict_peers: bool = False
    calibrations: Sequence[Calibration] = ()  # of the store, for share_of_roof
    finished: Before | None = None  # what is known from before: the run was interrupted, and goes on
    part: Mapping[str, Any] = field(default_factory=dict)  # of which plan this run is a part (farm.sites)
    wait_for_devices_s: float = 0.0  # so long a backend or a target without devices waits for one before it is lost


@dataclass
class Outcome:
    """How a run ended."""

    rows: list[dict[str, Any]]
    verdict: str
    exit_code: int
    interrupted: bool
