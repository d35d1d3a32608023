"""The page is built while devices and Ray end, from what is on disk by then; what it has to report waits its turn."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_cluster import ScriptedCluster, run, slot

from farm import utilisation
from farm.cli import common
from farm.store import Store

ARGS = argparse.Namespace(command="run", out=None)


def test_what_building_reports_is_printed_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks(store: Any, run_id: str, lacking: Callable[[int], None]) -> Path:
        lacking(7)
        return tmp_path / "page.html"

    monkeypatch.setattr(common, "_page", lacks)
    for begun in (True, False):  # of an interrupted run it is built only now
        ahead = common.PageAhead(Store(tmp_path), "r")
        if begun:
            ahead.start()
            assert ahead._thread is not None
            ahead._thread.join()
        assert capsys.readouterr().err == ""
        common.tell_page(ARGS, Store(tmp_path), "r", ahead)
        said = capsys.readouterr().err
        assert "7 older runs are not in the index" in said and said.endswith(f"page: {tmp_path}/page.html\n")


def test_a_failure_to_build_it_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(common, "_page", fails)
    ahead = common.PageAhead(Store(tmp_path), "r")
    ahead.start()
    common.tell_page(ARGS, Store(tmp_path), "r", ahead)
    assert "the page cannot be written (No space left on device)" in capsys.readouterr().err


def test_a_complete_run_is_announced_with_its_files_and_before_its_devices_go(tmp_path: Path) -> None:
    seen: list[str] = []

    class Closing(ScriptedCluster):
        def close(self) -> None:
            seen.append("closed")

    def complete() -> None:
        found = Store(tmp_path / "store").run("run")
        assert found.complete and len(found.rows) == 3
        seen.append("complete")

    run(tmp_path, Closing(), [slot("cuda:0")], complete=complete)
    assert seen == ["complete", "closed"]


def test_utilisation_is_in_the_runs_head_and_adds_up(tmp_path: Path) -> None:
    spent = {"spent": {"start": 0.001}}
    outcome, _, _ = run(tmp_path, ScriptedCluster({"cuda:0": spent}), [slot("cuda:0"), slot("cuda:1")])
    head = Store(tmp_path / "store").run("run").head
    assert utilisation.read(head) == outcome.utilisation
    for device in outcome.utilisation["devices"].values():
        assert sum(device["parts"].values()) == pytest.approx(outcome.utilisation["seconds"])
    parts = outcome.utilisation["devices"]["cuda:0"]["parts"]
    assert parts["start"] in (0.0, 0.001)  # no more than the whole run took
    assert parts["tail"] + parts["place"] > 0
