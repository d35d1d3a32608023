"""What supervisor and child say to each other: typed messages, one JSON object a line on a private pipe.

Tensors travel as raw little-endian files, by path (a container may not inherit descriptors).  Every message that
belongs to an attempt carries (revision, round, attempt), so that a late line is never taken for another's, and the
nonce of the order that it answers, so that no line printed in advance is taken for an answer.
Standard library only: the child may run on another Python than the supervisor.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

#: 2: answers carry their order's nonce, a measurement says whether its process is spent, calibrations.
#: 3: a child says what its results prove.  4: trials of a capture.  5: a child says whose files it imports.
#: 6: a cell may be timed only.
VERSION = 6
#: What a cell is run for, in `Run.only`: everything, or its time, in a round after one that was judged in full.
EVERYTHING, TIME = "", "time"
#: Of a cell, in order.
PHASES = ("import", "compile", "check", "timing")
#: Characters of a trace: an exception's text may be of any length.
LONGEST_TRACE = 60_000


@dataclass(frozen=True)
class Run:
    """Supervisor to child: try one cell."""

    kind: ClassVar[str] = "run"
    revision: str
    round: int
    attempt: int
    cell: dict[str, Any]
    tensors: list[dict[str, Any]]
    call: dict[str, Any]  # positional: names in order; keywords: name -> value; optional: keywords if taken
    out_dir: str
    work: dict[str, Any] = field(default_factory=dict)  # model bytes, for buffer rotation
    only: str = EVERYTHING


@dataclass(frozen=True)
class Trial(Run):
    """Supervisor to child: capture the cell's call in a graph and replay it.  Nothing is measured, and no cell ends by
    it."""

    kind: ClassVar[str] = "trial"


@dataclass(frozen=True)
class Calibrate:
    """Supervisor to child: measure what the device can do at best, within about `seconds`, by a timing policy."""

    kind: ClassVar[str] = "calibrate"
    revision: str
    round: int
    attempt: int
    policy: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Exit:
    """Supervisor to child: finish."""

    kind: ClassVar[str] = "exit"


@dataclass(frozen=True)
class Ready:
    """Child to supervisor: the device is open."""

    kind: ClassVar[str] = "ready"
    protocol: int
    pid: int
    target: dict[str, Any]
    device: str
    fingerprint: dict[str, Any]
    evidence: str = "executed"  # farm.cell.Evidence by value; a fake that plays a vendor's device says `simulated`
    subject: dict[str, Any] = field(default_factory=dict)  # what farm.child.subject_files.place proved
    versions: dict[str, str] = field(default_factory=dict)  # built-in provider -> version of its distribution here


@dataclass(frozen=True)
class Unusable:
    """Child to supervisor: this environment cannot serve; the child ends after it."""

    kind: ClassVar[str] = "unusable"
    reason: str
    owner: str


@dataclass(frozen=True)
class Phase:
    """Child to supervisor: an attempt enters a phase; the phase's deadline starts."""

    kind: ClassVar[str] = "phase"
    revision: str
    round: int
    attempt: int
    phase: str


@dataclass(frozen=True)
class Measured:
    """Child to supervisor: the cell ran; outputs wait in files for the judge, samples are raw."""

    kind: ClassVar[str] = "measured"
    revision: str
    round: int
    attempt: int
    outputs: list[dict[str, Any]]
    facts: dict[str, Any]  # mode_resolved, launch, compile_s, tuning_s, check_s, peak_memory_mib, flags
    timing: dict[str, Any]  # method, samples_us, host_us, launches, quality hints
    spent: bool = False  # something runs or is held that this process cannot be rid of: it should serve no other cell


@dataclass(frozen=True)
class Tried:
    """Child to supervisor: a capture was made and replayed.  `differs`: what its replays got wrong, "" for nothing.  A
    trial that ends otherwise ends in `Failed`."""

    kind: ClassVar[str] = "tried"
    revision: str
    round: int
    attempt: int
    differs: str
    compile_s: float | None = None  # of the first call, which compiled
    spent: bool = False  # as in Measured


@dataclass(frozen=True)
class Calibrated:
    """Child to supervisor: what `farm.calibration.procedure.calibrate` found."""

    kind: ClassVar[str] = "calibrated"
    revision: str
    round: int
    attempt: int
    found: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """Child to supervisor: the cell ended in the child without a measurement."""

    kind: ClassVar[str] = "failed"
    revision: str
    round: int
    attempt: int
    status: str
    owner: str
    reason: str
    trace: str = ""
    fatal: bool = False  # the device context is lost: the child ends itself


Message = Run | Trial | Calibrate | Exit | Ready | Unusable | Phase | Measured | Tried | Calibrated | Failed
KINDS: dict[str, Any] = {
    c.kind: c for c in (Run, Trial, Calibrate, Exit, Ready, Unusable, Phase, Measured, Tried, Calibrated, Failed)
}


def encode(message: Message, nonce: str = "") -> str:
    """One line, with its newline.  `nonce`: what the supervisor sent with the order that this message answers."""
    stamped = {"nonce": nonce} if nonce else {}
    return _line({"kind": message.kind, **stamped, **message.__dict__}) + "\n"  # plain data, which asdict would copy


_line = json.JSONEncoder(separators=(",", ":"), default=asdict).encode


def printable(value: Any) -> Any:
    """`value` with every text such that any encoder takes it: an exception's text may hold lone surrogates."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {printable(k): printable(v) for k, v in value.items()}
    return [printable(v) for v in value] if isinstance(value, list) else value


def decode_stamped(line: str | bytes) -> tuple[Message, str]:
    """The message of one line, and its nonce ("" for none).  ValueError if it is none: a child that writes nonsense is
    a harness fault."""
    try:
        text = line if isinstance(line, str) else line.decode("utf-8", "surrogatepass")
        data = json.loads(text)
        if "\\u" in text or not text.isascii():  # else there is nothing that an encoder might refuse
            data = printable(data)
        nonce = str(data.pop("nonce", ""))
        kind = KINDS[data.pop("kind")]
        message: Message = kind(**data)
        return message, nonce
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a protocol line: {line[:200]!r} ({error})") from None
