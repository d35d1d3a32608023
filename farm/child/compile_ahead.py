"""A process that compiles kernels of cells that are to come, on cores that nobody else needs, and opens no device.

Started and confined as a child of the same arm, it runs the cells' calls on tensors without memory and with a driver
that launches nothing, so that Triton compiles what the child will ask for and leaves it in the cache that both have.
It imports once, and then forks its workers: each has one cell at a time, and costs nothing but itself when it dies or
hangs.  Whatever goes wrong here, the child compiles by itself, as it would have done.

Orders, one JSON object a line:   {"target": {...}} once, then {"cells": [{"cell", "op", "operation", "call",
                                  "tensors"}]} as often as there are more
Answers:                          {"begun": cell}, then {"cell", "hashes": [...], "compiled", "loaded", "seconds",
                                  "reason": "" or why it ended early}

Two things would be wrong in the cache and never reach it: the choice of a tuner, which here has timed nothing, and a
kernel of another target.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from farm.child.compilations import Compilations

#: One cell, with every variant that tuning tries, may take this long.
CELL_SECONDS = 120.0
LOOK_SECONDS = 1.0
#: Workers that may die, of whatever, before there are no others.
MOST_DEATHS = 16
_NICE = 19
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Target:
    """As `farm.child.offline_driver.OfflineTarget`."""

    triton: str
    arch: int | str
    warp: int
    cores: int
    block_memory: int


@dataclass
class _Worker:
    """A forked process.  `orders`, `answers`: descriptors of its pipes; `cell`: what it compiles, None while idle."""

    pid: int
    orders: int
    answers: int
    job: dict[str, Any] | None = None
    until: float = 0.0
    rest: bytearray = field(default_factory=bytearray)


def main(options: Mapping[str, Any], source: IO[str], sink: IO[str]) -> int:
    """Compile until nobody gives orders any more.  `options`: `workers`, how many may work at once."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    sys.stdout.flush()
    sys.stderr.flush()

    def say(answer: dict[str, Any]) -> None:
        sink.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sink.flush()

    _Dispatcher(int(options["workers"]), say, sink.fileno()).run(source.fileno())
    return 0


