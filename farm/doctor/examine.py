"""From facts to findings, each lack with its cure.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from farm.doctor.facts import BackendFacts, Facts, Space

GIB = 1 << 30
ROOMY_BYTES = GIB  # shared memory below this is left alone, and tensors travel through the disk
SCARCE_BYTES = 100 << 20
RAY_OLDEST = (2, 55)  # label selectors on actors, token authentication
RAY_FULL = 0.95  # Ray refuses to store objects on a disk fuller than this
CPU_EXTRA = "pip install 'kernel-farm[cpu]'"


class Level(str, Enum):
    """What a finding means for `farm run` on this host."""

    OK = "ok"
    NOTE = "note"  # good to know
    WARN = "warn"  # it runs, with less than one would think
    FAIL = "fail"  # it does not run


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    section: str
    level: Level
    what: str
    cure: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}


Findings = Iterator[Finding]


def examine(facts: Facts) -> list[Finding]:
    """Every finding, section by section, in a fixed order."""
    return [finding for check in CHECKS for finding in check(facts)]


def exit_code(findings: Iterable[Finding]) -> int:
    """3 where something would stop `farm run` on this host, else 0."""
    return 3 if any(f.level is Level.FAIL for f in findings) else 0


def _python(f: Facts) -> Findings:
    version = ".".join(map(str, f.python))
    if f.python < (3, 10):
        yield Finding("python", Level.FAIL, f"Python {version} is too old", "use Python 3.10 or newer")
    else:
        yield Finding("python", Level.OK, f"kernel-farm {f.farm} on Python {version} ({f.executable})")
    missing = [name for name, version in f.packages.items() if version is None]
    if missing:
        yield Finding(
            "packages", Level.FAIL, f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}"
        )
    else:
        yield Finding("packages", Level.OK, ", ".join(f"{name} {version}" for name, version in f.packages.items()))


def _torch(f: Facts) -> Findings:
    torch, triton = f.trials["torch"], f.trials["triton"]
    if torch.ok:
        yield Finding("torch", Level.OK, f"torch {torch.text}, built for {torch.data.get('built_for', 'nothing')}")
    else:
        cure = f"{CPU_EXTRA}, or the vendor's torch where there is an accelerator"
        yield Finding("torch", Level.FAIL, f"torch cannot be imported ({torch}): no cell can run", cure)
    if triton.ok:
        yield Finding("triton", Level.OK, f"triton {triton.text}")
    else:
        what = f"triton cannot be imported ({triton}): cells of provider farm end as unsupported"
        yield Finding("triton", Level.WARN, what, f"{CPU_EXTRA}, or the triton that belongs to the vendor's torch")


def _backends(f: Facts) -> Findings:
    for backend in f.backends:
        yield from _backend(f, backend)


def _backend(f: Facts, b: BackendFacts) -> Findings:
    section = f"backend {b.name}"
    if b.not_yet:
        seen = f" (this host has {b.device_file})" if b.device_file else ""
        yield Finding(section, Level.NOTE, f"not in this version yet{seen}")
    elif b.devices:
        yield Finding(section, Level.OK, f"{len(b.devices)} x {', '.join(dict.fromkeys(b.devices))}")
        if b.name == "cuda":
            yield from _cuda(f, len(b.devices))
    elif b.tool_path:
        cure = f"make {b.tool} work (driver loaded? container started with its devices?)"
        what = f"{b.tool_path} lists no device ({b.tool_failure or 'it is silent'}): farm run leaves {b.name} out"
        yield Finding(section, Level.WARN, what, cure)
    elif b.device_file or (b.name == "cuda" and _torch_sees(f, "cuda")):
        seen = b.device_file or "a GPU that torch sees"
        what = f"this host has {seen}, but no {b.tool} on PATH: farm run leaves {b.name} out"
        yield Finding(section, Level.WARN, what, f"put {b.tool} on PATH")
    else:
        yield Finding(section, Level.NOTE, f"no device: looked for {b.tool} on PATH and the driver's files")


def _torch_sees(f: Facts, kind: str) -> int:
    data = f.trials["accelerator"].data
    return int(data.get("count", 0)) if data.get("kind") == kind else 0


def _cuda(f: Facts, listed: int) -> Findings:
    """Whether what nvidia-smi lists can be opened, shared out by Ray, and compiled for."""
    section, trial = "backend cuda", f.trials["accelerator"]
    visible = f.variables.get("CUDA_VISIBLE_DEVICES")
    shown = listed if visible is None else len([v for v in visible.split(",") if v.strip() not in ("", "-1")])
    if shown < listed:
        what = f"CUDA_VISIBLE_DEVICES={visible} shows {shown} of the {listed} GPUs that farm run would ask Ray for"
        yield Finding(section, Level.FAIL, what, f"unset CUDA_VISIBLE_DEVICES, or farm run --devices {max(shown, 1)}")
    if f.trials["torch"].ok and not trial.ok:
        what = f"torch could not be asked for its devices ({trial})"
        yield Finding(section, Level.FAIL, what, "look at nvidia-smi and dmesg: the device or its driver is sick")
    elif trial.ok and not _torch_sees(f, "cuda") and shown:
        built = f.trials["torch"].data.get("built_for", "nothing")
        what = f"nvidia-smi lists {listed}, torch (built for {built}) sees none: each cuda cell would be an infra_error"
        yield Finding(section, Level.FAIL, what, "install the CUDA build of torch that fits this driver")
    elif trial.ok and _torch_sees(f, "cuda") != shown:
        what = f"nvidia-smi lists {listed}, torch sees {_torch_sees(f, 'cuda')}"
        yield Finding(section, Level.WARN, what, "compare CUDA_VISIBLE_DEVICES, MIG and the container's devices")
    if not f.cc:
        what = "there is no C compiler, which Triton needs to launch on a GPU: cells of Triton kernels would fail"
        yield Finding(section, Level.FAIL, what, "install gcc, or name a compiler in CC")
    elif not f.python_header:
        what = "Python.h is missing, which Triton needs to launch on a GPU: cells of Triton kernels would fail"
        yield Finding(section, Level.FAIL, what, "install the headers of this Python (python3-dev)")


def _ray(f: Facts) -> Findings:
    ray = f.trials["ray"]
    if not ray.ok:
        what = f"ray cannot be imported ({ray}): only --address inline runs"
        yield Finding("ray", Level.FAIL, what, f"pip install 'ray>={RAY_OLDEST[0]}.{RAY_OLDEST[1]}'")
    elif _version(ray.text) < RAY_OLDEST:
        oldest = ".".join(map(str, RAY_OLDEST))
        what = f"ray {ray.text} is too old: it cannot pin actors by label"
        yield Finding("ray", Level.FAIL, what, f"pip install -U 'ray>={oldest}'")
    else:
        yield Finding("ray", Level.OK, f"ray {ray.text}")
    if "RAY_ADDRESS" in f.variables:
        where = f.variables["RAY_ADDRESS"]
        what = f"RAY_ADDRESS={where} is set: --address auto goes there, without --address it is unused"
        yield Finding("ray", Level.NOTE, what)
    if f.ray_written and f.ray_silent:
        what = f"{f.ray_file} names {f.ray_written}, where no cluster answers ({f.ray_silent}): --address auto fails"
        yield Finding("ray", Level.WARN, what, f"start that cluster again, or remove {f.ray_file}")
    elif f.ray_written:
        yield Finding("ray", Level.NOTE, f"a cluster answers at {f.ray_written}: farm run --address auto joins it")
    if "ROCR_VISIBLE_DEVICES" in f.variables and "HIP_VISIBLE_DEVICES" not in f.variables:
        what = "ROCR_VISIBLE_DEVICES is set without HIP_VISIBLE_DEVICES, which Ray refuses on a host with AMD GPUs"
        level = Level.FAIL if any(b.name == "rocm" and b.device_file for b in f.backends) else Level.WARN
        yield Finding("ray", level, what, "set HIP_VISIBLE_DEVICES instead of ROCR_VISIBLE_DEVICES")
    token = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(f.variables)
    if f.variables.get("RAY_AUTH_MODE") == "token" and not token:
        what = "RAY_AUTH_MODE is token, but neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH is set"
        yield Finding("ray", Level.NOTE, what, "set RAY_AUTH_TOKEN_PATH to the cluster's token, or unset RAY_AUTH_MODE")


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:2]
    return tuple(int("".join(c for c in p if c.isdigit()) or 0) for p in parts)


def _kernels(f: Facts) -> Findings:
    trial = f.trials["kernels"]
    if not trial.ok:
        what = f"the package kernels cannot be imported in a child ({trial})"
        yield Finding("kernels", Level.FAIL, what, "install this checkout again, or run from its folder")
    elif trial.text != f.our_kernels:
        what = f"a child imports kernels from {trial.text}, not from {f.our_kernels}"
        yield Finding("kernels", Level.FAIL, what, "take that folder off PYTHONPATH, or pip uninstall kernels")
    else:
        yield Finding("kernels", Level.OK, f"children import {trial.text}")
    if f.foreign_kernels:
        what = f"another distribution named kernels is at {f.foreign_kernels}; the farm puts its own before it"
        yield Finding("kernels", Level.NOTE, what, "nothing to do; pip uninstall kernels ends the clash")


def _space(f: Facts) -> Findings:
    yield _memory(f.memory)
    yield _writable("store", f.store, "name a folder with --out or FARM_STORE")
    if f.cache.failure or f.cache.free < GIB:
        why = f.cache.failure or f"only {size(f.cache.free)} are free"
        what = f"inputs and references cannot be kept in {f.cache.path} ({why}): each run makes them anew"
        yield Finding("cache", Level.WARN, what, "name another folder with FARM_CACHE")
    else:
        yield Finding("cache", Level.OK, f"{f.cache.path}, {size(f.cache.free)} free")
    scratch = _writable("scratch", f.scratch, "set RAY_TMPDIR and TMPDIR to a folder with space")
    s = f.scratch
    if scratch.level is Level.OK and s.total and 1 - s.free / s.total > RAY_FULL:
        what = f"{s.path} is {1 - s.free / s.total:.0%} full; Ray stores nothing on a disk over {RAY_FULL:.0%}"
        scratch = Finding("scratch", Level.WARN, what, "free space there, or set RAY_TMPDIR to another disk")
    yield scratch


def _memory(m: Space | None) -> Finding:
    slower = "tensors go through the disk, and so does Ray"
    if m is None:
        return Finding("memory", Level.WARN, f"there is no /dev/shm: {slower}", "mount one (docker run --shm-size=4g)")
    if m.failure:
        return Finding("memory", Level.WARN, f"{m.path} cannot be written ({m.failure}): {slower}", "make it writable")
    if m.free < ROOMY_BYTES:
        what = f"{size(m.free)} are free in {m.path}, less than {size(ROOMY_BYTES)}: {slower}"
        return Finding("memory", Level.WARN, what, "give it more (docker run --shm-size=4g), or remove what fills it")
    return Finding("memory", Level.OK, f"{size(m.free)} free in {m.path}")


def _writable(section: str, s: Space, cure: str) -> Finding:
    if s.failure:
        return Finding(section, Level.FAIL, f"{s.path} cannot be written ({s.failure})", cure)
    if s.free < SCARCE_BYTES:
        return Finding(section, Level.FAIL, f"{size(s.free)} are free in {s.path}: a run would end half-way", cure)
    if s.free < GIB:
        return Finding(section, Level.WARN, f"only {size(s.free)} are free in {s.path}", cure)
    return Finding(section, Level.OK, f"{s.path} can be written, {size(s.free)} free")


def size(count: int) -> str:
    """Bytes for people: `64 MiB`, `12.5 GiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def _compilers(f: Facts) -> Findings:
    if f.cxx:
        yield Finding("compiler", Level.OK, f.cxx)
    else:
        what = "there is no C++ compiler: cells of torch_compile on the CPU end as unsupported"
        yield Finding("compiler", Level.NOTE, what, "install g++, or name a compiler in CXX")


def _providers(f: Facts) -> Findings:
    for name, distribution in f.peers.items():
        trial = f.trials[f"provider {name}"]
        section = f"provider {name}"
        if trial.ok:
            yield Finding(section, Level.OK, "can be loaded" + (f", {trial.text}" if trial.text else ""))
        elif trial.ended == "missing":
            cure = f"pip install {distribution}" if distribution else "install torch and triton"
            yield Finding(section, Level.NOTE, f"not here ({trial}): its cells end as unsupported", cure)
        else:
            what = f"cannot be loaded ({trial}): its cells would fail"
            yield Finding(section, Level.WARN, what, "leave it out with --select, or repair its installation")


def _clock(f: Facts) -> Findings:
    day = 86400.0
    if f.now + day < f.newest_source:
        now, newest = (datetime.fromtimestamp(t, timezone.utc).date().isoformat() for t in (f.now, f.newest_source))
        what = f"the clock says {now}, before the farm's own files ({newest}): runs would be listed in a wrong order"
        yield Finding("clock", Level.WARN, what, "set the clock (timedatectl set-ntp true)")
    else:
        yield Finding("clock", Level.OK, datetime.fromtimestamp(f.now, timezone.utc).isoformat(timespec="seconds"))


CHECKS: tuple[Callable[[Facts], Findings], ...] = (
    _python, _torch, _backends, _ray, _kernels, _space, _compilers, _providers, _clock,
)  # fmt: skip
