"""What no refactoring may change, as it was captured: plans, the schema, the command line, exit codes, and a run.

`golden_views` says what is held and what is left out.  A difference that an issue wants is captured again by
`python tests/golden/capture.py` with the names of the files in question.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden_views as views
import pytest


@pytest.mark.parametrize("name", ["plans", "schema", "commands", "exit_codes"])
def test_what_starts_nothing_is_as_it_was(name: str, tmp_path: Path) -> None:
    differs = views.differences(views.held(name), _again(views.VIEWS[name](tmp_path)), name)
    assert not differs, "\n".join(differs[:40])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    found: dict[str, Any] = _again(views.run(tmp_path_factory.mktemp("golden")))
    return found


def test_a_run_has_the_files_keys_and_verdicts_that_it_had(run: dict[str, Any]) -> None:
    held = views.held("run")
    apart = ("values", "arithmetic")
    differs = views.differences(*({k: v for k, v in one.items() if k not in apart} for one in (held, run)), "run")
    assert not differs, "\n".join(differs[:40])


def test_a_run_has_the_values_that_it_had(run: dict[str, Any]) -> None:
    held = views.held("run")
    elsewhere = views.differences(held["arithmetic"], run["arithmetic"], "arithmetic")
    if elsewhere:
        pytest.skip(f"the values were captured where other arithmetic is done: {'; '.join(elsewhere)}")
    differs = views.differences(held["values"], run["values"], "run > values")
    assert not differs, "\n".join(differs[:40])


def _again(view: Any) -> Any:
    """A view as its file would give it."""
    return json.loads(views.as_text(view))
