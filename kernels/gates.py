"""Moved to `farm.contracts.gates`.  Kept for one release; not part of the wheel `farm-kernels`."""

from typing import Any


def __getattr__(name: str) -> Any:
    from farm.contracts import gates  # only when used: the kernels need nothing of the farm

    return getattr(gates, name)
