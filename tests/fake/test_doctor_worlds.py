"""`farm doctor` on planted hosts: programs on PATH, modules on a child's path, files under a root, real processes.

Each world is a node whose configuration names another Python (this one without its packages, with fakes) and whose
vendor's tools are the stubs of tests/stubs; one fault is in it at a time.  Nothing here is a vendor's hardware.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from farm.doctor import Asked, Finding, HostReader, Level, examine, exit_code, for_join, gather
from farm.kernel_package import ROOT

STUBS = ROOT / "tests" / "stubs"
SMI = """\
#!{python}
import sys
said = {{"index": "0", "uuid": "GPU-0", "name": "NVIDIA GB200", "mig.mode.current": "[N/A]", "pid": "{pid}"}}
for word in sys.argv[1:]:
    if word.startswith("--query-"):
        names = word.partition("=")[2].split(",")
        print(", ".join(said.get(name, "[N/A]") for name in names))
"""
TORCH = """\
import os, warnings
from types import SimpleNamespace as S
said = {said!r}
if said["breaks"] and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
    raise RuntimeError("Failed to load the backend extension: torch_npu. " + said["breaks"])
__version__ = said["version"]
version = S(hip=said["hip"] or None, cuda=said["cuda"] or None)
gpu = S(gcnArchName=said["gcn"], major=10, minor=0)
cuda = S(is_available=lambda: said["gpus"] > 0, device_count=lambda: said["gpus"],
         get_arch_list=lambda: said["kernels"], get_device_properties=lambda n: gpu)
npu = S(is_available=lambda: said["npus"] > 0, device_count=lambda: said["npus"])
"""
TRITON = """\
from types import SimpleNamespace as S
driver = S(active=S(get_current_target=lambda: S(backend={backend!r}, arch=0), utils=None))
"""


class World:
    """A node with one vendor's devices.  `root` is what the doctor takes for /; `site` is all that its Python has."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str):
        self.patch, self.backend = monkeypatch, backend
        self.root, self.site, self.bin = folder / "root", folder / "site", folder / "bin"
        for place in (self.root / "dev", self.root / "dev/shm", self.site, self.bin):
            place.mkdir(parents=True)
        self.config: dict[str, Any] = {
            "backend": backend,
            "environments": {"default": {"command": [sys.executable, "-S", "{child}"], "path": [str(self.site)]}},
        }
        for name in ("numpy", "numpy.libs"):
            place = Path(numpy.__file__).parents[1] / name
            if place.is_dir():
                (self.site / name).symlink_to(place)
        self.file = folder / "node.yaml"
        monkeypatch.setenv("FARM_NODE", str(self.file))
        monkeypatch.setenv("FARM_LOCKS", str(folder / "locks"))
        monkeypatch.setenv("FARM_CACHE", str(folder / "cache"))
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}{os.environ['PATH']}")
        for name in [n for n in os.environ if n.startswith(("RAY_", "HIP_", "ROCR_", "CUDA_V", "ASCEND_"))]:
            monkeypatch.delenv(name)

    def module(self, name: str, text: str) -> None:
        file = self.site.joinpath(*name.split("."), "__init__.py")
        for parent in [p for p in reversed(file.parents) if self.site in p.parents]:
            parent.mkdir(exist_ok=True)
            (parent / "__init__.py").touch()
        file.write_text(text)

    def torch(self, **said: Any) -> None:
        plain = {
            "version": "2.9.0",
            "hip": "",
            "cuda": "",
            "gcn": "",
            "gpus": 0,
            "npus": 0,
            "kernels": [],
            "breaks": "",
        }
        self.module("torch", TORCH.format(said={**plain, **said}))

    def triton(self, backend: str, ptxas: str = "") -> None:
        self.module("triton.runtime", TRITON.format(backend=backend))
        if ptxas:
            self.module("triton.backends.nvidia.compiler", f"def get_ptxas(arch):\n    {ptxas}\n")

    def installed(self, **distributions: str) -> None:
        """As pip would have left it: metadata, which is asked of a distribution before any other's of that name."""
        for name, version in distributions.items():
            folder = self.site / f"{name}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def stub(self, name: str, program: str = "", *, child: bool = True, ours: bool = True) -> None:
        """A stub of tests/stubs: its program on PATH, its modules for children and for the supervisor's Python."""
        folder = STUBS / name
        if program:
            self.patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        if ours:
            self.patch.syspath_prepend(str(folder))
        if child:
            self.config["environments"]["default"]["path"].append(str(folder))

    def files(self, *names: str, mode: int = 0o666) -> None:
        for name in names:
            path = self.root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            path.chmod(mode)

    def look(self, **host: Any) -> dict[str, Finding]:
        """The findings by their code, without the ok."""
        self.file.write_text(json.dumps(self.config))  # JSON is YAML
        asked = Asked(backend=self.backend, join=True)
        return {
            f.code: f for f in examine(gather("s", asked=asked, host=HostReader(self.root, **host))) if f.code != "ok"
        }


