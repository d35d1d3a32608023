"""What is proven, of which backend, by which kind of evidence: of one run, and of all runs of a store.  Pure, except
`collect`, which reads runs.

Kinds of evidence are never added up: that a kernel is right in the interpreter says nothing of the device that it was
compiled for, and what a fake played says nothing of any kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dashboards.queries import Row, RunLike, counts, parse
from dashboards.whereabouts import devices, flat
from dashboards.words import cells, number
from farm.results import place

#: Kind -> what it proves, strongest first.
KINDS: Mapping[str, str] = {
    "executed": "ran on the device: proves numbers and times there",
    "compiled": "built for the target without a device: proves that it builds, with registers, spills and memory",
    "interpreted": "ran on a CPU, Triton kernels in the interpreter: proves numerics, never speed",
    "simulated": "played by a fake that obeys a script: proves something of the farm, and nothing of any kernel",
}
#: Hardware that kernels are written for: of these it is told, too, what was never done.
FAMILIES = ("cuda", "rocm", "ascend")
#: What makes a tool chain, in the order in which it is told.
_TOOLS = ("torch", "torch_npu", "triton", "triton_ascend", "cuda", "rocm", "hip", "cann", "stack", "ptxas", "driver")
_MAX_TOLD = 4
#: Of what `collect` gives; a file of another version is not read.
VERSION = 2


@dataclass(frozen=True)
class Proof:
    """What one run proves of one backend (or named target) on one kind of device, by one kind of evidence."""

    place: str  # cuda, cuda@GB200
    backend: str
    evidence: str
    target: str
    counts: dict[str, int]
    devices: tuple[str, ...]
    nodes: tuple[str, ...]
    tools: tuple[str, ...]  # one entry a tool chain
    environments: tuple[str, ...]
    last: str  # ISO 8601, UTC: when the last of its cells ended

    @property
    def cells(self) -> int:
        return sum(self.counts.values())


def proofs(run: RunLike) -> list[Proof]:
    """In the plan's order of places; cells without evidence are in none."""
    named = _environments(run)
    out = []
    for (where, target, evidence), rows in _grouped(run.rows).items():
        out.append(
            Proof(
                where, where.partition("@")[0], evidence, target, counts(rows),
                devices=numbered(_texts(r.get("device") for r in rows)), nodes=_texts(r.get("node") for r in rows),
                tools=tuple(dict.fromkeys(tool_chain(str(r.get("fingerprint") or "")) for r in rows)),
                environments=tuple(dict.fromkeys(n for r in rows for n in named.get(_of(r), ()))),
                last=_last(rows) or str(run.head.get("finished") or run.head.get("created") or ""),
            )
        )  # fmt: skip
    return out


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
    """Places of which at least one cell was played by a fake."""
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


def company(rows: Iterable[Row]) -> str:
    """`up to 3 neighbours busy, in 80 of 120 cells`; "" where nobody counted."""
    busy = [int(n) for r in rows if (n := number(r.get("neighbours_busy"))) is not None]
    if not busy:
        return ""
    if not max(busy):
        return "no neighbour busy in any cell"
    some = len(busy) - busy.count(0)
    return f"up to {max(busy)} neighbour{'s' if max(busy) > 1 else ''} busy, in {some} of {cells(len(busy))}"


def tool_chain(fingerprint: str) -> str:
    """`torch 2.11.0+cu130, triton 3.6.0` of a fingerprint's JSON; of what it has."""
    told = flat(parse(fingerprint) or {})
    return ", ".join(f"{name.replace('_', '-')} {told[name]}" for name in _TOOLS if told.get(name))


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(sorted({str(v) for v in values if v}))


def numbered(names: Iterable[str]) -> tuple[str, ...]:
    """Devices of one name told together: `NVIDIA H200 #0 to #3, #6` for five of them; other names as they are."""
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
class Told:
    """A run's proof with the run that gave it."""

    run: str
    proof: Proof


@dataclass(frozen=True)
class Line:
    """All that a store's runs prove of one target by one kind of evidence: the newest run, the one with most cells, and
    how many there are.  Counts are the named run's own, since two runs may hold the same cells."""

    evidence: str
    target: str
    newest: Told | None = None
    widest: Told | None = None
    runs: int = 0

    @property
    def tools(self) -> tuple[str, ...]:
        return self.newest.proof.tools[:_MAX_TOLD] if self.newest else ()


