"""Moved: contracts import from `farm.contracts`.  Kept for one release; not part of the wheel `farm-kernels`."""

from typing import Any


def __getattr__(name: str) -> Any:
    from farm.contracts import base  # only when used: the kernels need nothing of the farm

    return getattr(base, name)
