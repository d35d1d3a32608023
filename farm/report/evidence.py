"""What one run, and all runs of a store, prove about each backend, by kind of evidence.  Pure, except `collect`, which
reads runs.

Kinds of evidence are never added up: a kernel that is correct in the interpreter may be wrong on the device that it was
compiled for, and a simulated device proves nothing about any kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.report.format import cells, count, number
from farm.report.provenance import devices, flat
from farm.report.queries import Row, RunLike, counts, is_subject, later_schema, parse, writer
from farm.report.run_lines import RunLine, run_line, unreadable
from farm.sites.merging import told_of_kit
from farm.store.results import place

#: Kind -> what it proves, strongest first.
KINDS: Mapping[str, str] = {
    "executed": "ran on the device: proves results and times on this device",
    "compiled": "built for the target without a device: proves that kernels build; shows registers, spills and memory",
    "interpreted": "ran on a CPU, Triton kernels in the interpreter: proves numerics, never speed",
    "simulated": "ran on a simulated device, which follows a script: proves nothing about a kernel",
    "imported": "published by others, on hardware as they state it: nothing of it was run or judged here",
}
#: Hardware that kernels are written for: for these, missing kinds of evidence are listed too.
FAMILIES = ("cuda", "rocm", "ascend")
#: The parts of a tool chain, in the order in which they are shown.
_TOOLS = (
    "torch",
    "torch_npu",
    "triton",
    "triton_ascend",
    "cuda",
    "rocm",
    "hip",
    "cann",
    "stack",
    "ptxas",
    "driver",
    "kernels_table",
)
_MAX_SHOWN = 4
#: Version of what `collect` returns; a file of another version is not read.
VERSION = 4


@dataclass(frozen=True)
class Proof:
    """What one run proves about one backend (or named target) on one kind of device, by one kind of evidence."""

    place: str  # cuda, cuda@GB200
    backend: str
    evidence: str
    target: str
    counts: dict[str, int]
    devices: tuple[str, ...]
    nodes: tuple[str, ...]
    tools: tuple[str, ...]  # one entry per tool chain
    environments: tuple[str, ...]
    last: str  # ISO 8601, UTC: when the last of its cells ended
    covered: tuple[tuple[str, str, int, int], ...] = ()  # of subjects: (op, provider, cells that passed, cells)

    @property
    def cells(self) -> int:
        return sum(self.counts.values())


def proofs(run: RunLike) -> list[Proof]:
    """In the plan's order of places; cells without evidence are in none of them."""
    named = _environments(run)
    out = []
    for (where, target, evidence), rows in _grouped(run.rows).items():
        out.append(
            Proof(
                where,
                where.partition("@")[0],
                evidence,
                target,
                counts(rows),
                devices=numbered(_texts(r.get("device") for r in rows)),
                nodes=_texts(r.get("node") for r in rows),
                tools=tuple(dict.fromkeys(tool_chain(str(r.get("fingerprint") or "")) for r in rows)),
                environments=tuple(dict.fromkeys(n for r in rows for n in named.get(_of(r), ()))),
                last=_last(rows) or str(run.head.get("finished") or run.head.get("created") or ""),
                covered=_covered(rows),
            )
        )
    return out


def _covered(rows: Iterable[Row]) -> tuple[tuple[str, str, int, int], ...]:
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for r in rows:
        if is_subject(r):
            of = found[str(r.get("op")), str(r.get("provider"))]
            of[0] += r.get("status") in ("passed", "built")
            of[1] += 1
    return tuple((op, provider, passed, all_) for (op, provider), (passed, all_) in sorted(found.items()))


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for r in rows:
        if r.get("evidence"):
            found[place(r), str(r.get("target") or ""), str(r["evidence"])].append(r)
    return found


def unproven(run: RunLike) -> dict[str, dict[str, int]]:
    """Place -> status -> cells that have no evidence."""
    found: dict[str, list[Row]] = defaultdict(list)
    for r in run.rows:
        if not r.get("evidence"):
            found[place(r)].append(r)
    return {where: counts(rows) for where, rows in found.items()}