@dataclass(frozen=True)
class Family:
    """One backend's lines, strongest evidence first; `never`: the kinds that a kernel farm should have of it and this
    store has not."""

    backend: str
    lines: tuple[Line, ...]
    never: tuple[str, ...]


def families(known: Mapping[str, Sequence[Proof]]) -> list[Family]:
    """Per backend what the runs prove; `known`: run -> its proofs."""
    found: dict[str, dict[tuple[str, str], list[Told]]] = {b: {} for b in FAMILIES}
    for run, mine in known.items():
        for p in mine:
            found.setdefault(p.backend, {}).setdefault((p.evidence, p.target), []).append(Told(run, p))
    order = [*KINDS]
    out = []
    for backend, groups in found.items():
        lines = [
            Line(
                evidence, target,
                newest=max(told, key=lambda t: t.proof.last), widest=max(told, key=lambda t: t.proof.cells),
                runs=len({t.run for t in told}),
            )
            for (evidence, target), told in groups.items()
        ]  # fmt: skip
        lines.sort(key=lambda x: (order.index(x.evidence) if x.evidence in order else len(order), x.target))
        asked = ("executed", "compiled") if backend in FAMILIES else ()
        out.append(Family(backend, tuple(lines), tuple(k for k in asked if k not in {x.evidence for x in lines})))
    return sorted(out, key=lambda f: (f.backend not in FAMILIES, f.backend == "sim"))


def collect(
    names: Iterable[tuple[str, Path]], load: Callable[[str], RunLike], kept: Mapping[str, Any], errors: tuple[Any, ...]
) -> dict[str, Any]:
    """Run -> {"as_of", "proofs"} as plain data.  What `kept` has of a run that has not changed since is taken from
    there; a run that cannot be read has no proofs."""
    out: dict[str, Any] = {}
    for name, folder in names:
        as_of = _as_of(folder)
        if as_of and (kept.get(name) or {}).get("as_of") == as_of:
            out[name] = kept[name]
            continue
        try:
            out[name] = {"as_of": as_of, "proofs": [asdict(p) for p in proofs(load(name))]}
        except errors:
            out[name] = {"as_of": "", "proofs": []}
    return out


def thaw(collected: Mapping[str, Any]) -> dict[str, list[Proof]]:
    """What `collect` gave, or a file of it, as proofs."""
    lists = ("devices", "nodes", "tools", "environments")
    return {
        run: [Proof(**{**p, **{n: tuple(p[n]) for n in lists}}) for p in entry["proofs"]]
        for run, entry in collected.items()
    }


def _as_of(folder: Path) -> str:
    """Changes when a run does; "" where that cannot be told."""
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
    """One run that a merged run is made of, or a target that nobody reported (`run` is "")."""

    run: str
    part: str
    nodes: str
    finished: str
    revision: str
    complete: bool
    counts: dict[str, int]


def sites(run: RunLike) -> list[Site]:
    """The sites of a merged run, the silent ones last; none for another run."""
    out = [
        Site(
            str(m.get("run_id") or ""), str(m.get("part") or ""), ", ".join(m.get("nodes") or ()),
            str(m.get("finished") or m.get("created") or ""),
            str((m.get("revision") or {}).get("name") or (m.get("revision") or {}).get("commit") or ""),
            bool(m.get("complete")), dict(m.get("counts") or {}),
        )
        for m in run.head.get("merged") or ()
    ]  # fmt: skip
    return out + [
        Site("", str(t), "", "", "", False, {"lost": int(n)}) for t, n in (run.head.get("silent") or {}).items()
    ]


def part_of(run: RunLike) -> str:
    """`part rocm:MI300X of a plan for cuda, rocm:MI300X, ascend`; "" for a run that is no part of a plan."""
    plan = run.head.get("plan") or {}
    if not plan or run.head.get("merged"):
        return ""
    others = ", ".join(map(str, plan.get("of") or ()))
    return f"part {plan.get('part') or 'the whole'} of plan {str(plan.get('hash') or '')[:12]} for {others}"
