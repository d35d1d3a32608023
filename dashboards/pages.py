"""One function per page: a run (or a list of them) and its links -> HTML, both for files and for the server."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from farm import utilisation
from farm.dashboards import builds, charts, contents, heat, layout, place_map, roofs, svg
from farm.dashboards import compare_page as comparing
from farm.dashboards.compare_page import Said, Side
from farm.errors import id_of
from farm.report import (
    built,
    cards,
    evidence,
    findings,
    format,
    glossary,
    provenance,
    queries,
    ranked,
    run_verdict,
    status_changes,
    time_changes,
    wording,
)
from farm.report import pairs as paired
from farm.report.findings import Group
from farm.report.night_series import Series
from farm.report.pairs import Pair
from farm.report.queries import RunLike
from farm.report.run_lines import RunLine, commit
from farm.store.results import place

HERE = Path(__file__).resolve().parent
SHOWN = 12  # groups of findings that are shown; the others are folded
#: A run of more cells has a page per place and op besides its own: at 18,000 cells one page had 3.8 MB, and a second to
#: turn a tab.
PAGE_CELLS = 8000


@dataclass(frozen=True)
class Links:
    """Addresses relative to a page; None: nothing to link to."""

    runs: str | None
    run: Callable[[str], str | None]
    log: Callable[[str], str | None]
    file: Callable[[str], str | None] = lambda name: None
    evidence: str | None = None  # the store's page of evidence
    backend: Callable[[str], str | None] = lambda target: None
    cell: Callable[[str, str], str | None] = lambda key, named: None  # by its key and named target
    compare: Callable[[str, str], str | None] = lambda a, b: None
    parity: Callable[[str], str | None] = lambda op: None  # by op
    live: Callable[[str], str | None] = lambda run_id: None  # of a run that is being written
    part: Callable[[str, str], str | None] = lambda where, op: None  # of a large run: its cells of a place and op
    cell_of_run: Callable[[Mapping[str, Any]], str | None] = lambda row: None  # a row of the page's run
    anchored: bool = True  # whether each cell of a run's page has an anchor


@lru_cache(maxsize=1)
def _templates() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    env.filters |= {
        "count": format.count,
        "cells": format.cells,
        "ratio": format.ratio,
        "percent": format.percent,
        "size": format.size,
        "duration": format.duration,
        "when": format.when,
        "label": format.label,
        "glyph": format.glyph,
        "clip": format.clip,
        "short": format.short_dtype,
        "sig": format.sig,
        "changed": paired.change,
        "whole": lambda value: "" if value is None else f"{value:.0f}",
        "bar": charts.status_bar,
        "keys": charts.status_list,
        "flags": heat.flags,
        "tag": wording.tag,
        "sentence": wording.sentence,
        "paired": wording.paired,
        "id": id_of,
        "code": _code,
    }
    env.globals |= {
        "css": Markup((HERE / "farm.css").read_text(encoding="utf-8") + charts.scale_css() + charts.content_css()),
        "js": Markup((HERE / "farm.js").read_text(encoding="utf-8")),
        "words_of": words_of,
        "cell_address": cell_address,
    }
    return env


def _code(text: str) -> Markup:
    """`text` with its code spans, which are between backticks."""
    parts = enumerate(str(escape(text)).split("`"))
    return Markup("".join(f"<code>{part}</code>" if i % 2 else part for i, part in parts))


#: What a reader sees of a page: no tags, styles and scripts, but the tips of cells.
_UNSEEN = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*?data-t=\"([^\"]*)\"[^>]*>|<[^>]*>", re.S)


def words_of(shown: str) -> dict[str, str]:
    """Of the glossary, the words that a page uses.  `shown`: its HTML."""
    return glossary.used(unescape(_UNSEEN.sub(lambda tag: f" {tag[2] or ''} ", shown)))


#: Characters that no page needs and that a terminal, or a program that reads the page, may obey.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def render(name: str, **values: Any) -> str:
    return _CONTROL.sub("\ufffd", _templates().get_template(name).render(values))


def runs_page(heads: Iterable[RunLine], links: Links, night: Mapping[str, Any] | None = None) -> str:
    """The list of runs, newest first, below the newest `night` (`night_pages.night`)."""
    lines = sorted(heads, key=lambda h: h.created, reverse=True)
    backends = list(dict.fromkeys(b for h in lines for b in h.backends))
    title = night["title"] if night else "runs"
    return render("runs.html", title=title, runs=lines, backends=backends, links=links, night=night)


def evidence_page(known: Mapping[str, Sequence[evidence.Proof]], links: Links) -> str:
    """What a store's runs prove, per backend and kind of evidence; `known`: run -> its proofs."""
    families, covered = evidence.families(known), evidence.coverage(known)
    simulated = any(p.evidence == "simulated" for of in known.values() for p in of)
    seen = {b for of in covered.values() for b in of}
    return render(
        "evidence.html",
        title=f"{'evidence, some of it simulated' if simulated else 'evidence'}",
        simulated=simulated,
        families=families,
        kinds=evidence.KINDS,
        covered=covered,
        columns=[f.backend for f in families if f.backend in seen or f.backend in evidence.FAMILIES],
        links=links,
    )


