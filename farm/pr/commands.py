"""What a comment asks for: lines that begin with `/farm` or `/ok to test`.  Pure.

    /ok to test SHA              approve exactly this head, by somebody with write permission
    /farm run [MATRIX] [BACKEND,..]
    /farm what-if                the suggestion block of the same comment, as a patch of base
    /farm rerun CELL
    /farm ack REASON             accept the present regressions, as a trade-off; a later, worse one fails again

Lines in code blocks and quotations are text about commands.  More than one command in a comment is refused: half of
what its author wanted would be a guess.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from farm.pr.blocks import split

VERBS = {"run": "[MATRIX] [BACKEND,..]", "what-if": "with a suggestion block", "rerun": "CELL", "ack": "REASON"}
BACKENDS = ("cuda", "rocm", "ascend", "cpu")
MAX_COMMENT, MAX_REASON, MAX_PATCH = 65_536, 500, 32_768
_OK = re.compile(r"^/ok\s+to\s+test(?:\s+(\S+))?\s*$")
#: All of it: two commits whose first digits are equal are soon made, one to be read and one to be run.
_SHA = re.compile(r"[0-9a-f]{40}")
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./=,@~+-]{0,299}")
_MATRIX = re.compile(r"(?!-)[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}\.ya?ml")


@dataclass(frozen=True)
class Command:
    """One command.  kind: ok, run, what-if, rerun or ack; what does not belong to it is empty."""

    kind: str
    sha: str = ""
    matrix: str = ""
    backends: tuple[str, ...] = ()
    cell: str = ""
    reason: str = ""
    patch: str = ""


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


def _farm(line: str, patches: list[str]) -> Command | Refused:
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
    if rest or len(patches) != 1:
        return Refused(f"Write /farm what-if with one suggestion block below it; this comment has {len(patches)}.")
    if not patches[0].strip() or len(patches[0]) > MAX_PATCH:
        return Refused(f"The suggestion is empty, or longer than {MAX_PATCH:,} characters.")
    return Command("what-if", patch=patches[0])


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
