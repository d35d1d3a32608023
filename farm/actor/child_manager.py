"""The one child of a device: a living one when it is wanted, and what the present one has been used for.

A child is replaced when it has died, was ended, or may no longer serve what comes next; beside one that could not be
ended there is no other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from farm.actor import child_process
from farm.actor.device_setup import DeviceSetup
from farm.actor.spent import Spent
from farm.child import protocol
from farm.errors import DeviceUnfit
from farm.guard.device import Guard

if TYPE_CHECKING:
    from farm.backends import Fault


#: Stands above what a cell printed.
OUTPUT = "---- output of the cell ----"


class ChildManager:
    """`spawn_s`: how long a child may take to say that it is ready.  `stopping`: whether the actor is being stopped,
    which another thread may do at any moment."""

    def __init__(
        self,
        placed: DeviceSetup,
        guard: Guard,
        spawn_s: float,
        stopping: Callable[[], bool],
        spent: Spent | None = None,
    ):
        self._placed, self._guard, self._spawn_s, self._stopping = placed, guard, spawn_s, stopping
        self._spent = spent or Spent()
        self.current: child_process.Child | None = None
        #: What the last child said of its device; it stays when the child goes, for results that are under way.
        self.ready: protocol.Ready | None = None
        self.stuck = False  # one was not to be ended: beside it nothing can be measured
        self.profiled = False  # it has profiled: it may time by nothing else (farm.cell.SPENDING)
        self.served = False  # it has had a cell: what may end its process is tried in another one
        self.trials = 0  # that it has had
        self._arm = ""  # that it belongs to
        self.tool_output: Path | None = None  # what the tool writes that the last child ran under

    def ensure(self, *, profiled: bool = False) -> protocol.Ready:
        """A living child; `profiled` says whether one that has profiled will do.  NoChild where there can be none."""
        if (self.profiled and not profiled) or self._arm != self._placed.arm:
            self.replace()
        if self.current and self.current.usable and self.ready:
            return self.ready
        with self._spent.within("child"):
            return self._started()

    def _started(self) -> protocol.Ready:
        """A new child."""
        self.let_go()
        if self.stuck:
            raise child_process.NoChild(
                "the previous child could not be ended and may still hold the device", final=True
            )
        try:
            self._guard.before_child()
        except DeviceUnfit as reason:
            raise child_process.NoChild(str(reason), final=True) from None
        if self._stopping():
            raise child_process.NoChild("the device's actor is stopping")
        self._arm = self._placed.arm
        try:
            self.current = self._placed.child()
        except OSError as error:
            raise child_process.NoChild(f"the child could not be started ({error})") from None
        self.tool_output = self.current.tool_output
        if self._stopping():  # `stop` came in between and found no child to end
            self.current.kill(grace=0.5)
        try:
            said = child_process.greeting(self.current, self._spawn_s)
        except child_process.NoChild as reason:
            self.let_go()  # or one that was not to be ended either would be taken for a living child
            if self.stuck:
                raise child_process.NoChild(f"{reason}; the child could not be ended", final=True) from None
            raise
        not_taken = self._placed.subject_not_taken(said)
        if not_taken:
            self.replace()
            raise child_process.NoChild(not_taken, final=True, subject_refused=True)
        refused = self._placed.refused(said)
        if refused:
            self.replace()
            raise child_process.NoChild(refused, final=True)
        self.ready, self.profiled, self.served, self.trials = self._placed.completed(said), False, False, 0
        self._guard.child_ready(self.current.device_pid)
        return self.ready

    def fresh(self) -> child_process.Child:
        """One that has served no cell and has nothing left to say."""
        if self.current and (self.served or self.current.has_spoken):
            self.let_go()
        return self.child()

    def child(self, *, profiled: bool = False) -> child_process.Child:
        """`ensure`, and the child itself."""
        self.ensure(profiled=profiled)
        assert self.current is not None
        return self.current

    def replace(self) -> None:
        """End the child; `ensure` starts the next."""
        with self._spent.within("child"):
            if self.current:
                self.current.kill(grace=1.0)
            self.let_go()

    def let_go(self) -> None:
        """Part with the child."""
        if self.current:
            self.current.close()
            self.stuck = self.stuck or not self.current.gone
        self.current = None

    def last_words(self, error: child_process.ChildDied) -> Fault | None:
        """What the process that has died printed last means in the vendor's words."""
        return self._placed.fault(self.current.log_tail(since_order=True) if self.current else "", error.code)

    def log(self, trace: str = "") -> str:
        """`trace`, and what the cell has printed, with the paths that the author edits."""
        return "\n".join(part for part in (self._placed.as_written(trace), self.printed()) if part)

    def printed(self) -> str:
        """What the cell, and nobody else, has printed: since the last order.  Below a heading; "" for nothing."""
        text = self.current.printed_since_order() if self.current else ""
        return f"{OUTPUT}\n{self._placed.as_written(text)}" if text.strip() else ""
