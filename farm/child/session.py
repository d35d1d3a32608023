"""One child's device session: runs cells through their phases and says what happened, in facts."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from farm.backends.api import Fault, no_fault
from farm.child import (
    author_trace,
    fault_owner,
    placing,
    profiled_call,
    provider_call,
    subject_files,
    tensor_files,
    traffic,
)
from farm.child.checked_calls import CheckedCalls
from farm.child.compilations import Compilations
from farm.child.findings import disqualifying
from farm.child.integrity import IntegrityWatch
from farm.child.interpreter_progress import ProgramCount
from farm.child.protocol import LONGEST_TRACE, TIME, Failed, Measured, Message, Phase, Run, Trial, Tried
from farm.child.tuning import Tuning
from farm.errors import CaptureFailed, Unsupported, WrongAnswer
from farm.field_checks import shortened

Say = Callable[[Message], None]
#: Names a table that changes what our kernels launch (`farm tune`): numbers with it are not numbers without.
KERNELS_TABLE = "FARM_KERNELS_TABLE"
MAX_KEPT_INPUTS = 6  # as many as one backward of a norm with a residual and its neighbour have


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
        fault: Callable[[str], Fault | None] = no_fault,
    ):
        self.backend = backend
        self.device = device
        self.target = target
        self.device_name = device_name
        self.timing_methods = timing_methods
        self.fault = fault  # the backend's reading of its vendor's words
        self.cache_bytes = 64 << 20
        self.graph_nodes: Callable[[Any], dict[str, int] | None] | None = None  # counts what a captured graph launches
        self.max_graph_launches: int | None = None  # more calls than this no graph of the device holds
        self.recorder: Callable[[], Any] | None = None  # the vendor's record of kernels (farm.child.timing.Recorder)
        self.programs: ProgramCount | None = None  # of an interpreter
        self.fingerprint: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": _version("triton"),
            "machine": platform.machine(),
            **_kernels_table(os.environ.get(KERNELS_TABLE)),
        }
        self._inputs: dict[str, tuple[torch.Tensor, int]] = {}  # file -> pristine copy on the device, checksum
        self._functions: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        _bind_early(timing_methods)
        self.watch = IntegrityWatch(device, self._held)
        self.tuning = Tuning()

    def run(self, message: Run, say: Say) -> Measured | Tried | Failed:
        """One attempt, or one trial of its capture; every end is a message, and an exception of the code under test
        never leaves this method."""
        reply = self._once(message, say)
        if isinstance(reply, Failed) and reply.status == "out_of_memory":
            # Not the kernel's fault while the farm holds what it could give back.
            self.forget_inputs()
            torch.get_device_module(self.device.type).empty_cache() if self.device.type != "cpu" else None
            reply = self._once(message, say, lean=True)
            self.forget_inputs()
            crowded = isinstance(reply, Failed) and (reply.status, reply.owner) == ("unsupported", "harness")
            kept = self.watch.kept_mib() if crowded else None
            if isinstance(reply, Failed) and kept is not None:
                reply = replace(
                    reply,
                    status="out_of_memory",
                    owner="kernel",
                    reason=f"the provider keeps {kept:.0f} MiB of device memory after its calls",
                )
        return reply

    def _once(self, message: Run, say: Say, lean: bool = False) -> Measured | Tried | Failed:
        attempt = _Attempt(self, message, say, lean)
        try:
            return attempt.trial() if isinstance(message, Trial) else attempt.run()
        except Unsupported as reason:
            return attempt.failed("unsupported", "kernel", str(reason))
        except Exception as error:
            return attempt.classified(error)
        finally:
            attempt.release()
            self.watch.state()  # an attempt that failed on the way has put nothing back

    def load(self, tensor: dict[str, Any]) -> torch.Tensor:
        """A fresh copy of an input on the device.  Neighbouring cells share inputs, so the last ones stay there: to
        copy a gigabyte from the host costs more than to time it.  One that has lost its checksum is read again."""
        if self.device.type == "cpu":
            return placing.placed(_read(tensor, self.device), tensor)
        kept = self.values(tensor)
        return placing.placed(kept if tensor.get("layout") else kept.clone(), tensor)

    def values(self, tensor: dict[str, Any]) -> torch.Tensor:
        """An input as it is kept on the device, only to be read; see `load`."""
        file = tensor["file"]
        if self.device.type == "cpu":
            return _read(tensor, self.device)
        kept = self._inputs.pop(file, None)
        if kept is None or tensor_files.checksum(kept[0]) != kept[1]:
            fresh = _read(tensor, self.device)
            kept = (fresh, tensor_files.checksum(fresh))
        self._inputs[file] = kept  # last in order: used last
        while len(self._inputs) > MAX_KEPT_INPUTS:
            del self._inputs[next(iter(self._inputs))]
        return kept[0]

    def forget_inputs(self) -> None:
        """Give back what is kept for the next cell."""
        self._inputs.clear()

    def _held(self) -> int:
        """Bytes on the device that are kept for the next cell."""
        return sum(t.untyped_storage().nbytes() for t, _ in self._inputs.values())

    def function(self, provider: dict[str, Any], op: str) -> tuple[Callable[..., Any], list[str]]:
        """The provider's callable for an op, resolved once per child, and what its import did to the process."""
        key = f"{provider.get('path') or provider['name']}/{op}"
        if key not in self._functions:
            found = provider_call.resolve(provider, op)
            subject_files.placed.check()
            self._functions[key] = (found, [_at_import(did) for did in self.watch.state()])
        return self._functions[key]

    def called(
        self, call: dict[str, Any], op: str, tensors: Sequence[dict[str, Any]]
    ) -> tuple[Callable[..., Any], list[str]]:
        """The function of a cell's input tensors, and what importing the provider did to the process."""
        provider = call["provider"]
        forward, did = self.function(provider, op)
        if not provider.get("backward"):
            bound = provider_call.bind(forward, call)
            return provider_call.lazily_importing(bound, provider) if provider.get("path") else bound, did
        backward, more = self.function({**provider, "path": provider["backward"]}, op)
        own = provider_call.with_backward(forward, backward, call, tensors)
        return provider_call.lazily_importing(own, provider), [*did, *more]


