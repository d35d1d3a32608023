"""What a comment says apart from times: outputs, traffic, changed kernels and their machine code.  Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from farm.pr.result import FAILS
from farm.report.findings import where
from farm.report.format import cells, clip, count, sig
from farm.report.markdown import plain

ROWS, MOVES, MEASURES, NAMES = 10, 12, 6, 8
#: Measures that say least, told where nothing else moved.
_MINOR = ("buffers", "multi-buffered", "blocks a core", "text before the binary, bytes", "code, bytes")
_LESS_IS_WORSE = ("occupancy", "blocks a core")
Json = Mapping[str, Any]


def outputs(pairs: Sequence[Json]) -> list[str]:
    """Whether results and traffic moved: in how many cells of each kind of evidence, and the worst of them."""
    out = []
    known = [p for p in pairs if p["same_bits"] is not None]
    if known:
        by: dict[str, list[bool]] = {}
        for p in known:
            by.setdefault(p["evidence"], []).append(p["same_bits"])
        same = ", ".join(f"{count(sum(v))} of {cells(len(v))} {e}" for e, v in by.items())
        out.append(f"Accuracy: the same bits in {same}.{_worst(known)}")
        differ = [p for p in known if not p["same_bits"] and p["status_b"] not in FAILS]
        differ.sort(key=lambda p: -(p["worst_b"] or 0))
        out += [f"- bits differ: {plain(p['cell'])}: worst error, of the tolerance, {error(p)}" for p in differ[:ROWS]]
        out += [f"- and {count(len(differ) - ROWS)} more, nearer to the reference"] if len(differ) > ROWS else []
        out.append("")
    moved = [p for p in pairs if p["bytes_a"] and p["bytes_b"] and p["bytes_a"] != p["bytes_b"]]
    if moved:
        moved.sort(key=lambda p: -p["bytes_b"] / p["bytes_a"])
        out += [f"Global memory traffic, counted by the interpreter, differs in {cells(len(moved))}:", ""]
        out += [f"- {plain(p['cell'])}: {count(p['bytes_a'])} → {count(p['bytes_b'])} bytes" for p in moved[:ROWS]]
        out += [f"- and {count(len(moved) - ROWS)} more"] if len(moved) > ROWS else []
        out.append("")
    return out


def _worst(pairs: Sequence[Json]) -> str:
    """The largest error of both arms."""
    found = [[p[f"worst_{arm}"] for p in pairs if p[f"worst_{arm}"] is not None] for arm in "ab"]
    if not all(found):
        return ""
    return f" Worst error, as a share of the tolerance: {sig(max(found[0]))} in base, {sig(max(found[1]))} in head."


def error(p: Json) -> str:
    """`0.02 → 0.03`: a pair's worst error in base and head, as a share of its tolerance."""
    a, b = ("none" if p[f"worst_{arm}"] is None else sig(p[f"worst_{arm}"]) for arm in "ab")
    return f"{a} in both" if a == b else f"{a} → {b}"


def static(found: Json, pairs: Sequence[Json]) -> list[str]:
    """Changed kernels with the cells that reach them, then what moved in the machine code, by harm."""
    out = []
    if found["changed"]:
        named = [f"{plain(n)}{_reach(n, pairs)}" for n in found["changed"][:NAMES]]
        more = " …" if len(found["changed"]) > NAMES else ""
        out.append(
            f"Changed: {count(len(found['changed']))} of {count(found['kernels'])} kernels: {', '.join(named)}{more}."
        )
    if found["unreached"]:
        out.append(f"**No cell reaches** {', '.join(plain(n) for n in found['unreached'][:NAMES])}.")
    if found["host"]:
        out.append(f"Host code changed: {', '.join(plain(n) for n in found['host'][:NAMES])}.")
    out += [f"Unknown: {plain(u['kernel'])}, {plain(clip(u['why'], 120))}." for u in found["unknown"][:3]]
    out = [line for sentence in out for line in (sentence, "")]
    out += _moves(found["targets"])
    if found["tools"] and out:
        out.append(f"Compiled by {', '.join(plain(t) for t in found['tools'])}; static counts, not times.")
    return [*out, ""] if out else []


