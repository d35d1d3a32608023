"""Runs of every schema of the store are read, judged, merged, shown and indexed; those of a later one are refused.

`tests/golden/schemas` has, for each schema, a store that the farm of that time wrote (README.md there).
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import golden_views as views
import pyarrow.parquet as parquet
import pytest

SCHEMAS = views.HERE / "schemas"
NUMBERS = sorted(int(re.sub(r"\D", "", p.name.partition(".")[0])) for p in SCHEMAS.glob("schema-*.tar.gz"))
#: What came of the cells, in every schema alike: the matrix is the same.
FOUND = {
    "cpu": {"passed": 5, "skipped": 1},
    "sim": {"passed": 2, "inaccurate": 1, "crashed": 1, "unsupported": 1, "skipped": 1},
}
WRONG = "sim/rms_norm/farm/auto/forward/fp32/5x160/llama"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store with all of them."""
    runs = tmp_path_factory.mktemp("schemas") / "store" / "runs"
    runs.mkdir(parents=True)
    for number in NUMBERS:
        with tarfile.open(SCHEMAS / f"schema-{number}.tar.gz") as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(runs)
    return runs.parent


@pytest.fixture(scope="module")
def later(store: Path) -> list[str]:
    """Runs of the store as a later farm may write them: one with a column less and a column more, one whose tables
    are no Parquet."""
    newest, names = store / "runs" / f"schema-{NUMBERS[-1]}", ["later", "later-unlike"]
    for name in names:
        copy = shutil.copytree(newest, newest.with_name(name))
        head = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps({**head, "run_id": name, "schema": NUMBERS[-1] + 1}))
    table = parquet.read_table(newest / "cells.parquet")
    table = table.rename_columns([{"status": "outcome"}.get(c, c) for c in table.column_names])
    parquet.write_table(table, newest.with_name(names[0]) / "cells.parquet")
    newest.with_name(names[1]).joinpath("cells.parquet").write_bytes(b"another format")
    return names


def farm(store: Path, *words: str) -> tuple[int, str]:
    return views.farm(store.parent, *words, "--out", str(store))


def counts(rows: list[dict[str, Any]], backend: str) -> dict[str, int]:
    mine = [r["status"] for r in rows if r["backend"] == backend]
    return {status: mine.count(status) for status in dict.fromkeys(mine)}


def rows_of(store: Path, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(store / "runs" / run / "cells.parquet").to_pylist()
    return found


def test_there_is_a_store_of_each_schema(store: Path) -> None:
    from farm.store.results import SCHEMA

    assert list(range(1, SCHEMA + 1)) == NUMBERS
    for number in NUMBERS:
        assert json.loads((store / "runs" / f"schema-{number}" / "run.json").read_text())["schema"] == number
    assert max(p.stat().st_size for p in SCHEMAS.iterdir()) < 70_000
    told = (SCHEMAS / "README.md").read_text()
    assert all(f"| {n} | " in told for n in NUMBERS)


def test_nothing_of_them_names_a_host_or_a_path(store: Path) -> None:
    texts = [p.read_text() for p in store.rglob("*") if p.is_file() and p.suffix != ".parquet"]
    texts += [str(parquet.read_table(p).to_pylist()) for p in store.rglob("*.parquet")]
    paths = {word for text in texts for word in re.findall(r"(?<![\w.>\]}/*])/(?:[\w.-]+/)+[\w.-]*", text)}
    assert not {p for p in paths if not p.startswith(("/usr/lib/", "/llama"))}, paths
    nodes = {node for text in texts for node in re.findall(r'["\']node["\']: ?["\']([^"\']*)', text)}
    assert nodes <= {"node", ""}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_run_is_shown_and_judged_as_it_was(number: int, store: Path) -> None:
    name = f"schema-{number}"
    code, said = farm(store, "show", WRONG, "--run", name, "--json")
    assert code == 0 and json.loads(said)["cell"]["status"] == "inaccurate"
    assert farm(store, "export", "junit", name)[0] == farm(store, "export", "markdown", name)[0] == 0
    assert farm(store, "judge", name, "--run-id", f"judged-{number}", "--no-page")[0] == 1
    for run in (name, f"judged-{number}"):
        assert {b: counts(rows_of(store, run), b) for b in FOUND} == FOUND
    before, after = ({r["cell_id"]: r for r in rows_of(store, run)} for run in (name, f"judged-{number}"))
    for cell, row in before.items():
        kept = [k for k in row if k not in ("judged_by", "revision", "log", "reason")]
        assert {k: after[cell][k] for k in kept} == {k: row[k] for k in kept}, cell
    assert farm(store, "compare", name, f"schema-{NUMBERS[-1]}", "--json")[0] == 0


@pytest.mark.parametrize("number", NUMBERS)
def test_parts_of_a_plan_are_merged_where_there_were_plans(number: int, store: Path) -> None:
    parts = [f"schema-{number}-{backend}" for backend in FOUND]
    if number < 4:
        assert not (store / "runs" / parts[0]).exists()
        plan = str(store / "runs" / "schema-4-cpu" / "plan.json")
        code, _ = farm(store, "merge", f"schema-{number}", "--plan", plan, "--run-id", "no", "--no-page")
        assert code == 2 and not (store / "runs" / "no").exists()
        return
    assert farm(store, "merge", *parts, "--run-id", f"merged-{number}", "--no-page")[0] == 1
    assert {b: counts(rows_of(store, f"merged-{number}"), b) for b in FOUND} == FOUND


def test_pages_and_the_index_have_them_all(store: Path, later: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from farm.cli import main

    assert main(["dashboard", "build", "--out", str(store)]) == 3
    told = capsys.readouterr().err.splitlines()
    assert len(told) == len(later) and all(f"schema {NUMBERS[-1] + 1}" in line for line in told), told
    complete = {p.parent.name for p in (store / "runs").glob("*/run.json")}
    code, _ = farm(store, "index", "--check")
    assert code == 0
    stamp = json.loads((store / "index" / "stamp.json").read_text())
    assert set(stamp["runs"]) == complete - set(later) and set(stamp["left"]) == set(later)
    assert all(f"schema {NUMBERS[-1] + 1}" in stamp["left"][name]["why"] for name in later)
    for name in complete - set(later):
        page = (store / "pages" / f"run-{name}.html").read_text()
        assert "Do not trust" not in page and name in page
    listed = (store / "pages" / "index.html").read_text()
    assert all(name in listed for name in complete)
    assert f"it has schema {NUMBERS[-1] + 1}" in listed
    assert farm(store, "ls")[0] == 0 and farm(store, "night")[0] in (0, 1)


def test_a_later_schema_is_refused_in_one_sentence(
    store: Path, later: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from farm.cli import main

    known = f"schema-{NUMBERS[-1]}"
    part = f"{known}-cpu"
    for name in later:
        for words in (
            ("judge", name),
            ("compare", name, known),
            ("compare", known, name),
            ("export", "junit", name),
            ("export", "liger", name),
            ("show", WRONG, "--run", name),
            ("merge", part, name),
            ("run", "--failed", name),
        ):
            capsys.readouterr()
            assert main([*words, "--out", str(store)]) == 2, words
            told = capsys.readouterr().err
            assert told.count("\n") == 1 and "[run-schema-newer]" in told, (words, told)
            assert f"schema {NUMBERS[-1] + 1}" in told and "use the farm version that wrote this run" in told
    assert main(["prune", "--dry-run", "--json", "--out", str(store)]) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    assert all("not in the index" in kept[name] for name in later)
