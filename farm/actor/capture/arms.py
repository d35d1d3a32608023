"""What is known of a device's captures, of each arm: what one arm's code can capture says nothing of another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.actor.capture.cache import CaptureCache
from farm.actor.capture.fallback import CapturePolicy
from farm.actor.device_setup import DeviceSetup
from farm.cell import spends


class ArmCaptures:
    """`policy`: that of the arm in use."""

    def __init__(self, placed: DeviceSetup):
        self._placed = placed
        #: Of each arm, with what trials found, for the next actor of this device.
        self._of_arms: dict[str, tuple[CapturePolicy, CaptureCache | None]] = {}
        self.policy, self._notes = self._known({})

    def use(self, fingerprint: Mapping[str, Any]) -> None:
        """From now on `policy` is of the arm that the device's setup has in use.  `fingerprint`: of the device, {}
        where it is not known."""
        self.policy, self._notes = self._known(fingerprint)

    def _known(self, fingerprint: Mapping[str, Any]) -> tuple[CapturePolicy, CaptureCache | None]:
        placed = self._placed
        found = self._of_arms.get(placed.arm)
        if found is None:
            policy = CapturePolicy(placed.fallback_timing, placed.capture_may_kill, trial=placed.trial_capture)
            if not fingerprint:
                return policy, None
            of = {**fingerprint, **({"arm": placed.arm} if placed.arm else {})}
            notes = CaptureCache(placed.config["spool"], of) if placed.trial_capture else None
            if notes:
                policy.learn(notes.read())
            found = self._of_arms[placed.arm] = policy, notes
        return found

    def note(self) -> None:
        """Keep what trials found."""
        if self._notes:
            self._notes.write(self.policy.known)

    def spends(self, attempt: Mapping[str, Any]) -> bool:
        """Whether the attempt's timing leaves a child that may time by no other method."""
        return spends(self.policy.method(attempt["cell"]))
