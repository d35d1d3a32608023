"""What the code under test may not touch in its process, watched from before it is imported until its cell ends.

`Watch` compares three things with what they were: the functions that check and time (bound when the session opens,
before any provider is imported), torch's global state, and what is still running or held.  What can be put back is, so
that the next cell of this process does not suffer; what cannot (a thread, memory) spends the process.

It sees the mistakes and the shortcuts of Python code.  Who patches native code, or puts its patch back in time, is not
seen here (docs/trust.md).
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch

#: More than this, still held when a cell's own tensors are gone, is kept: a workspace of a vendor's library is less.
KEPT_MIB_DEVICE = 512
KEPT_MIB_HOST = 1024
#: How long a thread or a process that is about to end may take to.
GRACE_SECONDS = 0.3

_FUNCTIONS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("time", time, ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "sleep")),
    ("json", json, ("dumps", "loads")),
    ("os", os, ("write", "read", "_exit")),
    ("builtins", builtins, ("sorted", "sum", "min", "max", "len", "round", "zip", "isinstance", "type")),
    (
        "torch",
        torch,
        (
            "allclose",
            "equal",
            "isclose",
            "isnan",
            "isfinite",
            "empty",
            "empty_like",
            "empty_strided",
            "full",
            "zeros",
            "roll",
            "from_file",
            "is_grad_enabled",
            "get_default_dtype",
            "initial_seed",
            "get_device_module",
        ),
    ),
    ("torch.testing", torch.testing, ("assert_close",)),
    ("torch.autograd", torch.autograd, ("grad", "backward")),
    (
        "torch.Tensor",
        torch.Tensor,
        (
            "copy_",
            "clone",
            "detach",
            "contiguous",
            "cpu",
            "to",
            "view",
            "sum",
            "all",
            "item",
            "tolist",
            "data_ptr",
            "untyped_storage",
            "stride",
            "element_size",
            "fill_",
            "__eq__",
            "__ne__",
            "__bool__",
            "__getitem__",
            "neg",
            "float",
        ),
    ),
)
_DEVICE_FUNCTIONS = (
    "synchronize",
    "Event",
    "Stream",
    "CUDAGraph",
    "NPUGraph",
    "graph",
    "stream",
    "current_stream",
    "memory_allocated",
    "max_memory_allocated",
    "reset_peak_memory_stats",
    "mem_get_info",
    "_sleep",
)
_DEVICE_CLASSES = {
    "Event": ("elapsed_time", "record", "synchronize", "query", "wait", "__new__", "__init__"),
    "Stream": ("synchronize", "wait_stream", "wait_event", "record_event", "query"),
    "CUDAGraph": ("replay", "capture_begin", "capture_end"),
    "NPUGraph": ("replay", "capture_begin", "capture_end"),
}


class Functions:
    """The functions that check and time, as they were when this was made; `farm`'s own among them."""

    def __init__(self, device: torch.device):
        self._bound: dict[str, tuple[Any, str, Any]] = {}  # name -> owner, attribute, what the owner itself has there
        for prefix, owner, names in _FUNCTIONS:
            self._bind(prefix, owner, names)
        for kind in dict.fromkeys(("cuda", device.type)):
            with contextlib.suppress(RuntimeError, AttributeError):
                api = torch.get_device_module(kind)
                self._bind(f"torch.{kind}", api, _DEVICE_FUNCTIONS)
                for name, methods in _DEVICE_CLASSES.items():
                    if hasattr(api, name):
                        self._bind(f"torch.{kind}.{name}", getattr(api, name), methods)
        for name in sorted(n for n in sys.modules if n.startswith(("farm.", "kernels.launches"))):
            self._bind_module(name, sys.modules[name])

    def _bind(self, prefix: str, owner: Any, names: tuple[str, ...]) -> None:
        """What the owner inherits has to stay inherited: it comes from native code, which nobody can set here."""
        for name in names:
            if inspect.getattr_static(owner, name, _ABSENT) is not _ABSENT:
                self._bound[f"{prefix}.{name}"] = (owner, name, vars(owner).get(name, _ABSENT))

    def _bind_module(self, name: str, module: Any) -> None:
        """A module's own functions, and those of its own classes."""
        for key, value in list(vars(module).items()):
            if getattr(value, "__module__", None) != name:
                continue
            if isinstance(value, FunctionType):
                self._bind(name, module, (key,))
            elif isinstance(value, type):
                self._bind(name, module, (key,))
                methods = tuple(k for k, v in vars(value).items() if isinstance(v, (FunctionType, property)))
                self._bind(f"{name}.{key}", value, methods)

    def patched(self) -> list[str]:
        """Names of those that are other objects now, put back; a class that was replaced stands for its methods."""
        found = [n for n, (owner, key, was) in self._bound.items() if vars(owner).get(key, _ABSENT) is not was]
        for name in found:
            owner, key, was = self._bound[name]
            with contextlib.suppress(AttributeError, TypeError):
                delattr(owner, key) if was is _ABSENT else setattr(owner, key, was)
        return found


