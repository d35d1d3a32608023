"""Decides which device runs which cell next.  Pure.

`core` decides, with `granting`, `trust` and `stopping` over the state in `base`; `leases` says how much work a device
gets at once, `health` how far it can be trusted with any; `events` defines the inputs and actions, `state` what is
known about devices and cells, and `workqueue` the order of waiting cells.
"""

from farm.scheduler.base import MAX_ATTEMPTS
from farm.scheduler.core import Scheduler
from farm.scheduler.leases import LEASE_SECONDS, MAX_LEASE_CELLS

__all__ = ["LEASE_SECONDS", "MAX_ATTEMPTS", "MAX_LEASE_CELLS", "Scheduler"]
