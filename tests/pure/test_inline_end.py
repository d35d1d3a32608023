"""How an inline run ends: what takes long ends together, and beside what the run still writes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from farm.cluster import inline
from farm.store import tables


@pytest.mark.parametrize("ahead", [True, False])
def test_devices_and_judges_end_together_once_all_is_judged_and_else_the_judges_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    ended: list[tuple[str, bool]] = []  # what, and whether the run's folder was still there
    folder, together, written = tmp_path / "spool", threading.Barrier(3 if ahead else 2), threading.Event()
    folder.mkdir()

    class Ends:
        spool = str(folder)

        def __init__(self, name: str) -> None:
            self.name = name

        def end(self) -> None:
            if ahead or self.name != "judges":
                together.wait(30)  # BrokenBarrierError where one waits for another's end
            assert not ahead or written.wait(30), "the run goes on to write its tables"
            ended.append((self.name, folder.exists()))

        stop = close = end

    monkeypatch.setattr(inline, "spool_folder", lambda run_id: str(folder))
    monkeypatch.setattr(inline, "LocalJudges", lambda spool: Ends("judges"))
    cluster = inline.InlineCluster(2, "r")
    actors: Any = {f"cuda:{n}": Ends(f"cuda:{n}") for n in range(2)}
    cluster._actors = actors
    if ahead:
        cluster.wind_down()
        assert cluster.events(0.0) == [] and not ended
        written.set()
    cluster.close()
    names = [name for name, _ in ended]
    assert sorted(names) == ["cuda:0", "cuda:1", "judges"] and all(there for _, there in ended)
    assert ahead or names[-1] == "judges", "a device may wait for one until it is stopped"
    assert not folder.exists()


def test_what_writes_tables_is_loaded_beside_the_start_only_where_a_core_is_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables.sys, "modules", {})
    loaded: list[str] = []
    monkeypatch.setattr(tables, "_load", lambda: loaded.append(threading.current_thread().name))
    for cores in (tables.LOAD_CORES - 1, tables.LOAD_CORES):
        monkeypatch.setattr(tables.os, "cpu_count", lambda cores=cores: cores)
        tables.load_ahead()
    for thread in threading.enumerate():
        if thread.name == "tables":
            thread.join()
    assert loaded == ["tables"]
