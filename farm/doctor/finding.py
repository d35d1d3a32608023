"""One line of the report, and what the lines come to.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from farm.doctor.codes import CODES


class Level(str, Enum):
    """What a finding means for `farm run` on this host."""

    OK = "ok"
    NOTE = "note"  # good to know
    WARN = "warn"  # it runs, with less than one would think
    FAIL = "fail"  # it does not run


@dataclass(frozen=True)
class Finding:
    """`code`: stable, one of `farm.doctor.codes.CODES` ("ok" for what is as it should be), so that scripts and other
    tools can name it; the words may change.  ValueError for a code that nobody has explained there."""

    code: str
    section: str
    level: Level
    what: str
    cure: str = ""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code!r} is no code of farm.doctor.codes")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}


Findings = Iterator[Finding]


def ok(section: str, what: str) -> Finding:
    """What is as it should be."""
    return Finding("ok", section, Level.OK, what)


def note(code: str, section: str, what: str, cure: str = "") -> Finding:
    return Finding(code, section, Level.NOTE, what, cure)


def warn(code: str, section: str, what: str, cure: str) -> Finding:
    return Finding(code, section, Level.WARN, what, cure)


def fail(code: str, section: str, what: str, cure: str) -> Finding:
    return Finding(code, section, Level.FAIL, what, cure)


def exit_code(findings: Iterable[Finding]) -> int:
    """3 where something would stop `farm run` on this host, else 0."""
    return 3 if any(f.level is Level.FAIL for f in findings) else 0
