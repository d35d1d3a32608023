"""Hardware families, one file each, found by its name.

A backend module has two sides.  The **host side** is what the supervisor and the coordinator ask; it opens no device:

    NAME, EVIDENCE, ACCELERATOR (bool), DEFAULT_TIMING, RESOURCE ({"num_gpus": 1} or {"farm_cpu": 1}: what Ray counts)
    detect() -> list[HostDevice]          devices of this host, by the vendor's tool, within a deadline
    child_env(device_id) -> dict          variables that show the child this one device
    physical_id(device_id, options) -> str           what its lock is named by on this host; "", or no such function:
                                                     nothing to lock
    telemetry(device_id, options, spool) -> Reader   clocks, power, errors (farm.guard.watch.Reader) for the
                                                     supervising side; None, or no such function: nothing can be read
    identity(device_id, options) -> Identity | None  what the device is, by the vendor's library or tool, before it is
                                                     opened; None, or no such function: nothing can be told
    fault(text, code=None) -> Fault | None           what the vendor's words mean: of an exception, or, with the exit
                                                     code, of the last output of a process that died.  Pure
    TRIAL_CAPTURE (bool, default False)              each call is captured in a child of its own before a graph of it
                                                     is timed; what does not come through is timed by the fallback
    CAPTURE_MAY_KILL (bool, default False)           capturing a graph may end the process: a death while a graph is
                                                     timed is taken for that first, and the cell timed by the fallback
    FALLBACK_TIMING (default "events")               the method that times what cannot be captured in a graph
    child_options(deadlines) -> dict                 more options for `open_session`, made of the phases' deadlines
    unfit(device_id) -> str                          why the vendor's own health check speaks against it; "" for fit
    granted(environ, ids) -> str                     the device that Ray gave an actor, as `child_env` wants it
    complaints() -> list of str                      what the vendor's library or tool says is wrong with this host
    peaks(model) -> (1e9 B/s, 1e12 op/s) | None      what the vendor's datasheet allows at most
    options(...)                          see the module

The **child side** runs in the vendor's environment: `open_session(index, options) -> Session`.
"""

from __future__ import annotations

import functools
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


@dataclass(frozen=True)
class Identity:
    """What a device is, as the supervising side reads it.  Empty or None: it cannot be read."""

    model: str = ""  # as the vendor's tool names the part: "NVIDIA GB200", "AMD Instinct MI300X", "Ascend910B3"
    uuid: str = ""  # of the device, or of the partition
    partition: str = ""  # "mig-1g.18gb", "cpx-nps4"; "" for a whole device in the vendor's default mode
    power_limit_w: int | None = None
    clocks: str = ""  # "locked-1980mhz" where an operator has set them; "" for the vendor's default policy
    driver: str = ""
    stack: str = ""  # ROCm's or CANN's version, or the newest CUDA that the driver serves
    module: str = ""  # equal for neighbours: partitions of one device, dies or devices of one module; "" for none known


@dataclass(frozen=True)
class Fault:
    """A vendor's words, understood."""

    status: str  # farm.cell.Status by value
    owner: str  # farm.cell.Owner by value
    what: str  # one clause for people, with the vendor's number
    lost: bool = False  # the process can use its device no more


def known() -> list[str]:
    """Every backend this farm has a file for, sorted."""
    return list(_files())


@functools.cache  # a coordinator asks twice a cell
def _files() -> tuple[str, ...]:
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def get(name: str) -> ModuleType:
    """The backend's module.  BackendError with the near miss if there is none."""
    if name not in known():
        import difflib

        near = difflib.get_close_matches(name, known(), 1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise BackendError(f'--backend: "{name}" is not a backend (known: {", ".join(known())}){hint}')
    return importlib.import_module(f"farm.backends.{name}")


def trial_capture(name: str) -> bool:
    """Whether the backend's devices want each capture tried in a child of its own first."""
    return bool(getattr(get(name), "TRIAL_CAPTURE", False))


def fallback_timing(name: str) -> str:
    """The method that times what cannot be captured in a graph on the backend's devices."""
    return str(getattr(get(name), "FALLBACK_TIMING", "events"))


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
