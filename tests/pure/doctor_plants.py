"""Every fault that `farm doctor` has a code for, planted in a host that is otherwise sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from doctor_facts import ASCEND, COMMON, CUDA, GIB, OWN, ROCM, SOUND, node, other, python, supervisors, system, trials

from farm.doctor import Asked, EnvironmentFacts, Facts, HeadFacts, Level, ProbeResult, SpaceFacts, TokenFacts
from farm.doctor.facts import DeviceFile

F, W, N = Level.FAIL, Level.WARN, Level.NOTE


def missing(name: str) -> ProbeResult:
    return ProbeResult("missing", f"No module named '{name}'")


def env(name: str = "nightly", own: bool = False, **change: Any) -> Facts:
    """A second environment, sound but for the change."""
    second = EnvironmentFacts(name, own=own, command="/v/python", trials=COMMON)
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
    trial = ProbeResult("ok", "2.60.0", {**fits, **data})
    asked = Asked(head="10.0.0.1:6379")
    sealed = TokenFacts("token", "/etc/farm/token")
    return replace(facts, asked=asked, token=sealed, head=HeadFacts("10.0.0.1:6379", kind, reason, trial))


def device(facts: Facts, name: str, **change: Any) -> Facts:
    """The first device changed."""
    first, *rest = next(b for b in facts.backends if b.name == name).devices
    return other(facts, name, devices=(replace(first, **change), *rest))


def identified(facts: Facts, name: str, **change: Any) -> Facts:
    found = next(b for b in facts.backends if b.name == name).devices
    return other(facts, name, devices=tuple(replace(d, identity={**(d.identity or {}), **change}) for d in found))


TOKEN = TokenFacts("token", "/etc/farm/token")
FILES = (DeviceFile("/dev/kfd", True, "render"), DeviceFile("/dev/dri/renderD128", True, "video"))
NO_CANN = replace(other(ASCEND, "ascend", stack_folder="", stack=""), variables={})
BREAKS = trials(
    ASCEND,
    torch=ProbeResult(
        "failed", "RuntimeError: Failed to load the backend extension: torch_npu. libhccl.so: cannot open"
    ),
    **{"torch alone": ProbeResult("ok", "2.9.0", {"built_for": "the CPU"})},
)
WRONG_PART = node(ROCM, backend="rocm", expect={"model": "MI355X"})
CPX = node(identified(ROCM, "rocm", partition="cpx-nps4"), backend="rocm", expect={"partition": "spx-nps1"})
MIG = node(identified(CUDA, "cuda", partition="mig-1g.18gb"), backend="cuda", expect={"partition": ""})
BLIND = said(CUDA, "accelerator", kind="", count=0)

#: (host, code, level, a fact that the finding names)
PLANTS: dict[str, tuple[Facts, str, Level, str]] = {
    # this host's Python and its packages
    "old python": (replace(SOUND, python=(3, 9, 1)), "python-too-old", F, "3.9.1"),
    "package": (replace(SOUND, packages={"numpy": "2", "rich": None}), "packages-missing", F, "rich"),
    "no torch": (trials(SOUND, torch=missing("torch")), "torch-missing", F, "No module named"),
    "torch crashes": (trials(SOUND, torch=ProbeResult("died", "signal 11 (SIGSEGV)")), "torch-broken", F, "signal 11"),
    "torch hangs": (trials(SOUND, torch=ProbeResult("hung", "60 s")), "torch-broken", F, "60 s"),
    "torch lacks a library": (
        trials(SOUND, torch=ProbeResult("missing", "libcublas.so.13: cannot open")),
        "torch-broken",
        F,
        "libcublas",
    ),
    "no triton": (trials(SOUND, triton=missing("triton")), "triton-missing", W, "triton"),
    "triton crashes": (trials(SOUND, triton=ProbeResult("died", "signal 6 (SIGABRT)")), "triton-broken", W, "SIGABRT"),
    "two tritons": (
        trials(SOUND, python=python(**{"triton": "3.6.0", "pytorch-triton-rocm": "3.5.1"})),
        "triton-two",
        W,
        "triton 3.6.0 and pytorch-triton-rocm 3.5.1",
    ),
    "triton-ascend and triton": (
        trials(
            ASCEND, python=python(**{"torch": "2.9.0", "torch-npu": "2.9.0", "triton": "3", "triton-ascend": "3.2"})
        ),
        "triton-two",
        F,
        "triton 3 and triton-ascend 3.2",
    ),
    "several drivers": (
        trials(CUDA, driver=ProbeResult("failed", "RuntimeError: 2 active drivers ([...]). There should only be one.")),
        "triton-drivers",
        F,
        "2 active drivers",
    ),
    "no driver": (
        trials(ROCM, driver=ProbeResult("failed", "RuntimeError: 0 active drivers ([]). There should only be one.")),
        "triton-drivers",
        F,
        "0 active drivers",
    ),
    "launcher": (
        trials(CUDA, driver=ProbeResult("failed", "CalledProcessError: gcc")),
        "triton-launch",
        F,
        "CalledProcess",
    ),
    "kernels missing": (
        replace(trials(SOUND, kernels=missing("the farm's own kernels")), our_kernels=""),
        "kernels-missing",
        N,
        "of provider farm end as unsupported",
    ),
    "kernels broken": (
        trials(SOUND, kernels=ProbeResult("failed", "SyntaxError: x")),
        "kernels-broken",
        F,
        "SyntaxError",
    ),
    "kernels foreign": (
        trials(SOUND, kernels=ProbeResult("ok", "/site/kernels")),
        "kernels-foreign",
        F,
        "/site/kernels",
    ),
    "clash": (replace(SOUND, foreign_kernels="/site/kernels"), "kernels-clash", N, "at /site/kernels"),
    "peer absent": (trials(SOUND, provider_liger=missing("liger_kernel")), "provider-missing", N, "liger_kernel"),
    "peer broken": (
        trials(SOUND, provider_liger=ProbeResult("died", "signal 6 (SIGABRT)")),
        "provider-broken",
        W,
        "signal 6",
    ),
    "no C++ compiler": (replace(SOUND, cxx=None), "compiler-cxx-missing", N, "torch_compile"),
    "no C compiler": (replace(CUDA, cc=None), "compiler-cc-missing", F, "C compiler"),
    "no headers": (said(CUDA, "python", header=False), "python-header-missing", F, "Python.h is missing"),
    # environments and the node's configuration
    "configuration": (
        replace(SOUND, node=replace(SOUND.node, file="n.yaml", failure='n.yaml:3: "backends" is unknown')),
        "node-configuration",
        F,
        "n.yaml:3",
    ),
    "another backend": (
        node(replace(CUDA, asked=Asked(backend="cuda")), backend="rocm"),
        "node-backend",
        F,
        "backend rocm",
    ),
    "simulated": (node(SOUND, backend="rocm", simulates=True), "node-simulates", N, "simulate"),
    "another part": (WRONG_PART, "node-expect", F, "AMD Instinct MI300X"),
    "CPX where SPX is expected": (CPX, "node-expect", F, "partition cpx-nps4"),
    "MIG where none is expected": (MIG, "node-expect", F, "partition mig-1g.18gb"),
    "another torch": (node(CUDA, backend="cuda", expect={"torch": "2.9"}), "node-expect", F, "torch 2.11.0"),
    "a label that lies": (node(ROCM, backend="rocm", labels={"model": "MI325X"}), "node-expect", F, "MI325X"),
    "too many devices": (node(CUDA, backend="cuda", devices=4), "node-devices", W, "devices: 4"),
    "no interpreter": (env(failure="no program /opt/python here"), "environment-python", F, "/opt/python"),
    "no docker": (
        env(failure="docker is not a program on this host", missing_program="docker"),
        "environment-program",
        F,
        "docker",
    ),
    "interpreter hangs": (
        env(trials={**COMMON, "python": ProbeResult("hung", "60 s")}),
        "environment-silent",
        F,
        "60 s",
    ),
    "environment on 3.9": (env(trials={**COMMON, "python": python("3.9.18")}), "environment-python-old", F, "3.9.18"),
    "environment without numpy": (env(trials={**COMMON, "numpy": missing("numpy")}), "environment-numpy", F, "numpy"),
    "variables stay behind": (env(dropped=("AWS_PROFILE", "GITHUB_TOKEN")), "environment-dropped", N, "GITHUB_TOKEN"),
    "no Landlock": (
        env(
            trials={
                **COMMON,
                "python": replace(python(), data={**python().data, "unconfined": "the kernel has no Landlock"}),
            }
        ),
        "environment-unconfined",
        N,
        "the kernel has no Landlock",
    ),
    "no bubblewrap": (system(unsandboxed="bubblewrap (bwrap) is not installed"), "sandbox-missing", N, "not installed"),
    "an environment without its sandbox": (
        replace(env(sandboxed=True), system=system(unsandboxed="namespaces are forbidden").system),
        "environment-unsandboxed",
        F,
        "namespaces are forbidden",
    ),
    # Ray
    "no ray": (supervisors(SOUND, ray=missing("ray")), "ray-missing", N, "--address inline"),
    "no ray for a cluster": (
        supervisors(variable(SOUND, FARM_ADDRESS="auto"), ray=missing("ray")),
        "ray-missing",
        F,
        "--address inline",
    ),
    "no time": (supervisors(SOUND, ray=ProbeResult("skipped", "no time")), "ray-missing", N, "no time"),
    "old ray": (supervisors(SOUND, ray=ProbeResult("ok", "2.9.3")), "ray-too-old", F, "2.9.3"),
    "RAY_ADDRESS": (variable(SOUND, RAY_ADDRESS="h:1"), "ray-address-variable", N, "RAY_ADDRESS=h:1"),
    "stale RAY_ADDRESS": (
        variable(replace(SOUND, ray_address_silent="nothing answers there"), RAY_ADDRESS="h:1"),
        "ray-address-stale",
        W,
        "RAY_ADDRESS=h:1",
    ),
    "stale address file": (
        replace(SOUND, ray_written="h:6379", ray_silent="nothing answers there"),
        "ray-file-stale",
        W,
        "h:6379",
    ),
    "a cluster": (replace(SOUND, ray_written="h:6379"), "ray-cluster-here", N, "h:6379"),
    "ROCR alone": (variable(SOUND, ROCR_VISIBLE_DEVICES="0"), "ray-rocr", W, "HIP_VISIBLE_DEVICES"),
    "ROCR alone, AMD": (variable(ROCM, ROCR_VISIBLE_DEVICES="0"), "ray-rocr", F, "HIP_VISIBLE_DEVICES"),
    "no token": (replace(SOUND, token=TokenFacts("token")), "ray-token-missing", N, "RAY_AUTH_TOKEN_PATH"),
    "no token, joining": (
        replace(head(), token=TokenFacts("token"), head=replace(head().head, trial=ProbeResult("died", "signal 6"))),  # type: ignore[type-var]
        "ray-token-missing",
        F,
        "RAY_AUTH_TOKEN_PATH",
    ),
    "token unreadable": (
        replace(SOUND, token=replace(TOKEN, failure="Permission denied")),
        "ray-token-unreadable",
        W,
        "Permission",
    ),
    "token readable": (replace(SOUND, token=replace(TOKEN, exposed=True)), "ray-token-exposed", W, "/etc/farm/token"),
    "token with newline": (replace(SOUND, token=replace(TOKEN, spaces=True)), "ray-token-spaces", N, "/etc/farm/token"),
    "token with a mark": (
        replace(head(), token=replace(TOKEN, illegal=True, spaces=True)),
        "ray-token-illegal",
        F,
        "/etc/farm/token",
    ),
    "two tokens": (
        replace(SOUND, token=TokenFacts("token", "RAY_AUTH_TOKEN", differs=True)),
        "ray-token-two",
        W,
        "RAY_AUTH_TOKEN",
    ),
    "mode not set": (
        replace(SOUND, token=TokenFacts(None, "/home/x/.ray/auth_token")),
        "ray-auth-mode",
        N,
        "RAY_AUTH_MODE",
    ),
    "mode unknown": (replace(SOUND, token=TokenFacts("yes")), "ray-auth-mode", F, "RAY_AUTH_MODE=yes"),
    "head's name": (head(kind="name", reason="there is no host h"), "head-name", F, "there is no host h"),
    "head's port": (head(kind="refused"), "head-refused", F, "6379"),
    "firewall": (head(kind="silent", reason="nothing answers there within 5 s"), "head-silent", F, "5 s"),
    "another service": (head(kind="stranger"), "head-stranger", F, "10.0.0.1:6379"),
    "loopback": (
        replace(head(), head=replace(head().head, loopback=True)),
        "head-loopback",
        N,
        "10.0.0.1:6379",  # type: ignore[type-var]
    ),
    "stale token": (
        replace(
            head(), head=replace(head().head, trial=ProbeResult("failed", "AuthenticationError: InvalidAuthToken"))
        ),  # type: ignore[type-var]
        "head-token",
        F,
        "/etc/farm/token",
    ),
    "head hangs": (
        replace(head(), head=replace(head().head, trial=ProbeResult("hung", "15 s"))),
        "head-unasked",
        W,
        "15 s",  # type: ignore[type-var]
    ),
    "another Ray": (head(ray="2.58.1"), "head-ray-version", F, "2.58.1"),
    "Python's patch": (head(python="3.11.9"), "head-python-version", F, "3.11.9"),
    "another Python, relaxed": (
        variable(head(python="3.12.1"), RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL="minor"),
        "head-python-version",
        F,
        "3.12.1",
    ),
    "another farm": (
        head(nodes=[{"host": "h", "labels": {"farm/version": "0.0.9"}}]),
        "head-farm-version",
        W,
        "kernel-farm 0.0.9",
    ),
    "clock against the head": (head(clock_ahead_s=-93.0), "head-clock", W, "93 s behind"),
    # the host
    "no shm": (replace(SOUND, memory=None), "shm-missing", W, "/dev/shm"),
    "small shm": (replace(SOUND, memory=SpaceFacts("/dev/shm", 64 << 20, 64 << 20)), "shm-small", W, "64 MiB"),
    "locked shm": (
        replace(SOUND, memory=SpaceFacts("/dev/shm", failure="Read-only")),
        "shm-unwritable",
        W,
        "Read-only",
    ),
    "store locked": (
        replace(SOUND, store=SpaceFacts("s", failure="Permission denied")),
        "store-unwritable",
        F,
        "Permission",
    ),
    "store full": (replace(SOUND, store=SpaceFacts("s", 1 << 20, GIB)), "store-space", F, "1 MiB"),
    "store tight": (replace(SOUND, store=SpaceFacts("s", 500 << 20, GIB)), "store-space", W, "500 MiB"),
    "cache locked": (
        replace(SOUND, cache=SpaceFacts("/proc/c", failure="No such file")),
        "cache-unusable",
        W,
        "/proc/c",
    ),
    "cache full": (replace(SOUND, cache=SpaceFacts("/c", 1 << 20, 100 * GIB)), "cache-unusable", W, "1 MiB"),
    "scratch locked": (
        replace(SOUND, scratch=SpaceFacts("/tmp", failure="Read-only")),
        "scratch-unwritable",
        F,
        "Read-only",
    ),
    "scratch full": (replace(SOUND, scratch=SpaceFacts("/tmp", 1 << 20, GIB)), "scratch-space", F, "1 MiB"),
    "scratch nearly full": (
        replace(SOUND, scratch=SpaceFacts("/tmp", 4 * GIB, 100 * GIB)),
        "scratch-space",
        W,
        "96% full",
    ),
    "scratch's name": (
        replace(SOUND, scratch=SpaceFacts("/t" * 30, 80 * GIB, 100 * GIB)),
        "scratch-path",
        F,
        "60 characters",
    ),
    "few files": (system(open_files=1024), "limit-open-files", W, "1024"),
    "few processes": (system(processes=500), "limit-processes", W, "500"),
    "little locked": (system(ROCM, locked_memory=64 << 10), "limit-locked-memory", N, "64 KiB"),
    "core files": (system(core_files=True), "limit-core-files", N, "ulimit -c"),
    "memory limit": (system(memory_limit=2 * GIB), "memory-limit", W, "2.0 GiB"),
    "memory low": (system(memory_available=GIB), "memory-low", W, "1.0 GiB"),
    "swapped": (system(swap_used=9 * GIB), "swap-used", N, "9.0 GiB"),
    "governor": (system(governor="powersave"), "cpu-governor", N, "powersave"),
    "own name": (system(addresses=("127.0.1.1",)), "hostname-loopback", N, "127.0.1.1"),
    "own name, joining": (system(head(), addresses=("127.0.1.1",)), "hostname-loopback", W, "127.0.1.1"),
    "no own name": (system(addresses=(), hostname_failure="unknown"), "hostname-unknown", N, "n1"),
    "clock": (replace(SOUND, now=1_000.0), "clock-behind", W, "1970-01-01"),
    "no time server": (system(clock_synchronised=False), "clock-not-synchronised", N, ""),
    "no time server, joining": (system(head(), clock_synchronised=False), "clock-not-synchronised", W, ""),
    # devices, of every vendor
    "not yet": (other(SOUND, "rocm", not_yet="not yet"), "backend-not-yet", N, ""),
    "not yet, wanted": (
        replace(other(SOUND, "rocm", not_yet="not yet"), asked=Asked(backend="rocm")),
        "backend-not-yet",
        F,
        "",
    ),
    "none, wanted": (replace(SOUND, asked=Asked(backend="cuda")), "backend-none", F, "nvidia-smi"),
    "two vendors": (
        replace(
            CUDA,
            backends=tuple(
                next(b for b in ROCM.backends if b.name == "rocm") if b.name == "rocm" else b for b in CUDA.backends
            ),
            environments=(),
        ),
        "backends-several",
        N,
        "NVIDIA and AMD",
    ),
    "no driver loaded": (bare("rocm", SOUND, pci=8), "device-driver", W, "AMD devices (8)"),
    "container without devices": (
        bare("cuda", SOUND, driver="/proc/driver/nvidia/version"),
        "device-files",
        W,
        "/proc/driver/nvidia/version",
    ),
    "container with half of them": (
        bare(
            "ascend", ASCEND, driver="/d", files=(DeviceFile("/dev/davinci0"),), missing_files=("/dev/davinci_manager",)
        ),
        "device-files",
        W,
        "/dev/davinci_manager",
    ),
    "groups": (other(ROCM, "rocm", files=FILES), "device-denied", F, "render, video"),
    "groups, none listed": (bare("rocm", SOUND, files=FILES[:1], tool_path="/o"), "device-denied", W, "/dev/kfd"),
    "driver, no tool": (
        bare("cuda", SOUND, files=(DeviceFile("/dev/nvidiactl"),)),
        "device-tool-missing",
        W,
        "nvidia-smi",
    ),
    "torch sees what the tool does not": (
        other(CUDA, "cuda", devices=(), pci=0, driver="", files=(), tool_path=""),
        "device-tool-missing",
        W,
        "nvidia-smi",
    ),
    "tool fails": (
        bare("cuda", SOUND, tool_path="/usr/bin/nvidia-smi", tool_failure="exit code 9: driver"),
        "device-tool-silent",
        W,
        "exit code 9",
    ),
    "listing hangs": (
        bare("rocm", SOUND, files=(DeviceFile("/dev/kfd"),), failure="did not answer within 45 s"),
        "device-unasked",
        W,
        "45 s",
    ),
    "mask of nothing": (variable(CUDA, CUDA_VISIBLE_DEVICES="0,1,7"), "device-mask", W, "CUDA_VISIBLE_DEVICES=0,1,7"),
    "mask hides all": (
        variable(bare("rocm", SOUND, tool_path="/o/amd-smi", tool_failure="exit code 0: GPU"), HIP_VISIBLE_DEVICES=""),
        "device-mask",
        F,
        "HIP_VISIBLE_DEVICES=",
    ),
    "foreign process": (
        device(CUDA, "cuda", processes=((4711, "python train.py"),)),
        "device-process",
        W,
        "train.py (pid 4711)",
    ),
    "locked": (device(CUDA, "cuda", holder="pid 7, user 'x'", processes=((8, "farm"),)), "device-locked", N, "pid 7"),
    "locks": (other(CUDA, "cuda", lock_trouble="/tmp/l cannot be written"), "device-lock-folder", F, "/tmp/l"),
    "clocks": (identified(CUDA, "cuda", clocks="locked-1980mhz"), "device-clocks", N, "locked-1980mhz"),
    "ill": (device(ASCEND, "ascend", unfit="health ALARM for device 0"), "device-unfit", F, "ALARM"),
    "lost": (other(CUDA, "cuda", complaints=("GPU 1 cannot be read: NVML returned 15",)), "device-unfit", F, "GPU 1"),
    "torch for the CPU": (trials(CUDA, torch=COMMON["torch"]), "torch-other-vendor", F, "NVIDIA"),
    "CUDA's torch on AMD": (
        trials(ROCM, torch=CUDA.environments[0].trial("torch")),
        "torch-other-vendor",
        F,
        "CUDA 13.0",
    ),
    "ROCm's torch on NVIDIA": (
        trials(CUDA, torch=ROCM.environments[0].trial("torch")),
        "torch-other-vendor",
        F,
        "ROCm 7.2.2",
    ),
    "CUDA's torch on Ascend": (
        trials(ASCEND, torch=CUDA.environments[0].trial("torch")),
        "torch-other-vendor",
        F,
        "Ascend",
    ),
    "blind": (said(ROCM, "accelerator", kind="", count=0), "torch-blind", F, "lists 8"),
    "fewer": (said(CUDA, "accelerator", count=1), "torch-fewer", W, "lists 2"),
    "device hangs": (trials(CUDA, accelerator=ProbeResult("hung", "60 s")), "torch-device-sick", F, "60 s"),
    "no kernels for sm_100": (
        said(CUDA, "accelerator", architectures=["sm_80", "sm_90", "sm_90a"]),
        "torch-arch",
        F,
        "sm_100",
    ),
    "no kernels for gfx950": (said(ROCM, "accelerator", architecture="gfx908"), "torch-arch", F, "gfx908"),
    # NVIDIA
    "old driver": (identified(BLIND, "cuda", stack="12.8"), "cuda-driver-old", F, "CUDA 12.8"),
    "old driver, by its words": (
        identified(
            said(BLIND, "accelerator", warnings=["CUDA: the NVIDIA driver on your system is too old"]), "cuda", stack=""
        ),
        "cuda-driver-old",
        F,
        "CUDA 13.0",
    ),
    "cuda-compat": (
        said(
            BLIND,
            "accelerator",
            warnings=["Error 803: system has unsupported display driver / cuda driver combination"],
        ),
        "cuda-driver-mismatch",
        F,
        "Error 803",
    ),
    "updated driver": (
        bare("cuda", SOUND, tool_path="/n", tool_failure="exit code 18: Driver/library version mismatch"),
        "cuda-driver-mismatch",
        W,
        "version mismatch",
    ),
    "fabric": (
        said(BLIND, "accelerator", warnings=["Error 802: system not yet initialized"]),
        "cuda-fabric",
        F,
        "NVLink",
    ),
    "MIG without instances": (other(BLIND, "cuda", mig="Enabled"), "cuda-mig-empty", F, "MIG"),
    "MIG, nothing listed": (bare("cuda", SOUND, tool_path="/n", mig="Enabled"), "cuda-mig-empty", F, "MIG"),
    "no libcuda": (
        trials(CUDA, driver=ProbeResult("failed", "AssertionError: libcuda.so cannot found!")),
        "cuda-libcuda",
        F,
        "libcuda.so.1",
    ),
    "no ptxas": (
        trials(CUDA, ptxas=ProbeResult("failed", "RuntimeError: Cannot find ptxas")),
        "ptxas-missing",
        F,
        "ptxas",
    ),
    "TRITON_PTXAS_PATH": (said(CUDA, "ptxas", useless=["TRITON_PTXAS_PATH=/opt/x"]), "ptxas-variable", W, "/opt/x"),
    "old ptxas": (said(CUDA, "ptxas", knows=["sm_90"]), "ptxas-old", F, "sm_100"),
    # AMD
    "no amdsmi": (supervisors(ROCM, amdsmi=missing("amdsmi")), "rocm-amdsmi-missing", W, "amdsmi"),
    "amdsmi for the child alone": (
        replace(supervisors(ROCM, amdsmi=missing("amdsmi")), environments=(replace(ROCM.environments[0], own=False),)),
        "rocm-amdsmi-only-child",
        W,
        "environment default",
    ),
    "amdsmi fails": (supervisors(ROCM, amdsmi=ProbeResult("hung", "30 s")), "rocm-amdsmi-broken", W, "30 s"),
    "both masks": (
        variable(ROCM, ROCR_VISIBLE_DEVICES="4,5", HIP_VISIBLE_DEVICES="0,1"),
        "rocm-masks-both",
        W,
        "ROCR_VISIBLE_DEVICES=4,5",
    ),
    "CUDA's mask on AMD": (variable(ROCM, CUDA_VISIBLE_DEVICES="0"), "rocm-mask-cuda", W, "CUDA_VISIBLE_DEVICES=0"),
    "gfx override": (
        variable(ROCM, HSA_OVERRIDE_GFX_VERSION="9.4.2"),
        "rocm-gfx-override",
        W,
        "HSA_OVERRIDE_GFX_VERSION=9.4.2",
    ),
    "another ROCm": (other(ROCM, "rocm", stack="6.4.3"), "rocm-version", W, "6.4.3"),
    "a neighbouring ROCm": (other(ROCM, "rocm", stack="7.0.2"), "rocm-version", N, "7.0.2"),
    "graphs that end processes": (
        trials(
            other(ROCM, "rocm", stack="7.1.1"),
            torch=ProbeResult("ok", "2.9.0+rocm7.1", {"built_for": "ROCm 7.1.2", "cuda": "", "hip": "7.1.2"}),
        ),
        "rocm-graphs",
        N,
        "ROCm 7.1.2",
    ),
    "numa balancing": (system(ROCM, numa_balancing="1"), "rocm-numa-balancing", N, "numa_balancing=1"),
    # Ascend
    "no CANN": (NO_CANN, "ascend-cann-missing", F, "CANN"),
    "set_env.sh": (replace(ASCEND, variables={}), "ascend-set-env", F, "set_env.sh"),
    "no acl in Ray's Python": (supervisors(ASCEND, acl=missing("acl")), "ascend-acl-missing", W, "Ray's Python"),
    "no acl": (trials(ASCEND, acl=missing("acl")), "ascend-acl-missing", F, "environment default"),
    "acl fails": (trials(ASCEND, acl=ProbeResult("died", "signal 11 (SIGSEGV)")), "ascend-acl-broken", F, "signal 11"),
    "driver's libraries": (
        trials(ASCEND, acl=ProbeResult("missing", "libascend_hal.so: cannot open shared object file")),
        "ascend-driver-library",
        F,
        "libascend_hal.so",
    ),
    "driver's libraries, torch_npu": (
        trials(ASCEND, torch_npu=ProbeResult("missing", "libascend_hal.so: cannot open shared object file")),
        "ascend-driver-library",
        F,
        "libascend_hal.so",
    ),
    "no torch_npu": (trials(ASCEND, torch_npu=missing("torch_npu")), "ascend-torch-npu-missing", F, "torch_npu"),
    "torch_npu breaks torch": (BREAKS, "ascend-torch-npu-breaks-torch", F, "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
    "torch_npu broken": (
        trials(ASCEND, torch_npu=ProbeResult("missing", "libhccl.so: cannot open")),
        "ascend-torch-npu-broken",
        F,
        "libhccl",
    ),
    "another torch's torch_npu": (
        trials(ASCEND, python=python(**{"torch": "2.9.1", "torch-npu": "2.9.0", "triton-ascend": "3.2.0"})),
        "ascend-torch-pairing",
        W,
        "2.9.1",
    ),
    "another minor's torch_npu": (
        trials(ASCEND, python=python(**{"torch": "2.8.0+cpu", "torch-npu": "2.9.0", "triton-ascend": "3.2.0"})),
        "ascend-torch-pairing",
        F,
        "2.8.0+cpu",
    ),
    "another CANN": (other(ASCEND, "ascend", stack="8.3.RC1"), "ascend-cann-pairing", W, "CANN 8.5.0"),
    "upstream triton": (
        trials(ASCEND, python=python(**{"torch": "2.9.0", "torch-npu": "2.9.0", "triton": "3.6.0"})),
        "ascend-triton-upstream",
        F,
        "triton 3.6.0",
    ),
}
#: Findings that only inform, and need no cure.
NEED_NO_CURE = {"ray-address-variable", "ray-cluster-here", "head-loopback"}
