"""The page of two arms side by side: two runs, or the arms of `farm ab`.  Takes plain values; knows no store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from farm.dashboards import charts
from farm.dashboards.contents import Ratio
from farm.dashboards.layout import by_width, lay_out
from farm.report import pairs as paired
from farm.report.format import glyph, label, short_dtype, sig
from farm.report.pairs import FASTER, SLOWER, Pair
from farm.report.status_changes import CHANGES, MAX_SHOWN
from farm.store.results import place

#: What a cell of the table may show.
CONTENTS: Mapping[str, str] = {"ratio": "B ÷ A", "a": "A µs", "b": "B µs", "a_gbps": "A GB/s", "b_gbps": "B GB/s"}


@dataclass(frozen=True)
class Side:
    """One arm: its name, the address of its page, and facts that may differ (revision, driver, ...)."""

    name: str
    address: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """What is said of two arms beyond their pairs.

    verdict: a sentence; kind: the kind of verdict that colours it; proves: what the ratios rest on; notes; repeats:
    title -> command; more: title -> sentences; run, results: of a run of two arms, its name and the address of the page
    of all its results.
    """

    verdict: str
    kind: str
    proves: str
    notes: Sequence[str] = ()
    repeats: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run: str = ""
    results: str | None = None


def values(a: Side, b: Side, pairs: Sequence[Pair], said: Said) -> dict[str, Any]:
    """What the template of the page is given."""
    simulated = any(p.row.get("evidence") == "simulated" for p in pairs)
    groups = paired.moved(pairs)
    worst = [p for m in groups for p in m.pairs]
    worst.sort(key=lambda p: -abs((p.ratio or 1.0) - 1.0))
    return {
        "title": f"{'simulated · ' if simulated else ''}{said.verdict} · {a.name} and {b.name}",
        "a": a,
        "b": b,
        "said": said,
        "simulated": simulated,
        "facts": _facts(a, b),
        "statuses": {
            kind: {"what": what, "pairs": of[:MAX_SHOWN], "count": len(of)}
            for kind, what in CHANGES.items()
            if kind != "same" and (of := [p for p in pairs if p.change == kind])
        },
        "times": paired.counts(pairs),
        "groups": [(m, paired.moved_line(m)) for m in groups],
        "worst": worst[:MAX_SHOWN],
        "speeds": any(p.a_gbps and p.b_gbps for p in worst[:MAX_SHOWN]),
        "tables": _tables(pairs),
        "picker": charts.picker(CONTENTS, _present(pairs)),
    }


def as_json(a: Side, b: Side, pairs: Sequence[Pair], said: Said) -> dict[str, Any]:
    """The page as data: every pair that changed or was timed."""
    return {
        "a": {"name": a.name, **a.facts},
        "b": {"name": b.name, **b.facts},
        "simulated": any(p.row.get("evidence") == "simulated" for p in pairs),
        "verdict": said.verdict,
        "proves": said.proves,
        "notes": list(said.notes),
        "more": {title: list(lines) for title, lines in said.more.items()},
        "times": paired.counts(pairs),
        "pairs": [p.to_dict() for p in pairs if p.change != "same" or p.time],
    }


def _present(pairs: Sequence[Pair]) -> list[str]:
    """The contents that some cell has."""
    timed = [p for p in pairs if p.time]
    speeds = any(p.a_gbps or p.b_gbps for p in timed)
    return [name for name in CONTENTS if timed and (speeds or not name.endswith("_gbps"))]


def _facts(a: Side, b: Side) -> list[tuple[str, str, str, bool]]:
    """(what, in A, in B, whether it differs); what differs comes first."""
    names = dict.fromkeys([*a.facts, *b.facts])
    found = [(n, a.facts.get(n, ""), b.facts.get(n, "")) for n in names]
    return sorted(((n, x, y, x != y) for n, x, y in found if x or y), key=lambda f: not f[3])


def _tables(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Per backend and op, a pane per dtype with the table of its pairs."""
    found: dict[tuple[str, str], dict[str, list[tuple[int, Any]]]] = defaultdict(lambda: defaultdict(list))
    for i, p in enumerate(pairs):
        found[place(p.row), str(p.row.get("op"))][str(p.row.get("dtype") or "")].append((i, p.row))
    return [
        {
            "backend": where.partition("@")[0],
            "place": where.replace("@", " "),
            "op": op,
            "panes": [
                {
                    "name": short_dtype(dtype),
                    "failures": _news(pairs[i] for i, _ in members),
                    "table": _table(pairs, members),
                }
                for dtype, members in sorted(panes.items(), key=by_width)
            ],
        }
        for (where, op), panes in found.items()
    ]


def _table(pairs: Sequence[Pair], members: Sequence[tuple[int, Any]]) -> Markup:
    laid = lay_out(members)
    return charts.boxed(charts.table(laid, "heat", lambda i: _td(pairs[i])), len(laid.columns))


def _news(pairs: Iterable[Pair]) -> str:
    """`≠3 ▼24`: what a tab hides."""
    broken = slower = 0
    for p in pairs:
        broken += p.change == "broken"
        slower += p.time == SLOWER
    return " ".join(f"{sign}{n}" for sign, n in (("≠", broken), ("▼", slower)) if n)


def _td(p: Pair) -> str:
    if p.change not in ("same", "unlike") or not p.time:
        signs = dict.fromkeys(glyph(s) if s else "∅" for s in (p.before, p.after))
        words = " → ".join(dict.fromkeys(label(s) if s else "not planned" for s in (p.before, p.after)))
        name = p.after or "lost"
        return f'<td class=s-{charts.esc(name)} data-t="{charts.esc(words)}">{"→".join(map(charts.esc, signs))}'
    shade = charts.ratio_shade(Ratio(p.ratio or 1.0, p.time in (SLOWER, FASTER)))
    mark = "<sup>~</sup>" if p.time == paired.NOISY else ""
    numbers = [p.a_us, p.b_us, *((p.a_gbps, p.b_gbps) if p.a_gbps or p.b_gbps else ())]
    rest = "".join(f"<p>{sig(value) if value is not None else ''}" for value in numbers)
    return f'<td data-t="{charts.esc(p.note)}"><p class={shade}>{p.ratio or 1.0:.2f}{mark}{rest}'
