"""`python -m farm.doctor.probes STEP...`: tries one step after another and prints a JSON line about each.

It runs in the environment under test, on any Python that this farm supports, and needs only the standard library.  A
step may crash or hang; the last line shows which step it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from farm.process import command

Answer = tuple[str, dict[str, Any]]
TOOL_SECONDS = 20.0
#: Distributions that decide what `import triton` and `import torch` mean.
LOOKED_FOR = (
    "numpy",
    "torch",
    "torch-npu",
    "triton",
    "triton-ascend",
    "triton-rocm",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "pytorch-triton-xpu",
)


def _python() -> Answer:
    """This interpreter, and which of the distributions are installed in it."""
    scheme = sysconfig.get_default_scheme()  # Debian's scheme names a folder without headers; Triton skips it too
    include = sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
    header = Path(include, "Python.h").is_file()
    found = {name: version for name in LOOKED_FOR if (version := _installed(name))}
    data = {"executable": sys.executable, "machine": platform.machine(), "header": header, "distributions": found}
    data["unconfined"] = import_module("farm.child.confinement").refusal()
    return platform.python_version(), data


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _torch() -> Answer:
    torch = import_module("torch")
    hip, cuda = torch.version.hip, torch.version.cuda
    built = f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "the CPU"
    return torch.__version__, {"built_for": built, "hip": hip or "", "cuda": cuda or ""}


def _accelerator() -> Answer:
    """The devices that torch sees, what they are, and what torch's own kernels were built for."""
    torch = import_module("torch")
    with contextlib.suppress(ImportError):
        if _installed("torch-npu"):
            import_module("torch_npu")  # where torch does not load it
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind, count = _devices(torch)
    data: dict[str, Any] = {"kind": kind, "count": count, "warnings": [str(w.message)[:300] for w in caught][:4]}
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


def _driver() -> Answer:
    """The target that Triton compiles for; the first use builds its launcher with the C compiler."""
    active = import_module("triton.runtime").driver.active
    target = active.get_current_target()
    getattr(active, "utils", None)
    return f"{target.backend}:{target.arch}", {}


