"""The interface of a backend: its value types, and the two sides of a backend module as protocols.

The supervisor and the coordinator use the **host side** (`HostSide`), which opens no device.  The **child side**
(`ChildSide`) runs in the vendor's environment and opens one.  A backend is a module that defines every name of both.
For a name that it does not implement, it assigns a default from the end of this file:
`physical_id = api.nothing_to_lock`.  Standard library only; `farm.guard` and `farm.child` import no other module of
`farm.backends`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class HostDevice:
    """One accelerator, as the host lists it before anything opens it."""

    id: str  # the value for the vendor's mask variable
    name: str
    uuid: str = ""


@dataclass(frozen=True)
class Identity:
    """The identity of a device, as the supervising side reads it.  Empty or None: it cannot be read."""

    model: str = ""  # the vendor's name of the part: "NVIDIA GB200", "AMD Instinct MI300X", "Ascend910B3"
    uuid: str = ""  # of the device, or of the partition
    partition: str = ""  # "mig-1g.18gb", "cpx-nps4"; "" for a complete device in the vendor's default mode
    power_limit_w: int | None = None
    clocks: str = ""  # "locked-1980mhz" if an operator has set them; "" for the vendor's default policy
    driver: str = ""
    stack: str = ""  # the version of ROCm or CANN, or the newest CUDA that the driver supports
    module: str = ""  # equal for siblings: partitions of one device, dies or devices of one module; "" if unknown


@dataclass(frozen=True)
class Fault:
    """The meaning of a vendor's error message."""

    status: str  # farm.cell.Status by value
    owner: str  # farm.cell.Owner by value
    what: str  # one clause for the user, with the vendor's number
    lost: bool = False  # the process can no longer use its device


# telemetry


@dataclass(frozen=True)
class Sample:
    """One reading.  `at`: seconds on a monotonic clock; MHz, degrees Celsius, W; None if unreadable.  `throttle`: the
    reasons for a reduced clock, as the names in `farm.guard.telemetry.WORDS` and `HARMLESS`; None if unreadable."""

    at: float
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Process:
    """A process with a context on the device.  `name`: for the user; may be empty."""

    pid: int
    name: str = ""


@dataclass(frozen=True)
class Counters:
    """Values that only count up or change slowly.  `ecc_uncorrected`: since the driver was loaded.  `xid`: critical
    errors since this reader was opened, oldest first.  `processes`: those that compute on the device.  None:
    unreadable."""

    ecc_uncorrected: int | None = None
    xid: tuple[int, ...] | None = None
    processes: tuple[Process, ...] | None = None


class TelemetryReader(Protocol):
    """One device through the vendor's library.  Nothing raises; a value that cannot be read is None."""

    def sample(self) -> Sample:
        """The current clocks, temperature, power and throttle reasons."""

    def counters(self) -> Counters:
        """The errors so far, and the processes on the device."""

    def memory_used_mib(self) -> float | None:
        """MiB in use by all processes."""

    def close(self) -> None:
        """Release the library."""


# the two sides


