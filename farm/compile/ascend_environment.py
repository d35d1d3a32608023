"""The Ascend tool chain's own virtual environment: made once per host, found by its pins.

triton-ascend installs itself as the package `triton`, so it cannot live beside the farm's own; it has wheels for Linux
and for Python 3.10 and 3.11 only.  ascendnpu-ir brings the compiler behind it (`bishengir-compile`) down to the plan of
the Unified Buffer; what makes the last binary of it belongs to CANN and is not here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from farm.deadline import Deadline
from farm.errors import UsageError
from farm.judge.cache import default_root
from farm.process import command

#: Installed first, with what they need.  torch serves for its meta tensors alone.
PINS = ("torch==2.13.0", "numpy>=1.26,<2.4", "pybind11==3.0.1", "ascendnpu-ir==1.2.0")
#: Installed last and alone: a torch for GPUs brings a `triton` of its own, which this one must replace.
TRITON = "triton-ascend==3.2.0"
PYTHONS = ((3, 11), (3, 10))

VERSION_SECONDS = 30.0
VENV_SECONDS = 180.0
INSTALL_SECONDS = 1800.0
CHECK_SECONDS = 180.0
#: How long to wait for another set-up of the same environment on this host.
LOCK_SECONDS = INSTALL_SECONDS + VENV_SECONDS + CHECK_SECONDS
READY = "ready.json"

_VERSION = "import sys, ensurepip, venv; print(*sys.version_info[:2])"
_CHECK = """
import importlib.metadata as m, os, subprocess, sys, importlib.util, torch, triton
from triton.backends import backends
assert "ascend" in backends, f"triton {triton.__version__} has no backend ascend"
exe = os.path.join(os.path.dirname(importlib.util.find_spec("ascendnpuir").origin), "bin", "bishengir-compile")
subprocess.run([exe, "--version"], check=True, stdout=subprocess.DEVNULL, timeout=60)
print(*(f"{n}=={m.version(n)}" for n in ("torch", "numpy", "triton-ascend", "ascendnpu-ir")))
"""


def folder() -> Path:
    """Where the environment of these pins belongs on this host, there or not."""
    text = " ".join((*PINS, TRITON, platform.machine()))
    return default_root() / "toolchains" / f"ascend-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def find() -> Path | None:
    """The environment's folder (its interpreter is `python_of` it), or None where it was not set up to the end."""
    found = folder()
    return found if (found / READY).is_file() and python_of(found).exists() else None


def python_of(environment: Path) -> Path:
    """The interpreter of an environment's folder."""
    return environment / "bin" / "python"


def setup(log: Callable[[str], object] = print) -> Path:
    """Make the environment where it is not there yet; its folder.  1.7 GB with a torch for the CPU, more where pip
    knows only one for GPUs; 34 s with packages at hand.

    UsageError, in one sentence: no Linux, no Python 3.10 or 3.11, a folder that cannot be written, another set-up that
    does not end, an installation that fails or takes longer than its deadline.
    """
    target = folder()
    if find():
        return target
    if not sys.platform.startswith("linux"):
        raise UsageError(
            f"the Ascend tool chain has wheels for Linux only, but this host runs {sys.platform}; use a Linux host",
            id="ascend-setup-platform",
        )
    python = _python()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target) as lock:
            if find():
                return target
            shutil.rmtree(target, ignore_errors=True)  # half-made by one that was killed
            return _make(target, python, lock, log)
    except OSError as error:
        raise UsageError(
            f"the Ascend tool chain cannot be set up in {target}: {error.strerror or error}; "
            "free space there, or set FARM_CACHE to another folder",
            id="ascend-setup-folder",
        ) from error


def _make(target: Path, python: str, lock: int, log: Callable[[str], object]) -> Path:
    began = time.monotonic()
    words = target.with_suffix(".log")
    words.write_bytes(b"")

    def run(what: str, program: Sequence[str], seconds: float) -> str:
        return _run(what, program, seconds, words, lock)

    try:
        log(f"Ascend tool chain: creating a virtual environment of {python} in {target}")
        run("creating the environment", [python, "-m", "venv", str(target)], VENV_SECONDS)
        pip = [str(python_of(target)), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        log(f"Ascend tool chain: installing {' '.join((*PINS, TRITON))}")
        deadline = Deadline(INSTALL_SECONDS)
        run("installing", [*pip, "install", *PINS], deadline.remaining)
        run("removing the upstream triton", [*pip, "uninstall", "--yes", "triton"], deadline.remaining)
        run("installing", [*pip, "install", "--no-deps", TRITON], deadline.remaining)
        versions = run("testing the environment", [str(python_of(target)), "-c", _CHECK], CHECK_SECONDS).split()
        facts = {"python": python, "versions": versions, "seconds": round(time.monotonic() - began, 1)}
        temporary = target / f"{READY}.{os.getpid()}"
        temporary.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        temporary.rename(target / READY)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    log(f"Ascend tool chain: ready after {facts['seconds']:g} s ({', '.join(versions)})")
    return target


def _python() -> str:
    """An interpreter of a version that triton-ascend has wheels for; this process's own first."""
    candidates = [sys.executable, *(f"python{a}.{b}" for a, b in PYTHONS), "python3"]
    seen = []
    for name in candidates:
        path = shutil.which(name) if name else None
        if not path:
            continue
        with contextlib.suppress(OSError):
            done = command.run([path, "-I", "-c", _VERSION], VERSION_SECONDS)
            if done.code != 0:
                continue
            found = tuple(int(part) for part in done.out.split())
            if found in PYTHONS:
                return path
            seen.append(".".join(map(str, found)))
    have = f", but this host has {', '.join(sorted(set(seen)))}" if seen else ""
    raise UsageError(
        "the Ascend tool chain needs Python 3.10 or 3.11 with venv and pip, because triton-ascend has wheels only "
        f"for these versions{have}; install python3.11 or python3.10 on PATH",
        id="ascend-setup-python",
    )


@contextlib.contextmanager
def _only_one(target: Path) -> Iterator[int]:
    """The descriptor of a lock that its holder's children share: a killed setup may leave an installer running, and the
    next setup has to wait for that too."""
    deadline = Deadline(LOCK_SECONDS)
    with target.with_suffix(".lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.expired:
                    raise UsageError(
                        f"another setup of {target} did not end within {LOCK_SECONDS:g} s; end that setup and try "
                        "again",
                        id="ascend-setup-busy",
                    ) from None
                time.sleep(0.2)
        yield file.fileno()


def _run(what: str, program: Sequence[str], seconds: float, words: Path, lock: int) -> str:
    """The command's output; it and all that it started are ended at its deadline.  UsageError if it fails."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "__PYVENV", "TRITON_"))}
    clean["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an installed torch-npu raises without CANN
    with words.open("ab") as sink:
        done = command.run(program, seconds, env=clean, stderr=sink, pass_fds=(lock,))
        sink.write(done.stdout)
    if done.code is None:
        raise UsageError(
            f"the Ascend tool chain: {what} took longer than {seconds:.1f} s; the output is in {words}; try again",
            id="ascend-setup-slow",
        )
    if done.code:
        raise UsageError(
            f"the Ascend tool chain: {what} failed ({_reason(words)}); correct the error that {words} shows, and try "
            "again",
            id="ascend-setup-failed",
        )
    return done.out


def _reason(words: Path) -> str:
    """The last line that reports an error."""
    lines = [line.strip() for line in words.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")[:200]
