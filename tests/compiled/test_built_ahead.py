"""Compiling ahead, with Triton's compiler: what another process asks for is in the cache, whatever else happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.actor import compile_ahead
from farm.actor.compile_ahead import CompileAhead
from farm.actor.device_setup import DeviceSetup
from farm.compile import planning
from farm.node.environment import Environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = planning.ahead_target("cuda", {"sm": "sm_90", "multiprocessors": 132})
SECONDS = 60.0


def job(index: int, function: str, hidden: int = 64, operation: str = "no-grad-forward") -> dict[str, Any]:
    path = {"path": f"ahead_kernels:{function}"} if function else {"name": "farm"}
    plain = {"role": "input", "of": None, "absent": False}
    tensors = [
        {"name": "x", "dtype": "bfloat16", "shape": [128, hidden], **plain},
        {"name": "weight", "dtype": "bfloat16", "shape": [hidden], **plain},
        {"name": "dy", "dtype": "bfloat16", "shape": [128, hidden], **plain, "role": "upstream", "of": "y"},
        {"name": "dx", "dtype": "bfloat16", "shape": [128, hidden], **plain, "role": "gradient", "of": "x"},
        {"name": "dw", "dtype": "bfloat16", "shape": [hidden], **plain, "role": "gradient", "of": "weight"},
    ]
    kept = tensors[: 2 if operation == "no-grad-forward" else 5]
    call = {"provider": {"name": "own", **path}, "positional": [1e-6], "keywords": {}, "optional": {}}
    return {"cell": index, "op": "rms_norm", "operation": operation, "call": call, "tensors": kept}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """ahead(jobs, until): what an actor has that compiles ahead for a GPU that is not here."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "1")
    environment = Environment("default", path=(str(ROOT), str(HERE))).plain()
    config = {"device": "cuda:0", "backend": "cuda", "device_id": "0", "environment": environment, "deadlines": {}}
    setup = DeviceSetup({**config, "revision": "r", "spool": str(tmp_path / "spool")})
    monkeypatch.setattr(setup, "_identified", lambda: None)
    setup.prepare()
    made: list[CompileAhead] = []

    def ahead(workers: int = 2) -> CompileAhead:
        made.append(CompileAhead(lambda arm: setup.compiler(arm, workers)))
        made[-1].begin([""])
        return made[-1]

    yield ahead
    for one in made:
        one.close()


def finished(ahead: CompileAhead, jobs: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """The answers to each cell."""
    heard: list[dict[str, Any]] = []
    taken = ahead._hear

    def hear(arm: str, line: bytes) -> None:
        taken(arm, line)
        told = json.loads(line)
        heard.extend([told] if "cell" in told else [])

    ahead._hear = hear  # type: ignore[method-assign]
    ahead.order({"target": TARGET, "cells": {"": jobs}})
    end = time.monotonic() + SECONDS
    while len(heard) < len(jobs) and ahead._running and time.monotonic() < end:
        ahead.look()
        time.sleep(0.02)
    found: dict[int, list[dict[str, Any]]] = {}
    for answer in heard:
        found.setdefault(answer["cell"], []).append(answer)
    return found


def again(tmp_path: Path, jobs: list[dict[str, Any]], of: int = 1) -> dict[str, Any]:
    """What another process compiles of the same, that comes after; `of`: how many share what is tuned."""
    (tmp_path / "jobs.json").write_text(json.dumps({"target": TARGET, "cells": jobs, "of": of}))
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    words = [sys.executable, str(HERE / "ahead_world.py"), str(tmp_path / "jobs.json")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=SECONDS, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.long
def test_what_was_built_ahead_is_found_and_nothing_else_is_spoilt(world: Any, tmp_path: Path) -> None:
    """Plain and tuned kernels, ours in both directions; beside them code that dies, leaves, and speaks out of turn."""
    good = [job(0, "plain"), job(1, "plain", 1000), job(2, "tuned"), job(3, "", 256), job(4, "", 256, "full")]
    ahead = world()
    found = finished(ahead, [job(5, "dies"), *good, job(6, "leaves")])
    assert "died" in found[5][0]["reason"] and "SystemExit" in found[6][0]["reason"]
    assert [a["reason"] for n in (0, 1, 2, 3, 4) for a in found[n]] == [""] * 5  # the tuned one in two shares
    hashes = [h for answers in found.values() for a in answers for h in a["hashes"]]
    assert sum(a["compiled"] for a in found[2]) == 4 and ahead.count("", hashes) == len(set(hashes))
    assert not list((tmp_path / "cache").rglob("*.autotune.json"))  # a choice that has timed nothing
    finished(ahead, [job(7, "speaks")])  # whoever lies is ended, and what it built stays
    assert not ahead._running and ahead.count("", hashes) == len(set(hashes))
    later = again(tmp_path, good)
    assert not [a for a in later["answers"] if a["reason"]]
    assert later["compiled"] == 0 and later["loaded"] == len(
        {h for n in range(5) for a in found[n] for h in a["hashes"]}
    )
    both = [
        job(0, "tuned", 512),
        {**job(0, "tuned", 512), "share": 1},
    ]  # one process may be given every share of a cell
    assert [a["compiled"] for a in again(tmp_path, both, 2)["answers"]] == [2, 2]


def test_one_that_hangs_goes_with_the_run(world: Any, tmp_path: Path) -> None:
    ahead, begun, end = world(1), tmp_path / "hangs", time.monotonic() + SECONDS
    ahead.order({"target": TARGET, "cells": {"": [job(0, "hangs")]}})
    child = ahead._running[""]
    while not (begun.exists() and begun.read_text()) and time.monotonic() < end:
        ahead.look()
        time.sleep(0.02)
    hanging = Path("/proc") / begun.read_text()
    ahead.stop()  # as while a cell is timed
    began = time.monotonic()
    ahead.close()
    assert time.monotonic() - began < 10 and not child.alive and ahead.count("", ["x"]) == 0
    while hanging.exists() and time.monotonic() < end:  # until its parent, which is not this process, has heard of it
        time.sleep(0.02)
    assert not hanging.exists()
    assert compile_ahead.workers(2, 1) == 0
