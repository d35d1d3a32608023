"""Hardware families, one file each, found by its name: the registry.

What a backend module offers is `farm.backends.api`: `HostSide` for the supervisor, `ChildSide` for the child.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, cast

from farm.backends.api import Backend, Fault, HostDevice, Identity
from farm.errors import BackendError

__all__ = [
    "Backend",
    "Fault",
    "HostDevice",
    "Identity",
    "accelerators",
    "fallback_timing",
    "get",
    "known",
    "trial_capture",
    "usable",
]

if TYPE_CHECKING:  # each file is held to the protocol by mypy
    from farm.backends import ascend, cpu, cuda, rocm, sim

    _ASCEND: Backend = ascend
    _CPU: Backend = cpu
    _CUDA: Backend = cuda
    _ROCM: Backend = rocm
    _SIM: Backend = sim


def known() -> list[str]:
    """Every backend this farm has a file for, sorted."""
    return list(_files())


#: What people call hardware -> the backends that it may mean.
_BY_VENDOR = {
    "gpu": ("cuda", "rocm"),
    **dict.fromkeys(("nvidia", "nv", "ptx"), ("cuda",)),
    **dict.fromkeys(("amd", "hip", "amdgpu"), ("rocm",)),
    **dict.fromkeys(("npu", "cann", "huawei"), ("ascend",)),
    **dict.fromkeys(("interpreter", "host"), ("cpu",)),
}


@functools.cache  # a coordinator asks twice a cell
def _files() -> tuple[str, ...]:
    names = (m.name for m in pkgutil.iter_modules(__path__))
    return tuple(sorted(n for n in names if n != "api" and not n.startswith("_")))


def get(name: str) -> Backend:
    """The backend's module.  BackendError, with the closest name, if there is none."""
    if name not in known():
        import difflib

        near = _BY_VENDOR.get(name.lower()) or difflib.get_close_matches(name.lower(), known(), 1)
        names = " or ".join(f'"{n}"' for n in near)
        hint = f"did you mean {names}?" if names else f"available: {', '.join(known())}"
        raise BackendError(f'--backend: "{name}" is not a backend; {hint}', id="backend-unknown")
    return cast(Backend, importlib.import_module(f"farm.backends.{name}"))


def trial_capture(name: str) -> bool:
    """Whether the backend's devices want each capture tried in a child of its own first."""
    return get(name).TRIAL_CAPTURE


def fallback_timing(name: str) -> str:
    """The method that times what cannot be captured in a graph on the backend's devices."""
    return get(name).FALLBACK_TIMING


def usable(name: str) -> Backend:
    """The backend's module, refusing one that this version knows but cannot run yet."""
    module = get(name)
    if module.NOT_YET:
        raise BackendError(module.NOT_YET, id="backend-not-yet")
    return module


def accelerators() -> list[str]:
    """Backends that count when none is named, by name."""
    return [n for n in known() if get(n).ACCELERATOR and not get(n).NOT_YET]
