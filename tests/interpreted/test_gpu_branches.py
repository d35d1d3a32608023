"""What the tests of the GPU family run takes every branch of every kernel both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from branches import Recorder, Way
from gpu_cases import launched, many_partials, on_small_grids, option_entries, swap_axes

from kernels.ops.rms_norm.gpu import backward, choose, forward, launch, tiles, unaligned

#: What the interpreter cannot take, and why.
PTX = "the prefetch is inline PTX, and `choose.build` asks for none but on NVIDIA"
PDL = "waiting for the kernel before, and letting the next one start, are instructions of a device from sm_90 on"
NOT_HERE = {
    Way("forward_rows: if PDL", True): PDL,
    Way("forward_persistent: if PDL", True): PDL,
    Way("forward_chunks: if PDL", True): PDL,
    Way("backward_rows: if PDL", True): PDL,
    Way("backward_rows: if PDL (2)", True): PDL,
    Way("backward_twice: if PDL", True): PDL,
    Way("backward_twice: if PDL (2)", True): PDL,
    Way("backward_columns: if PDL", True): PDL,
    Way("sum_partials: if PDL", True): PDL,
    Way("backward_rows: if AHEAD > 0", True): PTX,
    Way("backward_rows: if DS is not None", True): PTX,
    Way("backward_rows: if DS is not None", False): PTX,
    Way("backward_twice: if AHEAD > 0", True): PTX,
    Way("backward_twice: if DS is not None", True): PTX,
    Way("backward_twice: if DS is not None", False): PTX,
}
NOT_HERE_UNALIGNED = {
    Way("forward_unaligned: if PDL", True): PDL,
    Way("backward_unaligned: if PDL", True): PDL,
    Way("backward_unaligned: if PDL (2)", True): PDL,
}


def everything(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Cases of test_gpu_launches, and one of a row of more than one chunk in each of test_gpu_cells' wide kernels."""
    yield many_partials()
    with monkeypatch.context() as patch:
        yield from on_small_grids(patch)
    yield launched("rms_norm", "forward", 41, 129, "bfloat16", "column_tiled", cores=1)
    yield launched("rms_norm", "backward", 1, 16385, "bfloat16", "multi_wave_reload", cores=1, weight="none")
    yield from (entry.launch for entry in option_entries())
    with monkeypatch.context() as patch:
        swap_axes(patch, recorder.modules)
        yield from [e.launch for e in option_entries() if "backward_columns" in e.config][-3:]


@pytest.mark.long
def test_every_branch_of_every_kernel_is_taken_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a counting copy of the kernels; run until nothing is missing that can be taken here."""
    recorder = Recorder(tmp_path, *(Path(module.__file__) for module in (tiles, forward, backward)))
    _, forwards, backwards = recorder.modules
    for name in vars(forwards).keys() & launch._FORWARD.keys():
        monkeypatch.setitem(launch._FORWARD, name, getattr(forwards, name))
    monkeypatch.setattr(launch, "backward_kernels", backwards)
    assert set(NOT_HERE) <= recorder.ways
    for case in everything(recorder, monkeypatch):
        case.run()
        if recorder.taken >= recorder.ways - set(NOT_HERE):
            break
    assert sorted(recorder.ways - recorder.taken - set(NOT_HERE)) == []
    assert sorted(recorder.taken & set(NOT_HERE)) == []


def test_every_branch_of_the_kernels_of_unaligned_rows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path, Path(unaligned.__file__))
    monkeypatch.setitem(launch._FORWARD, "forward_unaligned", recorder.modules[0].forward_unaligned)
    monkeypatch.setattr(launch, "unaligned", recorder.modules[0])
    assert set(NOT_HERE_UNALIGNED) <= recorder.ways
    for entry in option_entries():
        if dict(entry.choice.options)["kernel"] in choose.UNALIGNED:
            entry.launch.run()
        if recorder.taken >= recorder.ways - set(NOT_HERE_UNALIGNED):
            break
    assert sorted(recorder.ways - recorder.taken - set(NOT_HERE_UNALIGNED)) == []
    assert sorted(recorder.taken & set(NOT_HERE_UNALIGNED)) == []


def test_the_recorder_sees_what_is_taken(tmp_path: Path) -> None:
    source = tmp_path / "plain.py"
    source.write_text(
        "def f(a, b=1 if True else 2):\n"
        "    if a and b:\n        return 1\n"
        "    if a:\n        return 2 if b is None else 3\n"
        "    for i in range(a):\n        pass\n"
        "    return [i for i in range(3)]\n"
    )
    recorder = Recorder(tmp_path, source)
    (module,) = recorder.modules
    assert recorder.branches == ["f: a", "f: b", "f: if a and b", "f: if b is None", "f: if a", "f: for range(a)"]
    assert recorder.taken == set()
    assert module.f(0) == [0, 1, 2]
    assert recorder.taken == {
        Way("f: a", False),
        Way("f: if a and b", False),
        Way("f: if a", False),
        Way("f: for range(a)", False),
    }
    assert module.f(1, None) == 2 and module.f(1) == 1
    assert recorder.ways - recorder.taken == {Way("f: if b is None", False), Way("f: for range(a)", True)}


def test_what_modules_share_is_counted_in_its_copy_whoever_calls_it(tmp_path: Path) -> None:
    shared, user = tmp_path / "shared.py", tmp_path / "user.py"
    shared.write_text("def sign(a):\n    return -1 if a < 0 else 1\n")
    user.write_text("from math import floor\nfrom shared import sign\n\ndef f(a):\n    return sign(floor(a))\n")
    recorder = Recorder(tmp_path, shared, user)
    assert recorder.modules[1].f(-0.5) == -1
    assert recorder.taken == {Way("sign: if a < 0", True)} == recorder.ways - {Way("sign: if a < 0", False)}
