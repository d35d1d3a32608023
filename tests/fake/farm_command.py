"""Any `farm` command as a process of its own, watched and ended as `farm_process.FarmRun` is."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm_process import MARK, ROOT, FarmRun, clean_environ

from farm.store import Store


class FarmCommand(FarmRun):
    """`farm WORDS` in a folder; `run` and what reads it are of `run_id` in `store`."""

    def __init__(self, folder: Path, store: Path, run_id: str, *words: str, environment: Mapping[str, str] = {}):
        self.folder, self.words, self.environment = folder, words, dict(environment)
        self.mark, self.run_id, self.store = secrets.token_hex(8), run_id, Store(store)
        self.out = folder / f"out-{self.mark}.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"farm {' '.join(self.words)}"

    def start(self, **popen: Any) -> FarmCommand:
        ours = {"PYTHONPATH": str(ROOT), "FARM_CACHE": str(self.folder / "cache"), MARK: self.mark}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "farm", *self.words],
                cwd=self.folder,
                env={**clean_environ(), **ours, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **popen,
            )
        return self

    def said(self) -> str:
        return self.out.read_text(encoding="utf-8", errors="replace")
