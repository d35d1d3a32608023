"""Names of parts: what is one, what only looks like one."""

from __future__ import annotations

import pytest

from farm.cell import Target
from farm.device_pattern import malformed, same_part, serves


@pytest.mark.parametrize(
    ("pattern", "model"),
    [
        ("MI300X", "AMD Instinct MI300X OAM"),
        ("mi300x", "AMD-Instinct-MI300X-OAM"),
        ("Instinct MI300X", "AMD Instinct MI300X"),
        ("AMD-Instinct-MI300X", "AMD Instinct MI300X"),
        ("GB200", "NVIDIA GB200"),
        ("H200", "NVIDIA H200 NVL"),
        ("A100", "NVIDIA A100-SXM4-80GB"),
        ("910B3", "Ascend910B3"),
        ("Ascend910B3", "Ascend 910B3"),
        ("Ascend 910B3", "Ascend910B3"),
        ("910B3", "910B3"),
        ("910B", "Ascend910B1"),
        ("910B", "Ascend910B4"),
        ("Ascend910B", "Ascend910B2C"),
        ("910B", "Ascend910B"),
        ("cpu-x86_64", "cpu-x86_64"),
    ],
)
def test_one_part_by_two_names(pattern: str, model: str) -> None:
    assert same_part(pattern, model)


@pytest.mark.parametrize(
    ("pattern", "model"),
    [
        ("GB200", "NVIDIA GB200X"),
        ("B200", "NVIDIA GB200"),
        ("H200", "NVIDIA GH200 480GB"),
        ("MI300X", "AMD Instinct MI300A"),
        ("MI300", "AMD Instinct MI300X"),
        ("MI355X", "AMD Instinct MI300X"),
        ("910B3", "Ascend910B2"),
        ("910B2", "Ascend910B2C"),
        ("910B3", "Ascend910B"),
        ("910B", "Ascend910_9391"),
        ("910B", "Ascend910A"),
        ("AMD MI300X", "AMD Instinct MI300X"),
        ("", "NVIDIA H200"),
        ("H200", ""),
    ],
)
def test_two_parts(pattern: str, model: str) -> None:
    assert not same_part(pattern, model)


WHOLE = str(Target("cuda", "NVIDIA H200", "", 700))
SLICE = str(Target("cuda", "NVIDIA H200", "mig-1g.18gb", 600, "locked-1980mhz"))


@pytest.mark.parametrize(
    ("pattern", "whole", "slice_"),
    [
        ("H200", True, False),  # a slice is not the part
        ("NVIDIA-H200", True, False),
        ("H200:700W", True, False),
        ("H200:700w", True, False),
        ("H200:mig-1g.18gb", False, True),
        ("H200:MIG-1g.18gb:600W", False, True),
        ("H200:600W:mig-1g.18gb", False, True),
        ("H200:locked-1980mhz", False, False),
        ("H200:mig-1g.18gb:600W:locked-1980mhz", False, True),
        ("H200:mig", False, False),
        ("H100:700W", False, False),
        ("GB200", False, False),
    ],
)
def test_a_pattern_asks_for_what_it_names_and_leaves_the_rest_open(pattern: str, whole: bool, slice_: bool) -> None:
    assert (serves(pattern, WHOLE), serves(pattern, SLICE)) == (whole, slice_)


def test_a_device_of_which_nothing_is_known_serves_no_name() -> None:
    assert not serves("H200", "cuda:unknown")
    assert not serves("H200", "cuda")
    assert not serves("H200", "")


def test_a_pattern_that_cannot_be_one_says_how_to_write_it() -> None:
    assert malformed("H200:mig-1g.18gb:600W:locked-1980mhz") is None
    assert malformed("910B3") is None
    assert '"AMD-Instinct-MI300X"' in malformed("AMD Instinct MI300X")
    for wrong in ("", ":600W", "H200:", "H200::600W", "H200@x", "H200/1", "-H200", "H200\n", " H200"):
        assert "MODEL[:PARTITION]" in malformed(wrong), wrong
