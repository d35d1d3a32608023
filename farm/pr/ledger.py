"""What the farm's comment remembers between pushes, hidden in the comment itself.  Pure.

The first line of the comment is an HTML comment with the state, compressed.  It is read only from comments that the
farm's own login wrote, so nobody can acknowledge in somebody else's name by writing such a line.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from farm.pr import result as results

MAX_STATE, MAX_CELLS, MAX_ACKS = 200_000, 300, 20
MAX_ASIDES, MAX_ASIDE = 3, 6000  # characters of each
_MARK = re.compile(r"<!-- kernel-farm:1 ([1-9][0-9]{0,9}) ([A-Za-z0-9_=-]{0,24000}) -->")
_MARKED = re.compile(r"<!-- kernel-farm:1 ([1-9][0-9]{0,9}) ")


@dataclass(frozen=True)
class Ack:
    """Somebody accepted regressions: who, when (ISO 8601), why, at which head, and of which cells, with the ratio of
    times that each had."""

    by: str
    when: str
    reason: str
    head: str
    cells: Mapping[str, float]


@dataclass(frozen=True)
class Aside:
    """What the comment says of a question that somebody asked: `key`, which question; `text`, Markdown that is ready
    to be shown."""

    key: str
    head: str
    text: str


@dataclass(frozen=True)
class Ledger:
    """The state of one pull request.  failing: cell -> how (broken, regressed, ...), of the last result."""

    number: int
    head: str = ""
    run: str = ""
    failing: Mapping[str, str] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)  # of regressed cells
    acks: tuple[Ack, ...] = ()
    rest: int = 3  # the exit code of the last result once its regressions are accepted; 3 where nothing says it
    ran: bool = False  # whether anything of the last result ran on a device
    asides: tuple[Aside, ...] = ()

    @property
    def accepted(self) -> dict[str, float]:
        """Cell -> the largest ratio that was acknowledged."""
        out: dict[str, float] = {}
        for ack in self.acks:
            for cell, ratio in ack.cells.items():
                out[cell] = max(ratio, out.get(cell, 0.0))
        return out

    def acknowledged(self, by: str, when: str, reason: str) -> Ledger:
        """The same with one more acknowledgement: of what is regressed now."""
        ack = Ack(by, when, reason, self.head, dict(self.ratios))
        return replace(self, acks=(*self.acks, ack)[-MAX_ACKS:])

    def answered(self, key: str, head: str, text: str) -> Ledger:
        """The same with the answer to a question, in place of an earlier one to the same."""
        kept = [a for a in self.asides if a.key != key and a.head == head]
        return replace(self, asides=(*kept, Aside(key, head, text[:MAX_ASIDE]))[-MAX_ASIDES:])

    def line(self) -> str:
        """The hidden line."""
        raw = json.dumps(asdict(self), separators=(",", ":")).encode()
        packed = base64.urlsafe_b64encode(zlib.compress(raw, 9)).decode()
        if len(packed) > 24_000:  # then the next comment cannot say what is new
            bare = replace(self, failing={}, ratios={}, acks=self.acks[-1:], asides=())
            packed = base64.urlsafe_b64encode(zlib.compress(json.dumps(asdict(bare)).encode(), 9)).decode()
        return f"<!-- kernel-farm:1 {self.number} {packed if len(packed) <= 24_000 else ''} -->"


def number_of(body: str) -> int:
    """The pull request of a comment with a hidden line, whether or not its state is readable; 0 without one."""
    found = _MARKED.match(body)
    return int(found[1]) if found else 0


def read(body: str) -> Ledger | None:
    """The state of a comment of the farm; None where there is none, or none that can be read."""
    found = _MARK.match(body)
    if not found:
        return None
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.urlsafe_b64decode(found[2]), MAX_STATE)
        if inflate.unconsumed_tail:
            return None
        return _ledger(json.loads(raw), int(found[1]))
    except (binascii.Error, zlib.error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _ledger(of: Mapping[str, Any], number: int) -> Ledger | None:
    if of["number"] != number:
        return None
    acks = tuple(
        Ack(str(a["by"]), str(a["when"]), str(a["reason"]), str(a["head"]), _ratios(a["cells"]))
        for a in of["acks"][:MAX_ACKS]
    )
    failing = {str(k): str(v) for k, v in list(of["failing"].items())[:MAX_CELLS]}
    rest, ran = int(of.get("rest", 3)), of.get("ran") is True
    asides = tuple(
        Aside(str(a["key"]), str(a["head"]), str(a["text"])[:MAX_ASIDE]) for a in of.get("asides", [])[:MAX_ASIDES]
    )
    return Ledger(number, str(of["head"]), str(of["run"]), failing, _ratios(of["ratios"]), acks, rest, ran, asides)


def _ratios(of: Mapping[str, Any]) -> dict[str, float]:
    return {str(k): float(v) for k, v in list(of.items())[:MAX_CELLS]}


def after(before: Ledger | None, result: results.Json) -> Ledger:
    """The state after a result: what fails now, with the acknowledgements of before."""
    failing, ratios = dict[str, str](), dict[str, float]()
    for p in results.counting(result):
        kind = results.statuses(p)
        if kind == "broken" or (kind == "new" and p["status_b"] in results.FAILS):
            failing[p["cell"]] = p["status_b"]
        elif p["speed"] == "regressed" and p["ratio"]:
            failing[p["cell"]] = "regressed"
            ratios[p["cell"]] = round(p["ratio"], results.RATIO_DIGITS)
    kept = {c: ratios[c] for c in sorted(ratios, key=lambda c: -ratios[c])[:MAX_CELLS]}
    accepted = {c: max(r, kept.get(c, 0.0)) for c, r in {**kept, **(before.accepted if before else {})}.items()}
    return Ledger(
        result["number"],
        result["head"]["sha"],
        result["run"],
        dict(list(failing.items())[:MAX_CELLS]),
        kept,
        before.acks if before else (),
        results.outcome(result, accepted).exit_code,
        any(p["evidence"] == "executed" for p in result["pairs"]),
        tuple(a for a in (before.asides if before else ()) if a.head == result["head"]["sha"]),
    )


def since(before: Ledger | None, now: Ledger) -> str:
    """`Since your last push: 3 fixed, 1 new`; "" where there is no push before, or nothing to compare."""
    if before is None or not before.head or before.head == now.head:
        return ""
    fixed = [c for c in before.failing if c not in now.failing]
    new = [c for c in now.failing if c not in before.failing]
    still = len(now.failing) - len(new)
    if not (fixed or new or still):
        return f"Since your last push ({before.head[:12]}): nothing failed then or fails now."
    counted = f"{len(fixed)} fixed, {len(new)} new, {still} as before"
    return f"Since your last push ({before.head[:12]} was measured before), of what fails or is slower: {counted}."