@dataclass(frozen=True)
class Against:
    """A run held against the run before it: `before`, what became of its cells, the address of their comparison."""

    before: RunLike
    changes: status_changes.Comparison
    timed: time_changes.TimeComparison
    address: str | None = None

    @staticmethod
    def of(before: RunLike, run: RunLike, address: str | None = None) -> Against:
        changes = status_changes.compare(before, run)
        return Against(before, changes, time_changes.times(changes), address)

    def to_dict(self) -> dict[str, Any]:
        kinds = ("broken", "new", "lost", "fixed", "failing")
        return {
            "run": self.before.id,
            "counts": {kind: len(of) for kind in kinds if (of := self.changes.of(kind))},
            "times": paired.counts(self.timed.pairs),
            "moved": [paired.moved_line(m) for m in paired.moved(self.timed.pairs)],
            "broken": [str(c.row.get("cell_id")) for c in self.changes.of("broken")][:SHOWN],
        }


def run_json(run: RunLike, against: Against | None = None, nights: Series | None = None) -> dict[str, Any]:
    """A run's page as data: verdict, counts, findings, what it is against its baseline, ranked cells."""
    run = queries.as_shown(run)
    verdict = run_verdict.verdict(run)
    found = findings.findings(run)
    return {
        "run": run.id,
        "created": run.head.get("created", ""),
        "verdict": verdict.kind,
        "sentence": wording.sentence(verdict),
        "simulated": list(evidence.simulated(run)),
        "warnings": [str(w) for w in run_verdict.warnings(run)],
        "planned": queries.planned(run),
        "counts": queries.counts(run.rows),
        "baseline": against.to_dict() if against else None,
        "utilisation": utilisation.read(run.head),
        "findings": [
            {
                **{n: getattr(g, n) for n in ("kind", "backend", "op", "provider", "mode", "of", "worst", "command")},
                "cells": len(g.rows),
                "where": list(g.where),
            }
            for g in found
        ],
        "rankings": [
            {"title": r.title, "count": r.count, "cells": [[str(e.row.get("cell_id")), e.whole] for e in r.entries]}
            for r in _ranked(run, nights)
        ],
    }


def parts_of(run: RunLike) -> dict[tuple[str, str], list[Any]]:
    """(place, op) -> rows of a run that is too large for one page; else nothing."""
    return queries.by_place(run.rows) if queries.planned(run) > PAGE_CELLS else {}


