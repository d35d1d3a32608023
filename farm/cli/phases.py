"""Commands that are several runs: each phase an ordinary run of a matrix that the store keeps, which the same command
finds again and continues."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from farm import atomic_files
from farm.errors import InfraError, StoreError, UsageError
from farm.process import supervisor
from farm.store import Run, Store

#: What `farm run` is told in the same words.
PASSED = ("backend", "address", "devices", "environment", "wait", "wait_for_devices", "out")


class Phases:
    """The phases of one `command`, whose matrices are in `folder` of the store.  `what`: all that makes two commands
    the same, by which the runs of an earlier one are found; `begun`: when it began, by the monotonic clock."""

    def __init__(self, command: str, folder: str, args: argparse.Namespace, store: Store, what: str, begun: float):
        self.command, self.folder, self.args, self.store = command, folder, args, store
        self.ends = begun + args.limit_minutes * 60 if args.limit_minutes is not None else None
        digest = hashlib.sha256(what.encode()).hexdigest()[:10]
        there = [r.id for r in store.runs() if r.id.endswith(f"-{command}-{digest}")]
        fresh = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{command}-{digest}"
        self.name = args.run_id or (there[-1] if there else fresh)

    @property
    def left_s(self) -> float:
        """Seconds until the command's limit."""
        return float("inf") if self.ends is None else self.ends - time.monotonic()

    def phase(self, name: str, text: str, reserve_s: float = 0.0) -> tuple[int, Run | None]:
        """(exit code, the finished run; None where it did not finish).  A finished run is not repeated, and one that
        was interrupted goes on.  `reserve_s`: so long before the command's limit this phase ends."""
        from farm.cli import resume
        from farm.cli import run as runs
        from farm.cli.main import parser

        matrix = self._kept(name, text)
        there = self.known(name)
        if there is not None and there.complete:
            print(f"farm {self.command}: {name} is finished", file=sys.stderr)
            return int(there.head.get("exit_code", 0)), there
        if there is not None and not there.begun:
            there = None  # it was killed while its plan was written: it is run anew, under the same name
        limit = self.left_s - reserve_s
        if limit <= 0:
            over = f"the {self.args.limit_minutes:g} minutes are over; repeat the command"
            print(f"farm {self.command}: {over}", file=sys.stderr)
            return InfraError.exit_code, None
        words = ["run", str(matrix), "--run-id", name] if there is None else ["resume", name]
        for option in PASSED if there is None else [o for o in PASSED if o != "backend"]:
            value = getattr(self.args, option)
            words += [f"--{option.replace('_', '-')}", str(value)] if value is not None else []
        words += [w for spec in self.args.provider for w in ("--provider", spec)]
        if there is None:
            words += [w for text in self.args.overrides for w in ("--set", text)]
        words += ["--no-page"] if self.args.no_page else []
        made = parser(words[0]).parse_args(words)
        made.argv, made.limit_s = words, 0.0 if self.ends is None else limit
        code = runs.run(made) if there is None else resume.run(made)
        supervisor.concluded(InfraError.exit_code, complete=False)  # the end of a phase is not this command's
        done = self.store.run(name)
        return code, done if done.complete else None

    def known(self, name: str) -> Run | None:
        """The run of a phase; None where it has not begun."""
        return next((r for r in self.store.runs() if r.id == name), None)

    def partial(self) -> Run | None:
        """What an interrupted first phase has so far; None where the time was over before it began."""
        return self.known(self.name)

    def file(self, name: str) -> Path:
        """The matrix of a phase."""
        return self.store.path / self.folder / f"{name}.yaml"

    def _kept(self, name: str, text: str) -> Path:
        """The matrix in the store, where the run's command line finds it again.  StoreError; UsageError for another
        command of this name."""
        path = self.file(name)
        try:
            other = path.exists() and path.read_text(encoding="utf-8") != text
            if other and self.known(name) is not None:
                another = f"--run-id {name}: another {self.command} has this name; choose another"
                raise UsageError(another, id=f"{self.command}-name")
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(path, text)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror})", id=f"{self.command}-unwritable") from None
        return path
