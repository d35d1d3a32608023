"""The page of one op on several vendors' devices.  Values in, HTML out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farm.dashboards.pages import Links, render
from farm.dashboards.views import Newest
from farm.report import parity
from farm.report.format import HARM
from farm.report.parity import Parity

SHOWN, ALL = 40, 250


def of(found: Newest, op: str) -> Parity:
    """An op on the targets of the newest night; of a backend that did not report, its last results."""
    return parity.parity(found.with_silent, op, {b: n.created for b, n in found.nights.silent.items()})


def ops(found: Newest) -> list[str]:
    """The ops that have a page."""
    return parity.ops(found.with_silent)


def page(found: Newest, op: str, links: Links, others: Sequence[str] = ()) -> str:
    """`others`: the ops that have a page too."""
    made = of(found, op)
    sentence = parity.sentence(made)
    differ, apart = made.differ, made.apart
    lines = [x for x in made.lines if x.mode in ("auto", "")]
    failed = any(e is not None and e.status in HARM for x in differ for e in x.entries)
    return render(
        "parity.html",
        title=f"{'simulated · ' if made.simulated else ''}{sentence}",
        links=links,
        run=found.run,
        found=made,
        ops=others,
        sentence=sentence,
        bad=failed,
        differ=differ[:SHOWN],
        count_differ=len(differ),
        apart=apart[: SHOWN // 2],
        count_apart=len(apart),
        lines=lines[:ALL],
        count_cells=len(lines),
    )


def data(found: Newest, op: str) -> dict[str, Any]:
    """The page as data."""
    return {"run": found.run.id, "created": found.run.created, **parity.to_dict(of(found, op))}
