"""`farm prune`: what stays, and why."""

from __future__ import annotations

import json
from pathlib import Path

import night_store
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cli.main import main
from farm.report.pruning import Old, reasons
from farm.store import Store, confirmations, lock


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 11), max_size=2)), max_size=12),
    st.integers(2, 5),
    st.sets(st.integers(0, 11), max_size=2),
)
def test_what_a_kept_run_needs_is_kept(made: list[tuple[int, list[int]]], nights: int, named: set[int]) -> None:
    """The law: the newest of each row stay, and what anything that stays refers to; every reason is a text."""
    runs = [
        Old(f"r{i:02}", f"{i:02}", (str(row),), tuple((f"r{u:02}", "was merged into") for u in uses))
        for i, (row, uses) in enumerate(made)
    ]
    fixed = {f"r{i:02}": "it is named" for i in named}
    kept = reasons(runs, nights, fixed, {})
    for run in runs:
        newer = sum(r.row == run.row and r.id > run.id for r in runs)
        needed = newer < nights or run.id in fixed
        needed |= any(r.id in kept and run.id in dict(r.uses) for r in runs)
        assert needed == (run.id in kept)
    assert all(kept.values())


def small(store: Path, number: int) -> str:
    """A night of a few cells, in which nothing ever changes."""
    rows = night_store.night(0, ("cuda",))[:4]
    return night_store.write_run(store, number, rows).name


def test_old_runs_go_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    names = [small(store, number) for number in range(10)]
    runs = store / "runs"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (runs / names[6] / "logs").symlink_to(outside)  # a link in a run that goes
    (runs / names[0]).rename(tmp_path / "elsewhere")
    (runs / names[0]).symlink_to(tmp_path / "elsewhere")  # a run that is a link
    (runs / names[1] / "run.json").unlink()  # unfinished
    record = {"id": "c", "created": "2026", "run": "x", "before": names[2], "since": names[9], "kind": "slower"}
    confirmations.keep(store, {**record, "arms": {}, "range": [], "verdict": "confirmed", "cells": []})
    (store / "noise").mkdir()
    (store / "noise" / f"{names[3]}.json").write_text("{}")
    (store / "pages").mkdir()
    (store / "pages" / f"compare-{names[5]}--{names[9]}.html").write_text("")
    words = ["prune", "--keep-nights", "2", "--out", str(store)]
    before = sorted(p.relative_to(store) for p in store.rglob("*"))
    assert main([*words, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["deleted"] == [names[6]], told
    assert all("the baseline of" in told["kept"][names[i]] for i in (4, 7))
    why = [told["kept"][names[i]] for i in (0, 1, 2, 3, 5, 9)]
    for text, word in zip(why, ("a link", "not complete", "confirmation c", "noise", "page compare-", "")):
        assert word in text
    assert [p for p in sorted(p.relative_to(store) for p in store.rglob("*")) if p.parts[0] != "index"] == before

    held = lock.acquire(runs / names[1])  # somebody continues it
    try:
        assert main(words) == 2 and "is writing this run" in capsys.readouterr().err
    finally:
        held.release()
    assert main(words) == 0
    assert [r.id for r in Store(store).runs()] == [n for n in names if n != names[6]]
    assert (outside / "precious").exists() and (tmp_path / "elsewhere" / "run.json").exists()
    assert not list((runs / ".aside").iterdir()) and "deleted" in capsys.readouterr().err
    assert main([*words, "--dry-run"]) == 0 and "nothing to delete" in capsys.readouterr().out

    (store / "confirmations" / "bad.json").write_text("{")
    assert main(words) == 2 and "nothing is deleted" in capsys.readouterr().err
    assert main(["prune", "--keep-nights", "1", "--out", str(store)]) == 2
