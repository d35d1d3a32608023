"""Who runs what next.  Pure.

`core` decides; `events` is the vocabulary that goes in and comes out, `standing` what is known of a device and a cell,
`workqueue` the order of what waits.
"""

from farm.scheduler.core import LEASE_SECONDS, MAX_ATTEMPTS, MAX_DEVICE_FAULTS, MAX_LEASE_CELLS, Scheduler

__all__ = ["LEASE_SECONDS", "MAX_ATTEMPTS", "MAX_DEVICE_FAULTS", "MAX_LEASE_CELLS", "Scheduler"]
