"""What is known about a host, as frozen data.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.cluster.ray_token import TokenFacts
from farm.process.steps import SKIPPED, ProbeResult


@dataclass(frozen=True)
class Asked:
    """What the doctor was asked to check.  `backend`: only what matters for this backend, which must be present;
    `head`: whether this host can join the cluster there (HOST:PORT); `environment`: only this environment of the node;
    `join`: the check is made by `farm nodes join`, and leaves out what only a run needs."""

    backend: str = ""
    head: str = ""
    environment: str = ""
    join: bool = False


@dataclass(frozen=True)
class DeviceFile:
    """A file of a vendor's driver.  `denied`: this user cannot read and write it; `group`: the group that owns it."""

    path: str
    denied: bool = False
    group: str = ""


@dataclass(frozen=True)
class DeviceFacts:
    """One device as its backend's host side lists it.  `identity`: `farm.backends.Identity` as a mapping, or None."""

    id: str
    name: str
    uuid: str = ""
    identity: Mapping[str, Any] | None = None
    processes: tuple[tuple[int, str], ...] = ()  # (pid, name) of each process that computes on it
    holder: str = ""  # which farm has locked it
    unfit: str = ""  # why the vendor's tool says that it must not be used


@dataclass(frozen=True)
class BackendFacts:
    """What was looked for of one backend, and what was found."""

    name: str
    accelerator: bool = False
    not_yet: str = ""  # why this version does not run it
    tool: str = ""  # the vendor's program that was looked for
    tool_path: str = ""  # "" where there is none
    tool_failure: str = ""  # what it printed instead of an answer
    pci: int = 0  # devices of the vendor on the bus
    driver: str = ""  # the file that says that the driver is loaded
    files: tuple[DeviceFile, ...] = ()
    missing_files: tuple[str, ...] = ()  # files of the driver that are missing, where some exist
    devices: tuple[DeviceFacts, ...] = ()
    failure: str = ""  # why the backend could not list its devices
    complaints: tuple[str, ...] = ()  # problems that its library reports, with their cures
    mig: str = ""  # NVIDIA: "Enabled" where some device is divided
    stack_folder: str = ""  # where the vendor's stack is installed (/opt/rocm, the CANN toolkit)
    stack: str = ""  # its version, from its own file
    lock_trouble: str = ""  # why no device can be locked


@dataclass(frozen=True)
class EnvironmentFacts:
    """A Python that children run in, and what it can import.  `failure`: why it cannot be started."""

    name: str
    own: bool = True  # the supervisor's own Python
    command: str = ""  # for people
    failure: str = ""
    missing_program: str = ""  # of its command
    trials: Mapping[str, ProbeResult] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()  # names of the host's variables that its children do not get
    sandboxed: bool = False  # its children are to run in a sandbox

    def trial(self, step: str) -> ProbeResult:
        return self.trials.get(step, SKIPPED)


@dataclass(frozen=True)
class SpaceFacts:
    """A folder to write in, or the nearest one that exists above it; bytes."""

    path: str
    free: int = 0
    total: int = 0
    failure: str = ""  # why nothing can be written there


@dataclass(frozen=True)
class HeadFacts:
    """What answers where the head should be.  `kind`: see `farm.cluster.address.reach`; "" where Ray's port answers."""

    address: str
    kind: str = ""
    reason: str = ""
    trial: ProbeResult = SKIPPED
    loopback: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """The node's own configuration."""

    file: str = ""
    failure: str = ""
    backend: str = ""
    expect: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    simulates: bool = False


@dataclass(frozen=True)
class SystemFacts:
    """The host itself.  Limits: None for unlimited or unreadable; bytes unless stated otherwise."""

    open_files: int | None = None
    processes: int | None = None
    locked_memory: int | None = None
    core_files: bool = False  # a crash leaves one, in the process's folder
    memory_limit: int | None = None  # of this container or service
    memory_available: int | None = None
    swap_used: int = 0
    hostname: str = ""
    addresses: tuple[str, ...] = ()
    hostname_failure: str = ""
    clock_synchronised: bool | None = None
    governor: str = ""
    numa_balancing: str = ""
    unsandboxed: str = ""  # why no child can run in a sandbox here


@dataclass(frozen=True)
class Facts:
    """Everything that `examine` needs."""

    python: tuple[int, ...]
    executable: str
    farm: str
    packages: Mapping[str, str | None]  # distribution -> version, None where it is not installed
    trials: Mapping[str, ProbeResult]  # in the supervisor's Python, with its variables: ray, amdsmi, acl
    environments: tuple[EnvironmentFacts, ...]  # first the one that a run uses by default
    peers: Mapping[str, str]  # provider -> distribution to install, "" where it needs none
    backends: tuple[BackendFacts, ...]
    our_kernels: str
    foreign_kernels: str | None
    memory: SpaceFacts | None  # /dev/shm
    store: SpaceFacts
    scratch: SpaceFacts  # where Ray keeps its sessions
    cache: SpaceFacts  # the disk that holds large inputs and references, and what was compiled
    cxx: str | None
    cc: str | None
    variables: Mapping[str, str]  # the named environment variables that are set; of secrets only that they are set
    ray_address_silent: str | None  # why nothing can be joined at RAY_ADDRESS
    ray_written: str  # the address in Ray's address file
    ray_file: str
    ray_silent: str | None  # why nothing can be joined there
    token: TokenFacts
    head: HeadFacts | None
    node: NodeFacts
    system: SystemFacts
    now: float  # unix seconds
    newest_source: float  # of the farm's own files
    asked: Asked = Asked()

    def trial(self, step: str) -> ProbeResult:
        return self.trials.get(step, SKIPPED)

    def needs(self, backend: str) -> bool:
        """Whether that backend must be present: it was requested, or the node's configuration names it."""
        return backend in (self.asked.backend, "" if self.node.simulates else self.node.backend)

    def backend(self, name: str) -> BackendFacts | None:
        return next((b for b in self.backends if b.name == name), None)
