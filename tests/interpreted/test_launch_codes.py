"""The digest of what a call gives the device: equal where code, grid and arguments are, and only there."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

compiler = pytest.importorskip("triton.compiler.compiler")
torch = pytest.importorskip("torch")

from farm.child.launch_recorder import LaunchRecorder  # noqa: E402


def kernel(code: Any = b"cubin", warps: int = 4) -> Any:
    settings = SimpleNamespace(num_warps=warps, num_ctas=1, shared=0)
    told = {"name": "k", "function": 1, "src": None, "_init_handles": lambda: None}
    return SimpleNamespace(kernel=code, metadata=settings, **told)


def digest(*launches: tuple[Any, tuple[int, ...], tuple[Any, ...]]) -> str:
    """Of launches as Triton makes them: (compiled kernel, grid, arguments)."""
    recorder, stock = LaunchRecorder(), compiler.CompiledKernel.launch_metadata
    recorder._undo = contextlib.ExitStack()
    recorder._watch_codes()
    with recorder._undo:
        for of, grid, args in launches:
            compiler.CompiledKernel.launch_metadata(of, grid, 0, *args)
    assert compiler.CompiledKernel.launch_metadata is stock
    code = recorder.facts("auto")["launch"].get("code")
    assert code is None or code["launches"] == len(launches)
    return str(code["digest"]) if code else ""


def test_what_the_device_gets_decides() -> None:
    x, y = torch.zeros(3), torch.ones(3)
    one = digest((kernel(), (4, 1, 1), (x, 7, 1e-6, None)))
    assert len(one) == 16 and one == digest((kernel(), (4, 1, 1), (y, 7, 1e-6, None)))  # wherever tensors lie
    assert one != digest((kernel(b"other"), (4, 1, 1), (x, 7, 1e-6, None)))
    assert one != digest((kernel(warps=8), (4, 1, 1), (x, 7, 1e-6, None)))
    assert one != digest((kernel(), (5, 1, 1), (x, 7, 1e-6, None)))
    assert one != digest((kernel(), (4, 1, 1), (x, 8, 1e-6, None)))
    twice = (kernel(), (4, 1, 1), (x, 7, 1e-6, None))
    assert digest(twice, twice) not in (one, "")
    other = (kernel(b"other"), (1,), ())
    assert digest(twice, other) != digest(other, twice)


def test_what_cannot_be_read_leaves_no_digest() -> None:
    assert digest() == ""
    assert digest((kernel(None), (1,), ())) == ""
    assert digest((kernel(), (1,), (object(),))) == ""