def part_page(run: RunLike, part: tuple[str, str], links: Links, against: Against | None = None) -> str:
    """The cells of one place and op of a run that is too large for one page."""
    run = queries.as_shown(run)
    rows = [r for r in run.rows if (place(r), str(r.get("op"))) == part]
    simulated = any(r.get("evidence") == "simulated" for r in rows)
    name = f"{part[0].replace('@', ' ')} {part[1]}"
    only = queries.part(run, rows)
    groups = [*findings.findings(only), *findings.peer_failures(only), *findings.farm_faults(only)]
    heats = heat.heats(run.rows, {}, against.before.rows if against else (), part)
    return render(
        "part.html",
        title=f"{'simulated · ' if simulated else ''}{name} · run {run.id}",
        links=links,
        run=run,
        part=part,
        simulated=simulated,
        counts=queries.counts(rows),
        cells=len(rows),
        findings=[_group(run, g, links) for g in groups[:SHOWN]],
        more=max(0, len(groups) - SHOWN),
        heats=_heats(heats, run, links),
        picker=charts.picker(contents.CONTENTS, {n for panes in heats.values() for h in panes for n in h.contents}),
        content_legend=charts.content_legend(),
        builds=_builds(run, {}, part),
        paces=_paces(only),
        pace_legend=charts.pace_legend(),
        strips=_strips(only),
    )


