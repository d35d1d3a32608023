"""Helpers of these tests: a finished compilation, and the command as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Compiled:
    """A finished compilation: exit code, and rows by cell id."""

    def __init__(self, code: int, store: Path, run_id: str):
        from farm.store import Store

        self.code, self.dir = code, store / "runs" / run_id
        self.run = Store(store).run(run_id)
        self.rows = {r["cell_id"]: r for r in self.run.rows}

    def row(self, *parts: str) -> dict[str, Any]:
        """The one row whose id has all of these."""
        (found,) = [r for name, r in self.rows.items() if all(p in name.replace("@", "/").split("/") for p in parts)]
        return found

    def kernels(self, *parts: str) -> list[dict[str, Any]]:
        return json.loads(self.row(*parts)["resources"])

    def log(self, *parts: str) -> str:
        return (self.dir / self.row(*parts)["log"]).read_text()


def farm(*words: str, cwd: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """`farm WORDS` as a process."""
    variables = {**os.environ, "FARM_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "farm", *words],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
