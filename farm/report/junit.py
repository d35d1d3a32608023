"""A run as JUnit XML: a test suite per backend and op, a test case per planned cell.  Pure.

Findings are failures.  Infrastructure failures are errors.  Skipped and unsupported cells are skipped, with the reason.
So are peers' failures: they are reported, but do not turn a CI system red.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as Tree

from farm.report.format import HARM, SET_ASIDE, label, number
from farm.report.queries import Row, RunLike, as_shown, by, is_finding, journal_damage, worst_error

#: What XML 1.0 cannot hold, not even escaped: a log may have it.
ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DONE = ("passed", "built")


def junit(run: RunLike) -> str:
    """The whole document; `time` is in seconds."""
    root = Tree.Element("testsuites", name=f"farm run {clean(run.id)}")
    created = clean(str(run.head.get("created") or "")).rstrip("Z")
    if damaged := journal_damage(run):
        suite = Tree.SubElement(root, "testsuite", name="farm/journal")
        case = Tree.SubElement(suite, "testcase", classname="farm", name="journal", time="0.000")
        Tree.SubElement(case, "error", type="journal-damaged", message=damaged)
        _totals(suite)
    for (backend, op), rows in by(as_shown(run).rows, "backend", "op").items():
        suite = Tree.SubElement(root, "testsuite", name=clean(f"{backend}/{op}"))
        if created:
            suite.set("timestamp", created)
        for row in rows:
            _case(suite, run, row)
        _totals(suite)
    _totals(root)
    Tree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Tree.tostring(root, encoding="unicode") + "\n"


def _case(suite: Tree.Element, run: RunLike, row: Row) -> None:
    place = ".".join(str(row.get(n) or "") for n in ("backend", "op", "provider", "mode"))
    if row.get("evidence") == "simulated" and row.get("backend") != "sim":
        place = f"simulated-{place}"  # not a test case of that vendor's device
    seconds = f"{max(0.0, number(row.get('seconds')) or 0.0):.3f}"  # older runs: negative after the clock was set back
    case = Tree.SubElement(suite, "testcase", classname=clean(place), name=clean(str(row["cell_id"])), time=seconds)
    status, reason = str(row.get("status") or ""), clean(str(row.get("reason") or ""))
    if status in DONE:
        return
    if status in SET_ASIDE:
        Tree.SubElement(case, "skipped", message=f"{label(status)}: {reason}")
    elif is_finding(run, row):
        Tree.SubElement(case, "failure", type=status, message=_message(status, reason)).text = _detail(row)
    elif status in HARM:
        Tree.SubElement(case, "skipped", message=f"peer {label(status)}: {reason}")
    else:  # infrastructure failures, what is pending, statuses of a newer farm: never silently green
        Tree.SubElement(case, "error", type=status or "none", message=_message(status, reason)).text = _detail(row)


def _message(status: str, reason: str) -> str:
    first = reason.splitlines()[0] if reason else "no reason recorded"
    return f"{label(status)}: {first}"


def _detail(row: Row) -> str:
    parts = [str(row.get("reason") or "")]
    if row.get("status") == "inaccurate" and number(row.get("worst_ratio")) is not None:
        parts.append(f"worst: {worst_error(row)}")
    parts += [f"{n}: {row[n]}" for n in ("target", "device", "node", "log") if row.get(n)]
    return clean("\n".join(parts))


def _totals(element: Tree.Element) -> None:
    cases = list(element.iter("testcase"))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(c.find(tag) is not None for c in cases)))
    element.set("tests", str(len(cases)))
    element.set("time", f"{sum(float(c.get('time', '0')) for c in cases):.3f}")


def clean(text: str) -> str:
    """`text` without the characters that XML forbids."""
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
