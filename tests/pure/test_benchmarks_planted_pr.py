"""benchmarks.planted_pr: each plant is in its branch once, and what `farm pr` says wrongly of one is seen."""

from __future__ import annotations

import ast
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pr_results import pair, result, target
from pr_results import static as made_static

from benchmarks import planted_pr
from benchmarks.planted_pr import KERNEL, Seen

PLANTS = planted_pr.plants(1.0)
AXES = {"dtype": "float32", "hidden": "4000", "rows": "6144"}


def test_every_plant_changes_the_kernel_and_leaves_python() -> None:
    texts = {name: planted_pr.planted(KERNEL, plant) for name, plant in PLANTS.items()}
    assert len({*texts.values(), KERNEL}) == len(PLANTS) + 1
    for name, text in texts.items():
        same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(KERNEL))
        assert same == (name == "comments"), name
    with pytest.raises(SystemExit, match="not once"):
        planted_pr.planted(KERNEL, replace(PLANTS["tail"], change=(("no such line", ""),)))
    assert "n * 475 //" in texts["slower-10"] and "n * 25 //" in texts["faster-10"]  # 2.25 times 1.1 and 0.9
    with pytest.raises(SystemExit, match="needs"):
        planted_pr.plants(9.0)


def seen(name: str, *pairs: dict[str, Any], line: str, code: int, **given: Any) -> list[str]:
    one = Seen(name, PLANTS[name], [], line=line, exit_code=code)
    planted_pr.judged(one, result(*pairs, static=made_static(targets=[target()]), **given), device=True)
    return one.why


def test_a_wrong_answer_is_seen() -> None:
    hit = pair("cuda/a/x/auto/forward/fp32/1x4000", axes=AXES, status_b="inaccurate", speed="none", ratio=None)
    other = pair("cuda/a/x/auto/forward/fp32/1x4096", axes={**AXES, "hidden": "4096"})
    assert seen("tail", hit, other, line="1 cells broken", code=1) == []
    assert seen("tail", {**hit, "status_b": "passed"}, other, line="1 cells broken", code=1) == [
        "1 planted cells not found"
    ]
    slow = {**other, "speed": "regressed", "ratio": 1.05}
    assert seen("tail", hit, slow, line="1 cells broken", code=1) == ["1 other cells accused"]
    (why,) = seen("tail", hit, other, line="Not worse", code=1)
    assert why.startswith("the first line does not say")
    assert seen("tail", hit, other, line="1 cells broken", code=0) == ["exit code 0, not 1"]
    assert seen("slower-10", slow, line="1 of 1 timed cells slower", code=1) == []
    assert seen("faster-10", slow, line="cells faster", code=0)[:2] == [
        "1 cells accused, none expected",
        "not all planted cells are faster",
    ]
    needs = {**other, "memory_a": 64 << 20, "memory_b": 160 << 20}
    line = "Not worse, but 4 of 4 cells need more device memory"
    assert seen("memory", needs, line=line, code=0) == []
    assert seen("memory", other, line=line, code=0) == ["not all planted cells need more memory"]
    assert "no planted cell has other bits" in seen("accuracy", pair(axes=AXES), line="", code=0)


def test_the_last_lines_are_short_and_one_for_each_plant() -> None:
    rows = [Seen("tail", PLANTS["tail"], ["w" * 400]), Seen("comments", PLANTS["comments"], [], exit_code=0, seconds=8)]
    lines = planted_pr.short(rows).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["tail", "NO"], ["comments", "yes"]]
    assert max(map(len, lines)) < 220


def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import subprocess, time; subprocess.run(['sleep', '60'])"]
    begun = time.monotonic()
    assert planted_pr.ended(words, tmp_path, tmp_path / "log", 0.5) is None
    assert time.monotonic() - begun < 50 and not planted_pr.LIVE
    assert planted_pr.ended([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, tmp_path / "log", 20.0) == 3
