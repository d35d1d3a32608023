"""Fenced blocks of a Markdown text, and the lines that are outside of them.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`\n]*$")


@dataclass(frozen=True)
class Block:
    """A fenced block.  line: of its fence, from 1; language: the word behind the fence."""

    line: int
    language: str
    text: str


def split(text: str) -> tuple[list[Block], list[str]]:
    """(the blocks, the other lines).  A block that is not closed reaches to the end, as in CommonMark."""
    blocks, outside = list[Block](), list[str]()
    fence, language, start, inside = "", "", 0, list[str]()
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        found = _FENCE.match(line)
        if not fence and found:
            fence, language, start, inside = found[1], found[2].lower(), number, []
        elif not fence:
            outside.append(line)
        elif found and not found[2] and found[1][0] == fence[0] and len(found[1]) >= len(fence):
            blocks.append(Block(start, language, "\n".join(inside)))
            fence = ""
        else:
            inside.append(line)
    if fence:
        blocks.append(Block(start, language, "\n".join(inside)))
    return blocks, outside
