"""`farm repro`: what is refused, what a script is made of; tests/fake/test_repro_scripts.py runs scripts."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import made_runs
import pytest

from farm.cli import main
from farm.report import repro
from farm.store.run_reader import Run

CELL = "cpu/rms_norm/farm/auto/forward/fp32/4x64/llama"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain\n",
        "'''",
        '"""',
        "ends with a quote'",
        "ends with \\",
        "\\n \\x41",
        "\r\n",
        "\0",
        "é ＃",
        "'''\\'''",
        "\t",
    ],
)
def test_a_text_and_its_literal_are_the_same(text: str) -> None:
    assert ast.literal_eval(repro.literal(text)) == text and repro.literal(text).isascii()


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["repro", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_script_carries_modules_and_facts_and_nothing_that_ends_its_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = 'y: """ and \\ and \x1b[31m and ü\n# a line'
    made_runs.make(tmp_path, "r", lambda cell: {"status": "inaccurate", "reason": hostile})
    code, out, err = told(capsys, CELL, "--out", tmp_path)
    assert (code, err) == (0, "") and out.isascii() and len(out) < repro.MAX_BYTES
    assert [line for line in out.split("\n") if not line.isprintable()] == []
    parsed = ast.parse(out)
    values = {n.targets[0].id: n.value for n in parsed.body if isinstance(n, ast.Assign)}  # type: ignore[attr-defined]
    sources = ast.literal_eval(values["SOURCES"])
    assert {"farm", repro.MAIN, "farm.contracts.ops.rms_norm.contract", "farm.providers.farm"} <= set(sources)
    for name, (package, text) in sources.items():
        place = Path(__file__).resolve().parents[2].joinpath(*name.split("."))
        file = place / "__init__.py" if package else place.with_suffix(".py")
        assert file.read_text(encoding="utf-8") == text
    given = json.loads(ast.literal_eval(values["GIVEN"].args[0]))  # type: ignore[attr-defined]
    assert given["verdict"]["reason"] == hostile and given["cell"]["cell_id"] == CELL
    assert "import ray" not in out


@pytest.mark.parametrize(
    ("row", "id"),
    [
        ({"status": "lost"}, "repro-not-run"),
        ({"status": "infra_error", "reason": "x"}, "repro-not-run"),
        ({"status": "passed", "evidence": "simulated"}, "repro-not-run"),
    ],
)
def test_a_cell_that_no_script_can_repeat(
    row: dict[str, Any], id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_runs.make(tmp_path, "r", lambda cell: row)
    code, out, err = told(capsys, CELL, "--out", tmp_path)
    assert (code, out) == (2, "") and f"[{id}]" in err and err.count("\n") == 1


def test_an_arm_of_a_comparison_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make(tmp_path, "r", argv=["ab", "m.yaml", "--stage-0"])
    code, out, err = told(capsys, CELL, "--out", tmp_path)
    assert (code, out) == (2, "") and "[repro-arm]" in err and err.count("\n") == 1


def test_what_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_runs.make(tmp_path, "r")
    assert "did you mean" in told(capsys, CELL.replace("fp32", "fp23"), "--out", tmp_path)[2]
    code, _, err = told(capsys, CELL, "--out", tmp_path, "-o", tmp_path / "no" / "r.py")
    assert code == 2 and "[repro-unwritable]" in err
    changed = [of_another_contract(c) for c in Run(tmp_path / "runs" / "r").cells()]
    monkeypatch.setattr(Run, "cells", lambda self: changed)
    assert "[repro-contract-changed]" in told(capsys, CELL, "--out", tmp_path)[2]


def of_another_contract(cell: Any) -> Any:
    from dataclasses import replace

    return replace(cell, contract_version=99)


def test_a_file_beside_the_script_stands_in_the_way_of_no_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_runs.make(tmp_path, "r")
    _, out, _ = told(capsys, CELL, "--out", tmp_path)
    body = out.partition("\ndef main(words):")[2].partition("    try:")[0]  # up to its first import
    (tmp_path / "numpy.py").touch()
    (tmp_path / "script.py").write_text(
        "import os, sys\nVARIABLES = {}\nclass Carried:\n    def find_spec(self, *given): ...\n"
        f"\ndef main(words):{body}\nmain([])\n"
        "import importlib.util\nfound = importlib.util.find_spec('numpy')\n"
        "print(found.origin if found else 'none')\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", str(tmp_path / "script.py")], capture_output=True, text=True, check=True
    )
    assert str(tmp_path) not in done.stdout
