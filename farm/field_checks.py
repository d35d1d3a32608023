"""Checks of plain data that another process sent, to be put together as tables.  Pure, standard library.

A check takes a value and where it stands (`facts.flags[2]`), and raises BadField for what it does not accept.  Nearly
all that comes is right, and making the names of its places takes most of the time: so `verify` checks first without
places (None), and only what is wrong once more with them.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from farm.errors import FarmSignal

Check = Callable[[Any, "str | None"], None]
#: The range of a column of integers.
LARGEST = 2**63 - 1
_LARGEST_FLOAT = sys.float_info.max


class BadField(FarmSignal, ValueError):
    """A value that is not what belongs there; the message is a clause: `facts.flags[2] is 3, not text`."""


def refuse(where: str | None, value: Any, wanted: str) -> BadField:
    return BadField(f"{where} is {reprlib.repr(value)}, not {wanted}")


def verify(check: Check, value: Any, where: str) -> None:
    """BadField, which names the place, if `check` does not accept the value that stands at `where`."""
    try:
        check(value, None)
    except BadField:
        check(value, where)
        raise


def text(longest: int = 4096) -> Check:
    def check(value: Any, where: str | None) -> None:
        if not isinstance(value, str) or len(value) > longest:
            raise refuse(where, value, f"text of at most {longest} characters")

    return check


def number(least: float = -math.inf, *, finite: bool = True) -> Check:
    """A float or an integer, never a bool; NaN only where it need not be `finite`."""

    floor, ceiling = max(least, -_LARGEST_FLOAT), _LARGEST_FLOAT

    def check(value: Any, where: str | None) -> None:
        if type(value) is float and floor <= value <= ceiling:
            return
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        if plain and isinstance(value, int):
            plain = -LARGEST <= value <= LARGEST  # or it would be no float
        if not plain or (finite and not math.isfinite(value)) or value < least:
            raise refuse(where, value, f"a number of at least {least:g}" if math.isfinite(least) else "a finite number")

    return check


_NAME, _WORDS, _NUMBER = text(200), text(16_384), number()


def integer(least: int = 0, most: int = LARGEST) -> Check:
    def check(value: Any, where: str | None) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise refuse(where, value, f"an integer from {least} to {most}")

    return check


def switch(value: Any, where: str | None) -> None:
    if not isinstance(value, bool):
        raise refuse(where, value, "true or false")


def one_of(*known: Any) -> Check:
    def check(value: Any, where: str | None) -> None:
        if not any(type(value) is type(k) and value == k for k in known):
            raise refuse(where, value, f"one of {', '.join(map(str, known))}")

    return check


def optional(inner: Check) -> Check:
    """None, or what `inner` accepts."""

    def check(value: Any, where: str | None) -> None:
        if value is not None:
            inner(value, where)

    return check


def listed(inner: Check, most: int = 1000) -> Check:
    def check(value: Any, where: str | None) -> None:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise refuse(where, value, f"a list of at most {most}")
        if where is None:
            for item in value:
                inner(item, None)
            return
        for i, item in enumerate(value):
            inner(item, f"{where}[{i}]")

    return check


def mapped(inner: Check, most: int = 1000) -> Check:
    """A mapping from any names."""

    def check(value: Any, where: str | None) -> None:
        if not isinstance(value, dict) or len(value) > most:
            raise refuse(where, value, f"a mapping of at most {most}")
        for key, item in value.items():
            _NAME(key, None if where is None else f"a name in {where}")
            inner(item, None if where is None else f"{where}.{key}")

    return check


def record(needed: Mapping[str, Check], more: Mapping[str, Check] | None = None, *, open: bool = False) -> Check:
    """A mapping with the names of `needed`, maybe those of `more`, and no others unless it is `open`."""
    known = {**needed, **(more or {})}

    def check(value: Any, where: str | None) -> None:
        if not isinstance(value, dict):
            raise refuse(where, value, "a mapping")
        at = f"{where}." if where else ""
        for name in needed:
            if name not in value:
                raise BadField(f"{at}{name} is missing")
        for name, item in value.items():
            if name in known:
                known[name](item, None if where is None else f"{at}{name}")
            elif not open:
                raise BadField(f"{at}{reprlib.repr(name)} is not a field")

    return check


def plain(depth: int = 4, most: int = 1000) -> Check:
    """JSON of any form, within bounds."""
    inner = plain(depth - 1, most) if depth else None
    ofs = inner and (mapped(inner, most), listed(inner, most))

    def check(value: Any, where: str | None) -> None:
        kind = type(value)
        if kind is str and len(value) <= 1000:  # as most of what is plain
            return
        if kind is float and -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT:  # as most of what is not
            return
        if isinstance(value, (dict, list, tuple)):
            if ofs is None:
                raise BadField(f"{where} is nested too deeply")
            ofs[0 if isinstance(value, dict) else 1](value, where)
        elif isinstance(value, str):
            _WORDS(value, where)
        elif value is not None and not isinstance(value, bool):
            _NUMBER(value, where)

    return check


def shortened(text: str, most: int) -> str:
    """A text of at most `most` (100 or more) characters: its begin and its end, and how much is left out between."""
    if len(text) <= most:
        return text
    room = most - 80
    head, tail = room // 3, room - room // 3
    return f"{text[:head]}\n[... {len(text) - room:,} characters left out here ...]\n{text[-tail:]}"
