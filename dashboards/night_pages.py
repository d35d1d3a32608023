"""Pages across runs: the newest night, a backend, a cell.  Values of templates and JSON from what `views` read."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from farm.dashboards import svg, trends
from farm.dashboards.pages import Links, render, with_commands
from farm.dashboards.trends import Point
from farm.dashboards.views import Newest
from farm.report import confirming, device_facts, drifting, parity
from farm.report.device_facts import Device
from farm.report.drifting import Drift
from farm.report.format import FARM_FAULTS, cells, glyph, number, percent, ratio, sig, when
from farm.report.nights import News, Nights, Standing, line, standings
from farm.report.pairs import change
from farm.report.ranked import Ranking, rankings

#: kind of news -> (title, whether it is folded)
SECTIONS: Mapping[str, tuple[str, bool]] = {
    "new": ("New failures", False),
    "slower": ("Slower", False),
    "failing": ("Still failing", True),
    "known": ("Known", True),
    "faster": ("Faster", True),
    "fixed": ("Fixed", True),
}
SIGNS = {"slower": "▼", "faster": "▲", "fixed": "✓"}
SHOWN = 12
#: rows -> the command that repeats them
Repeat = Callable[[Sequence[Mapping[str, Any]]], str]


def _sections(news: Sequence[News], links: Links, repeat: Repeat) -> list[dict[str, Any]]:
    out = []
    for kind, (title, folded) in SECTIONS.items():
        mine = [n for n in news if n.kind == kind]
        if mine:
            entries = [_entry(n, links, repeat) for n in mine[:SHOWN]]
            count = sum(len(n.rows) for n in mine)
            more = len(mine) - len(entries)
            out.append({"id": kind, "title": title, "folded": folded, "cells": count, "entries": entries, "more": more})
    return out


def _entry(news: News, links: Links, repeat: Repeat) -> dict[str, Any]:
    compare = links.compare(news.before.id, news.since.id) if news.before else None
    sign = SIGNS.get(news.kind) or glyph(news.status)
    by = change(news.by) if news.by is not None else ""
    command = repeat(news.rows) if news.kind != "fixed" else ""
    confirm = ""
    if news.by is not None and news.before and not news.confirmed and not isinstance(confirming.arms_of(news), str):
        words = ["farm", "confirm", *(["--faster"] if news.kind == "faster" else [])]
        confirm = shlex.join([*words, "--cell", str(news.rows[0].get("cell_id"))])
    return {"news": news, "sign": sign, "by": by, "compare": compare, "command": command, "confirm": confirm}


def _sentence(
    news: Sequence[News], faults: int, silent: Sequence[str] = (), drifts: Sequence[Drift] = (), *, first: bool = False
) -> str:
    """`3 cells newly failing · 24 cells slower (median +16 %) · 1 fixed`"""
    parts = []
    for kind, words in (("new", "newly failing"), ("slower", "slower"), ("failing", "still failing")):
        mine = [n for n in news if n.kind == kind]
        if mine:
            text = f"{cells(sum(len(n.rows) for n in mine))} {words}"
            if kind == "slower":
                largest = max(mine, key=lambda n: len(n.rows))
                text += f" ({change(largest.by or 1.0)}{'' if any(n.sure for n in mine) else ', suspected'})"
            parts.append(text)
    for kind in ("known", "faster", "fixed"):
        if count := sum(len(n.rows) for n in news if n.kind == kind):
            parts.append(f"{count:,} {kind}")
    parts += [text] if (text := drifting.sentence(drifts)) else []
    parts += [f"{cells(faults)} without a result (infrastructure)"] if faults else []
    for what, count in (("backend", sum(":" not in s for s in silent)), ("target", sum(":" in s for s in silent))):
        parts += [f"{count} silent {what}{'s' if count > 1 else ''}"] if count else []
    return " · ".join(parts) or ("The first night: there is nothing to compare it with." if first else "Nothing new.")


def _silent(found: Newest, name: str, links: Links) -> list[tuple[str, str | None]]:
    """The targets of what did not report, with the addresses of their pages."""
    return [(t, links.backend(t)) for t in found.silent_targets if name in (t, t.partition(":")[0])]


def as_night(found: Newest | None, run_id: str) -> str:
    """What the front page says of a run, devices included; "" where it is not the newest night."""
    if found is None or found.run.id != run_id:
        return ""
    nights, faults = found.nights, sum(r["status"] in FARM_FAULTS for r in found.rows)
    text = _sentence(nights.news, faults, list(nights.silent), nights.drifting, first=len(found.runs) == 1)
    sick = [d.sick for t in found.targets for d in found.devices(t) if d.sick]
    return " · ".join([text, *sick])


def nights_to(found: Newest | None, run_id: str) -> Nights | None:
    """The nights up to a run, where it is the newest of them."""
    return found.nights if found is not None and found.run.id == run_id else None


def night(found: Newest, links: Links, repeat: Repeat) -> dict[str, Any]:
    """What the front page shows of the newest night."""
    nights, run = found.nights, found.run
    faults = sum(r["status"] in FARM_FAULTS for r in found.rows)
    sentence = _sentence(nights.news, faults, list(nights.silent), nights.drifting, first=len(found.runs) == 1)
    sick = sum(bool(d.sick) for t in found.targets for d in found.devices(t))
    sentence += f" · {sick} device{'s' if sick > 1 else ''} to look at" if sick else ""
    cards = [
        {
            "of": s,
            "facts": _facts(s),
            "more": _devices_and_worst(found, s, links),
            "line": svg.simulated(_night_line(found, s), s.simulated),
        }
        for s in standings(nights)
    ]
    before = found.runs[-2].id if len(found.runs) > 1 else ""
    return {
        "title": f"{'simulated · ' if found.simulated else ''}{sentence}",
        "heading": f"Night of {run.created[:10]}",
        "run": run.id,
        "created": run.created,
        "revision": run.revision[:10],
        "cells": run.cells,
        "nights": trends.nights([r.created for r in found.runs]),
        "compare": links.compare(before, run.id) if before else None,
        "sentence": sentence,
        "bad": bool(faults or sick or nights.silent or any(n.kind in ("new", "slower") for n in nights.news)),
        "simulated": found.simulated,
        "imported": found.run.kind == "imported",
        "silent": [
            (f"One target of {name.partition(':')[0]}" if ":" in name else name, last, _silent(found, name, links))
            for name, last in nights.silent.items()
        ],
        "gone": [
            (
                name.partition(":")[0],
                last,
                next((n for n in reversed(nights.failing(name)) if n >= 0), 0),
                _silent(found, name, links),
            )
            for name, last in nights.silent.items()
        ],
        "cards": cards,
        "news": _sections(nights.news, links, repeat),
        "drifts": nights.drifting,
        "lacks": found.index.lacks,
        "ops": [op for op in parity.ops(found.with_silent) if links.parity(op)],
    }


def _night_line(found: Newest, s: Standing) -> Markup:
    return trends.night_line([n.created for n in found.nights.nights], s.failing, s.pace, s.faulty)


def _devices_and_worst(found: Newest, s: Standing, links: Links) -> list[tuple[str, str | None, bool]]:
    """(text, address, whether it is bad) of what a backend's pages say besides: devices unlike their siblings, cells
    where `auto` is behind another mode of ours."""
    out: list[tuple[str, str | None, bool]] = []
    for target in s.targets:
        address = links.backend(target)
        _, rows, faults = _of_target(found, target)
        if count := sum(n for _, n in faults):
            out.append((f"{cells(count)} without a result (infrastructure)", _at(address, "infrastructure"), True))
        mine = [d for d in found.nights.drifting if d.target == target]
        out += [(text, _at(address, "drift"), False)] if (text := drifting.sentence(mine)) else []
        for d in found.devices(target):
            if d.sick:
                out.append((d.sick, _at(address, "devices"), True))
        for ranking in rankings(rows, 1):
            if ranking.short:
                out.append((f"{cells(ranking.count)} {ranking.short}", _at(address, "worst"), False))
    return out


def _at(address: str | None, anchor: str) -> str | None:
    return f"{address}#{anchor}" if address else None


def night_json(found: Newest) -> dict[str, Any]:
    """The front page as data."""
    nights = found.nights
    faults = sum(r["status"] in FARM_FAULTS for r in found.rows)
    return {
        "run": found.run.id,
        "created": found.run.created,
        "revision": found.run.revision,
        "simulated": found.simulated,
        "imported": found.run.kind == "imported",
        "summary": _sentence(nights.news, faults, list(nights.silent), nights.drifting, first=len(found.runs) == 1),
        "nights": [{"run": n.id, "created": n.created, "revision": n.revision} for n in nights.nights],
        "silent": {name: last.id for name, last in nights.silent.items()},
        "news": [{**n.to_dict(), "text": line(n)} for n in nights.news],
        "backends": {
            s.backend: {
                "targets": list(s.targets),
                "counts": s.counts,
                "median_share_of_roof": s.share,
                "ratio_to_best_peer": s.ratio,
                "wins": s.wins,
                "races": s.races,
                "failing": list(s.failing),
                "pace": list(s.pace),
                "simulated": s.simulated,
                "infrastructure_failures": s.faults,
                "infrastructure_failures_per_night": list(s.faulty),
            }
            for s in standings(nights)
        },
        "devices": [shift.to_dict() for shift in nights.moved],
        "drifts": [d.to_dict() for d in nights.drifting],
    }


def _facts(s: Standing) -> list[tuple[str, bool]]:
    """(text, whether it is bad)"""
    names = (("new", "new", True), ("slower", "slower", True), ("failing", "still failing", False))
    out = [
        (f"{s.counts[k]:,} {words}", bad) for k, words, bad in (*names, ("fixed", "fixed", False)) if s.counts.get(k)
    ]
    out = out or [("nothing new", False)]
    out += [(f"{percent(s.share)} of roof", False)] if s.share is not None else []
    out += [(f"{s.ratio:.2f}x the best peer’s time, {s.wins}/{s.races} wins", s.ratio > 1)] if s.ratio else []
    return [*out, *([(f"{s.throttled} throttled", False)] if s.throttled else [])]


def _of_target(found: Newest, target: str) -> tuple[list[News], list[dict[str, Any]], list[tuple[str, int]]]:
    """(news, rows, infrastructure failures) of a target."""
    backend = target.partition(":")[0]
    alone = [t for t in found.targets if t.partition(":")[0] == backend] == [target]
    rows = [r for r in found.rows if r["target"] == target or (alone and r["backend"] == backend and not r["target"])]
    news = [n for n in found.nights.news if n.target == target]
    faults = Counter(str(r["reason"]) for r in rows if r["status"] in FARM_FAULTS)
    return news, rows, faults.most_common()


def notable(found: Newest, most: int = 60) -> list[Mapping[str, Any]]:
    """The cells that pages name: the first of each news, then the worst.  Each is a row of the newest night."""
    groups = [n.rows for n in found.nights.news] + [d.rows for d in found.nights.drifting]
    rows = [r for of in groups for r in of[:4]]
    for target in found.targets:
        mine = [r for r in found.rows if r["target"] == target]
        rows += [e.row for ranking in rankings(mine, 4) for e in ranking.entries]
    own = {(r["cell_key"], r["named"]): r for r in rows if r["run"] == found.run.id}
    return list(own.values())[:most]


def compared(found: Newest, most: int = 6) -> list[tuple[str, str]]:
    """The pairs of runs that the front page names: the newest two, and those between which something changed."""
    ids = [r.id for r in found.runs]
    pairs = [(ids[-2], ids[-1])] if len(ids) > 1 else []
    pairs += [(n.before.id, n.since.id) for n in found.nights.news if n.before and n.kind != "fixed"]
    return list(dict.fromkeys(pairs))[:most]


def backend_page(found: Newest, target: str, links: Links, repeat: Repeat, silent: str = "") -> str:
    """One target: its devices against each other, its news, its worst cells, its roof and tool chain over time.
    `silent`: the newest night, in which it did not report, if `found` is its last one."""
    backend = target.partition(":")[0]
    news, rows, faults = _of_target(found, target)
    devices = found.devices(target)
    simulated = any(r["evidence"] == "simulated" for r in rows)
    mine = next((s for s in standings(found.nights) if s.backend == backend), None)
    created = [n.created for n in found.nights.nights]
    sick = [d.sick for d in devices if d.sick]
    drifts = [d for d in found.nights.drifting if d.target == target]
    sentence = _sentence(news, sum(n for _, n in faults), drifts=drifts)
    sentence = f"did not report on {silent[:10]} · its last night: {sentence}" if silent else sentence
    sentence = " · ".join([sentence, *sick])
    return render(
        "backend.html",
        title=f"{'simulated · ' if simulated else ''}{target}: {sentence}",
        links=links,
        target=target,
        backend=backend,
        run=found.run,
        silent=silent,
        simulated=simulated,
        imported=any(r["evidence"] == "imported" for r in rows),
        sentence=sentence[:1].upper() + sentence[1:],
        bad=bool(silent or faults or sick or any(n.kind in ("new", "slower") for n in news)),
        tools=sorted(found.nights.tools.get(found.run.id, {}).get(backend, {}).items()),
        line=svg.simulated(_night_line(found, mine), simulated) if mine else "",
        nights="1 night" if len(found.runs) == 1 else f"{len(found.runs)} nights",
        missing=trends.nights(created),
        devices=[(d, svg.simulated(trends.sibling_strip(created, d.nights), simulated)) for d in devices],
        odd_beyond=f"{100 * device_facts.ODD:g} %",
        faults=faults,
        news=_sections(news, links, repeat),
        drifts=drifts,
        rankings=with_commands(rankings(rows, nights=found.nights), repeat),
        roof=svg.simulated(trends.history(found.roof(target), "GB/s"), simulated),
        changes=found.tool_changes(backend),
    )


def backend_json(found: Newest, target: str, silent: str = "") -> dict[str, Any]:
    """A backend's page as data; `silent` as for `backend_page`."""
    news, rows, faults = _of_target(found, target)
    return {
        "target": target,
        "did_not_report": silent,
        "run": found.run.id,
        "created": found.run.created,
        "simulated": any(r["evidence"] == "simulated" for r in rows),
        "devices": [_device_json(d) for d in found.devices(target)],
        "news": [{**n.to_dict(), "text": line(n)} for n in news],
        "drifts": [d.to_dict() for d in found.nights.drifting if d.target == target],
        "infrastructure_failures": [{"reason": reason, "cells": n} for reason, n in faults],
        "rankings": [_ranking(r) for r in rankings(rows, nights=found.nights)],
        "roof_gbps": [{"night": p.date, "value": p.value, "changed": p.changed} for p in found.roof(target)],
        "tool_changes": [{"night": n, "changed": text} for n, text in found.tool_changes(target.partition(":")[0])],
    }


