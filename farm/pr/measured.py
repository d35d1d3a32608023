"""From what was measured of two arms to result.json.  Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farm.cell import FARM_FAULTS
from farm.compare.reach import Reached
from farm.compile.targets import TARGETS
from farm.pr.result_schema import EVIDENCE, STATUSES
from farm.pr.untimed import sizes
from farm.report.queries import parse
from farm.stage_zero.answer import Answer

Row = Mapping[str, Any]
_MIB = 1 << 20
_ABSENT = "absent"
#: Measures of machine code of which more is worse whatever else happened.
_WORSE = {"spill stores, bytes": "spills", "spill loads, bytes": "spills"}
#: Timing quality -> what it means.
_QUALITY = {
    "impossible": "faster than the device's memory and arithmetic allow",
    "noisy": "the samples of a round differ too much",
    "throttled": "the device lowered its clock",
    "launch_bound": "launching took longer than the kernel",
    "none": "nothing was timed",
}
_FAULTS = tuple(s.value for s in FARM_FAULTS)


def static(answer: Answer) -> dict[str, Any]:
    """What stage 0 said."""
    kernels = answer.kernels
    return {
        "kernels": sum(answer.counts.values()),
        "changed": [_cut(r.change.name) for r in kernels if r.change.state in ("changed", "new", "gone")][:1000],
        "unknown": [
            {"kernel": _cut(r.change.name), "why": _cut(_why(r), 1000)}
            for r in kernels
            if r.change.state == "unknown" or (r.change.state in ("changed", "new") and r.state == "unseen")
        ][:1000],
        "unreached": [_cut(r.change.name) for r in kernels if r.finding][:1000],
        "host": [_cut(name.removeprefix("overlay/")) for name in (*answer.host, *answer.other)][:1000],
        "harness": [_cut(note) for note in answer.notes()][:1000],
        "targets": [_target(answer, target) for target in answer.targets][:50],
        "tools": list(dict.fromkeys(_cut(f"{n} {v}") for t in answer.targets for n, v in t.chain.items()))[:50],
    }


def _why(one: Reached) -> str:
    """Why nothing is known of a kernel."""
    if one.state == "unseen":
        return f"launches of {one.kernel.language} kernels are not seen without a device"
    return ", ".join(one.change.why) or "it cannot be read"


def _target(answer: Answer, target: Any) -> dict[str, Any]:
    failed = [s for s in answer.statuses if s[1].endswith(f"@{target.target}") and s[0] in ("broken", "new", "failing")]
    return {
        "target": target.target,
        "backend": TARGETS[target.target].backend,
        "compiled": target.cells,
        "same_code": target.same,
        "unknown": sum(target.unread.values()),
        "why": _cut(max(target.unread, key=lambda why: target.unread[why], default=""), 1000),
        "failed": [
            {"cell": _cut(cell), "status_a": _status(a), "status_b": _status(b), "reason": _cut(reason, 1000)}
            for _, cell, a, b, reason in failed
        ][:1000],
        "moves": [m for change in target.difference.changes for m in _moves(change)][:1000],
        "sizes": _cut(sizes(parse(row.get("dims")) for row in _planned(answer, target.target)), 1000),
        "changed_cells": len({c for k in answer.kernels for c in k.all_cells if c.endswith(f"@{target.target}")}),
        "rewritten": target.difference.rewritten,
    }


def _planned(answer: Answer, target: str) -> list[Row]:
    return [r for r in answer.sides[1].built or () if str(r["cell_id"]).endswith(f"@{target}")]


def _moves(change: Any) -> Iterable[dict[str, Any]]:
    for words, before, after in change.measures:
        a, b = _amount(before), _amount(after)
        if a is None and b is None:
            continue
        yield {
            "kernel": _cut(change.kernel),
            "cell": _cut(_bare(change.cells[0])),
            "cells": len(change.cells),
            "measure": _WORSE.get(words, words)[:60],
            "a": a,
            "b": b,
            "worse": words in _WORSE and (_number(after) or 0) > (_number(before) or 0),
        }


def _amount(value: Any) -> float | str | None:
    return _cut(value, 100) if isinstance(value, str) else _number(value)


def interpreted(answer: Answer) -> list[dict[str, Any]]:
    """The pairs of the interpreter."""
    before, after = ({str(r["cell_id"]): r for r in side.interpreted or ()} for side in answer.sides)
    out = []
    for cell in dict.fromkeys([*before, *after]):
        a, b = before.get(cell), after.get(cell)
        if all(r is None or r["status"] in ("skipped", "unsupported") for r in (a, b)):
            continue
        out.append(_pair(cell, a, b, {}, launched(answer)))
    return out


def executed(pairs: Iterable[Row], rows: Iterable[Row], kernels: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The pairs of a run of two arms: its pairs.parquet and cells.parquet.  `kernels`: of `launched`."""
    known = {str(r["cell_id"]): r for r in rows}
    out = []
    for p in pairs:
        a, b = (known.get(str(p.get(f"cell_id_{arm}") or "")) for arm in "ab")
        if all(r is None or r["status"] in ("skipped", "unsupported") for r in (a, b)):
            continue
        if p.get("role") == "peer":  # what it fails at is nobody's change
            continue
        found = _pair(str(p["cell"]), a, b, p, kernels)  # what stage 0 did not build, the device launched
        names = [k for k in str(p.get("kernels") or "").split(",") if k]
        out.append({**found, "kernels": list(dict.fromkeys([*found["kernels"], *map(_cut, names)]))[:50]})
    return out


