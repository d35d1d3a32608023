"""What a comment asks for: lines that begin with `/farm` or `/ok to test`.  Pure.

    /ok to test SHA              approve exactly this head, by somebody with write permission
    /farm run [MATRIX] [BACKEND,..]
    /farm what-if [head|base]    the diff block of the same comment, on head (or on base), against the same without it
    /farm what-if ADDRESS        the suggestion of a review comment, by its address (...#discussion_r123)
    /farm rerun CELL
    /farm ack REASON             accept the present regressions, as a trade-off; a later, worse one fails again

Lines in code blocks and quotations are text about commands.  More than one command in a comment is refused: half of
what its author wanted would be a guess.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from farm.errors import UsageError
from farm.pr import patches
from farm.pr.blocks import split

VERBS = {"run": "[MATRIX] [BACKEND,..]", "what-if": "with a diff block", "rerun": "CELL", "ack": "REASON"}
BACKENDS = ("cuda", "rocm", "ascend", "cpu")
ARMS = ("head", "base")  # what a patch is tried on
MAX_COMMENT, MAX_REASON = 65_536, 500
_OK = re.compile(r"^/ok\s+to\s+test(?:\s+(\S+))?\s*$")
#: All of it: two commits whose first digits are equal are soon made, one to be read and one to be run.
_SHA = re.compile(r"[0-9a-f]{40}")
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./=,@~+-]{0,299}")
_MATRIX = re.compile(r"(?!-)[A-Za-z0-9_][A-Za-z0-9_./-]{0,195}\.ya?ml")
_REVIEW = re.compile(
    r"(?:https://[\w.-]+/[\w./-]{1,200}/pull/\d{1,10}(?:/files|/changes)?#)?(?:discussion_)?r(\d{1,15})"
)


@dataclass(frozen=True)
class Command:
    """One command.  kind: ok, run, what-if, rerun or ack; what does not belong to it is empty.

    Of a what-if: `on`, head or base; the `patch`, or the number of the review comment whose suggestion is one."""

    kind: str
    sha: str = ""
    matrix: str = ""
    backends: tuple[str, ...] = ()
    cell: str = ""
    reason: str = ""
    patch: str = ""
    on: str = ""
    review: int = 0


@dataclass(frozen=True)
class Refused:
    """A comment that addresses the farm and cannot be done; `why` is a sentence for its author."""

    why: str


def read(body: str) -> Command | Refused | None:
    """The command of a comment; None where it does not address the farm."""
    if len(body) > MAX_COMMENT:
        return None  # no forge lets a person write it
    blocks, outside = split(re.sub(r"<!--.*?(-->|\Z)", "", body, flags=re.S))
    # an indented line is code, a quoted one is somebody else's
    found = [line.strip(" ") for line in outside if re.match(r" {0,3}/(farm|ok)\b", line)]
    if not found:
        return None
    if len(found) > 1:
        return Refused(f"The comment has {len(found)} commands; write one per comment.")
    line = found[0]
    if line.startswith("/ok"):
        return _approval(line)
    return _farm(line, [b.text for b in blocks if b.language in ("suggestion", "diff")])


def _approval(line: str) -> Command | Refused:
    found = _OK.match(line)
    if not found:
        return Refused("An approval is written as /ok to test SHA.")
    if not found[1] or not _SHA.fullmatch(found[1]):
        return Refused("An approval names the head that was read: /ok to test SHA, with all its 40 digits.")
    return Command("ok", sha=found[1])


def _farm(line: str, found: list[str]) -> Command | Refused:
    words = line.split()
    verb = words[1] if len(words) > 1 else ""
    if words[0] != "/farm" or verb not in VERBS:
        near = difflib.get_close_matches(verb[:50], VERBS, 1)
        hint = f"did you mean /farm {near[0]}?" if near else f"known: {', '.join(f'/farm {v}' for v in VERBS)}."
        return Refused(f"This is no command of the farm; {hint}")
    rest = words[2:]
    if verb == "run":
        return _run(rest)
    if verb == "rerun":
        if len(rest) != 1 or not _CELL.fullmatch(rest[0]):
            return Refused("Write /farm rerun CELL, with the id of one cell as the comment shows it.")
        return Command("rerun", cell=rest[0])
    if verb == "ack":
        reason = " ".join(rest)
        if not 1 <= len(reason) <= MAX_REASON:
            return Refused(f"Write /farm ack REASON, with at most {MAX_REASON} characters.")
        return Command("ack", reason=reason)
    return _what_if(rest, found)


def _what_if(rest: list[str], found: list[str]) -> Command | Refused:
    on = rest.pop(0) if rest and rest[0] in ARMS else ARMS[0]
    review = _REVIEW.fullmatch(rest[0]) if len(rest) == 1 else None
    if review and not found:
        return Command("what-if", on=on, review=int(review[1]))
    if rest or len(found) != 1:
        return Refused(
            "Write /farm what-if with one diff block below it, or /farm what-if with the address of a review comment "
            f"that has a suggestion; this comment has {len(found)} blocks."
        )
    try:
        patches.files(found[0])
    except UsageError as error:
        return Refused(f"{str(error)[:200].capitalize()}.")
    return Command("what-if", patch=found[0], on=on)


def _run(rest: list[str]) -> Command | Refused:
    matrix, backends = "", tuple[str, ...]()
    for word in rest:
        if _MATRIX.fullmatch(word) and not matrix and ".." not in word.split("/"):
            matrix = word
        elif not backends and all(b in BACKENDS for b in word.split(",")):
            backends = tuple(dict.fromkeys(word.split(",")))
        else:
            return Refused(
                f"Write /farm run [MATRIX] [BACKEND,..]: a matrix is a .yaml of the repository; a backend is one of "
                f"{', '.join(BACKENDS)}."
            )
    return Command("run", matrix=matrix, backends=backends)
