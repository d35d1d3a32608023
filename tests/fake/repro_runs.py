"""Runs over planted faults, and their scripts, as an author and a colleague without the farm would have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import repro_faults
from farm_command import FarmCommand

from farm.cli import main
from farm.store import Store

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def matrix(name: str) -> str:
    op, operation, dtype, sizes, more, _ = repro_faults.FAULTS[name]
    axes = {"shape": [sizes], "dtype": [dtype], "operation": operation}
    axes |= {k: [v] if isinstance(v, dict) else v for k, v in more.items()}
    providers = {name: {"call": f"repro_faults:{name}"}}
    return json.dumps({"name": name, "op": op, "axes": axes, "providers": providers})


def run(folder: Path, names: Iterable[str], backend: str = "cpu") -> dict[str, dict[str, Any]]:
    """Fault -> its row, of one run over all of these in `folder/store`, on one device."""
    files = []
    for name in names:
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(matrix(name))
    words = ("run", *map(str, files), "--contracts", str(HERE / "repro_contracts"), "--backend", backend, "--no-page")
    words += ("--devices", "1", "--address", "inline") if backend != "cpu" else ()
    where = {"PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)])}
    command = FarmCommand(
        folder, folder / "store", "r", *words, "--run-id", "r", "--out", "store", environment=where
    ).start()
    try:
        assert command.wait() in (0, 1), command.said()
    finally:
        command.end()
    return {row["provider"]: dict(row) for row in Store(folder / "store").run("r").rows}


def script(folder: Path, row: dict[str, Any]) -> Path:
    """The script of a cell, as `farm repro` writes it."""
    file = folder / f"{row['provider']}.py"
    sys.path.insert(0, str(HERE))
    try:
        assert main(["repro", row["cell_key"], "--run", "r", "-o", str(file), "--out", str(folder / "store")]) == 0
    finally:
        sys.path.remove(str(HERE))
    assert file.stat().st_size < 1_000_000
    return file


#: Runs each script as `python FILE` does, in a fork of one process that has imported torch.
EACH = """import os, runpy, sys
import torch
for file in sys.argv[1:]:
    if os.fork() == 0:
        out = os.open(file + ".out", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv[:] = [file]
        try:
            runpy.run_path(file, run_name="__main__")
        except SystemExit as end:
            print("exit", end.code)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def alone(files: list[Path]) -> dict[Path, list[str]]:
    """What each script prints, and last `exit N`, where whatever imports an installed farm fails."""
    trap = files[0].parent / "trap" / "farm"
    trap.mkdir(parents=True, exist_ok=True)
    (trap / "__init__.py").write_text("raise ImportError('the farm itself was imported')")
    packages = Path(numpy.__file__).parents[1]
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join([str(trap.parent), str(packages)])
    words = [sys.executable, "-S", "-c", EACH, *map(str, files)]
    subprocess.run(words, cwd=trap.parent, env=environment, check=True, timeout=60 + 60 * len(files))
    return {file: Path(f"{file}.out").read_text().splitlines() for file in files}


def compared(row: dict[str, Any], said: list[str]) -> None:
    """The script alone prints the status, the sentence, the counts, first places and patterns of the run."""
    assert said[-2:] == ["the same as in run r", f"exit {0 if row['status'] == 'passed' else 1}"], (
        row["cell_id"],
        said,
    )
    for name, place in json.loads(row["places"] or "{}").items():
        facts = f"{name}: count {place['count']} of {place['of']}, first {place['first']}, box {place['box']}"
        pattern = f"{name}: pattern {', '.join(p for p in (place['pattern'], place['values']) if p)}"
        assert {facts, pattern} <= set(said), (facts, pattern, said)
    if row["status"] == "inaccurate":
        assert f"inaccurate: {row['reason']}" in said, (row["reason"], said)