def with_launches(static: dict[str, Any], kernels: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What stage 0 said, once devices have shown more launches.  `kernels`: of a run of two arms, as its head has
    them."""
    reached = {_cut(str(k["kernel"])) for k in kernels if k.get("state") == "reached"}
    unknown = [u for u in static["unknown"] if u["kernel"] not in reached or u["kernel"] not in static["changed"]]
    return {**static, "unreached": [n for n in static["unreached"] if n not in reached], "unknown": unknown}


def built(answer: Answer) -> list[str]:
    """The cells that stage 0 planned for targets in arm b, without backend and target."""
    return list(dict.fromkeys(_bare(str(row["cell_id"])) for row in answer.sides[1].built or ()))


def launched(answer: Answer) -> dict[str, list[str]]:
    """Cell, without its backend and target -> the kernels that it launches and that are not the same in both arms."""
    out: dict[str, list[str]] = {}
    for reached in answer.kernels:
        for cell in reached.all_cells:
            names = out.setdefault(_bare(cell), [])
            if reached.change.name not in names:
                names.append(_cut(reached.change.name))
    return out


def not_run(backends: Iterable[str], pairs: Sequence[Row]) -> list[dict[str, str]]:
    """The backends with devices of which none ran anything."""
    ran = {p["backend"] for p in pairs if p["evidence"] == "executed"}
    return [{"what": b, "why": "no device of it took part"} for b in backends if b not in ran]


def unsupported(answer: Answer) -> list[dict[str, str]]:
    """The cells that the interpreter could not run in either arm, by reason."""
    a, b = ({str(r["cell_id"]): r for r in side.interpreted or ()} for side in answer.sides)
    reasons = Counter(
        str(b[c]["reason"] or "unsupported")
        for c in b
        if {r["status"] for r in (a.get(c, b[c]), b[c])} == {"unsupported"}
    )
    return [
        {"what": f"{n} interpreted cells", "why": _cut(f"unsupported: {why}", 1000)}
        for why, n in reasons.most_common(20)
    ]


def _bare(cell: str) -> str:
    return cell.partition("/")[2].partition("@")[0]


def _pair(cell: str, a: Row | None, b: Row | None, times: Row, kernels: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    either = b if b is not None else a
    assert either is not None
    bits = times.get("bits")
    same = _same_bits(a, b) if not times else None if bits is None else bool(bits)
    return {
        "cell": _cut(cell),
        "backend": str(either["backend"]),
        "target": _cut(str(either.get("target") or ""), 100),
        "op": _cut(str(either["op"]), 100),
        "evidence": e if (e := str(either.get("evidence") or "none")) in EVIDENCE else "none",
        "axes": _axes(either),
        "kernels": list(kernels.get(_bare(cell), ()))[:50],
        "status_a": _status(a["status"] if a else _ABSENT),
        "status_b": _status(b["status"] if b else _ABSENT),
        "reason": _cut(str(either.get("reason") or times.get("note") or _unfit(a, b, times)), 1000),
        "place": "",
        "same_bits": same,
        "worst_a": _number(a.get("worst_ratio")) if a else None,
        "worst_b": _number(b.get("worst_ratio")) if b else None,
        "speed": times.get("verdict") or "none",
        **{name: _number(times.get(name)) for name in ("ratio", "low", "high", "threshold")},
        "rounds": int(times.get("rounds") or 0),
        **{f"us_{arm}": _number(times.get(f"time_us_{arm}")) for arm in "ab"},
        **{f"gbps_{arm}": _number(times.get(f"bandwidth_gbps_{arm}")) for arm in "ab"},
        **{f"memory_{arm}": _bytes(times.get(f"peak_memory_mib_{arm}")) for arm in "ab"},
        **{f"bytes_{arm}": _size(row.get("bytes_counted")) if row else None for arm, row in (("a", a), ("b", b))},
        **{f"launch_{arm}": _cut(_launch(times.get(f"launch_{arm}")), 1000) for arm in "ab"},
        "repeat": "",
    }


def _unfit(a: Row | None, b: Row | None, times: Row) -> str:
    """Why a cell's times could not be used; "" where they were."""
    if times.get("verdict") != "unfit":
        return ""
    found = [str(row.get("timing_quality") or "none") for row in (a, b) if row is not None]
    told = dict.fromkeys(f"{q}: {_QUALITY[q]}" if q in _QUALITY else q for q in found)
    return f"no time could be used ({'; '.join(told)})"


def _same_bits(a: Row | None, b: Row | None) -> bool | None:
    if a is None or b is None or not (a.get("output_hash") and b.get("output_hash")):
        return None
    return a["output_hash"] == b["output_hash"] if a.get("input_hash") == b.get("input_hash") else None


def _axes(row: Row) -> dict[str, str]:
    found = {name: row.get(name) for name in ("dtype", "operation", "family")}
    found |= {**parse(row.get("dims")), **parse(row.get("params"))}
    return {str(k)[:100]: str(v)[:100] for k, v in list(found.items())[:40] if v not in (None, "")}


def _launch(text: Any) -> str:
    """`_forward grid 132 warps 8`: the kernels that ran, as a line."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return ""
    seen = found.get("kernels") or found.get("seen") or {}
    return json.dumps(seen, sort_keys=True).replace('"', "") if seen else ""


def _status(status: str) -> str:
    return status if status in STATUSES else _ABSENT


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e18:
        return None
    return float(value)


def _bytes(mib: Any) -> int | None:
    return int(mib * _MIB) if isinstance(mib, (int, float)) and 0 <= mib < 1e9 else None


def _size(value: Any) -> int | None:
    return None if (number := _number(value)) is None or number > 2**53 else int(number)


def _cut(text: str, most: int = 300) -> str:
    return text[:most]
