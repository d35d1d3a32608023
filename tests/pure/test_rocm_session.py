"""The child's side of `rocm`, with a torch that pretends to be AMD's build, and its peer AITER with a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import amd_hosts
import pytest
import torch
from amd_hosts import Host

from farm.backends import rocm
from farm.cell import Target
from farm.errors import EnvironmentUnusable
from farm.node import admission
from farm.providers import aiter

bare, host = amd_hosts.bare, amd_hosts.host
#: As HIP tells an MI300X: an L2 of one die, a UUID whose bytes are letters.
PROPERTIES = {
    "name": "AMD Instinct MI300X",
    "gcnArchName": "gfx942:sramecc+:xnack-",
    "multi_processor_count": 304,
    "warp_size": 64,
    "L2_cache_size": 4 << 20,
    "total_memory": 192 << 30,
    "pci_bus_id": 0x0C,
    "pci_device_id": 0,
    "pci_domain_id": 0,
    "uuid": "61316232-6333-3030-3030-303030303030",
}


def hip_torch(patch: pytest.MonkeyPatch, available: bool = True, without: tuple[str, ...] = (), **other: Any) -> None:
    """Make this process's torch AMD's, with one device; `without`: what an older torch does not tell."""
    told = {k: v for k, v in {**PROPERTIES, **other}.items() if k not in without}
    patch.setattr(torch.version, "hip", "7.1.25424")
    patch.setattr(torch.cuda, "is_available", lambda: available)
    patch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(**told))
    patch.setattr(torch.cuda, "synchronize", lambda *_: None)


def test_it_says_what_it_opened(host: Host, bare: pytest.MonkeyPatch) -> None:
    host("MI300X", by="kfd")
    hip_torch(bare)
    session = rocm.open_session("0", {})
    assert session.target == {
        "backend": "rocm",
        "model": "AMD Instinct MI300X",
        "partition": "",
        "power_limit_w": 750,
        "clocks": "",
    }
    said = session.fingerprint
    assert (said["arch"], said["compute_units"], said["warp_size"]) == ("gfx942:sramecc+:xnack-", 304, 64)
    assert (said["hip"], said["driver"], said["memory_gib"]) == ("7.1.25424", "6.14.14", 192.0)
    assert said["uuid"] == "GPU-a1b2c30000000000"
    assert "rotating_graph" in session.timing_methods
    assert session.max_graph_launches == rocm.MAX_GRAPH_LAUNCHES == 256


def test_cold_counts_the_infinity_cache_and_not_what_hip_calls_l2(host: Host, bare: pytest.MonkeyPatch) -> None:
    host("MI300X", by="kfd")
    hip_torch(bare)
    session = rocm.open_session("0", {})
    assert session.cache_bytes == 256 << 20
    assert (session.fingerprint["l2_mib"], session.fingerprint["last_level_mib"]) == (4.0, 256.0)
    from farm.child.timing import Bench

    bench = Bench(lambda: None, lambda: None, torch.device("cpu"), session.cache_bytes, 1, {})  # type: ignore[arg-type,return-value]
    assert bench.cold_bytes >= 4 * (256 << 20)


def test_host_and_child_are_of_one_device_and_are_admitted(host: Host, bare: pytest.MonkeyPatch) -> None:
    host("MI300X", "cpx-nps4", gpus=1)
    said = rocm.identity("0", {})
    host("MI300X", "cpx-nps4", gpus=1, by="kfd")
    hip_torch(bare, multi_processor_count=38)
    session = rocm.open_session("0", {})
    assert said is not None
    assert admission.refusal({}, {"model": "MI300X"}, said, session.target, session.fingerprint) == ""
    assert str(Target(**admission.complete(session.target, said))) == "rocm:AMD-Instinct-MI300X:cpx-nps4:750W"


def test_another_device_than_the_one_that_is_locked_is_refused(host: Host, bare: pytest.MonkeyPatch) -> None:
    host("MI300X", by="kfd", gpus=2)
    hip_torch(bare)
    with pytest.raises(EnvironmentUnusable, match=r"0000:1d:00, but HIP opened the device at 0000:0c:00"):
        rocm.open_session("1", {})


def test_an_older_torch_tells_less(host: Host, bare: pytest.MonkeyPatch) -> None:
    host("MI300X", by="kfd", gpus=2)
    hip_torch(bare, without=("pci_bus_id", "pci_device_id", "pci_domain_id", "uuid", "L2_cache_size", "warp_size"))
    session = rocm.open_session("1", {})
    assert session.fingerprint["uuid"] == "GPU-a1b2c30000000100"  # by the driver then
    assert session.fingerprint["warp_size"] == 64
    assert session.cache_bytes == 256 << 20


@pytest.mark.parametrize(
    ("name", "planted", "model"),
    [
        ("AMD Instinct MI300X", "", "AMD Instinct MI300X"),
        ("AMD Radeon Graphics", "", "AMD Instinct MI355X"),
        ("AMD Radeon Graphics", "unknown_part", "AMD Radeon Graphics"),
        ("", "unknown_part", "AMD GPU"),
    ],
)
def test_a_part_that_rocm_does_not_name(
    host: Host, bare: pytest.MonkeyPatch, name: str, planted: str, model: str
) -> None:
    host("MI355X", by="kfd", wrong=planted)
    hip_torch(bare, name=name, gcnArchName="gfx950:sramecc+:xnack-", multi_processor_count=256)
    session = rocm.open_session("0", {})
    assert session.target["model"] == model
    assert session.fingerprint["arch"].startswith("gfx950")
    host("MI355X")  # AMD's package on the supervising side knows it, whatever HIP calls it
    told = admission.complete(session.target, rocm.identity("0", {}))
    assert told["model"] == (name if "MI300X" in name else "AMD Instinct MI355X")


def test_without_the_drivers_files_hip_alone_is_believed(bare: pytest.MonkeyPatch) -> None:
    hip_torch(bare)
    session = rocm.open_session("3", {})
    assert session.target["model"] == "AMD Instinct MI300X"
    assert session.target["power_limit_w"] is None


def test_a_torch_for_another_vendor(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentUnusable, match=r"is built for .*, not for ROCm; install a ROCm build") as refused:
        rocm.open_session("0", {})
    assert refused.value.owner == "infra"
    bare.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(EnvironmentUnusable, match=r"built for CUDA 13\.0"):
        rocm.open_session("0", {})


@pytest.mark.parametrize("state", ["no driver", "no permission", "other"])
def test_no_device_is_seen_and_why(bare: pytest.MonkeyPatch, tmp_path: Path, state: str) -> None:
    hip_torch(bare, available=False)
    kfd = tmp_path / "dev" / "kfd"
    if state != "no driver":
        kfd.parent.mkdir()
        kfd.touch()
    if state == "no permission":
        bare.setattr(rocm.os, "access", lambda *_: False)
    words = {"no driver": "kfd does not exist", "no permission": "groups render and video", "other": "rocminfo"}[state]
    with pytest.raises(EnvironmentUnusable, match=words):
        rocm.open_session("0", {})


@pytest.mark.parametrize(
    ("told", "uuid"),
    [
        ("61316232-6333-3030-3030-303030303030", "GPU-a1b2c30000000000"),
        (None, ""),
        ("", ""),
        ("4b2c1a9f-8d3e-6f7a-b5c9-2e4d8a1f6c3b", "GPU-4b2c1a9f-8d3e-6f7a-b5c9-2e4d8a1f6c3b"),
        ("odd", "GPU-odd"),
    ],
)
def test_uuids_as_amds_tools_write_them(told: str | None, uuid: str) -> None:
    assert rocm._uuid(told) == uuid


def test_the_hip_runtime_that_is_loaded_is_the_one_that_is_asked() -> None:
    maps = "7f00-7f10 r-xp 00000000 08:01 5 /usr/lib/libc.so.6\n7f20-7f30 r-xp 0 08:01 7 /x/lib/libamdhip64.so.7\n"
    assert rocm._hip_library(maps) == "/x/lib/libamdhip64.so.7"
    with pytest.raises(OSError, match="no HIP runtime"):
        rocm._hip_library("7f00-7f10 r-xp 00000000 08:01 5 /usr/lib/libc.so.6\n")
    assert rocm.graph_nodes(SimpleNamespace(raw_cuda_graph=lambda: 1)) is None
    assert rocm.graph_nodes(object()) is None


class FakeHip:
    """The two functions of HIP that count a graph's nodes; nodes are numbers, and their kind is the number."""

    def __init__(self, kinds: list[int], refuses: str = ""):
        self.kinds, self.refuses = kinds, refuses

    def hipGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802 - HIP's name
        if nodes is None:
            count._obj.value = len(self.kinds)
        else:
            for i, kind in enumerate(self.kinds):
                nodes[i] = kind + 1
        return int(self.refuses == "nodes")

    def hipGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802 - HIP's name
        kind._obj.value = node.value - 1
        return int(self.refuses == "type")


