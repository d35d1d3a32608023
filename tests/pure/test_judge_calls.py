"""Several calls of one cell: what is stored is of the worse, so a verdict from it is of all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.accuracy import tolerances
from farm.cell import Cell
from farm.child.findings import REMEMBERED
from farm.contracts.discovery import contract
from farm.judge.judge import Judge, _both

GATES = {"y": {"max_ulp": 2.0, "rel_l2": 1e-3}}


def said(max_ulp: float, rel_l2: float, row: int = 0) -> dict[str, Any]:
    metrics = {"y": {"max_ulp": max_ulp, "rel_l2": rel_l2, "worst_row": row}}
    found = tolerances.verdict(metrics, GATES)
    return {
        "status": "passed" if found.ok else "inaccurate",
        "owner": None if found.ok else "kernel",
        "reason": "" if found.ok else "y: too far",
        "metrics": metrics,
        "gates": GATES,
        "output_hash": f"{row}",
        "worst_output": found.worst_output,
        "worst_metric": found.worst_metric,
        "worst_ratio": found.worst_ratio,
    }


def test_both_right_gives_the_worse_numbers() -> None:
    found = _both(said(1.0, 9e-4, 3), said(1.5, 1e-4, 5), "in a timed launch")
    assert (found["status"], found["reason"], found["output_hash"]) == ("passed", "", "3")
    assert found["metrics"] == {"y": {"max_ulp": 1.5, "rel_l2": 9e-4, "worst_row": 5}}
    assert found["worst_metric"] == "rel_l2" and found["worst_ratio"] == pytest.approx(0.9)


def test_a_wrong_second_call_decides_and_stored_numbers_say_so_again() -> None:
    found = _both(said(1.0, 9e-4), said(5.0, 1e-4, 7), "in a timed launch")
    assert (found["status"], found["owner"]) == ("inaccurate", "kernel")
    assert found["reason"] == "in a timed launch: y: too far" and found["worst_ratio"] == 2.5
    assert not tolerances.verdict(found["metrics"], found["gates"]).ok


def test_a_second_call_without_numbers_decides_too() -> None:
    layout = {"status": "inaccurate", "owner": "kernel", "reason": "output y has shape [1]"}
    found = _both(said(1.0, 9e-4), layout, "in a timed launch")
    assert found == {**layout, "reason": "in a timed launch: output y has shape [1]"}


def test_outputs_of_a_further_round_are_known_by_their_bits_and_else_judged_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = contract("rms_norm")
    dtypes, parameters = dict.fromkeys(("x", "weight"), "float32"), {p.name: p.default for p in op.parameters}
    shape = [4, 64]
    cell = Cell("sim", "rms_norm", "torch", "auto", "forward", dtypes, {"rows": 4, "hidden": 64}, parameters)
    given = replace(cell, index=0).to_dict()
    judge = Judge(str(tmp_path / "spool"), 1, cache=str(tmp_path / "cache"))
    compared: list[str] = []
    stock = Judge._compare

    def counted(self: Judge, cell: Cell, described: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        compared.append(Path(described[0]["path"]).name)
        return stock(self, cell, described, request)

    monkeypatch.setattr(Judge, "_compare", counted)
    try:
        right = op.reference(judge._inputs(cell).arrays, cell, (0, 4))["y"].astype(np.float32)
        made = {"right": right, "near": np.nextafter(right, np.float32(9)), "wrong": right * np.float32(1.1)}
        at: dict[str, list[dict[str, Any]]] = {}
        for name, values in made.items():
            values.tofile(tmp_path / name)
            at[name] = [{"name": "y", "dtype": "float32", "shape": shape, "path": str(tmp_path / name)}]

        def asked(outputs: str, **more: Any) -> tuple[str, list[str]]:
            compared.clear()
            found = judge.judge({"cell": given, "outputs": at[outputs], **more})
            assert found["judged_by"] and (found["status"] != "passed" or found["output_hash"])
            return found["status"], list(compared)

        known = judge.judge({"cell": given, "outputs": at["right"]})["output_hash"]
        assert asked("right", known=known) == ("passed", [])
        assert asked("right", known="") == ("passed", ["right"])
        assert asked("near", known=known) == ("passed", ["near"])
        assert asked("wrong", known=known) == ("inaccurate", ["wrong"])
        assert asked("right", known=known, timed_outputs=at["wrong"]) == ("inaccurate", ["right", "wrong"])
        assert asked("right", known=known, timed_outputs=at["right"]) == ("passed", [])
        assert asked("right", known=known, others=[{"outputs": at["wrong"], "where": "x"}])[0] == "inaccurate"
        assert asked("right", known=known, flags=["patched time.perf_counter"])[0] == "inaccurate"
        # where an answer is wrong comes before what timed launches showed; any other finding speaks alone
        place = judge.judge({"cell": given, "outputs": at["wrong"]})["reason"]
        for outputs, flag, words in (
            ("wrong", REMEMBERED, f"{place}; and the provider {REMEMBERED}"),
            ("right", REMEMBERED, f"the provider {REMEMBERED}"),
            ("wrong", "patched time.perf_counter", "the provider patched time.perf_counter"),
        ):
            found = judge.judge({"cell": given, "outputs": at[outputs], "flags": [flag], "known": known})
            assert (found["status"], found["owner"], found["reason"]) == ("inaccurate", "kernel", words)
        assert place.startswith("y: ")
        at["right"][0]["shape"] = [64, 4]  # the same bytes
        assert asked("right", known=known)[0] == "inaccurate"
        at["right"][0]["path"] = str(tmp_path)
        at["right"][0]["shape"] = shape
        assert asked("right", known=known)[0] == "crashed"
    finally:
        judge.clean()
