"""Asks an environment: steps of `farm.doctor.attempts` in a process of their own, whose every wait has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.actor import supervise
from farm.actor.environment import START
from farm.deadline import Deadline
from farm.doctor.facts import Environment, Trial
from farm.shipping import bundle

STEP_SECONDS = 60.0
TOTAL_SECONDS = 150.0
_MODULE = "farm.doctor.attempts"
#: As a child is started: from its PYTHONPATH first, wherever it stands and whatever a `.pth` file of that Python names.
_START = tuple(word.replace("farm.child", _MODULE) for word in START)


def trials(
    steps: Sequence[str], *, step_s: float = STEP_SECONDS, total_s: float = TOTAL_SECONDS,
    command: Sequence[str] = (sys.executable, "-m", _MODULE), variables: Mapping[str, str] | None = None,
    end: Sequence[str] = (),
) -> dict[str, Trial]:  # fmt: skip
    """Try `steps` in one process; where one kills it or hangs, the rest goes on in another.

    `variables`: the process's whole environment, else that of a child on the supervisor's own Python.  `end`: the
    command that ends a container whose client was killed.
    """
    if variables is None:
        variables = supervise.child_variables({}, supervise.Environment.default())
    out: dict[str, Trial] = {}
    deadline = Deadline(total_s)
    while left := [s for s in steps if s not in out]:
        if deadline.remaining < 1.0:
            out |= dict.fromkeys(left, Trial("skipped", f"no time is left of {total_s:g} s"))
            break
        out |= _one_process(left, step_s, deadline, command, variables, end)
    return out


def own_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a process of the supervisor's own: all of `environ` (this one's), and where it imports from."""
    return {**(os.environ if environ is None else environ), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def _one_process(
    steps: list[str], step_s: float, deadline: Deadline, command: Sequence[str], variables: Mapping[str, str],
    end: Sequence[str],
) -> dict[str, Trial]:  # fmt: skip
    """What came of `steps` until the end of one process, at least of the first."""
    with tempfile.TemporaryFile() as said:  # a file, not a pipe: what a library starts may keep a pipe open
        try:
            process = subprocess.Popen(
                [*command, *steps], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL,
                env=dict(variables), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return dict.fromkeys(steps, Trial("died", f"{command[0]}: {error.strerror or error}"))
        try:
            found, current, ended = _follow(process, lambda: _lines(said.fileno()), step_s, deadline)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if end:
                with contextlib.suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(list(end), capture_output=True, timeout=20, check=False)
    if ended is not None:
        found[current or next(s for s in steps if s not in found)] = ended
    return found


def _follow(
    process: subprocess.Popen[bytes], read: Callable[[], list[dict[str, Any]]], step_s: float, deadline: Deadline
) -> tuple[dict[str, Trial], str, Trial | None]:
    """Trials that ended, the step that did not, and how that ended; None where all of them did."""
    step = Deadline(step_s)
    seen = 0
    while True:
        code = process.poll()
        lines = read()
        if len(lines) != seen:
            seen, step = len(lines), Deadline(step_s)
        found = {
            line["step"]: Trial(line["ended"], line.get("text", ""), line.get("data", {}))
            for line in lines
            if line["ended"] != "begun"
        }
        current = next((line["step"] for line in reversed(lines) if line["step"] not in found), "")
        if code is not None:
            ended = code == 0 and not current and bool(found)
            return found, current, None if ended else Trial("died", supervise.describe_exit(code))
        if step.expired or deadline.expired:
            return found, current, Trial("hung", f"{min(step.seconds, deadline.seconds):g} s")
        time.sleep(0.05)


def _lines(descriptor: int) -> list[dict[str, Any]]:
    """The whole lines written so far; the writer's own place in the file is left alone.  What a container's client says
    among them is not ours."""
    whole = os.pread(descriptor, os.fstat(descriptor).st_size, 0).rpartition(b"\n")[0]
    out = []
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and "step" in said and "ended" in said:
                out.append(said)
    return out


def environment(
    there: supervise.Environment, steps: Sequence[str], *, name: str = "", variables: Mapping[str, str] | None = None,
    step_s: float = STEP_SECONDS, total_s: float = TOTAL_SECONDS,
) -> Environment:  # fmt: skip
    """One environment of this node, asked `steps` (after `python`).

    As a child would be started: another Python than the supervisor's gets the farm and the kernels from bundles, and
    nothing of the supervisor's packages.  `variables` come on top.
    """
    try:
        there = there.located()
    except ValueError as error:
        return Environment(name or there.name, there.own, there.python, failure=str(error))
    words = there.words()
    if words[0] != "{python}" and shutil.which(words[0]) is None:
        missing = Environment(name or there.name, there.own, words[0], missing_program=words[0])
        return replace(missing, failure=f"there is no program {words[0]} here")
    with _code(there) as path:
        there = replace(there, path=(*path, *there.path) if not there.own else there.path)
        given = supervise.given_variables({}, there)
        places: dict[str, str | Sequence[str]] = {
            "python": sys.executable, "path": os.pathsep.join(there.path),
            "spool": str(Path(path[0]).parent) if path else "",
            "name": f"farm-doctor-{secrets.token_hex(6)}", "device": "0", "uid": str(os.getuid()),
            "gid": str(os.getgid()), "child": _START,
            "env": [w for key, value in given.items() for w in ("--env", f"{key}={value}")],
        }  # fmt: skip
        try:
            command = [_MODULE if w == "farm.child" else w for w in supervise.filled(words, places)]
            end = supervise.filled(there.end, places)
        except ValueError as error:
            return Environment(name or there.name, there.own, " ".join(words), failure=f"its command {error}")
        whole = {**supervise.child_variables({}, there), **(variables or {})}
        found = trials(
            ["python", *steps], step_s=step_s, total_s=total_s, command=command, variables=whole, end=end
        )  # fmt: skip
        at = str(Path(path[0], "kernels")) if path else ""
    return Environment(name or there.name, there.own, command[0], trials=_kernels_at_home(found, at))


def _kernels_at_home(found: dict[str, Trial], at: str) -> dict[str, Trial]:
    """Kernels that came from the bundle are told as the bundle's: its folder is gone when somebody reads of it."""
    from farm.ops import ROOT

    trial = found.get("kernels")
    if trial is not None and at and trial.text == at:
        found["kernels"] = replace(trial, text=str(ROOT / "kernels"))
    return found


@contextlib.contextmanager
def _code(there: supervise.Environment) -> Iterator[tuple[str, ...]]:
    """The folders that another Python imports the farm and the kernels from; none for the supervisor's own."""
    if there.own:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="farm-doctor-") as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101 - a container may run as another user
        yield tuple(str(bundle.install(b.sha, b.blob, folder)) for b in bundle.pack_all())
