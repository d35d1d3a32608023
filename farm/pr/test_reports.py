"""What pytest and benchmarks report of the repository's own tests: text that the code under test may have written.
Pure."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_REPORT, MAX_TESTS, MAX_TEXT = 64_000_000, 20_000, 600
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class OwnResult:
    """One test or benchmark in one arm.  status: passed, inaccurate (an assertion), crashed, timed_out, skipped or
    unsupported; `us`: a benchmark's time in microseconds, if it has the unit."""

    id: str
    kind: str
    status: str
    reason: str = ""
    us: float | None = None

    @property
    def owner(self) -> str:
        return "kernel" if self.status in ("inaccurate", "crashed", "timed_out") else ""


def junit(report: bytes) -> list[OwnResult]:
    """The tests of a report in pytest's xunit1 form, by file and name.  ValueError if it is no such report."""
    if len(report) > MAX_REPORT or b"<!DOCTYPE" in report or b"<!ENTITY" in report:
        raise ValueError("the report is too large, or has a DTD")
    try:
        root = ET.fromstring(report)
    except ET.ParseError as error:
        raise ValueError(f"the report is not XML: {error}") from None
    out: dict[str, OwnResult] = {}
    for case in root.iter("testcase"):
        name = _text(case.get("name") or "?", 150)
        file = _text(case.get("file") or (case.get("classname") or "").replace(".", "/"), 140)
        status, reason = _status(case)
        test = OwnResult(own_id(f"{file}::{_classes(case, file)}{name}"), "test", status, reason)
        known = out.get(test.id)
        if known is None or (known.status in ("passed", "skipped") and status not in ("passed", "skipped")):
            out[test.id] = test  # a teardown that fails is a second entry
        if len(out) >= MAX_TESTS:
            break
    return list(out.values())


def own_id(node: str) -> str:
    """A test's id as pytest writes it, in one line of bounded length."""
    return _text(node, 290)


def begun(lines: bytes) -> str:
    """The last test that began, of the lines that `farm/child/own_pytest.py` wrote; "" if that cannot be read."""
    last = lines.rstrip(b"\n").rpartition(b"\n")[2]
    try:
        found = json.loads(last[:4096])
    except (ValueError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _classes(case: ET.Element, file: str) -> str:
    """`TestNorm::` of a test in a class: two classes of a file may have tests of one name."""
    module = file.removesuffix(".py").replace("/", ".")
    inner = (case.get("classname") or "").partition(f"{module}.")[2]
    return "".join(f"{name}::" for name in _text(inner, 100).split(".") if name)


def _status(case: ET.Element) -> tuple[str, str]:
    for child in case:
        message = _text(child.get("message") or (child.text or ""), MAX_TEXT)
        if child.tag == "failure":
            # every exception of a test is a failure to pytest
            return "inaccurate" if message.startswith(("AssertionError", "assert")) else "crashed", message
        if child.tag == "error":
            return "crashed", message
        if child.tag == "skipped":
            return "skipped", message
    return "passed", ""


def perf(lines: Sequence[str]) -> list[OwnResult]:
    """The numbers that `farm/child/perf_reports.py` wrote, one JSON object a line; other lines are the benchmark's."""
    out: dict[str, OwnResult] = {}
    for line in lines:
        try:
            found = json.loads(line) if line.startswith('{"benchmark"') and len(line) < 4096 else None
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict) or len(out) >= MAX_TESTS:
            continue
        name = _text(str(found.get("benchmark")), 290)
        value, unit, why = found.get("value"), str(found.get("unit") or ""), str(found.get("error") or "")
        if why:
            out[name] = OwnResult(name, "benchmark", "crashed", _text(why, MAX_TEXT))
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e15:
            scale = {"ms": 1e3, "us": 1.0, "µs": 1.0, "s": 1e6}.get(unit.strip().lower())
            note = "" if scale else f"{value:.6g} {_text(unit, 40)}"
            # a number that the code under test made by itself is shown, and never judged
            out[name] = OwnResult(name, "benchmark", "unsupported", note, value * scale if scale else None)
    return list(out.values())


def joined(a: Sequence[OwnResult], b: Sequence[OwnResult]) -> list[dict[str, object]]:
    """Both arms by id, as result.json has them; what only one has is `absent` in the other."""
    left: Mapping[str, OwnResult] = {t.id: t for t in a}
    right: Mapping[str, OwnResult] = {t.id: t for t in b}
    out: list[dict[str, object]] = []
    for id_ in dict.fromkeys([*left, *right]):
        x, y = left.get(id_), right.get(id_)
        one = y or x
        assert one is not None
        out.append(
            {
                "id": id_,
                "kind": one.kind,
                "status_a": x.status if x else "absent",
                "status_b": y.status if y else "absent",
                "owner": one.owner,
                "reason": one.reason,
                "us_a": x.us if x else None,
                "us_b": y.us if y else None,
            }
        )
    return out[:MAX_TESTS]


def _text(text: str, most: int) -> str:
    return _CONTROL.sub("", " ".join(text.split()))[:most]
