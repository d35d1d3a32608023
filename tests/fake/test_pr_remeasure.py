"""`farm pr --remeasure` over a store of simulated comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.cli import main
from farm.store import Store


@pytest.mark.long
def test_verdicts_are_measured_again_and_a_wrong_one_is_overturned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)

    def script(slow: int) -> None:
        data = {
            "name": "m",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": [64, 65]}], "dtype": "float32"},
            "providers": ["farm"],
            "sim": {
                "default": {"time_us": 10, "noise": 0.01, "process_noise": 0.004},
                "rules": [{"when": {"hidden": slow, "arm": "b"}, "time_us": 12}],
            },
        }
        Path("m.yaml").write_text(json.dumps(data))

    script(65)
    out = ["--out", "st", "--address", "inline"]
    words = ["ab", "m.yaml", "--a", "env.X=1", "--b", "env.X=2", "--backend", "sim", "--devices", "1", "--no-page"]
    assert main([*words, "--run-id", "r", *out]) == 1
    script(64)  # the planted fault: the devices say another thing now
    capsys.readouterr()
    assert main(["pr", "--remeasure", "1", "--seed", "5", *out]) == 1
    told = capsys.readouterr()
    assert "2 of 2 verdicts overturned; at most 100.0 %" in told.out and "drawn by --seed 5" in told.err
    assert len(Store("st").runs()) == 2
    script(65)
    assert main(["pr", "--remeasure", "0.5", "--seed", "5", *out]) == 0  # of the first run alone
    assert "0 of 1 verdicts overturned; at most 95.0 %" in capsys.readouterr().out
