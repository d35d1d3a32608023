"""`farm compile` refuses what cannot be done in one sentence, before anything starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.cli import compile as compile_cli
from farm.cli import main
from farm.compile import ascend_environment, cache
from farm.compile import run as compile_run
from farm.store import Store

MATRIX = "name: m\nop: rms_norm\naxes: {shape: [{rows: 4, hidden: 64}]}\nproviders: [farm, torch]\n"


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    (tmp_path / "m.yaml").write_text(MATRIX)
    return str(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "[compile-matrix-missing]"),
        (
            ["{matrix}"],
            "sm_80, sm_86, sm_89, sm_90, sm_100, sm_103, sm_120, gfx942, gfx950, ascend910b [compile-target-missing]",
        ),
        (["{matrix}", "--target", "sm90"], 'did you mean "sm_90"?'),
        (["{matrix}", "--target", "sm_90", "--select", "provider=torch"], "[compile-peers-only]"),
        (["{matrix}", "--target", "sm_90", "--workers", "0"], "between 1 and 64"),
        (["{matrix}", "--target", "sm_90", "--run-id", "../x"], "is not valid as the name of a folder"),
        (["{matrix}", "--setup", "ascend"], "[compile-setup-with-more]"),
        (["{matrix}", "--target", "sm_90", "--provider", "mine=nowhere_at_all:f"], 'no module "nowhere_at_all"'),
    ],
)
def test_a_wrong_command_line(words: list[str], said: str, matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *(w.format(matrix=matrix) for w in words)]) == 2
    told = capsys.readouterr().err
    assert said in told and told.startswith("farm compile: ") and told.count("\n") == 1


def test_a_tool_chain_that_is_not_there_is_named_with_its_cure(
    matrix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(ascend_environment, "find", lambda: None)
    store = tmp_path / "store"
    assert main(["compile", matrix, "--target", "sm_90,ascend910b", "--out", str(store)]) == 2
    told = capsys.readouterr().err
    assert "--target ascend910b" in told and "farm compile --setup ascend" in told and told.count("\n") == 1
    assert not store.exists()


def test_why_nothing_was_built_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 4 alone sends whoever brought a kernel to the page."""
    row = {
        "status": "unsupported",
        "provider": "mine",
        "role": "subject",
        "evidence": "compiled",
        "backend": "cuda",
        "cell_id": "cuda/x@sm_90",
        "reason": "the call launches no Triton kernel",
        "resources": "",
        "log": "",
    }
    outcome: Any = SimpleNamespace(rows=[row], seconds=1.0, kernels={}, interrupted=False, exit_code=4)
    compile_cli._tell(argparse.Namespace(no_page=True), Store(tmp_path), "r", outcome)
    assert "  1 unsupported: mine: the call launches no Triton kernel\n" in capsys.readouterr().err


def test_cells_that_were_built_in_part_are_not_counted_as_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {
        "provider": "farm",
        "role": "subject",
        "evidence": "compiled",
        "backend": "cuda",
        "cell_id": "a/x@sm_90",
        "log": "",
        "owner": "",
        "reason": "",
    }
    rows = [{**common, "status": status, "resources": "[{}]"} for status in ("built", "built", "unsupported")]
    kernels = {("sm_90", "one"): {}, ("sm_90", "two"): {}, ("gfx942", "one"): {}}
    outcome: Any = SimpleNamespace(rows=rows, seconds=1.0, kernels=kernels, interrupted=False, exit_code=0)
    compile_cli._tell(argparse.Namespace(no_page=True), Store(tmp_path), "r", outcome)
    told = capsys.readouterr().err
    assert "sm_90: 2 kernels for 3 cells, 1 of them only partly built\n" in told
    assert "gfx942: 1 kernel for 0 cells\n" in told


def test_a_python_without_triton_is_told_before_the_run(
    matrix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_run, "find_spec", lambda name: None if name == "triton" else True)
    assert main(["compile", matrix, "--target", "gfx950"]) == 2
    assert "[compile-module-missing]" in capsys.readouterr().err


def test_setup_makes_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def setup(log: Any) -> None:
        log("making")

    monkeypatch.setattr(ascend_environment, "setup", setup)
    assert main(["compile", "--setup", "ascend"]) == 0
    assert capsys.readouterr().err == "making\n"


def test_a_store_that_has_the_run_is_refused(matrix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    writer = Store(tmp_path / "store").create("twice")
    writer.plan({}, [])
    writer.close()
    words = ["compile", matrix, "--target", "sm_90", "--out", str(tmp_path / "store"), "--run-id", "twice"]
    assert main(words) == 2
    assert "[store-run-exists]" in capsys.readouterr().err


def test_the_cache_is_kept_within_its_bound(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / "triton" / f"k{i}").mkdir(parents=True)
        (tmp_path / "triton" / f"k{i}" / "norm.cubin").write_bytes(bytes(1000))
    now = (tmp_path / "triton" / "k0").stat().st_mtime
    assert cache.trim(tmp_path, limit=2500, now=now) == 0  # all are in use
    assert cache.trim(tmp_path, limit=2500, now=now + 2 * cache.YOUNG_SECONDS) == 3
    assert len(list((tmp_path / "triton").iterdir())) == 2
    assert cache.trim(tmp_path / "absent") == 0


def test_a_cache_that_cannot_be_written_is_made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "file"))
    assert cache.folder(tmp_path / "other") == tmp_path / "other"
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "good"))
    assert cache.folder(tmp_path / "other") == tmp_path / "good" / "compile"