class _Dispatcher:
    """Deals cells to workers.  Runs none of the code under test itself."""

    def __init__(self, workers: int, say: Callable[[dict[str, Any]], None], *own: int):
        self._most, self._say = workers, say
        self._own = own  # descriptors that no worker is to have
        self._target: dict[str, Any] | None = None
        self._queue: deque[dict[str, Any]] = deque()
        self._workers: list[_Worker] = []
        self._deaths = 0
        self._parts: dict[int, int] = {}  # cell -> how many of its shares are not done
        self._done: dict[int, dict[str, Any]] = {}  # cell -> what those that are done have told
        self._selector = selectors.DefaultSelector()

    def run(self, orders: int) -> None:
        """Until the pipe of orders is closed."""
        os.set_blocking(orders, False)
        self._own = (*self._own, orders)
        self._selector.register(orders, selectors.EVENT_READ, None)
        rest = bytearray()
        while True:
            since = time.monotonic()
            ready = self._selector.select(LOOK_SECONDS)
            paused = time.monotonic() - since - LOOK_SECONDS
            for worker in self._workers if paused > LOOK_SECONDS else ():  # this whole group was stopped meanwhile
                worker.until += paused
            for key, _ in ready:
                if isinstance(key.data, _Worker):
                    self._hear(key.data)
                    continue
                chunk = os.read(orders, 1 << 16)
                if not chunk:
                    return
                rest += chunk
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            for worker in [w for w in self._workers if w.job is not None and time.monotonic() > w.until]:
                self._lose(worker, f"not compiled within {CELL_SECONDS:g} s")
            self._deal()

    def _take(self, order: dict[str, Any]) -> None:
        self._target = order.get("target", self._target)
        self._queue += order.get("cells", ())

    def _deal(self) -> None:
        """Work for each that is idle, and one more worker while there is more work."""
        while self._queue and self._target is not None:
            idle = next((w for w in self._workers if w.job is None), None)
            if idle is None:
                if len(self._workers) >= self._most or self._deaths >= MOST_DEATHS:
                    return
                idle = self._forked()
            job = self._queue.popleft()
            if job["cell"] not in self._parts:
                self._parts[job["cell"]] = 1
                self._say({"begun": job["cell"]})
            idle.job, idle.until = job, time.monotonic() + CELL_SECONDS
            try:
                _write(idle.orders, job)
            except OSError:
                self._lose(idle, "the process died")

    def _forked(self) -> _Worker:
        theirs, orders = os.pipe()
        answers, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._selector.close()
                others = [end for w in self._workers for end in (w.orders, w.answers)]
                for end in (*others, *self._own, orders, answers):
                    os.close(end)
                from farm.child.__main__ import _die_with_parent

                os.environ["FARM_PARENT"] = str(os.getppid())
                _die_with_parent()
                assert self._target is not None
                code = _work(Target(**self._target), self._most, theirs, said)
            finally:
                os._exit(code)
        os.close(theirs)
        os.close(said)
        worker = _Worker(pid, orders, answers)
        self._workers.append(worker)
        self._selector.register(answers, selectors.EVENT_READ, worker)
        return worker

    def _hear(self, worker: _Worker) -> None:
        try:
            chunk = os.read(worker.answers, 1 << 16)
        except OSError:
            chunk = b""
        if not chunk:
            self._lose(worker, "the process died")
            return
        worker.rest += chunk
        while b"\n" in worker.rest and worker.job is not None:
            line, _, worker.rest = worker.rest.partition(b"\n")
            told = json.loads(line)
            if told.get("tunes"):  # the others take their shares of what is tried
                shares = [{**worker.job, "share": n} for n in range(1, self._most)]
                self._parts[worker.job["cell"]] += len(shares)
                self._queue.extendleft(reversed(shares))
                continue
            self._end(worker.job, told)
            worker.job = None

    def _lose(self, worker: _Worker, why: str) -> None:
        """Part with a worker, and with the cell that it had."""
        self._selector.unregister(worker.answers)
        self._workers.remove(worker)
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.pid, 0)
        os.close(worker.orders)
        os.close(worker.answers)
        self._deaths += 1
        if worker.job is not None:
            self._end(worker.job, _answer(worker.job, reason=why))

    def _end(self, job: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Take the answer of a cell, or of a share of it; once there are all, they are told as one."""
        cell = job["cell"]
        found = self._done.setdefault(cell, _answer(job))
        found["hashes"] = list(dict.fromkeys([*found["hashes"], *told["hashes"]]))
        for name in ("compiled", "loaded", "seconds"):
            found[name] += told[name]
        found["reason"] = found["reason"] or told["reason"]
        self._parts[cell] -= 1
        if not self._parts[cell]:
            del self._parts[cell]
            self._say(self._done.pop(cell))


def _write(descriptor: int, message: dict[str, Any]) -> None:
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _answer(job: Mapping[str, Any], *, reason: str = "", **more: Any) -> dict[str, Any]:
    plain = {"hashes": [], "compiled": 0, "loaded": 0, "seconds": 0.0}
    return {"cell": job["cell"], **plain, **more, "reason": " ".join(reason.split())[:_LONGEST_REASON]}


# in a worker


def _work(target: Target, of: int, orders: int, said: int) -> int:
    """Compile one cell after another, as they are given."""
    compiler = AheadCompiler(target, of, lambda: _write(said, {"tunes": True}))
    with os.fdopen(orders, "r", encoding="utf-8") as source:
        for line in source:
            job = json.loads(line)
            _write(said, compiler.compile(job))
    return 0


class AheadCompiler:
    """Compiles cells for `target` with Triton's own compiler, into Triton's own cache.  `tunes`: called where a cell's
    kernel is tuned, so that `of` processes can share what is tried."""

    def __init__(self, target: Target, of: int, tunes: Callable[[], None]):
        from triton.runtime import driver

        from farm.child import offline_driver, provider_call

        self._offline, self._calling = offline_driver, provider_call
        self._target, self._of, self._tunes = target, of, tunes
        self._driver = _Driver(target, self._tried)
        driver.set_active(self._driver)
        _no_tuning_on_disk()
        _bench_by(self._driver)
        self._chosen = _tuners()
        self._share: int | None = None  # of what tuning tries; None until it is known that there is tuning
        self._count = 0
        self._functions: dict[tuple[str, str], Callable[..., Any]] = {}

    def compile(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of one cell; nothing that the code under test raises leaves this method."""
        begun, reason = time.monotonic(), ""
        self._share, self._count = job.get("share"), 0
        self._driver.launches.clear()
        for tuner in self._chosen if self._share is not None else ():
            tuner.cache.clear()  # who chose in an earlier share of the cell would try nothing of this one
        with Compilations() as counted:
            try:
                problem = self._offline.problem(job["tensors"], job["operation"])
                outputs = problem.forward(self._function(job))
                if job["operation"] in ("backward", "full"):
                    problem.gradients(outputs)
            except BaseException as error:  # SystemExit too: the next cell may be another's
                reason = f"{type(error).__name__}: {error}"
        return _answer(
            job,
            reason=reason,
            hashes=list(dict.fromkeys(counted.new)),
            compiled=counted.compiled,
            loaded=counted.loaded,
            seconds=round(time.monotonic() - begun, 4),
        )

    def _tried(self) -> bool:
        """Whether the next variant that tuning tries is this process's to compile."""
        if self._share is None:
            self._share = 0
            if self._of > 1:
                self._tunes()
        mine = self._count % self._of == self._share
        self._count += 1
        return mine

    def _function(self, job: Mapping[str, Any]) -> Callable[..., Any]:
        call = job["call"]
        forward = self._resolved(call["provider"], job["op"])
        if call["provider"].get("backward"):
            own = self._resolved({**call["provider"], "path": call["provider"]["backward"]}, job["op"])
            return self._calling.with_backward(forward, own, call, job["tensors"])
        return self._calling.bind(forward, call)

    def _resolved(self, provider: dict[str, Any], op: str) -> Callable[..., Any]:
        key = (provider.get("path") or provider["name"], op)
        if key not in self._functions:
            self._functions[key] = self._calling.resolve(provider, op)
        return self._functions[key]


def _Driver(target: Target, tried: Callable[[], bool]) -> Any:  # noqa: N802 - a class that is made where Triton is
    """The offline driver, which also builds what the real one builds for each signature, and whose tuner compiles the
    variants for which `tried()` says so."""
    from farm.child.offline_driver import OfflineDriver

    class Driver(OfflineDriver):
        def __init__(self) -> None:
            super().__init__(target)
            plain, stubs = self.launcher_cls, _launcher_stubs(target.triton)

            class Launcher(plain):  # type: ignore[valid-type, misc]
                def __init__(self, src: Any, metadata: Any):
                    super().__init__(src, metadata)
                    stubs(src, metadata)

            self.launcher_cls = Launcher

        def get_benchmarker(self) -> Any:
            def bench(function: Any, quantiles: Any = None, **options: Any) -> list[float]:
                mine, before = tried(), len(self.launches)
                if not mine:
                    return [float("inf")] * 3
                function()
                del self.launches[before:]
                return [1.0, 1.0, 1.0]

            return bench

    return Driver()


def _launcher_stubs(family: str) -> Callable[[Any, Any], None]:
    """What builds the C code by which the real driver launches a kernel, where this Triton has some for each signature
    (before 3.7): it is compiled and kept like the kernel, and takes about as long.  No device is opened by it."""
    name, launcher = {"cuda": ("nvidia", "CudaLauncher"), "hip": ("amd", "HIPLauncher")}.get(family, ("", ""))
    with contextlib.suppress(Exception):
        import importlib

        module = importlib.import_module(f"triton.backends.{name}.driver")
        if hasattr(module, "make_launcher"):
            real = getattr(module, launcher)

            def build(src: Any, metadata: Any) -> None:
                with contextlib.suppress(Exception):
                    real(src, metadata)

            return build
    return lambda src, metadata: None


def _no_tuning_on_disk() -> None:
    """Have no tuner read or keep its choice on disk: the ones that are made here have timed nothing."""
    from triton.runtime import autotuner

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        bench_fn()
        return False

    if hasattr(autotuner.Autotuner, "check_disk_cache"):
        autotuner.Autotuner.check_disk_cache = check_disk_cache


def _tuners() -> set[Any]:
    """The tuners that are asked from now on, as they come."""
    from triton.runtime import autotuner

    seen: set[Any] = set()
    run = autotuner.Autotuner.run

    @functools.wraps(run)
    def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.add(self)
        return run(self, *args, **kwargs)

    autotuner.Autotuner.run = noticed
    return seen


def _bench_by(driver: Any) -> None:
    """Have every tuner ask `driver`, also one that brings a way to time of its own."""
    from triton.runtime import autotuner

    if isinstance(autotuner.Autotuner.__dict__.get("do_bench"), functools.cached_property):
        bench = driver.get_benchmarker()
        autotuner.Autotuner.do_bench = property(lambda tuner: bench)
