"""A run as Markdown without links: for a comment, a check's summary, a mail.  Pure.

Limited by rows first, then by bytes: GitHub rejects comments above 65,536 characters.
"""

from __future__ import annotations

import re
import unicodedata

from farm.report.cards import cards
from farm.report.findings import Group, farm_faults, findings, peer_failures, set_aside, whole
from farm.report.format import cells, clip, count, duration, label, percent, ratio, sig, when
from farm.report.provenance import versions
from farm.report.queries import RunLike, as_shown, counts, planned
from farm.report.run_lines import commit
from farm.report.run_verdict import verdict, warnings
from farm.report.wording import paired, sentence

SHOWN = 12
_BREAK = "\u200b"  # a space without width
SIGNS = {"passed": "✅", "built": "🔨", "simulated": "🧪", "findings": "❌", "running": "⏳"}
SIGNS |= dict.fromkeys(("farm_fault", "interrupted", "nothing"), "⚠️")


def markdown(run: RunLike, limit_bytes: int = 60_000) -> str:
    """Verdict, warnings, a table of backends, the first findings, and how to repeat the run."""
    run = as_shown(run)
    found = findings(run)
    for shown in range(min(SHOWN, len(found)), -1, -1):
        text = "\n".join([*_head(run), *_backends(run), *_findings(found, shown), *_foot(run)]) + "\n"
        if len(text.encode()) <= limit_bytes:
            return text
    return _cut(text, limit_bytes)


def _head(run: RunLike) -> list[str]:
    found = verdict(run)
    parts = [when(str(run.head.get("created") or "")), ", ".join(_matrices(run)), commit(run.head)]
    if run.head.get("seconds"):
        parts.append(duration(float(run.head["seconds"])))
    have = ", ".join(f"{count(n)} {label(s)}" for s, n in counts(run.rows).items())
    sign = "=" if planned(run) == len(run.rows) else "≠"
    return [
        f"### {SIGNS.get(found.kind, '')} {plain(sentence(found))}",
        "",
        " · ".join(plain(p) for p in (f"run {run.id}", *parts) if p),
        "",
        *_subject(run),
        *(f"> **Do not trust this run as it is.** {plain(w)}\n" for w in warnings(run)),
        f"{count(planned(run))} planned {sign} {have}",
        "",
    ]


def _subject(run: RunLike) -> list[str]:
    """Whose kernels were run, if not the farm's own."""
    of = run.head.get("subject")
    if not of:
        return []
    parts = (f"subject {of.get('name')}", str(of.get("revision") or ""), f"digest {of.get('digest')}", of.get("source"))
    return [" · ".join(plain(str(p)) for p in parts if p), ""]


def _matrices(run: RunLike) -> list[str]:
    return [str(m.get("name")) for m in run.head.get("matrices") or []]


def _backends(run: RunLike) -> list[str]:
    """A line per provider of each card; speeds are medians of mode `auto`, peers are compared cell by cell."""
    out = ["| backend | evidence | op | provider | passed | worst error / tolerance | median speed | of roof |"]
    out.append("|---|---|---|---|--:|--:|--:|--:|")
    known = versions(run)
    for card in cards(run):
        first = (plain(card.target or card.backend), card.evidence or "nothing ran")
        if not card.parts:
            out.append(_line(*first, "", "", "0", "", "", ""))
        for p in card.parts:
            speed = f"{sig(p.speed)} {p.unit}, {cells(p.timed)}" if p.speed is not None else ""
            speed = "; ".join([*filter(None, [speed]), *map(" ".join, paired(p.against))])
            version = known.get(card.backend, {}).get(p.provider, "")
            who = " ".join(filter(None, (plain(p.provider), plain(version), "(peer)" if p.role == "peer" else "")))
            passed = f"{count(p.passed)} / {count(p.cells)}"
            out.append(_line(*first, plain(p.op), who, passed, ratio(p.worst_ratio), speed, percent(p.share)))
    return [*out, ""]


def _findings(found: list[Group], shown: int) -> list[str]:
    if not found:
        return []
    out = ["**Findings**", "", "| | backend | what | cells | where | reason |", "|---|---|---|--:|---|---|"]
    for g in found[:shown]:
        where = "; ".join([*([g.worst] if g.worst else []), *g.where])
        reason = plain(clip(g.reasons[0][0], 160))
        of = f"{count(len(g.rows))} of {count(g.of)}"
        out.append(_line(label(g.kind), plain(g.backend), plain(g.subject), of, plain(where), reason))
    if shown < len(found):
        left = sum(len(g.rows) for g in found[shown:])
        out += ["", f"and {len(found) - shown} more failures in {cells(left)}: see the run's page."]
    return [*out, ""]


def _foot(run: RunLike) -> list[str]:
    out = []
    for g in farm_faults(run)[:5]:
        why = plain(clip(g.reasons[0][0], 100))
        out.append(f"Infrastructure failure on {plain(g.backend)}: {cells(len(g.rows))} {label(g.kind)}, {why}.\n")
    if peers := peer_failures(run):
        out.append(f"Peers failed in {cells(sum(len(g.rows) for g in peers))} (for information; not findings).")
    if aside := set_aside(run):
        why_not = (
            f"{count(n)} {label(status)} on {plain(b)}: {plain(clip(why, 100))}" for status, why, b, _, n in aside[:6]
        )
        more = [f"and {len(aside) - 6} more reasons"] if len(aside) > 6 else []
        out += ["", "Skipped and unsupported: " + "; ".join([*why_not, *more]) + "."]
    if command := whole(run.head):
        out += ["", "Repeat:", *code(command)]
    return out


def _line(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def plain(text: str) -> str:
    """`text` literally: no markup, no table break, no mention, no link; no control characters, nor those that change
    the direction of what follows, nor halves of characters, which cannot be sent."""
    text = "".join(c for c in " ".join(text.split()) if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("#", "&#35;")
    # GitHub looks for mentions and issues in what the Markdown became, where a reference is its character again
    text = re.sub(r"(?<![0-9A-Za-z_])@", f"&#64;{_BREAK}", text).replace("@", "&#64;")
    text = re.sub(r"(?i)\bgh-(?=\d)", lambda found: f"{found[0]}{_BREAK}", text)
    text = re.sub(r"&#35;(?=\d)", f"&#35;{_BREAK}", text)
    text = text.replace("://", "&#58;//").replace("www.", "www&#46;").replace("$", "&#36;")
    return re.sub(r"([\\`*_\[\]~|])", r"\\\1", text)


def code(text: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks in it, without characters that would control a
    terminal or change the direction of what follows."""
    text = "".join(c for c in text if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    fence = "`" * (max([2, *(len(m) for m in re.findall(r"`+", text))]) + 1)
    return [fence, text, fence]


def _cut(text: str, limit_bytes: int) -> str:
    """Complete lines from the top, as many as fit, and a note that there was more."""
    note = "\n(truncated; see the run's page)\n"
    room, kept = limit_bytes - len(note.encode()), ""
    for line in text.splitlines(keepends=True):
        if len((kept + line).encode()) > room:
            break
        kept += line
    return kept + note