ABOUT_THIS_HOST = (
    "hostname",
    "clock",
    "limit",
    "memory",
    "swap",
    "cpu",
    "ray-address",
    "ray-file",
    "ray-cluster",
    "ray-auth",
    "shm",
    "compiler",
    "python-header",
    "kernels-clash",
    "environment-dropped",
    "environment-unconfined",
    "sandbox",
    "provider",
)


def accused(found: dict[str, Finding]) -> dict[str, Level]:
    """What is said of the node's vendor, and not of the machine that the test runs on."""
    return {code: f.level for code, f in found.items() if not code.startswith(ABOUT_THIS_HOST)}


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two MI300X, well."""
    world = World(tmp_path, monkeypatch, "rocm")
    monkeypatch.setenv("FARM_STUB_AMD", "MI300X")
    monkeypatch.setenv("FARM_STUB_AMD_GPUS", "2")
    world.torch(version="2.9.0+rocm7.2", hip="7.2.1", gpus=2, gcn="gfx942", kernels=["gfx942", "gfx950"])
    world.triton("hip")
    world.files("/dev/kfd", "/dev/dri/renderD128", "/sys/module/amdgpu")
    return world


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """One 910B3, well."""
    world = World(tmp_path, monkeypatch, "ascend")
    monkeypatch.setenv("FARM_STUB_NPU", '{"part": "910B3", "count": 1}')
    world.torch(npus=1)
    world.module("torch_npu", "__version__ = '2.9.0'\n")
    world.triton("npu")
    world.installed(torch="2.9.0", torch_npu="2.9.0", triton_ascend="3.2.0")
    home = "/usr/local/Ascend/ascend-toolkit/latest"
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", home)
    world.files("/dev/davinci_manager", "/dev/davinci0", "/dev/devmm_svm", "/dev/hisi_hdc", f"{home}/version.cfg")
    (world.root / f"{home[1:]}/version.cfg").write_text("runtime_running_version=[8.5.0]\n")
    return world


@pytest.fixture
def busy() -> Iterator[int]:
    """A process of somebody else."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """One GB200, well."""
    world = World(tmp_path, monkeypatch, "cuda")
    world.torch(version="2.11.0+cu130", cuda="13.0", gpus=1, kernels=["sm_90", "sm_100"])
    ptxas(world, "13.1", "sm_90 sm_100")
    world.files("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/proc/driver/nvidia/version")
    program(world, "nvidia-smi", SMI.format(python=sys.executable, pid=""))
    return world


def program(world: World, name: str, text: str) -> Path:
    path = world.bin / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def ptxas(world: World, version: str, knows: str) -> None:
    quoted = ",".join(f"'{part}'" for part in knows.split())
    text = f'#!/bin/sh\n[ "$1" = --version ] && echo "release {version}, V" || echo "{quoted}"\n'
    path = program(world, "fake-ptxas", text)
    world.triton("cuda", f"return type('T', (), {{'path': {str(path)!r}}})")


# AMD


def test_an_amd_node_that_is_well_is_not_accused(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi")
    assert accused(amd.look()) == {}


@pytest.mark.long
def test_amdsmi_not_importable(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi", child=False, ours=False)
    found = amd.look()
    assert accused(found) == {"rocm-amdsmi-missing": Level.WARN}
    assert "pip install" in found["rocm-amdsmi-missing"].cure


def test_amdsmi_importable_by_the_children_alone(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi", ours=False)
    assert accused(amd.look()) == {"rocm-amdsmi-only-child": Level.WARN}


@pytest.mark.long
def test_rocr_visible_devices(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi")
    amd.patch.setenv("ROCR_VISIBLE_DEVICES", "0,1")
    found = amd.look()
    assert accused(found)["ray-rocr"] is Level.FAIL
    assert "HIP_VISIBLE_DEVICES" in found["ray-rocr"].cure
    amd.patch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    assert accused(amd.look())["rocm-masks-both"] is Level.WARN


@pytest.mark.long
def test_a_torch_for_nvidia_on_an_amd_node(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi")
    amd.torch(version="2.9.0+cu130", cuda="13.0")
    assert accused(amd.look()) == {"torch-other-vendor": Level.FAIL}


def test_device_files_of_a_group_that_one_is_not_in(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi")
    amd.files("/dev/kfd", mode=0o660)
    found = amd.look(user=12345, groups=frozenset({54321}))
    assert accused(found) == {"device-denied": Level.FAIL}
    assert "usermod -aG" in found["device-denied"].cure


def test_partitions_that_the_configuration_does_not_expect(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi")
    amd.patch.setenv("FARM_STUB_AMD_MODE", "cpx-nps4")
    amd.torch(version="2.9.0+rocm7.2", hip="7.2.1", gpus=16, gcn="gfx942", kernels=["gfx942"])
    amd.config["expect"] = {"model": "MI300X", "partition": "spx-nps1"}
    found = amd.look()
    assert accused(found) == {"node-expect": Level.FAIL}
    assert "cpx-nps4" in found["node-expect"].what


@pytest.mark.long
def test_a_container_that_was_started_without_its_devices(amd: World) -> None:
    shutil.rmtree(amd.root / "dev/dri")
    (amd.root / "dev/kfd").unlink()
    folder = amd.root / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x1002\n")
    (folder / "class").write_text("0x120000\n")
    found = amd.look()
    assert accused(found)["device-files"] is Level.FAIL
    assert "--device /dev/kfd" in found["device-files"].cure


# Ascend


def test_an_ascend_node_that_is_well_is_not_accused(npu: World) -> None:
    npu.stub("npu", "npu-smi")
    npu.stub("acl")
    assert accused(npu.look()) == {}


@pytest.mark.long
def test_acl_missing(npu: World) -> None:
    npu.stub("npu", "npu-smi")
    found = npu.look()
    assert accused(found) == {"ascend-acl-missing": Level.FAIL}
    npu.patch.delenv("ASCEND_TOOLKIT_HOME")
    found = npu.look()
    assert accused(found) == {"ascend-acl-missing": Level.FAIL, "ascend-set-env": Level.FAIL}
    assert "set_env.sh" in found["ascend-acl-missing"].cure


@pytest.mark.long
def test_torch_npu_breaking_import_torch(npu: World) -> None:
    npu.stub("npu", "npu-smi")
    npu.stub("acl")
    npu.torch(npus=1, breaks="libhccl.so: cannot open shared object file: No such file or directory")
    found = npu.look()
    assert accused(found) == {"ascend-torch-npu-breaks-torch": Level.FAIL}
    assert "set_env.sh" in found["ascend-torch-npu-breaks-torch"].cure


@pytest.mark.long
def test_a_real_torch_that_a_broken_plugin_breaks(npu: World) -> None:
    pytest.importorskip("torch")
    shutil.rmtree(npu.site)
    npu.site.mkdir()
    npu.config["environments"]["default"] = {"python": sys.executable, "path": [str(npu.site)]}
    npu.stub("npu", "npu-smi")
    npu.stub("acl")
    npu.stub("torch_npu", ours=False)
    npu.installed(torch_npu="2.9.0")
    text = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
    (npu.site / "torch_npu-2.9.0.dist-info" / "entry_points.txt").write_text(text)
    found = npu.look()
    assert accused(found)["ascend-torch-npu-breaks-torch"] is Level.FAIL
    assert "libhccl.so" in found["ascend-torch-npu-breaks-torch"].what


@pytest.mark.long
def test_upstream_triton_beside_an_npu(npu: World) -> None:
    npu.stub("npu", "npu-smi")
    npu.stub("acl")
    npu.installed(triton="3.6.0")
    assert accused(npu.look()) == {"triton-two": Level.FAIL}
    shutil.rmtree(npu.site / "triton_ascend-3.2.0.dist-info")
    assert accused(npu.look()) == {"ascend-triton-upstream": Level.FAIL}


@pytest.mark.long
def test_a_cann_of_another_version(npu: World) -> None:
    npu.stub("npu", "npu-smi")
    npu.stub("acl")
    (npu.root / "usr/local/Ascend/ascend-toolkit/latest/version.cfg").write_text("version=[8.3.RC1]\n")
    assert accused(npu.look()) == {"ascend-cann-pairing": Level.WARN}


# NVIDIA


def test_a_gb200_that_is_well_is_not_accused(gpu: World) -> None:
    assert accused(gpu.look()) == {}


@pytest.mark.long
def test_no_ptxas_and_one_that_is_too_old(gpu: World) -> None:
    ptxas(gpu, "12.4", "sm_80 sm_90")
    found = gpu.look()
    assert accused(found) == {"ptxas-old": Level.FAIL}
    assert "12.8" in found["ptxas-old"].cure
    gpu.triton("cuda", "raise RuntimeError('Cannot find ptxas-blackwell')")
    assert accused(gpu.look()) == {"ptxas-missing": Level.FAIL}


@pytest.mark.long
def test_a_foreign_process_is_named_with_its_pid(gpu: World, busy: int) -> None:
    program(gpu, "nvidia-smi", SMI.format(python=sys.executable, pid=busy))
    found = gpu.look()
    assert accused(found) == {"device-process": Level.WARN}
    assert f"(pid {busy})" in found["device-process"].what and "sleep" in found["device-process"].what


@pytest.mark.long
def test_a_torch_for_amd_on_an_nvidia_node(gpu: World) -> None:
    gpu.torch(hip="7.1.1")
    assert accused(gpu.look()) == {"torch-other-vendor": Level.FAIL}


def test_a_tool_that_hangs_holds_nobody_up(gpu: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.doctor import devices

    monkeypatch.setattr(devices, "LIST_SECONDS", 1.0)
    monkeypatch.setattr(devices, "TOOL_SECONDS", 0.5)
    monkeypatch.setattr(devices, "_mig", lambda: "")
    program(gpu, "nvidia-smi", "#!/bin/sh\nexec sleep 60\n")
    found = gpu.look()
    assert accused(found) == {"device-unasked": Level.FAIL}


@pytest.mark.long
def test_a_driver_that_does_not_fit_its_library(gpu: World) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    program(gpu, "nvidia-smi", f"#!/bin/sh\necho '{said}'\nexit 18\n")
    found = gpu.look()
    assert accused(found) == {"cuda-driver-mismatch": Level.FAIL}
    assert "reboot" in found["cuda-driver-mismatch"].cure


# Any host


@pytest.mark.long
def test_small_shared_memory(gpu: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage, small = shutil.disk_usage, gpu.root / "dev/shm"
    sizes = type(usage("/"))(64 << 20, 0, 64 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: sizes if Path(path) == small else usage(path))
    found = gpu.look()
    assert found["shm-small"].level is Level.WARN
    assert "--shm-size" in found["shm-small"].cure


@pytest.mark.long
def test_a_clock_that_was_never_set(gpu: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.doctor import collect

    monkeypatch.setattr(collect.time, "time", lambda: 1000.0)
    assert "timedatectl" in gpu.look()["clock-behind"].cure


def test_a_configuration_that_is_wrong_is_told_with_its_line(gpu: World) -> None:
    gpu.config["expext"] = {}
    found = gpu.look()["node-configuration"]
    assert found.level is Level.FAIL and '"expect"' in found.what


@pytest.mark.long
def test_a_join_is_told_what_stands_in_its_way(gpu: World) -> None:
    gpu.config["backend"] = "rocm"
    gpu.file.write_text(json.dumps(gpu.config))
    found = for_join("cuda", "127.0.0.1:1", host=HostReader(gpu.root))
    assert {"node-backend", "head-refused"} <= {f.code for f in found if f.level is Level.FAIL}
    assert exit_code(found) == 3
    assert not {"store", "cache"} & {f.section for f in found}


@pytest.mark.long
def test_a_join_is_judged_by_what_it_will_set(amd: World) -> None:
    amd.stub("amdsmi", "amd-smi")
    amd.patch.setenv("ROCR_VISIBLE_DEVICES", "0,1")
    amd.file.write_text(json.dumps(amd.config))
    changed = {"ROCR_VISIBLE_DEVICES": None, "HIP_VISIBLE_DEVICES": "0,1", "RAY_AUTH_MODE": "disabled"}
    found = for_join("rocm", "127.0.0.1:1", variables=changed, host=HostReader(amd.root))
    assert {f.code for f in found if f.level is Level.FAIL} == {"head-refused"}
