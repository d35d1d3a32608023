"""The judges of a node, as the actors of its devices see them: a pool of threads, or of Ray actors.

What an actor waits for has a deadline; what it does not wait for (judging) ends in an answer in any case.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from farm.cell import canonical_json
from farm.deadline import Deadline
from farm.judge import Judge

JUDGE_SECONDS = 900.0
LATE_LOOK_SECONDS = 1.0
#: How long, and of how many cells, an actor goes by what a judge told it of their inputs: far less than the half hour
#: for which files that were just used stay where they are (farm.filecache).
PREPARED_SECONDS, KEPT_PREPARED, KEPT_KEYS = 60.0, 64, 256
Done = Callable[[dict[str, Any]], None]
#: Threads for each kind of work in one judge.  Inputs that a device waits for never queue behind judging.
GROUPS = {"prepare": 2, "judge": 3, "warm": 1}


class Judges(Protocol):
    """The node's judge pool, as an actor sees it."""

    def prepare(self, cell: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        """Files of the cell's inputs, and what a child must be told of its tensors."""

    def prefetch(self, cell: dict[str, Any]) -> None:
        """Start on a cell's inputs; `prepare` will ask for them soon."""

    def warm(self, cell: dict[str, Any]) -> None:
        """Start on the inputs and the reference of a cell that waits behind this lease, maybe for another device."""

    def judge(self, request: dict[str, Any], done: Any) -> None:
        """Start judging; `done(judged dict)` is called from another thread, also when it failed."""


class LocalJudges:
    """The pool as threads of this process, for `--address inline`."""

    def __init__(self, spool: str, threads: int | None = None):
        self._judge = Judge(spool, threads or min(8, os.cpu_count() or 2))
        self._pools = {group: ThreadPoolExecutor(n, thread_name_prefix=group) for group, n in GROUPS.items()}
        self._coming: dict[int, Future[dict[str, Any]]] = {}

    def prefetch(self, cell: dict[str, Any]) -> None:
        if cell["index"] not in self._coming:
            self._coming[cell["index"]] = self._pools["prepare"].submit(self._judge.prepare, cell)

    def warm(self, cell: dict[str, Any]) -> None:
        self._pools["warm"].submit(self._judge.warm, cell)

    def prepare(self, cell: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        self.prefetch(cell)
        return self._coming.pop(cell["index"]).result(timeout=deadline.remaining)

    def judge(self, request: dict[str, Any], done: Done) -> None:
        self._pools["judge"].submit(lambda: done(self._judge.judge(request)))

    def close(self) -> None:
        self._judge.closing = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def ray_judge(ray: Any, node: str, spool: str, threads: int) -> Any:
    """A judge as a Ray actor on a node.  It keeps nothing in memory that matters, so Ray may restart it."""
    return (
        ray.remote(concurrency_groups=GROUPS)(Judge)
        .options(
            num_cpus=0,
            label_selector={"ray.io/node-id": node},
            max_restarts=3,
            max_task_retries=1,
        )
        .remote(spool, threads)
    )


class RayJudges:
    """The pool as an actor sees it: judges of its node, taken in turn."""

    def __init__(self, handles: list[Any]):
        self._handles = handles
        self._next = 0
        self._coming: dict[str, Any] = {}  # what was asked for, by `prepared_key`
        self._ready: dict[str, tuple[Deadline, dict[str, Any]]] = {}  # what came lately, likewise
        self._keys: dict[int, str] = {}  # of cells by their index, which in a run is theirs alone
        self._late = _Late()

    def _one(self) -> Any:
        self._next += 1
        return self._handles[self._next % len(self._handles)]

    def prefetch(self, cell: dict[str, Any]) -> None:
        self._ask(self._key(cell), cell)

    def _key(self, cell: dict[str, Any]) -> str:
        """`prepared_key`, which a cell is asked for three times."""
        found = self._keys.get(cell["index"])
        if found is None:
            if len(self._keys) >= KEPT_KEYS:
                self._keys.clear()
            found = self._keys[cell["index"]] = prepared_key(cell)
        return found

    def _ask(self, key: str, cell: dict[str, Any]) -> None:
        known = self._ready.get(key)
        if key not in self._coming and (known is None or known[0].expired):
            self._ready.pop(key, None)
            self._coming[key] = self._one().prepare.options(concurrency_group="prepare").remote(cell)

    def warm(self, cell: dict[str, Any]) -> None:
        self._one().warm.options(concurrency_group="warm").remote(cell)

    def prepare(self, cell: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        import ray

        key = self._key(cell)
        self._ask(key, cell)
        if key not in self._coming:
            return self._ready[key][1]
        try:
            out: dict[str, Any] = ray.get(self._coming.pop(key), timeout=deadline.remaining)
        except ray.exceptions.RayTaskError as error:  # its text is a page of Ray's; the cause is ours
            raise RuntimeError(f"{type(error.cause).__name__}: {error.cause}") from None
        while len(self._ready) >= KEPT_PREPARED:
            del self._ready[next(iter(self._ready))]
        self._ready[key] = (Deadline(PREPARED_SECONDS), out)
        return out

    def judge(self, request: dict[str, Any], done: Done) -> None:
        once = self._late.watch(done)

        def arrived(future: Future[Any]) -> None:
            error = future.exception()
            once(_judge_failed(f"the judge died ({type(error).__name__})") if error else future.result())

        answer = self._one().judge.options(concurrency_group="judge").remote(request)
        answer.future().add_done_callback(arrived)


class _Late:
    """Answers in the place of judges that do not, JUDGE_SECONDS after they were asked.  One thread watches all that are
    awaited: a thread for each is a thousand of them where judges are slow."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Deadline, Done]] = {}  # by number, so the first to be asked is the first
        self._number = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, done: Done) -> Done:
        """What is to be called with the answer: `done` hears the first only."""
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = (Deadline(JUDGE_SECONDS), done)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="late", daemon=True)
                self._thread.start()

        def once(judged: dict[str, Any]) -> None:
            with self._lock:
                first = self._waiting.pop(number, None) is not None
            if first:
                done(judged)

        return once

    def _watch(self) -> None:
        while True:
            time.sleep(LATE_LOOK_SECONDS)
            with self._lock:
                late = [n for n, (deadline, _) in self._waiting.items() if deadline.expired]
                heard = [self._waiting.pop(n)[1] for n in late]
            for done in heard:
                done(_judge_failed(f"the judge did not answer within {JUDGE_SECONDS:g} s"))


#: What of a cell its inputs, and what a child is told of its tensors, do not depend on.
_NOT_PREPARED = frozenset(
    {"provider", "mode", "timing", "role", "tag", "cell_id", "cell_key", "skip_reason", "index", "matrix", "target"}
)


def prepared_key(cell: Mapping[str, Any]) -> str:
    """Equal for cells of which `Judge.prepare` says the same: those of several providers and modes stand together."""
    return canonical_json({k: v for k, v in cell.items() if k not in _NOT_PREPARED})


def _judge_failed(reason: str) -> dict[str, Any]:
    return {"status": "infra_error", "owner": "infra", "reason": reason}
