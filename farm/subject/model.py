"""What a `farm.yaml` says, as frozen types.  Pure: paths are text, as the file has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

FILE = "farm.yaml"
AUTOGRAD = "autograd"


@dataclass(frozen=True)
class Build:
    """A command that makes the subject, and what it gives: one wheel or one folder, by a pattern.  `inputs`: the files
    and folders whose content decides whether it must run again."""

    command: str
    inputs: tuple[str, ...]
    gives: str
    minutes: float


@dataclass(frozen=True)
class Source:
    """Where the subject's files come from: a folder of the repository (`path`), with `over` laid over what is
    installed; a build, over whose result `path`, if given, is laid; or a published release (`name==version`).

    `modules`: the top-level packages and modules that are the subject.  Empty for a release or build: all of the wheel.
    `where`: file and line of the overlay, for messages.
    """

    modules: tuple[str, ...] = ()
    path: str | None = None
    over: bool = False
    build: Build | None = None
    release: str = ""
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class OpEntry:
    """How a provider does one op.  `modes`: listed; `asks`: `module:function` that lists them, called in a child.
    `where`: file and line and path of the entry, for messages."""

    call: str
    modes: tuple[str, ...] = ("auto",)
    asks: str = ""
    backward: str = AUTOGRAD
    declares: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""

    def with_modes(self, modes: tuple[str, ...]) -> OpEntry:
        """The entry once its function was asked."""
        return replace(self, modes=modes, asks="")


@dataclass(frozen=True)
class Override:
    """What differs on one backend: of an op its `call` and `backward` ("" for as elsewhere), the modes that there are
    there, and variables of the child's process."""

    ops: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SubjectProvider:
    """One provider: its ops, and what differs on a backend."""

    name: str
    role: str
    ops: Mapping[str, OpEntry]
    backends: Mapping[str, Override] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A whole file.  `folder`: where it lies, and its adapters, contracts and matrices with it."""

    file: str
    folder: str
    sha256: str
    name: str
    source: Source
    providers: Mapping[str, SubjectProvider]
    contracts: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()
    selection: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()  # the repository's own pytest files and folders, relative to its root
    benchmarks: tuple[str, ...] = ()  # its files with triton.testing.perf_report

    def entries(self) -> list[tuple[SubjectProvider, str, OpEntry]]:
        """Every provider's every op."""
        return [(p, op, entry) for p in self.providers.values() for op, entry in p.ops.items()]

    def paths(self) -> list[tuple[str, str]]:
        """(`module:function`, where it is named) of everything that a child is to call."""
        found: list[tuple[str, str]] = []
        for provider, op, entry in self.entries():
            found += [(path, entry.where) for path in (entry.call, entry.asks) if path]
            found += [(entry.backward, entry.where)] if entry.backward != AUTOGRAD else []
            for override in provider.backends.values():
                found += [(path, entry.where) for path in override.ops.get(op, ()) if path and path != AUTOGRAD]
        return list(dict(found).items())

    def variables(self, backend: str) -> dict[str, str]:
        """What the children of a backend get, of all providers; the reader refuses two values for one name."""
        found: dict[str, str] = {}
        for provider in self.providers.values():
            found |= provider.backends.get(backend, Override()).variables
        return found
