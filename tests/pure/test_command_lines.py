"""Clumsy and hostile command lines: each ends in its exit code with one sentence that says what to do, in process.

The first half was found by people who tried the farm; nothing here starts a device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import made_runs
import pytest

from farm.cli import common, main, progress
from farm.cluster import ray_folder
from farm.errors import InfraError

ROOT = Path(__file__).resolve().parents[2]
MATRIX = """\
name: m
op: rms_norm
axes:
  shape: [{rows: 4, hidden: 64}]
  dtype: [float32, float16]
providers: [torch]
"""
NEAR = "did you mean "
#: Command line -> (exit code, parts of what is printed).
REFUSED: dict[str, tuple[list[str], list[str]]] = {
    # tried by people
    "two selects": (["plan", "m.yaml", "--select", "rows=5", "--select", "dtype=bf16"], ["[plan-select-nothing]"]),
    "a provider's file": (["plan", "m.yaml", "--provider", "p=okmod.py:ok"], [f"{NEAR}okmod:ok?"]),
    "a provider's path": (["plan", "m.yaml", "--provider", "p=./okmod.py:ok"], [f"{NEAR}okmod:ok?"]),
    "a provider's folder": (["plan", "m.yaml", "--provider", "p=src/okmod.py:ok"], [f"{NEAR}src.okmod:ok?"]),
    "exabytes": (
        ["plan", "m.yaml", "--set", "axes.shape[0].rows=1099511627776", "--set", "axes.shape[0].hidden=1073741824"],
        ["x alone has 4.7e+21 bytes", "[plan-tensor-too-big]"],
    ),
    "gpu": (["plan", "m.yaml", "--backend", "gpu"], [f'{NEAR}"cuda" or "rocm"?']),
    "NVIDIA": (["plan", "m.yaml", "--backend", "NVIDIA"], [f'{NEAR}"cuda"?']),
    "hip": (["plan", "m.yaml", "--backend", "hip"], [f'{NEAR}"rocm"?']),
    "CUDA": (["plan", "m.yaml", "--backend", "CUDA"], [f'{NEAR}"cuda"?']),
    "float8": (["plan", "m.yaml", "--set", "axes.dtype=float8_e4m3fn"], ["rms_norm supports float32"]),
    "fp8": (["plan", "m.yaml", "--set", "axes.dtype=fp8"], ["rms_norm supports float32"]),
    "int4": (["plan", "m.yaml", "--set", "axes.dtype=int4"], ["rms_norm supports float32"]),
    "BF16": (["plan", "m.yaml", "--set", "axes.dtype=BF16"], [f'{NEAR}"bfloat16"?']),
    "bf61": (["plan", "m.yaml", "--set", "axes.dtype=bf61"], [f'{NEAR}"bfloat16"?']),
    "no list": (["plan", "m.yaml", "--set", "axes.dtype=bf16, fp32"], ["a list is written [bf16, fp32]"]),
    "a long name": (["plan", "m.yaml", "--set", f"name={'a' * 500}"], ["1 to 80 letters"]),
    "an option of no farm": (["run", "--wach", "m.yaml"], ["farm run: ", "farm run --help"]),
    "a near option": (["run", "m.yaml", "--adress", "inline"], ["(did you mean --address?)", "farm run --help"]),
    "a short option": (["run", "m.yaml", "-v"], ["farm run: unrecognized arguments: -v", "farm run --help"]),
    "no name of a matrix": (["run", ""], ["the name is empty"]),
    "no name of a plan's matrix": (["plan", ""], ["the name is empty"]),
    "no store": (["run", "m.yaml", "--out", ""], ["[option-out-empty]"]),
    "a store of blanks": (["ls", "--out", " "], ["[option-out-empty]"]),
    "a file that is no plan": (["plan", "m.yaml", "--out", "okmod.py"], ["[plan-out-not-a-plan]"]),
    "a run's path": (["judge", "/path/of/a/run"], ["is a path", "ID of a run"]),
    "an entry that is not there": (["plan", "m.yaml", "--set", "axes.shape[99].rows=1"], ["1 entry, numbered from 0"]),
    # select
    "select a status": (["plan", "m.yaml", "--select", "status=failed"], ["--failed"]),
    "select no value": (["plan", "m.yaml", "--select", "rows>="], ["KEY=VALUE"]),
    "select no key": (["plan", "m.yaml", "--select", "=5"], ["KEY=VALUE"]),
    "select a near key": (["plan", "m.yaml", "--select", "row>=5"], [f'{NEAR}"rows"?']),
    "select an order of names": (["plan", "m.yaml", "--select", "provider<torch"], ["cannot be compared with <"]),
    "select too little": (["plan", "m.yaml", "--select", "rows>=5"], ["[plan-select-nothing]"]),
    "select no such shape": (["plan", "m.yaml", "--select", "shape=4"], ["[plan-select-nothing]"]),
    "select no such id": (["plan", "m.yaml", "--select", "id=cuda/*"], ["[plan-select-nothing]"]),
    "select of nothing": (["plan", "m.yaml", "--select", ","], ["KEY=VALUE"]),
    "select emptily, then not": (["plan", "m.yaml", "--select", "", "--select", "rows=4"], ["KEY=VALUE"]),
    # run
    "nothing to run": (["run"], ["[run-nothing-named]"]),
    "nothing to run, without a subject": (["run"], ["no subject is found here or named", "farm init"]),
    "failed cells of no run": (["run", "--failed"], ["has no runs; start one with farm run", "[store-run-unknown]"]),
    "failed cells of another run": (["run", "--failed", "r9"], ['no run matches "r9"']),
    "failed cells of a plan": (["run", "--failed", "r1", "--plan", "p", "--out", "store"], ["[run-failed-with-plan]"]),
    "write no kind": (["run", "m.yaml", "--write", "report.xml"], ["KIND=FILE"]),
    "write another kind": (["run", "m.yaml", "--write", "html=report.html"], ["junit, markdown, json, csv"]),
    "write to a folder": (["run", "m.yaml", "--write", "junit=."], ["[option-write-unwritable]"]),
    "write nowhere": (["run", "m.yaml", "--write", "junit=no/such/f.xml"], ["[option-write-unwritable]"]),
    "write twice": (["run", "m.yaml", "--write", "csv=f", "--write", "json=f"], ["[option-write-twice]"]),
    "an address without a port": (["run", "m.yaml", "--address", "head"], ["[address-malformed]"]),
    "an address that is a URL": (["run", "m.yaml", "--address", "http://h:1"], ["[address-malformed]"]),
    "minus one device": (["run", "m.yaml", "--devices", "-1"], ["[option-devices-range]"]),
    "half a device": (["run", "m.yaml", "--devices", "0.5"], ["farm run: ", "--devices"]),
    "an id with a path": (["run", "m.yaml", "--run-id", "../a"], ["[option-run-id-invalid]"]),
    "two plans": (["run", "m.yaml", "--plan", "p", "--target", "cpu"], ["MATRIX would change the plan"]),
    "watch on a cluster": (["run", "m.yaml", "--watch", "--address", "h:6379"], ["[watch-address]"]),
    "watch with an id": (["run", "m.yaml", "--watch", "--run-id", "a"], ["[watch-with]"]),
    "watch a plan": (["run", "--watch", "--plan", "p", "--target", "cpu"], ["[watch-with]"]),
    "watch what failed": (["run", "--watch", "--failed"], ["[watch-with]"]),
    "watch no matrix": (["run", "--watch"], ["[run-nothing-named]"]),
    "watch a matrix that is not there": (["run", "--watch", "no.yaml"], ["no.yaml"]),
    # plan
    "a function that is not there": (["plan", "m.yaml", "--provider", "p=okmod:no"], ["[shipping-provider-function]"]),
    "a module of a module": (["plan", "m.yaml", "--provider", "p=okmod.a:ok"], ["[shipping-provider-not-a-package]"]),
    "a provider without a function": (["plan", "m.yaml", "--provider", "p=okmod"], ["[shipping-provider-form]"]),
    "a provider twice": (
        ["plan", "m.yaml", "--provider", "p=okmod:ok", "--provider", "p=okmod:ok"],
        ["[option-provider-twice]"],
    ),
    # repro
    "repeat nothing": (["repro"], ["CELL"]),
    "repeat of no store": (["repro", "x"], ["[store-run-unknown]"]),
    "repeat of no run": (["repro", "x", "--run", "r9", "--out", "store"], ['no run matches "r9"']),
    "repeat an unknown cell": (["repro", "cpu/rms_norm/farm/auto/forward/fp23/4x64", "--out", "store"], [NEAR]),
    "repeat several cells": (["repro", "cpu/", "--out", "store"], ["[show-cell-ambiguous]"]),
    "repeat to a folder": (
        ["repro", "cpu/rms_norm/torch/auto/forward/fp32/4x64", "--out", "store", "-o", "."],
        ["[repro-unwritable]"],
    ),
    # show, ls, compare, export
    "show nothing": (["show"], ["CELL"]),
    "show of no store": (["show", "x"], ["[store-run-unknown]"]),
    "show a cell of no run": (["show", "x", "--run", "r9", "--out", "store"], ['no run matches "r9"']),
    "show an unknown cell": (["show", "cpu/rms_norm/farm/auto/forward/fp23/4x64", "--out", "store"], [NEAR]),
    "show several cells": (["show", "cpu/", "--out", "store"], ["[show-cell-ambiguous]"]),
    "show a run's folder": (["show", "x", "--run", "elsewhere/runs/r1", "--out", "store"], ["[store-run-path]"]),
    "show minus one line": (["show", "x", "--log-lines", "-1", "--out", "store"], ["[option-number-range]"]),
    "list nothing": (["ls", "--limit", "0"], ["[option-number-range]"]),
    "list a matrix": (["ls", "m.yaml"], ["farm ls: unrecognized arguments: m.yaml"]),
    "compare one run": (["compare", "r1", "--out", "store"], ["B"]),
    "compare with none": (["compare", "r1", "r2", "--out", "store"], ['no run matches "r2"']),
    "compare an unclear run": (["compare", "", "r1", "--out", "store"], []),
    "export a kind": (["export", "html", "r1", "--out", "store"], ["invalid choice"]),
    "export nowhere": (["export", "csv", "r1", "--to", "no/f", "--out", "store"], ["[export-unwritable]"]),
    "export of no run": (["export", "csv", "r9", "--out", "store"], ['no run matches "r9"']),
    # the rest
    "no command": ([], ["COMMAND"]),
    "another command": (["rnu", "m.yaml"], ["rnu"]),
    "a command of another tool": (["run", "m.yaml", "--", "-x"], ["-x"]),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FARM_STORE", "FARM_ADDRESS", "RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_folder.procfs, "command_lines", list)

    def start(*args: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("farm.cluster.ray_cluster.RayCluster", start)
    monkeypatch.setattr("farm.cli.run_command.InlineCluster", start)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(MATRIX)
    (tmp_path / "okmod.py").write_text("def ok(x, weight, eps):\n    return x\n")
    return tmp_path


def end(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as code:
        return int(str(code.code))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_sentence_that_says_what_to_do(
    name: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words, parts = REFUSED[name]
    if "store" in words:
        made_runs.make(here / "store", "r1")
    capfd.readouterr()
    if words[:1] == ["compare"] and "" in words:
        assert end(words) in (0, 2)  # the empty prefix of a store with one run is that run
        return
    before = sorted(p for p in here.rglob("*"))
    assert end(words) == 2
    said = capfd.readouterr()
    assert said.out == "" and said.err.startswith("farm") and said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err and said.err[:-1].isprintable() and len(said.err) < 1500
    assert [part for part in parts if part not in said.err] == [], said.err
    assert sorted(p for p in here.rglob("*")) == before, "nothing is left behind"


def test_the_table_is_long_enough() -> None:
    assert len(REFUSED) >= 60


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        (["--backend", "cpu", "--backend", "sim"], 4),
        (["--backend", "cpu,sim", "--backend", "cpu"], 4),
        (["--select", "rows<5"], 2),
        (["--select", "rows=<5"], 2),
        (["--select", "rows>=4", "--select", "rows<=4,dtype!=fp16"], 1),
        (["--select", "shape=4x64", "--select", "id=*/fp32/*"], 1),
        (["--select", " rows >= 4 , dtype = fp16 "], 1),
    ],
)
def test_a_command_line_that_is_right(words: list[str], cells: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert end(["plan", "m.yaml", *words]) == 0
    assert sum("rms_norm/torch" in line for line in capsys.readouterr().out.splitlines()) == cells


def test_a_plan_reports_a_module_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert end(["plan", "m.yaml", "--provider", "p=elsewhere:f"]) == 0
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "[shipping-provider-module]" in said.err and "rms_norm/p/" in said.out


def test_a_plan_may_replace_a_plan(here: Path) -> None:
    (here / "empty").touch()
    assert end(["plan", "m.yaml", "--out", "p"]) == end(["plan", "m.yaml", "--out", "p"]) == 0
    assert end(["plan", "m.yaml", "--out", "empty"]) == 0


def test_a_provider_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def denied(paths: Any) -> None:
        raise PermissionError(13, "Permission denied", "okmod.py")

    monkeypatch.setattr(common.shipping, "pack", denied)
    assert end(["plan", "m.yaml", "--provider", "p=okmod:ok", "--json"]) == 2
    said = capsys.readouterr().err
    assert "[option-provider-unreadable]" in said and "okmod.py cannot be read (Permission denied)" in said


def test_a_module_beside_the_providers_is_named() -> None:
    row = {"provider": "mine", "reason": "provider mine: No module named 'my_kernels'"}
    (hint,) = progress.not_sent([row, row, {**row, "reason": ""}], lambda module: module == "my_kernels")
    assert hint.startswith("my_kernels is in this folder") and "package" in hint
    assert progress.not_sent([row], lambda module: False) == []


def test_nodes_without_a_cluster_do_not_name_inline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from farm.cluster import connect

    def refused(address: str) -> None:
        raise InfraError(f"--address auto: Ray did not answer; check this host, {connect.WITHOUT_RAY}", id="connect-x")

    monkeypatch.setattr("farm.cluster.registry_client.RegistryClient", refused)
    assert end(["nodes", "--address", "auto"]) == 3
    said = capsys.readouterr().err
    assert "inline" not in said and "farm nodes head" in said and "[connect-x]" in said


def test_too_many_cells_name_a_backend_that_anybody_has(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, seeds = (",".join(map(str, range(1, n))) for n in (1100, 1002))
    (here / "m.yaml").write_text(MATRIX.replace("rows: 4", f"rows: [{rows}]"))
    assert end(["plan", "m.yaml", "--set", f"axes.seed=[{seeds}]"]) == 2
    assert "(here cpu)" in capsys.readouterr().err


SCRIPT = "import sys; from farm.cli import main; sys.exit(main(sys.argv[1:]))"


def run(words: list[str], cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True, **more
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output(here: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(["plan", "m.yaml"], here, stdout=full)
    assert done.returncode == 3 and "[cli-output-unwritable]" in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_that_is_gone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "cwd", gone)
    assert end(["plan", "m.yaml"]) == 2
    assert capsys.readouterr().err == (
        "farm: the working folder does not exist any more; change to another folder [cli-folder-gone]\n"
    )