class _Attempt:
    """The state of one attempt: its tensors, its phase, what it measured so far."""

    def __init__(self, session: TorchSession, message: Run, say: Say, lean: bool = False):
        self.s = session
        self.lean = lean  # the farm keeps nothing on the device: what still does not fit is a matter of the cell's size
        self.crowd: int | None = None  # bytes that a plain call was seen to need with its inputs: it fits by itself
        self.cut = False  # timing, and maybe a graph's capture, was cut short: the process is spent
        self.m = message
        self.say = say
        self.phase = "import"
        self.facts: dict[str, Any] = {"flags": []}
        self.problem: provider_call.Problem | None = None
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
        if self.s.programs and phase == "check":
            self.s.programs.begin(self.m.out_dir)
        self.say(Phase(self.m.revision, self.m.round, self.m.attempt, phase))

    def run(self) -> Measured:
        self.s.watch.mark()
        self.enter("import")
        function, imported = self.s.called(self.m.call, self.m.cell["op"], self.m.tensors)
        self.flag(imported)
        self.s.tuning.begin()
        if self.s.device.type != "cpu":
            # The first call compiles.  It runs apart, so that the checked call's memory and time are its own.  Every
            # call has tensors of its own: one that overwrites its inputs must not prepare the next one's.
            self.enter("compile")
            with Compilations() as counted:
                self.facts["compile_s"] = self.first_call(function)
            if counted.known:
                told = {"compiled": counted.compiled, "loaded": counted.loaded}
                self.facts["built"] = {**told, "hashes": list(dict.fromkeys(counted.old))}
            if self.m.only != TIME or self.lean:  # whoever runs out of memory has to know what a plain call needs
                self.facts["peak_memory_mib"] = self.peak_memory(function)
            if self.m.call.get("profile"):
                self.profiled(function)
        self.enter("check")
        outputs = self.check(function)
        subject_files.placed.check()  # what it imported when it was called, too
        self.account("write")
        described = self.write(outputs, "out")
        wrong = disqualifying(self.facts["flags"])
        if wrong:  # no time of it would be shown, and what patches a clock may never let a timer end
            timing: dict[str, Any] = {"method": "none", "samples_us": []}
        else:
            timing = self.timing(function, outputs)
        self.account("end")
        del outputs
        self.problem = None
        self.flag(self.s.watch.state())
        remains = self.s.watch.remains()
        self.flag(remains)
        self.facts["phases_s"] = self.spent
        if self.s.tuning.tried:
            self.facts["tuning_s"] = round(self.s.tuning.seconds, 6)
        return Measured(
            self.m.revision,
            self.m.round,
            self.m.attempt,
            described,
            self.facts,
            timing,
            spent=bool(remains) or self.cut,
        )

    def flag(self, findings: Iterable[str]) -> None:
        """Tell each once."""
        self.facts["flags"] += [f for f in dict.fromkeys(findings) if f not in self.facts["flags"]]

    def timed(self, action: Callable[[], Any]) -> float:
        start = time.perf_counter()
        action()
        self.synchronize()
        return round(time.perf_counter() - start, 6)

    def first_call(self, function: Callable[..., Any]) -> float:
        """Seconds of a call that may compile, over tensors of its own."""
        problem = self.make()
        return self.timed(lambda: self._drop(problem.run(function)))

    def peak_memory(self, function: Callable[..., Any]) -> float:
        """MiB (2^20 bytes) that one plain call takes beyond what was there, its outputs included.  Not in the checked
        call, whose poisoned allocations are larger than the provider's own.

        The fact `peak_memory_live_mib` is what peers count: the peak of everything that lives, so with the call's own
        inputs and upstream gradients, but without the copies of inputs that the farm keeps for the next cell."""
        api = torch.get_device_module(self.s.device.type)
        problem = self.make()
        own = sum(t.untyped_storage().nbytes() for t in (*problem.inputs, *problem.upstream) if t is not None)
        api.reset_peak_memory_stats(self.s.device)
        base = api.memory_allocated(self.s.device)
        self.timed(lambda: self._drop(problem.run(function)))
        taken = api.max_memory_allocated(self.s.device) - base
        self.facts["peak_memory_live_mib"] = round((own + taken) / 2**20, 3)
        self.crowd = own + taken
        return round(taken / 2**20, 3)

    def profiled(self, function: Callable[..., Any]) -> None:
        """One plain call for the profiler that this process runs under."""
        problem = self.make()
        self.synchronize()
        with profiled_call.marked(self.s.device):
            self._drop(problem.run(function))
            self.synchronize()

    def synchronize(self) -> None:
        if self.s.device.type != "cpu":
            torch.get_device_module(self.s.device.type).synchronize(self.s.device)

    def _drop(self, outputs: Any) -> None:
        del outputs

    def make(self) -> provider_call.Problem:
        """A fresh set of the cell's tensors on the device, with the values of the judge's files."""
        self.making = True  # what goes wrong until it is done is no fault of the code under test
        made = provider_call.problem(self.m.tensors, self.m.cell["operation"], self.s.load)
        self.making = False
        return made

    def check(self, function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        """The checked calls: the outputs of the first; what the judge must see of the others is written here.

        Of a cell that is only timed there is no other: the first shows whether its bits are those that were judged."""
        calls = CheckedCalls(self.s.device, self.m.tensors, self.make(), self.s.values, self.synchronize)
        with traffic.counted(self.facts, self.m.tensors, calls.problem.inputs):
            begun = time.perf_counter()
            outputs = calls.first(function)
            self.facts["check_s"] = round(time.perf_counter() - begun, 6)
        provider, cell = self.m.call["provider"], self.m.cell
        self.facts.update(calls.launches.facts(cell["mode"]))
        self.enter("check")  # a deadline of its own: the first call may have taken most of one
        others = None
        if self.m.only != TIME:
            others = calls.others(function, stranger=bool(provider.get("path")))
            if self.m.work.get("batch_invariant"):
                calls.alone(function)
        self.flag(self.s.watch.state())  # a patched check comes first: what it said since is worth nothing
        self.flag(calls.findings)
        if provider["name"] == "farm" and not provider.get("path") and all(t.numel() for t in outputs):
            self.flag(calls.launches.findings(cell["operation"]))
        if others is not None:
            written = {
                "where": "called again at the same addresses with other values",
                "outputs": self.write(others, "other"),
            }
            self.facts["others"] = [written]
        return outputs

    @property
    def expected(self) -> list[dict[str, Any]]:
        """The plans of the outputs, gradients and overwritten inputs."""
        return provider_call.judged(self.m.tensors)

    def write(self, outputs: tuple[torch.Tensor, ...], prefix: str) -> list[dict[str, Any]]:
        out = []
        for value, want in zip(outputs, self.expected):
            path = str(Path(self.m.out_dir, f"{prefix}-{want['name']}.bin"))
            try:
                out.append({"name": want["name"], **tensor_files.save(value, path)})
            except OSError as error:
                error.filename = error.filename or path  # a full disk does not name itself
                raise
        return out

    def crowded(self) -> bool:
        """Asked while memory is out: whether that is the farm's doing, whose checks and buffer sets need several times
        what a call needs.  Not where a plain call did not fit, nor where there is room for two: then this one asked for
        more than plain ones do."""
        if not self.lean or self.crowd is None:
            return False
        free: int = torch.get_device_module(self.s.device.type).mem_get_info(self.s.device)[0]
        return free < 2 * self.crowd

    def timing(self, function: Callable[..., Any], checked: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        """As `time`; a cell that is right, and whose buffer sets do not fit beside it, is not timed."""
        try:
            return self.time(function, checked)
        except Exception as error:
            if not (fault_owner.memory_is_out(error, fault_owner.vendors(self.s.fault, error)) and self.crowded()):
                raise
        self.facts["flags"].append(
            "not timed: one call fits in the device's memory, but the additional buffers for timing do not"
        )
        self.cut = True
        return {"method": "none", "samples_us": []}

    def time(self, function: Callable[..., Any], checked: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        """Samples by the cell's policy, and the outputs of a timed launch where they differ from the checked ones."""
        policy = dict(self.m.cell["timing"])
        method = self.m.call.get("timing_override") or policy["method"]
        if method == "none" or not self.s.timing_methods:
            return {"method": "none", "samples_us": []}
        if method not in self.s.timing_methods:
            raise Unsupported(f"backend {self.s.backend} has no timing method {method}")
        from farm.child.measure import bench_of, measure, told
        from farm.child.timing import consumes

        self.enter("timing")
        self.problem = self.make()
        bench = bench_of(function, self.problem, **self.given())
        bench.consumes = consumes(bench, bench.make())
        if bench.consumes or self.overwrites:
            which = (
                ("the backward overwrites what its forward saved", "so each call has a forward of its own, untimed")
                if bench.consumes
                else ("the call may overwrite its inputs", "which are restored before each call")
            )
            if "events" not in self.s.timing_methods:
                self.facts["flags"].append(f"not timed: {which[0]}, so a second call would see different data")
                return {"method": "none", "samples_us": []}
            if method != "events":
                self.facts["flags"].append(f"timed by events: {', '.join(which)}")
            method = "events"
        try:
            result = measure(method, bench, self.problem)
        except CaptureFailed as error:
            raise CaptureFailed(str(error)) from error
        out = told(result)
        self.facts["flags"] += result.flags
        timed = tuple(t.detach() for t in result.timed_outputs or ())
        if len(timed) != len(checked):
            raise WrongAnswer(
                f"returned {len(timed)} tensors in a timed launch, but {len(checked)} in the checked launch"
            )
        timed = tuple(placing.with_rows(p, t) for p, t in zip(self.expected, timed))
        if not all(_same_bits(a, b) for a, b in zip(timed, checked)):
            out["timed_outputs"] = self.write(timed, "timed")
        return out

    @property
    def overwrites(self) -> bool:
        """Whether a call may change its inputs."""
        return any(t.get("may_overwrite") or t["role"] == "mutated" for t in self.m.tensors)

    def given(self) -> dict[str, Any]:
        """What a timing policy has of the device and of the cell, but for its tensors."""
        return {
            "device": self.s.device,
            "cache_bytes": self.s.cache_bytes,
            "bytes_moved": int(self.m.work.get("bytes_moved", 0)),
            "policy": dict(self.m.cell["timing"]),
            "nodes": self.s.graph_nodes,
            "max_launches": self.s.max_graph_launches,
            "recorder": self.s.recorder,
            "overwrites": self.overwrites,
        }

    def trial(self) -> Tried:
        """Capture the call and replay it: from the phase `timing` on the process may end of that.  No output is
        written."""
        from farm.child.measure import bench_of
        from farm.child.timing.trial import try_capture

        self.s.watch.mark()
        self.enter("import")
        function, _ = self.s.called(self.m.call, self.m.cell["op"], self.m.tensors)
        self.enter("compile")
        compile_s = self.first_call(function)
        self.enter("timing")
        self.problem = self.make()
        try:
            differs = try_capture(bench_of(function, self.problem, **self.given()))
        except CaptureFailed as error:
            raise CaptureFailed(str(error)) from error
        self.problem = None
        spent = bool(self.s.watch.remains())  # what it switched is put back by `_once`, and the cell will tell it
        return Tried(self.m.revision, self.m.round, self.m.attempt, differs, compile_s, spent)

    def release(self) -> None:
        """Give the attempt's memory back to the allocator, and count no more."""
        if self.s.programs:
            self.s.programs.end()
        self.problem = None

    def failed(self, status: str, owner: str, reason: str, trace: str = "", fatal: bool = False) -> Failed:
        m = self.m
        return Failed(
            m.revision, m.round, m.attempt, status, owner, _one_line(reason), shortened(trace, LONGEST_TRACE), fatal
        )

    def squeezed(self) -> str:
        """Asked while memory is out: why that is no fault of the code under test; "" where it is."""
        if self.making and self.lean:
            return "the cell does not fit in the device's memory"
        if self.s.device.type != "cpu" and self.crowded():
            return "one call fits in the device's memory, but the additional buffers for the checks do not"
        return ""

    def classified(self, error: Exception) -> Failed:
        """Status and owner of an exception that the code under test let out."""
        trace = author_trace.written(error)
        found = fault_owner.verdict(
            error, fault_of=self.s.fault, device=self.s.device, phase=self.phase, squeezed=self.squeezed
        )
        return self.failed(found.status, found.owner, found.reason, trace if found.traced else "", found.fatal)


def _read(tensor: dict[str, Any], device: torch.device) -> torch.Tensor:
    try:
        return tensor_files.load(tensor["file"], tensor["dtype"], tuple(tensor["shape"]), device)
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError) as error:
        if isinstance(error, getattr(torch, "AcceleratorError", ())):
            raise
        raise fault_owner.InputsUnreadable(
            f"input {tensor['name']} cannot be read from {tensor['file']}: {error}"
        ) from error


def _at_import(finding: str) -> str:
    """What an import did and this process has undone only tells; but nobody patches a clock by accident."""
    return f"{finding} at import" if finding.startswith("patched ") else f"importing the provider {finding} (undone)"


def _bind_early(timing_methods: tuple[str, ...]) -> None:
    """Import what times before any provider is imported, so that what it calls is bound and watched from here on."""
    if timing_methods:
        import farm.child.timing  # noqa: F401


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


def _kernels_table(path: str | None) -> dict[str, str]:
    """The digest of the kernels' table in this process's environment, as a part of its fingerprint; {} without one."""
    if not path:
        return {}
    try:
        return {"kernels_table": hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}
    except OSError:
        return {"kernels_table": "unreadable"}
