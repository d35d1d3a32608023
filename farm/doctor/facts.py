"""What is known of a host, as frozen data.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trial:
    """How one thing went in a process of its own.  `ended`: ok, missing (ImportError), failed (another exception),
    died (by exit code or signal), hung (past its deadline), skipped (no time was left)."""

    ended: str
    text: str = ""  # what was found, or why not
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.ended == "ok"

    def __str__(self) -> str:
        """Why it is not ok."""
        words = {"died": "its process ended with ", "hung": "did not answer within ", "skipped": "not looked at: "}
        return words.get(self.ended, "") + self.text


@dataclass(frozen=True)
class BackendFacts:
    """What was looked for of one backend, and what was there."""

    name: str
    accelerator: bool = False
    not_yet: str = ""  # why this version does not run it
    tool: str = ""  # the vendor's program that was looked for
    tool_path: str = ""  # "" where there is none
    tool_failure: str = ""  # what it said instead of an answer
    device_file: str = ""  # a file of the vendor's driver, if it is there
    devices: tuple[str, ...] = ()  # names


@dataclass(frozen=True)
class Space:
    """A folder to write in, or the nearest one that exists above it; bytes."""

    path: str
    free: int = 0
    total: int = 0
    failure: str = ""  # why nothing can be written there


@dataclass(frozen=True)
class Facts:
    """Everything that `examine` asks for."""

    python: tuple[int, ...]
    executable: str
    farm: str
    packages: Mapping[str, str | None]  # distribution -> version, None where it is not installed
    trials: Mapping[str, Trial]  # torch, triton, ray, accelerator, kernels, and `provider NAME`
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
    python_header: bool
    variables: Mapping[str, str]  # the named environment variables that are set; of secrets only that they are
    ray_written: str  # what Ray's address file says
    ray_file: str
    ray_silent: str | None  # why nothing can be joined there
    now: float  # unix seconds
    newest_source: float  # of the farm's own files
