"""The edge around the scheduler: it turns calls into events and actions into calls, and journals every event."""

from farm.coordinator.request import RunRequest
from farm.coordinator.run import execute

__all__ = ["RunRequest", "execute"]
