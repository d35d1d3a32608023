"""What is known of a host, as frozen data.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trial:
    """How one thing went in a process of its own.  `ended`: ok, missing (ImportError), failed (another exception),
    died (by exit code or signal), hung (past its deadline), skipped (no time was left, or nobody asked)."""

    ended: str
    text: str = ""  # what was found, or why not
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.ended == "ok"

    @property
    def tried(self) -> bool:
        return self != SKIPPED

    def __str__(self) -> str:
        """Why it is not ok."""
        words = {"died": "its process ended with ", "hung": "did not answer within ", "skipped": "not looked at: "}
        return words.get(self.ended, "") + self.text


SKIPPED = Trial("skipped", "nobody asked")


@dataclass(frozen=True)
class Asked:
    """What the doctor was asked for.  `backend`: only what matters for that one, and it has to be there; `head`: this
    host shall join the cluster there (HOST:PORT); `environment`: only that one of the node's; `join`: `farm nodes join`
    asks, so that what a run alone needs is left out."""

    backend: str = ""
    head: str = ""
    environment: str = ""
    join: bool = False


@dataclass(frozen=True)
class DeviceFile:
    """A file of a vendor's driver.  `denied`: this user may not read and write it; `group`: whose it is."""

    path: str
    denied: bool = False
    group: str = ""


@dataclass(frozen=True)
class Device:
    """One device as its backend's host side sees it.  `identity`: `farm.backends.Identity` as a mapping, or None."""

    id: str
    name: str
    uuid: str = ""
    identity: Mapping[str, Any] | None = None
    processes: tuple[tuple[int, str], ...] = ()  # (pid, name) of whom computes on it
    holder: str = ""  # which farm has locked it
    unfit: str = ""  # why the vendor's tool says that it must not be used


@dataclass(frozen=True)
class BackendFacts:
    """What was looked for of one backend, and what was there."""

    name: str
    accelerator: bool = False
    not_yet: str = ""  # why this version does not run it
    tool: str = ""  # the vendor's program that was looked for
    tool_path: str = ""  # "" where there is none
    tool_failure: str = ""  # what it said instead of an answer
    pci: int = 0  # devices of the vendor on the bus
    driver: str = ""  # the file that says that the driver is loaded
    files: tuple[DeviceFile, ...] = ()
    missing_files: tuple[str, ...] = ()  # what of the driver's files is not there, where some are
    devices: tuple[Device, ...] = ()
    failure: str = ""  # why the backend could not even look
    complaints: tuple[str, ...] = ()  # what its library says is wrong, with what to do
    mig: str = ""  # NVIDIA: "Enabled" where some device is divided
    stack_folder: str = ""  # where the vendor's stack is installed (/opt/rocm, the CANN toolkit)
    stack: str = ""  # its version, as its own file says
    lock_trouble: str = ""  # why no device can be locked


@dataclass(frozen=True)
class Environment:
    """A Python that children run in, and what it can import.  `failure`: why it cannot even be asked."""

    name: str
    own: bool = True  # the supervisor's own Python
    command: str = ""  # for people
    failure: str = ""
    missing_program: str = ""  # of its command
    trials: Mapping[str, Trial] = field(default_factory=dict)

    def trial(self, step: str) -> Trial:
        return self.trials.get(step, SKIPPED)


@dataclass(frozen=True)
class Space:
    """A folder to write in, or the nearest one that exists above it; bytes."""

    path: str
    free: int = 0
    total: int = 0
    failure: str = ""  # why nothing can be written there


@dataclass(frozen=True)
class Token:
    """Ray's shared secret, but for itself.  `source`: the variable or file that gives it, "" where nothing does."""

    mode: str | None = None  # RAY_AUTH_MODE
    source: str = ""
    failure: str = ""  # why it cannot be read
    exposed: bool = False  # its file can be read by others than its owner
    spaces: bool = False  # begins or ends with white space
    illegal: bool = False  # holds what no HTTP header may
    differs: bool = False  # RAY_AUTH_TOKEN and the file of RAY_AUTH_TOKEN_PATH are not the same


@dataclass(frozen=True)
class Head:
    """What answers where the head should be.  `kind`: see `farm.address.reach`; "" where Ray's port answers."""

    address: str
    kind: str = ""
    reason: str = ""
    trial: Trial = SKIPPED
    loopback: bool = False


@dataclass(frozen=True)
class Node:
    """The node's own configuration."""

    file: str = ""
    failure: str = ""
    backend: str = ""
    expect: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    simulates: bool = False


@dataclass(frozen=True)
class System:
    """The host itself.  Limits: None for unlimited or unreadable; bytes unless said otherwise."""

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


@dataclass(frozen=True)
class Facts:
    """Everything that `examine` asks for."""

    python: tuple[int, ...]
    executable: str
    farm: str
    packages: Mapping[str, str | None]  # distribution -> version, None where it is not installed
    trials: Mapping[str, Trial]  # in the supervisor's Python, with its variables: ray, amdsmi, acl
    environments: tuple[Environment, ...]  # that of a run that names none first
    peers: Mapping[str, str]  # provider -> distribution to install, "" where it needs none
    backends: tuple[BackendFacts, ...]
    our_kernels: str
    foreign_kernels: str | None
    memory: Space | None  # /dev/shm
    store: Space
    scratch: Space  # where Ray keeps its sessions
    cache: Space  # where inputs and references are kept between runs
    cxx: str | None
    cc: str | None
    variables: Mapping[str, str]  # the named environment variables that are set; of secrets only that they are
    ray_address_silent: str | None  # why nothing can be joined at RAY_ADDRESS
    ray_written: str  # what Ray's address file says
    ray_file: str
    ray_silent: str | None  # why nothing can be joined there
    token: Token
    head: Head | None
    node: Node
    system: System
    now: float  # unix seconds
    newest_source: float  # of the farm's own files
    asked: Asked = Asked()

    def trial(self, step: str) -> Trial:
        return self.trials.get(step, SKIPPED)

    def needs(self, backend: str) -> bool:
        """Whether that backend has to be here: it was asked for, or the node's configuration says so."""
        return backend in (self.asked.backend, "" if self.node.simulates else self.node.backend)

    def backend(self, name: str) -> BackendFacts | None:
        return next((b for b in self.backends if b.name == name), None)
