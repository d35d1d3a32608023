"""`python -m farm.compile.worker JOB.json`: compiles the cells of one job for one target, and says what came of each.

The job: {"target", "path": folders that stand before everything, "reports": folder, "machine_code": bool,
          "asm": a folder for the compiled code as text, "" for none,
          "subject": None, or as farm.child.subject_files.place takes it,
          "cells": [{"index", "op", "operation", "call", "tensors"}]}
Lines on what was standard output, one JSON object each:

    {"event": "ready", "fingerprint": {...}}             the offline driver is active
    {"event": "unusable", "reason": "..."}               this Python cannot compile for the target; nothing follows
    {"event": "refused", "reason": "..."}                it would import other files than the subject's; nothing follows
    {"event": "begin", "cell": index, "log": bytes}      what is printed from here on is this cell's
    {"event": "kernel", "hash", "name", "resources"}     once per compiled kernel, before its first cell's end
    {"event": "end", "cell", "status", "reason", "launches", "records", "flags", "compile_s"}
    {"event": "done"}

Everything that the compiler or the code under test prints goes to the log.  Runs on Python 3.10 and on the Triton of
the target's own tool chain, so it needs nothing but torch, Triton, NumPy and the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import gc
import hashlib
import importlib
import json
import os
import platform
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm import atomic_files, kernel_package
from farm.child import offline_driver
from farm.child.__main__ import _die_with_parent, _private_pipes
from farm.compile.targets import TARGETS, CompileTarget
from farm.errors import Unsupported, WrongAnswer

#: The code that reads compiled kernels: reports are kept between runs, and belong to the code that made them.
READERS = Path(__file__).parent
#: Families of compilers: a module with offline(target) and resources(kernel).
FAMILIES = {"cuda": "nvidia", "hip": "amd", "npu": "ascend"}
#: What a host may run out of while a compiler writes its files: no fault of any kernel.
HOST_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
Say = Callable[[dict[str, Any]], None]
_TEMPORARY = re.compile(r"\S*/tmp\w+(?=\.\w+)")


def main(argv: list[str]) -> int:
    gc.disable()  # until all is imported
    _die_with_parent()
    _, sink = _private_pipes()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # asked for where a cell hangs

    def say(message: dict[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        sink.write(json.dumps(message, separators=(",", ":")) + "\n")
        sink.flush()

    job = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    _put_first(job["path"])
    wrong = _not_taken(job.get("subject"))
    if wrong:
        say({"event": "refused", "reason": wrong})
        return 0
    target = TARGETS[job["target"]]
    family = importlib.import_module(f"farm.compile.{FAMILIES[target.triton]}")
    with contextlib.ExitStack() as stack:
        try:
            driver = stack.enter_context(family.offline(target))
            compiler = Compiler(target, family, driver, Path(job["reports"]), job["machine_code"], say)
        except ImportError as error:
            say({"event": "unusable", "reason": f"{error}"})
            return 0
        gc.freeze()
        gc.enable()
        compiler.asm = str(job.get("asm") or "")
        say({"event": "ready", "fingerprint": fingerprint()})
        for cell in job["cells"]:
            sys.stderr.flush()
            say({"event": "begin", "cell": cell["index"], "log": os.fstat(2).st_size})
            say({"event": "end", "cell": cell["index"], **compiler.compile(cell)})
    say({"event": "done"})
    return 0


def _not_taken(subject: dict[str, Any] | None) -> str:
    """Why the subject's files are not what would be imported here; "" where they are, or there is no subject."""
    if not subject:
        return ""
    from farm.child import subject_files

    proven = subject_files.place(subject)
    return str(proven["wrong"] or ("" if proven["digest"] == subject["digest"] else "its files changed on this host"))


def _put_first(folders: list[str]) -> None:
    """Import from these before anything else: a virtual environment may put its own folders before PYTHONPATH."""
    sys.path[:0] = folders
    for name in [n for n in sys.modules if n.split(".")[0] == "kernels"]:
        del sys.modules[name]
    ours = next((f for f in folders if Path(f, "kernels", "launches.py").is_file()), None)
    if ours and not str(importlib.import_module("kernels").__file__).startswith(ours):
        raise RuntimeError(f"another package named kernels is imported instead of the one in {ours}")


def fingerprint() -> dict[str, Any]:
    """Which tool chain this is."""
    import torch
    import triton

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "machine": platform.machine(),
    }


