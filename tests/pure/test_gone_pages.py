"""Pages of runs that are gone, and pages whose runs were replaced: none stays as it was, and no link leads nowhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import night_store
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dashboard_files import ask

from farm.cli.main import main
from farm.dashboards import gone
from farm.store import Store, confirmations

IDS = st.text("ab-.", min_size=1, max_size=4).map("r".__add__)


@settings(max_examples=60, deadline=None)
@given(st.sets(IDS, min_size=1, max_size=4), st.data())
def test_a_page_goes_with_a_run_that_it_needs_and_with_no_other(ids: set[str], data: st.DataObject) -> None:
    """The law, for ids that contain what parts names: pages of the runs that are left stay, and nobody else's go."""
    left = data.draw(st.sets(st.sampled_from(sorted(ids))))
    noted = {f"run-{name}.html": "mark" for name in ids} | {f"cell-{name}.html": f"shows {name}" for name in ids}
    pairs = {f"compare-{a}--{b}.html": (a, b) for a in ids for b in ids}
    names = {*gone.stale({**noted, **dict.fromkeys(pairs, "mark"), "notes.html": "mark"}, left)}
    for name in ids:
        assert {f"run-{name}.html" in names, f"cell-{name}.html" in names} == {name not in left}
    assert "notes.html" not in names
    for name, both in pairs.items():
        assert not (left.issuperset(both) and name in names)
        words = name.removeprefix("compare-").removesuffix(".html")
        if name not in names:
            assert any(words == f"{a}--{b}" for a in left for b in left)


def links_to_nothing(pages: Path) -> list[tuple[str, str]]:
    out = []
    for page in sorted(pages.glob("*.html")):
        for link in re.findall(r'href="?([^" >]+)', page.read_text()):
            if not link.startswith(("#", "http")) and not (pages / link.partition("#")[0]).exists():
                out.append((page.name, link))
    return out


def small(store: Path, number: int) -> str:
    return night_store.write_run(store, number, night_store.night(number, ("cuda",))[:8]).name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gone")
    for number in range(6):
        small(folder, number)
    assert main(["dashboard", "build", "--out", str(folder)]) == 0
    (folder / "pages" / "run-notes.html").write_text("somebody's own")
    assert not links_to_nothing(folder / "pages")
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """Six nights with all their pages, among them what somebody else has put there."""
    return shutil.copytree(made, tmp_path / "store")


def test_pages_of_pruned_runs_go_and_nothing_leads_there(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = store / "pages"
    assert main(["prune", "--keep-nights", "2", "--out", str(store)]) == 0, capsys.readouterr().err
    left = [r.id for r in Store(store).runs()]
    assert left == [night_store.run_id(n) for n in (3, 4, 5)], "a comparison that a page made by itself keeps no run"
    assert {p.name for p in pages.glob("run-*.html")} == {"run-notes.html", *(f"run-{name}.html" for name in left)}
    assert len(list(pages.glob("compare-*.html"))) == len(list(pages.glob("compare-*.json"))) == 2
    assert not links_to_nothing(pages)
    texts = "".join(p.read_text() for p in pages.iterdir())
    assert not any(night_store.run_id(n) in texts for n in (0, 1, 2))


def test_pages_of_a_run_that_was_deleted_by_hand_go_with_the_next_page(store: Path) -> None:
    pages = store / "pages"
    shutil.rmtree(store / "runs" / night_store.run_id(2))
    number = small(store, 6)
    assert main(["dashboard", "build", "last", "--out", str(store)]) == 0
    assert (pages / f"run-{number}.html").exists() and not list(pages.glob(f"*{night_store.run_id(2)}*"))
    assert not links_to_nothing(pages)
    assert night_store.run_id(1) in (pages / f"run-{night_store.run_id(3)}.html").read_text(), "another baseline"


def test_a_run_that_was_replaced_is_shown_anew_where_it_was_compared(store: Path) -> None:
    """For example copied from its site again, in full this time."""
    pages, names = store / "pages", [night_store.run_id(n) for n in range(6)]
    written = {p: p.read_text() for p in pages.glob("*.html")}
    shutil.rmtree(store / "runs" / names[2])
    rows = night_store.night(2, ("cuda",))[:8]
    rows[3] |= night_store._inaccurate("dw", 0.021)
    night_store.write_run(store, 2, rows)
    assert main(["dashboard", "build", "--out", str(store)]) == 0
    changed = {p.name for p, text in written.items() if p.read_text() != text}
    both = {f"compare-{names[1]}--{names[2]}.html", f"compare-{names[2]}--{names[3]}.html"}
    assert {f"run-{names[2]}.html", f"run-{names[3]}.html"} | both <= changed
    assert f"run-{names[1]}.html" not in changed


def test_pages_stay_as_they_are_when_nothing_of_theirs_changes(store: Path) -> None:
    """The index made anew; a known.yaml that was edited, which counts for the runs that come."""
    pages = store / "pages"
    before = {p.name: p.read_text() for p in pages.iterdir()}
    (store / "matrices").mkdir()
    (store / "matrices" / "known.yaml").write_text("- {match: provider=farm, reason: x, owner: y, until: 2030-01-01}\n")
    assert main(["index", "--rebuild", "--out", str(store)]) == 0
    assert main(["dashboard", "build", "--out", str(store)]) == 0
    after = {p.name: p.read_text() for p in pages.iterdir()}
    assert {n for n in before if before[n] != after.get(n)} == set() and before.keys() == after.keys()


def test_a_confirmation_changes_what_a_page_is_made_of(store: Path) -> None:
    """So a server that keeps the front page, and the kept page of the newest night's run, are made anew."""
    names, pages = [night_store.run_id(n) for n in range(6)], store / "pages"
    before, page = store_mark(store), pages / f"run-{names[5]}.html"
    record = {"id": "c", "created": "2026-09-27", "run": names[-1], "before": names[4], "since": names[5]}
    record |= {"kind": "slower", "arms": {}, "range": [], "verdict": "confirmed", "cells": []}
    confirmations.keep(store, record)
    assert store_mark(store) != before
    made = page.stat().st_mtime_ns
    assert main(["dashboard", "build", "--out", str(store)]) == 0
    assert page.stat().st_mtime_ns > made


def store_mark(store: Path) -> int:
    from farm.store import index

    return index.opened(Store(store)).mark


def test_a_served_page_of_a_run_that_is_gone_is_a_404(store: Path) -> None:
    pytest.importorskip("starlette")
    from farm.dashboards import serve

    site, names = serve.app(Store(store)), [night_store.run_id(n) for n in range(6)]
    key = night_store.night(0, ("cuda",))[0]["cell_key"]
    paths = [f"/run/{names[5]}", f"/run/{names[5]}/0", f"/compare/{names[4]}/{names[5]}", f"/run/{names[5]}.json"]
    assert [ask(site, path)[0] for path in ["/", f"/run/{names[4]}", *paths]] == [200] * 6
    shutil.rmtree(store / "runs" / names[5])
    shutil.rmtree(store / "runs" / names[3])  # the baseline of a run that stays
    assert [ask(site, path)[0] for path in paths] == [404] * 4, "within the time in which the index is not asked again"
    assert ask(site, f"/run/{names[4]}")[0] == 200
    assert ask(site, f"/cell/{key}")[0] in (200, 404)
