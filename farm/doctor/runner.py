"""Asks an environment: steps of `farm.doctor.probes`, in a process that is started as a child would be."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from farm.doctor.facts import EnvironmentFacts, ProbeResult
from farm.node.environment import Environment, child_variables, dropped, filled, given_variables
from farm.process.own_modules import module_words
from farm.process.steps import STEP_SECONDS, TOTAL_SECONDS, run_steps
from farm.shipping import bundle

_MODULE = "farm.doctor.probes"
#: As a child is started.
_START = module_words(_MODULE)[1:]
#: The steps in the supervisor's own Python.
trials = partial(run_steps, words=module_words(_MODULE))


def environment(
    there: Environment,
    steps: Sequence[str],
    *,
    name: str = "",
    variables: Mapping[str, str] | None = None,
    step_s: float = STEP_SECONDS,
    total_s: float = TOTAL_SECONDS,
) -> EnvironmentFacts:
    """One environment of this node, asked `steps` (after `python`).

    As a child would be started: another Python than the supervisor's gets the farm and the kernels from bundles, and
    nothing of the supervisor's packages.  `variables` come on top.
    """
    try:
        there = there.located()
    except ValueError as error:
        return EnvironmentFacts(name or there.name, there.own, there.python, failure=str(error))
    words = there.words()
    if words[0] != "{python}" and shutil.which(words[0]) is None:
        missing = EnvironmentFacts(name or there.name, there.own, words[0], missing_program=words[0])
        return replace(missing, failure=f"{words[0]} is not a program on this host")
    with _code(there) as path:
        there = replace(there, path=(*path, *there.path) if not there.own else there.path)
        given = given_variables({}, there)
        places: dict[str, str | Sequence[str]] = {
            "python": sys.executable,
            "path": os.pathsep.join(there.path),
            "spool": str(Path(path[0]).parent) if path else "",
            "name": f"farm-doctor-{secrets.token_hex(6)}",
            "device": "0",
            "uid": str(os.getuid()),
            "gid": str(os.getgid()),
            "child": _START,
            "env": [w for key, value in given.items() for w in ("--env", f"{key}={value}")],
        }
        try:
            command = [_MODULE if w == "farm.child" else w for w in filled(words, places)]
            end = filled(there.end, places)
        except ValueError as error:
            return EnvironmentFacts(
                name or there.name, there.own, " ".join(words), failure=f"the environment's command {error}"
            )
        whole = {**child_variables({}, there), **(variables or {})}
        found = run_steps(["python", *steps], command, step_s=step_s, total_s=total_s, variables=whole, end=end)
        at = str(Path(path[0], "kernels")) if path else ""
    found = _kernels_at_home(found, at)
    return EnvironmentFacts(name or there.name, there.own, command[0], trials=found, dropped=dropped(there))


def _kernels_at_home(found: dict[str, ProbeResult], at: str) -> dict[str, ProbeResult]:
    """Kernels that came from the bundle are told as the bundle's: its folder is gone when somebody reads of it."""
    from farm import kernel_package

    trial = found.get("kernels")
    if trial is not None and at and trial.text == at:
        found["kernels"] = replace(trial, text=str((kernel_package.folder() or Path(at)).resolve()))
    return found


@contextlib.contextmanager
def _code(there: Environment) -> Iterator[tuple[str, ...]]:
    """The folders that another Python imports the farm and the kernels from; none for the supervisor's own."""
    if there.own:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="farm-doctor-") as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101 - a container may run as another user
        yield tuple(str(bundle.install(b.sha, b.blob, folder)) for b in bundle.pack_all())
