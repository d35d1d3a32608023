"""Looks at this host.  Imports happen in a process of their own, and every wait has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from farm import __version__, address, backends, providers, supervise
from farm.deadline import Deadline
from farm.doctor.facts import BackendFacts, Facts, Space, Trial
from farm.errors import FarmError
from farm.filecache import default_root
from farm.ops import ROOT, foreign_kernels

STEP_SECONDS = 60.0
TOTAL_SECONDS = 150.0
TOOL_SECONDS = 20.0
PACKAGES = ("numpy", "pyyaml", "ray", "pyarrow", "jinja2", "rich")
VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
#: Backend -> the vendor's program, and a file that its driver makes.
LOOKED_FOR = {
    "cuda": ("nvidia-smi", "/dev/nvidiactl"), "rocm": ("amd-smi", "/dev/kfd"),
    "ascend": ("npu-smi", "/dev/davinci_manager"),
}  # fmt: skip


def gather(store: str | Path) -> Facts:
    """Everything that is asked of a host; `store` is where runs would go."""
    peers = _peers()
    steps = ["torch", "triton", "ray", "accelerator", "kernels", *(f"provider {name}" for name in peers)]
    written = address.written()
    return Facts(
        python=sys.version_info[:3],
        executable=sys.executable,
        farm=__version__,
        packages={name: _version(name) for name in PACKAGES},
        trials=trials(steps),
        peers=peers,
        backends=tuple(_backend(name) for name in backends.known()),
        our_kernels=str(ROOT / "kernels"),
        foreign_kernels=foreign_kernels(),
        memory=space("/dev/shm") if Path("/dev/shm").is_dir() else None,
        store=space(store),
        scratch=space(address.address_file().parent.parent),
        cache=space(default_root()),
        cxx=_first(os.environ.get("CXX"), "g++", "clang++"),
        cc=_first(os.environ.get("CC"), "gcc", "clang", "cc"),
        python_header=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        variables={**{n: os.environ[n] for n in VARIABLES if n in os.environ},
                   **{n: "set" for n in SECRETS if n in os.environ}},
        ray_written=written,
        ray_file=str(address.address_file()),
        ray_silent=_silent(written) if written else None,
        now=time.time(),
        newest_source=max(p.stat().st_mtime for p in (ROOT / "farm").rglob("*.py")),
    )  # fmt: skip


def trials(
    steps: Sequence[str], *, step_s: float = STEP_SECONDS, total_s: float = TOTAL_SECONDS,
    command: Sequence[str] = (sys.executable, "-m", "farm.doctor.attempts"),
) -> dict[str, Trial]:  # fmt: skip
    """Try `steps` in one process; where one kills it or hangs, the rest goes on in another."""
    out: dict[str, Trial] = {}
    deadline = Deadline(total_s)
    while left := [s for s in steps if s not in out]:
        if deadline.remaining < 1.0:
            out |= dict.fromkeys(left, Trial("skipped", f"no time is left of {total_s:g} s"))
            break
        out |= _one_process(left, step_s, deadline, command)
    return out


def _one_process(steps: list[str], step_s: float, deadline: Deadline, command: Sequence[str]) -> dict[str, Trial]:
    """What came of `steps` until the end of one process, at least of the first."""
    environment = supervise.child_variables({}, supervise.Environment.default())
    with tempfile.TemporaryFile() as said:  # a file, not a pipe: what a library starts may keep a pipe open
        process = subprocess.Popen(
            [*command, *steps], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL,
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            found, current, end = _follow(process, lambda: _lines(said.fileno()), step_s, deadline)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if end is not None:
        found[current or next(s for s in steps if s not in found)] = end
    return found


def _follow(
    process: subprocess.Popen[bytes], read: Callable[[], list[dict[str, Any]]], step_s: float, deadline: Deadline
) -> tuple[dict[str, Trial], str, Trial | None]:
    """Trials that ended, the step that did not, and how that ended; None where all of them did."""
    step = Deadline(step_s)
    seen = 0
    while True:
        code = process.poll()
        lines = read()
        if len(lines) != seen:
            seen, step = len(lines), Deadline(step_s)
        found = {
            line["step"]: Trial(line["ended"], line.get("text", ""), line.get("data", {}))
            for line in lines
            if line["ended"] != "begun"
        }
        current = next((line["step"] for line in reversed(lines) if line["step"] not in found), "")
        if code is not None:
            ended = code == 0 and not current and bool(found)
            return found, current, None if ended else Trial("died", supervise.describe_exit(code))
        if step.expired or deadline.expired:
            return found, current, Trial("hung", f"{min(step.seconds, deadline.seconds):g} s")
        time.sleep(0.05)


def _lines(descriptor: int) -> list[dict[str, Any]]:
    """The whole lines written so far; the writer's own place in the file is left alone."""
    whole = os.pread(descriptor, os.fstat(descriptor).st_size, 0).rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def _peers() -> dict[str, str]:
    """Provider -> its distribution where that is neither torch nor ours."""
    out = {}
    for name in sorted(m.name for m in iter_modules(providers.__path__)):
        try:
            module: Any = import_module(f"farm.providers.{name}")
        except Exception:
            out[name] = ""  # its trial says why
            continue
        if hasattr(module, "NAME"):
            distribution = module.DISTRIBUTION or ""
            out[name] = "" if distribution in ("torch", "kernel-farm") else distribution
    return out


def _backend(name: str) -> BackendFacts:
    module = backends.get(name)
    not_yet = getattr(module, "NOT_YET", "")
    tool, file = LOOKED_FOR.get(name, ("", ""))
    path = (shutil.which(tool) or "") if tool else ""
    devices = () if not_yet else tuple(d.name for d in module.detect())
    failure = _failure(path) if path and not devices and not not_yet else ""
    seen = file if file and Path(file).exists() else ""
    return BackendFacts(name, bool(module.ACCELERATOR), not_yet, tool, path, failure, seen, devices)


def _failure(tool: str) -> str:
    """What a vendor's tool says where it lists nothing."""
    try:
        done = subprocess.run(
            [tool], capture_output=True, text=True, errors="replace", timeout=TOOL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {TOOL_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    lines = (done.stderr + done.stdout).strip().splitlines()
    return f"exit code {done.returncode}" + (f": {lines[0].strip()[:200]}" if lines else "")


def space(path: str | Path) -> Space:
    """Whether something can be written at `path`, tried in the nearest folder that exists; leaves nothing behind."""
    there = Path(path).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        if not there.is_dir():
            return Space(str(path), failure=f"{there} is not a folder")
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
        usage = shutil.disk_usage(there)
    except OSError as error:
        return Space(str(path), failure=error.strerror or str(error))
    return Space(str(path), usage.free, usage.total)


def _silent(where: str) -> str | None:
    try:
        return address.silent(*address.parse(where, "it"), seconds=2.0)
    except FarmError:
        return "that is no HOST:PORT"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _first(*names: str | None) -> str | None:
    return next((path for n in names if n and (path := shutil.which(n.split()[0]))), None)
