"""`benchmarks.parts` with devices that are fakes: each cell once, what needs a look is named, the time is kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import parts

AXES: dict[str, Any] = {
    "shape": [{"rows": 3, "hidden": [64, 65]}],
    "dtype": ["float32", "bfloat16"],
    "operation": ["forward", "backward"],
}


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose two NVIDIA devices are fakes."""
    (tmp_path / "node.yaml").write_text("backend: cuda\nsimulate: {model: NVIDIA H200, devices: 2}\n")
    monkeypatch.setenv("FARM_NODE", str(tmp_path / "node.yaml"))


def matrix(folder: Path, **more: Any) -> str:
    told = {"name": "m", "op": "rms_norm", "axes": AXES, "providers": ["farm", "torch"], "timing": {"method": "none"}}
    (folder / "m.yaml").write_text(json.dumps({**told, **more}))
    return str(folder / "m.yaml")


def run(folder: Path, seconds: float = 120.0, **more: Any) -> tuple[int, dict[str, Any]]:
    out = folder / "out"
    code = parts.main(
        [matrix(folder, **more), "--gpus", "0,1", "--at-once", "2", "--out", str(out), "--seconds", str(seconds)]
    )
    return code, json.loads((out / "parts.json").read_text()) if out.exists() else {}


def test_each_cell_is_in_one_part_and_large_parts_are_divided() -> None:
    cells = [
        {"provider": p, "op": op, "operation": o, "dtypes": {"x": d, "weight": d}}
        for p, n in (("farm", 40), ("torch", 4))
        for op in ("rms_norm", "matmul")
        for o in ("forward", "backward")
        for d in ("float32", "bfloat16")
        for _ in range(n)
    ]
    found = parts.parts(cells, most=50)
    assert sum(p.cells for p in found) == len(cells) and len({p.select for p in found}) == len(found)
    assert [p.cells for p in found] == [40] * 8 + [16] * 2
    assert found[-1].select == "provider=torch,dtype=fp32" and found[0].select.count(",") == 3
    dear = [{**c, "provider": "torch_compile"} for c in cells if c["provider"] == "torch"]  # 32 cells that cost 256
    first = parts.parts([*cells, *dear], most=64)
    assert sum(p.cells for p in first) == len(cells) + len(dear)
    assert [p.cells for p in first if "torch_compile" in p.select] == [8] * 4 and "torch_compile" in first[0].select


@pytest.mark.long
def test_every_cell_ends_and_the_locks_are_each_parts_own(tmp_path: Path) -> None:
    code, found = run(tmp_path, sim={"default": {"wall_s": 0.05}})
    assert (code, found["ended"], found["bad"]) == (0, 16, [])
    assert found["counts"] == {"farm passed": 8, "torch passed": 8}
    assert {p["gpu"] for p in found["parts"]} == {"0", "1"} and all(p["seconds"] for p in found["parts"])
    assert "16 of 16 cells ended, 0 need a look" in (tmp_path / "out" / "parts.txt").read_text()


@pytest.mark.long
def test_what_is_selected_alone_is_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = [matrix(tmp_path, timing={"method": "events"}), "--untimed", "--select", "hidden=<65,operation=forward"]
    assert parts.main([*argv, "--gpus", "0", "--at-once", "2", "--out", str(out), "--seconds", "120"]) == 0
    found = json.loads((out / "parts.json").read_text())
    assert (found["planned"], found["ended"], found["counts"]) == (4, 4, {"farm passed": 2, "torch passed": 2})


@pytest.mark.long
def test_a_wrong_cell_is_named(tmp_path: Path) -> None:
    wrong = [{"when": {"provider": "torch", "hidden": 65}, "error": 0.5}]
    code, found = run(tmp_path, sim={"default": {"wall_s": 0.01}, "rules": wrong})
    assert (code, found["ended"], found["counts"]["torch inaccurate"]) == (1, 16, 4), found
    assert {b["status"] for b in found["bad"]} == {"inaccurate"}
    assert all("torch" in b["cell_id"] and "3x65" in b["cell_id"] for b in found["bad"])


def test_what_the_time_does_not_reach_is_no_success(tmp_path: Path) -> None:
    begun = time.monotonic()
    code, found = run(tmp_path, seconds=8.0, sim={"default": {"wall_s": 30.0}})
    assert code == 1 and found["ended"] < found["planned"] == 16 and found["bad"] == []
    assert time.monotonic() - begun < 90
    for log in (tmp_path / "out").glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()


def test_what_is_to_be_timed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, timing={"method": "rotating_graph"}) == (2, {})
    assert "a time on a shared device is none" in capsys.readouterr().err
    assert parts.main([str(tmp_path / "absent.yaml"), "--gpus", "0", "--out", str(tmp_path / "o")]) == 2
