"""The repository's own tests in a real sandbox: one that takes all memory, forks or hangs costs itself alone."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path

import pytest

from farm.node import sandbox, sandbox_host
from farm.pr import own_box, own_tests
from farm.pr.test_reports import OwnResult

WHY_NOT = sandbox_host.refusal()
LIMITS = {"memory_gib": 0.25, "processes": 40, "files_gib": 0.5, "tmp_gib": 0.1}
PLANTS = """
import mmap, os, pathlib, subprocess, time

def test_before(): pass

def test_hog():
    kept = []
    while True: kept.append(bytearray(64 << 20))

def test_shares_memory():
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 64 << 20))
        kept[-1].write(bytes(64 << 20))

def test_shares(): pass  # another's name begins so

def test_bomb():
    for _ in range(300): subprocess.Popen(["sleep", "86399"])

def test_fills_the_disk():
    with open("/tmp/much", "wb") as file: os.posix_fallocate(file.fileno(), 0, 1 << 30)

def test_writes_to_the_tree():
    pathlib.Path(__file__).with_name("left").write_text("x")

def test_behind(): pass
"""
MEMORY = "the sandbox has 0.25 GiB of memory"


@pytest.mark.skipif(bool(WHY_NOT), reason=f"no sandbox can be made here: {WHY_NOT}")
def test_plants_cost_themselves_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PLANTS)
    found = run(tmp_path, 60.0)
    by = {t.id.partition("::")[2]: t for t in found}
    wanted = {
        "hog": ("crashed", MEMORY),
        "shares_memory": ("crashed", MEMORY),
        "bomb": ("crashed", "the sandbox allows 40 processes and threads"),
        "fills_the_disk": ("crashed", "[Errno 27] File too large"),
        "writes_to_the_tree": ("crashed", "Read-only file system"),
    }
    for name, (status, words) in wanted.items():
        assert by[f"test_{name}"].status == status and words in by[f"test_{name}"].reason, by[f"test_{name}"]
    others = {name: t.status for name, t in by.items() if name.removeprefix("test_") not in wanted}
    assert others == dict.fromkeys(("test_before", "test_shares", "test_behind"), "passed"), found
    assert not any("sandbox" in by[f"test_{name}"].reason for name in ("fills_the_disk", "writes_to_the_tree"))
    assert not left() and [p.name for p in tmp_path.iterdir()] == ["test_it.py"]


@pytest.mark.long
@pytest.mark.skipif(bool(WHY_NOT), reason=f"no sandbox can be made here: {WHY_NOT}")
def test_one_that_does_not_end_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\n")
    *others, last = run(tmp_path, 2.0)
    if others:  # else this host was too busy to begin in time
        assert (others[0].id, others[0].status) == ("test_it.py::test_b", "timed_out")
        assert (last.id, last.status) == ("test_it.py::test_a", "passed") or last.status == "timed_out"
    else:
        assert (last.id, last.status) == ("test_it.py", "timed_out")


def run(folder: Path, seconds: float) -> list[OwnResult]:
    variables = sandbox.variables({"PATH": os.environ["PATH"]}, sandbox_host.limits(LIMITS), grouped=False)
    box = functools.partial(own_box.Sandboxed, LIMITS)
    return own_tests.run(
        folder, ["test_it.py"], [], python=sys.executable, variables=variables, seconds=seconds, box=box
    )


def left() -> list[str]:
    """Processes of the bomb."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [place.parent.name] if place.read_bytes() == b"sleep\x0086399\x00" else []
    return found
