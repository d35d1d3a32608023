"""The index of a store: whatever happens to runs and to its files, it says what the runs say, or why it does not."""

from __future__ import annotations

import json
import random
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import night_store

from farm.cli import main
from farm.errors import StoreError
from farm.store import Store, index, index_files
from farm.store.results import SCHEMA

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
KEPT = ["run", "cell_id", "status", "time_us_p50", "named"]


def write(store: Path, number: int, **head: Any) -> Path:
    return night_store.write_run(store, number, night_store.night(number, ("cuda",))[:12], **head)


def content(store: Path) -> list[tuple[Any, ...]]:
    """What the index says, in an order of its own."""
    rows = index.opened(Store(store)).rows(KEPT)
    return sorted(tuple(r[n] for n in KEPT) for r in rows)


def truth(store: Path) -> list[tuple[Any, ...]]:
    """What the complete runs say."""
    out = []
    for run in Store(store).runs():
        if run.complete:
            out += [(run.id, r["cell_id"], r["status"], r["time_us_p50"], "") for r in run.rows]
    return sorted(out)


def assert_true(store: Path) -> None:
    for got, want in zip(content(store), truth(store), strict=True):
        assert got[:3] + got[4:] == want[:3] + want[4:]
        assert (got[3] or 0.0) == pytest.approx(want[3] or 0.0, rel=1e-6)


def test_an_arm_of_a_comparison_is_no_night(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2, argv=["ab", "m.yaml", "--stage-0"])  # an ordinary run, but of a change that is not merged
    write(tmp_path, 3, argv=["ab", "m.yaml"], kind="ab")
    made = index.opened(Store(tmp_path))
    assert [r.id for r in made.last(9)] == [night_store.run_id(1)] and len(made.runs) == 3


def test_a_run_of_a_subject_is_of_the_subjects_revision(tmp_path: Path) -> None:
    """Else no news of a night would name what changed."""
    write(tmp_path, 1, subject={"name": "mylib", "revision": "aaaa+"})
    write(tmp_path, 2, revision={"commit": "bbbb", "dirty": True})
    assert [r.revision for r in index.opened(Store(tmp_path)).runs] == ["aaaa+", "bbbb+"]


def test_whatever_comes_and_goes_the_index_says_what_the_runs_say(tmp_path: Path) -> None:
    """Runs are added, deleted, replaced, one at a time and several; parts are merged on the way."""
    rng, have = random.Random(1), set[int]()
    for step in range(6):
        for number in rng.sample(range(30), 3):
            if number in have and rng.random() < 0.6:
                shutil.rmtree(tmp_path / "runs" / night_store.run_id(number))
                have.discard(number)
            elif number not in have:
                write(tmp_path, number)
                have.add(number)
        assert_true(tmp_path)
        assert step < 1 or index.opened(Store(tmp_path)).added == 0
    assert index.check(Store(tmp_path)) == []


def test_many_nights_are_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "TIER", 3)
    monkeypatch.setattr(index_files, "APART", 1)
    for number in range(8):
        write(tmp_path, number)
        made = index.opened(Store(tmp_path))
        assert made.added == 1 and made.parts <= 5
        newest = next(part for part, runs in made._stamp.parts.items() if night_store.run_id(number) in runs)
        assert len(made._stamp.parts[newest]) == 1
    assert made.parts <= 5 and len(list((tmp_path / "index").glob("part-*"))) > made.parts, "others may be reading"
    monkeypatch.setattr(index_files, "KEPT_SECONDS", -1.0)
    write(tmp_path, 8)
    made = index.opened(Store(tmp_path))
    assert len(list((tmp_path / "index").glob("part-*"))) == made.parts
    assert [r.id for r in made.last(2)] == [night_store.run_id(7), night_store.run_id(8)]
    assert_true(tmp_path)


def test_what_cannot_be_in_it_is_said_and_harms_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1, schema=SCHEMA + 1)
    (write(tmp_path, 2) / "cells.parquet").write_bytes(b"PAR1 cut off")
    (write(tmp_path, 3) / "run.json").unlink()
    (write(tmp_path, 4) / "run.json").write_text("{")
    (write(tmp_path, 5) / "cells.parquet").unlink()
    made = index.opened(Store(tmp_path))
    assert [r.id for r in made.runs] == [night_store.run_id(0)]
    why = {number: made.left_out[night_store.run_id(number)] for number in range(1, 6)}
    assert f"schema {SCHEMA + 1}" in why[1] and "not complete" in why[3]
    assert all("cannot be read" in why[n] for n in (2, 4, 5))
    assert index.opened(Store(tmp_path)).left_out == made.left_out


