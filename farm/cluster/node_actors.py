"""The two classes that run on the nodes of a Ray cluster.

They are pickled by value, so that a node runs the coordinator's text of them whatever farm it has.  Therefore nothing
of the farm is imported at the top: within a method, `farm` is the node's.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FETCH_SECONDS = 60.0  # a bundle is a few hundred KiB
STOP_SECONDS = 5.0  # for a start that is under way


class JudgeActor:
    """A judge of the coordinator's revision: it imports what `bundles` contain, and without any (a Ray on the
    coordinator's own host) what the coordinator imports.  It keeps no essential state: another may take its place."""

    def __init__(
        self,
        bundles: list[dict[str, Any]],
        spool: str,
        threads: int,
        lock_s: float,
        sharers: int,
        contracts: bytes | None = None,
    ):
        lock_s = min(lock_s, _cap("lock"))  # by the node's farm: what is shipped cannot read its configuration
        _leave_reference(spool)
        if bundles:
            _import_from(_unpacked(bundles, spool))
        from farm.judge.allocator import keep_freed_memory
        from farm.judge.judge import Judge
        from farm.shipping import contracts as shipping

        keep_freed_memory()

        if contracts:
            shipping.install(_fetched(contracts), spool)
        self._judge = Judge(spool, threads, lock_s=lock_s, sharers=sharers)

    def prepare(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        return self._judge.prepare(cell)

    def warm(self, cell: Mapping[str, Any]) -> None:
        self._judge.warm(cell)

    def judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._judge.judge(request)

    def clean(self) -> None:
        self._judge.clean()


def _leave_reference(spool: str) -> None:
    """How the node evaluates references of PyTorch; where its configuration is broken, its devices say so."""
    from farm.errors import FarmError

    try:
        from farm.node import reference

        reference.leave(spool)
    except (FarmError, ImportError):  # an older farm there; then with the judge's own Python
        return


def _fetched(reference: bytes) -> Any:
    """What the coordinator has put into the object store; the reference comes as bytes (RayCluster._judge)."""
    import ray

    return ray.get(ray.cloudpickle.loads(reference), timeout=FETCH_SECONDS)


def _cap(name: str) -> float:
    """The node's own limit; none where its configuration is broken, which its devices say."""
    from farm.errors import UsageError
    from farm.node import config

    try:
        return float(config.load().deadlines.get(name, math.inf))
    except UsageError:
        return math.inf


def _unpacked(bundles: list[dict[str, Any]], spool: str) -> list[str]:
    """Folders to import from: where the children of this node's devices import from too."""
    from farm.shipping import bundle
    from farm.store import spool as spools

    spools.claim(spool)
    place = Path(spool, "bundles")
    found = []
    for b in bundles:
        blob = _fetched(b["blob"])
        found.append(str(bundle.install(b["sha"], blob, place)))
    return found


def _import_from(folders: list[str]) -> None:
    """From now on this process imports the farm from there; this process serves one run and nothing else."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "farm"]:
        del sys.modules[name]
    sys.path[:0] = folders


class _RayDevice:
    """A `DeviceActor` of the node's farm, whose device was chosen by Ray.  Its first event states that it is placed,
    the second which farm the node has; one with another protocol than `config["protocol"]` does nothing else.

    A thread does what may take long (on a cold network file system, importing the farm), so that the actor answers
    from its first moment: one that does not answer is one that Ray has not placed."""

    def __init__(self, config: dict[str, Any], judges: list[tuple[int, int, Any]]):
        self._first: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._first.put({"event": "placed"})
        self._inner: Any = None
        self._judges: Any = None
        self._stopping = False
        self._starting = threading.Thread(target=self._start, args=(config, judges, _granted_ids()), daemon=True)
        self._starting.start()

    def _start(self, config: dict[str, Any], judges: list[Any], ids: list[str]) -> None:
        try:
            import farm

            here = getattr(farm, "PROTOCOL", 0)
            content = ""
            if here == config["protocol"]:
                from farm.shipping import revision

                content = revision.content(Path(farm.__file__).parent)
            self._first.put({"event": "node_farm", "protocol": here, "content": content})
            if here == config["protocol"] and not self._stopping:
                self._inner = self._device(config, judges, ids)
        except Exception as error:
            traceback.print_exc()
            why = f"the device's actor could not start ({type(error).__name__}: {error})"
            self._first.put({"event": "device_down", "reason": why[:1000], "final": False})
        self._first.put(None)  # whoever waits for an event asks the device from now on

    def _device(self, config: dict[str, Any], judges: list[tuple[int, int, Any]], ids: list[str]) -> Any:
        import ray

        from farm.actor.device import DeviceActor
        from farm.judge.pool import JudgeHandle, RayJudges
        from farm.node.masks import granted

        index = config["device"].rsplit(":", 1)[-1].split("~")[0]
        device_id = granted(config["backend"], os.environ, ids, index)
        bundles = [{**b, "blob": ray.get(b["blob"], timeout=FETCH_SECONDS)} for b in config.get("bundles", [])]
        subject = _with_blob(config.get("subject"))
        arms = {arm: {**own, "subject": _with_blob(own.get("subject"))} for arm, own in config.get("arms", {}).items()}
        self._judges = RayJudges([JudgeHandle(*judge) for judge in judges])
        own = {"device_id": device_id, "bundles": bundles, "subject": subject, **({"arms": arms} if arms else {})}
        actor = DeviceActor({**config, **own}, self._judges)
        self._judges.report = actor.judge_died
        return actor

    def replace_judge(self, index: int, generation: int, judge: Any) -> None:
        """Use this judge where another died."""
        if self._judges:
            from farm.judge.pool import JudgeHandle

            self._judges.replace(JudgeHandle(index, generation, judge))

    def submit(self, lease: dict[str, Any]) -> None:
        if self._inner:
            self._inner.submit(lease)

    def poll(self, wait_s: float) -> list[dict[str, Any]]:
        with contextlib.suppress(queue.Empty):
            first = self._first.get(block=self._inner is None, timeout=wait_s)
            return [first] if first else []
        found: list[dict[str, Any]] = self._inner.poll(wait_s) if self._inner else []
        return found

    def stop(self) -> None:
        self._stopping = True
        self._starting.join(timeout=STOP_SECONDS)
        if self._inner:
            self._inner.stop()


def _with_blob(subject: dict[str, Any] | None) -> dict[str, Any] | None:
    """A subject with its content, which is in the object store."""
    import ray

    return {**subject, "blob": ray.get(subject["blob"], timeout=FETCH_SECONDS)} if subject else None


def _granted_ids() -> list[str]:
    import ray

    if not ray.is_initialized():  # in a test without Ray
        return []
    return [str(x) for found in ray.get_runtime_context().get_accelerator_ids().values() for x in found]
