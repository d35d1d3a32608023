"""The page of a run of two arms (`farm ab`): its pairs on the page that two runs have.  Takes the run's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farm import utilisation
from farm.compare.decide import Verdict
from farm.dashboards.compare_page import Said, Side
from farm.errors import Message
from farm.report import findings, pair_rows, pairs_text, provenance, two_arms
from farm.report.format import cells, number
from farm.report.pairs import FASTER, NOISY, SAME, SLOWER, Pair
from farm.report.run_lines import VERDICTS
from farm.report.status_changes import MAX_SHOWN

Row = Mapping[str, Any]
PROVES = Message(
    "Both arms ran in turn on one device, each round in new processes. A cell is called slower or faster only beyond "
    "its own threshold, with a 99 % interval of the ratio, and after fresh rounds that confirm it.",
    id="arms-proven",
)
INTERPRETED = Message("Nothing was timed: the pairs prove statuses, errors and bits.", id="arms-untimed")
_TIMES = {
    Verdict.REGRESSED: SLOWER,
    Verdict.IMPROVED: FASTER,
    Verdict.SAME: SAME,
    Verdict.INCONCLUSIVE: NOISY,
    Verdict.UNFIT: NOISY,
}


def has_pairs(head: Mapping[str, Any]) -> bool:
    """Whether a run compares two arms, to its end."""
    return bool(head.get("arms")) and isinstance(head.get("comparison"), Mapping)


def of_run(run: Any, results: str | None = None) -> tuple[Side, Side, list[Pair], Said]:
    """What the page shows of a complete run of two arms.  `results`: the address of the page of all its results."""
    rows = run.table("pairs")
    by_id = {str(r["cell_id"]): r for r in run.rows}
    both = [(row, _row(row, by_id)) for row in rows]
    pairs = [_pair(row, cell) for row, cell in both]
    common = {n: v for n, v in provenance.facts(run).items() if n not in ("subject", "revision")}
    arms = run.head["arms"]
    a, b = (_side(name, arms.get(name) or {}, run.head, common) for name in ("a", "b"))
    return a, b, pairs, _said(run, rows, both, results)


def _side(name: str, arm: Mapping[str, Any], head: Mapping[str, Any], common: Mapping[str, str]) -> Side:
    subject = arm.get("subject") or {}
    own = {
        "revision": str(subject.get("revision") or arm.get("revision") or ""),
        "digest of its files": str(arm.get("digest") or ""),
        "subject": str(subject.get("name") or ""),
        **{what: str(arm.get(what) or "") for what in ("patch", "environment", "provider", "mode")},
        "variables": ", ".join(f"{k}={v}" for k, v in (arm.get("variables") or {}).items()),
    }
    farm = {"the farm's revision": str((head.get("revision") or {}).get("name") or "")}
    return Side(str(arm.get("called") or name), None, {**own, **farm, **common})


def _row(pair: Row, by_id: Mapping[str, Row]) -> dict[str, Any]:
    """The columns of a pair's cell, of b where b planned it, under the name that both arms have."""
    ids = [str(pair.get(f"cell_id_{arm}") or "") for arm in ("b", "a")]
    found = next((by_id[name] for name in ids if name in by_id), pair)
    names = {what: two_arms.either(pair.get(f"{what}_a"), pair.get(f"{what}_b")) for what in ("provider", "mode")}
    cell = str(pair["cell"])
    reason = pair.get("reason_b") or pair.get("reason_a") or pair.get("note") or ""
    return {**found, **names, "cell_id": cell.rpartition(" | ")[2], "reason": reason}


