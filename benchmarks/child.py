"""One measuring process: `python -m benchmarks.child PLAN EVENTS`, started by `benchmarks.processes`.

Takes the plan's items in order, and of each: the roof of its bytes, then per subject a checked call, then the farm's
`rotating_graph` policy.  Every fact is a JSON line in EVENTS the moment it is known, so that a crash costs one subject
of one case.  A plan is {"items": [...], "until": UNIX time, "policy": {...}, "warm": bool}; an item comes from
`benchmarks.cases.item`.  `warm` calls each subject and times nothing: that fills the compilers' caches.

Exit codes: 0 all done or out of time, 3 the device's context is spent and another process must go on.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import OURS, Case, case_of, split
from benchmarks.roof import bucket, envelope
from benchmarks.work import Work
from farm.child import provider_call
from farm.child.timing import Bench, TimingResult, rotating_graph
from farm.contracts.call import call_for
from farm.contracts.discovery import contract
from farm.deadline import Deadline
from farm.errors import CaptureFailed, Unsupported, WrongAnswer
from farm.timing.statistics import Bounds, median_half_width, quality, summarize

Emit = Callable[[Mapping[str, Any]], None]
Timer = Callable[[Bench], TimingResult]


class ContextSpent(Exception):
    """This process can measure nothing more."""


@dataclass
class Device:
    """Where it is measured, and how."""

    torch: torch.device
    name: str
    cores: int
    cache_bytes: int
    peak_gbps: float | None = None
    timer: Timer = rotating_graph

    @property
    def accelerator(self) -> bool:
        return self.torch.type != "cpu"

    def synchronize(self) -> None:
        if self.accelerator:
            torch.get_device_module(self.torch.type).synchronize(self.torch)

    def release(self) -> None:
        """Give freed memory back, so that one subject's graph leaves room for the next one's.  Cycles are looked for
        only where memory is short: that takes half a second with all that a compiler holds."""
        if not self.accelerator:
            return
        api = torch.get_device_module(self.torch.type)
        api.empty_cache()
        free, total = api.mem_get_info(self.torch)
        if free < total / 2:
            gc.collect()
            api.empty_cache()

    def state(self) -> str:
        """Clocks (MHz, multiprocessors and memory), degrees, watts, and the driver's mask of reasons to slow down."""
        if not self.accelerator:
            return ""
        from farm.backends.cuda import smi

        asked = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"
        return smi(f"--query-gpu={asked}", "--format=csv,noheader", deadline_s=10.0).strip()


def open_device() -> Device:
    """The GPU that torch sees; RuntimeError where there is none."""
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no GPU; these benchmarks need one")
    from farm.backends.cuda import peaks

    found = torch.cuda.get_device_properties(0)
    peak = peaks(found.name)
    cache = int(getattr(found, "L2_cache_size", 0) or (64 << 20))
    return Device(torch.device("cuda", 0), found.name, found.multi_processor_count, cache, peak[0] if peak else None)


