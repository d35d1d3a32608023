"""Which devices are admitted, why others are refused, and what the host adds to a target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farm.backends import Identity
from farm.errors import id_of
from farm.node import admission
from farm.node.admission import complete, refusal, serves

MI300X = Identity(model="AMD Instinct MI300X OAM", driver="6.14.14", stack="7.1.1", partition="cpx-nps4", module="0x9d")
ROCM_CHILD = {"backend": "rocm", "model": "AMD Instinct MI300X"}
H200 = Identity(model="NVIDIA H200", uuid="GPU-aaaa", driver="580.95.05", stack="13.0", power_limit_w=700)
CUDA_CHILD = {"backend": "cuda", "model": "NVIDIA H200", "power_limit_w": 700}
FINGERPRINT = {
    "torch": "2.11.0+cu130",
    "triton": "3.6.0",
    "python": "3.12.11",
    "uuid": "GPU-aaaa",
    "driver": "580.95.05",
}


def test_the_sentence_has_both_values_and_the_cure() -> None:
    reason = refusal({}, {"model": "MI355X"}, replace(MI300X, model="AMD Instinct MI300X"), ROCM_CHILD, {})
    assert id_of(reason) == "node-device-differs"
    assert "label" in reason and "MI355X" in reason and "AMD Instinct MI300X" in reason


@pytest.mark.parametrize(
    ("expect", "labels"),
    [
        ({}, {}),
        ({"model": "H200"}, {"backend": "cuda", "model": "NVIDIA-H200"}),
        ({"model": "nvidia h200", "partition": ""}, {}),
        ({"partition": "whole", "driver": "580", "stack": "13.0"}, {"driver": "580.95"}),
        ({"torch": "2.11", "triton": "3.6.0", "python": "3.12"}, {"rack": "7", "torch": "not said of a device"}),
        ({"torch": "2.11.0+cu130"}, {}),
    ],
)
def test_a_device_that_is_what_is_said_of_it(expect: dict[str, str], labels: dict[str, str]) -> None:
    assert refusal(expect, labels, H200, CUDA_CHILD, FINGERPRINT) == ""


@pytest.mark.parametrize(
    ("expect", "labels", "facts"),
    [
        ({"model": "GB200"}, {}, ("configuration", "model GB200", "NVIDIA H200")),
        ({"model": "H20"}, {}, ("configuration", "model H20,", "NVIDIA H200")),
        ({}, {"backend": "rocm"}, ("label", "backend rocm", "cuda")),
        ({}, {"partition": "mig-1g.18gb"}, ("label", "partition mig-1g.18gb", "no partition")),
        ({"driver": "570"}, {}, ("configuration", "driver 570", "driver 580.95.05")),
        ({"driver": "580.9"}, {}, ("configuration", "driver 580.9,", "580.95.05")),
        ({"stack": "12"}, {}, ("configuration", "stack 12", "stack 13.0")),
        ({"torch": "2.1"}, {}, ("configuration", "torch 2.1,", "torch 2.11.0+cu130")),
        ({"torch": "2.11.0+cu126"}, {}, ("configuration", "torch 2.11.0+cu126", "2.11.0+cu130")),
        ({"triton": "3.7"}, {}, ("configuration", "triton 3.7", "3.6.0")),
        ({"python": "3.1"}, {}, ("configuration", "python 3.1,", "3.12.11")),
    ],
)
def test_a_device_that_is_not(expect: dict[str, str], labels: dict[str, str], facts: tuple[str, ...]) -> None:
    reason = refusal(expect, labels, H200, CUDA_CHILD, FINGERPRINT)
    assert id_of(reason) == "node-device-differs"
    assert all(fact in reason for fact in facts), reason


def test_a_container_brings_a_stack_of_its_own() -> None:
    inside = {"rocm": "6.4.3"}
    reason = refusal({"stack": "7.1"}, {}, MI300X, ROCM_CHILD, inside)
    assert id_of(reason) == "node-device-differs"
    assert "stack 7.1" in reason and "stack 6.4.3" in reason
    assert refusal({"stack": "6.4"}, {}, MI300X, ROCM_CHILD, inside) == ""
    assert refusal({"stack": "7.1"}, {}, MI300X, ROCM_CHILD, {"rocm": ""}) == ""  # without a report, the host's counts


def test_a_partition_that_should_be_none() -> None:
    reason = refusal({"partition": ""}, {}, MI300X, ROCM_CHILD, {})
    assert id_of(reason) == "node-device-differs"
    assert "no partition" in reason and "partition cpx-nps4" in reason
    assert refusal({"partition": "CPX/NPS4"}, {}, MI300X, ROCM_CHILD, {}) == ""
    assert refusal({"partition": "SPX/NPS1"}, {}, replace(MI300X, partition=""), ROCM_CHILD, {}) == ""


@pytest.mark.parametrize("name", ["ghi", "", "mi-300"])
def test_what_a_host_cannot_tell_the_child_may(name: str) -> None:
    assert refusal({"model": "H200"}, {}, None, CUDA_CHILD, FINGERPRINT) == ""
    assert "NVIDIA H200" in refusal({"model": name or "B200"}, {}, None, CUDA_CHILD, FINGERPRINT)


def test_what_nobody_can_tell_is_refused_once_the_child_is_there() -> None:
    for expect in ({"partition": "mig-1g.18gb"}, {"torch": "2.11"}):
        reason = refusal(expect, {}, H200 if "torch" in expect else None, CUDA_CHILD, {})
        ((key, value),) = expect.items()
        assert id_of(reason) == "node-device-unread"
        assert f"{key} {value}" in reason


def test_before_there_is_a_child_only_the_host_is_asked() -> None:
    expect = {"torch": "2.11", "triton": "3.6", "python": "3.12", "driver": "580", "model": "H200"}
    assert refusal(expect, {"backend": "rocm"}, H200) == ""
    assert refusal(expect, {}, None) == ""
    assert "driver 570" in refusal({"driver": "570"}, {}, H200)


def test_a_mask_that_shows_the_child_another_device() -> None:
    reason = refusal({}, {}, H200, {"backend": "cuda", "model": "NVIDIA A100-SXM4-80GB"}, {})
    assert id_of(reason) == "node-device-masked"
    assert "NVIDIA H200" in reason and "NVIDIA A100-SXM4-80GB" in reason
    reason = refusal({}, {}, H200, CUDA_CHILD, {"uuid": "GPU-bbbb"})
    assert id_of(reason) == "node-device-masked"
    assert "GPU-aaaa" in reason and "GPU-bbbb" in reason
    # AMD's tool and its runtime write one device's number in two forms: nothing follows from that
    assert refusal({}, {}, replace(MI300X, uuid="GPU-12ab"), ROCM_CHILD, {"uuid": "GPU-3132-6162"}) == ""
    assert refusal({}, {}, replace(MI300X, uuid="31fe-"), ROCM_CHILD, {"uuid": "GPU-1"}) == ""


@pytest.mark.parametrize(
    ("host", "child", "same"),
    [
        ("AMD Instinct MI300X OAM", "AMD Instinct MI300X VF", True),
        ("AMD Instinct MI300X", "AMD Radeon Graphics", True),
        ("AMD Instinct MI300X", "AMD Instinct MI300A", False),
        ("NVIDIA H200", "NVIDIA H200 MIG 1g.18gb", True),
        ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", False),
        ("Ascend910B3", "Ascend910B3", True),
        ("Ascend910B3", "Ascend910B4", False),
    ],
)
def test_two_names_of_one_part(host: str, child: str, same: bool) -> None:
    reason = refusal({}, {}, Identity(model=host), {"backend": "x", "model": child}, {})
    assert (reason == "") is same


def test_the_host_completes_a_target_and_overrules_nothing() -> None:
    identity = Identity(model="NVIDIA H200", partition="mig-1g.18gb", power_limit_w=700, clocks="locked-1980mhz")
    assert complete({"backend": "cuda", "model": "NVIDIA H200 MIG 1g.18gb", "power_limit_w": None}, identity) == {
        "backend": "cuda",
        "model": "NVIDIA H200 MIG 1g.18gb",
        "partition": "mig-1g.18gb",
        "power_limit_w": 700,
        "clocks": "locked-1980mhz",
    }
    mine: dict[str, Any] = {"backend": "cuda", "model": "NVIDIA H200", "power_limit_w": 600, "partition": "x"}
    assert complete(mine, identity)["power_limit_w"] == 600
    assert complete(mine, None) == mine
    assert complete(mine, Identity()) == mine
    assert complete({"backend": "rocm", "model": "AMD Radeon Graphics"}, MI300X)["model"] == MI300X.model


def test_a_completed_target_is_one_that_a_pattern_names() -> None:
    from farm.cell import Target

    text = str(Target(**complete({"backend": "rocm", "model": "AMD Instinct MI300X"}, MI300X)))
    assert serves("MI300X:cpx-nps4", text) and not serves("MI300X", text)
    assert not serves("MI300X:cpx-nps1", text) and not serves("MI355X", text)


def test_what_expect_may_say_is_what_is_compared() -> None:
    """Every key is refused on its own: none is taken and then forgotten."""
    has = {"torch": "1", "triton": "1", "python": "1"}
    identity = Identity(model="A1", partition="p", driver="1", stack="1")
    for key in admission.EXPECTED:
        assert refusal({key: "X9"}, {}, identity, {"backend": "cuda", "model": "A1"}, has), key
    for key in admission.LABELS:
        assert refusal({}, {key: "X9"}, identity, {"backend": "cuda", "model": "A1"}, has), key