def _device_json(device: Device) -> dict[str, Any]:
    own = vars(device) | {"gaps": [vars(g) for g in device.gaps]}
    return own | {"against_siblings": device.by, "odd": device.odd, "sick": device.sick}


def _ranking(found: Ranking) -> dict[str, Any]:
    entries = [
        {"cell": e.row.get("cell_id"), "what": e.text, **({"since": e.since} if e.since else {})} for e in found.entries
    ]
    return {"title": found.title, "count": found.count, "cells": entries}


def step_of(found: Newest, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a cell's page says of its time against the nights before: a step, else a drift; None without any."""
    mine = (row.get("cell_key"), str(row.get("cell_id")).partition("@")[2])

    def has(rows: Sequence[Mapping[str, Any]]) -> bool:
        return any((r.get("cell_key"), str(r.get("cell_id")).partition("@")[2]) == mine for r in rows)

    for news in found.nights.news:
        if news.by is not None and has(news.rows):
            data = news.to_dict()
            text = f"{change(news.by)} since {news.since.created[:10]}"
            revisions = f" ({'..'.join(r[:10] for r in news.commits)})" if news.commits else ""
            before = news.before.id if news.before else ""
            kept = {name: data[name] for name in ("word", "since", "since_created", "range", "cause")}
            return kept | {"text": text + revisions, "slower": news.kind == "slower", "before": before}
    for one in found.nights.drifting:
        if has(one.rows):
            text = f"drift, {one.by} in its group, since about {one.since.created[:10]}"
            since = {"since": one.since.id, "since_created": one.since.created}
            return since | {"word": "drift", "text": text, "slower": one.slower, "before": "", "range": [], "cause": ""}
    return None


def cell_page(facts: Mapping[str, Any], points: Sequence[Point], links: Links) -> str:
    """One cell.  `facts`: of `farm.report.cell_facts.facts`; `points`: its nights."""
    cell, run, its = facts["cell"], facts["run"], facts["samples"]
    simulated, step = cell.get("evidence") == "simulated", facts.get("step")
    since = step["since_created"] if step else ""
    p50, share = cell.get("time_us_p50"), cell.get("share_of_roof")
    levels = [("roof", p50 * share)] if p50 and share else []
    timed = [p for p in facts["peers"] if p["time_us_p50"] is not None]
    levels += [(p["provider"], p["time_us_p50"]) for p in timed if p["role"] == "peer"][:1]
    levels += [(p["mode"], p["time_us_p50"]) for p in timed if p["role"] != "peer" and p["mode"]][:1]
    samples = [Point(str(i), v) for i, v in enumerate(its["values_us"][:400])] if its else []
    return render(
        "cell.html",
        title=f"{'simulated · ' if simulated else ''}{cell['status']}: {cell['cell_id']}",
        links=links,
        cell=cell,
        run=run,
        run_address=_of_cell(links, run["id"], cell),
        finding=facts["finding"],
        facts=_cell_facts(facts),
        again=facts["again"],
        history=svg.simulated(trends.history(points, "µs", levels, since=since), simulated) if len(points) > 1 else "",
        samples=svg.simulated(_samples(samples), simulated) if len(samples) > 1 else "",
        samples_text=f"{its['samples']} in the order of the calls; µs" if its else "",
        metrics=_metrics(cell),
        step=step,
        step_address=links.compare(step["before"], step["since"]) if step and step["before"] else None,
        peers=facts["peers"],
        log="\n".join(str(facts["log"]).splitlines()[-60:])[-6000:],
    )


def _of_cell(links: Links, run_id: str, cell: Mapping[str, Any]) -> str | None:
    address = links.run(run_id)
    return address + "#" + (f"c{cell['index']}" if links.anchored else "cells") if address else None


def _samples(points: Sequence[Point]) -> Markup:
    values = [p.value for p in points if p.value is not None]
    low, high = min(values), max(values)
    span, width, height = (high - low) or 1.0, 660, 90
    line = [
        (4 + (width - 70) * i / (len(values) - 1), height - 6 - 76 * (v - low) / span) for i, v in enumerate(values)
    ]
    shapes = [
        svg.line(line, "pace"),
        svg.text(width - 62, 14, sig(high, 4)),
        svg.text(width - 62, height - 4, sig(low, 4)),
    ]
    return svg.picture(width, height, f"{len(values)} samples, {sig(low, 4)} to {sig(high, 4)} µs", shapes, "history")


def _mode(cell: Mapping[str, Any]) -> str:
    """`auto`, `requested row_packed, ran multi_wave_cached`."""
    asked, ran = str(cell.get("mode") or ""), str(cell.get("mode_resolved") or "")
    return f"requested {asked}, ran {ran}" if asked and ran and asked != ran else ran or asked


def _metrics(cell: Mapping[str, Any]) -> list[tuple[str, float | None, float, float | None]]:
    """(output.metric, value, tolerance, value / tolerance) of each metric that has a tolerance, the worst first; a
    value of None is missing or not finite."""
    out = []
    for output, limits in (cell.get("gates") or {}).items():
        of = (cell.get("metrics") or {}).get(output) or {}
        for name, limit in limits.items():
            value, tolerance = number(of.get(name)), number(limit)
            if tolerance is not None:
                over = value / tolerance if value is not None and tolerance > 0 else None
                out.append((f"{output}.{name}", value, tolerance, over))
    return sorted(out, key=lambda m: -(m[3] if m[3] is not None else float("inf")))


def _cell_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of what is known of a cell's newest result."""
    cell, its = facts["cell"], facts["samples"]
    over, share = cell.get("worst_ratio"), cell.get("share_of_roof")
    p50 = cell.get("time_us_p50")
    spread = f" (p20 {sig(its['p20_us'], 4)}, p80 {sig(its['p80_us'], 4)}, {its['samples']} samples)" if its else ""
    found = {
        "time": f"{sig(p50, 4)} µs{spread}, {cell['timing_method']}, {cell['timing_quality']}" if p50 else "",
        "speed": f"{sig(cell['bandwidth_gbps'])} GB/s" if cell.get("bandwidth_gbps") else "",
        "share of roof": percent(share) if share is not None else "",
        "worst error": f"{ratio(over)}x tolerance ({cell.get('worst_output')}.{cell.get('worst_metric')})"
        if over is not None
        else "",
        "mode": _mode(cell),
        "flags": "; ".join(map(str, cell.get("flags") or [])),
        "parameters": ", ".join(f"{k}={v}" for k, v in (cell.get("params") or {}).items()),
        "revision": str(cell.get("revision") or ""),
        "first call": f"{cell['compile_s']:.3g} s" if cell.get("compile_s") else "",
        "peak memory": f"{cell['peak_memory_mib']:.4g} MiB" if cell.get("peak_memory_mib") else "",
        "key": str(cell.get("cell_key")),
        "when": when(str(facts["run"]["created"])),
    }
    return [(name, text) for name, text in found.items() if text]