def code(t: Json) -> str:
    """How the machine code for a target compares."""
    if t["same_code"] == t["compiled"] and not t["unknown"]:
        return f"{plain(t['target'])}: the same in all {count(t['compiled'])} cells"
    differs, of = t["compiled"] - t["same_code"] - t["unknown"], count(t["compiled"])
    told = [f"differs in {count(differs)} of {of}"] if differs or not t["unknown"] else []
    told += [f"unknown in {count(t['unknown'])} of {of} cells: {plain(clip(t['why'], 120))}"] if t["unknown"] else []
    return f"{plain(t['target'])}: {', '.join(told)}"


def axes(p: Json) -> dict[str, Any]:
    """A pair's axes, as the patterns of findings read them from rows."""
    found = dict(p["axes"])
    row = {name: found.pop(name, "") for name in ("dtype", "operation", "family")}
    dims = {k: int(v) if v.isdecimal() else v for k, v in found.items()}
    return {**row, "cell_id": p["cell"], "dims": json.dumps(dims), "params": "{}"}


def _reach(name: str, pairs: Sequence[Json]) -> str:
    """Which of the compared cells launch a kernel."""
    hits = [p for p in pairs if name in p["kernels"]]
    if not hits:
        return ""
    pattern = [*where([axes(p) for p in hits], [axes(p) for p in pairs])]
    ops = {p["op"] for p in hits}
    if len(ops) == 1 and len({p["op"] for p in pairs}) > 1:
        pattern.insert(0, f"op {min(ops)}")
    at = f": {plain('; '.join(pattern))}" if pattern else ""
    return f" (launched by {count(len(hits))} of {count(len(pairs))} cells{at})"


def _moves(targets: Sequence[Json]) -> list[str]:
    """A row for each kernel that moved alike in some cells, with all of its measures."""
    rows: dict[tuple[str, str, str], list[Json]] = {}
    for t in targets:
        for m in t["moves"]:
            rows.setdefault((t["target"], m["kernel"], m["cell"]), []).append(m)
    if not rows:
        return []
    out = ["| target | kernel | cells | base → head |", "|---|---|---|---|"]
    ordered = sorted(rows.items(), key=lambda item: _harm(item[1]))
    for (target, kernel, cell), moves in ordered[:MOVES]:
        told = [m for m in moves if m["measure"] not in _MINOR] or moves
        told.sort(key=lambda m: not m["worse"])
        more = f" and {count(moves[0]['cells'] - 1)} more" if moves[0]["cells"] > 1 else ""
        words = "; ".join(map(_words, told[:MEASURES]))
        named = plain(kernel.replace(" -> ", " → "))
        out.append(f"| {plain(target)} | {named} | {plain(cell)}{more} | {words} |")
    if len(rows) > MOVES:
        out.append(f"| | and {count(len(rows) - MOVES)} more | | |")
    return [*out, ""]


def _harm(moves: Sequence[Json]) -> tuple[bool, float, float]:
    """What got worse first, then what rose most, then what fell most."""
    found = [_rise(m) for m in moves if m["measure"] not in _MINOR] or [0.0]
    return not any(m["worse"] for m in moves), -max(0.0, *found), -max(map(abs, found))


def _rise(m: Json) -> float:
    """By what share a measure got larger, or smaller where less is worse; 0 where it is no number."""
    a, b = _total(m["a"]) or 0.0, _total(m["b"]) or 0.0
    rise = (b - a) / max(a, b, 1e-9)
    return -rise if m["measure"] in _LESS_IS_WORSE else rise


def _total(value: float | str | None) -> float | None:
    """Of `4 (128 bits), 1 (32 bits)` 5: the instructions."""
    if not isinstance(value, str):
        return value
    found = re.findall(r"(\d{1,9}) \(", value)
    return float(sum(map(int, found))) if found else float(value) if re.fullmatch(r"\d{1,9}", value) else None


def _words(m: Json) -> str:
    """`Unified Buffer 188,736 → 139,520 bytes`."""
    name, unit = m["measure"].removesuffix(", bytes"), " bytes" if m["measure"].endswith(", bytes") else ""
    a, b = _total(m["a"]), _total(m["b"])
    if isinstance(m["a"], str) and isinstance(m["b"], str) and a == b:
        return f"{plain(name)} {plain(m['a'])} → {plain(m['b'])}"
    percent = m["measure"] == "occupancy"
    return f"{plain(name)} {_amount(a, percent)} → {_amount(b, percent)}{unit}{' (worse)' if m['worse'] else ''}"


def _amount(value: float | None, percent: bool) -> str:
    if value is None:
        return "none"
    if percent:
        return f"{100 * value:.0f} %"
    return count(int(value)) if value == int(value) else sig(value)
