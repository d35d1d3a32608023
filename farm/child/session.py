"""One child's device session: runs cells through their phases and says what happened, in facts."""

from __future__ import annotations

import errno
import platform
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from farm.child import calling, poison, tensors
from farm.child.protocol import Failed, Measured, Message, Phase, Run

Say = Callable[[Message], None]
_TRACE_LINES = 40
MAX_KEPT_INPUTS = 6  # as many as one backward of a norm with a residual and its neighbour have


class EnvironmentUnusable(Exception):
    """This environment cannot open its device; `owner` says whose fault that is."""

    def __init__(self, reason: str, owner: str):
        super().__init__(reason)
        self.owner = owner


class TorchSession:
    """Cells on one torch device.  A backend's `open_session` makes it and fills in what only it knows."""

    def __init__(
        self,
        *,
        backend: str,
        device: torch.device,
        target: dict[str, Any],
        device_name: str,
        timing_methods: tuple[str, ...],
    ):
        self.backend = backend
        self.device = device
        self.target = target
        self.device_name = device_name
        self.timing_methods = timing_methods
        self.cache_bytes = 64 << 20
        self.fingerprint: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": _version("triton"),
            "machine": platform.machine(),
        }
        self._inputs: dict[str, tuple[torch.Tensor, int]] = {}  # file -> pristine copy on the device, checksum
        self._functions: dict[str, Callable[..., Any]] = {}

    def run(self, message: Run, say: Say) -> Measured | Failed:
        """One attempt; every end is a message, and an exception of the code under test never leaves this method."""
        reply = self._once(message, say)
        if isinstance(reply, Failed) and reply.status == "out_of_memory":
            # Not the kernel's fault while the farm holds what it could give back.
            self.forget_inputs()
            torch.get_device_module(self.device.type).empty_cache() if self.device.type != "cpu" else None
            reply = self._once(message, say)
            self.forget_inputs()
        return reply

    def _once(self, message: Run, say: Say) -> Measured | Failed:
        attempt = _Attempt(self, message, say)
        try:
            return attempt.run()
        except calling.Unsupported as reason:
            return attempt.failed("unsupported", "kernel", str(reason))
        except Exception as error:
            return attempt.classified(error)
        finally:
            attempt.release()

    def load(self, tensor: dict[str, Any]) -> torch.Tensor:
        """A fresh copy of an input on the device.  Neighbouring cells share inputs, so the last ones stay there: to
        copy a gigabyte from the host costs more than to time it.  One that has lost its checksum is read again."""
        file = tensor["file"]
        if self.device.type == "cpu":
            return _read(tensor, self.device)
        kept = self._inputs.pop(file, None)
        if kept is None or tensors.checksum(kept[0]) != kept[1]:
            fresh = _read(tensor, self.device)
            kept = (fresh, tensors.checksum(fresh))
        self._inputs[file] = kept  # last in order: used last
        while len(self._inputs) > MAX_KEPT_INPUTS:
            del self._inputs[next(iter(self._inputs))]
        return kept[0].clone()

    def forget_inputs(self) -> None:
        """Give back what is kept for the next cell."""
        self._inputs.clear()

    def function(self, provider: dict[str, Any], op: str) -> Callable[..., Any]:
        """The provider's callable for an op, resolved once per child."""
        key = f"{provider.get('path') or provider['name']}/{op}"
        if key not in self._functions:
            self._functions[key] = calling.resolve(provider, op)
        return self._functions[key]


