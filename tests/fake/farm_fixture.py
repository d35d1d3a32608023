"""The fixture `farm`, for this folder and for the soak checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_process import FarmRun

Farm = Callable[..., FarmRun]


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Starts runs, and ends whatever they left when the test is over."""
    started: list[FarmRun] = []

    def start(matrix: str, *arguments: str, popen: dict[str, Any] | None = None, **more: Any) -> FarmRun:
        run = FarmRun(tmp_path / f"run{len(started)}", matrix, tuple(arguments), **more)
        started.append(run)
        return run.start(**(popen or {}))

    yield start
    for run in started:
        run.end()
