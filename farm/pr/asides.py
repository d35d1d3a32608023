"""What a comment says beside the verdict: answers to what people asked, and what a run waits for.  Pure.

Answers stand at the end of the comment, behind a mark; a waiting message stands in its first line that people see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from farm.pr import comment as comments
from farm.pr import result as results
from farm.pr import timed, untimed
from farm.pr.ledger import MAX_ASIDE, Ledger
from farm.report.markdown import plain

LINES = 40
_WAITING = re.compile(r"\A> ⏳ [^\n]*\n\n?")
Json = Mapping[str, Any]


def key(result: Json) -> str:
    """Which question a result answers."""
    asked = result["asked"]
    parts = (asked["kind"], asked["on"], asked["patch"], asked["cell"], asked["matrix"], ",".join(asked["backends"]))
    return " ".join(part for part in parts if part)[:300]


def answer(result: Json) -> str:
    """What a result says of the question that it was asked."""
    asked = result["asked"]
    found = results.outcome(result)
    out = [f"#### {_title(result)}: {comments.headline(result, found)}", ""]
    if asked["patch"]:
        out += [
            f"Below, *base* is {asked['on']} as it is ({plain(result['base']['sha'][:12])}), and *head* is the same "
            f"with the patch (SHA-256 {asked['patch'][:12]}). This is not part of the verdict.",
            "",
        ]
    else:
        out += ["This is beside the verdict, and does not change it unless it finds something.", ""]
    if asked["kind"] == "rerun":
        out[-2] = "This does not change the verdict: whoever may choose which measurement counts finds what is wanted."
        out += [f"- {_cell(p)}" for p in result["pairs"][:10]] + [""]
    body = timed.changes(result, {}, 2)
    body += untimed.static(result["static"], result["pairs"]) if result["static"] and asked["patch"] else []
    return _whole([*out, *body[:LINES]])


def _whole(lines: list[str]) -> str:
    """As many lines as there is room for, and no code block that is not closed."""
    while len(text := "\n".join(lines).rstrip() + "\n") > MAX_ASIDE or sum(ln.startswith("```") for ln in lines) % 2:
        lines = lines[:-1]
    return text


def _title(result: Json) -> str:
    asked = result["asked"]
    if asked["kind"] == "what-if":
        return f"What if {plain(', '.join(asked['files'][:3]))} changes"
    if asked["kind"] == "rerun":
        return f"Run again, {plain(asked['cell'])}"
    return plain(" ".join(filter(None, ("Run of", asked["matrix"] or "the matrices", ", ".join(asked["backends"])))))


def _cell(pair: Json) -> str:
    status = f"{pair['status_a']} in base, {pair['status_b']} in head"
    speed = f"; {timed.speed_words(pair, plain)}: {pair['speed']}" if pair["ratio"] and pair["speed"] != "none" else ""
    return f"{plain(pair['cell'])}: {status}{speed}"


def with_answers(body: str, now: Ledger) -> str:
    """A comment's text with the answers that its state has, in place of those that it shows, below the limit with its
    hidden line."""
    text = _WAITING.sub("", without_answers(body))
    shown = comments.answers(now.asides)
    text = _shortened(text.rstrip(), comments.LIMIT - len(shown) - len(now.line()) - 3)
    return f"{text}\n\n{shown}"


def _shortened(text: str, room: int) -> str:
    """As many lines as there is room for, with what they open closed."""
    if len(text) <= room:
        return text
    kept = text[: room - 100].rpartition("\n")[0]
    kept += "\n```" if sum(line.startswith("```") for line in kept.split("\n")) % 2 else ""
    kept += "\n\n</details>" if kept.count("<details>") > kept.count("</details>") else ""
    return f"{kept}\n\n(shortened; the artefact has it all)"


def without_answers(body: str) -> str:
    """The text before the answers."""
    return body.partition(comments.ANSWERS)[0]


def waits(body: str) -> bool:
    """Whether a comment's text begins with a waiting message."""
    return _WAITING.match(body) is not None


def waiting(body: str, words: str) -> str:
    """A comment's text with a waiting message as its first line."""
    return f"> ⏳ {words}\n\n{_WAITING.sub('', body)}"
