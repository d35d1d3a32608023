"""What profilers write, and what is told of it.

None of these texts was recorded on a device: they are written after the formats that the tools' documentation gives
(Nsight Compute's raw page, rocprofv3's counter collection, msprof's op_summary), with numbers that are made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_runs
import pytest

from farm.actor import tools
from farm.cli import main, profile
from farm.errors import InfraError, UsageError
from farm.profile import kernels, msprof, ncu, rocprof
from farm.profile.kernels import KernelProfile, limiter

NCU: dict[str, tuple[str, str]] = {  # metric -> unit, value: a kernel of which device memory is busy
    "gpu__time_duration.sum": ("nsecond", "35,200"),
    "dram__bytes_read.sum": ("byte", "67,108,864"),
    "dram__bytes_write.sum": ("Mbyte", "67.1"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "91.50"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "22.10"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "48.00"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "71.20"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "75"),
    "launch__occupancy_limit_registers": ("block", "6"),
    "launch__occupancy_limit_shared_mem": ("block", "32"),
    "launch__occupancy_limit_warps": ("block", "8"),
    "launch__occupancy_limit_blocks": ("block", "32"),
    "launch__waves_per_multiprocessor": ("", "3.88"),
    "launch__registers_per_thread": ("register/thread", "40"),
    "launch__grid_size": ("", "4,096"),
    "launch__block_size": ("", "256"),
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": ("%", "100"),
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct": ("%", "n/a"),
}
FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Device", "CC")


def ncu_log(*launches: dict[str, str], names: tuple[str, ...] = ("_fwd(float *, float *)",)) -> str:
    """A log of `ncu --csv --page raw`: the kernels `names`, each with `NCU` but for the values of its launch."""
    lines = ["==PROF== Connected to process 4242 (/usr/bin/python3.12)"]
    lines += ['==PROF== Profiling "_fwd": 0%....50%....100% - 11 passes', "==PROF== Disconnected from process 4242"]
    rows = [[*FIXED, *NCU], ["" for _ in FIXED] + [unit for unit, _ in NCU.values()]]
    for number, (name, values) in enumerate(zip(names, launches)):
        fixed = [str(number), "4242", "python3.12", "127.0.0.1", name, "1", "7", "0", "9.0"]
        rows.append([*fixed, *(values.get(metric, value) for metric, (_, value) in NCU.items())])
    return "\n".join([*lines, *(",".join(f'"{cell}"' for cell in row) for row in rows)]) + "\n"


def test_a_launch_of_nsight_compute() -> None:
    (k,) = ncu.parse(ncu_log({}))
    assert (k.name, k.duration_us, k.read_bytes) == ("_fwd(float *, float *)", 35.2, 67108864)
    assert k.written_bytes == pytest.approx(67.1e6) and k.moved == pytest.approx(134.2e6, rel=1e-3)
    assert (k.occupancy, k.possible, k.limited_by, k.waves) == (71.2, 75, "registers", 3.88)
    assert (k.load_use, k.store_use) == (100, None)
    assert k.launch == {"grid": "4,096", "block": "256", "registers": "40"}
    assert limiter(k) == "device memory (DRAM): 92 % busy"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "12.50"},
            "uncoalesced global loads: 12 % of the bytes that they move are used",
        ),
        (
            {"smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct": "25"},
            "uncoalesced global stores: 25 % of the bytes that they move are used",
        ),
        (
            {
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "30",
                "sm__maximum_warps_per_active_cycle_pct": "12.5",
                "launch__occupancy_limit_shared_mem": "1",
            },
            "low occupancy: at most 12 %, limited by shared memory",
        ),
        (
            {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "3", "launch__waves_per_multiprocessor": "0.05"},
            "low occupancy: too few blocks, they fill 5 % of the device",
        ),
        ({"sm__throughput.avg.pct_of_peak_sustained_elapsed": "95"}, "compute (SM): 95 % busy"),
        (
            {
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "30",
                "sm__warps_active.avg.pct_of_peak_sustained_active": "20",
            },
            "low occupancy: 20 % achieved",
        ),
        ({"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "30"}, "latency: nothing is busy (L2 most, 48 %)"),
    ],
)
def test_the_first_limiter(values: dict[str, str], said: str) -> None:
    (k,) = ncu.parse(ncu_log(values))
    assert limiter(k) == said


@pytest.mark.parametrize(
    ("log", "id"),
    [
        (
            "==PROF== Connected to process 1\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access "
            "NVIDIA GPU Performance Counters on the target device 0.\n==WARNING== No kernels were profiled.\n",
            "profile-no-permission",
        ),
        ("==ERROR== Failed to find metric nonsense__x.sum\n", "profile-tool-failed"),
        ("==PROF== Disconnected from process 1\n==WARNING== No kernels were profiled.\n", "profile-no-kernel"),
        ("", None),
    ],
)
def test_why_nsight_compute_measured_nothing(log: str, id: str | None) -> None:
    found = ncu.refusal(log)
    assert (found.id if found else None) == id and ncu.parse(log) == []
    assert found is None or "\n" not in found


@pytest.mark.parametrize("parse", [ncu.parse, rocprof.parse, msprof.parse])
def test_an_output_that_is_cut_short_raises_nothing(parse: Any) -> None:
    for text in (ncu_log({}), ROCPROF, MSPROF, '"', '"Kernel Name"\n"x"\n"y"\n', "\0,\n"):
        for end in range(0, len(text), 7):
            for k in parse(text[:end]):
                limiter(k)


_AMD = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n'
)


def amd(counters: dict[str, float]) -> str:
    row = '{n},{n},"Agent 4",1,9,9,1048576,10,"{name}",256,4096,0,24,0,16,"{counter}",{value:f},1000,41000\n'
    rows = [
        row.format(n=n, name=name, counter=counter, value=value)
        for n, name in ((10, "_fwd.kd"), (9, "fill_kernel"))
        for counter, value in counters.items()
    ]
    return _AMD + "".join(rows)


ROCPROF = amd({"FETCH_SIZE": 65536.0, "WRITE_SIZE": 32768.0})


def test_two_passes_of_rocprofv3_are_one_profile() -> None:
    second = rocprof.parse(amd({"OccupancyPercent": 31.5, "VALUBusy": 12.0, "MemUnitBusy": 40.0}))
    passes = [kernels.of_call(found, ["_fwd"]) for found in (rocprof.parse(ROCPROF), second)]
    (k,) = kernels.merged(passes)
    assert (k.name, k.read_bytes, k.written_bytes, k.duration_us) == ("_fwd", 64 << 20, 32 << 20, 40.0)
    assert k.occupancy == 31.5 and k.launch["LDS"] == "4096" and k.launch["registers"] == "24"
    assert limiter(k) == "low occupancy: 32 % achieved"
    assert [k.name for k in rocprof.parse(ROCPROF)] == ["fill_kernel", "_fwd"], "by dispatch"


MSPROF = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),"
    "Task Wait Time(us),Block Dim,aic_mac_ratio,aiv_vec_ratio,aiv_mte2_ratio,aiv_mte3_ratio,aiv_scalar_ratio,"
    "aiv_main_mem_read_bw(GB/s),aiv_main_mem_write_bw(GB/s)\n"
    '0,4294967295,1,2,ZerosLike,ZerosLike,AI_VECTOR_CORE,"1000.0\t",2.1,0,40,N/A,0.1,0,0.2,0.1,1,2\n'
    '0,4294967295,2,2,_fwd,_fwd,AI_VECTOR_CORE,"1010.0\t",50,1.5,40,N/A,0.31,0.87,0.44,0.12,600,300\n'
)


def test_a_task_of_msprof() -> None:
    (k,) = kernels.of_call(msprof.parse(MSPROF), ["_fwd"])
    assert (k.duration_us, k.launch) == (50, {"cores": "40"})
    assert (k.read_bytes, k.written_bytes) == (pytest.approx(30e6), pytest.approx(15e6))
    assert limiter(k) == "copies from device memory (MTE2): 87 % busy"


def test_of_a_call_whose_kernels_nobody_named_the_last_launch_of_each_counts() -> None:
    found = [KernelProfile("a", 1.0), KernelProfile("b", 2.0), KernelProfile("a", 3.0)]
    assert kernels.of_call(found, ["c"]) == kernels.of_call(found, []) == [found[2], found[1]]


def test_the_lines_have_the_bytes_beside_what_the_op_needs() -> None:
    said = "\n".join(kernels.lines(ncu.parse(ncu_log({}, {}, names=("_a", "_b"))), 134.2e6))
    assert "67.1 MB read, 67.1 MB written" in said and "moved       268.4 MB, 2.00 times the 134.2 MB" in said
    assert "71 % achieved, at most 75 %, limited by registers" in said
    assert "35.20 us under the profiler, which is no measurement of speed" in said


# the command


CELL = "cuda/rms_norm/farm/auto/forward/fp32/4x64/llama"


def asked(store: Path, *words: str, cell: str = CELL, **row: Any) -> int:
    made_runs.make(store, "a", lambda c: {"status": "passed", "bytes_moved": 2000, **row}, backend=cell.split("/")[0])
    return main(["profile", cell, "--out", str(store), *words])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plays(monkeypatch: pytest.MonkeyPatch, log: str, **row: Any) -> None:
    """In place of a run under the tool: it writes `log`."""

    def run_cell(first: Any, found: Any, tool: tools.Tool, folder: Path) -> dict[str, Any]:
        (folder / "tool-farm-1").write_text(log)
        return {"status": "passed", "reason": "", "launch": "{}", **row}

    monkeypatch.setattr(profile, "_run_cell", run_cell)


def test_a_profile_is_shown_beside_what_the_run_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plays(monkeypatch, ncu_log({}))
    timed = {"time_us_p50": 17.7, "bandwidth_gbps": 3790.0, "share_of_roof": 0.99}
    assert asked(tmp_path, **timed) == 0
    said = capsys.readouterr().out
    assert "roof        a: 17.70 us, 3790 GB/s, 0.99 of the roof" in said and "limiter   device memory" in said
    assert main(["profile", CELL, "--out", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kernels"][0]["limiter"] == "device memory (DRAM): 92 % busy" and told["share_of_roof"] == 0.99


@pytest.mark.parametrize(
    ("log", "row", "id"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user ...\n", {}, "profile-no-permission"),
        ("", {}, "profile-nothing"),
        ("", {"status": "crashed", "reason": "signal 11"}, "profile-not-run"),
    ],
)
def test_a_tool_that_measures_nothing_is_an_infrastructure_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log: str,
    row: dict[str, Any],
    id: str,
) -> None:
    plays(monkeypatch, log, **row)
    assert asked(tmp_path) == InfraError.exit_code == 3
    said = capsys.readouterr().err.strip()
    assert said.endswith(f"[{id}]") and len(said.splitlines()) == 1 and CELL in said


@pytest.mark.parametrize(
    ("words", "cell", "id"),
    [
        ((), "cpu/rms_norm/farm/auto/forward/fp32/4x64/llama", "profile-backend"),
        (("--target", "sm_90"), CELL, "profile-target"),
        (("--asm",), "cpu/rms_norm/farm/auto/forward/fp32/4x64/llama", "profile-target-missing"),
        (("--asm", "--target", "sm_90,sm_100"), CELL, "profile-one-target"),
        (("--asm", "--target", "sm_91"), CELL, "compile-target-unknown"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], cell: str, id: str
) -> None:
    assert asked(tmp_path, *words, cell=cell) == UsageError.exit_code == 2
    assert capsys.readouterr().err.strip().endswith(f"[{id}]")


@pytest.mark.parametrize(
    ("backend", "target", "name"),
    [
        ("cuda", "cuda:NVIDIA-H200:700W", "sm_90"),
        ("cuda", "cuda:NVIDIA-GB200:1200W", "sm_100"),
        ("rocm", "rocm:AMD-Instinct-MI300X", "gfx942"),
        ("ascend", "ascend:Ascend910B3", "ascend910b"),
    ],
)
def test_the_target_of_a_device(backend: str, target: str, name: str) -> None:
    assert profile._target(None, {"cell_id": "x", "backend": backend, "target": target}).name == name
