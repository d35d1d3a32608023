"""Runs that commit 18c25fb wrote are read, shown, exported, resumed and judged as it did.

`tests/golden/runs` has a finished run, one that was interrupted after five results, and a compiled one.
"""

from __future__ import annotations

import json
from typing import Any

import golden_views as views
import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(views.as_text(views.old_runs(tmp_path_factory.mktemp("golden"))))
    return view


PARTS = list(views.held("old_runs"))


def test_every_part_is_held(found: dict[str, Any]) -> None:
    assert list(found) == PARTS


@pytest.mark.parametrize("part", PARTS)
def test_an_old_run_is_what_it_was(part: str, found: dict[str, Any]) -> None:
    differs = views.differences(views.held("old_runs")[part], found[part], part)
    assert not differs, "\n".join(differs[:40])


def test_the_old_runs_are_as_small_as_they_were() -> None:
    sizes = {run.name: sum(f.stat().st_size for f in run.rglob("*") if f.is_file()) for run in views.RUNS.iterdir()}
    assert sorted(sizes) == sorted((views.FINISHED, views.INTERRUPTED, views.COMPILED))
    assert max(sizes.values()) < 100_000, sizes
