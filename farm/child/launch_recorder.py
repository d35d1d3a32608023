"""Which kernels a call launched: what our package's recorder notes, and beside it what Triton itself saw.

The recorder is the revision's own code and could note what it likes; Triton's hook (and in the interpreter the place
where every launch passes) is asked too, so that a fallback to torch's operators cannot pass as kernels of ours.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from typing import Any

from farm import kernel_package

#: Specialisations of a cell that are told; who launches more has chosen sizes at random.
MOST_VARIANTS = 1000


def _constants(launch: Any, args: Any, kwargs: Any) -> str:
    """The compile-time constants of a launch that were given and are plain values, as JSON."""
    given = {**dict(zip(launch.arg_names, args)), **kwargs}
    found = {}
    for name in launch.constexprs:
        value = getattr(given.get(name), "value", given.get(name))
        if name in given and (value is None or isinstance(value, (bool, int, float, str))):
            found[str(name)] = value
        elif name in given:
            found[str(name)] = str(value)[:100]  # a dtype
    return json.dumps(found)


class LaunchRecorder:
    """Records launches within it.

    `records`: what the revision's `kernels.launches` noted, in order.  `seen`: names of the kernels that Triton
    launched, with how often; None where this process has no Triton that tells.  `variants`: the same in the
    interpreter, by module and compile-time constants too.  `streams`: handles of the streams they went to.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.seen: Counter[str] | None = None
        self.variants: Counter[tuple[str, str, str]] = Counter()
        self.streams: set[int] = set()
        self._undo: contextlib.ExitStack | None = None
        try:
            self.module: Any = kernel_package.load("launches")
        except ImportError:
            self.module = None

    def __enter__(self) -> LaunchRecorder:
        self.seen, self.streams, self._undo = None, set(), contextlib.ExitStack()
        self.variants = Counter()
        if self.module:
            self.module.enable()
            self.module.drain()
        interpreter = sys.modules.get("farm.child.interpreter")
        if interpreter is not None and interpreter.interp is not None:
            self._watch_interpreter(interpreter.interp.GridExecutor)
        elif "triton" in sys.modules:
            self._watch_triton()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.module:
            self.records = self.module.drain()
            self.module.disable()
        if self._undo:
            self._undo.close()

    def _watch_interpreter(self, executor: Any) -> None:
        seen = self.seen = Counter()
        stock = executor.__call__

        def call(launch: Any, *args: Any, **kwargs: Any) -> Any:
            seen[launch.fn.__name__] += 1
            self.variants[(launch.fn.__name__, launch.fn.__module__, _constants(launch, args, kwargs))] += 1
            return stock(launch, *args, **kwargs)

        executor.__call__ = call
        assert self._undo is not None
        self._undo.callback(setattr, executor, "__call__", stock)

    def _watch_triton(self) -> None:
        try:
            from triton import knobs

            chain = knobs.runtime.launch_enter_hook
            add, remove = chain.add, chain.remove
        except (ImportError, AttributeError):  # before 3.5 there is one hook, and somebody may hold it
            return
        seen, streams = Counter[str](), self.streams

        def launched(metadata: Any) -> None:
            told = metadata.get()
            seen[str(told.get("name", "?"))] += 1
            streams.add(int(told.get("stream") or 0))

        add(launched)
        self.seen = seen
        assert self._undo is not None
        self._undo.callback(remove, launched)

    def facts(self, requested: str) -> dict[str, Any]:
        """`mode_resolved` and `launch` of a cell whose mode was `requested`."""
        modes = [r.get("mode") for r in self.records if r.get("mode")]
        launch: dict[str, Any] = {"kernels": self.records}
        if self.seen:
            launch["seen"] = dict(self.seen)
        if self.variants:
            launch["variants"] = [
                {"kernel": kernel, "module": module, "constants": json.loads(constants), "launches": count}
                for (kernel, module, constants), count in self.variants.most_common(MOST_VARIANTS)
            ]
        return {"mode_resolved": modes[-1] if modes else requested, "launch": launch}

    def findings(self, operation: str) -> list[str]:
        """What is wrong where the cell is one of our own kernels: every direction that `operation` asks for has to be
        served by a kernel, and one that was noted has to have been launched."""
        wanted = {"backward": ("backward",), "full": ("forward", "backward")}.get(operation, ("forward",))
        noted = {r.get("direction") for r in self.records}
        for direction in wanted:
            if not self.records or (direction not in noted and None not in noted):
                what = ", ".join(self.seen) if self.seen else "no Triton kernel"
                return [f"launched none of its kernels {direction}, but fell back ({what} ran instead)"]
        if self.seen is None:
            return []
        missing = Counter(str(r["kernel"]) for r in self.records) - self.seen
        return [f"claimed kernel launches that never happened ({', '.join(missing)})"] if missing else []
