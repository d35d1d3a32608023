"""Every wrong kernel of unfriendly inputs through `farm run` itself: each ends `inaccurate`, and nothing else does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from farm_command import FarmCommand

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "tests" / "mutants"


@pytest.mark.soak(seconds=150)
def test_wrong_kernels_of_unfriendly_inputs_are_inaccurate(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sys.path.insert(0, str(MUTANTS))
    try:
        import wrong_unfriendly as wrong
    finally:
        sys.path.remove(str(MUTANTS))
    for name in ("wrong_unfriendly.py", "norm_steps.py"):
        shutil.copy(MUTANTS / name, tmp_path)
    providers = {**{f"rms_norm:{n}": n for n in wrong.RMS}, **{f"fused_add_rms_norm:{n}": n for n in wrong.FUSED}}
    providers |= {"rms_norm:right": "right", "fused_add_rms_norm:right_fused": "right_fused"}
    words = [w for key, name in providers.items() for w in ("--provider", f"{key}=wrong_unfriendly:{name}")]
    select = f"provider={'|'.join(providers.values())},dtype=bfloat16"
    at = ("--backend", "cpu", "--address", "inline", "--no-page", "--out", str(tmp_path / "store"), "--run-id", "wrong")
    matrix = str(ROOT / "matrices" / "unfriendly.yaml")
    run = FarmCommand(tmp_path, tmp_path / "store", "wrong", "run", matrix, *words, "--select", select, *at)
    try:
        assert run.start().wait(1800) == 1, run.said()[-4000:]
    finally:
        run.end()
    found = {name: {r["status"] for r in run.rows() if r["provider"] == name} for name in providers.values()}
    assert [n for n in (*wrong.RMS, *wrong.FUSED) if "inaccurate" not in found[n]] == []
    assert found["right"] == found["right_fused"] == {"passed", "skipped"}
    assert {s for statuses in found.values() for s in statuses} <= {"passed", "inaccurate", "skipped"}