class HostSide(Protocol):
    """The side for the supervisor and the coordinator.  It opens no device."""

    # Required: every backend defines these.

    NAME: str

    #: What a result proves: a value of `farm.cell.Evidence`.
    EVIDENCE: str

    ACCELERATOR: bool

    #: The timing method for a cell whose matrix names none.
    DEFAULT_TIMING: str

    #: The Ray resource of one device: {"num_gpus": 1}, or a named resource.
    RESOURCE: dict[str, int]

    def detect(self, count: int | None = None) -> list[HostDevice]:
        """The devices of this host, as the vendor's tool lists them, within a deadline; at most `count`."""

    def child_env(self, device_id: str) -> dict[str, str]:
        """The variables that make only this device visible to the child."""

    # Optional: a backend without an implementation assigns the default that is named after the arrow.

    def physical_id(self, device_id: str, options: Mapping[str, Any]) -> str:
        """The name of the device's lock on this host; "" if no lock is needed.  -> nothing_to_lock"""

    def telemetry(self, device_id: str, options: Mapping[str, Any], spool: str) -> TelemetryReader | None:
        """Clocks, power and errors for the supervising side; None if nothing can be read.  -> no_telemetry"""

    def identity(self, device_id: str, options: Mapping[str, Any]) -> Identity | None:
        """The device's identity, from the vendor's library or tool, before it is opened; None if unknown.
        -> no_identity"""

    def fault(self, text: str, code: int | None = None) -> Fault | None:
        """The meaning of a vendor's message: the text of an exception, or, with the exit code, the last output of a
        process that died.  None if it is not a message of the vendor.  Pure.  -> no_fault"""

    def unfit(self, device_id: str) -> str:
        """Why the vendor's health check rejects the device; "" if it does not.  -> no_health_check"""

    def complaints(self) -> list[str]:
        """The problems with this host that the vendor's library or tool reports.  -> no_complaints"""

    def peaks(self, model: str) -> tuple[float, float] | None:
        """The peak rates in the vendor's datasheet: (1e9 B/s, 1e12 op/s).  -> no_datasheet"""

    def child_options(self, deadlines: Mapping[str, float]) -> dict[str, Any]:
        """Additional options for `open_session`, derived from the deadlines of the phases.  -> no_options"""

    @property
    def granted(self) -> Callable[[Mapping[str, str], Sequence[str]], str] | None:
        """granted(environ, ids): the device that Ray assigned to an actor, as an id for `child_env`.  -> None: only the
        mask variable identifies it (farm.node.masks)"""

    #: Each call is captured in a separate child before its graph is timed; a call whose trial fails is timed by the
    #: fallback.  -> False
    TRIAL_CAPTURE: bool

    #: Capturing a graph may end the process: a death while a graph is timed is first attributed to the capture, and
    #: the cell is timed by the fallback.  -> False
    CAPTURE_MAY_KILL: bool

    #: The timing method for calls that cannot be captured in a graph.  -> FALLBACK_TIMING
    FALLBACK_TIMING: str

    #: Seconds to wait before a throttled or disturbed block is timed again, one entry per try.  -> PAUSES
    PAUSES: tuple[float, ...]

    #: Seconds that a device's memory may take to be freed after a child's end.  -> MEMORY_SECONDS
    MEMORY_SECONDS: float

    #: Why this version cannot run the backend yet.  -> ""
    NOT_YET: str


class Session(Protocol):
    """A child's open device.  Attributes that only some sessions have (`pipe`, `measurer`) are looked up by name."""

    target: dict[str, Any]
    device_name: str
    fingerprint: dict[str, Any]

    def run(self, message: Any, say: Callable[[Any], None]) -> Any:
        """One attempt, or one trial of its capture (farm.child.protocol)."""


class ChildSide(Protocol):
    """The side for the child."""

    def open_session(self, device_id: str, options: dict[str, Any]) -> Session:
        """Open the one visible device.  An exception with `owner` reports why that fails, and whose fault it is."""


class Backend(HostSide, ChildSide, Protocol):
    """A backend module."""


# defaults for the optional names

FALLBACK_TIMING = "events"
PAUSES: tuple[float, ...] = (0.5, 2.0)
MEMORY_SECONDS = 10.0


def nothing_to_lock(device_id: str, options: Mapping[str, Any]) -> str:
    return ""


def no_telemetry(device_id: str, options: Mapping[str, Any], spool: str) -> TelemetryReader | None:
    return None


def no_identity(device_id: str, options: Mapping[str, Any]) -> Identity | None:
    return None


def no_fault(text: str, code: int | None = None) -> Fault | None:
    return None


def no_health_check(device_id: str) -> str:
    return ""


def no_complaints() -> list[str]:
    return []


def no_datasheet(model: str) -> tuple[float, float] | None:
    return None


def no_options(deadlines: Mapping[str, float]) -> dict[str, Any]:
    return {}
