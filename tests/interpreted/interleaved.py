"""Programs of a launch that run side by side in the interpreter, which would run one after the other.

Each program is a thread, and one of them has the baton.  It may change hands where programs can meet: before each
atomic.  Who gets it next is drawn from a seed, so an order of events can be had again.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import random
import threading
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from farm.child import interpreter

#: Seconds after which a launch that has not ended is taken for one that never will.
DEADLINE = 60.0


class Baton:
    """Runs functions as threads, one at a time."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._turns: dict[int, threading.Semaphore] = {}  # of those who are not done
        self._ended = threading.Event()
        self._errors: list[BaseException] = []
        self._me = threading.local()
        self.changes = 0

    def run(self, jobs: dict[int, Callable[[], Any]]) -> None:
        """All jobs to their ends; the first error of any is raised.  TimeoutError after DEADLINE."""
        self._ended.clear()
        self._turns = {number: threading.Semaphore(0) for number in jobs}
        threads = [threading.Thread(target=self._run, args=job, daemon=True) for job in jobs.items()]
        for thread in threads:
            thread.start()
        self._hand_over()
        if not self._ended.wait(DEADLINE):
            raise TimeoutError(f"programs {sorted(self._turns)} have not ended after {DEADLINE:.0f} s")
        if self._errors:
            raise self._errors[0]

    def may_change(self) -> None:
        """Called by who has the baton; comes back when it has it again.  Nothing in a thread that is none of ours."""
        number = getattr(self._me, "number", None)
        if number is None or len(self._turns) < 2:
            return
        builder = interpreter.interp.interpreter_builder
        mine = builder.grid_idx
        self._hand_over()
        self._turns[number].acquire()
        builder.grid_idx = mine

    def _hand_over(self) -> None:
        self.changes += 1
        self._turns[self._draw.choice(sorted(self._turns))].release()

    def _run(self, number: int, job: Callable[[], Any]) -> None:
        self._me.number = number
        self._turns[number].acquire()
        try:
            with np.errstate(all="ignore"):
                job()
        except BaseException as error:
            self._errors.append(error)
        del self._turns[number]
        if self._turns:
            self._hand_over()
        else:
            self._ended.set()


@contextlib.contextmanager
def interleaved(name: str, seed: int, never: Collection[int] = ()) -> Iterator[Baton]:
    """Inside, the programs of each launch of the kernel `name` run side by side, but for those that `never` run."""
    interp = interpreter.interp
    baton = Baton(random.Random(seed))
    prepare, atomic = interp.GridExecutor.__init__, interp.InterpreterBuilder.create_atomic_rmw

    def prepared(self: Any, fn: Any, *rest: Any, **more: Any) -> None:
        prepare(self, fn, *rest, **more)
        if fn.__name__ == name:
            self.fn = _collected(fn, baton, never)

    def watched(self: Any, *args: Any) -> Any:
        baton.may_change()
        return atomic(self, *args)

    interp.GridExecutor.__init__ = prepared
    interp.InterpreterBuilder.create_atomic_rmw = watched
    try:
        yield baton
    finally:
        interp.GridExecutor.__init__ = prepare
        interp.InterpreterBuilder.create_atomic_rmw = atomic


def _collected(fn: Any, baton: Baton, never: Collection[int]) -> Any:
    """In the place of a kernel: notes a launch's programs, and with its last one runs them all."""
    builder = interpreter.interp.interpreter_builder
    jobs: dict[int, Callable[[], Any]] = {}

    def job(place: Any, args: dict[str, Any]) -> Callable[[], Any]:
        def run() -> None:
            builder.grid_idx = place
            fn(**args)

        return run

    def collect(args: dict[str, Any]) -> None:
        jobs[len(jobs)] = job(builder.grid_idx, args)
        if len(jobs) == math.prod(int(n) for n in builder.grid_dim):
            baton.run({number: one for number, one in jobs.items() if number not in never})

    def program(**args: Any) -> None:
        collect(args)

    # Triton looks into the globals of a kernel for its language, and at its arguments' names.
    made = types.FunctionType(program.__code__, fn.__globals__, fn.__name__, None, program.__closure__)
    made.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    return made
