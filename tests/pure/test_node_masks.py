"""Which device an actor has: by the vendor's mask variable, as Ray set it or failed to."""

from __future__ import annotations

import pytest

from farm.node.masks import granted, without_rocr


@pytest.mark.parametrize(
    ("backend", "environ", "ids", "device"),
    [
        # Ray narrowed the vendor's own variable
        ("cuda", {"CUDA_VISIBLE_DEVICES": "3"}, ["3"], "3"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "MIG-4f1c"}, ["MIG-4f1c"], "MIG-4f1c"),
        ("rocm", {"HIP_VISIBLE_DEVICES": "5"}, ["5"], "5"),
        ("ascend", {"ASCEND_RT_VISIBLE_DEVICES": "7"}, ["7"], "7"),
        # the node has one device, whatever index Ray gives it
        ("ascend", {"ASCEND_RT_VISIBLE_DEVICES": "7"}, ["0"], "7"),
        # no variable at all: fakes, and hosts without a mask
        ("ascend", {}, ["2"], "2"),
        ("rocm", {}, ["1"], "1"),
        # no amdsmi in the worker: Ray takes GPU for NVIDIA's, and its id is an index into the node's own mask
        ("rocm", {"HIP_VISIBLE_DEVICES": "4,6", "CUDA_VISIBLE_DEVICES": "1"}, ["1"], "6"),
        ("rocm", {"HIP_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "0"}, ["0"], "1"),
        ("rocm", {"CUDA_VISIBLE_DEVICES": "1"}, ["1"], "1"),
        # Ray was told not to touch the variable (RAY_EXPERIMENTAL_NOSET_...): its id is an entry of it
        ("cuda", {"CUDA_VISIBLE_DEVICES": "4,6"}, ["6"], "6"),
        ("ascend", {"ASCEND_RT_VISIBLE_DEVICES": "5,3"}, ["3"], "3"),
        # a mask of UUIDs, of which Ray gave an index
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["1"], "GPU-b"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["2"], "2"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["GPU-b"], "GPU-b"),
        # backends that Ray knows nothing of
        ("cpu", {"CUDA_VISIBLE_DEVICES": ""}, [], "1"),
        ("sim", {}, [], "1"),
    ],
)
def test_the_granted_device(backend: str, environ: dict[str, str], ids: list[str], device: str) -> None:
    assert granted(backend, environ, ids, index="1") == device


def test_a_backend_may_know_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.backends.sim.granted", lambda environ, ids: f"own-{ids}", raising=False)
    assert granted("sim", {}, ["3"], "0") == "own-['3']"
    monkeypatch.setattr("farm.backends.sim.granted", lambda environ, ids: "")
    assert granted("sim", {}, ["3"], "0") == "3"


@pytest.mark.parametrize(
    ("environ", "changes"),
    [
        ({}, {}),
        ({"ROCR_VISIBLE_DEVICES": ""}, {}),
        ({"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"}, {}),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": None}),
        ({"ROCR_VISIBLE_DEVICES": "GPU-DEADBEEF,GPU-1"}, {"HIP_VISIBLE_DEVICES": "0,1"}),
    ],
)
def test_what_slurm_sets_on_an_amd_node(environ: dict[str, str], changes: dict[str, str | None]) -> None:
    assert without_rocr(environ) == changes
