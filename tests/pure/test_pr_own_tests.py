"""The repository's own tests and benchmarks in both arms."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farm.pr import own_box, own_tests
from farm.pr.test_reports import OwnResult, joined, junit, perf
from farm.process import cgroup

TESTS = """
import os, pytest
def test_good(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_some(n): assert n == 1, "n is two"
def test_raises(): raise RuntimeError("boom \\x1b[31m")
def test_skipped(): pytest.skip("no device")
"""
DIES = "import os\ndef test_first(): pass\ndef test_dies(): os._exit(7)\ndef test_never(): pass\n"
BENCH = """
class Benchmark:
    def __init__(self): self.__dict__.update(x_names=["n"], x_vals=[8, 16], line_arg="provider", line_vals=["a", "b"],
        plot_name="norm", ylabel="ms", args={"k": 2})
class Mark:
    def __init__(self, fn): self.fn, self.benchmarks = fn, Benchmark()
def norm(n, provider, k):
    print("noise")
    if provider == "b" and n == 16: raise ValueError("not that wide")
    return n * k / 1000, 0.1, 0.2
bench = Mark(norm)
"""


def run(folder: Path, *tests: str, benchmarks: tuple[str, ...] = (), seconds: float = 60.0) -> list[OwnResult]:
    return own_tests.run(
        folder, tests, benchmarks, python=sys.executable, variables={"PATH": os.environ["PATH"]}, seconds=seconds
    )


def test_tests_and_benchmarks_run_in_a_process_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_dies.py").write_text(DIES)
    (tmp_path / "bench.py").write_text(BENCH)
    found = {t.id: t for t in run(tmp_path, "test_some.py", "test_dies.py", "test_new.py", benchmarks=("bench.py",))}
    assert found["test_some.py::test_good"].status == "passed"
    assert found["test_some.py::test_some[1]"].status == "passed"
    assert (
        found["test_some.py::test_some[2]"].status == "inaccurate"
        and "n is two" in found["test_some.py::test_some[2]"].reason
    )
    assert found["test_some.py::test_raises"].status == "crashed"
    assert "\x1b" not in found["test_some.py::test_raises"].reason
    assert found["test_some.py::test_skipped"].status == "skipped"
    dies = found["test_dies.py::test_dies"]
    assert dies.status == "crashed" and "exit code 7" in dies.reason
    assert found["test_dies.py::test_first"].status == found["test_dies.py::test_never"].status == "passed"
    assert found["test_new.py"].status == "skipped"
    assert found["bench.py::norm[n=16,provider=a]"].us == 32.0
    assert found["bench.py::norm[n=16,provider=b]"].status == "crashed"
    assert found["bench.py::norm[n=8,provider=a]"].status == "unsupported"  # shown, never judged


def test_a_file_that_hangs_is_ended(tmp_path: Path) -> None:
    # hangs for longer than it is allowed, and nobody waits for it: its process is killed after a second
    (tmp_path / "test_hangs.py").write_text("import time\ntime.sleep(60)\n")
    assert [t.status for t in run(tmp_path, "test_hangs.py", seconds=1.0)] == ["timed_out"]


def test_a_test_of_a_class_has_the_id_that_pytest_gives_it() -> None:
    report = (
        '<s><testcase file="t/test_a.py" classname="t.test_a.TestX" name="test_b[1]"/>'
        '<testcase file="t/test_a.py" classname="t.test_a.TestY" name="test_b[1]">'
        '<failure message="assert 0"/></testcase>'
        '<testcase file="t/test_a.py" classname="t.test_a" name="test_c"/></s>'
    )
    found = [(t.id, t.status) for t in junit(report.encode())]
    assert found == [
        ("t/test_a.py::TestX::test_b[1]", "passed"),
        ("t/test_a.py::TestY::test_b[1]", "inaccurate"),
        ("t/test_a.py::test_c", "passed"),
    ]


def test_a_limit_of_addresses_is_for_hosts_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "make", lambda *_: cgroup.Group())
    assert "AS" in own_box.Sandboxed({})._resources
    assert "AS" not in own_box.Sandboxed({}, "cuda")._resources  # a driver reserves hundreds of GiB of them
    monkeypatch.setattr(cgroup, "make", lambda *_: cgroup.Group(counts=frozenset({"memory", "processes"})))
    assert not {"AS", "NPROC"} & set(own_box.Sandboxed({})._resources)


@pytest.mark.parametrize(
    "report", [b"", b"<x", b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "x">]><a>&b;</a>', b"\xff\xfe", b"<a>" * 10]
)
def test_reports_that_cannot_be_read_are_refused(report: bytes) -> None:
    with pytest.raises(ValueError):
        junit(report)


def test_hostile_reports_stay_within_bounds() -> None:
    case = '<testcase file="f" name="{}"><failure message="{}"/></testcase>'
    many = "<testsuite>" + "".join(case.format(n, "x" * 2000) for n in range(25_000)) + "</testsuite>"
    found = junit(many.encode())
    assert len(found) == 20_000 and all(len(t.reason) <= 600 and len(t.id) <= 300 for t in found)
    lines = ['{"benchmark": "a", "value": 1e999}', '{"benchmark": [', '{"benchmark": "b", "value": true}', "[" * 9999]
    lines += ['{"benchmark": "c", "value": 2, "unit": "GB/s"}', '{"benchmark": "d", "value": -1}']
    assert [(t.id, t.us, t.reason) for t in perf(lines)] == [("c", None, "2 GB/s")]


def test_arms_are_joined_by_id() -> None:
    a = [OwnResult("x", "test", "passed"), OwnResult("y", "test", "inaccurate")]
    b = [OwnResult("x", "test", "crashed", "boom"), OwnResult("z", "benchmark", "unsupported", us=3.0)]
    found = {str(t["id"]): (t["status_a"], t["status_b"], t["owner"]) for t in joined(a, b)}
    assert found == {
        "x": ("passed", "crashed", "kernel"),
        "y": ("inaccurate", "absent", "kernel"),
        "z": ("absent", "unsupported", ""),
    }
