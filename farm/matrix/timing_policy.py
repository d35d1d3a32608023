"""Which timing policy a cell gets: the backend's own, changed by what the matrix states."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from farm import backends as farm_backends
from farm.cell import Timing


@cache
def default_timing(backend: str) -> Timing:
    """A backend's own policy, used if the matrix gives none."""
    return Timing(method=farm_backends.get(backend).DEFAULT_TIMING)


def untimed(backend: str) -> bool:
    """Whether a backend is never timed, whatever a matrix asks for: the interpreter's time is not a kernel's time."""
    return default_timing(backend).method == "none"


def resolve_timing(backend: str, spec: Mapping[str, Any]) -> Timing:
    """The policy that `spec` (the fields that the matrix gives) means on `backend`."""
    if untimed(backend):
        return Timing()
    timing = Timing(**{"method": default_timing(backend).method, **spec})
    return Timing() if timing.method == "none" else timing  # nothing is sampled, so the other fields have no meaning
