"""`python -m farm.doctor.attempts STEP...`: tries one thing after another, and says how each went, a JSON line each.

It runs in the environment that is asked about, on any Python that this farm supports, and itself needs nothing beyond
the standard library.  A step may crash or hang; who reads the lines knows by the last one which it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

Said = tuple[str, dict[str, Any]]
TOOL_SECONDS = 20.0
#: Distributions that decide what `import triton` and `import torch` mean.
LOOKED_FOR = (
    "numpy", "torch", "torch-npu", "triton", "triton-ascend", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm",
    "pytorch-triton-xpu",
)  # fmt: skip


def _python() -> Said:
    """This interpreter, and which of the distributions are installed beside it."""
    scheme = sysconfig.get_default_scheme()  # Debian's own names a folder without headers; Triton passes it by as well
    include = sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
    header = Path(include, "Python.h").is_file()
    found = {name: version for name in LOOKED_FOR if (version := _installed(name))}
    data = {"executable": sys.executable, "machine": platform.machine(), "header": header, "distributions": found}
    return platform.python_version(), data


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _torch() -> Said:
    torch = import_module("torch")
    hip, cuda = torch.version.hip, torch.version.cuda
    built = f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "the CPU"
    return torch.__version__, {"built_for": built, "hip": hip or "", "cuda": cuda or ""}


def _accelerator() -> Said:
    """The devices that torch sees, what they are, and what torch's own kernels were built for."""
    torch = import_module("torch")
    with contextlib.suppress(ImportError):
        if _installed("torch-npu"):
            import_module("torch_npu")  # where it does not load itself
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kind, count = _devices(torch)
    data: dict[str, Any] = {"kind": kind, "count": count, "warnings": [str(w.message)[:300] for w in said][:4]}
    if count and kind in ("cuda", "rocm"):
        data["architectures"] = list(torch.cuda.get_arch_list())
        properties = torch.cuda.get_device_properties(0)
        gcn = str(getattr(properties, "gcnArchName", "")).split(":")[0]
        data["architecture"] = gcn if kind == "rocm" else f"sm_{properties.major}{properties.minor}"
    return kind or "none", data


def _devices(torch: Any) -> tuple[str, int]:
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        return "ascend", int(npu.device_count())
    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda", int(torch.cuda.device_count())
    return "", 0


def _driver() -> Said:
    """What Triton would compile for and launch on: the first launch builds its launcher with the C compiler."""
    active = import_module("triton.runtime").driver.active
    target = active.get_current_target()
    getattr(active, "utils", None)
    return f"{target.backend}:{target.arch}", {}


