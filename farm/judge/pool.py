"""The judges of a node, as the actors of its devices see them: a pool of processes, or of Ray actors.

Every call that an actor waits for has a deadline.  A call that it does not wait for (judging) always gets an answer.
"""

from __future__ import annotations

import math
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from farm import limits
from farm.cell import canonical_json
from farm.deadline import Deadline
from farm.errors import JudgeFailed, Message, describe, fault_owner
from farm.judge.processes import JudgeProcesses
from farm.shipping import contracts

LATE_LOOK_SECONDS = 1.0
JUDGELESS_SECONDS = 90.0  # how long a cell waits for a judge to be replaced: longer than any pause before that
#: For how long, and for how many cells, an actor reuses a judge's answer about their inputs: far less than recently
#: used files are kept (farm.judge.cache).
PREPARED_SECONDS, KEPT_PREPARED, KEPT_KEYS = 60.0, 64, 256
Done = Callable[[dict[str, Any]], None]
#: Calls of each kind at once, in one judge or of all inline ones.  Inputs that a device waits for are never queued
#: behind judging.
GROUPS = {"prepare": 2, "judge": 3, "warm": 1}
FAR_BEHIND = 2 * GROUPS["judge"]  # outputs
MOST_PROCESSES = sum(GROUPS.values())  # of an inline run
#: For how many cells after the one at work an actor asks for inputs; and where judges have cores to spare.  Beyond the
#: first, all of them together are of at most so many elements.
AHEAD, FAR_AHEAD, MOST_ELEMENTS = 2, 8, 1 << 27


def soon(cells: Iterable[dict[str, Any]], ahead: int) -> Iterator[dict[str, Any]]:
    """Of the cells that are to come, those whose inputs are asked for now."""
    elements = 0
    for number, cell in enumerate(islice(cells, ahead)):
        elements += math.prod(cell["dims"].values())
        if number >= AHEAD and elements > MOST_ELEMENTS:
            return
        yield cell


