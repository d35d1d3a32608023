"""One line in the list of runs, from `run.json` alone where it exists.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.report.format import HARM, number
from farm.report.queries import RunLike, by, counts, in_order, journal_damage, writer


@dataclass(frozen=True)
class RunLine:
    """One line of the list of runs."""

    id: str
    created: str
    matrices: str
    commit: str
    backends: dict[str, dict[str, int]]
    planned: int
    findings: int
    seconds: float | None
    verdict: str
    complete: bool
    command: str
    extra: dict[str, Any] = field(default_factory=dict)


def run_line(head: Mapping[str, Any], run_id: str, load: Callable[[], RunLike]) -> RunLine:
    """From run.json alone where it exists; `load` reads an unfinished run from its journal."""
    complete = bool(head.get("complete", "verdict" in head)) and "backends" in head
    damaged = False
    if complete:
        backends = {b: in_order(d.get("counts") or {}) for b, d in head["backends"].items()}
        kind = str(head.get("verdict"))
    else:
        run = load()
        backends = {b: counts(rows) for (b,), rows in by(run.rows, "backend").items()}
        kind = "running" if writer(run) else "interrupted"
        damaged = bool(journal_damage(run))
    return RunLine(
        run_id,
        str(head.get("created") or ""),
        _matrices(head.get("matrices") or []),
        commit(head),
        backends,
        int(head.get("planned") or sum(sum(c.values()) for c in backends.values())),
        sum(c.get(s, 0) for c in backends.values() for s in HARM),
        number(head.get("seconds")),
        kind,
        complete,
        str(head.get("command") or ""),
        {**_extra(head), **({"damaged": True} if damaged else {})},
    )


def unreadable(run_id: str, why: str) -> RunLine:
    """The line of a run that cannot be read."""
    return RunLine(run_id, "", "", "", {}, 0, 0, None, "unreadable", False, why[:1000])


def _matrices(known: Sequence[Mapping[str, Any]]) -> str:
    """`rms_norm, matmul`; for a file with more than two matrices its name: `smoke.yaml (5 matrices)`."""
    files: dict[str, list[str]] = {}
    for i, m in enumerate(known):
        files.setdefault(str(m.get("path") or f"-{i}"), []).append(str(m.get("name")))
    return ", ".join(
        f"{path.rpartition('/')[2]} ({len(names)} matrices)" if len(names) > 2 else ", ".join(names)
        for path, names in files.items()
    )


def _extra(head: Mapping[str, Any]) -> dict[str, Any]:
    """Kind of run, backends with a simulated device, and sites that did not report, as run.json has them."""
    used = head.get("backends") or {}
    simulated = [b for b, d in used.items() if any(x.get("evidence") == "simulated" for x in d.get("devices") or ())]
    return {"kind": str(head.get("kind") or "run"), "simulated": simulated, "silent": list(head.get("silent") or ())}


def commit(head: Mapping[str, Any]) -> str:
    revision = head.get("revision") or {}
    known = str(revision.get("commit") or "")[:10] or str(revision.get("version") or "")
    return f"{known} + changes" if revision.get("dirty") else known