def test_many_at_once_read_one_index(tmp_path: Path) -> None:
    """Threads of a server open the index while runs are added."""
    write(tmp_path, 0)
    opened = index.opened(Store(tmp_path))

    def look(number: int) -> int:
        if number % 4 == 0:
            write(tmp_path, 1 + number // 4)
        return len(index.opened(Store(tmp_path)).rows(["run"]))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(look, range(12)))
    assert all(n % 12 == 0 and n >= 12 for n in found) and len(opened.rows(["run"])) == 12, "the old one can be read"
    assert_true(tmp_path)
    assert index.check(Store(tmp_path)) == []


def test_a_store_that_may_only_be_read_has_the_index_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 0)
    index.opened(Store(tmp_path))
    write(tmp_path, 1)

    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(index_files, "update", refused)
    assert len(index.opened(Store(tmp_path)).runs) == 1
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(StoreError, match="Permission denied") as error:
        index.opened(Store(tmp_path))
    assert error.value.id == "index-unwritable"


def test_a_run_that_ends_comes_in(tmp_path: Path) -> None:
    folder = write(tmp_path, 0)
    text = (folder / "run.json").read_text()
    (folder / "run.json").unlink()
    assert index.opened(Store(tmp_path)).runs == ()
    (folder / "run.json").write_text(text)
    assert len(index.opened(Store(tmp_path)).runs) == 1


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: shutil.rmtree(folder),
        lambda folder: (folder / "stamp.json").unlink(),
        lambda folder: (folder / "stamp.json").write_text("{"),
        lambda folder: (folder / "stamp.json").write_text('{"version": 1, "runs": {"a": 1}, "left": {}}'),
        lambda folder: (folder / "stamp.json").write_text('{"version": 0, "runs": {}, "left": {}}'),
        lambda folder: next(folder.glob("part-*")).unlink(),
    ],
)
def test_a_damaged_index_is_made_anew(tmp_path: Path, harm: Any) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1)
    assert_true(tmp_path)
    harm(tmp_path / "index")
    assert index.check(Store(tmp_path))
    assert_true(tmp_path)
    assert index.check(Store(tmp_path)) == []


def test_a_part_that_is_cut_off_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 0)
    assert_true(tmp_path)
    part = next((tmp_path / "index").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(StoreError, match="delete") as refused:
        index.opened(Store(tmp_path)).rows(KEPT)
    assert refused.value.id == "index-damaged"
    assert main(["index", "--check", "--out", str(tmp_path)]) == 3
    assert "[index-damaged]" in capsys.readouterr().out
    assert main(["index", "--rebuild", "--out", str(tmp_path)]) == 0
    assert "1 run, 12 results in 1 file; 1 added" in capsys.readouterr().out
    assert main(["index", "--check", "--out", str(tmp_path)]) == 0
    write(tmp_path, 1)
    assert main(["index", "--check", "--out", str(tmp_path)]) == 3
    assert "[index-stale]" in capsys.readouterr().out


def test_the_command_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 1, schema=SCHEMA + 1)
    assert main(["index", "--out", str(tmp_path)]) == 0
    assert "is left out: it has schema" in capsys.readouterr().err
    assert main(["index", "--out", str(tmp_path / "none")]) == 2
    assert "[index-no-store]" in capsys.readouterr().err and not (tmp_path / "none").exists()


def test_series_and_pairs(tmp_path: Path) -> None:
    for number in (3, 1, 2):
        write(tmp_path, number)
    made = index.opened(Store(tmp_path))
    row = night_store.night(2)[4]
    found = made.series(row["cell_key"], ["time_us_p50"])
    assert [r["run"] for r in found] == [night_store.run_id(n) for n in (1, 2, 3)]
    assert found[1]["time_us_p50"] == pytest.approx(row["time_us_p50"], rel=1e-6)
    a, b = made.last(2)
    pairs = made.compare(a, b, ["cell_id", "time_us_p50"])
    assert len(pairs) == 12 and all(x["run"] == a.id and y["run"] == b.id for x, y in pairs)
    assert [r.id for r in made.last(5, like=b)] == [night_store.run_id(n) for n in (1, 2)], "older ones alone"
    assert made.rows(["status"], [a], {"backend": "rocm"}) == []


def test_only_named_columns_are_read(tmp_path: Path) -> None:
    write(tmp_path, 0)
    assert index.opened(Store(tmp_path)).table(["status", "time_us_p50"]).column_names == ["status", "time_us_p50"]


def test_runs_of_every_older_schema_are_in_it(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "runs", tmp_path / "runs")
    schemas = {r.id: r.head.get("schema") for r in Store(tmp_path).runs() if r.complete}
    made = index.opened(Store(tmp_path))
    assert {r.id for r in made.runs} == set(schemas) and min(schemas.values()) < SCHEMA
    assert sum(r.cells for r in made.runs) == len(truth(tmp_path))
    assert json.loads((tmp_path / "index" / "stamp.json").read_text())["version"] == index_files.VERSION
