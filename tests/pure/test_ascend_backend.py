"""What the ascend backend reads from npu-smi's text, from device files and from the mask; no device needed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farm.backends import HostDevice, _cann, _npu, accelerators, ascend, usable
from farm.backends.api import Counters, Process, Sample

STUB = Path(__file__).resolve().parents[1] / "stubs" / "npu"
sys.path.insert(0, str(STUB))

from npu_smi import PARTS, printed  # noqa: E402

NODES = _npu.nodes  # of this host there are none in these tests
ONE_CHIP = ["910B1", "910B2", "910B3", "910B4"]


def asking(**host: Any) -> Callable[..., str]:
    return lambda *words: printed(words, **host)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes this a host of such NPUs, whose tool is the stub's program."""
    monkeypatch.setattr(_npu, "PLACES", ())
    monkeypatch.delenv(ascend.MASK, raising=False)
    monkeypatch.setattr(_cann, "HOMES", ())
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "LD_PRELOAD", ascend.ACCEPT_ALARM):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_npu, "nodes", lambda folder="/dev": [])

    def make(*, tool: bool = True, **said: Any) -> None:
        monkeypatch.setenv("PATH", f"{STUB}:/usr/bin:/bin" if tool else str(tmp_path))
        monkeypatch.setenv("FARM_STUB_NPU", json.dumps(said))

    return make


def test_the_backend_runs_and_counts_when_none_is_named() -> None:
    assert usable("ascend") is ascend and "ascend" in accelerators()
    assert ascend.RESOURCE == {"NPU": 1} and ascend.DEFAULT_TIMING == "rotating_graph"
    assert ascend.FALLBACK_TIMING == "mspti" and ascend.EVIDENCE == "executed"


# detection


@pytest.mark.parametrize("layout", ["narrow", "wide"])
@pytest.mark.parametrize("part", ONE_CHIP)
def test_chips_of_each_part_in_each_layout(part: str, layout: str) -> None:
    found = _npu.chips(asking(part=part, count=8, layout=layout))
    assert [(c.npu, c.chip, c.logic) for c in found] == [(i, 0, i) for i in range(8)]
    assert found[2] == _npu.Chip(2, 0, 2, part, "OK", "0000:81:00.0", 3579.0)
    assert {_npu.soc(c.name) for c in found} == {f"Ascend{part}"}


