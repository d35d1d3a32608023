"""One `pytest --farm`: what is planned, the one run of the selected cells, and its results as they come.

The controller (pytest itself, or the controller of pytest-xdist) plans once, starts `farm run` as a process, and ends
it.  Whoever holds items (pytest itself, or the workers) follows the run's journal.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from farm import atomic_files
from farm.cli import common, run_command
from farm.cli.main import parser
from farm.cli.run import Matrices
from farm.cli.text import sentence
from farm.errors import FarmError
from farm.process.group import ProcessGroup, describe_exit
from farm.process.own_modules import module_words, own_variables
from farm.store import Run

#: Files in the folder that the processes of a session share.
CELLS, OUTPUT, ALIVE, ENDED = "cells.txt", "output.txt", "alive", "ended"
CANCELLED = "the run was cancelled, because pytest stops"
#: Options of `farm run` that pytest decides itself.
REFUSED = {"plan": "--plan", "failed": "--failed", "cells": "--cells", "stop_at_first": "-x"}
ALIVE_SECONDS = 1.0  # so often the controller shows that it lives
SILENT_SECONDS = 60.0  # so long it may not, until it is taken for dead
LOOK_SECONDS = 0.05
CANCEL_SECONDS = 20.0  # for a run to end in order that is cancelled
END_SECONDS = 900.0  # for a run to end whose results are all there: its page of 10^5 cells
#: Marks with a meaning of pytest's own, which a provider's name must not give to a cell.
PYTEST_MARKS = {"skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings", "tryfirst", "trylast"}
FACTS = ("backend", "op", "provider", "mode", "operation", "dtype")
MARKED = ("backend", "op", "provider", "dtype")


def marks_of(cell: Mapping[str, Any]) -> list[str]:
    """The names by which `-m` finds a cell."""
    names = dict.fromkeys(str(cell[fact]) for fact in MARKED)
    return [name for name in names if name not in PYTEST_MARKS and not name.startswith("_")]


class Controller:
    """`words`: the values of --farm; `cwd`: where pytest was started.  `plan`: what workers are told."""

    def __init__(self, words: Sequence[str], cwd: Path):
        self._cwd, self._ending = cwd, threading.Event()
        self._process: ProcessGroup | None = None
        self._cancelled = False
        self._watching: threading.Thread | None = None
        try:
            self._words = _joined([shlex.split(text) for text in words])
        except ValueError as error:
            raise pytest.UsageError(f"--farm {shlex.join(words)}: {error}") from None
        self.plan = self._planned()
        self._ids = {cell["id"] for cell in self.plan["cells"]}

    def _planned(self) -> dict[str, Any]:
        args = _parsed(self._words)
        for name in (option for attribute, option in REFUSED.items() if getattr(args, attribute)):
            raise pytest.UsageError(f"--farm: pytest decides what runs; omit {name}, and use pytest's own options")
        try:
            run_command.check(args)
            common.check_run_id(args.run_id)
            common.use_contracts(args)
            work = Matrices(args)
            found = work.planned(work.choose(*self._devices(args, work)))
        except FarmError as error:
            raise pytest.UsageError(f"--farm {shlex.join(self._words)}: {sentence(error)}") from None
        files = {m.name: str(Path(self._cwd, m.path).resolve()) for m in found.matrices}
        stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        self._store = Path(self._cwd, args.out or os.environ.get("FARM_STORE") or "farm-results")
        self._run_id = args.run_id or stamp
        self._folder = tempfile.mkdtemp(prefix="farm-pytest-")
        return {
            "folder": self._folder,
            "run": str(self._store / "runs" / self._run_id),
            "strict_peers": args.strict_peers,
            "cells": [
                {"id": c.cell_id, "file": files[c.matrix], **{fact: getattr(c, fact) for fact in FACTS}}
                for c in found.cells
            ],
        }

    def _devices(self, args: Any, work: Matrices) -> tuple[run_command.Has, bool]:
        """What says which backends there are: this host; of a cluster nobody knows before the run."""
        if args.address in ("local", "inline"):
            return run_command.host_has, False
        if not args.backend:
            raise pytest.UsageError(
                f"--farm: which devices the cluster at {args.address} has is not known before the run; name its "
                "backends with --backend"
            )
        return (lambda backend: True), True

    def cell_of(self, node_id: str) -> str:
        """The ID of the cell that an item's node ID means; "" for another item."""
        cell = node_id.partition("::")[2]
        return cell if cell in self._ids else ""

    def begin(self, ids: Sequence[str]) -> None:
        """Start the run of these cells, once."""
        if self._process is not None or not ids:
            return
        Path(self._folder, CELLS).write_text("\n".join(ids) + "\n", encoding="utf-8")
        Path(self._folder, ALIVE).touch()
        own = ["--run-id", self._run_id] if not _parsed(self._words).run_id else []
        words = [*module_words("farm"), "run", *self._words, *own, "--cells", str(Path(self._folder, CELLS))]
        with Path(self._folder, OUTPUT).open("wb") as out:
            self._process = ProcessGroup(
                words, env=own_variables(), cwd=self._cwd, stdout=out, stderr=subprocess.STDOUT
            )
        self._watching = threading.Thread(target=self._watch, args=(self._process,), name="farm", daemon=True)
        self._watching.start()

    def _watch(self, process: ProcessGroup) -> None:
        """Tell the readers that somebody watches the run, and how it has ended."""
        while not self._ending.is_set() and process.wait(ALIVE_SECONDS) is None:
            with contextlib.suppress(OSError):
                Path(self._folder, ALIVE).touch()
        with contextlib.suppress(OSError):
            said = CANCELLED if self._cancelled else self._last_line()
            text = said or f"it ended with {describe_exit(process.code or 0)}"
            atomic_files.write(Path(self._folder, ENDED), text)

    def _last_line(self) -> str:
        with contextlib.suppress(OSError):
            text = Path(self._folder, OUTPUT).read_text(encoding="utf-8", errors="replace")
            return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        return ""

    def cancel(self) -> None:
        """Interrupt the run, once."""
        if self._process is not None and self._process.alive and not self._cancelled:
            self._cancelled = True
            self._process.signal(signal.SIGINT)

    def end(self, *, cancel: bool) -> None:
        """Wait until the run has ended; `cancel` it first."""
        if self._process is None or self._ending.is_set():
            return
        if cancel:
            self.cancel()
        self._process.wait(CANCEL_SECONDS if cancel else END_SECONDS)
        self._process.kill(grace=CANCEL_SECONDS if not cancel else 1.0)
        self._ending.set()
        if self._watching:
            self._watching.join(ALIVE_SECONDS + LOOK_SECONDS)

    def summary(self) -> list[str]:
        """The lines that pytest prints at its end: where the results are, and how the run ended."""
        if self._process is None:
            return []
        return [f"results: {self.plan['run']}", self._last_line()]

    def close(self) -> None:
        """End the run if it is still there, and remove what the session shared."""
        self.end(cancel=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _joined(values: Sequence[Sequence[str]]) -> list[str]:
    """The words of several values of --farm: the matrices of all, then the options of all."""
    firsts = [next((i for i, word in enumerate(words) if word.startswith("-")), len(words)) for words in values]
    heads = [word for words, first in zip(values, firsts) for word in words[:first]]
    return heads + [word for words, first in zip(values, firsts) for word in words[first:]]


def _parsed(words: Sequence[str]) -> Any:
    """The options of `farm run` in --farm.  UsageError of pytest for what it would refuse."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args, unknown = parser("run").parse_known_args(["run", *words])
    except SystemExit:
        last = (said.getvalue().strip().splitlines() or ["not understood"])[-1]
        raise pytest.UsageError(f"--farm {shlex.join(words)}: {last}") from None
    if unknown:
        raise pytest.UsageError(f"--farm {shlex.join(words)}: farm run has no option {unknown[0]}")
    args.argv = ["run", *words]
    return args


class Reader:
    """The cells of a session by file, and the results of its run.  `plan`: as the controller made it."""

    def __init__(self, plan: Mapping[str, Any]):
        self._folder, self._run = Path(plan["folder"]), Run(Path(plan["run"]))
        self.strict_peers = bool(plan["strict_peers"])
        self.files: dict[Path, list[Mapping[str, Any]]] = {}
        for cell in plan["cells"]:
            self.files.setdefault(Path(cell["file"]), []).append(cell)
        self.marks = list(dict.fromkeys(mark for cell in plan["cells"] for mark in marks_of(cell)))
        self._rows: dict[str, dict[str, Any]] = {}
        self._follower = self._run.follow()
        self._ended: str | None = None

    def result(self, cell_id: str) -> dict[str, Any] | None:
        """The row of a cell, once it is there; None if the run has ended without one."""
        while True:
            ended = self._has_ended()  # asked first: what was written before is read below
            self._rows |= {line["row"]["cell_id"]: line["row"] for line in self._follower.new() if "row" in line}
            if cell_id in self._rows:
                return self._rows[cell_id]
            if ended:
                return None
            time.sleep(LOOK_SECONDS)

    def _has_ended(self) -> bool:
        if self._ended is None:
            with contextlib.suppress(OSError):
                self._ended = (self._folder / ENDED).read_text(encoding="utf-8")
        if self._ended is None:
            try:
                silent = time.time() - (self._folder / ALIVE).stat().st_mtime
            except OSError:
                silent = SILENT_SECONDS + 1
            if silent > SILENT_SECONDS:
                self._ended = "the process that watched it has died"
        return self._ended is not None

    @property
    def ended(self) -> str:
        """How the run has ended; "" while it runs."""
        return self._ended or ""

    def log(self, row: Mapping[str, Any]) -> str:
        """The text of a row's log; "" for none."""
        if not row.get("log"):
            return ""
        with contextlib.suppress(FarmError):
            return self._run.log_text(str(row["log"]))
        return ""

    def path_of_log(self, row: Mapping[str, Any]) -> str:
        return str(self._run.dir / str(row["log"])) if row.get("log") else ""
