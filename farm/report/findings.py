"""Failed cells, grouped by failure: what a reviewer reads first.  Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.cell import deadly
from farm.compare.arms import Arm
from farm.report.format import FARM_FAULTS, HARM, PENDING, SET_ASIDE, clip, number, short_dtype
from farm.report.queries import (
    PLACE,
    Row,
    RunLike,
    as_shown,
    by,
    is_build,
    is_finding,
    is_known,
    parse,
    planned,
    worst_error,
    worst_row,
    writer,
)
from farm.store.results import IMPORTED, place

_LAYOUT = re.compile(r"/(\w+_layout)=(\w+)")


@dataclass(frozen=True)
class Group:
    """Cells with the same failure: one entry in a list of findings."""

    anchor: str
    kind: str
    backend: str
    op: str
    provider: str
    mode: str
    role: str
    rows: tuple[Row, ...]
    of: int  # cells of the same backend, op, provider and mode in the plan
    where: tuple[str, ...]  # what distinguishes the failing cells: `dtype fp16`, `hidden 16384, 32768`
    worst: str  # `dw.rel_l2 5.3x the tolerance`
    reasons: tuple[tuple[str, int], ...]
    command: str

    @property
    def subject(self) -> str:
        return " ".join(p for p in (self.op, f"{self.provider}/{self.mode}" if self.mode else self.provider) if p)

    @property
    def target(self) -> str:
        """`sm_90, sm_100`: the targets that its cells were compiled for; "" for cells that ran."""
        return ", ".join(dict.fromkeys(place(r).partition("@")[2] for r in self.rows if "@" in place(r)))

    @property
    def simulated(self) -> bool:
        """Whether all of its cells ran on simulated devices: then it says nothing about a kernel."""
        return all(r.get("evidence") == "simulated" for r in self.rows)

    @property
    def logs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r["log"] for r in self.rows if r.get("log")))


def where(failing: Sequence[Row], alike: Sequence[Row]) -> tuple[str, ...]:
    """The pattern of a failure: axes on which the failing cells have only some of the group's values."""
    out, failed = [], _axes(failing)
    for name, values in _axes(alike).items():
        bad = set(failed.get(name, ()))
        if bad and len(bad) <= 3 and bad < set(values):
            out.append(f"{name} {', '.join(v for v in values if v in bad)}")
    return tuple(out)


def axis_values(row: Row) -> dict[str, Any]:
    """Axis -> the value that a cell has on it: dtype, target, operation, family, dimensions, parameters, layouts."""
    values: dict[str, Any] = {
        "dtype": short_dtype(row.get("dtype") or ""),
        "target": place(row).partition("@")[2],
        "operation": row.get("operation") or "",
        "family": row.get("family") or "",
    }
    for name, value in {**parse(row.get("dims")), **parse(row.get("params"))}.items():
        values[name] = value if isinstance(value, int | float) else str(value)
    return values | _layouts(row)


def _axes(rows: Sequence[Row]) -> dict[str, dict[str, None]]:
    """Axis -> its values, sorted as numbers where they are."""
    each = [axis_values(r) for r in rows]
    layouts = dict.fromkeys(name for r in rows for name in _layouts(r))
    found: dict[str, set[Any]] = defaultdict(set)
    for one in each:
        for name, value in {**dict.fromkeys(layouts, "dense"), **one}.items():
            found[name].add(value)
    return {n: {str(v): None for v in sorted(vs, key=lambda v: (isinstance(v, str), v))} for n, vs in found.items()}


def _layouts(row: Row) -> dict[str, str]:
    """`x_layout` and the like -> the layout, from the cell's id: a default is not in it."""
    return dict(_LAYOUT.findall(str(row.get("cell_id") or "")))


def repeat(run: RunLike, rows: Sequence[Row]) -> str:
    """A command that reruns at least these cells: every axis on which they have few values is selected; "" for what
    was imported."""
    first = rows[0]
    if run.head.get("kind") == IMPORTED:
        return ""
    paths = {m.get("name"): m.get("path") for m in run.head.get("matrices") or []}
    names = list(dict.fromkeys(r.get("matrix") or "" for r in rows))
    built = all(is_build(r) for r in rows)
    targets = list(dict.fromkeys(place(r).partition("@")[2] for r in rows if "@" in place(r)))
    chosen = {name: _either(r.get(name) for r in rows) for name in ("op", "provider", "mode", "operation", "dtype")}
    layouts = [_layouts(r) for r in rows]
    given = dict.fromkeys(name for one in layouts for name in one)
    chosen |= {name: _either(one.get(name, "dense") for one in layouts) for name in given}
    dims = [parse(r.get("dims")) for r in rows]
    chosen |= {name: _either(d.get(name) for d in dims) for name in dims[0]}
    if not built:
        chosen["target"] = _either(targets) if targets else ""
    picked = ",".join(f"{name}={text}" for name, text in chosen.items() if text)
    arms = [] if built else _arms(run.head)
    for name in ("provider", "mode") if any(f"{n}=" in w for w in arms for n in ("provider", "mode")) else ():
        chosen.pop(name)  # the arms name them
    words = [
        "farm",
        "compile" if built else "ab" if arms else "run",
        *dict.fromkeys(word for n in names if (word := _matrix(run.head, str(paths.get(n) or n)))),
    ]  # a file may hold several matrices
    if built:
        words += ["--target", ",".join(targets)]
    elif len({r["backend"] for r in rows}) == 1:
        words += ["--backend", str(first["backend"])]
    words += [*arms, *_carried(run, rows, built=built)]
    if picked:
        words += ["--select", picked]
    return " ".join(shlex.quote(w) for w in words)