def part_json(run: RunLike, part: tuple[str, str]) -> dict[str, Any]:
    """The page of a part as data."""
    rows = [r for r in queries.as_shown(run).rows if (place(r), str(r.get("op"))) == part]
    names = ("cell_id", "status", "reason", "time_us_p50", "timing_quality", "share_of_roof", "worst_ratio", "evidence")
    return {
        "run": run.id,
        "place": part[0],
        "op": part[1],
        "simulated": any(r.get("evidence") == "simulated" for r in rows),
        "counts": queries.counts(rows),
        "cells": [{n: _plain(r.get(n)) for n in names} for r in rows],
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def run_page(
    run: RunLike, links: Links, against: Against | None = None, night: str = "", nights: Series | None = None
) -> str:
    """Everything about one run, in one self-contained file.  `against`: the run that its times are divided by; `night`:
    what the front page says of it, and `nights` the nights up to it, where it is the newest night.  A run of more than
    PAGE_CELLS cells has a page for each place and op besides (`part_page`), which this one leads to."""
    run = queries.as_shown(run)
    parts = parts_of(run)
    found, faults, peers = findings.findings(run), findings.farm_faults(run), findings.peer_failures(run)
    first, more = shown(found)
    anchors = findings.anchors([*found, *peers, *faults])
    counts, verdict = queries.counts(run.rows), run_verdict.verdict(run)
    simulated = evidence.simulated(run)
    mixed = simulated and verdict.kind != "simulated"  # else the verdict says so
    heats = heat.heats(run.rows, anchors, against.before.rows if against else ()) if not parts else {}
    return render(
        "run.html",
        title=f"{wording.title(verdict)}{', SIMULATED' if mixed else ''} · run {run.id}",
        links=links,
        run=run,
        head=run.head,
        again=findings.whole(run.head),
        commit=commit(run.head),
        subject=run.head.get("subject") or {},
        versions=provenance.versions(run),
        settings=provenance.settings(run),
        matrices={str(m.get("path") or m.get("name")): m.get("sha256") or "" for m in run.head.get("matrices") or []},
        against=against.to_dict() if against else None,
        night=night,
        against_address=against.address if against else None,
        rankings=with_commands(_ranked(run, nights), functools.partial(findings.repeat, run)),
        verdict=verdict,
        warnings=run_verdict.warnings(run),
        counts=counts,
        planned=queries.planned(run),
        total=sum(counts.values()),
        part=evidence.part_of(run),
        places=_places(run),
        cards=[_card(run, c) for c in cards.cards(run)],
        proofs=evidence.proofs(run),
        unproven=evidence.unproven(run),
        simulated=simulated,
        kinds={kind: means for kind, means in evidence.KINDS.items() if kind in evidence.kinds_of(run.rows)},
        names=[n for n in dict.fromkeys(str(r.get("matrix") or "") for r in run.rows) if n],
        sites=evidence.sites(run),
        findings=[_group(run, g, links) for g in first],
        more=[_group(run, g, links) for g in more],
        faults=[_group(run, g, links) for g in faults],
        peers=[_group(run, g, links) for g in peers],
        impossible=findings.impossible(run),
        set_aside=findings.set_aside(run),
        heats=_heats(heats, run, links),
        pieces=[(where, op, queries.counts(rows), links.part(where, op)) for (where, op), rows in parts.items()],
        picker=charts.picker(contents.CONTENTS, {n for panes in heats.values() for h in panes for n in h.contents}),
        content_legend=charts.content_legend(),
        builds=_builds(run, anchors) if not parts else [],
        remarks=builds.remarks(run.rows),
        summaries=_summaries(run),
        paces=_paces(run) if not parts else [],
        pace_legend=charts.pace_legend(),
        strips=_strips(run) if not parts else [],
        roofs=roofs.roofs(run),
        utilisation=utilisation.read(run.head),
        utilisation_line=utilisation.line(utilisation.read(run.head)),
        spent={cause: seconds for cause, seconds, _ in utilisation.shares(utilisation.read(run.head))},
        causes=utilisation.CAUSES,
        environment=provenance.environment(run),
        environments=provenance.flat(run.head.get("environments") or {}),
        files=provenance.files(run),
    )


def shown(found: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """The groups that are shown, and those that are folded.  The worst group of each backend is shown, so that one
    backend's failures do not hide another's."""
    worst = {g.backend: g for g in reversed(found)}
    first = [g for i, g in enumerate(found) if i < SHOWN or worst[g.backend] is g]
    return first, [g for g in found if all(g is not f for f in first)]


def compare_page(a: Side, b: Side, pairs: Sequence[Pair], said: Said, links: Links) -> str:
    """Two arms side by side."""
    return render("compare.html", links=links, **comparing.values(a, b, pairs, said))


def _ranked(run: RunLike, nights: Series | None = None) -> list[ranked.Ranking]:
    """Ranked lists of the cells that ran on devices; those of simulated ones rank nothing."""
    return ranked.rankings([r for r in run.rows if r.get("evidence") == "executed"], nights=nights)


def with_commands(
    found: Sequence[ranked.Ranking], repeat: Callable[[Sequence[Mapping[str, Any]]], str]
) -> list[dict[str, Any]]:
    """Ranked lists with the commands that repeat each cell, with what it is held against, and all that is shown."""
    return [
        {
            "title": r.title,
            "count": r.count,
            "short": r.short,
            "entries": [(e.row, e.whole, repeat([e.row, *e.beside])) for e in r.entries],
            "command": repeat(r.rows) if len(r.entries) > 1 else "",
        }
        for r in found
    ]


def _places(run: RunLike) -> list[tuple[str, str, str, int, bool]]:
    """(place, backend, kind of verdict, cells, whether any was simulated), where a run has several places."""
    found: dict[str, list[Any]] = {}
    for row in run.rows:
        found.setdefault(place(row), []).append(row)
    if len(found) < 2:
        return []
    simulated = evidence.simulated(run)
    return [
        (where, where.partition("@")[0], run_verdict.kind_of(run, rows), len(rows), where in simulated)
        for where, rows in found.items()
    ]


def _card(run: RunLike, card: cards.Card) -> dict[str, Any]:
    """A card with its devices' environments, how busy sibling devices were, and what first calls compiled."""
    return {
        "card": card,
        "environments": evidence.environments_of(run, card.rows),
        "siblings": evidence.siblings(card.rows),
        "built": built.built(card.rows),
    }


def _group(run: RunLike, group: Group, links: Links) -> dict[str, Any]:
    """A group with its first log's tail and the addresses of its logs."""
    logs = [(name, links.log(name)) for name in group.logs[:3]]
    tail = next((t for t in (provenance.log_tail(run, name) for name in group.logs[:3]) if t), "")
    row = queries.worst_row(group.rows)
    found = place_map.of_row(row) if row and group.kind == "inaccurate" else []
    found = [{**f, "svg": svg.simulated(f["svg"], group.simulated)} for f in found]
    maps = {"cell": row["cell_id"], "of": found} if row and found else None
    examples = [(r["cell_id"], cell_address(links, r)) for r in group.rows[:3]]
    return {"group": group, "logs": logs, "tail": tail, "examples": examples, "maps": maps}


def cell_address(links: Links, row: Mapping[str, Any]) -> str | None:
    """The page of a row's cell."""
    named = str(row.get("cell_id")).partition("@")[2]
    return links.cell_of_run(row) or links.cell(str(row.get("cell_key")), named)


def _heading(run: RunLike, where: str, op: str) -> dict[str, Any]:
    """What stands above a backend's (or target's) block of an op."""
    kinds = _kinds(run, where, op)
    return {"backend": where.partition("@")[0], "place": where.replace("@", " "), "kinds": kinds, "op": op}


def _heats(found: Mapping[tuple[str, str], Sequence[heat.Heat]], run: RunLike, links: Links) -> list[dict[str, Any]]:
    """Per backend and op, a pane per dtype with its heat map."""

    def link(index: int) -> str | None:
        return cell_address(links, run.rows[index])

    return [
        {
            **_heading(run, where, op),
            "panes": [
                {
                    "name": format.short_dtype(h.dtype),
                    "failures": charts.failures(h.failed),
                    "legend": charts.legend(h),
                    "table": charts.boxed(charts.heat_table(h, link, anchored=links.anchored), len(h.layout.columns)),
                }
                for h in panes
            ],
        }
        for (where, op), panes in found.items()
    ]


def _kinds(run: RunLike, where: str, op: str, *, judged: bool = False) -> tuple[str, ...]:
    """The kinds of evidence in a block of the page, for its heading; `judged`: a block that has simulated cells only
    where it has no others."""
    found = evidence.kinds_of(r for r in run.rows if place(r) == where and r.get("op") == op)
    return tuple(k for k in found if k != "simulated") or found if judged else found


def _builds(run: RunLike, anchors: Mapping[int, str], only: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    """Per target and op, a pane per dtype with the compiler's report about every cell."""
    return [
        {
            "backend": backend,
            "target": target,
            "op": op,
            "panes": [
                {
                    "name": format.short_dtype(t.dtype),
                    "failures": charts.failures(t.failed),
                    "legend": charts.build_legend(t),
                    "table": charts.boxed(charts.build_table(t), len(t.layout.columns)),
                }
                for t in panes
            ],
        }
        for (backend, target, op), panes in builds.tables(run.rows, anchors, only).items()
    ]


def _summaries(run: RunLike) -> dict[tuple[str, str, str], builds.BuildSummary]:
    """(target, op, provider) -> the resources of its kernels, for the cards of compiled cells."""
    found = queries.by((r for r in run.rows if builds.is_build(r)), "target", "op", "provider")
    return {(target, op, provider): builds.summary(rows) for (target, op, provider), rows in found.items()}


def _paces(run: RunLike) -> list[dict[str, Any]]:
    return [
        {
            **_heading(run, where, op),
            "panes": [
                {
                    "name": format.short_dtype(dtype),
                    "failures": "",
                    "table": charts.boxed(charts.pace_table(race.columns, bodies), len(race.columns)),
                }
                for dtype, bodies in race.panes.items()
            ],
        }
        for (where, op), race in heat.paces(run.rows).items()
    ]


def _strips(run: RunLike) -> list[dict[str, Any]]:
    out = []
    for (where, op), by_dtype in cards.strips(run).items():
        kinds = ("simulated",) if where.endswith(" simulated") else _kinds(run, where, op, judged=True)
        drawn = [charts.strip_chart(s, dtype) for dtype, s in sorted(by_dtype.items(), key=layout.by_width)]
        out.append(
            {
                "backend": where.partition("@")[0].partition(" ")[0],
                "place": where.replace("@", " ").removesuffix(" simulated"),
                "kinds": kinds,
                "op": op,
                "charts": [svg.simulated(one, "simulated" in kinds) for one in drawn],
            }
        )
    return out
