"""Decides which device runs which cell next.  Pure.

`core` decides; `leases` says how much work a device gets at once, `health` how far it can be trusted with any; `events`
defines the inputs and actions, `state` what is known about devices and cells, and `workqueue` the order of waiting
cells.
"""

from farm.scheduler.core import MAX_ATTEMPTS, Scheduler
from farm.scheduler.leases import LEASE_SECONDS, MAX_LEASE_CELLS

__all__ = ["LEASE_SECONDS", "MAX_ATTEMPTS", "MAX_LEASE_CELLS", "Scheduler"]
