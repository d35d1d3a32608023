"""Runs in a store that are hostile, damaged or not finished: they harm no other page, and are said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import night_store
import pytest
from test_dashboard_files import ask

from farm.cli.main import main
from farm.store import Store, journal, lock
from farm.store.results import SCHEMA

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f'{SCRIPT}"><img src=x onerror=alert(1)>\x1b[31m\u202e'
GOOD = (0, 1)


def rows(number: int) -> list[dict[str, Any]]:
    return night_store.night(number, ("cuda", "rocm"))[:16] + night_store.night(number, ("cuda", "rocm"))[-16:]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sound nights with their pages."""
    folder = tmp_path_factory.mktemp("hostile") / "store"
    for number in GOOD:
        night_store.write_run(folder, number, rows(number))
    assert main(["dashboard", "build", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "store")


def hostile_rows() -> list[dict[str, Any]]:
    made = rows(2)
    for row in made[:6]:
        row |= {"status": "inaccurate", "reason": HOSTILE * 40, "log": "logs/1.txt", "fault_owner": "kernel"}
    for row in made[::3]:
        row |= {name: f"{row[name]}{HOSTILE}" for name in ("mode", "shape", "node", "device", "mode_resolved")}
        row |= {"provider": HOSTILE, "flags": json.dumps([HOSTILE]), "fingerprint": json.dumps({"driver": HOSTILE})}
        row["cell_id"] = row["cell_id"].replace("/torch/", f"/{HOSTILE}/").replace("/farm/", f"/{HOSTILE}/")
    made[3] |= {"target": HOSTILE, "op": HOSTILE}
    return made


def test_hostile_names_and_megabytes_of_log_are_only_text(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = [{"state": "covers", "reason": HOSTILE, "owner": HOSTILE, "until": HOSTILE, "where": HOSTILE, "cells": []}]
    matrix = {"name": HOSTILE, "path": HOSTILE, "sha256": HOSTILE}
    run = night_store.write_run(
        store, 2, hostile_rows(), known=known, matrices=[matrix], command=HOSTILE, argv=[HOSTILE], warnings=[HOSTILE]
    )
    (run / "logs").mkdir()
    (run / "logs" / "1.txt").write_text(f"\x1b[2J\x1b]0;owned\x07{HOSTILE}\x00" + "z" * 4_000_000)
    assert main(["dashboard", "build", "--out", str(store)]) == 0
    capsys.readouterr()
    for page in (store / "pages").iterdir():
        text = page.read_text()
        assert "\x1b" not in text and "\x00" not in text and len(text) < 1_000_000, page.name
        if page.suffix == ".html":
            assert SCRIPT not in text and "<img" not in text, page.name
        else:
            json.loads(text)
    cell = hostile_rows()[0]["cell_id"]
    for words in (["night"], ["ls"], ["show", cell, "--run", run.name], ["export", "markdown", run.name], ["index"]):
        assert main([*words, "--out", str(store)]) in (0, 1), words
        told = capsys.readouterr()
        assert "\x1b" not in told.out + told.err and len(told.out) < 200_000, words


def test_hostile_names_are_only_text_in_what_is_served(store: Path) -> None:
    pytest.importorskip("starlette")
    from farm.dashboards.serve import app

    run = night_store.write_run(store, 2, hostile_rows())
    site = app(Store(store))
    for path in ("/", "/evidence", f"/run/{run.name}", f"/run/{run.name}/0", "/night.json"):
        status, head, body = ask(site, path)
        assert status == 200 and "\x1b" not in body, path
        assert "html" not in head["content-type"] or (SCRIPT not in body and "<img" not in body), path
        assert head["content-security-policy"].startswith("default-src 'none'")


def assert_others_unharmed(store: Path, good: Path, code: int) -> str:
    """The pages of the sound nights are as they were; returns the front page."""
    found = main(["dashboard", "build", "--out", str(store)])
    assert found == code
    for number in GOOD:
        name = f"run-{night_store.run_id(number)}.html"
        assert (store / "pages" / name).read_text() == (good / "pages" / name).read_text()
    index = (store / "pages" / "index.html").read_text()
    assert all(night_store.run_id(number) in index for number in GOOD)
    return index


@pytest.mark.parametrize("share", (0.0, 0.5, 0.999))
def test_truncated_tables_harm_their_run_alone(
    share: float, store: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = night_store.write_run(store, 2, rows(2)) / "cells.parquet"
    cells.write_bytes(cells.read_bytes()[: int(cells.stat().st_size * share)])
    index = assert_others_unharmed(store, good, 3)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and night_store.run_id(2) in told and "[dashboard-run-unreadable]" in told
    assert "unreadable" in index
    assert main(["night", "--json", "--out", str(store)]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == night_store.run_id(GOOD[-1]), "the newest that can be read"
    assert main(["index", "--out", str(store)]) == 0 and "is left out: it cannot be read" in capsys.readouterr().err


def test_a_store_that_is_being_written_is_read_all_the_while(
    store: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every stage of a run that ends: its journal with half a line, its tables beside their names, without run.json."""
    run = night_store.write_run(store, 2, rows(2))
    kept = store.parent / "kept"
    run.rename(kept)
    head = {"event": "run", "schema": SCHEMA, "created": night_store.created(2).isoformat(), "matrices": []}
    lines = [journal.encoded(head), journal.encoded({"event": "planned"})]
    stages: list[dict[str, bytes]] = [{"journal.jsonl": b""}, {"journal.jsonl": lines[0][:30].encode()}]
    stages.append({"journal.jsonl": ("".join(lines) + lines[0][:40]).encode()})
    cells = (kept / "cells.parquet").read_bytes()
    stages.append(stages[-1] | {"cells.tmp": cells[:900]})
    stages.append(stages[-1] | {"cells.parquet": cells, "samples.tmp": b"PAR1"})
    for stage in stages:
        run.mkdir()
        held = lock.acquire(run)
        try:
            for name, data in stage.items():
                (run / name).write_bytes(data)
            index = assert_others_unharmed(store, good, 0)
            assert "running" in index or len(stage["journal.jsonl"]) < 100, sorted(stage)
            assert main(["night", "--json", "--out", str(store)]) == 0
            assert main(["index", "--out", str(store)]) == 0
        finally:
            held.release()
        shutil.rmtree(run)
    kept.rename(run)
    assert main(["dashboard", "build", "--out", str(store)]) == 0
    capsys.readouterr()
    assert main(["night", "--json", "--out", str(store)]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == night_store.run_id(2)


ODD: tuple[Any, ...] = (None, 7, -1.5, "x", [], {}, [7], ["x"], {"x": 7}, [{"x": []}], {"x": {"x": 7}}, True)
KEYS = ("schema", "created", "matrices", "known", "revision", "backends", "counts", "plan_hash", "seconds", "verdict")
KEYS += ("finished", "argv", "command", "warnings", "subject", "planned", "kind", "arms", "comparison", "resumed")
KEYS += (
    "environments",
    "providers",
    "merged",
    "superseded",
    "silent",
    "tolerances",
    "calibrations",
    "plan",
    "exit_code",
)


@pytest.mark.parametrize("odd", [8])
def test_a_run_json_of_other_kinds_of_values_harms_its_run_alone(
    odd: int, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_odd_heads_harm_nobody(ODD[odd], KEYS[::2], good, tmp_path, capsys)  # all of them: in the soak tests


def assert_odd_heads_harm_nobody(
    value: Any, keys: Sequence[str], good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of these keys of run.json with this value, one run for each: no page of another run changes, no command
    ends otherwise than with an answer or one sentence."""
    store = shutil.copytree(good, tmp_path / "store")
    whole = night_store.write_run(store, 2, rows(2)[:4])
    for number, key in enumerate(keys):
        copy = shutil.copytree(whole, whole.with_name(f"20261001-{number:06}-{key}".replace("_", "-")))
        head = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps({**head, "run_id": copy.name, key: value}))
    shutil.rmtree(whole)
    code = main(["dashboard", "build", "--out", str(store)])
    told = capsys.readouterr().err
    assert code in (0, 3) and "Traceback" not in told, told
    for number in GOOD:
        assert (store / "pages" / f"run-{night_store.run_id(number)}.html").is_file()
    for words in (["ls"], ["night"], ["index"], ["prune", "--dry-run"]):
        assert main([*words, "--out", str(store)]) in (0, 1, 2, 3), words
        told = capsys.readouterr().err
        assert "Traceback" not in told and "internal error" not in told, (words, told)


def test_odd_values_in_the_newest_night_leave_its_news(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the front page reads of run.json itself; the rows are sound."""
    run = night_store.write_run(store, 2, rows(2))
    head = json.loads((run / "run.json").read_text())
    for value in ODD:
        (run / "run.json").write_text(json.dumps({**head, "known": value}))
        capsys.readouterr()
        code = main(["night", "--json", "--out", str(store)])
        told = capsys.readouterr()
        assert code in (0, 1), (value, told.err)
        assert json.loads(told.out)["run"] == run.name, value