def simulated(run: RunLike) -> tuple[str, ...]:
    """Places of which at least one cell ran on a simulated device."""
    return tuple(dict.fromkeys(place(r) for r in run.rows if r.get("evidence") == "simulated"))


def kinds_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """The kinds of evidence of some rows, strongest first."""
    seen = {str(r.get("evidence")) for r in rows if r.get("evidence")}
    return tuple([k for k in KINDS if k in seen] + sorted(seen - set(KINDS)))


def _environments(run: RunLike) -> dict[tuple[str, str], tuple[str, ...]]:
    """(device, node) -> the environments that its children ran in."""
    out: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for _, d in devices(run):
        if d.get("environment"):
            out[str(d.get("name")), str(d.get("node"))][str(d["environment"])] = None
    return {key: tuple(names) for key, names in out.items()}


def environments_of(run: RunLike, rows: Sequence[Row]) -> tuple[str, ...]:
    """The environments of the devices that some rows ran on."""
    named = _environments(run)
    return tuple(dict.fromkeys(n for r in rows for n in named.get(_of(r), ())))


def _of(row: Row) -> tuple[str, str]:
    return str(row.get("device") or ""), str(row.get("node") or "")


@dataclass(frozen=True)
class Siblings:
    """How busy sibling devices were while cells were measured."""

    most: int  # busy at once
    busy: int  # cells with at least one
    cells: int  # cells for which they were counted

    def __str__(self) -> str:
        if not self.most:
            return "sibling devices idle throughout"
        at_once = f" (up to {self.most} at once)" if self.most > 1 else ""
        return f"a sibling device was busy in {count(self.busy)} of {cells(self.cells)}{at_once}"


def siblings(rows: Iterable[Row]) -> Siblings | None:
    """None where no cell recorded it."""
    busy = [int(n) for r in rows if (n := number(r.get("neighbours_busy"))) is not None]
    return Siblings(max(busy), len(busy) - busy.count(0), len(busy)) if busy else None


def tool_chain(fingerprint: str) -> str:
    """`torch 2.11.0+cu130, triton 3.6.0`: the tools that a fingerprint's JSON names."""
    versions = flat(parse(fingerprint) or {})
    return ", ".join(f"{name.replace('_', '-')} {versions[name]}" for name in _TOOLS if versions.get(name))


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(sorted({str(v) for v in values if v}))


