"""Runs the command once, with the hook first on its PYTHONPATH, and reads what its processes wrote down."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.contracts.base import Contract
from farm.errors import UsageError
from farm.process.group import ProcessGroup
from farm.process.interrupts import heard
from farm.record.calls import Run, attributes
from farm.record.targets import Target

HOOK = Path(__file__).resolve().parent / "hook"
#: Processes whose records are read.
MOST_PROCESSES = 1000
#: What a process that is stopped at the deadline has to write down its counts.
GRACE = 2.0
_LOOK = 0.5


def words(command: Sequence[str]) -> list[str]:
    """The command to start; a Python script is started with this Python."""
    first = command[0]
    if first.endswith(".py") and not os.access(first, os.X_OK):
        return [sys.executable, *command]
    return [*command]


def settings(targets: Sequence[Target], contracts: Mapping[str, Contract]) -> dict[str, Any]:
    """What the hook reads."""
    return {
        "targets": [
            {
                "path": t.path,
                "after": t.module,
                "names": list(t.names),
                "attributes": [] if t.means else attributes(contracts[t.op]),
            }
            for t in targets
        ]
    }


def variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The command's environment.  A compiled function would call none of those that are wrapped, so compiling is off
    unless the user has set that himself."""
    path = [str(HOOK), *filter(None, [environment.get("PYTHONPATH")])]
    return {"TORCHDYNAMO_DISABLE": "1", **environment, "PYTHONPATH": os.pathsep.join(path), "FARM_RECORD": str(folder)}


def run(command: Sequence[str], folder: Path, seconds: float, environment: Mapping[str, str]) -> int | None:
    """The exit code of the command, which has the terminal's streams; None if it was stopped at the deadline.
    UsageError if it cannot be started."""
    started = words(command)
    if shutil.which(started[0], path=environment.get("PATH")) is None:
        raise UsageError(
            f"{started[0]}: no such program; write a command after --, for example farm record -- python script.py",
            id="record-no-command",
        )
    try:
        group = ProcessGroup(
            started, env=variables(folder, environment), stdin=_standard_input(), stdout=None, stderr=None
        )
    except OSError as error:
        raise UsageError(
            f"{started[0]}: cannot be started ({error.strerror}); check that it is a program", id="record-not-started"
        ) from None
    try:
        with heard():
            left = seconds
            while left > 0 and group.wait(min(_LOOK, left)) is None:
                left -= _LOOK
            return group.code
    finally:
        group.close(GRACE)


def _standard_input() -> Any:
    """Ours, for a program that asks; nothing where there is none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return -3  # subprocess.DEVNULL


def collect(folder: Path, targets: Sequence[Target], contracts: Mapping[str, Contract]) -> Run:
    """What the processes wrote down; a line that was cut off by a kill is left out."""
    found = Run()
    by_path = {t.path: t for t in targets}
    for file in sorted(folder.glob("*.calls"))[:MOST_PROCESSES]:
        counts = _counts(file.with_suffix(".counts"))
        found.processes += 1
        found.lost += counts.get("dropped", 0)
        for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if "wrapped" in line:
                found.imported.add(line["wrapped"])
            elif "missing" in line:
                found.missing[line["missing"]] = line["why"]
            elif "new" in line and line["target"] in by_path:
                target = by_path[line["target"]]
                calls, backward = counts.get("counts", {}).get(str(line["new"]), (1, 0))
                found.add(target, contracts[target.op], line, max(calls, 1), backward)
    return found


def _counts(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
