"""The ctypes boundary to NVML, against a library compiled here that obeys the environment; and nvidia-smi's text."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from farm.backends import _nvml, cuda
from farm.backends.api import Process, Sample

#: Two devices.  A call whose name is in FARM_STUB_REFUSES gives "not supported".
STUB = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { uint64_t total, free, used; } memory_t;
typedef struct { uint32_t pid; uint64_t memory; uint32_t gi, ci; } process_t;
typedef struct { void *device; uint64_t kind, data; uint32_t gi, ci; } event_t;
static int devices[2];
static int xids_told;
static uint64_t env(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, 0, 0) : otherwise;
}
static int refused(const char *name) {
    const char *text = getenv("FARM_STUB_REFUSES");
    return text && strstr(text, name) ? 3 : 0;
}
#define MAY if (refused(__func__)) return 3
int nvmlInit_v2(void) { xids_told = 0; return refused(__func__); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { if (i > 1) return 2; *d = &devices[i]; return 0; }
static const char *names[2] = {"GPU-aa11-0", "GPU-bb22-1"};
int nvmlDeviceGetHandleByUUID(const char *uuid, void **d) {
    for (int i = 0; i < 2; i++) if (!strcmp(uuid, names[i])) { *d = &devices[i]; return 0; }
    return 6;
}
int nvmlDeviceGetUUID(void *d, char *out, unsigned n) {
    MAY; strncpy(out, names[(int *)d - devices], n); return 0;
}
int nvmlDeviceGetClockInfo(void *d, unsigned type, unsigned *out) {
    MAY; *out = type == 1 ? 1980 - ((int *)d - devices) : type == 2 ? 3201 : 7; return 0;
}
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *out) { MAY; *out = sensor ? 0 : 41; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *out) { MAY; *out = 123456; return 0; }
int REASONS(void *d, unsigned long long *out) { MAY; *out = env("FARM_STUB_REASONS", 1); return 0; }
int nvmlDeviceGetTotalEccErrors(void *d, unsigned type, unsigned counter, unsigned long long *out) {
    MAY; *out = type == 1 && counter == 0 ? env("FARM_STUB_ECC", 0) : 99; return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *out) {
    MAY; out->total = 1ull << 40; out->free = 5; out->used = 3ull << 30; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process_t *out) {
    MAY;
    unsigned count = env("FARM_STUB_PROCESSES", 2), room = *n;
    *n = count;
    if (count > room) return 7;
    for (unsigned i = 0; i < count; i++) {
        out[i].pid = i ? 4000000 + i : env("FARM_STUB_PID", 0); out[i].memory = 1 << 20; out[i].gi = out[i].ci = -1;
    }
    return 0;
}
int nvmlEventSetCreate(void **set) { MAY; *set = &xids_told; return 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set) { MAY; return types == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, event_t *out, unsigned milliseconds) {
    if (milliseconds) return 2;
    if (xids_told >= (int)env("FARM_STUB_XIDS", 0)) return 10;
    memset(out, 0, sizeof *out);
    out->device = devices; out->kind = 8; out->data = 79 + xids_told++;
    return 0;
}
"""
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler here")


@pytest.fixture(scope="module", params=["EventReasons", "ThrottleReasons"])
def stub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library with a newer, or an older driver's name of the reasons."""
    place = tmp_path_factory.mktemp("nvml")
    (place / "stub.c").write_text(STUB.replace("int REASONS(", f"int nvmlDeviceGetCurrentClocks{request.param}("))
    library = place / "libnvidia-ml.so.1"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, place / "stub.c"], check=True, timeout=60)
    return str(library)


def reader(stub: str, device: str = "0") -> _nvml.NvmlReader:
    library = _nvml.load(stub)
    found = _nvml.handle(library, device)
    assert found is not None
    return _nvml.NvmlReader(library, found)


@needs_compiler
def test_a_sample_has_what_the_device_says(stub: str) -> None:
    assert reader(stub).sample() == Sample(0.0, 1980, 3201, 41, 123.456, ("idle",))
    assert reader(stub, "1").sample().sm_clock_mhz == 1979


