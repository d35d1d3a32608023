"""Known failures of real runs on simulated devices: exit code and verdict, never a status; kept with the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.store import Store

MATRIX = """name: norm
op: rms_norm
axes: {shape: [{rows: 4, hidden: [64, 128]}], dtype: float32}
providers: {farm: {mode: [auto, row_packed]}}
sim: {default: {time_us: 10}, rules: [{when: {mode: row_packed, hidden: 128}, signal: 11}]}
"""
KNOWN = "known:\n  - {match: {op: rms_norm, mode: row_packed, hidden: 128}, reason: r, owner: jane, until: %s}\n"


def run(*words: str) -> int:
    return main(
        ["run", "norm.yaml", "--backend", "sim", "--address", "inline", "--out", "st", "--no-page", "--devices", "1"]
        + list(words)
    )


def test_a_known_failure_passes_until_its_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("norm.yaml").write_text(MATRIX)
    Path("known.yaml").write_text(KNOWN % "2999-01-01")
    assert run("--run-id", "a", "-x") == 0, "it does not stop at a known one either"
    err = capfd.readouterr().err
    assert "1 known failure (owner: jane)" in err and "passed: exit 0" in err and "needs attention" not in err
    head, rows = Store("st").run("a").head, Store("st").run("a").rows
    assert sorted(r["status"] for r in rows) == ["crashed", "passed", "passed", "passed"]
    (kept,) = head["known"]
    assert (kept["state"], kept["count"], head["verdict"]) == ("covers", 1, "passed") and kept["owner"] == "jane"
    assert main(["judge", "a", "--out", "st", "--run-id", "b", "--no-page"]) == 0
    both = KNOWN % "2020-01-01" + KNOWN.replace("128", "64").partition("\n")[2] % "2999-01-01"
    Path("other.yaml").write_text(both)
    assert run("--run-id", "c", "--known", "other.yaml") == 1
    err = capfd.readouterr().err
    assert "other.yaml:2: this known failure expired on 2020-01-01" in err and "is fixed: 1 of its cells passed" in err
    assert "findings in 1 cell and 1 known failure that is fixed" in err
    assert json.loads((Path("st") / "runs" / "c" / "run.json").read_text())["exit_code"] == 1
    Path("known.yaml").write_text("knwon: []\n")
    assert run() == 2 and "known.yaml:1" in capfd.readouterr().err
