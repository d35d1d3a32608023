"""What compute-sanitizer writes, in the formats of four releases; the tools, and the words that start them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from farm.actor import sanitizer, tools
from farm.actor.child_process import NoChild
from farm.actor.device_setup import DeviceSetup
from farm.cli import run_command
from farm.cli.main import main, parser
from farm.errors import BackendError, UsageError
from farm.matrix import load_files, plan
from farm.node.environment import Environment, child_variables

HEAD = "========= COMPUTE-SANITIZER\n"
#: Written after the documentation of each release; the last line of an access names the address.
REPORT = """\
========= Invalid __global__ write of size 4 bytes
=========     {at}
=========     by thread (3,0,0) in block (7,0,0)
=========     Address 0x7f0047000010 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x7ff8b9c080d4]
=========
"""
RACE = """\
========= Error: Race reported between Write access at _sum+0x90 in /src/k.py:18
=========     and Read access at _sum+0xf0 in /src/k.py:20 [64 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    ("at", "kernel", "place"),
    [
        ("at 0x3c8 in /a b/src.cu:42:affine(int*,int*)", "affine(int*,int*)", "/a b/src.cu:42"),
        ("at unaligned_kernel():0x160 in memcheck_demo.cu:6", "unaligned_kernel()", "memcheck_demo.cu:6"),
        ("at scale(float*, int, float)+0x50 in scale.cu:14", "scale(float*, int, float)", "scale.cu:14"),
        ("at 0x60 in Iota(unsigned char*)", "Iota(unsigned char*)", ""),
        ("at ns::k<(int)4>(T*)+0x50 in /x.py:1", "ns::k<(int)4>(T*)", "/x.py:1"),
        ("at something else", "something else", ""),
    ],
)
def test_the_place_of_an_access_in_every_release(at: str, kernel: str, place: str) -> None:
    (found,) = sanitizer.accesses(HEAD + REPORT.format(at=at))
    assert (found.kernel, found.place) == (kernel, place)
    assert (found.what, found.thread) == ("Invalid __global__ write of size 4 bytes", "thread (3,0,0) of block (7,0,0)")
    assert found.address == "Address 0x7f0047000010 is out of bounds"
    assert "Host Frame" not in found.sentence() and kernel in found.sentence()


def test_each_kind_of_access_is_told_once_with_its_number() -> None:
    one, other = REPORT.format(at="at _a+0x10 in /k.py:3"), REPORT.format(at="at _b+0x10 in /k.py:9")
    summary = "========= ERROR SUMMARY: 4 errors\n"
    hit = '========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on API call.\n'
    found = sanitizer.accesses(HEAD + one + "printed by the kernel\n" + one + other + one + hit + summary)
    assert [(f.kernel, f.count) for f in found] == [("_a", 3), ("_b", 1)]
    said = sanitizer.reason(found, "memcheck")
    assert said.startswith("memcheck: Invalid __global__ write of size 4 bytes in kernel _a at /k.py:3, by thread")
    assert said.endswith("(3 reports); and 1 more kinds of access") and "\n" not in said


def test_a_race_names_the_line_that_writes() -> None:
    (found,) = sanitizer.accesses(HEAD + RACE)
    assert (found.kernel, found.place) == ("_sum", "/src/k.py:18")
    assert found.sentence().startswith("Error: Race reported between Write access in kernel _sum at /src/k.py:18")
    assert "and Read access at _sum+0xf0 in /src/k.py:20" in found.sentence() and "hazards" not in found.sentence()


@pytest.mark.parametrize("text", [HEAD, HEAD + "========= ERROR SUMMARY: 0 errors\n", HEAD + "=========\n" * 3])
def test_nothing_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_text(text)
    assert sanitizer.read(tmp_path / "log", "compute-sanitizer") == ([], "")


@pytest.mark.parametrize("text", [None, "", "Error: no CUDA device\n", "\n" + HEAD])
def test_a_tool_that_reports_nothing_proves_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "log").write_text(text)
    found, why = sanitizer.read(tmp_path / "log", "compute-sanitizer")
    assert found == [] and why == "compute-sanitizer wrote no report, so nothing was checked"
    assert sanitizer.read(None, "x")[1]


@pytest.mark.parametrize("text", ["=========", "========= Invalid", "========= Invalid\n=========     at \n", HEAD * 9])
def test_a_log_that_is_cut_short_raises_nothing(text: str) -> None:
    for end in range(len(text) + 1):
        sanitizer.reason(found, "x") if (found := sanitizer.accesses(text[:end])) else None


# the tools