def _matrix(head: Mapping[str, Any], path: str) -> str:
    """A matrix as the command names it: "" where it came with the files of an arm or a subject, and comes with them
    again; where they were unpacked is nobody's business."""
    argv = [str(word) for word in head.get("argv") or ()]
    named = any(path == word or path.startswith(f"{word.rstrip('/')}/") for word in argv)
    return path if named or not (_arms(head) or head.get("subject")) else ""


def _arms(head: Mapping[str, Any]) -> list[str]:
    """The two arms of a comparison, as on a command line: the files of an arm are not those of the working folder."""
    argv = list(head.get("argv") or ())
    found = [w for name, _, words in _options(argv) if name in ARM_OPTIONS for w in words]
    if argv[:1] == ["ab"]:
        return [*found, *(["--same"] if "--same" in argv else [])]
    return [w for name, arm in (head.get("arms") or {}).items() for w in (f"--{name}", Arm.of(arm).text)]


def _carried(run: RunLike, rows: Sequence[Row], *, built: bool) -> list[str]:
    """The run's options that define its cells: what was set, folders of contracts, the named providers that failed,
    and, where something ran, the environment and the cluster that it ran in."""
    options = _options(run.head.get("argv") or [])
    out = []
    if not built:
        used = {str(parse(r.get("fingerprint")).get("environment") or "") for r in rows} - {""}
        used = used or {v for n, v, _ in options if n == "--environment"}
        out += ["--environment", *used] if len(used) == 1 and used != {"default"} else []
        out += ["--sandbox"] if "--sandbox" in (run.head.get("argv") or []) else []
        for name, value, words in options:
            out += words if name == "--address" and value not in ("local", "inline") else []
    failed = {str(r.get("provider")) for r in rows}
    given = {v.partition("=")[0]: words for n, v, words in options if n == "--provider"}
    for name, known in (run.head.get("providers") or {}).items():  # a plan's providers are not on the command line
        if not known.get("subject"):
            given.setdefault(name, ["--provider", f"{name}={known.get('path')}"])
    for name, words in given.items():  # `[op:]name`
        out += words if name.rpartition(":")[2] in failed else []
    out += [w for name, _, words in options if name in ("--set", "--contracts") for w in words]
    return [*out, *([] if built else _subject(run.head, options))]


def _subject(head: Mapping[str, Any], options: Sequence[tuple[str, str, list[str]]]) -> list[str]:
    """The options that name the run's subject; of one that was found in the working folder, where it was."""
    subject = head.get("subject") or {}
    given = [w for name, _, words in options if name in SUBJECT_OPTIONS for w in words]
    return given if given or not subject or _arms(head) else ["--repo", str(subject.get("source"))]


#: Options that name somebody's kernels.
SUBJECT_OPTIONS = ("--repo", "--subject", "--wheel", "--release")
ARM_OPTIONS = ("--a", "--b")
_TAKEN = {
    *ARM_OPTIONS,
    "--provider",
    "--set",
    "--environment",
    "--address",
    "--run-id",
    "--plan",
    "--out",
    "--contracts",
    *SUBJECT_OPTIONS,
}