def _pair(row: Row, cell: dict[str, Any]) -> Pair:
    numbers = {n: number(row.get(n)) for n in ("ratio", "low", "high", "threshold")}
    timed = row["verdict"] and not row["control"] and numbers["ratio"] is not None
    note = ""
    if timed and numbers["low"] is not None:
        note = f"{numbers['ratio']:.3f}, {numbers['low']:.3f} to {numbers['high']:.3f}, {row.get('rounds')} rounds"
    return Pair(
        cell,
        str(row.get("status_a") or ""),
        str(row.get("status_b") or ""),
        str(row["change"]),
        _TIMES[Verdict(row["verdict"])] if timed else "",
        number(row.get("time_us_a")),
        number(row.get("time_us_b")),
        numbers["ratio"] if timed else None,
        numbers["low"] if timed else None,
        numbers["high"] if timed else None,
        note,
        number(row.get("bandwidth_gbps_a")),
        number(row.get("bandwidth_gbps_b")),
        (
            *(two_arms.launches(row) if timed and row["verdict"] != Verdict.SAME.value else ()),
            *filter(None, [two_arms.peaks(row)]),
        ),
    )


def _said(run: Any, rows: Sequence[Row], both: Sequence[tuple[Row, Row]], results: str | None) -> Said:
    found = run.head["comparison"]
    name = str(found.get("verdict") or "not decided")
    why = ", ".join(str(one).partition(": first ")[0] for one in found.get("why") or ())
    told = pair_rows.counts(rows)
    groups = {
        "broken": [cell for row, cell in both if row["change"] == "broken"],
        "slower": [cell for row, cell in both if row["verdict"] == Verdict.REGRESSED.value and not row["control"]],
    }
    return Said(
        f"{name[:1].upper()}{name[1:]}" + (f": {why}" if why else ""),
        VERDICTS.get(int(found.get("exit_code") or 0), "inconclusive"),
        str(PROVES if told["verdicts"] else INTERPRETED),
        [*pairs_text.bits_lines(rows, told), *pairs_text.control_lines(told), *_of_sites(run.head)],
        {f"the cells that are {kind}": findings.repeat(run, of) for kind, of in groups.items() if of},
        {title: lines for title, lines in [*_more(rows, found), ("Utilisation", _spent(run.head))] if lines},
        run.id,
        results,
    )


def _spent(head: Mapping[str, Any]) -> list[str]:
    """Where the time of the devices went."""
    time = utilisation.read(head)
    many = len(time.get("devices") or ())
    return [
        f"{cause}: {seconds / many:.1f} s{' a device' if many > 1 else ''}, {share:.0%} ({utilisation.CAUSES[cause]})"
        for cause, seconds, share in utilisation.shares(time)
        if share >= 0.005
    ]


def _of_sites(head: Mapping[str, Any]) -> Iterator[str]:
    """What a merged run says of its parts."""
    for part, count in (head.get("silent") or {}).items():
        yield f"no site reported {part}: {cells(count)} lost"
    yield from map(str, head.get("warnings") or ())


def _more(rows: Sequence[Row], found: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """(title, sentences) of what the pairs say beyond statuses and times."""
    by_cell = {str(row["cell"]): row for row in rows}
    lines = [two_arms.crossover_text(line, by_cell, "B") for line in two_arms.crossovers(rows)]
    yield "Where B wins and where it loses", [*lines[:MAX_SHOWN], *two_arms.and_more(lines, MAX_SHOWN)]
    yield (
        "Best mode and auto",
        [line for parts in two_arms.mode_lines(two_arms.choices(rows), 10, ("A", "B")) for line in parts],
    )
    needs = two_arms.memory_lines(rows, MAX_SHOWN)
    yield "Memory, host time, first call", [*(cost.text for cost in two_arms.costs(rows)), *needs]
    yield "Kernels that differ", list(pairs_text.kernel_lines(found.get("kernels") or ()))[1:]
    open_ = [
        row
        for row in rows
        if row["verdict"] in (Verdict.INCONCLUSIVE.value, Verdict.UNFIT.value) and not row["control"]
    ]
    shown = [f"{row['verdict']}: {pairs_text.time_line(row)}" for row in open_[:MAX_SHOWN]]
    yield "Undecided", [*shown, *two_arms.and_more(open_, MAX_SHOWN)]
    noted = [f"{row['cell']}: {row['note']}" for row in rows if row["note"]]
    yield "In later rounds", [*noted[:MAX_SHOWN], *two_arms.and_more(noted, MAX_SHOWN)]
