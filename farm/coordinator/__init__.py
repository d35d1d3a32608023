"""The edge around the scheduler: calls become events, actions become calls, and every event is journaled."""

from farm.coordinator.request import RunRequest
from farm.coordinator.run import execute

__all__ = ["RunRequest", "execute"]