def numbered(names: Iterable[str]) -> tuple[str, ...]:
    """Devices of one name together: `NVIDIA H200 #0 to #3, #6` for five of them; other names as they are."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for name in names:
        stem, sharp, tail = name.rpartition(" #")
        numbers[stem if sharp and tail.isdecimal() else name] += [int(tail)] if sharp and tail.isdecimal() else []
    return tuple(f"{stem} {_spans(found)}" if found else stem for stem, found in numbers.items())


def _spans(numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"#{a}" if a == b else f"#{a}{', ' if b == a + 1 else ' to '}#{b}" for a, b in spans)


def _last(rows: Sequence[Row]) -> str:
    ends = [float(r["started"]) + float(number(r.get("seconds")) or 0.0) for r in rows if number(r.get("started"))]
    return datetime.fromtimestamp(max(ends), timezone.utc).isoformat(timespec="seconds") if ends else ""


# ---- a store ----


@dataclass(frozen=True)
class EvidenceNote:
    """A proof, and the run that it comes from."""

    run: str
    proof: Proof


@dataclass(frozen=True)
class EvidenceLine:
    """What a store's runs prove about one target by one kind of evidence: the newest run, the one with most cells, and
    the number of runs.  Counts are those of the named run, since two runs may contain the same cells."""

    evidence: str
    target: str
    newest: EvidenceNote | None = None
    widest: EvidenceNote | None = None
    runs: int = 0

    @property
    def tools(self) -> tuple[str, ...]:
        return self.newest.proof.tools[:_MAX_SHOWN] if self.newest else ()


@dataclass(frozen=True)
class EvidenceFamily:
    """One backend's lines, strongest evidence first; `never`: the kinds that a kernel farm should have for it and this
    store does not."""

    backend: str
    lines: tuple[EvidenceLine, ...]
    never: tuple[str, ...]


def families(known: Mapping[str, Sequence[Proof]]) -> list[EvidenceFamily]:
    """What the runs prove, per backend; `known`: run -> its proofs."""
    found: dict[str, dict[tuple[str, str], list[EvidenceNote]]] = {b: {} for b in FAMILIES}
    for run, mine in known.items():
        for p in mine:
            found.setdefault(p.backend, {}).setdefault((p.evidence, p.target), []).append(EvidenceNote(run, p))
    order = [*KINDS]
    out = []
    for backend, groups in found.items():
        lines = [
            EvidenceLine(
                evidence,
                target,
                newest=max(notes, key=lambda n: n.proof.last),
                widest=max(notes, key=lambda n: n.proof.cells),
                runs=len({n.run for n in notes}),
            )
            for (evidence, target), notes in groups.items()
        ]
        lines.sort(key=lambda x: (order.index(x.evidence) if x.evidence in order else len(order), x.target))
        wanted = ("executed", "compiled") if backend in FAMILIES else ()
        never = tuple(k for k in wanted if k not in {x.evidence for x in lines})
        out.append(EvidenceFamily(backend, tuple(lines), never))
    return sorted(out, key=lambda f: (f.backend not in FAMILIES, f.backend == "sim"))


@dataclass(frozen=True)
class Covered:
    """The newest proof of an op's provider on one backend's target by one kind of evidence."""

    backend: str
    evidence: str
    target: str
    passed: int
    cells: int
    run: str
    last: str


def coverage(known: Mapping[str, Sequence[Proof]]) -> dict[tuple[str, str], dict[str, list[Covered]]]:
    """What ran where: (op, provider) of subjects -> backend -> its targets and kinds of evidence, strongest first.
    Counts are those of the newest run."""
    newest: dict[tuple[str, str, str, str, str], Covered] = {}
    for run, mine in known.items():
        for p in mine:
            for op, provider, passed, cells_ in p.covered:
                key = (op, provider, p.backend, p.evidence, p.target)
                if key not in newest or newest[key].last < p.last:
                    newest[key] = Covered(p.backend, p.evidence, p.target, passed, cells_, run, p.last)
    order = [*KINDS]
    out: dict[tuple[str, str], dict[str, list[Covered]]] = {}
    for (op, provider, backend, *_), one in sorted(newest.items()):
        out.setdefault((op, provider), {}).setdefault(backend, []).append(one)
    for of in out.values():
        for found in of.values():
            found.sort(key=lambda c: (order.index(c.evidence) if c.evidence in order else len(order), c.target))
    return out


def evidence_json(known: Mapping[str, Sequence[Proof]]) -> dict[str, Any]:
    """The page of evidence as data."""
    return {
        "kinds": dict(KINDS),
        "simulated": any(p.evidence == "simulated" for of in known.values() for p in of),
        "backends": [
            {
                "backend": f.backend,
                "never": list(f.never),
                "evidence": [
                    {
                        "evidence": x.evidence,
                        "target": x.target,
                        "runs": x.runs,
                        **({"newest": x.newest.run, **asdict(x.newest.proof)} if x.newest else {}),
                    }
                    for x in f.lines
                ],
            }
            for f in families(known)
        ],
        "coverage": [
            {"op": op, "provider": provider, "backends": {b: [asdict(c) for c in of] for b, of in found.items()}}
            for (op, provider), found in coverage(known).items()
        ],
    }


def collect(
    found: Sequence[RunLike],
    load: Callable[[str], RunLike],
    kept: Mapping[str, Any],
    large: int,
    late: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run -> {"as_of", "proofs", "line" of the list of runs} as plain data.  `kept` is used for runs that have not
    changed since, and for those of at least `large` bytes while they are being written.  A run that cannot be read has
    no proofs and the verdict `unreadable`: whatever is in its folder must not fail another run, so every exception
    counts as that.  Once it is `late`, the cells of older runs are not read: these have a line, which is kept, and,
    until another time, no proofs."""
    out: dict[str, Any] = {}
    for run in reversed(found):
        name, folder = run.id, Path(getattr(run, "dir", "nowhere"))
        mark, known = as_of(folder), kept.get(name) or {}
        if known and mark and (known.get("as_of") == mark or (_size(mark) >= large and writer(run))):
            out[name] = known
            continue
        one = None
        if mark and known.get("line_as_of") == mark and late():
            out[name] = known
            continue
        try:
            one = load(name)
            if late() and getattr(one, "complete", False):
                line = asdict(run_line(one.head, name, lambda one=one: one))  # type: ignore[misc]
                out[name] = {"as_of": "", "line_as_of": mark, "proofs": [], "line": line}
                continue
            line = asdict(run_line(one.head, name, lambda one=one: one))  # type: ignore[misc]
            out[name] = {"as_of": mark, "proofs": [asdict(p) for p in proofs(one)], "line": line}
        except Exception as error:
            again = isinstance(error, OSError)  # which may pass without a change of the files
            line = asdict(unreadable(name, why_unreadable(one, error)))
            out[name] = {"as_of": "" if again else mark, "proofs": [], "line": line}
    return {run.id: out[run.id] for run in found}