class Compiler:
    """Compiles cells under an active offline driver."""

    def __init__(self, target: CompileTarget, family: Any, driver: Any, reports: Path, machine_code: bool, say: Say):
        from farm.child import provider_call

        self.target, self.family, self.driver, self.reports, self.say = target, family, driver, reports, say
        self.calling = provider_call
        # What others' compilers write last is the machine code in letters.
        self.options = {"machine_code": True} if machine_code and target.triton == "cuda" else {}
        self.asm = ""
        self.known: set[str] = set()  # kernels whose resources were said
        self.functions: dict[tuple[str, str], Any] = {}

    def compile(self, cell: dict[str, Any]) -> dict[str, Any]:
        """The end of one cell; what the code under test raises never leaves this method."""
        begun = time.perf_counter()
        self.driver.launches.clear()
        getattr(self.driver, "refused", []).clear()
        forward: int | None = None  # how many launches were the forward's

        def through_forward(count: int) -> None:
            nonlocal forward
            forward = count

        with _Recorder() as recorder:
            status, reason = self.call(cell, through_forward)
        seconds = round(time.perf_counter() - begun, 4)
        count = len(self.driver.launches) if forward is None else forward
        launches = [
            {
                "kernel": launch[0],
                "grid": list(launch[1]),
                "hash": launch[2],
                "rivals": list(_rivals(launch)),
                "phase": "forward" if i < count else "backward",
            }
            for i, launch in enumerate(self.driver.launches)
        ]
        if status == "built" and not launches:
            status, reason = "unsupported", "the call launches no Triton kernel, so nothing can be compiled"
        try:
            for launch in launches:
                for hash in (launch["hash"], *launch["rivals"]):
                    self.tell(hash)
        except Exception as error:
            traceback.print_exc()
            status, reason = "infra_error", f"the kernel's resources cannot be read: {type(error).__name__}: {error}"
        refused = [f"a variant for tuning does not compile: {_text(e)}" for e in self.refused()]
        return {
            "status": status,
            "reason": " ".join(reason.split())[:1000],
            "launches": launches,
            "records": recorder.records,
            "flags": list(dict.fromkeys(refused)),
            "compile_s": seconds,
        }

    def refused(self) -> list[Exception]:
        return list(getattr(self.driver, "refused", []))

    def call(self, cell: dict[str, Any], through_forward: Callable[[int], None]) -> tuple[str, str]:
        """Runs the cell's operation on tensors without memory; (status, reason)."""
        try:
            function = self.function(cell)
            problem = self.problem(cell)
            outputs = problem.forward(function)
            through_forward(len(self.driver.launches))
            if cell["operation"] in ("backward", "full"):
                problem.gradients(outputs)
        except (Unsupported, NotImplementedError) as error:
            return "unsupported", str(error) or type(error).__name__
        except WrongAnswer as error:
            return "crashed", str(error)
        except Exception as error:
            traceback.print_exc()
            return classify(error)
        return "built", ""

    def function(self, cell: dict[str, Any]) -> Any:
        """The cell's function of its input tensors."""
        call = cell["call"]
        forward = self.resolved(call["provider"], cell["op"])
        backward = call["provider"].get("backward")
        if backward:
            own = self.resolved({**call["provider"], "path": backward}, cell["op"])
            bound = self.calling.with_backward(forward, own, call, cell["tensors"])
        else:
            bound = self.calling.bind(forward, call)
        return self.calling.lazily_importing(bound, call["provider"]) if call["provider"].get("path") else bound

    def resolved(self, provider: dict[str, Any], op: str) -> Any:
        key = (provider.get("path") or provider["name"], op)
        if key not in self.functions:
            self.functions[key] = self.calling.resolve(provider, op)
        return self.functions[key]

    def problem(self, cell: dict[str, Any]) -> Any:
        return offline_driver.problem(cell["tensors"], cell["operation"])

    def tell(self, hash: str) -> None:
        """Say a kernel's resources, once."""
        if hash in self.known:
            return
        kernel = self.driver.kernels[hash]
        path = self.reports / f"{_digest(self.target, kernel, self.options)}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = self.family.resources(kernel, **self.options)
            _keep(path, json.dumps(found))
        self.known.add(hash)
        if self.asm:
            self.write_asm(kernel)
        self.say(
            {
                "event": "kernel",
                "hash": hash,
                "name": kernel.name,
                "resources": found,
                "constants": self.constants(kernel),
                "module": self.module(kernel),
            }
        )

    def write_asm(self, kernel: Any) -> None:
        """Every text that the compiler has made on the way, and the machine code in letters: NAME-HASH.KIND."""
        texts = {kind: text for kind, text in dict(kernel.asm).items() if isinstance(text, str)}
        if "cubin" in kernel.asm:
            texts["sass"] = self.family.disassemble(kernel.asm["cubin"])
        for kind, text in texts.items():
            place = Path(self.asm, f"{re.sub('[^A-Za-z0-9_.-]', '_', kernel.name)[:100]}-{kernel.hash[:12]}.{kind}")
            place.write_text(text, encoding="utf-8")

    def constants(self, kernel: Any) -> dict[str, Any]:
        from farm.compile.offline import constants

        with contextlib.suppress(Exception):  # for people only, and not alike in every Triton
            return constants(kernel)
        return {}

    def module(self, kernel: Any) -> str:
        """Where the kernel is written, as Python names it."""
        with contextlib.suppress(Exception):
            return str(kernel.src.fn.fn.__module__)
        return ""


