"""A run as JUnit XML: a test suite per backend and op, a test case per planned cell.  Pure.

Findings are failures.  Infrastructure failures are errors.  Skipped and unsupported cells are skipped, with the reason.
So are peers' failures: they are reported, but do not turn a CI system red.  A cell's log is its `system-out`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from xml.etree import ElementTree as Tree

from farm.report.format import HARM, SET_ASIDE, label, number
from farm.report.queries import Row, RunLike, as_shown, by, is_finding, is_known, journal_damage, worst_error

#: What XML 1.0 cannot hold, not even escaped: a log may have it.
ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DONE = ("passed", "built")
#: Characters of logs in a document, of which readers hold all in memory; later ones are left out, and that is noted.
MAX_LOGS = 16 << 20
LogOf = Callable[[Row], str]


class _Logs:
    """The texts of logs, until their limit is reached."""

    def __init__(self, log_of: LogOf):
        self._log_of, self._left = log_of, MAX_LOGS

    def __call__(self, row: Row) -> str:
        if not row.get("log"):
            return ""
        text = self._log_of(row)
        if len(text) > self._left:
            return f"(the log is left out, because this document has {MAX_LOGS >> 20} MiB of logs; see {row['log']})"
        self._left -= len(text)
        return text


def junit(run: RunLike, log_of: LogOf = lambda row: "") -> str:
    """The whole document; `time` is in seconds.  `log_of` gives the text of the log that a row names."""
    root = Tree.Element("testsuites", name=f"farm run {clean(run.id)}")
    created, logs = _timestamp(str(run.head.get("created") or "")), _Logs(log_of)
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
            _case(suite, run, row, logs(row))
        _totals(suite)
    _totals(root)
    Tree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Tree.tostring(root, encoding="unicode") + "\n"


def _timestamp(iso: str) -> str:
    """A time as JUnit writes it: UTC, without an offset.  "" for what is no time."""
    try:
        at = datetime.fromisoformat(iso.replace("Z", "+00:00"))
    except ValueError:
        return ""
    return (at.astimezone(timezone.utc) if at.tzinfo else at).strftime("%Y-%m-%dT%H:%M:%S")


def _case(suite: Tree.Element, run: RunLike, row: Row, log: str) -> None:
    place = ".".join(str(row.get(n) or "") for n in ("backend", "op", "provider", "mode"))
    if row.get("evidence") == "simulated" and row.get("backend") != "sim":
        place = f"simulated-{place}"  # not a test case of that vendor's device
    seconds = f"{max(0.0, number(row.get('seconds')) or 0.0):.3f}"  # older runs: negative after the clock was set back
    case = Tree.SubElement(suite, "testcase", classname=clean(place), name=clean(str(row["cell_id"])), time=seconds)
    _outcome(case, run, row)
    if log:
        Tree.SubElement(case, "system-out").text = clean(log)


def _outcome(case: Tree.Element, run: RunLike, row: Row) -> None:
    status, reason = str(row.get("status") or ""), clean(str(row.get("reason") or ""))
    if status in DONE:
        return
    if status in SET_ASIDE:
        Tree.SubElement(case, "skipped", message=f"{label(status)}: {reason}")
    elif is_finding(run, row):
        Tree.SubElement(case, "failure", type=status, message=_message(status, reason)).text = _detail(row)
    elif is_known(run, row):
        Tree.SubElement(case, "skipped", message=f"known failure, {label(status)}: {reason}")
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
