"""What the host's side of `rocm` makes of a host with AMD GPUs, against stubs of AMD's package and command, and files
planted as the kernel's driver has them (tests/stubs/amdsmi).  Formats are those of AMD's documentation; none of this
ran on an AMD GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import amd_hosts
import pytest
from amd_hosts import MASKS, Host

from farm import backends
from farm.backends import HostDevice, Identity, _amd, _amd_tool, _amdsmi, rocm
from farm.backends._amd import Found
from farm.device_pattern import same_part
from farm.node import admission

bare, host = amd_hosts.bare, amd_hosts.host
TOOLS = pytest.mark.parametrize("by", ["amdsmi", "amd-smi", "kfd"])
PARTS = [("MI300X", 750), ("MI325X", 1000), ("MI355X", 1400)]


# what is there


@TOOLS
@pytest.mark.parametrize(("part", "watts"), PARTS)
def test_whole_gpus(host: Host, by: str, part: str, watts: int) -> None:
    host(part, by=by)
    found = rocm.detect()
    assert [(d.id, d.name) for d in found] == [("0", f"AMD Instinct {part}"), ("1", f"AMD Instinct {part}")]
    assert len({d.uuid for d in found}) == 2 and all(d.uuid.startswith("GPU-") for d in found)
    said = rocm.identity("1", {})
    assert said == Identity(
        f"AMD Instinct {part}",
        found[1].uuid,
        "",
        watts,
        "",
        "6.14.14",
        "7.1.1" if by == "amdsmi" else "",
        "amd-0000:1d:00",
    )
    assert same_part(part, said.model)
    assert rocm.physical_id("1", {}) == "amd-0000:1d:00-0"
    assert rocm.peaks(said.model) is not None


@TOOLS
@pytest.mark.parametrize(
    ("part", "mode", "each"), [("MI300X", "cpx-nps4", 8), ("MI325X", "dpx-nps2", 2), ("MI355X", "cpx-nps1", 8)]
)
def test_partitions_are_devices_of_one_module(host: Host, by: str, part: str, mode: str, each: int) -> None:
    host(part, mode, gpus=2, by=by)
    found = rocm.detect()
    assert [d.id for d in found] == [str(i) for i in range(2 * each)]
    first, last, other = (rocm.identity(i, {}) for i in ("0", str(each - 1), str(each)))
    assert first is not None and last is not None and other is not None
    assert first.partition == last.partition == mode
    assert first.module == last.module != other.module
    assert len({rocm.physical_id(d.id, {}) for d in found[: each + 1]}) == each + 1
    if by == "amdsmi":  # a secondary partition cannot tell of its GPU; the first one is asked for it
        assert last.power_limit_w == first.power_limit_w == dict(PARTS)[part]


def test_partitions_that_share_a_uuid_are_locked_apart(host: Host) -> None:
    host("MI300X", "cpx-nps4", gpus=1, wrong="shared_uuid")
    assert len({d.uuid for d in rocm.detect()}) == 1
    assert len({rocm.physical_id(str(i), {}) for i in range(8)}) == 8


def test_every_tool_names_a_device_alike(host: Host) -> None:
    names = []
    for by in ("amdsmi", "amd-smi", "kfd"):
        host("MI300X", "cpx-nps4", by=by)
        names.append([rocm.physical_id(str(i), {}) for i in (0, 3, 8, 15)])
    assert names[0] == names[1] == names[2]


def test_nothing_of_amds_is_nothing(bare: pytest.MonkeyPatch) -> None:
    assert rocm.detect() == []
    assert rocm.identity("0", {}) is None
    assert rocm.telemetry("0", {}, "") is None
    assert rocm.physical_id("0", {}) == "rocm-0"
    assert "amdsmi" in rocm.trouble()


def test_it_counts_as_an_accelerator() -> None:
    assert "rocm" in backends.accelerators()
    assert backends.usable("rocm") is rocm


def test_rocms_version_without_its_library(host: Host, bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rocm" / ".info").mkdir(parents=True)
    (tmp_path / "rocm" / ".info" / "version").write_text("7.0.2-56\n")
    bare.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    host(by="kfd")
    said = rocm.identity("0", {})
    assert said is not None and said.stack == "7.0.2"


# order and names


@pytest.mark.parametrize("by", ["amdsmi", "amd-smi"])
@pytest.mark.parametrize("wrong", ["", "container"])
def test_hips_numbers_count_where_they_are_those_of_what_is_seen(host: Host, by: str, wrong: str) -> None:
    host(by=by, gpus=3, wrong=wrong)
    assert [d.id for d in rocm.detect()] == ["0", "1", "2"]
    assert rocm.physical_id("2", {}) == "amd-0000:2e:00-0"


def test_a_library_whose_order_is_not_hips(host: Host) -> None:
    host(gpus=3, wrong="reversed")
    assert rocm.physical_id("0", {}) == "amd-0000:0c:00-0"
    host(gpus=3, wrong="reversed,no_hip_ids")  # nothing better is known than the library's own order
    assert rocm.physical_id("0", {}) == "amd-0000:2e:00-0"


def test_an_old_library_tells_partitions_by_their_function(host: Host) -> None:
    host("MI300X", "cpx-nps4", gpus=1, wrong="old")
    assert rocm.physical_id("5", {}) == "amd-0000:0c:00-5"


@TOOLS
def test_a_part_without_a_name_is_known_by_its_id(host: Host, by: str) -> None:
    host("MI355X", by=by, wrong="unnamed")
    said = rocm.identity("0", {})
    assert said is not None and said.model == "AMD Instinct MI355X"


@TOOLS
def test_an_unknown_part_is_no_part_and_its_child_may_know_it(host: Host, by: str) -> None:
    host("MI355X", by=by, wrong="unknown_part")
    assert rocm.detect()[0].name == ("AMD GPU" if by == "kfd" else "AMD Radeon Graphics")
    said = rocm.identity("0", {})
    assert said is not None and said.model == ""
    child = {"backend": "rocm", "model": "AMD Instinct MI455X"}
    assert admission.refusal({"model": "MI455X"}, {}, said, child, {}) == ""
    assert "MI455X" in admission.refusal({"model": "MI355X"}, {}, said, child, {})


@pytest.mark.parametrize(("device", "part"), [(0x74B5, "MI300X"), (0x74B9, "MI325X"), (0x75B3, "MI355X")])
def test_a_virtual_function_is_of_its_part(device: int, part: str) -> None:
    assert same_part(part, _amd.part("N/A", device))
    assert _amd.part("AMD Instinct MI300X", 0x75A3) == "AMD Instinct MI300X"  # what the tool says comes first


def test_a_guest_tells_less_and_is_no_error(host: Host) -> None:
    host("MI300X", wrong="guest")
    said = rocm.identity("0", {})
    assert said is not None
    assert (said.model, said.partition, said.power_limit_w, said.clocks) == ("AMD Instinct MI300X", "", None, "")
    reader = rocm.telemetry("0", {}, "")
    assert reader.sample().sm_clock_mhz is None and reader.sample().throttle is None
    assert reader.counters().ecc_uncorrected is None and reader.memory_used_mib() == 300


# an operator's settings


@pytest.mark.parametrize("by", ["amdsmi", "amd-smi"])
def test_clocks_that_an_operator_has_set_are_part_of_the_target(host: Host, by: str) -> None:
    host(by=by, perf_level="DETERMINISM", max_mhz=1900, power_cap_w=600)
    said = rocm.identity("0", {})
    assert said is not None and (said.clocks, said.power_limit_w) == ("determinism-1900mhz", 600)


@pytest.mark.parametrize(
    ("level", "limit", "told"),
    [
        ("AMDSMI_DEV_PERF_LEVEL_AUTO", 2100, ""),
        ("auto", None, ""),
        ("N/A", None, ""),
        (None, None, ""),
        (0, None, ""),
        ("AMDSMI_DEV_PERF_LEVEL_UNKNOWN", 2100, ""),
        ("perf_determinism", None, "determinism"),
        ("AMDSMI_DEV_PERF_LEVEL_MANUAL", 1700.0, "manual-1700mhz"),
        ("AMDSMI_DEV_PERF_LEVEL_STABLE_PEAK", 2100, "stable-peak"),
        ("profile_peak", None, "profile-peak"),
        ("high", 2100, "high"),
    ],
)
def test_clock_levels(level: Any, limit: float | None, told: str) -> None:
    assert _amd.clocks(level, limit) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (750_000_000, 750),
        (750, 750),
        ("750 W", 750),
        ({"value": 1400, "unit": "W"}, 1400),
        (0, None),
        ("N/A", None),
        (None, None),
        ({"value": "N/A"}, None),
        (0xFFFFFFFF, None),
    ],
)
def test_power_limits_come_in_many_forms(value: Any, told: int | None) -> None:
    assert _amd.watts(value) == told


def test_temperatures_in_degrees_and_in_thousandths() -> None:
    assert (_amd.celsius(61), _amd.celsius(61000), _amd.celsius("N/A"), _amd.celsius(65535)) == (61, 61, None, None)


@pytest.mark.parametrize(
    ("modes", "told"),
    [
        (("SPX", "NPS1"), ""),
        (("CPX", "NPS4"), "cpx-nps4"),
        (("CPX", "NPS1"), "cpx-nps1"),
        (("N/A", "N/A"), ""),
        (("", ""), ""),
        (("DPX", ""), "dpx"),
        (("SPX", "NPS4"), "spx-nps4"),
        (("SPX", "N/A"), ""),
    ],
)
def test_modes_as_parts_of_a_target(modes: tuple[str, str], told: str) -> None:
    assert _amd.partition(*modes) == told


@pytest.mark.parametrize(
    ("bdf", "told"),
    [
        ("0000:0c:00.3", ("0000:0c:00", 3)),
        ("0C:1f.0", ("0000:0c:1f", 0)),
        ("00000001:0c:00.0", ("0001:0c:00", 0)),
        ("N/A", ("", 0)),
        ("", ("", 0)),
        ("0000:0c:00", ("", 0)),
    ],
)
def test_places(bdf: str, told: tuple[str, int]) -> None:
    assert _amd.located(bdf) == told


# masks


def devices(count: int) -> list[Found]:
    return [
        Found(str(i), "MI", uuids=(f"GPU-{i:016x}", f"{i:02x}ff74a1-0000-1000-8000-{i:012x}")) for i in range(count)
    ]


@pytest.mark.parametrize(
    ("masks", "left"),
    [
        ({}, "01234567"),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, "31"),
        ({"CUDA_VISIBLE_DEVICES": "2"}, "2"),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "5"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "4,6"}, "46"),
        ({"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "1"}, "6"),
        ({"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "4"}, ""),
        ({"ROCR_VISIBLE_DEVICES": "4,6", "CUDA_VISIBLE_DEVICES": "0"}, "4"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000003"}, "3"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000003,5", "HIP_VISIBLE_DEVICES": "1,0"}, "53"),
        ({"HIP_VISIBLE_DEVICES": "GPU-0000000000000007,0"}, "70"),
        ({"HIP_VISIBLE_DEVICES": ""}, ""),
        ({"ROCR_VISIBLE_DEVICES": ""}, ""),
        ({"HIP_VISIBLE_DEVICES": "-1"}, ""),
        ({"HIP_VISIBLE_DEVICES": "2,-1,3"}, "2"),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, "0"),
        ({"HIP_VISIBLE_DEVICES": "0,,1"}, "0"),
        ({"HIP_VISIBLE_DEVICES": " 1 , 2 "}, "12"),
        ({"HIP_VISIBLE_DEVICES": "GPU-f"}, ""),
    ],
)
def test_masks(masks: dict[str, str], left: str) -> None:
    assert "".join(d.id for d in rocm.visible(devices(8), masks)) == left


def test_detect_obeys_the_masks_and_keeps_the_hosts_numbers(host: Host, bare: pytest.MonkeyPatch) -> None:
    host(gpus=8)
    bare.setenv("ROCR_VISIBLE_DEVICES", "4,5,6")  # as Slurm sets it
    assert [d.id for d in rocm.detect()] == ["4", "5", "6"]
    bare.setenv("HIP_VISIBLE_DEVICES", "2,0")
    assert [d.id for d in rocm.detect()] == ["6", "4"]
    assert [d.id for d in rocm.detect(1)] == ["6"]


def hips_view(environment: dict[str, str], count: int) -> list[str]:
    """What HIP sees, as AMD documents it: the lower runtime's mask over the host, then HIP's own over what is left."""
    seen = [str(i) for i in range(count)]
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environment:
            seen = [seen[int(i)] for i in environment[name].split(",") if i and int(i) < len(seen)]
    return seen


@pytest.mark.parametrize(
    "inherited",
    [
        {},
        {"ROCR_VISIBLE_DEVICES": "4,5"},
        {"HIP_VISIBLE_DEVICES": "5"},
        {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"},
        {"CUDA_VISIBLE_DEVICES": "7", "GPU_DEVICE_ORDINAL": "2"},
    ],
)
def test_a_child_sees_its_device_whatever_its_supervisor_was_masked_to(
    inherited: dict[str, str], bare: pytest.MonkeyPatch
) -> None:
    from farm.node.environment import Environment, child_variables

    for name, value in inherited.items():
        bare.setenv(name, value)
    variables = child_variables(rocm.child_env("5"), Environment.default())
    assert hips_view(variables, 8) == ["5"]
    assert {variables[m] for m in MASKS[1:]} == {"0"}  # none is left as it was


@pytest.mark.parametrize(
    ("masks", "ids", "device"),
    [
        ({"HIP_VISIBLE_DEVICES": "3"}, ["3"], "3"),  # what Ray sets
        ({"HIP_VISIBLE_DEVICES": "5"}, ["1"], "5"),  # a node with HIP_VISIBLE_DEVICES=4,5: Ray counts what it leaves
        ({"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "1"}, ["1"], "6"),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["2"], "2"),  # no amdsmi in Ray's Python: it takes the node for NVIDIA's
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "4,5,6"}, ["1"], "5"),
        ({}, ["7"], "7"),  # RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES
        ({"HIP_VISIBLE_DEVICES": "4,5,6"}, ["2"], "6"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-aa,GPU-bb", "HIP_VISIBLE_DEVICES": "1"}, ["0"], "GPU-bb"),
        ({"ROCR_VISIBLE_DEVICES": "4", "HIP_VISIBLE_DEVICES": "4"}, ["0"], ""),  # names nothing: nothing is guessed
        ({}, [], ""),
    ],
)
def test_the_device_that_a_scheduler_gave(masks: dict[str, str], ids: list[str], device: str) -> None:
    assert rocm.granted(masks, ids) == device


def test_a_device_named_by_its_uuid(host: Host) -> None:
    host(gpus=3)
    uuid = rocm.detect()[2].uuid
    assert rocm.physical_id(uuid, {}) == rocm.physical_id("2", {})
    assert rocm.child_env(uuid)["ROCR_VISIBLE_DEVICES"] == uuid


# what breaks


def test_a_package_that_cannot_be_imported(host: Host, tmp_path: Path) -> None:
    host(wrong="import")
    assert rocm.detect() == []
    assert "libamd_smi.so" in rocm.trouble()
    assert "amdsmi" in rocm.trouble()


def test_the_command_stands_in_for_a_package_that_is_not_there(host: Host) -> None:
    host(by="amd-smi")
    assert len(rocm.detect()) == 2
    assert "is not installed" in rocm.trouble()


def test_a_driver_that_is_not_loaded(host: Host) -> None:
    host(wrong="init")
    assert rocm.detect() == []
    assert "AMDSMI_STATUS_DRIVER_NOT_LOADED" in rocm.trouble()


@pytest.mark.parametrize("where", ["init_hangs", "list_hangs"])
def test_a_library_that_hangs_costs_a_deadline_once(host: Host, bare: pytest.MonkeyPatch, where: str) -> None:
    bare.setattr(_amdsmi, "DEADLINE_S", 0.2)
    bare.setenv("FARM_STUB_AMD_HANGS_S", "30")  # and then it answers: whoever waits for it finds devices
    host(wrong=where)
    assert rocm.detect() == []
    assert rocm.identity("0", {}) is None
    assert rocm.telemetry("0", {}, "") is None
    assert "did not answer an earlier query" in rocm.trouble()  # it is not asked again


def test_queries_that_all_fail_leave_what_was_listed(host: Host) -> None:
    host(wrong="queries")
    assert rocm.detect() == [HostDevice("0", "AMD GPU", ""), HostDevice("1", "AMD GPU", "")]
    assert rocm.identity("0", {}) == Identity(stack="7.1.1")
    assert rocm.physical_id("0", {}) == "rocm-0"
    reader = rocm.telemetry("0", {}, "")
    assert reader.sample().power_w is None
    assert reader.counters().processes is None
    assert reader.memory_used_mib() is None


def test_a_library_that_breaks_between_two_questions(host: Host, bare: pytest.MonkeyPatch) -> None:
    host()

    def breaks(*_: Any) -> Any:
        raise SystemError("the driver was unloaded")

    bare.setattr(_amdsmi, "identity", breaks)
    said = rocm.identity("0", {})
    assert said is not None and (said.model, said.module) == ("AMD Instinct MI300X", "amd-0000:0c:00")


def test_a_command_that_hangs_is_ended_with_what_it_started(host: Host, bare: pytest.MonkeyPatch) -> None:
    bare.setattr(_amd_tool, "DEADLINE_S", 0.5)
    bare.setenv("FARM_STUB_AMD_HANGS_S", "30")
    host(by="amd-smi", wrong="tool_hangs")
    assert rocm.detect() == []
    bare.setattr(_amd_tool, "DEADLINE_S", 30.0)
    bare.setenv("FARM_STUB_AMD_BREAK", "")
    assert rocm.detect() == []  # it is not asked again so soon
    bare.setattr(rocm, "LISTED_SECONDS", 0.0)
    assert len(rocm.detect()) == 2


@pytest.mark.parametrize("wrong", ["tool_fails", "no_enumeration", "no_partition", "warns", "bare", "bare,warns"])
def test_a_command_of_another_release(host: Host, wrong: str) -> None:
    host(by="amd-smi", wrong=wrong)
    found = rocm.detect()
    if wrong == "tool_fails":
        assert found == []
        return
    said = rocm.identity("1", {})
    assert said is not None
    assert (said.model, said.power_limit_w, said.driver) == ("AMD Instinct MI300X", 750, "6.14.14")
    assert found[1].uuid.startswith("GPU-") == (wrong != "no_enumeration")


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "{", "amd-smi: error", '[{"no": 1}]', '{"gpu_data": 3}', "[1]"]
)
def test_text_that_lists_nothing(text: str) -> None:
    assert _amd_tool.entries(text) == []


def test_a_container_sees_its_own_devices_alone(host: Host) -> None:
    host("MI300X", by="kfd", gpus=2, foreign=6)
    assert [d.id for d in rocm.detect()] == ["0", "1"]
    assert rocm.physical_id("0", {}) == "amd-0000:0c:00-0"


def test_topology_without_the_device_file_is_no_device(host: Host, tmp_path: Path) -> None:
    host(by="kfd")
    (tmp_path / "dev" / "kfd").unlink()
    assert rocm.detect() == []


# peaks and caches


@pytest.mark.parametrize(
    ("model", "gbps"),
    [
        ("AMD Instinct MI300X", 5325),
        ("AMD Instinct MI300X OAM", 5325),
        ("AMD-Instinct-MI325X-OAM", 6000),
        ("AMD Instinct MI355X", 8000),
        ("AMD Instinct MI350X", 8000),
        ("AMD Instinct MI300A", 5325),
        ("AMD Instinct MI308X", 5325),
        ("AMD Instinct MI210", 1638.4),
        ("AMD Instinct MI250X", 1638.4),
    ],
)
def test_peaks(model: str, gbps: float) -> None:
    found = rocm.peaks(model)
    assert found is not None and found[0] == gbps


def test_no_peak_of_what_is_not_in_the_table() -> None:
    assert rocm.peaks("AMD Radeon Graphics") is None
    assert rocm.peaks("AMD Instinct MI300XT") is None


def test_cold_means_beyond_the_infinity_cache() -> None:
    assert rocm.last_level_bytes("gfx942:sramecc+:xnack-") == rocm.last_level_bytes("gfx950") == 256 << 20
    assert rocm.last_level_bytes("gfx90a:sramecc+") == 8 << 20
    assert rocm.last_level_bytes("gfx1250") == 256 << 20  # unknown: the largest that is known
