# ruff: noqa: E501 - a table, a plant a line where it fits
"""Every fault that `farm doctor` has a code for, planted in a host that is otherwise sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from doctor_facts import ASCEND, COMMON, CUDA, GIB, OWN, ROCM, SOUND, node, other, python, supervisors, system, trials

from farm.doctor import Asked, Environment, Facts, Head, Level, Space, Token, Trial
from farm.doctor.facts import DeviceFile

F, W, N = Level.FAIL, Level.WARN, Level.NOTE


def missing(name: str) -> Trial:
    return Trial("missing", f"No module named '{name}'")


def env(name: str = "nightly", own: bool = False, **change: Any) -> Facts:
    """A second environment, sound but for the change."""
    second = Environment(name, own=own, command="/v/python", trials=COMMON)
    return replace(SOUND, environments=(OWN, replace(second, **change)))


def said(facts: Facts, step: str, **data: Any) -> Facts:
    """Other data of one trial."""
    trial = facts.environments[0].trial(step)
    return trials(facts, **{step: replace(trial, data={**trial.data, **data})})


def variable(facts: Facts, **values: str) -> Facts:
    return replace(facts, variables={**facts.variables, **values})


def bare(name: str, facts: Facts, **change: Any) -> Facts:
    """A vendor's host on which no device is listed."""
    empty = {"devices": (), "pci": 0, "driver": "", "files": (), "tool_path": "", **change}
    return other(trials(facts, accelerator=COMMON["accelerator"]), name, **empty)


def head(facts: Facts = SOUND, kind: str = "", reason: str = "", **data: Any) -> Facts:
    """A head that answers and fits, but for the change."""
    fits = {"ray": "2.60.0", "python": "3.11.7", "nodes": [{"host": "h", "labels": {}}], "clock_ahead_s": 0.2}
    trial = Trial("ok", "2.60.0", {**fits, **data})
    asked = Asked(head="10.0.0.1:6379")
    sealed = Token("token", "/etc/farm/token")
    return replace(facts, asked=asked, token=sealed, head=Head("10.0.0.1:6379", kind, reason, trial))


def device(facts: Facts, name: str, **change: Any) -> Facts:
    """The first device changed."""
    first, *rest = next(b for b in facts.backends if b.name == name).devices
    return other(facts, name, devices=(replace(first, **change), *rest))


def identified(facts: Facts, name: str, **change: Any) -> Facts:
    found = next(b for b in facts.backends if b.name == name).devices
    return other(facts, name, devices=tuple(replace(d, identity={**(d.identity or {}), **change}) for d in found))


TOKEN = Token("token", "/etc/farm/token")
FILES = (DeviceFile("/dev/kfd", True, "render"), DeviceFile("/dev/dri/renderD128", True, "video"))
NO_CANN = replace(other(ASCEND, "ascend", stack_folder="", stack=""), variables={})
BREAKS = trials(
    ASCEND,
    torch=Trial("failed", "RuntimeError: Failed to load the backend extension: torch_npu. libhccl.so: cannot open"),
    **{"torch alone": Trial("ok", "2.9.0", {"built_for": "the CPU"})},
)
WRONG_PART = node(ROCM, backend="rocm", expect={"model": "MI355X"})
CPX = node(identified(ROCM, "rocm", partition="cpx-nps4"), backend="rocm", expect={"partition": "spx-nps1"})
MIG = node(identified(CUDA, "cuda", partition="mig-1g.18gb"), backend="cuda", expect={"partition": ""})
BLIND = said(CUDA, "accelerator", kind="", count=0)

