"""Tries steps in a process of their own: one that kills it, or hangs, costs itself alone.

The process writes a JSON line when a step begins ({"step": S, "ended": "begun"}) and one when it ends (the fields of a
`ProbeResult`); `farm.doctor.probes` and `farm.cluster.connect_probe` do.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.deadline import Deadline
from farm.process import command
from farm.process.group import describe_exit
from farm.process.line_process import ChildDied, ChildLied, ChildTimedOut, LineProcess
from farm.process.own_modules import own_variables

STEP_SECONDS = 60.0
TOTAL_SECONDS = 150.0
#: How long the command may take that ends a container.
END_SECONDS = 20.0


@dataclass(frozen=True)
class ProbeResult:
    """The result of one step in a separate process.  `ended`: ok, missing (ImportError), failed (another exception),
    died (by exit code or signal), hung (past its deadline), skipped (no time was left, or not requested)."""

    ended: str
    text: str = ""  # what was found, or why not
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.ended == "ok"

    @property
    def tried(self) -> bool:
        return self != SKIPPED

    def __str__(self) -> str:
        """Why it is not ok."""
        words = {"died": "the process ended with ", "hung": "did not answer within ", "skipped": "skipped: "}
        return words.get(self.ended, "") + self.text


SKIPPED = ProbeResult("skipped", "not requested")


def run_steps(
    steps: Sequence[str],
    words: Sequence[str],
    *,
    step_s: float = STEP_SECONDS,
    total_s: float = TOTAL_SECONDS,
    variables: Mapping[str, str] | None = None,
    end: Sequence[str] = (),
) -> dict[str, ProbeResult]:
    """Try `steps`, which are the arguments of the command `words`; where one ends the process, the rest goes on in
    another.

    `variables`: the process's whole environment, else `own_variables`.  `end`: the command that ends a container whose
    client was killed.
    """
    variables = own_variables() if variables is None else variables
    out: dict[str, ProbeResult] = {}
    deadline = Deadline(total_s)
    while left := [s for s in steps if s not in out]:
        if deadline.remaining < 1.0:
            out |= dict.fromkeys(left, ProbeResult("skipped", f"no time left of the {total_s:g} s"))
            break
        out |= _one_process(left, words, step_s, deadline, variables, end)
    return out


def _one_process(
    steps: Sequence[str],
    words: Sequence[str],
    step_s: float,
    deadline: Deadline,
    variables: Mapping[str, str],
    end: Sequence[str],
) -> dict[str, ProbeResult]:
    """What came of `steps` until the end of one process, at least of the first."""
    try:
        process = LineProcess([*words, *steps], env=variables)
    except OSError as error:
        return dict.fromkeys(steps, ProbeResult("died", f"{words[0]}: {error.strerror or error}"))
    found: dict[str, ProbeResult] = {}
    current, ended = "", None
    limit = Deadline(min(step_s, deadline.remaining))
    try:
        while True:
            said = _parsed(process.read(limit))
            if said is None:
                continue
            limit = Deadline(min(step_s, deadline.remaining))
            current = said["step"] if said["ended"] == "begun" else ""
            if not current:
                found[said["step"]] = ProbeResult(said["ended"], said.get("text", ""), said.get("data", {}))
    except ChildTimedOut:
        ended = ProbeResult("hung", f"{min(step_s, deadline.seconds):g} s")
    except ChildDied as error:
        ended = None if error.code == 0 and found and not current else ProbeResult("died", describe_exit(error.code))
    except ChildLied as error:
        ended = ProbeResult("failed", f"the process {error}")
    finally:
        process.close()
        if end:
            with contextlib.suppress(OSError):
                command.run(end, END_SECONDS)
    blamed = current or next((s for s in steps if s not in found), "")
    return {**found, blamed: ended} if ended and blamed else found


def _parsed(line: bytes) -> dict[str, Any] | None:
    """What a line says; what a container's client says among them is not ours."""
    with contextlib.suppress(ValueError):
        said = json.loads(line)
        if isinstance(said, dict) and "step" in said and "ended" in said:
            return said
    return None
