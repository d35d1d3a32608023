"""Patches that people write into comments: which files one changes, and whether it may.  Pure.

A patch is read strictly: text of a unified diff of plain files, nothing else.  What git makes of it is held against the
same rules once more where it is applied.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from farm.errors import UsageError

MAX_CHARACTERS, MAX_FILES = 32_768, 20
_HUNK = re.compile(r"@@ -\d{1,7}(?:,(\d{1,7}))? \+\d{1,7}(?:,(\d{1,7}))? @@.*")
#: Between the hunks of two files; links, submodules, modes, renames and binary content are none of them.
_HEADER = re.compile(r"index [0-9a-f]{4,64}\.\.[0-9a-f]{4,64}( 100(644|755))?|(new|deleted) file mode 100644|")
_GIT = re.compile(r"diff --git a/(\S+) b/(\S+)")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
NOWHERE = "/dev/null"


@dataclass(frozen=True)
class Suggestion:
    """What a review comment suggests: `text` in place of the lines `first` to `last` (from 1) of a file of head."""

    path: str
    first: int
    last: int
    text: str


def files(patch: str) -> tuple[str, ...]:
    """The files that a patch changes.  UsageError, in one clause, for anything but a unified diff of plain files."""
    if not patch.strip() or len(patch) > MAX_CHARACTERS:
        raise _wrong(f"the patch is empty, or longer than {MAX_CHARACTERS:,} characters")
    if re.search("[\0\ud800-\udfff]", patch):
        raise _wrong("the patch has binary content")
    lines = patch.split("\n")
    found, at, named = list[str](), 0, ""
    while at < len(lines):
        line = lines[at]
        if given := _GIT.fullmatch(line):
            if given[1] != given[2]:
                raise _wrong(f"line {at + 1} of the patch renames a file")
            named = given[1]
        elif line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            path = _path(line, lines[at + 1], at + 1)
            if named and path != named:
                raise _wrong(f"line {at + 1} of the patch is of another file than the line before")
            found.append(path)
            named = ""
            at = _hunks(lines, at + 2)
            continue
        elif not _HEADER.fullmatch(line):
            raise _wrong(f"line {at + 1} is not of a unified diff of plain files, as git diff writes it")
        at += 1
    if not found or named:
        raise _wrong("the patch has a file without lines")
    if len(set(found)) != len(found) or len(found) > MAX_FILES:
        raise _wrong(f"the patch has a file twice, or more than {MAX_FILES} files")
    return tuple(found)


def _hunks(lines: list[str], at: int) -> int:
    """The line behind the hunks that begin at line `at`."""
    begun = at
    while at < len(lines) and (found := _HUNK.fullmatch(lines[at])):
        old, new = (1 if n is None else int(n) for n in found.groups())
        at += 1
        while old > 0 or new > 0:
            mark = lines[at][:1] if at < len(lines) else "?"
            if mark not in (" ", "", "+", "-", "\\"):
                raise _wrong(f"the patch ends, or is malformed, at line {at + 1}")
            old -= mark in (" ", "", "-")
            new -= mark in (" ", "", "+")
            at += 1
        if old < 0 or new < 0:
            raise _wrong(f"the patch has fewer lines than it says, before line {at + 1}")
        at += at < len(lines) and lines[at].startswith("\\")
    if at == begun:
        raise _wrong(f"line {at + 1} of the patch begins no hunk (@@ -1,2 +1,2 @@)")
    return at


def _path(old: str, new: str, line: int) -> str:
    names = [text[4:].partition("\t")[0] for text in (old, new)]
    paths = [name[2:] for name, side in zip(names, ("a/", "b/")) if name.startswith(side)]
    if len(paths) + names.count(NOWHERE) != 2 or not paths or len(set(paths)) != 1:
        raise _wrong(f"line {line} of the patch does not name one file as a/FILE and b/FILE")
    check_path(paths[0])
    return paths[0]


def check_path(path: str) -> None:
    """UsageError for a file that no patch may name: above the repository, or with a part that begins with a dot, as in
    .git and .github."""
    if len(path) > 300 or not all(_PART.fullmatch(part) for part in path.split("/")):
        raise _wrong(f"the patch names {path[:60]!r}, and it may name plain files inside of the subject only")


def outside(names: Iterable[str], inside: Iterable[str]) -> list[str]:
    """Those of `names` that are in none of the folders (`src/mylib/`), and none of the files, of `inside`."""
    folders = tuple(n for n in inside if n.endswith("/"))
    plain = {n for n in inside if not n.endswith("/")}
    return sorted(name for name in names if name not in plain and not name.startswith(folders or ("\0",)))


def of_suggestion(before: str, suggestion: Suggestion) -> str:
    """A suggestion as a patch of the file whose text is `before`.  UsageError if it changes nothing, or has no place
    there."""
    check_path(suggestion.path)
    old = before.split("\n")
    if not 1 <= suggestion.first <= suggestion.last <= len(old):
        raise _wrong(f"the suggestion is for lines that {suggestion.path} does not have")
    text = suggestion.text.replace("\r\n", "\n").split("\n") if suggestion.text else []
    new = [*old[: suggestion.first - 1], *text, *old[suggestion.last :]]
    if "\r" in before:
        raise _wrong(f"{suggestion.path} has lines that end by a carriage return; write a diff block")
    sides = [_ended(side) for side in (old, new)]
    made = list(difflib.unified_diff(sides[0], sides[1], f"a/{suggestion.path}", f"b/{suggestion.path}"))
    if not made:
        raise _wrong("the suggestion changes nothing")
    patch = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in made)
    files(patch)
    return patch


def _ended(lines: list[str]) -> list[str]:
    """Lines with their ends; an empty last one stands for a file that ends by a line break."""
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _wrong(why: str) -> UsageError:
    return UsageError(why, id="pr-patch")