class Judges(Protocol):
    """The node's judge pool, as an actor sees it."""

    def prepare(self, cell: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        """The files of the cell's inputs, and the description of its tensors for the child."""

    def coming(self, cells: Iterable[dict[str, Any]]) -> None:
        """Start to make the inputs of the first of these cells; `prepare` will need them soon."""

    def warm(self, cell: dict[str, Any]) -> None:
        """Start to make the inputs and the reference of a cell of a later lease, maybe on another device."""

    def judge(self, request: dict[str, Any], done: Any, seconds: float = limits.TABLE["judge"]) -> None:
        """Start to judge; `done(judged dict)` is called from another thread, also after a failure or `seconds`."""


class KeptJudges:
    """Judges that serve one run after another, as `farm run --watch` makes them: inputs and references of the run
    before are there already.  They have a folder of their own; other contracts need other judges."""

    def __init__(self, make_folder: Callable[[], str], remove: Callable[[str], None]):
        self._make_folder, self._remove = make_folder, remove
        self._now: tuple[str, str, JudgeProcesses] | None = None  # contracts, folder

    def take(self, threads: int) -> tuple[str, JudgeProcesses]:
        """(folder, processes) for the contracts that this process has now."""
        packed = contracts.pack()
        known = contracts.text(packed) if packed else ""
        if self._now is None or self._now[0] != known:
            self.close()
            folder = self._make_folder()
            self._now = known, folder, JudgeProcesses(folder, threads, MOST_PROCESSES)
        return self._now[1:]

    def close(self) -> None:
        if self._now is not None:
            _, folder, processes = self._now
            self._now = None
            processes.close()
            self._remove(folder)


#: Of this process, while `keeping` lasts.
_kept: list[KeptJudges] = []


@contextmanager
def keeping(kept: KeptJudges) -> Iterator[None]:
    """Runs of this process share judges as long as this lasts."""
    _kept.append(kept)
    try:
        yield
    finally:
        _kept.remove(kept)
        kept.close()


class LocalJudges:
    """The pool for `--address inline`: threads of this process that wait for processes of its own.  `threads` of each:
    0 for its share of the cores, of which the host has `cores` (0: as many as it says)."""

    def __init__(self, spool: str, threads: int = 0, cores: int = 0):
        self._mine = not _kept
        if self._mine:
            self.spool, self._processes = spool, JudgeProcesses(spool, threads, MOST_PROCESSES, cores)
        else:
            self.spool, self._processes = _kept[-1].take(threads)
        share = self._processes.sharing
        self.ahead, self._spare = FAR_AHEAD if share.spare else AHEAD, share.spare
        groups = {**GROUPS, "prepare": max(GROUPS["prepare"], share.first - 1), "warm": 2} if share.spare else GROUPS
        self._pools = {group: ThreadPoolExecutor(n, thread_name_prefix=group) for group, n in groups.items()}
        self._coming: dict[str, Future[dict[str, Any]]] = {}  # by `prepared_key`
        self._recent = RecentAnswers()
        self._lock = threading.Lock()
        self._table = limits.TABLE

    def begin(self, table: Mapping[str, float]) -> None:
        """A run of these limits begins: its first judge is started."""
        self._table = table
        contracts.leave(self.spool)
        self._processes.lock_s = table["lock"]
        self._processes.begin()

    def coming(self, cells: Iterable[dict[str, Any]]) -> None:
        for cell in soon(cells, self.ahead):
            self.prefetch(cell)

    def prefetch(self, cell: dict[str, Any]) -> None:
        key = self._recent.key(cell)
        if not self._recent.knows(key):
            with self._lock:
                self._ask(key, cell, self._table["prepare"])

    def _ask(self, key: str, cell: dict[str, Any], seconds: float) -> None:
        if key not in self._coming:
            asked = self._pools["prepare"].submit(self._processes.call, "prepare", cell, seconds, key)
            self._coming[key] = asked
            if self._spare:
                asked.add_done_callback(lambda made: self.warm(cell) if _succeeded(made) else None)

    def warm(self, cell: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # the run has ended meanwhile
            self._pools["warm"].submit(self._processes.call, "warm", cell, self._table["judge"], self._recent.key(cell))

    def prepare(self, cell: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        out = self._answer(cell, deadline)
        return out if _there(out) else self._answer(cell, deadline)

    def _answer(self, cell: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        key = self._recent.key(cell)
        with self._lock:
            found = None if key in self._coming else self._recent.get(key)
            if found is not None:
                return found
            self._ask(key, cell, deadline.seconds)
            coming = self._coming.pop(key)
        try:
            out = coming.result(timeout=deadline.remaining)
        except FutureTimeout:
            text = f"the judge had no inputs within {deadline.seconds:g} s"
            raise JudgeFailed(Message(text, id="judge-silent")) from None
        self._recent.keep(key, out)
        return out

    def judge(self, request: dict[str, Any], done: Done, seconds: float = limits.TABLE["judge"]) -> None:
        self._pools["judge"].submit(self._judge, request, done, seconds)

    def _judge(self, request: dict[str, Any], done: Done, seconds: float) -> None:
        try:
            judged = self._processes.call("judge", request, seconds, self._recent.key(request["cell"]))
        except Exception as error:
            said = error.args[0] if isinstance(error, JudgeFailed) else describe(error)
            reason = said if isinstance(said, Message) else f"the judge failed: {said}"
            judged = {**_judge_failed(reason), "owner": fault_owner(error)}
        done(judged)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        if self._mine:
            self._processes.close()


@dataclass(frozen=True)
class JudgeHandle:
    """One judge of a node, as its devices know it: its place in the pool, how often it was replaced, and the Ray actor
    (None: it died, and is not replaced yet)."""

    index: int
    generation: int
    actor: Any

    @property
    def place(self) -> tuple[int, int]:
        return self.index, self.generation


class RayJudges:
    """The pool as an actor sees it: the judges of its node.  Each makes inputs and references for itself, so the calls
    of one `prepared_key` go to the same judge, unless it is far behind another.  A judge that dies is reported once, by
    `report(judge=, generation=, reason=)`, and not used again; `replace` brings the next of its place.  While no judge
    lives, outputs wait to be judged."""

    def __init__(self, handles: list[JudgeHandle]):
        self._handles = list(handles)
        self.report: Callable[..., None] = lambda **_: None
        self._behind: Counter[tuple[int, int]] = Counter()  # outputs that each has not judged yet
        self._coming: dict[str, tuple[JudgeHandle, Any]] = {}  # pending answers, by `prepared_key`
        self._recent = RecentAnswers()
        self._late = _Late()
        self._replaced = threading.Condition()  # its lock is that of the handles, and of what waits for a judge
        self._unjudged: list[tuple[dict[str, Any], Done, list[JudgeHandle]]] = []

    def _one(self, key: str, deadline: Deadline | None = None) -> JudgeHandle | None:
        """The living judge of a key; None if none lives, after waiting for one until the `deadline`."""
        first = zlib.crc32(key.encode())
        with self._replaced:
            while True:
                count = len(self._handles)
                for step in range(count):
                    found = self._handles[(first + step) % count]
                    if found.actor is not None:
                        return found
                if deadline is None or deadline.expired:
                    return None
                self._replaced.wait(deadline.remaining)

    def _nearest(self, key: str) -> JudgeHandle | None:
        """As `_one`, or the one with least to do where that is so far behind that making everything again is faster."""
        judge = self._one(key)
        if judge is None:
            return None
        with self._replaced:
            living = [handle for handle in self._handles if handle.actor is not None]
            idlest = min(living, key=lambda h: self._behind[h.place], default=judge)
            return idlest if self._behind[judge.place] - self._behind[idlest.place] >= FAR_BEHIND else judge

    def _died(self, judge: JudgeHandle, error: BaseException) -> str:
        """Use the judge no more; the reason."""
        reason = Message(f"the judge died ({type(error).__name__})", id="judge-died")
        with self._replaced:
            first = self._handles[judge.index] == judge
            if first:
                self._handles[judge.index] = replace(judge, actor=None)
        if first:
            self.report(judge=judge.index, generation=judge.generation, reason=reason)
        return reason

    def replace(self, judge: JudgeHandle) -> None:
        """A judge takes the place of one that died."""
        with self._replaced:
            if judge.generation <= self._handles[judge.index].generation:
                return
            self._handles[judge.index] = judge
            waiting, self._unjudged = self._unjudged, []
            self._replaced.notify_all()
        for unjudged in waiting:
            self._give(*unjudged)

    def coming(self, cells: Iterable[dict[str, Any]]) -> None:
        for cell in soon(cells, AHEAD):
            self.prefetch(cell)

    def prefetch(self, cell: dict[str, Any]) -> None:
        key = self._recent.key(cell)
        if not self._recent.knows(key):
            self._ask(key, cell)

    def _ask(self, key: str, cell: dict[str, Any], deadline: Deadline | None = None) -> None:
        if key not in self._coming:
            judge = self._one(key, deadline)
            if judge is not None:
                asked = judge.actor.prepare.options(concurrency_group="prepare").remote(cell)
                self._coming[key] = judge, asked

    def warm(self, cell: dict[str, Any]) -> None:
        judge = self._one(self._recent.key(cell))
        if judge is not None:
            judge.actor.warm.options(concurrency_group="warm").remote(cell)

    def prepare(self, cell: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        """JudgeFailed if no judge could.  One that dies meanwhile costs the cell nothing: another is asked."""
        key, wait = self._recent.key(cell), Deadline(min(JUDGELESS_SECONDS, deadline.remaining))
        early = key in self._coming
        while True:
            found = None if key in self._coming else self._recent.get(key)
            if found is not None:
                return found
            self._ask(key, cell, wait)
            if key not in self._coming:
                raise JudgeFailed(f"no judge of this node has been alive for {wait.seconds:g} s")
            out = self._prepared(*self._coming.pop(key), deadline)
            if out is not None and (_there(out) or not early):
                break
            early = False  # asked for early, and the spool has been deleted since: once more
        self._recent.keep(key, out)
        return out

    def _prepared(self, judge: JudgeHandle, asked: Any, deadline: Deadline) -> dict[str, Any] | None:
        """A judge's answer; None if it died."""
        import ray

        try:
            out: dict[str, Any] = ray.get(asked, timeout=deadline.remaining)
            return out
        except ray.exceptions.RayTaskError as error:  # its text is a page of Ray's; only the cause is useful
            raise JudgeFailed(describe(error.cause), fault_owner(error.cause)) from None
        except ray.exceptions.GetTimeoutError:
            raise JudgeFailed(f"the judge did not answer within {deadline.seconds:g} s") from None
        except Exception as error:
            self._died(judge, error)
            return None

    def judge(self, request: dict[str, Any], done: Done, seconds: float = limits.TABLE["judge"]) -> None:
        asked: list[JudgeHandle] = []  # a judge that does not answer is as good as dead
        silent = TimeoutError()
        once = self._late.watch(done, seconds, lambda: [self._died(judge, silent) for judge in asked])
        self._give(request, once, asked)

    def _give(self, request: dict[str, Any], once: Done, asked: list[JudgeHandle]) -> None:
        with self._replaced:
            judge = self._nearest(self._recent.key(request.get("cell") or {}))
            if judge is None:
                self._unjudged.append((request, once, asked))
                return
            asked.append(judge)
            self._behind[judge.place] += 1

        def arrived(future: Future[Any]) -> None:
            with self._replaced:
                self._behind[judge.place] -= 1
            error = future.exception()
            if error is None:
                once(future.result())
            else:
                once({**_judge_failed(self._died(judge, error)), "judge_died": True})

        answer = judge.actor.judge.options(concurrency_group="judge").remote(request)
        answer.future().add_done_callback(arrived)


class _Late:
    """Answers for judges that do not answer within their time.  One thread watches all calls, because one thread per
    call would be a thousand threads when judges are slow."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Deadline, Done, Callable[[], object]]] = {}  # by number: oldest first
        self._number = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, done: Done, seconds: float, late: Callable[[], object] = lambda: None) -> Done:
        """A function to call with the answer; `done` receives only the first answer.  `late` is called if there is none
        in time."""
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = (Deadline(seconds), done, late)
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
                expired = [n for n, (deadline, _, _) in self._waiting.items() if deadline.expired]
                given_up = [self._waiting.pop(n) for n in expired]
            for deadline, done, late in given_up:
                text = f"the judge did not answer within {deadline.seconds:g} s"
                late()
                done({**_judge_failed(Message(text, id="judge-silent")), "judge_died": True})


#: The fields of a cell that do not affect its inputs, nor the description of its tensors.
_NOT_PREPARED = frozenset(
    {
        *("provider", "mode", "timing", "role", "tag", "cell_id", "cell_key", "skip_reason", "index", "matrix"),
        *("target", "arm"),
    }
)


def prepared_key(cell: Mapping[str, Any]) -> str:
    """Equal for cells with the same answer of `Judge.prepare`: cells of several providers and modes share it."""
    return canonical_json({k: v for k, v in cell.items() if k not in _NOT_PREPARED})


class RecentAnswers:
    """A judge's recent answers about cells' inputs, by `prepared_key`, to be used again while their files are as they
    were: the judges of a node share its file system with the actor.  Any thread may call."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Deadline, dict[str, Any], dict[str, int]]] = {}  # with the size of each file
        self._keys: dict[tuple[Any, Any], str] = {}  # by the cell's index and key
        self._lock = threading.Lock()

    def key(self, cell: Mapping[str, Any]) -> str:
        """The cached `prepared_key`, which each cell needs several times."""
        of = cell.get("index"), cell.get("cell_key")
        found = self._keys.get(of)
        if found is None:
            if len(self._keys) >= KEPT_KEYS:
                self._keys.clear()
            found = self._keys[of] = prepared_key(cell)
        return found

    def knows(self, key: str) -> bool:
        """Whether there is an answer; its files are only looked at by `get`."""
        known = self._kept.get(key)
        return known is not None and not known[0].expired

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer, if there is one that still holds."""
        known = self._kept.get(key)
        if known is None:
            return None
        if not known[0].expired and _sizes(known[1]) == known[2]:
            return known[1]
        with self._lock:
            self._kept.pop(key, None)
        return None

    def keep(self, key: str, answer: dict[str, Any]) -> None:
        sizes = _sizes(answer)
        if sizes is None:
            return
        with self._lock:
            while len(self._kept) >= KEPT_PREPARED:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = Deadline(PREPARED_SECONDS), answer, sizes


def _there(prepared: Mapping[str, Any]) -> bool:
    """Whether the files of an answer exist: it may have been asked for early, and the spool deleted since."""
    return _sizes(prepared) is not None


def _sizes(prepared: Mapping[str, Any]) -> dict[str, int] | None:
    """File of an answer -> its size; None if one cannot be looked at."""
    try:
        files = [t["file"] for t in prepared["tensors"] if t.get("file")]
        return {file: os.stat(file).st_size for file in files}  # noqa: PTH116 - of each cell, and half as dear
    except OSError:
        return None


def _succeeded(made: Future[Any]) -> bool:
    return not made.cancelled() and made.exception() is None


def _judge_failed(reason: str) -> dict[str, Any]:
    return {"status": "infra_error", "owner": "infra", "reason": reason}