@pytest.mark.parametrize(
    ("kinds", "refuses", "told"),
    [
        ([0, 0, 2, 1, 0], "", {"kernel": 3, "memset": 1, "memcpy": 1}),
        ([], "", {}),
        ([5, 0], "", {"kernel": 1}),
        ([0], "nodes", None),
        ([0], "type", None),
    ],
)
def test_work_in_a_graph_is_counted(
    monkeypatch: pytest.MonkeyPatch, kinds: list[int], refuses: str, told: dict[str, int] | None
) -> None:
    monkeypatch.setattr(rocm, "_hip_library", lambda maps: "hip")
    monkeypatch.setattr("ctypes.CDLL", lambda path: FakeHip(kinds, refuses))
    assert rocm.graph_nodes(SimpleNamespace(raw_cuda_graph=lambda: 1)) == told


# the peer


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """AITER's two functions by their documented signatures, in torch; gives the list of what they were called with."""
    calls: list[tuple[Any, ...]] = []

    def rms_norm(input: Any, weight: Any, epsilon: Any, use_model_sensitive_rmsnorm: int = 0) -> Any:
        calls.append((input, weight, epsilon))
        return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, epsilon)

    def rmsnorm2d_fwd_with_add(
        out: Any, input: Any, residual_in: Any, residual_out: Any, weight: Any, epsilon: float, *_: Any
    ) -> None:
        calls.append((input, residual_in, weight, epsilon))
        wide = input.float() + residual_in.float()
        residual_out.copy_(wide)
        out.copy_(torch.nn.functional.rms_norm(wide, (input.shape[-1],), weight.float(), epsilon))

    package, ops, module = ModuleType("aiter"), ModuleType("aiter.ops"), ModuleType("aiter.ops.rmsnorm")
    module.rms_norm, module.rmsnorm2d_fwd_with_add = rms_norm, rmsnorm2d_fwd_with_add  # type: ignore[attr-defined]
    for name, found in (("aiter", package), ("aiter.ops", ops), ("aiter.ops.rmsnorm", module)):
        monkeypatch.setitem(sys.modules, name, found)
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    return calls


