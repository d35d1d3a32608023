"""Text of others (paths, YAML, a kernel's exception) as a terminal may be shown it."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line, with escapes for whatever a terminal would obey instead of show: `\\x1b`, `\\u202e`."""
    return "".join(c if c.isprintable() else _shown(c) for c in text)


def _shown(c: str) -> str:
    return " " if c.isspace() else c.encode("unicode_escape").decode("ascii")
