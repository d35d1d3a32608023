"""Text from elsewhere (paths, YAML, a kernel's exception), made safe to print on a terminal."""

from __future__ import annotations

from farm.errors import id_of


def printable(text: str) -> str:
    """`text` on one line.  Characters that would control the terminal are escaped: `\\x1b`, `\\u202e`."""
    return "".join(c if c.isprintable() else _shown(c) for c in text)


def sentence(message: object) -> str:
    """A refusal or a message on one line, followed by its identifier in brackets if it has one."""
    name = id_of(message)
    return printable(str(message)) + (f" [{name}]" if name else "")


def _shown(c: str) -> str:
    return " " if c.isspace() else c.encode("unicode_escape").decode("ascii")


def counted(number: int, noun: str) -> str:
    """`1 cell`, `6 cells`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """`8 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
