"""The request of a run, the receiver of its progress, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from farm.cluster.base import DeviceHandle
from farm.compare.arms import Arm
from farm.compare.kernel_changes import Change
from farm.compare.records import Record
from farm.compare.summary import Summary
from farm.errors import InfraError
from farm.matrix import Plan
from farm.matrix.known import KnownFailure
from farm.node.environment import Environment
from farm.shipping.subjects import PackedSubject
from farm.store.recovery import Recovery
from farm.timing.roof import Calibration

#: Of a run that compares two arms, in its head.
KIND = "ab"


@dataclass(frozen=True)
class RunArm:
    """One arm of a run that compares two: what its children are, and what they are told to call.  `digest`: of its
    files, "" where they are those of any run; `revision`: of our own kernels in it."""

    arm: Arm
    revision: str
    environment: Environment
    providers: Mapping[str, Mapping[str, Any]]
    subject: PackedSubject | None = None
    digest: str = ""

    def plain(self) -> dict[str, Any]:
        """As it appears in a device actor's config."""
        return {
            "revision": self.revision,
            "environment": self.environment.plain(),
            "variables": dict(self.arm.variables),
            "tuning": self.arm.tuning,
            "subject": self.subject.plain() if self.subject else None,
        }

    def described(self) -> dict[str, Any]:
        """What a run records of it."""
        subject = {"subject": self.subject.described()} if self.subject else {}
        told = {"called": self.arm.called, "revision": self.revision, "digest": self.digest}
        return {**self.arm.plain(), **told, **subject}


class RunProgress(Protocol):
    """Receives the progress of a run."""

    def device(self, text: str) -> None: ...

    def cell(self, row: Mapping[str, Any]) -> None: ...

    def eta(self, seconds: Mapping[str, float]) -> None: ...


@dataclass
class RunRequest:
    """Everything a run needs besides its cluster and its directory."""

    plan: Plan
    slots: list[DeviceHandle]
    command: str
    argv: list[str]
    revision: dict[str, Any]
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # "NAME" or "OP:NAME" -> file, path
    environment: Environment = field(default_factory=Environment.default)
    shipped: Mapping[str, Any] | None = None  # the files of the named providers, which are sent to the devices
    subject: PackedSubject | None = None  # somebody's kernels, which are first on every child's import path
    strict_peers: bool = False
    stop_at_first: bool = False  # end the run at the first finding
    calibrations: Sequence[Calibration] = ()  # of the store, for share_of_roof
    finished: Recovery | None = None  # the earlier results of an interrupted run that is resumed
    part: Mapping[str, Any] = field(default_factory=dict)  # the plan that this run is a part of (farm.sites)
    wait_for_devices_s: float = 0.0  # how long the cells of a backend or target wait for a device
    wait_s: float = 0.0  # how long the run waits for a device that another run uses
    noise: Sequence[Record] = ()  # of the store: what pairs of identical code have shown
    limit_s: float = 0.0  # the run ends as interrupted after this time; 0: it has none
    kit: Mapping[str, Any] = field(default_factory=dict)  # the kit that it is the run of: who ran it, where, on what
    known: Sequence[KnownFailure] = ()  # failures that do not count
    whole: bool = True  # whether these are all cells of the matrices
    kernels: Sequence[Change] = ()  # of both arms, and how each compares
    only_kernels: bool = False  # of the files of both arms nothing but kernels differs
    named_cells: bool = False  # whether somebody named the cells, so that what they do not launch is no finding
    complete: Callable[[], None] = lambda: None  # called once run.json is written, before devices are let go
    began: float | None = None  # when the command began, on the monotonic clock
    arms: tuple[RunArm, ...] = ()  # two, where the run compares them; `providers` and `environment` are then theirs


@dataclass
class RunOutcome:
    """How a run ended.  `rows`: of each planned cell what a summary needs; the store has the rest."""

    rows: Sequence[Mapping[str, Any]]
    verdict: str
    exit_code: int
    interrupted: bool
    stopped: str = ""  # why the run itself ended before all cells had a result; it is interrupted then
    by_finding: bool = False  # it was asked to stop at its first finding, and did: the exit code is that of findings
    pairs: Sequence[Mapping[str, Any]] = ()  # of pairs.parquet, where the run compares two arms,
    summary: Summary | None = None  # and what they add up to
    noise: Record | None = None  # of the identical code among them, once the run is complete
    known: Sequence[Mapping[str, Any]] = ()  # what became of each known failure (farm.matrix.known.applied)
    page: Any = None  # what builds its page meanwhile, if anything does
    utilisation: Mapping[str, Any] = field(default_factory=dict)  # farm.utilisation, once the run is complete

    @property
    def final_code(self) -> int:
        """The exit code of the command."""
        return InfraError.exit_code if self.interrupted and not self.by_finding else self.exit_code