def _options(argv: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """(option, its value, its words) for the options in a command line that matter here."""
    out = []
    for word, following in zip(argv, [*argv[1:], ""]):
        option, equals, value = word.partition("=")
        if option in _TAKEN:
            out.append((option, value if equals else following, [word] if equals else [word, following]))
    return out


def whole(head: Mapping[str, Any]) -> str:
    """The command that repeats the run, without `--run-id`, since run names are unique in a store."""
    argv = list(head.get("argv") or ())
    if not any(name == "--run-id" for name, _, _ in _options(argv)):
        return str(head.get("command") or "")
    at = next(i for i, w in enumerate(argv) if w.partition("=")[0] == "--run-id")
    del argv[at : at + (1 if "=" in argv[at] else 2)]
    return "farm " + shlex.join(argv)


def _resume(run: RunLike, rows: Sequence[Row]) -> str:
    """The command that resumes an interrupted run with cells that only the farm failed; "" for a complete run."""
    if run.complete or writer(run) or any(r.get("status") not in FARM_FAULTS for r in rows):
        return ""
    # compiled, merged or re-judged: needs no device, and cannot be resumed; nor can a run whose plan is damaged
    damage = getattr(run, "damage", None)
    if (
        run.head.get("kind") not in (None, "", "ab")
        or len(run.rows) != planned(run)
        or (damage and damage.first <= planned(run) + 1)
    ):
        return whole(run.head)
    stores = [v for n, v, _ in _options(run.head.get("argv") or []) if n == "--out"]
    return shlex.join(["farm", "resume", run.id, *(w for v in stores[-1:] for w in ("--out", v))])


def _part(run: RunLike, rows: Sequence[Row]) -> str:
    """The command that reruns a lost part of a plan at its site, so that it can be merged."""
    plan = run.head.get("plan") or {}
    parts = list(plan.get("of") or ())
    silent = [p for p in parts if any(r.get("reason") == f"no site reported {p}" for r in rows)]
    backend = str(rows[0].get("backend"))
    own = [plan["part"]] if plan.get("part") else [p for p in parts if p.partition(":")[0] == backend]
    named = [v for n, v, _ in _options(run.head.get("argv") or []) if n == "--plan"]
    file = named[0] if named else str(run.dir / "plan.json")
    return "; ".join(shlex.join(["farm", "run", "--plan", file, "--target", p]) for p in silent or own)


def _either(values: Iterable[Any]) -> str:
    """`a` or `a|b`, as `--select` takes it; "" for more than four values, or for a value that it cannot express."""
    texts = list(dict.fromkeys("" if v is None else str(v) for v in values))
    fit = len(texts) <= 4 and all(t and not set(t) & set(",|=<>!") for t in texts)
    return "|".join(texts) if fit else ""


def _groups(run: RunLike, chosen: Iterable[Row], prefix: str, kinds: Sequence[str], *names: str) -> list[Group]:
    """Groups of `chosen` by kind and `names`, worst first: by kind, by error relative to tolerance, by count."""
    alike = by(run.rows, *names)
    found = sorted(
        by(chosen, "status", *names).items(),
        key=lambda kv: (
            kinds.index(kv[0][0]),
            -(number((worst_row(kv[1]) or {}).get("worst_ratio")) or 0.0),
            -len(kv[1]),
            kv[0],
        ),
    )
    out = []
    for i, (key, rows) in enumerate(found):
        place = dict(zip(names, key[1:], strict=True))
        worst = worst_error(worst_row(rows)) if key[0] == "inaccurate" else ""
        reasons = Counter(str(r.get("reason") or "no reason recorded") for r in rows).most_common(3)
        out.append(
            Group(
                anchor=f"{prefix}{i + 1}",
                kind=key[0],
                backend=place.get("backend", ""),
                op=place.get("op", ""),
                provider=place.get("provider", ""),
                mode=place.get("mode", ""),
                role=str(rows[0].get("role") or "subject"),
                rows=tuple(rows),
                of=len(alike[key[1:]]),
                where=where(rows, [r for r in alike[key[1:]] if r.get("status") not in (*SET_ASIDE, PENDING)]),
                worst="" if worst in [clip(r) for r, _ in reasons] else worst,
                reasons=tuple(reasons),
                command=(key[0] in FARM_FAULTS and (_resume(run, rows) or _part(run, rows))) or repeat(run, rows),
            )
        )
    return out


def findings(run: RunLike) -> list[Group]:
    """Failures of subjects by backend, op, provider, mode and kind; worst first."""
    return _groups(run, (r for r in run.rows if is_finding(run, r)), "f", HARM, *PLACE)


def peer_failures(run: RunLike) -> list[Group]:
    rows = (r for r in run.rows if r.get("status") in HARM and not is_finding(run, r) and not is_known(run, r))
    return _groups(run, rows, "p", HARM, *PLACE)


def farm_faults(run: RunLike) -> list[Group]:
    """Infrastructure failures.  They say nothing about a kernel, so they are grouped by backend and op only; but cells
    in whose presence actors, nodes or judges died each time are by themselves, by all that names a cell."""
    run = as_shown(run)
    rows = [r for r in run.rows if r.get("status") in FARM_FAULTS]
    apart = _groups(run, filter(deadly, rows), "d", FARM_FAULTS, *PLACE)
    return apart + _groups(run, (r for r in rows if not deadly(r)), "x", FARM_FAULTS, "backend", "op")


def impossible(run: RunLike) -> list[Row]:
    """Cells with an impossible timing: their outputs are judged as usual, their speed is not shown."""
    return [r for r in run.rows if r.get("timing_quality") == "impossible"]


def set_aside(run: RunLike) -> list[tuple[str, str, str, str, int]]:
    """(status, reason, backend, providers and modes, cells) of skipped and unsupported cells."""
    rows = [r for r in run.rows if r.get("status") in SET_ASIDE]
    out = []
    for (status, reason, backend), members in by(rows, "status", "reason", "backend").items():
        who = dict.fromkeys(f"{r.get('provider')}/{r.get('mode')}" for r in members)
        out.append((status, reason or "no reason recorded", backend, ", ".join(who), len(members)))
    return sorted(out, key=lambda x: (SET_ASIDE.index(x[0]), -x[4], x[1]))


def anchors(groups: Iterable[Group]) -> dict[int, str]:
    """id() of a failed row -> anchor of the group that reports it."""
    return {id(r): g.anchor for g in groups for r in g.rows}
