"""One line in the list of runs, from `run.json` alone where it exists.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.report.format import HARM, number
from farm.report.queries import RunLike, as_shown, by, counts, in_order, journal_damage, proven, writer

#: Exit code of a comparison -> the kind of verdict.
VERDICTS = {0: "passed", 1: "findings", 3: "farm_fault"}


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
    proves: str = ""  # `built` or `simulated`, where no cell passed otherwise
    simulated: dict[str, bool] = field(default_factory=dict)  # backends with a simulated device: whether all are
    extra: dict[str, Any] = field(default_factory=dict)


def run_line(head: Mapping[str, Any], run_id: str, load: Callable[[], RunLike]) -> RunLine:
    """From run.json alone where it exists; `load` reads an unfinished run from its journal."""
    complete = bool(head.get("complete", "verdict" in head)) and "backends" in head
    damaged = False
    if complete:
        backends = {b: in_order(d.get("counts") or {}) for b, d in head["backends"].items()}
        kinds = {b: _kinds(b, d) for b, d in head["backends"].items()}
        kind = str(head.get("verdict"))
    else:
        run = as_shown(load())
        found = by(run.rows, "backend")
        backends = {b: counts(rows) for (b,), rows in found.items()}
        kinds = {b: {str(r["evidence"]) for r in rows if r.get("evidence")} for (b,), rows in found.items()}
        kind = "running" if writer(run) else "interrupted"
        damaged = bool(journal_damage(run))
    proves = proven(k for b in backends for k in _proves(backends[b], kinds[b]))
    extra: dict[str, Any] = {"kind": kind_of(head), "silent": list(head.get("silent") or ())}
    if compared := comparison_of(head):  # its verdict is that of b against a, not that of all results in both
        kind = VERDICTS.get(compared[1], "inconclusive")
        extra["comparison"] = compared[0]
    return RunLine(
        run_id,
        str(head.get("created") or ""),
        _matrices(head.get("matrices") or []),
        commit(head),
        backends,
        int(head.get("planned") or sum(sum(c.values()) for c in backends.values())),
        sum(c.get(s, 0) for c in backends.values() for s in HARM),
        number(head.get("seconds")),
        proves if kind == "passed" and proves else kind,
        complete,
        str(head.get("command") or ""),
        proves,
        {b: kinds[b] <= {"simulated"} for b in backends if "simulated" in kinds[b] or b == "sim"},
        {**extra, **({"damaged": True} if damaged else {})},
    )


def kind_of(head: Mapping[str, Any]) -> str:
    """What made a run: `run`, `compile`, `merged`, `judged`, `ab` (two arms), `arm` (one of them, interpreted)."""
    return str(head.get("kind") or ("arm" if list(head.get("argv") or ())[:1] == ["ab"] else "run"))


def comparison_of(head: Mapping[str, Any]) -> tuple[str, int] | None:
    """(verdict, exit code) of a complete run of two arms; None for any other."""
    found = head.get("comparison") if head.get("arms") else None
    if not isinstance(found, Mapping):
        return None
    return str(found.get("verdict") or ""), int(found.get("exit_code") or 0)


def unreadable(run_id: str, why: str) -> RunLine:
    """The line of a run that cannot be read."""
    return RunLine(run_id, "", "", "", {}, 0, 0, None, "unreadable", False, why[:1000])


def _kinds(backend: str, used: Mapping[str, Any]) -> set[str]:
    """The kinds of evidence of a backend's devices, as far as run.json tells; "" for unknown."""
    default = "simulated" if backend == "sim" else ""
    return {str(d.get("evidence") or default) for d in used.get("devices") or ()} or {default}


def _proves(counts: Mapping[str, int], kinds: Iterable[str]) -> set[str]:
    """The kinds of evidence by which a backend's cells passed."""
    return ({*kinds} if counts.get("passed") else set()) | ({"compiled"} if counts.get("built") else set())


def _matrices(known: Sequence[Mapping[str, Any]]) -> str:
    """`rms_norm, matmul`; for a file with more than two matrices its name: `smoke.yaml (5 matrices)`."""
    files: dict[str, list[str]] = {}
    for i, m in enumerate(known):
        files.setdefault(str(m.get("path") or f"-{i}"), []).append(str(m.get("name")))
    return ", ".join(
        f"{path.rpartition('/')[2]} ({len(names)} matrices)" if len(names) > 2 else ", ".join(names)
        for path, names in files.items()
    )


def commit(head: Mapping[str, Any]) -> str:
    revision = head.get("revision") or {}
    known = str(revision.get("commit") or "")[:10] or str(revision.get("version") or "")
    return f"{known} + changes" if revision.get("dirty") else known
