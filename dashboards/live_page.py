"""The page of a run while it is running.  Values in, HTML out; refreshed by the browser, without a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.dashboards.pages import Links, render
from farm.report import live
from farm.report.format import FARM_FAULTS, PENDING, cells
from farm.report.queries import Row, in_order

#: How often a browser asks again.
REFRESH_SECONDS = 5
SHOWN = 8


def failures(rows: Sequence[Row], repeat: Callable[[Sequence[Row]], str]) -> list[dict[str, Any]]:
    """Failed cells that are alike, the newest first: how many, the last reason, a command that repeats them."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in reversed(rows):
        key = tuple(str(row.get(n) or "") for n in ("status", "backend", "op", "provider", "mode"))
        found.setdefault(key, []).append(row)
    names = ("status", "backend", "op", "provider", "mode")
    return [
        {
            **dict(zip(names, key)),
            "count": len(of),
            "cell": str(of[0].get("cell_id")),
            "reason": str(of[0].get("reason") or ""),
            "command": repeat(of),
        }
        for key, of in list(found.items())[:SHOWN]
    ]


def data(found: live.Live, now: float, repeat: Callable[[Sequence[Row]], str]) -> dict[str, Any]:
    """The page as data."""
    view = found.view(now)
    return {**view, "sentence": live.sentence(view), "failures": failures(list(found.failures), repeat)}


def page(view: Mapping[str, Any], links: Links, refresh: int = REFRESH_SECONDS) -> str:
    """`view`: of `data`.  A run that is over is not asked for again."""
    counts = {**in_order(view["counts"]), **({PENDING: view["pending"]} if view["pending"] else {})}
    simulated = "simulated · " if view["simulated"] else ""
    over = bool(view["over"])
    return render(
        "live.html",
        title=f"{simulated}{view['sentence']} · {view['run']}",
        refresh=0 if over else refresh,
        view=view,
        links=links,
        counts=counts,
        bad=bool(view["failed"] or view["infrastructure_failures"]),
        backends=[
            {
                **b,
                "counts": {**in_order(b["counts"]), **({PENDING: b["pending"]} if b["pending"] else {})},
                "rate": live.rate(b["per_second"]) if b["per_second"] else "",
            }
            for b in view["backends"]
        ],
        faults=cells(view["infrastructure_failures"]) if view["infrastructure_failures"] else "",
        bad_statuses=FARM_FAULTS,
    )
