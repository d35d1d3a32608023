"""`farm confirm` on simulated devices: the nights' step is measured in both arms, and what was found is kept."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.cli.main import main
from farm.dashboards import views
from farm.matrix import cells, load
from farm.store import Store, confirmations, index
from farm.store.results import COLUMNS, SCHEMA, planned_row
from farm.store.run_writer import SAMPLE_COLUMNS
from farm.store.tables import write_table

MATRIX = """name: norm
op: rms_norm
axes: {{shape: [{{rows: 4, hidden: [64, 128, 256]}}], dtype: float32}}
providers: {{farm: {{mode: [auto, row_packed]}}}}
timing: {{method: events, max_seconds: 0.1}}
sim: {{default: {{time_us: 100, noise: 0.001}}, rules: [{{when: {{arm: b, mode: row_packed}}, time_us: {us}}}]}}
"""
NIGHTS, SLOW = 9, 7


def nights(store: Path) -> None:
    """Nine nights; in the last two, `row_packed` is 8 % slower, with another revision each."""
    rng = np.random.default_rng(1)
    for night in range(NIGHTS):
        created = datetime(2026, 10, 1 + night, 2, tzinfo=timezone.utc)
        folder = store / "runs" / f"{created:%Y%m%dT%H%M%SZ}-n{night}"
        folder.mkdir(parents=True)
        rows = []
        for cell in cells(load("norm.yaml"), ["sim"]):
            slow = 1.08 if night >= SLOW and cell.mode == "row_packed" else 1.0
            us = 100 * slow * float(np.exp(rng.normal(0, 0.003)))
            row: dict[str, Any] = {**planned_row(cell), "index": len(rows), "status": "passed", "reason": ""}
            row |= {"evidence": "simulated", "target": "sim:sim-1", "device": "sim:0", "node": "n", "fingerprint": "{}"}
            rows.append(row | {"time_us_p50": us, "timing_method": "events", "timing_quality": "ok"})
        write_table(folder / "cells.parquet", rows, COLUMNS)
        write_table(folder / "samples.parquet", [], SAMPLE_COLUMNS)
        (folder / "journal.jsonl").write_text("")
        head = {"schema": SCHEMA, "run_id": folder.name, "created": created.isoformat(), "plan_hash": "p", "planned": 6}
        head |= {"matrices": [{"name": "norm", "path": "norm.yaml"}], "revision": {"commit": f"{night:040x}"}}
        head |= {"backends": {}, "verdict": "passed", "exit_code": 0, "finished": str(created + timedelta(hours=1))}
        (folder / "run.json").write_text(json.dumps(head))


def confirm(*words: str) -> int:
    arms = ["--a", "env.X=a", "--b", "env.X=b"]
    return main(["confirm", *arms, "--backend", "sim", "--address", "inline", "--devices", "1", "--out", "st", *words])


@pytest.mark.soak(seconds=40)
@pytest.mark.parametrize(("us", "code", "word"), [(108, 1, "confirmed"), (100, 0, "not confirmed")])
def test_a_step_of_the_nights_is_measured_in_turn_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], us: int, code: int, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("norm.yaml").write_text(MATRIX.format(us=us))
    nights(Path("st"))
    before = views.newest(index.opened(Store("st")))
    assert before and [(n.word, len(n.rows)) for n in before.nights.news] == [("regression", 3)]
    assert confirm() == code
    out, err = capfd.readouterr()
    assert f"{word}: exit {code}; st/confirmations/" in err and f"slower, {word}: env.X=a .." in out
    (record,), bad = confirmations.read(Path("st"))
    assert not bad and record["verdict"] == word and len(record["cells"]) == 3
    assert {c["verdict"] for c in record["cells"]} == {word}
    assert all(c["low"] <= c["ratio"] <= c["high"] for c in record["cells"])
    after = views.newest(index.opened(Store("st")))
    assert after is not None
    (news,) = after.nights.news
    told = "confirmed regression" if code else "regression, not confirmed"
    assert news.word == told and news.to_dict()["confirmed"] == word
    assert (news.commits is None) == (code == 0), "a commit that rounds have cleared is not accused"
    assert confirm() == 0 and "nothing to confirm" in capfd.readouterr().out, "it is done"
    assert confirm("--cell", "sim/none") == 0
    assert main(["confirm", "--a", "mode=auto", "--out", "st"]) == 2