def versions() -> dict[str, str]:
    """What ran, for the report."""
    found = {"python": sys.version.split()[0], "torch": torch.__version__}
    for name in ("triton", "liger-kernel", "quack-kernels"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Process:
    """The plan, being worked through."""

    def __init__(self, plan: Mapping[str, Any], emit: Emit, device: Device):
        self.plan, self.emit, self.device = plan, emit, device
        self.deadline = Deadline(max(0.0, float(plan["until"]) - time.time()))  # imports took their part
        self.functions: dict[tuple[str, str], Callable[..., Any] | str] = {}
        self.roofs: dict[int, float] = {}
        self.slowest = 0.0  # seconds of one item, so far

    def run(self) -> None:
        """Every item that there is time for; the events say which."""
        here = {"device": self.device.name, "cores": self.device.cores, "state": self.device.state()}
        self.emit({"event": "host", **here, "versions": versions()})
        for item in self.plan["items"]:
            begun = time.monotonic()
            if self.deadline.remaining < max(0.5, 1.2 * self.slowest):
                self.emit({"event": "end", "why": "deadline", "state": self.device.state()})
                return
            self.item(case_of(item["case"]), item)
            self.slowest = max(0.8 * self.slowest, time.monotonic() - begun)
        self.emit({"event": "end", "why": "done", "state": self.device.state()})

    def item(self, case: Case, item: Mapping[str, Any]) -> None:
        """One case for all its subjects."""
        told, roof = [f"{case.id}:"], None
        if item.get("roof"):
            roof = self.roof(case)
            told.append(f"roof {roof:.0f} |" if roof else "roof failed |")
        self.emit({"event": "begin", "case": case.id, "subject": "inputs"})
        try:
            work = Work(case, self.device.torch, bool(item.get("check")))
        except Exception as error:
            status = "unsupported" if isinstance(error, torch.OutOfMemoryError) else "crashed"
            reason = f"inputs and reference could not be made: {type(error).__name__}: {_line(error)}"
            for subject in item["subjects"]:
                self.result(case, subject, {"status": status, "reason": reason})
            self.device.release()
            if not self.alive():
                raise ContextSpent(reason) from error
            return
        for subject in item["subjects"]:
            if self.deadline.expired:
                told.append("out of time")
                break
            self.emit({"event": "begin", "case": case.id, "subject": subject})
            found = self.subject(work, subject)
            self.result(case, subject, found)
            speed = found.get("gbps")
            part = f" ({speed / roof:.3f})" if speed and roof and subject == OURS else ""
            told.append(f"{subject} {speed:.0f}{part}" if speed else f"{subject} {found['status']}")
            self.device.release()
            if found.get("fatal"):
                raise ContextSpent(found["reason"])
        if not self.plan.get("warm"):
            print(" ".join(told), flush=True)

    def result(self, case: Case, subject: str, found: Mapping[str, Any]) -> None:
        self.emit({"event": "result", "case": case.id, "subject": subject, **found})

    def roof(self, case: Case) -> float | None:
        """1e9 B/s of the best copy kernel over the case's bytes; once per number of bytes; None: it failed."""
        moved = bucket(case.bytes_moved)
        if moved in self.roofs:
            return self.roofs[moved]
        self.emit({"event": "begin", "case": case.id, "subject": "roof"})
        try:
            found = envelope(moved, self.copy_us, self.device.cores)
        except Exception as error:
            reason = f"{type(error).__name__}: {_line(error)}"
            self.result(case, "roof", {"status": "crashed", "reason": reason})
            if isinstance(error, CaptureFailed) or not self.alive():
                raise ContextSpent(reason) from error
            return None
        finally:
            self.device.release()
        self.roofs[moved] = found.gbps
        self.emit({"event": "roof", **found.__dict__})
        return found.gbps

    def copy_us(self, function: Callable[..., Any], size: int, nbytes: int) -> float:
        """The median time of a copy of `size` int32 elements; ValueError where it is no copy."""
        source = torch.randint(0, 1 << 30, (size,), dtype=torch.int32, device=self.device.torch)
        if not torch.equal(function(source), source):
            raise ValueError("a copy kernel copies wrongly")
        bench = Bench(
            function,
            lambda: provider_call.Problem([source.clone()], [], [], "no-grad-forward"),
            self.device.torch,
            self.device.cache_bytes,
            nbytes,
            dict(self.plan["policy"]),
        )
        found = summarize(self.device.timer(bench).samples_us)
        return found.p50 if found else 0.0

    def subject(self, work: Work, subject: str) -> dict[str, Any]:
        """One subject on one case: its status, and where that is `ok` its samples (not where it only warms)."""
        begun = time.monotonic()
        try:
            found = self.measured(work, subject)
        except WrongAnswer as error:
            found = {"status": "wrong", "reason": str(error)}
        except (Unsupported, NotImplementedError) as error:
            found = {"status": "unsupported", "reason": _line(error)}
        except CaptureFailed as error:
            found = {"status": "capture_failed", "reason": str(error), "fatal": True}
        except (torch.OutOfMemoryError, MemoryError) as error:
            found = {"status": "out_of_memory", "reason": _line(error)}
        except Exception as error:
            reason = f"{type(error).__name__}: {_line(error)}"
            found = {"status": "crashed", "reason": reason, "fatal": self.device.accelerator and not self.alive()}
        return {**found, "seconds": round(time.monotonic() - begun, 3)}

    def alive(self) -> bool:
        """Whether the device still answers this process."""
        try:
            self.device.synchronize()
            return float(torch.ones(1, device=self.device.torch).add_(1).item()) == 2.0
        except Exception:
            return False

    def measured(self, work: Work, subject: str) -> dict[str, Any]:
        """Checked, then timed."""
        function = self.bound(work.case, subject)
        if self.plan.get("warm"):
            work.make().run(function)
            return {"status": "ok"}
        outputs, launched = work.call(function)
        wrong = work.problem_with(outputs, subject)
        if wrong:
            return {"status": "wrong", "reason": wrong}
        bench = Bench(
            function,
            work.make,
            self.device.torch,
            self.device.cache_bytes,
            work.case.bytes_moved,
            dict(self.plan["policy"]),
        )
        timed = self.device.timer(bench)
        if timed.timed_outputs is not None and not _same(timed.timed_outputs, outputs):
            wrong = work.problem_with(timed.timed_outputs, subject)
            if wrong:
                return {"status": "wrong", "reason": f"in a timed launch: {wrong}"}
        return {"status": "ok", "launches_of_ours": launched, **self.numbers(work.case, timed)}

    def bound(self, case: Case, subject: str) -> Callable[..., Any]:
        """The subject's function for this case; `Unsupported` where its provider cannot be had."""
        provider, _ = split(subject)
        key = (provider, case.op)
        if key not in self.functions:
            try:
                self.functions[key] = provider_call.resolve({"name": provider}, case.op)
            except Unsupported as error:
                self.functions[key] = str(error)
        function = self.functions[key]
        if isinstance(function, str):
            raise Unsupported(function)
        return provider_call.bind(function, call_for(case.cell(subject), contract(case.op), {"name": provider}))

    def numbers(self, case: Case, timed: TimingResult) -> dict[str, Any]:
        """What the samples say; no speed where it is impossible."""
        found = summarize(timed.samples_us)
        if found is None:
            return {"status": "crashed", "reason": "the policy gave no samples"}
        bounds = Bounds(
            case.bytes_moved, timed.cold, peak_gbps=self.device.peak_gbps, outside=timed.outside_us is not None
        )
        worth = quality(timed.samples_us, timed.floor_us, bounds)
        return {
            "us": None if worth == "impossible" else round(found.p50, 4),  # that is no time; the samples stay
            "gbps": None if worth == "impossible" else round(case.bytes_moved / found.p50 / 1e3, 2),
            "rel_mad": round(found.rel_mad, 5),
            "half_width": round(min(median_half_width(timed.samples_us), 9.0), 5),
            "quality": worth,
            "samples_us": [round(s, 4) for s in timed.samples_us],
            "host_us": round(sorted(timed.host_us)[len(timed.host_us) // 2], 2) if timed.host_us else None,
            "sets": timed.sets,
            "launches": timed.launches,
            "cold": timed.cold,
            "flags": timed.flags,
            "kernels": timed.kernels,
        }


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(isinstance(x, torch.Tensor) and torch.equal(x, y) for x, y in zip(a, b))


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


def tune_alone() -> None:
    """Let no process use what another one tuned: while caches are filled several share the device, and what
    torch.compile would choose then by timing is not to be held against it."""
    try:
        import torch._inductor.config as inductor

        inductor.autotune_local_cache = False
    except ImportError:
        pass


def main(argv: list[str], kind: Callable[..., Process] = Process) -> int:
    plan = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    with Path(argv[1]).open("a", encoding="utf-8") as file:

        def emit(event: Mapping[str, Any]) -> None:
            file.write(json.dumps(event, default=str) + "\n")
            file.flush()

        try:
            device = open_device()
        except RuntimeError as error:
            emit({"event": "end", "why": "no device", "reason": str(error)})
            return 0
        tune_alone()
        try:
            kind(plan, emit, device).run()
        except ContextSpent:
            return 3
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a context that is lost would hang or crash the interpreter's own end