def _ptxas(step: str) -> Said:
    """The assembler that Triton takes for `ptxas sm_100`: where, which version, for which parts."""
    digits = re.sub(r"\D", "", step)
    named = {n: os.environ[n] for n in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH") if os.environ.get(n)}
    useless = [f"{name}={path}" for name, path in named.items() if not _release(path)]
    path = _ptxas_of_triton(int(digits) if digits else 90)
    version = _release(path)
    if not version:
        raise FileNotFoundError(f"{path or 'no ptxas'} does not run")
    told = _told(path, "--help")
    architectures = sorted({f"sm_{n}" for n in re.findall(r"'sm_(\d+)", told)})
    return version, {"path": path, "useless": useless, "architecture": step.partition(" ")[2], "knows": architectures}


def _ptxas_of_triton(architecture: int) -> str:
    compiler = import_module("triton.backends.nvidia.compiler")
    ask: Callable[..., Any] | None = getattr(compiler, "get_ptxas", None)
    if ask is None:  # before 3.4
        return str(compiler._path_to_binary("ptxas")[0])
    found = ask(architecture)
    return str(getattr(found, "path", found[0] if isinstance(found, tuple) else found))


def _release(path: str) -> str:
    found = re.search(r"release (\d+\.\d+)", _told(path, "--version")) if path else None
    return found[1] if found else ""


def _told(path: str, option: str) -> str:
    try:
        done = subprocess.run(
            [path, option], capture_output=True, text=True, errors="replace", timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def _amdsmi() -> Said:
    """AMD's library: imported, started, asked how many devices it has."""
    library = import_module("amdsmi")
    library.amdsmi_init()
    try:
        count = len(library.amdsmi_get_processor_handles())
    finally:
        library.amdsmi_shut_down()
    return str(getattr(library, "__version__", "of unknown version")), {"count": count}


def _acl() -> Said:
    """CANN's Python library, asked as Ray asks it."""
    library = import_module("acl")
    count, code = library.rt.get_device_count()
    return str(count), {"count": count, "code": code}


def _kernels() -> Said:
    from farm.ops import use_our_kernels

    use_our_kernels()
    return str(Path(str(import_module("kernels.contract").__file__)).resolve().parent), {}


def _provider(step: str) -> Said:
    module = import_module(f"farm.providers.{step.partition(' ')[2]}")
    for op in module.OPS:
        module.load(op)
    version = _installed(module.DISTRIBUTION) if module.DISTRIBUTION else ""
    return f"{module.DISTRIBUTION} {version}" if version else "", {}


#: Devices that are asked at once.  npu-smi answers one question per start, of which eight devices need a hundred; the
#: others' libraries answer in microseconds, and are used by one thread.
_AT_ONCE = {"ascend": 8}


def _devices_of(step: str) -> Said:
    """`devices BACKEND`: what the backend's host side lists, each with its identity, who computes on it, and the name
    of its lock.  It loads a vendor's library, hence here."""
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import asdict

    from farm import backends

    module = backends.get(step.partition(" ")[2])

    def told(device: Any) -> dict[str, Any]:
        said: dict[str, Any] = {"id": device.id, "name": device.name, "uuid": device.uuid}
        with contextlib.suppress(Exception):
            found = module.identity(device.id, {}) if hasattr(module, "identity") else None
            said["identity"] = asdict(found) if found is not None else None
        with contextlib.suppress(Exception):
            said["lock"] = module.physical_id(device.id, {}) if hasattr(module, "physical_id") else ""
        with contextlib.suppress(Exception):
            said["processes"] = _computing(module, device.id)
        with contextlib.suppress(Exception):
            said["unfit"] = module.unfit(device.id) if hasattr(module, "unfit") else ""
        return said

    with ThreadPoolExecutor(_AT_ONCE.get(module.NAME, 1)) as pool:
        out = list(pool.map(told, module.detect()))
    data: dict[str, Any] = {"devices": out}
    with contextlib.suppress(Exception):
        data["complaints"] = module.complaints() if hasattr(module, "complaints") else []
    return str(len(out)), data


def _computing(module: Any, device_id: str) -> list[list[Any]]:
    import tempfile

    with tempfile.TemporaryDirectory() as spool:
        reader = module.telemetry(device_id, {}, spool) if hasattr(module, "telemetry") else None
        if reader is None:
            return []
        try:
            found = reader.counters().processes or ()
        finally:
            reader.close()
    return [[p.pid, p.name] for p in found]


def _head(step: str) -> Said:
    """`head HOST:PORT`: the cluster's versions and nodes, as its head gives them to whoever may join; nothing joins."""
    address = step.partition(" ")[2]
    client = import_module("ray._raylet").GcsClient(address=address)
    told = client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=5)
    said = json.loads(told) if told else {}
    nodes, here = [], None
    for node in client.get_all_node_info(timeout=5).values():
        if getattr(node, "state", 0) == 0:  # alive
            nodes.append({"host": node.node_manager_hostname, "labels": dict(node.labels)})
            if node.is_head_node:
                here = (str(node.node_manager_address), int(node.runtime_env_agent_port))
    data = {"ray": said.get("ray_version", ""), "python": said.get("python_version", ""), "nodes": nodes}
    with contextlib.suppress(Exception):
        data["clock_ahead_s"] = _clock_ahead(*here) if here else None
    return data["ray"], data


def _clock_ahead(host: str, port: int) -> float:
    """Seconds by which this host's clock is ahead of the head's, as its HTTP agent dates an answer (to the second; it
    answers so to strangers too, with 401)."""
    import time
    from email.utils import parsedate_to_datetime
    from http.client import HTTPConnection

    talk = HTTPConnection(host, port, timeout=3)
    began = time.time()
    talk.request("GET", "/")
    date = talk.getresponse().getheader("Date")
    middle = (began + time.time()) / 2
    talk.close()
    return middle - parsedate_to_datetime(str(date)).timestamp() - 0.5


def _imported(step: str) -> Said:
    return str(getattr(import_module(step), "__version__", "of unknown version")), {}


_PLAIN: dict[str, Callable[[], Said]] = {
    "python": _python, "torch": _torch, "accelerator": _accelerator, "driver": _driver, "amdsmi": _amdsmi, "acl": _acl,
    "kernels": _kernels,
}  # fmt: skip
_NAMING: dict[str, Callable[[str], Said]] = {
    "provider": _provider, "devices": _devices_of, "head": _head, "ptxas": _ptxas
}  # fmt: skip


def _said(error: BaseException) -> str:
    """An exception and what it was raised from: torch hides there why it could not load a vendor's part."""
    cause = error.__cause__
    return f"{type(error).__name__}: {error}" + (f" (from {type(cause).__name__}: {cause})" if cause else "")


def attempt(step: str) -> dict[str, Any]:
    """How one step went: `ended`, `text`, `data`.  A step that is no word of ours is a module to import."""
    first = step.partition(" ")[0]
    try:
        if step in _PLAIN:
            text, data = _PLAIN[step]()
        else:
            text, data = _NAMING.get(first, _imported)(step)
    except (ImportError, NotImplementedError) as error:
        return {"ended": "missing", "text": str(error)[:600]}
    except Exception as error:
        return {"ended": "failed", "text": _said(error)[:600]}
    return {"ended": "ok", "text": text, "data": data}


def main(steps: list[str]) -> None:
    """One line before each step and one after it, on a pipe that no library prints to."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    for step in steps:
        for said in ({"ended": "begun"}, attempt(step)) if step else ():
            out.write(json.dumps({"step": step, **said}) + "\n")
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # what the libraries do at exit is not our question
