"""Hardware families, one file each, found by its name.

A backend module has two sides.  The **host side** is what the supervisor and the coordinator ask; it opens no device:

    NAME, EVIDENCE, ACCELERATOR (bool), DEFAULT_TIMING, RESOURCE ({"num_gpus": 1} or {"farm_cpu": 1}: what Ray counts)
    detect() -> list[HostDevice]          devices of this host, by the vendor's tool, within a deadline
    child_env(device_id) -> dict          variables that show the child this one device
    physical_id(device_id, options) -> str           what its lock is named by on this host; "", or no such function:
                                                     nothing to lock
    telemetry(device_id, options, spool) -> Reader   clocks, power, errors (farm.guard.watch.Reader) for the
                                                     supervising side; None, or no such function: nothing can be read
    options(...)                          see the module

The **child side** runs in the vendor's environment: `open_session(index, options) -> Session`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from farm.errors import BackendError


@dataclass(frozen=True)
class HostDevice:
    """One accelerator as the host sees it before anybody opens it."""

    id: str  # what the vendor's mask variable takes
    name: str
    uuid: str = ""


def known() -> list[str]:
    """Every backend this farm has a file for, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def get(name: str) -> ModuleType:
    """The backend's module.  BackendError with the near miss if there is none."""
    if name not in known():
        import difflib

        near = difflib.get_close_matches(name, known(), 1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise BackendError(f'--backend: "{name}" is not a backend (known: {", ".join(known())}){hint}')
    return importlib.import_module(f"farm.backends.{name}")


def usable(name: str) -> ModuleType:
    """The backend's module, refusing one that this version knows but cannot run yet."""
    module = get(name)
    why: str | None = getattr(module, "NOT_YET", None)
    if why:
        raise BackendError(why)
    return module


def accelerators() -> list[str]:
    """Backends that count when none is named, by name."""
    return [n for n in known() if getattr(get(n), "ACCELERATOR", False) and not getattr(get(n), "NOT_YET", None)]


Options = Mapping[str, Any]
