"""The available providers: the files of `farm/providers/`, and those that a user names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from farm.errors import InfraError, UsageError

from .document import suggest

ANY_OP = "*"


@dataclass(frozen=True)
class ProviderInfo:
    """What a matrix must know about a provider.  `ops` contains `*` if it accepts any op."""

    name: str
    role: str = "subject"  # or "peer"
    modes: tuple[str, ...] = ("auto",)
    ops: tuple[str, ...] = (ANY_OP,)
    declares: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # op -> declared parameter -> value
    op_modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of an op whose modes are its own
    #: op -> backend ("" for all others) -> the modes that there are there; only of ops that differ
    backend_modes: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    mode_pattern: str = ""  # what other modes than the named ones look like; "" where there are none

    def of(self, op: str) -> ProviderInfo:
        """The provider with its modes of `op`."""
        return replace(self, modes=self.op_modes[op]) if op in self.op_modes else self

    def takes(self, mode: str) -> bool:
        """Whether `mode` is one of its modes, or looks like one that it checks itself."""
        return mode in self.modes or bool(self.mode_pattern and re.fullmatch(self.mode_pattern, mode, re.ASCII))

    def does(self, op: str) -> bool:
        return op in self.ops or ANY_OP in self.ops


@lru_cache(maxsize=1)
def builtin_providers() -> Mapping[str, ProviderInfo]:
    """The providers in `farm/providers/`, by name; reads their constants, which need no torch."""
    package = import_module("farm.providers")
    found = {}
    for file in sorted(info.name for info in iter_modules(package.__path__)):
        module = import_module(f"farm.providers.{file}")
        if not hasattr(module, "NAME"):
            continue  # a helper, not a provider
        try:
            declares = getattr(module, "DECLARES", {})
            info = ProviderInfo(
                *(module.NAME, module.ROLE, tuple(module.MODES), tuple(module.OPS), declares),
                mode_pattern=getattr(module, "MODE_PATTERN", ""),
            )
        except AttributeError as error:
            message = f"farm/providers/{file}.py: {error}; a provider must define NAME, ROLE, MODES and OPS"
            raise InfraError(message, id="matrix-provider-module") from None
        found[info.name] = info
    return found


def extras_for(
    op: str,
    extra: Mapping[str, str],
    registry: Mapping[str, ProviderInfo],
    ops: Sequence[str] = (),
    subject: Mapping[str, ProviderInfo] | None = None,
) -> dict[str, ProviderInfo]:
    """The providers of `--provider [OP:]NAME=module:function` that apply to `op`: subjects with the one mode auto.

    `extra` maps `NAME` or `OP:NAME` to `module:function`.  The providers of a `subject` apply to their ops in the same
    way, and may have the name of a built-in one, which they replace.
    """
    found = {name: info for name, info in (subject or {}).items() if info.does(op)}
    for key in sorted(extra):
        only, _, name = key.rpartition(":")
        if name in registry or name in (subject or {}):
            whose = "a provider of the subject" if name in (subject or {}) else "a built-in provider"
            message = f'"{name}" is {whose}; choose another name'
            raise UsageError(f"--provider {key}: {message}", id="matrix-provider-builtin")
        if only and ops and only not in ops:
            message = f'there is no op "{only}"; {suggest(only, ops, "ops")}'
            raise UsageError(f"--provider {key}: {message}", id="matrix-provider-op")
        if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
            message = "a provider's name may contain only letters, digits, _ and -; choose another name"
            raise UsageError(f"--provider {key}: {message}", id="matrix-provider-name")
        if only in ("", op):
            found[name] = ProviderInfo(name)
    return found