@pytest.mark.parametrize("layout", ["narrow", "wide"])
def test_each_die_of_a_two_die_part_is_a_device(layout: str) -> None:
    found = _npu.chips(asking(part="9392", count=8, layout=layout))
    assert [(c.npu, c.chip) for c in found] == [(i // 2, i % 2) for i in range(16)]
    assert [c.logic for c in found] == list(range(16)) and found[3].bus == "0000:82:00.0"


@pytest.mark.parametrize("missing", [{"mapping": False}, {"table": False}, {"mapping": False, "table": False}])
def test_what_a_version_does_not_print_is_made_up_for(missing: dict[str, bool]) -> None:
    """The mapping, the table and the list say the same of which chips there are."""
    whole = _npu.chips(asking(part="9392", count=2))
    found = _npu.chips(asking(part="9392", count=2, **missing))
    assert [(c.npu, c.chip, c.logic) for c in found] == [(c.npu, c.chip, c.logic) for c in whole]


def test_logic_ids_are_the_mappings_not_the_tables_order() -> None:
    """In a container that got NPUs 4 and 5 they are devices 0 and 1."""
    found = _npu.chips(asking(count=2, first=4))
    assert [(c.npu, c.logic) for c in found] == [(4, 0), (5, 1)]
    upside_down = (
        "\tNPU ID        Chip ID     Slot ID     Chip Logic ID    Chip Name\n"
        "\t0             0           7           1                Ascend 910B3\n"
        "\t0             1           7           -                Mcu\n"
        "\t1             0           8           0                Ascend 910B3\n"
        "\t-1            0           9           2                Ascend 910B3\n"
    )
    assert [(c.npu, c.logic) for c in _npu.parse_map(upside_down)] == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    "text", ["", "dcmi module initialize failed. ret is -8005\n", "| NPU Name | Health |\n| x |\n"]
)
def test_anything_else_is_no_chip(text: str) -> None:
    assert _npu.parse_table(text) == _npu.parse_map(text) == _npu.parse_list(text) == []


def test_hosts_are_detected_by_the_tool(host: Callable[..., None]) -> None:
    host(part="910B3", count=3)
    assert ascend.detect() == [
        HostDevice("0", "Ascend910B3", "0000:C1:00.0"),
        HostDevice("1", "Ascend910B3", "0000:C2:00.0"),
        HostDevice("2", "Ascend910B3", "0000:81:00.0"),
    ]
    assert [d.id for d in ascend.detect(2)] == ["0", "1"]
    host(part="9392", count=1)
    assert [(d.id, d.name) for d in ascend.detect()] == [("0", "Ascend910_9392"), ("1", "Ascend910_9392")]


def test_without_the_tool_the_device_files_count(
    host: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("davinci4", "davinci6", "davinci10", "davinci_manager", "davincix", "null"):
        (tmp_path / name).touch()
    assert NODES(str(tmp_path)) == [4, 6, 10] and NODES(str(tmp_path / "absent")) == []
    host(tool=False)
    assert ascend.detect() == []
    monkeypatch.setattr(_npu, "nodes", lambda folder="/dev": [4, 6, 10])
    assert [d.id for d in ascend.detect()] == ["0", "1", "2"]  # the runtime numbers what it sees from 0
    assert ascend.physical_id("0", {}) == "ascend-0"
    assert ascend.telemetry("0", {}, "") is None and ascend.identity("0", {}) is None and ascend.unfit("0") == ""


def test_a_tool_that_fails_is_no_tool(host: Callable[..., None]) -> None:
    host(fails=1)
    assert ascend.detect() == [] and ascend.identity("0", {}) is None


def test_a_tool_that_hangs_is_waited_for_once(host: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    host(hang=30)
    tool = _npu.Tool(deadline_s=0.2)
    begun = time.monotonic()
    assert _npu.chips(tool) == [] and tool("-t", "common", "-i", "0") == ""
    assert time.monotonic() - begun < 20  # far from three answers of 30 s
    assert tool.silent == "npu-smi did not answer within 0.2 s: the driver hangs"
    monkeypatch.setattr(_npu.Tool.__init__, "__defaults__", (0.2,))
    assert ascend.detect() == []
    assert ascend.unfit("3") == "device 3: npu-smi did not answer within 0.2 s: the driver hangs"


# masks


@pytest.mark.parametrize(
    ("mask", "ids"),
    [
        (None, ["0", "1", "2", "3"]),
        ("1", ["1"]),
        ("1,3", ["1", "3"]),
        ("3,1", ["3", "1"]),
        ("", []),
        ("8", []),
        ("0,8,1", ["0"]),
        ("1, 2,3", ["1"]),
        ("0,-1,2", ["0"]),
        ("1,1,2", ["1"]),
        ("npu1", []),
    ],
)
def test_the_mask_narrows_up_to_the_first_entry_that_is_no_device(mask: str | None, ids: list[str]) -> None:
    devices = [HostDevice(str(i), "Ascend910B3") for i in range(4)]
    environment = {} if mask is None else {ascend.MASK: mask}
    assert [d.id for d in ascend.visible(devices, environment)] == ids


def test_the_mask_of_the_process_is_heeded(host: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    host(count=8)
    monkeypatch.setenv(ascend.MASK, "2,5")
    assert [d.id for d in ascend.detect()] == ["2", "5"]  # the host's ids, which a child's mask takes
    assert ascend.physical_id("5", {}) == "npu-0000:02:00.0"  # npu-smi knows no mask


def test_a_child_sees_one_device_and_loads_torch_npu_itself(host: Callable[..., None]) -> None:
    host()
    assert ascend.child_env("5") == {ascend.MASK: "5", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def test_a_child_loads_mspti_first_where_cann_has_it(
    host: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host()
    library = tmp_path / "lib64" / "libmspti.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    assert ascend.child_env("0")["LD_PRELOAD"] == str(library)
    monkeypatch.setenv("LD_PRELOAD", "/opt/libjemalloc.so")
    assert ascend.child_env("0")["LD_PRELOAD"] == f"{library} /opt/libjemalloc.so"
    monkeypatch.setenv("LD_PRELOAD", f"/opt/libjemalloc.so:{library}")
    assert ascend.child_env("0")["LD_PRELOAD"] == f"/opt/libjemalloc.so:{library}"


# identity


@pytest.mark.parametrize("part", ONE_CHIP)
def test_who_a_device_is(part: str, host: Callable[..., None]) -> None:
    host(part=part, version="25.5.1")
    found = ascend.identity("2", {})
    assert found is not None
    assert (found.model, found.driver, found.module) == (f"Ascend{part}", "25.5.1", "")
    assert found.uuid == "00000002-00000000-1223F2B2-84528485-104301E2"
    assert found.power_limit_w is None and found.clocks == found.partition == found.stack == ""
    assert ascend.physical_id("2", {}) == "npu-0000:81:00.0"


def test_dies_of_one_npu_are_neighbours(host: Callable[..., None]) -> None:
    host(part="9392", count=2)
    found = [ascend.identity(str(i), {}) for i in range(4)]
    assert [f.model for f in found if f] == ["Ascend910_9392"] * 4
    assert [f.module for f in found if f] == ["npu-0", "npu-0", "npu-1", "npu-1"]
    assert len({f.uuid for f in found if f}) == 4
    assert len({ascend.physical_id(str(i), {}) for i in range(4)}) == 4
    assert ascend.identity("4", {}) is None


@pytest.mark.parametrize(
    ("name", "npu", "part"),
    [
        ("910B3", "", "Ascend910B3"),
        ("Ascend 910B3", "", "Ascend910B3"),
        ("Ascend910B3", "", "Ascend910B3"),
        ("Ascend910", "9392", "Ascend910_9392"),
        ("Ascend 910", "9362", "Ascend910_9362"),
        ("Ascend910", "", "Ascend910"),
        ("", "", ""),
    ],
)
def test_a_part_has_one_name(name: str, npu: str, part: str) -> None:
    assert _npu.soc(name, npu) == part


@pytest.mark.parametrize(
    ("name", "gbps"),
    [
        ("Ascend910B1", 1638.4),
        ("910B4", 1638.4),
        ("Ascend910B4-1", 1638.4),
        ("Ascend910_9392", 1638.4),
        ("Ascend310P3", None),
        ("Ascend910", None),
        ("NVIDIA H200", None),
    ],
)
def test_peaks_are_by_part(name: str, gbps: float | None) -> None:
    found = ascend.peaks(name)
    assert (found[0] if found else None) == gbps


def test_canns_version_is_where_its_installer_writes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_cann, "HOMES", (str(tmp_path / "absent"), str(tmp_path / "default")))
    assert _cann.home({}) is None and _cann.version(None) == ""
    (tmp_path / "default").mkdir()
    assert _cann.home({"ASCEND_HOME_PATH": str(tmp_path / "gone")}) == tmp_path / "default"
    own = tmp_path / "own"
    info = own / f"{os.uname().machine}-linux" / "ascend_toolkit_install.info"
    info.parent.mkdir(parents=True)
    assert _cann.home({"ASCEND_TOOLKIT_HOME": str(own)}) == own and _cann.version(own) == ""
    (own / "version.cfg").write_text("# version: 1.0\ntoolkit_running_version=[7.6.0.1.220:8.2.RC1]\n")
    assert _cann.version(own) == "8.2.RC1"
    info.write_text("package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001C23\n")
    assert _cann.version(own) == "8.5.0"


# health and telemetry


@pytest.mark.parametrize("state", ["OK", "Warning"])
def test_a_healthy_device_may_be_opened(state: str, host: Callable[..., None]) -> None:
    host(health={"1/0": state})
    assert ascend.unfit("1") == ""


@pytest.mark.parametrize("state", ["Alarm", "Critical", "UNKNOWN"])
def test_a_device_that_is_not_is_refused_with_its_code(
    state: str, host: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    host(health={"1/0": state})
    assert ascend.unfit("0") == ""
    why = ascend.unfit("1")
    assert state.upper() in why and "device 1 (NPU 1, chip 0) (0x80E01801)" in why and "look up the code" in why
    monkeypatch.setenv(ascend.ACCEPT_ALARM, "accept")
    assert (ascend.unfit("1") == "") is (state == "Alarm")


def test_readings_are_of_the_devices_own_chip(host: Callable[..., None]) -> None:
    host(part="9392", count=2, processes={"1/0": [11], "1/1": [4000001, 4000002]}, ecc=2)
    first, last = ascend.telemetry("0", {}, ""), ascend.telemetry("3", {}, "")
    assert first.sample() == Sample(0.0, 800.0, None, 36.0, 90.5, None)
    assert last.sample() == Sample(0.0, 801.0, None, 37.0, None, None)  # of two dies one tells the power
    assert first.counters() == Counters(2, None, ())
    assert last.counters() == Counters(0, None, (Process(4000001, ""), Process(4000002, "")))
    assert [r.memory_used_mib() for r in (first, last)] == [3379.0, 3679.0]
    first.close()


def test_a_reading_is_good_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def ask(*words: str) -> str:
        asked.append(words)
        return printed(words)

    reader = _npu.NpuReader(ask, _npu.Chip(0, 0, 0))
    assert [reader.sample() for _ in range(50)][-1].sm_clock_mhz == 800.0
    assert len(asked) == 1
    monkeypatch.setattr(_npu, "LATELY_S", -1.0)
    reader.sample()
    assert len(asked) == 2


@pytest.mark.parametrize("text", ["", "This device does not support querying proc-mem.\n", "\tPower : NA\n"])
def test_what_cannot_be_read_is_unknown(text: str) -> None:
    reader = _npu.NpuReader(lambda *words: text, _npu.Chip(0, 0, 0))
    assert reader.sample() == Sample(0.0) and reader.counters() == Counters()
    assert reader.memory_used_mib() is None


def test_fields_belong_to_the_chip_before_or_after_whose_id_they_stand() -> None:
    head = "\tNPU ID : 0\n\tChip Count : 2\n\n"
    leads = f"{head}\tChip ID : 0\n\tA : 1\n\n\tChip ID : 1\n\tA : 2\n\n\tChip Name : MCU\n\tA : 3\n"
    ends = f"{head}\tA : 1\n\tChip ID : 0\n\n\tA : 2\n\tChip ID : 1\n"
    for text in (leads, ends):
        assert [_npu.fields(text, i).get("A") for i in range(3)] == ["1", "2", None]
    assert _npu.fields("\tA : 7\n\tA : 8\n", 0) == {"A": "7"}
    assert set(PARTS) == {*ONE_CHIP, "9392"}
