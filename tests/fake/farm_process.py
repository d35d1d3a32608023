"""`farm run` as a process of its own, watched through its journal and through /proc.  Every wait has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from farm.store import Run, Store, spool
from farm.store.results import counts

ROOT = Path(__file__).resolve().parents[2]
#: Import path of what is started: ours first, then what this environment needs to find its packages.
IMPORTS = os.pathsep.join([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
MARK = "FARM_TEST_MARK"  # in the environment of the run and of everything that it starts
#: Address of a cluster that a test has started -> the file of its token.
TOKENS: dict[str, str] = {}
T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T], seconds: float = 60.0) -> T:
    """The first true answer of `look`."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def marked(mark: str) -> dict[int, str]:
    """Living processes that carry the mark, with their command lines."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0") and not is_dead(int(entry.name)):
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
    return found


def clean_environ() -> dict[str, str]:
    """This environment without what would change how a command of the farm works."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "FARM_", "TRITON_", "SLURM"))}


def is_dead(pid: int) -> bool:
    """Gone, or a zombie that nobody has asked about yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


@dataclass
class FarmRun:
    """One `farm run` of a matrix's text."""

    folder: Path
    matrix: str
    arguments: tuple[str, ...] = ()
    address: str = "inline"
    backend: str = "sim"
    environment: dict[str, str] = field(default_factory=dict)
    python: tuple[str, ...] = ("-m", "farm")

    def __post_init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.run_id = f"t{self.mark}"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "m.yaml").write_text(self.matrix, encoding="utf-8")
        self.store = Store(self.folder / "store")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def spool(self) -> Path:
        """The run's folder in shared memory while it is there; its name ends in what only the run knows."""
        name = Path(spool.folder(self.run_id))
        return next(iter(name.parent.glob(f"{name.name}-*")), name)

    def start(self, **popen: Any) -> FarmRun:
        command = [
            sys.executable,
            *self.python,
            "run",
            "m.yaml",
            "--backend",
            self.backend,
            "--address",
            self.address,
            "--out",
            str(self.store.path),
            "--run-id",
            self.run_id,
            *self.arguments,
        ]
        with (self.folder / "out.txt").open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={
                    **clean_environ(),
                    "PYTHONPATH": IMPORTS,
                    "FARM_CACHE": str(self.folder / "cache"),
                    MARK: self.mark,
                    **({"RAY_AUTH_TOKEN_PATH": TOKENS[self.address]} if self.address in TOKENS else {}),
                    **self.environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own, as a shell gives to a command
                **popen,
            )
        return self

    def wait(self, seconds: float = 180.0) -> int:
        """The exit code; a run that hangs fails the test and is ended."""
        assert self.process is not None
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"the run was still going after {seconds:g} s:\n{self.said()}") from None

    @property
    def worker(self) -> int:
        """The pid of the process that does the work, under the one that was started."""
        assert self.process is not None
        found = marked(self.mark)
        return next(p for p, line in found.items() if line == found[self.process.pid] and p != self.process.pid)

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the whole foreground group."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)

    def said(self) -> str:
        return (self.folder / "out.txt").read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """Nothing of this run is left, whatever happened."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=20)
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # what is on disk

    @property
    def run(self) -> Run:
        return self.store.run(self.run_id)

    def journal(self, event: str | None = None) -> list[dict[str, Any]]:
        path = self.store.path / "runs" / self.run_id / "journal.jsonl"
        if not path.is_file():
            return []
        lines = list(Run(path.parent).journal())
        return [line for line in lines if event is None or line["event"] == event]

    def wait_for(self, event: str, count: int = 1, seconds: float = 120.0) -> list[dict[str, Any]]:
        """At least `count` events of a kind."""

        def look() -> list[dict[str, Any]]:
            found = self.journal(event)
            assert self.process is None or self.process.poll() is None or len(found) >= count, self.said()
            return found if len(found) >= count else []

        return wait_for(f"{count} x {event}", look, seconds)

    def rows(self) -> list[dict[str, Any]]:
        """The run's rows; every planned cell is accounted for."""
        rows = self.run.rows
        assert sum(counts(rows).values()) == self.run.head["planned"] == len(rows)
        return rows

    def row_of(self, hidden: int) -> dict[str, Any]:
        """The row of the one cell with so many columns."""
        (row,) = [r for r in self.run.rows if json.loads(r["dims"])["hidden"] == hidden]
        return row

    def child_pids(self) -> dict[str, int]:
        """Device -> pid of the child that it came up with."""
        return {e["device"]: e["pid"] for e in self.journal("device_up")}

    # what is left

    def assert_nothing_left(self, seconds: float = 30.0, *, but: tuple[str, ...] = ()) -> None:
        """No process of the run is alive, `but` those whose command lines begin so."""
        end = time.monotonic() + seconds
        while left := {pid: line[:200] for pid, line in marked(self.mark).items() if not line.startswith(but or "-")}:
            assert time.monotonic() < end, f"left behind: {json.dumps(left, indent=1)}"
            time.sleep(0.1)

    def assert_interrupted(self, finished: list[dict[str, Any]]) -> None:
        """The journal holds what had finished, the rest is lost, and nothing says complete."""
        assert not (self.run.dir / "run.json").exists()
        assert not self.run.complete
        rows = {r["cell_id"]: r for r in self.rows()}
        for event in finished:
            assert rows[event["row"]["cell_id"]] == event["row"]
        kept = {e["row"]["cell_id"] for e in self.journal("result")}
        assert 0 < len(kept) < len(rows)
        for cell_id, row in rows.items():
            assert (row["status"] == "lost") == (cell_id not in kept), row