#: (host, code, level, words of what is said)
PLANTS: dict[str, tuple[Facts, str, Level, str]] = {
    # this host's Python and its packages
    "old python": (replace(SOUND, python=(3, 9, 1)), "python-too-old", F, "3.9.1 is too old"),
    "package": (replace(SOUND, packages={"numpy": "2", "rich": None}), "packages-missing", F, "not installed: rich"),
    "no torch": (trials(SOUND, torch=missing("torch")), "torch-missing", F, "No module named"),
    "torch crashes": (trials(SOUND, torch=Trial("died", "signal 11 (SIGSEGV)")), "torch-broken", F, "with signal 11"),
    "torch hangs": (trials(SOUND, torch=Trial("hung", "60 s")), "torch-broken", F, "did not answer within 60 s"),
    "torch lacks a library": (
        trials(SOUND, torch=Trial("missing", "libcublas.so.13: cannot open")), "torch-broken", F, "libcublas",
    ),
    "no triton": (trials(SOUND, triton=missing("triton")), "triton-missing", W, "provider farm end as unsupported"),
    "triton crashes": (trials(SOUND, triton=Trial("died", "signal 6 (SIGABRT)")), "triton-broken", W, "SIGABRT"),
    "two tritons": (
        trials(SOUND, python=python(**{"triton": "3.6.0", "pytorch-triton-rocm": "3.5.1"})), "triton-two", W,
        "triton 3.6.0 and pytorch-triton-rocm 3.5.1",
    ),
    "triton-ascend and triton": (
        trials(ASCEND, python=python(**{"torch": "2.9.0", "torch-npu": "2.9.0", "triton": "3", "triton-ascend": "3.2"})),
        "triton-two", F, "triton 3 and triton-ascend 3.2",
    ),
    "several drivers": (
        trials(CUDA, driver=Trial("failed", "RuntimeError: 2 active drivers ([...]). There should only be one.")),
        "triton-drivers", F, "2 active drivers",
    ),
    "no driver": (
        trials(ROCM, driver=Trial("failed", "RuntimeError: 0 active drivers ([]). There should only be one.")),
        "triton-drivers", F, "0 active drivers",
    ),
    "launcher": (trials(CUDA, driver=Trial("failed", "CalledProcessError: gcc")), "triton-launch", F, "CalledProcess"),
    "kernels broken": (trials(SOUND, kernels=Trial("failed", "SyntaxError: x")), "kernels-broken", F, "SyntaxError"),
    "kernels foreign": (trials(SOUND, kernels=Trial("ok", "/site/kernels")), "kernels-foreign", F, "not from /farm/k"),
    "clash": (replace(SOUND, foreign_kernels="/site/kernels"), "kernels-clash", N, "at /site/kernels"),
    "peer absent": (trials(SOUND, provider_liger=missing("liger_kernel")), "provider-missing", N, "as unsupported"),
    "peer broken": (trials(SOUND, provider_liger=Trial("died", "signal 6 (SIGABRT)")), "provider-broken", W, "signal 6"),
    "no C++ compiler": (replace(SOUND, cxx=None), "compiler-cxx-missing", N, "torch_compile on the CPU end"),
    "no C compiler": (replace(CUDA, cc=None), "compiler-cc-missing", F, "there is no C compiler"),
    "no headers": (said(CUDA, "python", header=False), "python-header-missing", F, "Python.h is missing"),
    # environments and the node's configuration
    "configuration": (
        replace(SOUND, node=replace(SOUND.node, file="n.yaml", failure='n.yaml:3: "backends" is unknown')),
        "node-configuration", F, "n.yaml:3",
    ),
    "another backend": (
        node(replace(CUDA, asked=Asked(backend="cuda")), backend="rocm"), "node-backend", F, "says backend rocm",
    ),
    "simulated": (node(SOUND, backend="rocm", simulates=True), "node-simulates", N, "are fakes"),
    "another part": (WRONG_PART, "node-expect", F, "expects model MI355X, the device is AMD Instinct MI300X"),
    "CPX where SPX is expected": (CPX, "node-expect", F, "partition cpx-nps4"),
    "MIG where none is expected": (MIG, "node-expect", F, "partition mig-1g.18gb"),
    "another torch": (node(CUDA, backend="cuda", expect={"torch": "2.9"}), "node-expect", F, "torch 2.11.0"),
    "a label that lies": (node(ROCM, backend="rocm", labels={"model": "MI325X"}), "node-expect", F, "says model MI325X"),
    "too many devices": (node(CUDA, backend="cuda", devices=4), "node-devices", W, "says 4 devices, and there are 2"),
    "no interpreter": (env(failure="no program /opt/python here"), "environment-python", F, "/opt/python"),
    "no docker": (
        env(failure="there is no program docker here", missing_program="docker"), "environment-program", F, "docker",
    ),
    "interpreter hangs": (
        env(trials={**COMMON, "python": Trial("hung", "60 s")}), "environment-silent", F, "did not answer within 60 s",
    ),
    "environment on 3.9": (env(trials={**COMMON, "python": python("3.9.18")}), "environment-python-old", F, "3.9.18"),
    "environment without numpy": (
        env(trials={**COMMON, "numpy": missing("numpy")}), "environment-numpy", F, "numpy cannot be imported",
    ),
    # Ray
    "no ray": (supervisors(SOUND, ray=missing("ray")), "ray-missing", F, "only --address inline runs"),
    "no time": (supervisors(SOUND, ray=Trial("skipped", "no time")), "ray-missing", F, "not looked at: no time"),
    "old ray": (supervisors(SOUND, ray=Trial("ok", "2.9.3")), "ray-too-old", F, "2.9.3 is too old"),
    "RAY_ADDRESS": (variable(SOUND, RAY_ADDRESS="h:1"), "ray-address-variable", N, "without --address it is unused"),
    "stale RAY_ADDRESS": (
        variable(replace(SOUND, ray_address_silent="nothing answers there"), RAY_ADDRESS="h:1"),
        "ray-address-stale", W, "--address auto fails",
    ),
    "stale address file": (
        replace(SOUND, ray_written="h:6379", ray_silent="nothing answers there"), "ray-file-stale", W, "names h:6379",
    ),
    "a cluster": (replace(SOUND, ray_written="h:6379"), "ray-cluster-here", N, "--address auto joins it"),
    "ROCR alone": (variable(SOUND, ROCR_VISIBLE_DEVICES="0"), "ray-rocr", W, "without HIP_VISIBLE_DEVICES"),
    "ROCR alone, AMD": (variable(ROCM, ROCR_VISIBLE_DEVICES="0"), "ray-rocr", F, "without HIP_VISIBLE_DEVICES"),
    "no token": (replace(SOUND, token=Token("token")), "ray-token-missing", N, "there is none in RAY_AUTH_TOKEN"),
    "no token, joining": (
        replace(head(), token=Token("token"), head=replace(head().head, trial=Trial("died", "signal 6"))),  # type: ignore[type-var]
        "ray-token-missing", F, "there is none in RAY_AUTH_TOKEN",
    ),
    "token unreadable": (
        replace(SOUND, token=replace(TOKEN, failure="Permission denied")), "ray-token-unreadable", W, "Permission",
    ),
    "token readable": (replace(SOUND, token=replace(TOKEN, exposed=True)), "ray-token-exposed", W, "read by others"),
    "token with newline": (replace(SOUND, token=replace(TOKEN, spaces=True)), "ray-token-spaces", N, "white space"),
    "token with a mark": (
        replace(head(), token=replace(TOKEN, illegal=True, spaces=True)), "ray-token-illegal", F, "byte order mark",
    ),
    "two tokens": (
        replace(SOUND, token=Token("token", "RAY_AUTH_TOKEN", differs=True)), "ray-token-two", W, "takes RAY_AUTH_TOKEN",
    ),
    "mode not set": (replace(SOUND, token=Token(None, "/home/x/.ray/auth_token")), "ray-auth-mode", N, "is not set"),
    "mode unknown": (replace(SOUND, token=Token("yes")), "ray-auth-mode", F, "means nothing"),
    "head's name": (head(kind="name", reason="there is no host h"), "head-name", F, "there is no host h"),
    "head's port": (head(kind="refused"), "head-refused", F, "nothing listens at port 6379"),
    "firewall": (head(kind="silent", reason="nothing answers there within 5 s"), "head-silent", F, "within 5 s"),
    "another service": (head(kind="stranger"), "head-stranger", F, "what answers there is not Ray"),
    "loopback": (
        replace(head(), head=replace(head().head, loopback=True)), "head-loopback", N, "is this host itself",  # type: ignore[type-var]
    ),
    "stale token": (
        replace(head(), head=replace(head().head, trial=Trial("failed", "AuthenticationError: InvalidAuthToken"))),  # type: ignore[type-var]
        "head-token", F, "refuses this host (it has the token in /etc/farm/token",
    ),
    "head hangs": (
        replace(head(), head=replace(head().head, trial=Trial("hung", "15 s"))), "head-unasked", W, "within 15 s",  # type: ignore[type-var]
    ),
    "another Ray": (head(ray="2.58.1"), "head-ray-version", F, "runs Ray 2.58.1, this host 2.60.0"),
    "Python's patch": (head(python="3.11.9"), "head-python-version", F, "Python 3.11.9, this host's Ray Python 3.11.7"),
    "another Python, relaxed": (
        variable(head(python="3.12.1"), RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL="minor"), "head-python-version", F, "3.12.1",
    ),
    "another farm": (
        head(nodes=[{"host": "h", "labels": {"farm/version": "0.0.9"}}]), "head-farm-version", W, "kernel-farm 0.0.9",
    ),
    "clock against the head": (head(clock_ahead_s=-93.0), "head-clock", W, "93 s behind the head's"),
    # the host
    "no shm": (replace(SOUND, memory=None), "shm-missing", W, "there is no /dev/shm"),
    "small shm": (replace(SOUND, memory=Space("/dev/shm", 64 << 20, 64 << 20)), "shm-small", W, "64 MiB are free"),
    "locked shm": (replace(SOUND, memory=Space("/dev/shm", failure="Read-only")), "shm-unwritable", W, "Read-only"),
    "store locked": (replace(SOUND, store=Space("s", failure="Permission denied")), "store-unwritable", F, "Permission"),
    "store full": (replace(SOUND, store=Space("s", 1 << 20, GIB)), "store-space", F, "1 MiB are free in s"),
    "store tight": (replace(SOUND, store=Space("s", 500 << 20, GIB)), "store-space", W, "only 500 MiB"),
    "cache locked": (replace(SOUND, cache=Space("/proc/c", failure="No such file")), "cache-unusable", W, "makes them"),
    "cache full": (replace(SOUND, cache=Space("/c", 1 << 20, 100 * GIB)), "cache-unusable", W, "only 1 MiB are free"),
    "scratch locked": (replace(SOUND, scratch=Space("/tmp", failure="Read-only")), "scratch-unwritable", F, "Read-only"),
    "scratch full": (replace(SOUND, scratch=Space("/tmp", 1 << 20, GIB)), "scratch-space", F, "1 MiB are free"),
    "scratch nearly full": (replace(SOUND, scratch=Space("/tmp", 4 * GIB, 100 * GIB)), "scratch-space", W, "96% full"),
    "scratch's name": (replace(SOUND, scratch=Space("/t" * 30, 80 * GIB, 100 * GIB)), "scratch-path", F, "60 characters"),
    "few files": (system(open_files=1024), "limit-open-files", W, "1024 open files"),
    "few processes": (system(processes=500), "limit-processes", W, "500 processes"),
    "little locked": (system(ROCM, locked_memory=64 << 10), "limit-locked-memory", N, "may be locked"),
    "core files": (system(core_files=True), "limit-core-files", N, "core file"),
    "memory limit": (system(memory_limit=2 * GIB), "memory-limit", W, "may use 2.0 GiB"),
    "memory low": (system(memory_available=GIB), "memory-low", W, "1.0 GiB of memory are free"),
    "swapped": (system(swap_used=9 * GIB), "swap-used", N, "9.0 GiB have been swapped out"),
    "governor": (system(governor="powersave"), "cpu-governor", N, "powersave"),
    "own name": (system(addresses=("127.0.1.1",)), "hostname-loopback", N, "n1 means 127.0.1.1"),
    "own name, joining": (system(head(), addresses=("127.0.1.1",)), "hostname-loopback", W, "nodes elsewhere cannot"),
    "no own name": (system(addresses=(), hostname_failure="unknown"), "hostname-unknown", N, "does not resolve"),
    "clock": (replace(SOUND, now=1_000.0), "clock-behind", W, "the clock says 1970-01-01"),
    "no time server": (system(clock_synchronised=False), "clock-not-synchronised", N, "nothing keeps this clock"),
    "no time server, joining": (system(head(), clock_synchronised=False), "clock-not-synchronised", W, "nothing keeps"),
    # devices, of every vendor
    "not yet": (other(SOUND, "rocm", not_yet="not yet"), "backend-not-yet", N, "not in this version yet"),
    "not yet, wanted": (
        replace(other(SOUND, "rocm", not_yet="not yet"), asked=Asked(backend="rocm")), "backend-not-yet", F, "not in this",
    ),
    "none, wanted": (
        replace(SOUND, asked=Asked(backend="cuda")), "backend-none", F, "no device: looked for nvidia-smi",
    ),
    "two vendors": (
        replace(CUDA, backends=tuple(
            next(b for b in ROCM.backends if b.name == "rocm") if b.name == "rocm" else b for b in CUDA.backends
        ), environments=()),
        "backends-several", N, "devices of NVIDIA and AMD in one host",
    ),
    "no driver loaded": (bare("rocm", SOUND, pci=8), "device-driver", W, "8 AMD devices are on the bus, and no driver"),
    "container without devices": (
        bare("cuda", SOUND, driver="/proc/driver/nvidia/version"), "device-files", W, "has not any of its device files",
    ),
    "container with half of them": (
        bare("ascend", ASCEND, driver="/d", files=(DeviceFile("/dev/davinci0"),), missing_files=("/dev/davinci_manager",)),
        "device-files", W, "has not /dev/davinci_manager",
    ),
    "groups": (other(ROCM, "rocm", files=FILES), "device-denied", F, "(group render, video)"),
    "groups, none listed": (bare("rocm", SOUND, files=FILES[:1], tool_path="/o"), "device-denied", W, "/dev/kfd"),
    "driver, no tool": (
        bare("cuda", SOUND, files=(DeviceFile("/dev/nvidiactl"),)), "device-tool-missing", W, "no nvidia-smi on PATH",
    ),
    "torch sees what the tool does not": (
        other(CUDA, "cuda", devices=(), pci=0, driver="", files=(), tool_path=""), "device-tool-missing", W, "that torch sees",
    ),
    "tool fails": (
        bare("cuda", SOUND, tool_path="/usr/bin/nvidia-smi", tool_failure="exit code 9: driver"), "device-tool-silent", W,
        "exit code 9",
    ),
    "listing hangs": (
        bare("rocm", SOUND, files=(DeviceFile("/dev/kfd"),), failure="did not answer within 45 s"), "device-unasked", W,
        "within 45 s",
    ),
    "mask of nothing": (variable(CUDA, CUDA_VISIBLE_DEVICES="0,1,7"), "device-mask", W, "names 3 devices, of which 2"),
    "mask hides all": (
        variable(bare("rocm", SOUND, tool_path="/o/amd-smi", tool_failure="exit code 0: GPU"), HIP_VISIBLE_DEVICES=""), "device-mask", F, "of which 0",
    ),
    "foreign process": (
        device(CUDA, "cuda", processes=((4711, "python train.py"),)), "device-process", W, "train.py (pid 4711)",
    ),
    "locked": (
        device(CUDA, "cuda", holder="pid 7, user 'x'", processes=((8, "farm"),)), "device-locked", N, "another farm (pid 7",
    ),
    "locks": (other(CUDA, "cuda", lock_trouble="/tmp/l cannot be written"), "device-lock-folder", F, "cannot be locked"),
    "clocks": (identified(CUDA, "cuda", clocks="locked-1980mhz"), "device-clocks", N, "locked-1980mhz"),
    "ill": (device(ASCEND, "ascend", unfit="health of device 0 ALARM"), "device-unfit", F, "ALARM"),
    "lost": (other(CUDA, "cuda", complaints=("GPU 1 cannot be read: NVML gave 15",)), "device-unfit", F, "GPU 1"),
    "torch for the CPU": (
        trials(CUDA, torch=COMMON["torch"]), "torch-other-vendor", F, "built for the CPU, and these are NVIDIA devices",
    ),
    "CUDA's torch on AMD": (
        trials(ROCM, torch=CUDA.environments[0].trial("torch")), "torch-other-vendor", F, "built for CUDA 13.0",
    ),
    "ROCm's torch on NVIDIA": (
        trials(CUDA, torch=ROCM.environments[0].trial("torch")), "torch-other-vendor", F, "built for ROCm 7.2.2",
    ),
    "CUDA's torch on Ascend": (
        trials(ASCEND, torch=CUDA.environments[0].trial("torch")), "torch-other-vendor", F, "these are Ascend devices",
    ),
    "blind": (said(ROCM, "accelerator", kind="", count=0), "torch-blind", F, "amd-smi lists 8, torch"),
    "fewer": (said(CUDA, "accelerator", count=1), "torch-fewer", W, "nvidia-smi lists 2, torch sees 1"),
    "device hangs": (trials(CUDA, accelerator=Trial("hung", "60 s")), "torch-device-sick", F, "within 60 s"),
    "no kernels for sm_100": (
        said(CUDA, "accelerator", architectures=["sm_80", "sm_90", "sm_90a"]), "torch-arch", F, "this part is sm_100",
    ),
    "no kernels for gfx950": (said(ROCM, "accelerator", architecture="gfx908"), "torch-arch", F, "this part is gfx908"),
    # NVIDIA
    "old driver": (identified(BLIND, "cuda", stack="12.8"), "cuda-driver-old", F, "the driver serves CUDA 12.8"),
    "old driver, by its words": (
        identified(said(BLIND, "accelerator", warnings=["CUDA: the NVIDIA driver on your system is too old"]), "cuda", stack=""),
        "cuda-driver-old", F, "is too old for it",
    ),
    "cuda-compat": (
        said(BLIND, "accelerator", warnings=["Error 803: system has unsupported display driver / cuda driver combination"]),
        "cuda-driver-mismatch", F, "do not belong together",
    ),
    "updated driver": (
        bare("cuda", SOUND, tool_path="/n", tool_failure="exit code 18: Driver/library version mismatch"),
        "cuda-driver-mismatch", W, "version mismatch",
    ),
    "fabric": (
        said(BLIND, "accelerator", warnings=["Error 802: system not yet initialized"]), "cuda-fabric", F, "NVLink fabric",
    ),
    "MIG without instances": (other(BLIND, "cuda", mig="Enabled"), "cuda-mig-empty", F, "no instances"),
    "MIG, nothing listed": (bare("cuda", SOUND, tool_path="/n", mig="Enabled"), "cuda-mig-empty", F, "no instances"),
    "no libcuda": (
        trials(CUDA, driver=Trial("failed", "AssertionError: libcuda.so cannot found!")), "cuda-libcuda", F, "libcuda.so.1",
    ),
    "no ptxas": (
        trials(CUDA, ptxas=Trial("failed", "RuntimeError: Cannot find ptxas")), "ptxas-missing", F, "no ptxas that runs",
    ),
    "TRITON_PTXAS_PATH": (
        said(CUDA, "ptxas", useless=["TRITON_PTXAS_PATH=/opt/x"]), "ptxas-variable", W, "/opt/x is no ptxas",
    ),
    "old ptxas": (said(CUDA, "ptxas", knows=["sm_90"]), "ptxas-old", F, "does not know sm_100"),
    # AMD
    "no amdsmi": (
        supervisors(ROCM, amdsmi=missing("amdsmi")), "rocm-amdsmi-missing", W, "cannot be imported by Ray's Python",
    ),
    "amdsmi for the child alone": (
        replace(supervisors(ROCM, amdsmi=missing("amdsmi")), environments=(replace(ROCM.environments[0], own=False),)),
        "rocm-amdsmi-only-child", W, "in environment default, and not by Ray's Python",
    ),
    "amdsmi fails": (
        supervisors(ROCM, amdsmi=Trial("hung", "30 s")), "rocm-amdsmi-broken", W, "did not answer within 30 s",
    ),
    "both masks": (
        variable(ROCM, ROCR_VISIBLE_DEVICES="4,5", HIP_VISIBLE_DEVICES="0,1"), "rocm-masks-both", W, "what ROCR leaves",
    ),
    "CUDA's mask on AMD": (variable(ROCM, CUDA_VISIBLE_DEVICES="0"), "rocm-mask-cuda", W, "on an AMD host"),
    "gfx override": (variable(ROCM, HSA_OVERRIDE_GFX_VERSION="9.4.2"), "rocm-gfx-override", W, "another part"),
    "another ROCm": (other(ROCM, "rocm", stack="6.4.3"), "rocm-version", W, "ROCm 7.2.2, /opt/rocm is 6.4.3"),
    "a neighbouring ROCm": (other(ROCM, "rocm", stack="7.0.2"), "rocm-version", N, "/opt/rocm is 7.0.2"),
    "graphs that end processes": (
        trials(
            other(ROCM, "rocm", stack="7.1.1"),
            torch=Trial("ok", "2.9.0+rocm7.1", {"built_for": "ROCm 7.1.2", "cuda": "", "hip": "7.1.2"}),
        ),
        "rocm-graphs", N, "timed by events",
    ),
    "numa balancing": (system(ROCM, numa_balancing="1"), "rocm-numa-balancing", N, "numa_balancing=1"),
    # Ascend
    "no CANN": (NO_CANN, "ascend-cann-missing", F, "CANN is not installed"),
    "set_env.sh": (replace(ASCEND, variables={}), "ascend-set-env", F, "has not been sourced"),
    "no acl in Ray's Python": (supervisors(ASCEND, acl=missing("acl")), "ascend-acl-missing", W, "by Ray's Python"),
    "no acl": (trials(ASCEND, acl=missing("acl")), "ascend-acl-missing", F, "by environment default"),
    "acl fails": (trials(ASCEND, acl=Trial("died", "signal 11 (SIGSEGV)")), "ascend-acl-broken", F, "signal 11"),
    "driver's libraries": (
        trials(ASCEND, acl=Trial("missing", "libascend_hal.so: cannot open shared object file")),
        "ascend-driver-library", F, "does not find the driver's libraries",
    ),
    "driver's libraries, torch_npu": (
        trials(ASCEND, torch_npu=Trial("missing", "libascend_hal.so: cannot open shared object file")),
        "ascend-driver-library", F, "torch_npu does not find",
    ),
    "no torch_npu": (
        trials(ASCEND, torch_npu=missing("torch_npu")), "ascend-torch-npu-missing", F, "torch_npu is not installed",
    ),
    "torch_npu breaks torch": (BREAKS, "ascend-torch-npu-breaks-torch", F, "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
    "torch_npu broken": (
        trials(ASCEND, torch_npu=Trial("missing", "libhccl.so: cannot open")), "ascend-torch-npu-broken", F, "libhccl",
    ),
    "another torch's torch_npu": (
        trials(ASCEND, python=python(**{"torch": "2.9.1", "torch-npu": "2.9.0", "triton-ascend": "3.2.0"})),
        "ascend-torch-pairing", W, "is for torch 2.9.0, and torch is 2.9.1",
    ),
    "another minor's torch_npu": (
        trials(ASCEND, python=python(**{"torch": "2.8.0+cpu", "torch-npu": "2.9.0", "triton-ascend": "3.2.0"})),
        "ascend-torch-pairing", F, "and torch is 2.8.0+cpu",
    ),
    "another CANN": (other(ASCEND, "ascend", stack="8.3.RC1"), "ascend-cann-pairing", W, "for CANN 8.5.0, and CANN here"),
    "upstream triton": (
        trials(ASCEND, python=python(**{"torch": "2.9.0", "torch-npu": "2.9.0", "triton": "3.6.0"})),
        "ascend-triton-upstream", F, "which has no driver for an NPU",
    ),
}  # fmt: skip
#: What only tells, and needs nothing done.
TELLS = {"ray-address-variable", "ray-cluster-here", "head-loopback"}