def _ptxas(step: str) -> Answer:
    """The assembler that Triton uses, for `ptxas sm_100`: its path, its version, the parts it supports."""
    digits = re.sub(r"\D", "", step)
    named = {n: os.environ[n] for n in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH") if os.environ.get(n)}
    useless = [f"{name}={path}" for name, path in named.items() if not _release(path)]
    path = _ptxas_of_triton(int(digits) if digits else 90)
    version = _release(path)
    if not version:
        raise FileNotFoundError(f"{path or 'no ptxas'} does not run")
    architectures = sorted({f"sm_{n}" for n in re.findall(r"'sm_(\d+)", _output(path, "--help"))})
    return version, {"path": path, "useless": useless, "architecture": step.partition(" ")[2], "knows": architectures}


def _ptxas_of_triton(architecture: int) -> str:
    compiler = import_module("triton.backends.nvidia.compiler")
    ask: Callable[..., Any] | None = getattr(compiler, "get_ptxas", None)
    if ask is None:  # before 3.4
        return str(compiler._path_to_binary("ptxas")[0])
    found = ask(architecture)
    return str(getattr(found, "path", found[0] if isinstance(found, tuple) else found))


def _release(path: str) -> str:
    found = re.search(r"release (\d+\.\d+)", _output(path, "--version")) if path else None
    return found[1] if found else ""


def _output(path: str, option: str) -> str:
    try:
        done = command.run([path, option], TOOL_SECONDS)
    except OSError:
        return ""
    return "" if done.code is None else done.out + done.err


def _amdsmi() -> Answer:
    """AMD's library: import it, initialize it, count its devices."""
    library = import_module("amdsmi")
    library.amdsmi_init()
    try:
        count = len(library.amdsmi_get_processor_handles())
    finally:
        library.amdsmi_shut_down()
    return str(getattr(library, "__version__", "of unknown version")), {"count": count}


def _acl() -> Answer:
    """CANN's Python library, used in the same way as Ray uses it."""
    library = import_module("acl")
    count, code = library.rt.get_device_count()
    return str(count), {"count": count, "code": code}


def _kernels() -> Answer:
    from farm import kernel_package

    return str(Path(str(kernel_package.load("launches").__file__)).resolve().parent), {}


def _provider(step: str) -> Answer:
    from farm import kernel_package

    module = import_module(f"farm.providers.{step.partition(' ')[2]}")
    for op in module.OPS:
        module.load(op)
    version = _installed(module.DISTRIBUTION) if module.DISTRIBUTION else ""
    if module.DISTRIBUTION == kernel_package.DISTRIBUTION:  # which may be installed beside a checkout, and unused
        version = kernel_package.version()
    return f"{module.DISTRIBUTION} {version}" if version else "", {}


#: Devices that are queried concurrently.  npu-smi answers one question per process, and eight devices need a hundred;
#: the other vendors' libraries answer in microseconds, and are used from one thread.
_AT_ONCE = {"ascend": 8}


def _devices_of(step: str) -> Answer:
    """`devices BACKEND`: the devices that the backend lists, each with its identity, the processes that compute on it,
    and the name of its lock.  It loads a vendor's library, so it runs here."""
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import asdict

    from farm import backends

    module = backends.get(step.partition(" ")[2])

    def facts(device: Any) -> dict[str, Any]:
        out: dict[str, Any] = {"id": device.id, "name": device.name, "uuid": device.uuid}
        with contextlib.suppress(Exception):
            found = module.identity(device.id, {}) if hasattr(module, "identity") else None
            out["identity"] = asdict(found) if found is not None else None
        with contextlib.suppress(Exception):
            out["lock"] = module.physical_id(device.id, {}) if hasattr(module, "physical_id") else ""
        with contextlib.suppress(Exception):
            out["processes"] = _computing(module, device.id)
        with contextlib.suppress(Exception):
            out["unfit"] = module.unfit(device.id) if hasattr(module, "unfit") else ""
        return out

    with ThreadPoolExecutor(_AT_ONCE.get(module.NAME, 1)) as pool:
        listed = list(pool.map(facts, module.detect()))
    data: dict[str, Any] = {"devices": listed}
    with contextlib.suppress(Exception):
        data["complaints"] = module.complaints() if hasattr(module, "complaints") else []
    return str(len(listed)), data


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


def _head(step: str) -> Answer:
    """`head HOST:PORT`: the cluster's versions and nodes, as its head reports them before a join; nothing joins."""
    address = step.partition(" ")[2]
    client = import_module("ray._raylet").GcsClient(address=address)
    stored = client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=5)
    versions = json.loads(stored) if stored else {}
    nodes, here = [], None
    for node in client.get_all_node_info(timeout=5).values():
        if getattr(node, "state", 0) == 0:  # alive
            nodes.append({"host": node.node_manager_hostname, "labels": dict(node.labels)})
            if node.is_head_node:
                here = (str(node.node_manager_address), int(node.runtime_env_agent_port))
    data = {"ray": versions.get("ray_version", ""), "python": versions.get("python_version", ""), "nodes": nodes}
    with contextlib.suppress(Exception):
        data["clock_ahead_s"] = _clock_ahead(*here) if here else None
    return data["ray"], data


def _clock_ahead(host: str, port: int) -> float:
    """Seconds by which this host's clock is ahead of the head's, from the date of an answer of its HTTP agent (to the
    second; without a token it answers 401, with a date too)."""
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


def _imported(step: str) -> Answer:
    return str(getattr(import_module(step), "__version__", "of unknown version")), {}


_PLAIN: dict[str, Callable[[], Answer]] = {
    "python": _python,
    "torch": _torch,
    "accelerator": _accelerator,
    "driver": _driver,
    "amdsmi": _amdsmi,
    "acl": _acl,
    "kernels": _kernels,
}
_NAMING: dict[str, Callable[[str], Answer]] = {
    "provider": _provider,
    "devices": _devices_of,
    "head": _head,
    "ptxas": _ptxas,
}


def _described(error: BaseException) -> str:
    """An exception and its cause, where torch hides why it could not load a vendor's plug-in."""
    cause = error.__cause__
    return f"{type(error).__name__}: {error}" + (f" (from {type(cause).__name__}: {cause})" if cause else "")


def attempt(step: str) -> dict[str, Any]:
    """The result of one step: `ended`, `text`, `data`.  A step that is not listed above is a module to import."""
    first = step.partition(" ")[0]
    try:
        if step in _PLAIN:
            text, data = _PLAIN[step]()
        else:
            text, data = _NAMING.get(first, _imported)(step)
    except (ImportError, NotImplementedError) as error:
        return {"ended": "missing", "text": str(error)[:600]}
    except Exception as error:
        return {"ended": "failed", "text": _described(error)[:600]}
    return {"ended": "ok", "text": text, "data": data}


def main(steps: list[str]) -> None:
    """Write one line before each step and one after it, to a pipe that no library prints to."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    for step in steps:
        for line in ({"ended": "begun"}, attempt(step)) if step else ():
            out.write(json.dumps({"step": step, **line}) + "\n")
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # what the libraries do at exit does not matter here
