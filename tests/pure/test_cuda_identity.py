"""What the cuda backend reads of a device before anybody opens it: against a stub of NVML, and of nvidia-smi's text."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stubs" / "nvml"))
import nvml_hosts as hosts
from nvml_hosts import Nvml

from farm.backends import HostDevice, Identity, _nvml, cuda
from farm.cell import Target
from farm.node import admission


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts the backend on a host."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cuda, "smi", lambda *query, **more: "")

    def put(library: Nvml, *, tool: bool = True) -> Nvml:
        monkeypatch.setattr("ctypes.CDLL", lambda name: library)
        if tool:
            monkeypatch.setattr(cuda, "smi", lambda *query, **more: hosts.smi_text(library.gpus, *query))
        return library

    return put


def test_an_h200(on: Any) -> None:
    library = on(Nvml(hosts.h200()))
    assert cuda.identity("1", {}) == Identity(
        model="NVIDIA H200",
        uuid=library.gpus[1].uuid,
        partition="",
        power_limit_w=700,
        clocks="",
        driver="580.95.05",
        stack="13.0",
        module="",
    )
    assert library.shut == 1
    assert cuda.identity("9", {}) is None


def test_four_gb200_are_two_modules(on: Any) -> None:
    on(Nvml(hosts.gb200()))
    found = [cuda.identity(str(i), {}) for i in range(4)]
    assert [f.module for f in found if f] == ["superchip-of-cpus-0-71"] * 2 + ["superchip-of-cpus-72-143"] * 2
    assert found[0] and (found[0].model, found[0].power_limit_w, found[0].clocks) == ("NVIDIA GB200", 1200, "")
    on(Nvml(hosts.gb200(), lacks=("nvmlDeviceGetCpuAffinity",)))
    blind = [cuda.identity(str(i), {}) for i in range(4)]
    assert {f.module for f in blind if f} == {"superchip-of-cpus-unknown"}  # rather one neighbour too many


def test_a_board_of_several_gpus(on: Any) -> None:
    gpus = hosts.h200(3)
    for i, gpu in enumerate(gpus):
        gpu.name, gpu.multi_gpu_board, gpu.board_id = "Tesla K80", int(i < 2), 0x200 + (i == 2)
    on(Nvml(gpus))
    assert [cuda.identity(str(i), {}).module for i in range(3)] == ["board-0x200", "board-0x200", ""]


def test_mig_devices_are_devices(on: Any) -> None:
    library = on(Nvml(hosts.h200_mig()))
    parted = library.gpus[1]
    found = cuda.detect()
    assert [d.id for d in found] == ["0", *(c.uuid for c in parted.children)]
    assert found[1] == HostDevice(parted.children[0].uuid, "NVIDIA H200 MIG 1g.18gb", parted.children[0].uuid)
    first, last = cuda.identity(found[1].id, {}), cuda.identity(found[3].id, {})
    assert first == Identity(
        model="NVIDIA H200",
        uuid=found[1].uuid,
        partition="mig-1g.18gb",
        power_limit_w=700,
        clocks="",
        driver="580.95.05",
        stack="13.0",
        module=parted.uuid,
    )
    assert last is not None and last.partition == "mig-3g.71gb" and last.module == parted.uuid
    assert cuda.child_env(found[1].id)["CUDA_VISIBLE_DEVICES"] == found[1].uuid
    assert cuda.physical_id(found[1].id, {}) != cuda.physical_id(found[2].id, {})
    target = admission.complete({"backend": "cuda", "model": "NVIDIA H200"}, first)
    assert admission.serves("H200:mig-1g.18gb", str(Target(**target)))
    assert "mig-1g.18gb" in admission.refusal({"partition": ""}, {}, first)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0", ["0"]),
        ("1", ["first"]),
        ("GPU-21c0", ["first"]),
        ("second,0", ["second", "0"]),
        ("MIG-nobody,0", []),
        ("0,2,1", ["0"]),
        ("", []),
    ],
)
def test_masks_of_mig_devices(on: Any, monkeypatch: pytest.MonkeyPatch, mask: str, expected: list[str]) -> None:
    library = on(Nvml(hosts.h200_mig()))
    names = dict(zip(("first", "second"), (c.uuid for c in library.gpus[1].children)))
    for name, uuid in names.items():
        mask = mask.replace(name, uuid)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert [d.id for d in cuda.detect()] == [names.get(e, e) for e in expected]


def test_a_mig_device_is_read_in_two_places(on: Any) -> None:
    library = on(Nvml(hosts.h200_mig()))
    reader = cuda.telemetry(library.gpus[1].children[1].uuid, {}, "")
    assert reader.sample() == _nvml.Sample(0.0, 1980, 3201, 41, 123.456, ("idle",))  # its GPU's
    assert reader.memory_used_mib() == 1024.0  # its own
    library.events = [(31, 9), (31, 10), (79, 0xFFFFFFFF), (43, 11)]  # the neighbours' faults are not its
    assert reader.counters().xid == (31, 79)
    assert reader.counters().ecc_uncorrected == 2


def test_clocks(on: Any) -> None:
    library = on(Nvml(hosts.h200()))
    one = library.gpus[0]
    one.applications_mhz = 1500
    assert cuda.identity("0", {}).clocks == "applications-1500mhz"
    one.applications_mhz, one.reasons, one.sm_mhz = 1980, 0x2, 1200
    assert cuda.identity("0", {}).clocks == "locked-1200mhz"
    one.applications_mhz = one.default_mhz = None  # a driver that has given them up
    assert cuda.identity("0", {}).clocks == "locked-1200mhz"
    one.reasons = 0x4
    assert cuda.identity("0", {}).clocks == ""


def test_a_driver_that_lacks_calls_says_less(on: Any) -> None:
    lacks = (
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceIsMigDeviceHandle",
        "nvmlDeviceGetApplicationsClock",
        "nvmlDeviceGetCurrentClocksEventReasons",
    )
    on(Nvml(hosts.h200(), lacks=lacks))
    found = cuda.identity("0", {})
    assert found is not None
    assert (found.stack, found.power_limit_w, found.clocks, found.model) == ("", None, "", "NVIDIA H200")


def test_without_nvml_nvidia_smi_tells_what_it_has(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = on(Nvml(hosts.h200()))

    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", absent)
    assert cuda.identity("1", {}) == Identity("NVIDIA H200", library.gpus[1].uuid, "", 700, "", "580.95.05", "13.0")
    assert cuda.identity("MIG-1", {}) is None
    assert cuda.complaints() == []  # no NVML at all is no fault of a host without a GPU
    monkeypatch.setattr(cuda, "smi", lambda *query, **more: "")
    assert cuda.identity("1", {}) is None


# breakages


def test_a_driver_and_a_library_of_two_versions(on: Any) -> None:
    on(Nvml(hosts.h200(), init=18), tool=False)
    assert cuda.identity("0", {}) is None
    (said,) = cuda.complaints()
    assert "nvmlInit_v2 gave 18" in said and "different versions" in said


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_hangs_holds_nobody(on: Any, call: str) -> None:
    on(Nvml(hosts.h200(), hangs=call), tool=False)
    (said,) = cuda.complaints(deadline_s=0.05)
    assert "did not answer within 0.05 s" in said


def test_a_driver_that_hangs_on_a_device(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on(Nvml(hosts.h200(), hangs="nvmlDeviceGetName"), tool=False)
    monkeypatch.setitem(_nvml.answered.__kwdefaults__, "deadline_s", 0.05)
    begun = time.monotonic()
    assert cuda.identity("0", {}) is None
    assert time.monotonic() - begun < 20


def test_a_lost_gpu(on: Any) -> None:
    library = on(Nvml(hosts.h200()), tool=False)
    library.gpus[1].lost = True
    (said,) = cuda.complaints()
    assert "GPU 1" in said and "fallen off the bus" in said
    assert cuda.identity("1", {}) is None
    assert cuda.identity("0", {}) is not None


def test_mig_mode_without_instances(on: Any) -> None:
    library = on(Nvml(hosts.h200_mig(instances=False)))
    assert [d.id for d in cuda.detect()] == ["0"]  # what nothing can run on is no device
    (said,) = cuda.complaints()
    assert "GPU 1 (NVIDIA H200) is in MIG mode but has no instances" in said and "-i 1 -cgi" in said
    library.gpus[1].mig = 0
    assert cuda.complaints() == []


def test_an_error_in_the_asked_call_is_the_callers() -> None:
    def fails() -> None:
        raise ValueError("from within")

    with pytest.raises(ValueError, match="from within"):
        _nvml.answered(fails)


def test_a_listing_of_an_older_driver_is_still_read(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cuda, "smi", lambda *q, **m: "" if "mig.mode" in " ".join(q) else "0, GPU-aa, NVIDIA GB200, with a comma\n"
    )
    assert cuda.detect() == [HostDevice("0", "NVIDIA GB200, with a comma", "GPU-aa")]


@pytest.mark.parametrize(
    ("device", "uuid", "power"), [("0", "GPU-20c0ffee-1111-2222-3333-444455556666", 700), ("MIG-one", "MIG-one", None)]
)
def test_what_the_child_says_of_a_device(
    on: Any, monkeypatch: pytest.MonkeyPatch, device: str, uuid: str, power: int | None
) -> None:
    """Of a MIG device torch names the profile too: a slice that the host cannot read is no whole device for that.
    nvidia-smi tells no power limit of it: that is the host's to say."""
    import torch

    on(Nvml(hosts.h200()))
    monkeypatch.setattr(cuda, "smi", lambda *query, **more: "700.00, 580.95.05\n" * (1 + ("--id=" not in query[0])))

    class Properties:
        name = "NVIDIA H200" + (" MIG 1g.18gb" if device.startswith("MIG") else "")
        uuid, major, minor, multi_processor_count = "20c0ffee-1111-2222-3333-444455556666", 9, 0, 132
        total_memory, L2_cache_size = 141 << 30, 60 << 20

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    monkeypatch.setattr(torch.version, "hip", None)
    session = cuda.open_session(device, {})
    part = {"partition": "mig-1g.18gb"} if device.startswith("MIG") else {}
    assert session.target == {"backend": "cuda", "model": "NVIDIA H200", "power_limit_w": power, **part}
    assert str(Target(**admission.complete(session.target, None))).startswith(
        "cuda:NVIDIA-H200:mig-1g.18gb" if part else "cuda:NVIDIA-H200:700W"
    )
    assert (session.fingerprint["uuid"], session.fingerprint["driver"]) == (uuid, "580.95.05")