class _Attempt:
    """The state of one attempt: its tensors, its phase, what it measured so far."""

    def __init__(self, session: TorchSession, message: Run, say: Say):
        self.s = session
        self.m = message
        self.say = say
        self.phase = "import"
        self.facts: dict[str, Any] = {"flags": []}
        self.problem: calling.Problem | None = None
        self.spent: dict[str, float] = {}  # part of the attempt -> seconds of this process
        self.part, self.since = "import", time.perf_counter()
        self.making = False

    def account(self, part: str) -> None:
        """Book the time since the last call to the part that ends, and begin another."""
        now = time.perf_counter()
        self.spent[self.part] = round(self.spent.get(self.part, 0.0) + now - self.since, 4)
        self.part, self.since = part, now

    def enter(self, phase: str) -> None:
        self.account(phase)
        self.phase = phase
        self.say(Phase(self.m.revision, self.m.round, self.m.attempt, phase))

    def run(self) -> Measured:
        self.enter("import")
        cell = self.m.cell
        function = calling.bind(self.s.function(self.m.call["provider"], cell["op"]), self.m.call)
        launches = _Launches()
        if self.s.device.type != "cpu":
            # The first call compiles.  It runs apart, so that the checked call's memory and time are its own.  Every
            # call has tensors of its own: one that overwrites its inputs must not prepare the next one's.
            self.enter("compile")
            problem = self.make()
            self.facts["compile_s"] = self.timed(lambda: self._drop(problem.run(function)))
            del problem
            self.facts["peak_memory_mib"] = self.peak_memory(function)
        self.enter("check")
        outputs = self.check(function, launches)
        self.account("write")
        described = self.write(outputs, "out")
        timing = self.time(function, outputs)
        self.account("end")
        self.facts["phases_s"] = self.spent
        self.facts.update(launches.facts(cell["mode"]))
        return Measured(self.m.revision, self.m.round, self.m.attempt, described, self.facts, timing)

    def timed(self, action: Callable[[], Any]) -> float:
        start = time.perf_counter()
        action()
        self.synchronize()
        return round(time.perf_counter() - start, 6)

    def peak_memory(self, function: Callable[..., Any]) -> float:
        """MiB (2^20 bytes) that one plain call takes beyond what was there, its outputs included.  Not in the checked
        call, whose poisoned allocations are larger than the provider's own."""
        api = torch.get_device_module(self.s.device.type)
        problem = self.make()
        api.reset_peak_memory_stats(self.s.device)
        base = api.memory_allocated(self.s.device)
        self.timed(lambda: self._drop(problem.run(function)))
        return round((api.max_memory_allocated(self.s.device) - base) / 2**20, 3)

    def synchronize(self) -> None:
        if self.s.device.type != "cpu":
            torch.get_device_module(self.s.device.type).synchronize(self.s.device)

    def _drop(self, outputs: Any) -> None:
        del outputs

    def make(self) -> calling.Problem:
        """A fresh set of the cell's tensors on the device, with the values of the judge's files."""
        self.making = True  # what goes wrong until it is done is no fault of the code under test
        inputs: list[Any] = []
        upstream: list[torch.Tensor] = []
        by_name: dict[str, torch.Tensor] = {}
        for t in self.m.tensors:
            if t["role"] in ("input", "mutated") and t.get("file"):
                by_name[t["name"]] = self.s.load(t)
                inputs.append(by_name[t["name"]])
            elif t["role"] == "input":
                inputs.append(None)
            elif t["role"] == "upstream":
                upstream.append(self.s.load(t))
        operation = self.m.cell["operation"]
        if operation != "no-grad-forward":
            for tensor in by_name.values():
                if tensor.dtype.is_floating_point:
                    tensor.requires_grad_(True)
        wrt = [by_name[t["of"]] for t in self.m.tensors if t["role"] == "gradient"]
        self.making = False
        return calling.Problem(inputs, upstream, wrt, operation)

    def check(self, function: Callable[..., Any], launches: _Launches) -> tuple[torch.Tensor, ...]:
        """The checked call: poisoned allocations, inputs compared before and after, launches recorded."""
        problem = self.make()
        guarded = self._guarded(problem)
        before = [tensors.checksum(t) for t in guarded]
        poison.poison_freed(
            self.s.device, [self._bytes(t) for t in self.m.tensors if t["role"] in ("output", "gradient")]
        )
        mode = poison.Poisoned(self.s.device)
        got: tuple[Any, ...] = ()

        def call() -> None:
            nonlocal got
            with mode:
                got = problem.run(function)

        with launches:
            self.facts["check_s"] = self.timed(call)
        poison.forget_skipped_frames()
        self.facts["flags"] += mode.broken()
        if before != [tensors.checksum(t) for t in guarded]:
            self.facts["flags"].append("changed its inputs")
        return self._plain(got)

    def _guarded(self, problem: calling.Problem) -> list[torch.Tensor]:
        """Tensors that a call must leave as they are: inputs and upstream gradients, but what the contract gives up."""
        given_up = {t["name"] for t in self.m.tensors if t.get("may_overwrite") or t["role"] == "mutated"}
        names = [t["name"] for t in self.m.tensors if t["role"] in ("input", "mutated")]
        upstreams = [t["name"] for t in self.m.tensors if t["role"] == "upstream"]
        both = [*zip(names, problem.inputs), *zip(upstreams, problem.upstream)]
        return [t for name, t in both if t is not None and name not in given_up]

    def _bytes(self, tensor: dict[str, Any]) -> int:
        size = tensors.DTYPES[tensor["dtype"]].itemsize
        for n in tensor["shape"]:
            size *= n
        return size

    def _plain(self, got: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """Outputs as plain tensors on the right device; anything else is the provider's wrong answer."""
        expected = [t for t in self.m.tensors if t["role"] in ("output", "gradient")]
        if len(got) != len(expected):
            names = ", ".join(t["name"] for t in expected)
            raise calling.WrongAnswer(f"returned {len(got)} tensors where {len(expected)} are expected ({names})")
        for value, want in zip(got, expected):
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise calling.WrongAnswer(f"{want['name']} is a {type(value).__name__}, not a torch.Tensor")
            if value.device.type != self.s.device.type:
                raise calling.WrongAnswer(f"{want['name']} is on {value.device}, not on {self.s.device}")
        return tuple(v.detach() for v in got)

    def write(self, outputs: tuple[torch.Tensor, ...], prefix: str) -> list[dict[str, Any]]:
        expected = [t for t in self.m.tensors if t["role"] in ("output", "gradient")]
        out = []
        for value, want in zip(outputs, expected):
            path = str(Path(self.m.out_dir, f"{prefix}-{want['name']}.bin"))
            out.append({"name": want["name"], **tensors.save(value, path)})
        return out

    def time(self, function: Callable[..., Any], checked: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        """Samples by the cell's policy, and the outputs of a timed launch where they differ from the checked ones."""
        policy = dict(self.m.cell["timing"])
        method = self.m.call.get("timing_override") or policy["method"]
        if method == "none" or not self.s.timing_methods:
            return {"method": "none", "samples_us": []}
        if method not in self.s.timing_methods:
            raise calling.Unsupported(f"backend {self.s.backend} has no timing method {method}")
        if any(t.get("may_overwrite") or t["role"] == "mutated" for t in self.m.tensors):
            self.facts["flags"].append("not timed: it may overwrite its inputs, so a second call would see other data")
            return {"method": "none", "samples_us": []}
        from farm.timing.policies import POLICIES, Bench, CaptureFailed

        self.enter("timing")
        work = self.m.work
        self.problem = self.make()
        bench = Bench(function, self.clone, self.s.device, self.s.cache_bytes, int(work.get("bytes_moved", 0)), policy)
        try:
            result = POLICIES[method](bench)
        except CaptureFailed as error:
            raise _CaptureFailed(str(error)) from error
        out: dict[str, Any] = {
            "method": method,
            "samples_us": [round(s, 4) for s in result.samples_us],
            "host_us": [round(s, 3) for s in result.host_us],
            "sets": result.sets,
            "launches": result.launches,
            "cold": result.cold,
            "floor_us": result.floor_us,
        }
        self.facts["flags"] += result.flags
        timed = tuple(t.detach() for t in result.timed_outputs or ())
        if len(timed) != len(checked):
            raise calling.WrongAnswer(
                f"returned {len(timed)} tensors in a timed launch, {len(checked)} in the checked one"
            )
        if not all(_same_bits(a, b) for a, b in zip(timed, checked)):
            out["timed_outputs"] = self.write(timed, "timed")
        return out

    def clone(self) -> calling.Problem:
        """Another set of buffers with the values of `problem`, which no call ever gets."""
        assert self.problem is not None
        index: dict[int, torch.Tensor] = {}
        inputs = []
        for t in self.problem.inputs:
            copy = None if t is None else t.detach().clone().requires_grad_(t.requires_grad)
            if t is not None and copy is not None:
                index[id(t)] = copy
            inputs.append(copy)
        return calling.Problem(
            inputs,
            [u.clone() for u in self.problem.upstream],
            [index[id(t)] for t in self.problem.wrt],
            self.problem.operation,
        )

    def release(self) -> None:
        """Give the attempt's memory back to the allocator."""
        self.problem = None

    def failed(self, status: str, owner: str, reason: str, trace: str = "", fatal: bool = False) -> Failed:
        m = self.m
        return Failed(m.revision, m.round, m.attempt, status, owner, _one_line(reason), trace, fatal)

    def classified(self, error: Exception) -> Failed:
        """Status and owner of an exception that the code under test let out."""
        trace = "\n".join(traceback.format_exc().splitlines()[-_TRACE_LINES:])
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, _CaptureFailed):
            return self.failed("capture_failed", "harness", str(error), trace, fatal=True)
        if isinstance(error, calling.WrongAnswer):
            return self.failed("inaccurate", "kernel", str(error))
        if isinstance(error, NotImplementedError):
            return self.failed("unsupported", "kernel", str(error) or "NotImplementedError")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self.failed("infra_error", "infra", f"the outputs could not be written: {error}", trace)
        if isinstance(error, _InputsUnreadable):
            return self.failed("infra_error", "infra", str(error), trace)
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _cpu_is_full(error):
            if self.making:
                return self.failed("unsupported", "harness", f"the cell does not fit in the device's memory ({text})")
            return self.failed("out_of_memory", "kernel", text, trace)
        module = type(error).__module__
        if module.startswith("triton.compiler") or type(error).__name__ in ("OutOfResources", "PTXASError"):
            return self.failed("compile_error", "kernel", text, trace)
        fatal = _device_is_lost(error, self.s.device)
        return self.failed("crashed", "kernel", f"{text} (in phase {self.phase})", trace, fatal)


class _InputsUnreadable(Exception):
    """The judge's files cannot be read: nobody's kernel is at fault."""


def _read(tensor: dict[str, Any], device: torch.device) -> torch.Tensor:
    try:
        return tensors.load(tensor["file"], tensor["dtype"], tuple(tensor["shape"]), device)
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError) as error:
        if isinstance(error, getattr(torch, "AcceleratorError", ())):
            raise
        raise _InputsUnreadable(f"input {tensor['name']} cannot be read from {tensor['file']}: {error}") from error