def test_aiters_norm(stand_in: list[tuple[Any, ...]]) -> None:
    x, w = torch.randn(5, 64, dtype=torch.bfloat16, requires_grad=True), torch.randn(64, dtype=torch.bfloat16)
    y = aiter.load("rms_norm")(x, w, 1e-5)
    assert y.shape == x.shape and y.dtype == x.dtype
    assert not y.requires_grad  # so a backward is `unsupported`, and never a gradient that is not AITER's
    assert stand_in[0][2] == 1e-5


def test_aiters_norm_with_a_residual(stand_in: list[tuple[Any, ...]]) -> None:
    x, r = torch.randn(2, 5, 64).bfloat16()
    w = torch.randn(64).bfloat16()
    before = x.clone(), r.clone()
    y, total = aiter.load("fused_add_rms_norm")(x, r, w)
    assert torch.equal(total, x + r)
    assert torch.equal(x, before[0]) and torch.equal(r, before[1])  # its own operands are left alone
    assert y.data_ptr() != total.data_ptr()
    assert aiter.DECLARES["fused_add_rms_norm"]["sum"] == "unrounded"


@pytest.mark.parametrize("op", aiter.OPS)
def test_what_aiter_does_not_take_is_said(stand_in: list[tuple[Any, ...]], op: str) -> None:
    function, x = aiter.load(op), torch.randn(3, 8).bfloat16()
    others = (x,) if op == "fused_add_rms_norm" else ()
    with pytest.raises(NotImplementedError, match="always has a weight"):
        function(x, *others, None)
    with pytest.raises(NotImplementedError, match=r"x is torch\.bfloat16, but weight is torch\.float32"):
        function(x, *others, torch.randn(8))
    with pytest.raises(TypeError):
        function(x, *others, torch.randn(8).bfloat16(), 1e-6, offset=1.0)
    assert stand_in == []


def test_aiter_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotImplementedError, match="needs torch for ROCm"):
        aiter.load("rms_norm")
    with pytest.raises(NotImplementedError, match="has no matmul"):
        aiter.load("matmul")
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setitem(sys.modules, "aiter", None)
    with pytest.raises(ImportError):
        aiter.load("rms_norm")