def classify(error: Exception) -> tuple[str, str]:
    """(status, reason) of an exception out of a compilation on tensors without memory."""
    text, kernel = _text(error), _kernel(error)
    text = f"kernel {kernel}: {text}" if kernel else text
    if isinstance(error, OSError) and error.errno in HOST_ERRORS:
        return "infra_error", f"this host ran out of a resource: {text}"
    names = {c.__name__ for c in type(error).__mro__}
    module = type(error).__module__.split(".")[0]
    if names & {"CompilationError", "OutOfResources", "PTXASError", "MLIRCompilationError"} or module == "triton":
        return "compile_error", text
    if isinstance(error, RuntimeError) and "PassManager::run failed" in str(error):
        return "compile_error", f"{text} (the log contains the compiler's output)"
    if "compiled with CUDA enabled" in text or "Found no NVIDIA driver" in text or "No HIP GPUs" in text:
        return "unsupported", f"the code needs a device before it launches a kernel ({text})"
    return "crashed", text


def _text(error: Exception) -> str:
    """One line; of a compiler's long message the lines that say what is wrong, alike for like errors: without the names
    of its temporary files."""
    lines = [_TEMPORARY.sub("kernel", line.strip()) for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() and not line.startswith("Repro command")]
    told = errors[:3] or list(dict.fromkeys([*lines[:1], *lines[-1:]]))  # Triton: where, the source, what
    return f"{type(error).__name__}: {' '.join(told)}"[:600]


def _kernel(error: Exception) -> str:
    """The Triton kernel that was being compiled or launched, from the frames of the traceback."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        owner: Any = trace.tb_frame.f_locals.get("self")
        if any(c.__name__ == "JITFunction" for c in type(owner).__mro__):  # Gluon's is a subclass
            found = str(owner.fn.__name__)
        trace = trace.tb_next
    return found


def _rivals(launch: Any) -> tuple[str, ...]:
    return tuple(h for h in (launch[3] if len(launch) > 3 else ()) if h != launch[2])


def _digest(target: CompileTarget, kernel: Any, options: dict[str, Any]) -> str:
    """What a report hangs on: the kernel's hash names its source, options, target and compiler."""
    return hashlib.sha256(f"{_readers(READERS)}\0{target}\0{kernel.hash}\0{options}".encode()).hexdigest()[:40]


@functools.cache
def _readers(folder: Path) -> str:
    """Digest of the modules in a folder."""
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in sorted(folder.glob("*.py")))).hexdigest()


def _keep(path: Path, text: str) -> None:
    """Write a report whole, or not: without it the next run reads the kernel again."""
    with contextlib.suppress(OSError):
        atomic_files.write(path, text)


class _Recorder:
    """What our own kernel package notes of its launches, where the revision's package can tell."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        try:
            self.module: Any = kernel_package.load("launches")
        except ImportError:
            self.module = None

    def __enter__(self) -> _Recorder:
        if self.module:
            self.module.enable()
            self.module.drain()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.module:
            self.records = self.module.drain()
            self.module.disable()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)  # no atexit handler of the code under test runs
