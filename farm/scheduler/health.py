"""When a device has failed too often to be started again.  `core` also retires devices that are drained, or whose actor
reports that a new one would not help."""

from __future__ import annotations

MAX_DEVICE_FAULTS = 3


def retires(faults: int) -> bool:
    """Whether a device has failed too often in this run to be started again."""
    return faults >= MAX_DEVICE_FAULTS
