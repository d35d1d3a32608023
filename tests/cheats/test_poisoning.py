"""What is right cannot be rewritten: whatever code under test wrote in an earlier run, later verdicts are the same."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:  # not imported here: other tests of this process must import it first
    pytest.skip("torch is not installed", allow_module_level=True)
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "fake")]

from farm_process import FarmRun  # noqa: E402

from farm.child import confinement  # noqa: E402

POISONS = (Path(__file__).parent / "poisons.py").read_text(encoding="utf-8")
SLOW = ("reference", "inputs", "folder", "link", "meanwhile", "judges")
MATRIX = {
    "name": "poisoned",
    "op": "rms_norm",
    # the second with arrays of more than a megabyte: those are not in a judge's plain memory
    "axes": {
        "shape": [{"rows": 10, "hidden": 300}, {"rows": 700, "hidden": 400}],
        "dtype": ["float32"],
        "operation": ["no-grad-forward"],
    },
    "providers": ["torch"],
}


def a_run(folder: Path, **providers: str) -> FarmRun:
    words = [w for name, function in providers.items() for w in ("--provider", f"{name}=poisons:{function}")]
    run = FarmRun(folder, json.dumps(MATRIX), (*words, "--no-page", "--devices", "1"), backend="cpu")
    (folder / "poisons.py").write_text(POISONS, encoding="utf-8")
    return run


@pytest.mark.parametrize("attack", ["manifest", *(pytest.param(name, marks=pytest.mark.long) for name in SLOW)])
def test_no_later_run_passes_what_is_wrong_nor_accuses_what_is_right(tmp_path: Path, attack: str) -> None:
    """Three ways that a review took, and others: a later run passed a kernel that is 1 % wrong, with exit code 0."""
    first = a_run(tmp_path, right="right", poison=attack)
    later = a_run(tmp_path, right="right", wrong="wrong")
    for run in (first, later):
        run.environment["FARM_ATTACKED"] = f"{first.run_id} {later.run_id}"
    try:
        assert first.start().wait() in (1, 3), first.said()
        rows = [r for r in first.rows() if r["provider"] == "poison"]
        assert {r["status"] for r in rows} == {"crashed"}, rows
        told = [json.JSONDecoder().raw_decode(r["reason"].partition("did ")[2])[0] for r in rows]
        assert_tried(attack, told)
        assert later.start().wait() == 1, later.said()
        seen = {(r["provider"], r["status"]) for r in later.rows()}
        assert seen == {("right", "passed"), ("torch", "passed"), ("wrong", "inaccurate")}
    finally:
        first.end()
        later.end()


def assert_tried(attack: str, told: list[Any]) -> None:
    """That the attack did what it could, or the test would show nothing."""
    if attack != "judges":
        assert any(did if not isinstance(did, list) else any(did) for did in told), told
        return
    assert all("found" in did for did in told) and not any(": " in word for did in told for word in did), told
    if not confinement.refusal():
        assert all("mem" not in did for did in told), told
    if confinement.version() >= confinement._SCOPE_SINCE:
        assert all(did == ["found"] for did in told), told
