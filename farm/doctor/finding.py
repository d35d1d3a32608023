"""One line of the report, and the exit code of all lines.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from farm.doctor.codes import CODES


class Level(str, Enum):
    """What a finding means for `farm run` on this host."""

    OK = "ok"
    NOTE = "note"  # for information
    WARN = "warn"  # it runs, but with less than you may expect
    FAIL = "fail"  # it does not run


@dataclass(frozen=True)
class Finding:
    """`code`: one of `farm.doctor.codes.CODES` ("ok" where nothing is wrong).  Codes are stable, so that scripts can
    rely on them; the wording may change.  Raises ValueError for a code that is not explained there."""

    code: str
    section: str
    level: Level
    what: str
    cure: str = ""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code!r} is not a code of farm.doctor.codes")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}


Findings = Iterator[Finding]


def ok(section: str, what: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding("ok", section, Level.OK, what)


def note(code: str, section: str, what: str, cure: str = "") -> Finding:
    return Finding(code, section, Level.NOTE, what, cure)


def warn(code: str, section: str, what: str, cure: str) -> Finding:
    return Finding(code, section, Level.WARN, what, cure)


def fail(code: str, section: str, what: str, cure: str) -> Finding:
    return Finding(code, section, Level.FAIL, what, cure)


def exit_code(findings: Iterable[Finding]) -> int:
    """3 if a finding would stop `farm run` on this host, else 0."""
    return 3 if any(f.level is Level.FAIL for f in findings) else 0
