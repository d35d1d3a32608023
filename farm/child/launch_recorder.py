"""Which kernels a call launched: what our package's recorder notes, and beside it what Triton itself saw.

The recorder is the revision's own code and could note what it likes; Triton's hook (and in the interpreter the place
where every launch passes) is asked too, so that a fallback to torch's operators cannot pass as kernels of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
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


class _Codes:
    """What the launches of a call give the device: machine code, grid, launch settings and scalar arguments of each, in
    order.  Tensors count by nothing, since where they lie decides no time that is claimed."""

    def __init__(self) -> None:
        self.launches = 0
        self._all = hashlib.sha256()
        self._known: dict[int, tuple[Any, bytes]] = {}  # by identity: a kernel, which so stays alive, and its digest
        self._readable = True

    def note(self, kernel: Any, grid: Any, args: Any) -> None:
        """One launch, before it happens.  Whatever it cannot read leaves the call without a digest."""
        self.launches += 1
        try:
            if id(kernel) not in self._known:
                of = hashlib.sha256(kernel.kernel if isinstance(kernel.kernel, bytes) else kernel.kernel.encode())
                told = [getattr(kernel.metadata, name, None) for name in ("num_warps", "num_ctas", "shared")]
                of.update(repr((told, getattr(kernel.metadata, "cluster_dims", None))).encode())
                self._known[id(kernel)] = kernel, of.digest()
            self._all.update(self._known[id(kernel)][1])
            self._all.update(repr(([int(n) for n in grid], [self._plain(a) for a in args])).encode())
        except Exception:  # of another Triton: nothing is known then
            self._readable = False

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if hasattr(value, "data_ptr"):
            return "tensor"
        if isinstance(value, (tuple, list)):
            return [self._plain(v) for v in value]
        self._readable = self._readable and type(value).__name__ in ("constexpr", "dtype")
        return str(getattr(value, "value", value))

    @property
    def digest(self) -> str:
        """Of all launches; "" where one could not be read, or there is none."""
        return self._all.hexdigest()[:16] if self._readable and self.launches else ""


class LaunchRecorder:
    """Records launches within it.

    `records`: what the revision's `kernels.launches` noted, in order.  `seen`: names of the kernels that Triton
    launched, with how often; None where this process has no Triton that tells.  `variants`: the same in the
    interpreter, by module and compile-time constants too.  `streams`: handles of the streams they went to.  `codes`:
    what they give the device, where Triton compiles.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.seen: Counter[str] | None = None
        self.variants: Counter[tuple[str, str, str]] = Counter()
        self.streams: set[int] = set()
        self.codes = _Codes()
        self._undo: contextlib.ExitStack | None = None
        try:
            self.module: Any = kernel_package.load("launches")
        except ImportError:
            self.module = None

    def __enter__(self) -> LaunchRecorder:
        self.seen, self.streams, self._undo = None, set(), contextlib.ExitStack()
        self.variants, self.codes = Counter(), _Codes()
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
        self._watch_codes()

    def _watch_codes(self) -> None:
        """Note what each launch is of: before it, Triton asks its compiled kernel for what a hook is told."""
        kernels = getattr(sys.modules.get("triton.compiler.compiler"), "CompiledKernel", None)
        stock = getattr(kernels, "launch_metadata", None)
        if kernels is None or stock is None:
            return
        codes = self.codes

        def launch_metadata(kernel: Any, grid: Any, stream: Any, *args: Any) -> Any:
            codes.note(kernel, grid, args)
            return stock(kernel, grid, stream, *args)

        kernels.launch_metadata = launch_metadata
        assert self._undo is not None
        self._undo.callback(setattr, kernels, "launch_metadata", stock)

    def facts(self, requested: str) -> dict[str, Any]:
        """`mode_resolved` and `launch` of a cell whose mode was `requested`."""
        modes = [r.get("mode") for r in self.records if r.get("mode")]
        launch: dict[str, Any] = {"kernels": self.records}
        if self.seen:
            launch["seen"] = dict(self.seen)
        if self.codes.digest:
            launch["code"] = {"digest": self.codes.digest, "launches": self.codes.launches}
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