def test_every_tool_writes_where_its_child_is_known_by() -> None:
    for tool in tools.TOOLS.values():
        words = [tools.placed(w, Path("/spool/tool-farm-1")) for w in tools.under("/bin/x", tool)]
        assert sum("/spool/tool-farm-1" in word for word in words) == 1 and "{" not in " ".join(words), tool
    assert [t.name for t in tools.profilers("rocm")] == ["rocprofv3-1", "rocprofv3-2"] and not tools.profilers("cpu")
    slowed = tools.deadlines({"check": 5, "timing": 3})
    assert slowed["check"] == 50 and slowed["timing"] == 3 and slowed["spawn"] > 1000


def test_the_pipe_of_a_child_is_its_own_under_a_tool_that_prints(tmp_path: Path) -> None:
    """The tool's standard output is the log, the child's is the pipe, and so with what they read."""
    stub = tmp_path / "tool {x}"
    stub.write_text('#!/bin/sh\necho printed by the tool\nread x; echo "the tool read: $x"\n"$@"\necho last words\n')
    stub.chmod(0o755)
    tool = tools.Tool("t", "tool", "cuda", (), True, "")
    words = [*tools.under(str(stub), tool), "sh", "-c", "read y; echo child got $y; echo to the log >&2"]
    done = subprocess.run(words, input="hello\n", capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "child got hello\n"
    assert done.stderr.splitlines() == ["printed by the tool", "the tool read: ", "to the log", "last words"]


def test_a_child_under_a_tool_ends_in_order_and_without_a_parents_signal() -> None:
    plain, under = (child_variables({}, Environment(tool=t)) for t in ("", "ncu"))
    assert "FARM_UNDER_TOOL" not in plain and under["FARM_UNDER_TOOL"] == under["FARM_WRAPPED"] == "1"
    assert Environment.of(Environment(tool="ncu", tool_out="/x").plain()).tool_out == "/x"
    assert not {"tool", "tool_out"} & Environment().plain().keys(), "nodes with an older farm do not know them"


def placed(folder: Path, environment: Environment) -> DeviceSetup:
    more = {"device": "sim:0", "device_id": "0", "spool": str(folder), "bundles": [], "deadlines": {}}
    return DeviceSetup({"backend": "sim", "environment": environment.plain(), **more})


def test_a_node_without_the_tool_says_so_and_serves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARM_NODE", raising=False)
    monkeypatch.setattr(tools, "found", lambda tool: "")
    with pytest.raises(NoChild, match="needs compute-sanitizer, which is not installed") as caught:
        placed(tmp_path, Environment(tool="memcheck")).prepare()
    assert caught.value.final


def test_a_container_is_no_place_for_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARM_NODE", raising=False)
    monkeypatch.setattr(tools, "found", lambda tool: "/bin/true")
    boxed = Environment("box", command=("docker", "run", "{child}"), tool="memcheck")
    with pytest.raises(NoChild, match="environment box starts children by a command of its own") as caught:
        placed(tmp_path, boxed).prepare()
    assert caught.value.final
    setup = placed(tmp_path, Environment(tool="memcheck"))
    setup.prepare()
    assert setup.environment.variables["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1" and "/bin/true" in setup.under


# the command line


MATRIX = "name: m\nop: rms_norm\naxes: {shape: [{rows: 4, hidden: 16}]}\nproviders: [torch]\n"


def sanitized(folder: Path, backend: str, address: str = "inline") -> object:
    (folder / "m.yaml").write_text(MATRIX)
    args = parser("run").parse_args(["run", "m.yaml", "--sanitize", "racecheck", "--address", address])
    args.tool = args.sanitize
    found = plan(load_files([folder / "m.yaml"]), [backend])
    return run_command.under_tool(args, found)


def test_a_host_without_the_tool_is_told_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "found", lambda tool: "")
    with pytest.raises(BackendError) as caught:
        sanitized(tmp_path, "cuda")
    said = str(caught.value)
    assert said.startswith("--sanitize needs compute-sanitizer, which is not installed on this host (not on PATH")
    assert said.endswith("install the CUDA toolkit, or the conda package cuda-sanitizer-api") and "\n" not in said
    assert (caught.value.id, caught.value.exit_code) == ("tool-missing", 2)
    assert sanitized(tmp_path, "cuda", "auto"), "the nodes of a cluster know what they have"


def test_cells_of_another_backend_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        sanitized(tmp_path, "cpu")
    assert caught.value.id == "tool-backend" and "but cpu has cells in this run" in str(caught.value)


def test_an_unknown_check_is_refused_and_a_matrix_behind_the_option_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(MATRIX)
    monkeypatch.delenv("FARM_ADDRESS", raising=False)
    assert main(["run", "m.yaml", "--sanitize", "leaks"]) == 2
    assert "[sanitize-unknown]" in capsys.readouterr().err
    assert main(["run", "--sanitize", "m.yaml", "--backend", "cpu", "--address", "inline"]) == 2
    assert "[tool-backend]" in capsys.readouterr().err