class _CaptureFailed(Exception):
    """The call cannot be captured; the process is spent."""


class _Launches:
    """Records which of our kernels were launched within it, where the revision's package can tell."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        try:
            from kernels import launches

            self.module: Any = launches
        except ImportError:
            self.module = None

    def __enter__(self) -> None:
        if self.module:
            self.module.enable()
            self.module.drain()

    def __exit__(self, *exc: object) -> None:
        if self.module:
            self.records = self.module.drain()
            self.module.disable()

    def facts(self, requested: str) -> dict[str, Any]:
        modes = [r.get("mode") for r in self.records if r.get("mode")]
        resolved = modes[-1] if modes else requested
        return {"mode_resolved": resolved, "launch": {"kernels": self.records}}


def _cpu_is_full(error: Exception) -> bool:
    """torch's allocator for the CPU has no exception of its own."""
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _device_is_lost(error: Exception, device: torch.device) -> bool:
    """Whether the context must be given up: an error that the accelerator raised, or one that it raises from now on."""
    if device.type == "cpu":
        return False
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return True
    try:
        torch.get_device_module(device.type).synchronize(device)
        torch.zeros(1, device=device).add_(1).item()
    except Exception:
        return True
    return False


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(torch.equal(a.contiguous().view(width), b.contiguous().view(width)))


def _one_line(text: str, limit: int = 500) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
