"""The one child of a device: a living one when it is wanted, and what the present one has been used for.

A child is replaced when it has died, was ended, or may no longer serve what comes next; beside one that could not be
ended there is no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from farm.actor import supervise
from farm.actor.placed import Placed
from farm.child import protocol
from farm.guard.device import Guard, Unfit

if TYPE_CHECKING:
    from farm.backends import Fault


class Children:
    """`spawn_s`: how long a child may take to say that it is ready.  `stopping`: whether the actor is being stopped,
    which another thread may do at any moment."""

    def __init__(self, placed: Placed, guard: Guard, spawn_s: float, stopping: Callable[[], bool]):
        self._placed, self._guard, self._spawn_s, self._stopping = placed, guard, spawn_s, stopping
        self.current: supervise.Child | None = None
        #: What the last child said of its device; it stays when the child goes, for results that are under way.
        self.ready: protocol.Ready | None = None
        self.stuck = False  # one was not to be ended: beside it nothing can be measured
        self.profiled = False  # it has profiled: it may time by nothing else (farm.timing.methods)
        self.served = False  # it has had a cell: what may end its process is tried in another one
        self.trials = 0  # that it has had

    def ensure(self, *, profiled: bool = False) -> protocol.Ready:
        """A living child; `profiled` says whether one that has profiled will do.  NoChild where there can be none."""
        if self.profiled and not profiled:
            self.replace()
        if self.current and self.current.alive and self.ready:
            return self.ready
        self.let_go()
        if self.stuck:
            raise supervise.NoChild("the child before could not be ended, and may have the device still", final=True)
        try:
            self._guard.before_child()
        except Unfit as reason:
            raise supervise.NoChild(str(reason), final=True) from None
        if self._stopping():
            raise supervise.NoChild("its actor is being stopped")
        try:
            self.current = self._placed.child()
        except OSError as error:
            raise supervise.NoChild(f"its child could not be started ({error})") from None
        if self._stopping():  # `stop` came in between and found no child to end
            self.current.kill(grace=0.5)
        try:
            said = supervise.greeting(self.current, self._spawn_s)
        except supervise.NoChild as reason:
            self.let_go()  # or one that was not to be ended either would be taken for a living child
            if self.stuck:
                raise supervise.NoChild(f"{reason}; it could not be ended", final=True) from None
            raise
        refused = self._placed.refused(said)
        if refused:
            self.replace()
            raise supervise.NoChild(refused, final=True)
        self.ready, self.profiled, self.served, self.trials = self._placed.completed(said), False, False, 0
        self._guard.child_ready(self.current.device_pid)
        return self.ready

    def fresh(self) -> supervise.Child:
        """One that has served no cell and has nothing left to say."""
        if self.current and (self.served or self.current.has_spoken):
            self.let_go()
        return self.child()

    def child(self, *, profiled: bool = False) -> supervise.Child:
        """`ensure`, and the child itself."""
        self.ensure(profiled=profiled)
        assert self.current is not None
        return self.current

    def replace(self) -> None:
        """End the child; `ensure` starts the next."""
        if self.current:
            self.current.kill(grace=1.0)
        self.let_go()

    def let_go(self) -> None:
        """Part with the child."""
        if self.current:
            self.current.close()
            self.stuck = self.stuck or not self.current.gone
        self.current = None

    def last_words(self, error: supervise.ChildDied) -> Fault | None:
        """What the process that has died printed last means in the vendor's words."""
        return self._placed.fault(self.current.log_tail(since_order=True) if self.current else "", error.code)

    def log(self, trace: str = "") -> str:
        """`trace`, and the end of what the child has printed."""
        tail = self.current.log_tail() if self.current else ""
        return "\n".join(part for part in (trace, tail) if part)