@needs_compiler
def test_reasons_are_named(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STUB_REASONS", "0x1ee")
    found = reader(stub).sample().throttle
    assert found == ("clocks_set", "sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "power_brake")
    assert _nvml.reasons(0) == ()
    assert _nvml.reasons(0x200) == ("reason_0x200",)


@needs_compiler
@pytest.mark.parametrize(
    ("device", "uuid"),
    [
        ("0", "GPU-aa11-0"),
        ("1", "GPU-bb22-1"),
        ("GPU-bb22-1", "GPU-bb22-1"),
        ("GPU-bb", "GPU-bb22-1"),
        ("2", None),
        ("GPU-cc", None),
        ("", None),
    ],
)
def test_a_device_is_found_by_index_uuid_or_its_beginning(stub: str, device: str, uuid: str | None) -> None:
    library = _nvml.load(stub)
    found = _nvml.handle(library, device)
    assert (_nvml.uuid(library, found) if found is not None else None) == uuid


@needs_compiler
def test_counters(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STUB_PID", str(os.getpid()))
    mine = Path("/proc/self/comm").read_text().strip()
    one = reader(stub)
    assert one.counters() == _nvml.Counters(0, (), (Process(os.getpid(), mine), Process(4000001, "")))
    monkeypatch.setenv("FARM_STUB_ECC", "3")
    monkeypatch.setenv("FARM_STUB_XIDS", "2")
    monkeypatch.setenv("FARM_STUB_PROCESSES", "1")
    assert one.counters() == _nvml.Counters(3, (79, 80), (Process(os.getpid(), mine),))
    monkeypatch.setenv("FARM_STUB_XIDS", "3")
    assert one.counters().xid == (79, 80, 81)
    assert one.memory_used_mib() == 3072.0
    one.close()


@needs_compiler
def test_a_crowd_is_bounded(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STUB_PID", "1")
    monkeypatch.setenv("FARM_STUB_PROCESSES", "200")
    found = reader(stub).counters().processes
    assert found is not None
    assert len(found) == 200


@needs_compiler
@pytest.mark.parametrize(
    ("call", "sample", "counters"),
    [
        ("nvmlDeviceGetClockInfo", ("sm_clock_mhz", "mem_clock_mhz"), ()),
        ("nvmlDeviceGetTemperature", ("temperature_c",), ()),
        ("nvmlDeviceGetPowerUsage", ("power_w",), ()),
        ("nvmlDeviceGetCurrentClocksEventReasons,nvmlDeviceGetCurrentClocksThrottleReasons", ("throttle",), ()),
        ("nvmlDeviceGetTotalEccErrors", (), ("ecc_uncorrected",)),
        ("nvmlDeviceGetComputeRunningProcesses_v3", (), ("processes",)),
        ("nvmlEventSetCreate", (), ("xid",)),
        ("nvmlDeviceRegisterEvents", (), ("xid",)),
    ],
)
def test_what_is_refused_is_none_and_nothing_else(
    stub: str, monkeypatch: pytest.MonkeyPatch, call: str, sample: tuple[str, ...], counters: tuple[str, ...]
) -> None:
    monkeypatch.setenv("FARM_STUB_REFUSES", call)
    one = reader(stub)
    assert {k for k, v in vars(one.sample()).items() if v is None} == set(sample)
    assert {k for k, v in vars(one.counters()).items() if v is None} == set(counters)


@needs_compiler
def test_the_cuda_backend_names_and_reads_by_it(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvml.load, "__defaults__", (stub,))
    assert cuda.physical_id("1", {}) == "GPU-bb22-1"
    found = cuda.telemetry("1", {}, "")
    assert isinstance(found, _nvml.NvmlReader)
    found.close()


def test_a_library_that_is_absent_or_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        _nvml.load(str(tmp_path / "none.so"))
    monkeypatch.setattr(_nvml.load, "__defaults__", (str(tmp_path / "none.so"),))
    monkeypatch.setattr(cuda, "smi", lambda *query, **more: "")
    assert cuda.physical_id("0", {}) == "cuda-0"
    assert cuda.telemetry("0", {}, "") is None


@needs_compiler
def test_a_library_that_fails_to_start(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STUB_REFUSES", "nvmlInit_v2")
    with pytest.raises(OSError, match="nvmlInit_v2 gave 3"):
        _nvml.load(stub)


def smi(*query: str, deadline_s: float = 0.0) -> str:
    """An older driver's tool: it knows the reasons by the older word only."""
    text = " ".join(query)
    if "clocks_event_reasons" in text:
        return ""
    if "--query-compute-apps" in text:
        return "1\n4000001\n"
    if "uuid,name" in text:
        return "0, GPU-aa, NVIDIA H200\n1, GPU-bb, NVIDIA H200\n"
    return "1980, 3201, 41, 123.46, 0x0000000000000024, [N/A], 1024\n"


def test_without_the_library_nvidia_smi_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_nvml.load, "__defaults__", (str(tmp_path / "none.so"),))
    monkeypatch.setattr(cuda, "smi", smi)
    found = cuda.telemetry("1", {}, "")
    assert isinstance(found, _nvml.SmiReader)
    assert found.sample() == Sample(0.0, 1980.0, 3201.0, 41.0, 123.46, ("sw_power_cap", "sw_thermal"))
    told = found.counters()
    assert (told.ecc_uncorrected, told.xid) == (None, None)  # [N/A] is not zero
    assert [p.pid for p in told.processes or ()] == [1, 4000001]
    assert found.memory_used_mib() == 1024.0
    assert cuda.physical_id("1", {}) == "GPU-bb"


def test_nvidia_smi_is_not_started_for_each_word(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counting(*query: str, **more: float) -> str:
        asked.append(query[-2])
        return smi(*query)

    one = _nvml.SmiReader("0", counting)
    for _ in range(5):
        one.sample()
        one.counters()
    assert len(asked) == 3  # once by the newer word, once by the older one, once for the processes
    dead = _nvml.SmiReader("0", lambda *query: "")
    assert dead.sample() == Sample(0.0)
    assert dead.memory_used_mib() is None
