"""Children that import torch and triton before they are needed, and wait: they have no device and nothing of a user's.

`farm run --watch` has them wait for its next run, while its user edits, and a single `farm run` has one wait while this
process imports what a run needs; each serves one run.  A lease of two arms has the second arm's child import beside the
first one's (`ArmAhead`): a round needs a new child for each arm, and most of the seconds that one takes to start are
imports (docs/compare.md).
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from farm.actor.child_process import Child
from farm.node.environment import MASKS, Environment
from farm.process.line_process import ChildDied, ChildTimedOut, LineProcess

#: Backends whose devices are opened by the session, and not by what a waiting child imports.
BACKENDS = ("cpu", "cuda", "rocm")
#: What an order sets: where is imported from, and which device is seen.
_ORDERED = {*MASKS, "PYTHONPATH", "FARM_PARENT"}
_Recipe = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]  # backend, import path, variables


class WaitingChildren:
    """Those of one process.  `fill` is for the thread that stays until `close`: a child ends with the thread that has
    started it."""

    def __init__(self, once: bool = False) -> None:
        self.once = once  # for a single run: what its first request does not fit is of no use
        self._idle: list[tuple[_Recipe, Child]] = []
        self._asked: Counter[_Recipe] = Counter()  # since the last `fill`
        self._lock = threading.Lock()

    def take(
        self,
        backend: str,
        env: Mapping[str, str],
        environment: Environment,
        spool: str,
        order: Mapping[str, Any],
        variables: Mapping[str, str | None] | None = None,
    ) -> Child | None:
        """One that has begun, with this environment and order; None if there is none.  `variables`: what it is to set
        (None: unset) in place of the masks of a device."""
        if backend not in BACKENDS or not environment.own:
            return None
        path = [p for p in env["PYTHONPATH"].split(os.pathsep) if p]
        recipe = backend, tuple(p for p in path if not p.startswith(spool)), tuple(sorted(_fixed(env).items()))
        with self._lock:
            self._asked[recipe] += 1
            fit = [child for of, child in self._idle if of == recipe and child.alive]
            child = fit[0] if len(fit) > (variables is not None) else None  # the device's own child comes first
            self._idle = [(of, other) for of, other in self._idle if other is not child]
        if child is None and self.once and variables is None:
            self.close()
        if child is not None:
            masks = {name: env.get(name) for name in MASKS}
            child.begin({**order, "variables": masks if variables is None else dict(variables), "path": path})
        return child

    def fill(self) -> None:
        """Start as many as were asked for since the last time."""
        self.close()
        asked, self._asked = self._asked, Counter()
        for recipe, count in asked.items():
            for _ in range(count):
                self._start(recipe)

    def expect(self, backend: str, env: Mapping[str, str], environment: Environment, count: int = 1) -> None:
        """Start `count` for a run that is about to ask for them with this environment."""
        path = tuple(p for p in env["PYTHONPATH"].split(os.pathsep) if p)
        for _ in range(count):
            self._start((backend, path, tuple(sorted(_fixed(env).items()))))

    def fits(self, backends: Collection[str]) -> bool:
        """Whether a run on these backends may take what waits here."""
        with self._lock:
            return not self.once or all(recipe[0] in backends for recipe, _ in self._idle)

    def at_most(self, count: int) -> None:
        """End those of which a run of so many devices has no use."""
        with self._lock:
            self._idle, over = self._idle[:count], self._idle[count:]
        for _, child in over:
            _end(child)

    def _start(self, recipe: _Recipe) -> None:
        backend, path, variables = recipe
        env = {**dict(variables), "PYTHONPATH": os.pathsep.join(path), "FARM_PARENT": str(os.getpid())}
        with suppress(OSError):  # then the run starts its own
            self._idle.append((recipe, Child(backend, "", {}, env, Environment(path=path), waits=True)))

    def close(self) -> None:
        """End those that were not taken."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, child in idle:
            _end(child)


class ArmAhead:
    """Children of the arms that are to come on one device.  For the thread that starts its children."""

    def __init__(self) -> None:
        self._of: dict[str, list[Child]] = {}  # arm

    def start(
        self, arm: str, backend: str, env: Mapping[str, str], environment: Environment, spool: str, count: int = 1
    ) -> None:
        """Have as many import as `count` lacks.  Nothing is started where no child may wait; what cannot be started is
        missed by nobody."""
        if backend not in BACKENDS or not environment.own:
            return
        path = [p for p in env["PYTHONPATH"].split(os.pathsep) if p and not p.startswith(spool)]
        first = {**env, "PYTHONPATH": os.pathsep.join(path)}
        with suppress(OSError):
            while self.count(arm) < count:
                child = Child(backend, "", {}, first, environment, spool=spool, waits=True)
                self._of.setdefault(arm, []).append(child)

    def count(self, arm: str) -> int:
        """How many wait for this arm."""
        return len(self._of.get(arm, ()))

    def take(self, arm: str, env: Mapping[str, str], order: Mapping[str, Any]) -> Child | None:
        """One of them, on its way; None where there is none that lives."""
        path = [p for p in env["PYTHONPATH"].split(os.pathsep) if p]
        while waiting_ones := self._of.get(arm):
            child = waiting_ones.pop(0)
            try:
                child.signal(signal.SIGCONT)
                child.begin({**order, "variables": {name: env.get(name) for name in MASKS}, "path": path})
                return child
            except (ChildDied, ChildTimedOut, OSError):
                _end(child)
        return None

    def signal(self, number: int) -> None:
        """To all that wait: they stand still while a cell is timed, whether they have imported all or not."""
        for children in self._of.values():
            for child in children:
                child.signal(number)

    def close(self) -> None:
        """End those that were not taken."""
        while self._of:
            for child in self._of.popitem()[1]:
                _end(child)


def _end(child: Child) -> None:
    child.kill(grace=0.0)
    LineProcess.close(child)  # it takes no message yet


def _fixed(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in _ORDERED}


#: Of this process, while `waiting` lasts.
_current: WaitingChildren | None = None


@contextmanager
def waiting(*, once: bool = False) -> Iterator[WaitingChildren]:
    """Runs of this process take waiting children as long as this lasts; if `once`, a single run does."""
    global _current
    children = _current = WaitingChildren(once)
    try:
        yield children
    finally:
        _current = None
        children.close()


def keep(backends: Collection[str]) -> None:
    """A single run begins, with children of this process for these backends: end the child that started ahead of it if
    it cannot be one of them."""
    if _current is not None and not _current.fits(backends):
        _current.close()


def at_most(count: int) -> None:
    """A single run has so many devices."""
    if _current is not None and _current.once:
        _current.at_most(count)


def take(*given: Any) -> Child | None:
    """`WaitingChildren.take` of this process's, where it has some."""
    return _current.take(*given) if _current is not None else None
