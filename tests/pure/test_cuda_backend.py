"""What the cuda backend reads from nvidia-smi's text and from the mask; no device needed."""

from __future__ import annotations

from typing import Any

import pytest

from farm.backends import HostDevice, cuda

TWO = "0, GPU-aa11, NVIDIA H200\n1, GPU-bb22, NVIDIA GB200, with a comma\n"


def test_csv_lines_become_devices() -> None:
    assert cuda.parse_smi(TWO) == [
        HostDevice("0", "NVIDIA H200", "GPU-aa11"),
        HostDevice("1", "NVIDIA GB200, with a comma", "GPU-bb22"),
    ]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed, driver, not loaded\n"])
def test_anything_else_is_no_device(text: str) -> None:
    assert cuda.parse_smi(text) == []


@pytest.mark.parametrize(
    ("mask", "ids"),
    [(None, ["0", "1"]), ("1", ["1"]), ("1,0", ["1", "0"]), ("GPU-bb", ["1"]), ("", []), ("7", []), ("0,7,1", ["0"])],
)
def test_the_mask_narrows_and_orders(mask: str | None, ids: list[str]) -> None:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert [d.id for d in cuda.visible(cuda.parse_smi(TWO), environment)] == ids


@pytest.mark.parametrize(
    ("name", "gbps"),
    [
        ("NVIDIA H200", 4800.0),
        ("NVIDIA GB200", 8000.0),
        ("NVIDIA H100 80GB HBM3", 3350.0),
        ("NVIDIA H100 NVL", 3938.0),
        ("NVIDIA H20-3e", 4000.0),
        ("T4", None),
    ],
)
def test_peaks_are_by_part(name: str, gbps: float | None) -> None:
    found = cuda.peaks(name)
    assert (found[0] if found else None) == gbps


def test_what_a_graph_launches_is_unknown_where_nothing_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda.graph_nodes(object()) is None  # a torch whose graphs cannot be looked into

    class Graph:
        def raw_cuda_graph(self) -> int:
            return 1

    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", absent)
    assert cuda.graph_nodes(Graph()) is None


def test_a_graphs_work_is_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that holds a graph of three kernels, a fill, a copy and an event's record, which is no work."""
    kinds = [0, 2, 0, 7, 1, 0]

    class Driver:
        def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802 - as the driver names it
            if nodes is not None:
                nodes[:] = [100 + i for i in range(len(kinds))]
            count._obj.value = len(kinds)
            return 0

        def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802
            kind._obj.value = kinds[node.value - 100]
            return 0

    class Graph:
        def raw_cuda_graph(self) -> int:
            return 77

    monkeypatch.setattr("ctypes.CDLL", lambda name: Driver())
    assert cuda.graph_nodes(Graph()) == {"kernel": 3, "memset": 1, "memcpy": 1}
    Driver.cuGraphGetNodes = lambda self, graph, nodes, count: 400  # type: ignore[method-assign]
    assert cuda.graph_nodes(Graph()) is None