_ABSENT = object()


@dataclass(frozen=True)
class Setting:
    """One piece of torch's global state.  Settings of one `group` are told once: one switch may move several."""

    group: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]


def _attribute(group: str, owner: Any, name: str) -> Setting | None:
    if owner is None or not hasattr(owner, name):
        return None
    return Setting(group, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def settings(device: torch.device) -> list[Setting]:
    """The state that a call may not change: it belongs to the process, and the next caller meets it."""
    deterministic = Setting(
        "deterministic algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1]),
    )
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = [
        Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("default device", torch.get_default_device, lambda d: torch.set_default_device(_unless(d, "cpu"))),
        Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        Setting("number of threads", torch.get_num_threads, torch.set_num_threads),
        deterministic,
        Setting("TF32", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        _attribute("TF32", matmul, "allow_tf32"),
        _attribute("TF32", cudnn, "allow_tf32"),
        _attribute("reduced precision of sums", matmul, "allow_bf16_reduced_precision_reduction"),
        _attribute("reduced precision of sums", matmul, "allow_fp16_reduced_precision_reduction"),
        _attribute("cudnn benchmark", cudnn, "benchmark"),
        _attribute("cudnn determinism", cudnn, "deterministic"),
        Setting("autocast", lambda: torch.is_autocast_enabled(device.type), lambda v: _set_autocast(device, v)),
    ]
    if device.type != "cpu":
        api = torch.get_device_module(device.type)
        found += [
            Setting("current device", api.current_device, api.set_device),
            Setting("current stream", lambda: api.current_stream(device), api.set_stream),
        ]
    return [s for s in found if s is not None]


def _unless(device: torch.device, kind: str) -> torch.device | None:
    return None if device.type == kind else device


def _set_autocast(device: torch.device, value: bool) -> None:
    torch.set_autocast_enabled(device.type, value)


def _read(setting: Setting) -> Any:
    """Its value; a text where torch refuses to tell (after its old and new names for TF32 were both used)."""
    try:
        return setting.get()
    except Exception as error:
        return f"unreadable ({type(error).__name__})"


class IntegrityWatch:
    """One process's state, compared from `mark` to `look`; see the module's first lines.

    `held`: bytes on the device that the farm itself keeps (inputs for the next cell).
    """

    def __init__(self, device: torch.device, held: Callable[[], int] = lambda: 0):
        self.device = device
        self.functions = Functions(device)
        self._settings = settings(device)
        self._held = held
        self.mark()

    def mark(self) -> None:
        """From here on: what is, is taken for right."""
        self._values = [_read(s) for s in self._settings]
        self._seeds = self._read_seeds()
        self._environment = _environment()
        self._threads = set(threading.enumerate())
        self._children = set(_children())
        self._memory = self._mib()

    def state(self) -> list[str]:
        """Functions and settings that are not what they were, put back; cheap enough for every phase."""
        found = []
        names = self.functions.patched()
        if names:
            found.append(f"patched {', '.join(names[:4])}{' and more' if len(names) > 4 else ''}")
        told: set[str] = set()
        for setting, was in zip(self._settings, self._values):
            now = _read(setting)
            if now != was:
                if setting.group not in told:
                    found.append(f"changed torch's {setting.group} from {was} to {now}")
                    told.add(setting.group)
                with contextlib.suppress(Exception):
                    setting.put(was)
        self._values = [_read(s) for s in self._settings]
        seeds = self._read_seeds()
        if seeds != self._seeds:
            found.append("reseeded torch's random generator")
            self._seeds = seeds
        environment = _environment()
        changed = sorted(
            k for k in environment.keys() | self._environment.keys() if environment.get(k) != self._environment.get(k)
        )
        if changed:
            found.append(f"set environment variables ({', '.join(changed[:4])})")
            for name in changed:
                os.environ.pop(name, None)
                if name in self._environment:
                    os.environ[name] = self._environment[name]
        return found

    def remains(self) -> list[str]:
        """What runs or is held since `mark` though the cell's own tensors are gone.  Processes are ended here."""
        found = [f"left a thread running ({t})" for t in self._left_threads()]
        left = self._left_processes()
        if left:
            found.append(f"left a process running ({left[0][1]})")
            for pid, _ in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        kept = self.kept_mib()
        if kept is not None:
            where = "of this process's" if self.device.type == "cpu" else "of the device's"
            found.append(f"keeps {kept:.0f} MiB {where} memory after its calls")
        return found

    def kept_mib(self) -> float | None:
        """MiB more than at `mark` that are held; None where that is no more than it may be."""
        bound = KEPT_MIB_HOST if self.device.type == "cpu" else KEPT_MIB_DEVICE
        kept = self._mib() - self._memory
        if kept > bound:
            gc.collect()  # a graph of autograd's may be a cycle that nobody has collected yet
            kept = self._mib() - self._memory
        return kept if kept > bound else None

    def _mib(self) -> float:
        """MiB held: on a device what torch has given out but for what the farm keeps, else the process's data."""
        if self.device.type != "cpu":
            allocated = int(torch.get_device_module(self.device.type).memory_allocated(self.device))
            return (allocated - self._held()) / 2**20
        try:
            text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return 0.0
        return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmData:")), 0.0)

    def _read_seeds(self) -> tuple[int, ...]:
        seeds = [torch.initial_seed()]
        if self.device.type != "cpu":
            with contextlib.suppress(Exception):  # a device that is lost has no seed, and another word for it is said
                seeds.append(int(torch.get_device_module(self.device.type).initial_seed()))
        return tuple(seeds)

    def _left_threads(self) -> list[str]:
        end = time.monotonic() + GRACE_SECONDS
        left = [t for t in threading.enumerate() if t not in self._threads]
        for thread in left:
            if _whose(thread) is not None:
                with contextlib.suppress(AssertionError, RuntimeError):  # Python did not start it: no end to wait for
                    thread.join(max(0.0, end - time.monotonic()))
        named = ((t, _whose(t)) for t in left if t.is_alive())
        return [f"{t.name} in {where}" for t, where in named if where is not None]

    def _left_processes(self) -> list[tuple[int, str]]:
        end = time.monotonic() + GRACE_SECONDS
        while True:
            left = [(pid, _command(pid)) for pid in _children() if pid not in self._children]
            left = [(pid, what) for pid, what in left if what and not any(known in what for known in _WORKERS)]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.02)


#: Processes that torch itself leaves: the compiler's workers, and Python's helper that cleans up after them.
_WORKERS = ("torch/_inductor/compile_worker", "torch._inductor.compile_worker", "multiprocessing.resource_tracker")
#: A thread with no frame outside these is a pool that waits, or a library's own.
_LIBRARIES = sys.stdlib_module_names | {"torch", "triton", "tqdm"}


def _whose(thread: threading.Thread) -> str | None:
    """`module.function` of the first frame of a thread that is neither a library's nor Python's; None without one."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    found = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] not in _LIBRARIES:
            found = f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return found


def _children() -> list[int]:
    """Pids of this process's children; processes whose own parent has died come to it (`farm.child` asks for them)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(word) for word in (task / "children").read_text(encoding="ascii").split()]
    return found


def _command(pid: int) -> str:
    """What a living process is; "" for one that has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except (OSError, IndexError):
        return ""
    return "" if state in "ZX" else (line[:80] or f"process {pid}")


_OF_NOTE = (
    "CUDA_",
    "HIP_",
    "ROCR_",
    "ASCEND_",
    "NVIDIA_",
    "TRITON_",
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "LD_",
    "FARM_",
)


def _environment() -> dict[str, str]:
    """Variables that change how kernels are built or run; where a compiler's cache lies is no such thing."""
    return {k: v for k, v in os.environ.items() if k.startswith(_OF_NOTE) and not k.endswith("_CACHE_DIR")}