def why_unreadable(run: Any, error: Exception) -> str:
    """The reason that a reader is told; that of a run of a later farm is its schema, whatever its files raise."""
    with suppress(Exception):
        if later := later_schema(run.head):
            return later
    return str(error) or type(error).__name__


def thaw(collected: Mapping[str, Any]) -> dict[str, list[Proof]]:
    """The result of `collect`, or a file of it, as proofs."""
    lists = ("devices", "nodes", "tools", "environments")
    return {
        run: [
            Proof(**{**p, **{n: tuple(p[n]) for n in lists}, "covered": tuple(tuple(c) for c in p["covered"])})
            for p in entry["proofs"]
        ]
        for run, entry in collected.items()
    }


def lines(collected: Mapping[str, Any], found: Iterable[RunLike]) -> list[RunLine]:
    """The list of runs: the result of `collect`, with the verdict that unfinished runs have now."""
    out = []
    for run in found:
        line = RunLine(**collected[run.id]["line"])
        if line.verdict in ("running", "interrupted"):
            line = replace(line, verdict="running" if writer(run) else "interrupted")
        out.append(line)
    return out


def _size(as_of: str) -> int:
    return int(as_of.rpartition(":")[2])


def as_of(folder: Path) -> str:
    """Changes when a run does; "" where that is unknown."""
    for name in ("run.json", "journal.jsonl"):
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        return f"{name}:{status.st_mtime_ns}:{status.st_size}"
    return ""


# ---- sites ----


@dataclass(frozen=True)
class Site:
    """One run that a merged run is made of, or a target that no site reported (`run` is "")."""

    run: str
    part: str
    nodes: str
    finished: str
    revision: str
    complete: bool
    counts: dict[str, int]
    by: str = ""  # of a kit's run: who executed it, where, on what


def sites(run: RunLike) -> list[Site]:
    """The sites of a merged run, those that did not report last; empty for any other run."""
    out = [
        Site(
            str(m.get("run_id") or ""),
            str(m.get("part") or ""),
            ", ".join(m.get("nodes") or ()),
            str(m.get("finished") or m.get("created") or ""),
            str((m.get("revision") or {}).get("name") or (m.get("revision") or {}).get("commit") or ""),
            bool(m.get("complete")),
            dict(m.get("counts") or {}),
            told_of_kit(m),
        )
        for m in run.head.get("merged") or ()
    ]
    return out + [
        Site("", str(t), "", "", "", False, {"lost": int(n)}) for t, n in (run.head.get("silent") or {}).items()
    ]


def part_of(run: RunLike) -> str:
    """`part rocm:MI300X of plan 3c3c3c3c3c3c (cuda, rocm:MI300X, ascend)`; "" for a run that is not part of a plan."""
    plan = run.head.get("plan") or {}
    if not plan or run.head.get("merged"):
        return ""
    others = ", ".join(map(str, plan.get("of") or ()))
    part = f"part {plan['part']}" if plan.get("part") else "all parts"
    return f"{part} of plan {str(plan.get('hash') or '')[:12]} ({others})"
