"""farm sweep on fakes: two phases, one distribution; what was interrupted goes on; what is finished is only shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.store import Store

SIM = {
    "default": {"time_us": 10, "noise": 0.001},
    "rules": [
        {"when": {"provider": "torch", "operation": "forward"}, "time_us": 15},
        {"when": {"provider": "quack", "mode": "tuned"}, "time_us": 8},
        {"when": {"provider": "farm", "mode": "row_packed"}, "time_us": 9},
    ],
}
WORDS = [
    "sweep",
    "rms_norm",
    "--seed",
    "a",
    "--count",
    "1",
    "--backend",
    "sim",
    "--address",
    "inline",
    "--devices",
    "1",
]
WORDS += ["--peers", "torch,quack", "--no-page", "--json", "--set", f"sim={json.dumps(SIM)}"]


def test_a_sweep_runs_both_phases_goes_on_and_is_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, "--limit-minutes", "0.003"]) == 3  # nothing could finish; on a slow host, not even begin
    cut = json.loads(capsys.readouterr().out or '{"complete": false, "runs": []}')
    assert not cut["complete"]
    assert main([*WORDS, "--picture", "p.svg"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["complete"] and len(found["runs"]) == 2 and cut["runs"] in ([], found["runs"][:1])
    assert found["losses"] == found["compared"] == 3
    assert {(c["best"], c["mode"], c["again"]) for c in found["cells"]} == {("quack/tuned", "row_packed", True)}
    assert found["groups"][0]["mean"] == pytest.approx(0.8)
    assert (tmp_path / "p.svg").read_text().startswith("<svg xmlns=")
    runs = Store(tmp_path / "farm-results").runs()
    assert [r.id for r in runs] == found["runs"] and all(r.complete for r in runs)
    assert main(WORDS) == 0
    assert json.loads(capsys.readouterr().out) == found and len(Store(tmp_path / "farm-results").runs()) == 2
    assert main([*WORDS, "--run-id", found["runs"][0], "--count", "2"]) == 2  # another sweep has this name
