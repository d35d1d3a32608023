"""What a comment says apart from times: outputs, traffic, changed kernels and their machine code.  Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farm.pr import accuracy
from farm.pr.result import FAILS
from farm.report.findings import where
from farm.report.format import cells, clip, count, sig
from farm.report.markdown import plain

ROWS, MOVES, MEASURES, NAMES, SIZES = 10, 12, 6, 8, 6
#: Measures that say least, told where nothing else moved.
_MINOR = ("buffers", "multi-buffered", "blocks a core", "text before the binary, bytes", "code, bytes")
#: What the less familiar measures are.
MEANINGS = {
    "registers": "per thread, fewer let more threads run at once",
    "occupancy": "share of a multiprocessor's threads that can run at once, more is usually better",
    "spills": "registers kept in memory for want of room, in bytes, fewer is better",
    "Unified Buffer": "on-chip memory of an NPU's core, less leaves room for more tiles",
    "waits": "points at which units of an NPU's core wait for each other, fewer is usually better",
    "vector calls": "calls that work on whole vectors, fewer is usually better",
    "scalar accesses": "elements that are read or written one by one, fewer is better",
    "code": "size of the machine code, which alone says neither good nor bad",
}
_LESS_IS_WORSE = ("occupancy", "blocks a core")
Json = Mapping[str, Any]


def outputs(pairs: Sequence[Json]) -> list[str]:
    """Which cells have other bits, the worst first, and where traffic moved."""
    out = []
    differ = [p for p in accuracy.compared(pairs) if p["same_bits"] is False and p["status_b"] not in FAILS]
    if differ:
        differ.sort(key=lambda p: -(p["worst_b"] or 0))
        out += [
            f"**Other bits in {cells(len(differ))}.** Below: how much of its tolerance the largest error against a "
            "float64 reference uses, base → head.",
            "",
        ]
        out += [f"- {plain(p['cell'])}: {accuracy.error(p)}" for p in differ[:ROWS]]
        out += [f"- and {count(len(differ) - ROWS)} more, nearer to the reference"] if len(differ) > ROWS else []
        out.append("")
    moved = [p for p in pairs if p["bytes_a"] and p["bytes_b"] and p["bytes_a"] != p["bytes_b"]]
    if moved:
        moved.sort(key=lambda p: -p["bytes_b"] / p["bytes_a"])
        out += [
            f"**Other memory traffic in {cells(len(moved))}**: bytes of global memory read and written, counted by the "
            "interpreter, base → head.",
            "",
        ]
        for p in moved[:ROWS]:
            change = f"{100 * (p['bytes_b'] / p['bytes_a'] - 1):+.1f} %"
            out.append(f"- {plain(p['cell'])}: {count(p['bytes_a'])} → {count(p['bytes_b'])} ({change})")
        out += [f"- and {count(len(moved) - ROWS)} more"] if len(moved) > ROWS else []
        out.append("")
    return out


def static(found: Json, pairs: Sequence[Json]) -> list[str]:
    """Changed kernels with the cells that reach them, then what moved in the machine code, by harm."""
    out = []
    if found["changed"]:
        named = [f"{plain(n)}{_reach(n, pairs)}" for n in found["changed"][:NAMES]]
        more = " …" if len(found["changed"]) > NAMES else ""
        out.append(
            f"**Kernels whose source differs**, or that only one of both has: {count(len(found['changed']))} of "
            f"{count(found['kernels'])}: {', '.join(named)}{more}."
        )
    if found["unreached"]:
        names = ", ".join(plain(n) for n in found["unreached"][:NAMES])
        out.append(f"**Changed, but launched by no cell**, so nothing was tested of: {names}.")
    if found["host"]:
        names = ", ".join(plain(n) for n in found["host"][:NAMES])
        out.append(f"Code beside the kernels, which may decide how they are launched, changed in: {names}.")
    out += [f"Nothing is known of {plain(u['kernel'])}: {plain(clip(u['why'], 120))}." for u in found["unknown"][:3]]
    out = [line for sentence in out for line in (sentence, "")]
    out += _moves(found["targets"])
    return out


def differing(t: Json) -> int:
    """Compiled cells of a target whose machine code differs."""
    return max(t["compiled"] - t["same_code"] - t["unknown"], 0)


def untested(t: Json, found: Json) -> bool:
    """Whether none of a target's cells compiles a kernel that changed, so that its identical code tests nothing."""
    return bool(found["changed"]) and t.get("changed_cells") == 0 and t["compiled"] == t["same_code"] > 0


def machine_code(found: Json) -> list[str]:
    """A row for each target that cells were compiled for, those that differ most first."""
    targets = sorted((t for t in found["targets"] if t["compiled"]), key=lambda t: t["same_code"] - t["compiled"])
    if not targets:
        return []
    tools = f" ({', '.join(plain(t) for t in found['tools'])})" if found["tools"] else ""
    out = [f"**Compiled without a device, and not run from that**{tools}", ""]
    head = "target", "cells", "their sizes", "of them compile a changed kernel", "identical machine code", "differs"
    out += [f"| {' | '.join((*head, 'could not be compared'))} |", "|---|--:|---|--:|--:|--:|---|"]
    for t in targets:
        unknown = f"{count(t['unknown'])}: {plain(clip(t['why'], 120))}" if t["unknown"] else "0"
        changed = "not known" if t.get("changed_cells") is None else count(t["changed_cells"])
        first = (plain(t["target"]), count(t["compiled"]), plain(clip(t.get("sizes") or "", 200)), changed)
        out.append(f"| {' | '.join((*first, count(t['same_code']), count(differing(t)), unknown))} |")
    out.append("")
    if idle := [plain(t["target"]) for t in targets if untested(t, found)]:
        out += [
            f"No cell for {', '.join(idle)} compiles a kernel that changed: that its machine code is identical tests "
            "nothing of the change.",
            "",
        ]
    return out


def axes(p: Json) -> dict[str, Any]:
    """A pair's axes, as the patterns of findings read them from rows."""
    found = dict(p["axes"])
    row = {name: found.pop(name, "") for name in ("dtype", "operation", "family")}
    dims = {k: int(v) if v.isdecimal() else v for k, v in found.items()}
    return {**row, "cell_id": p["cell"], "dims": json.dumps(dims), "params": "{}"}


def sizes(axes: Iterable[Mapping[str, Any]]) -> str:
    """`rows 8; hidden 1024, 4096`: the whole numbers among cells' axes."""
    found: dict[str, set[int]] = {}
    for one in axes:
        for name, value in one.items():
            if str(value).isdecimal():
                found.setdefault(str(name), set()).add(int(value))
    return "; ".join(f"{name} {_few(sorted(values))}" for name, values in found.items())


def _few(values: Sequence[int]) -> str:
    if len(values) <= SIZES:
        return ", ".join(map(str, values))
    return f"{values[0]} to {values[-1]} ({count(len(values))} sizes)"


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
    return f" (launched by {count(len(hits))} of the {count(len(pairs))} cells that ran{at})"


def _moves(targets: Sequence[Json]) -> list[str]:
    """A row for each kernel that moved alike in some cells, with all of its measures."""
    rows: dict[tuple[str, str, str], list[Json]] = {}
    for t in targets:
        for m in t["moves"]:
            rows.setdefault((t["target"], m["kernel"], m["cell"]), []).append(m)
    if not rows:
        return []
    known = dict.fromkeys(m["measure"] for moves in rows.values() for m in moves)
    legend = "; ".join(f"{name}: {MEANINGS[name]}" for name in MEANINGS if any(k.startswith(name) for k in known))
    legend = f" {legend}." if legend else ""
    out = [f"**What moved in the machine code**: counts that the compiler reports, not times.{legend}", ""]
    if rewritten := [t for t in targets if t.get("rewritten")]:
        words = ", ".join(
            f"{count(t['rewritten'])} of {count(differing(t))} for {plain(t['target'])}" for t in rewritten
        )
        out += [f"Cells whose code differs, but none of these counts, which are not listed: {words}.", ""]
    out += ["| target | kernel | compiled cells | base → head |", "|---|---|---|---|"]
    backends = {t["target"]: t["backend"] for t in targets}
    ordered = sorted(rows.items(), key=lambda item: _harm(item[1]))
    for (target, kernel, cell), moves in ordered[:MOVES]:
        told = [m for m in moves if m["measure"] not in _MINOR] or moves
        told.sort(key=lambda m: not m["worse"])
        more = f" and {count(moves[0]['cells'] - 1)} more alike" if moves[0]["cells"] > 1 else ""
        amounts = "; ".join(map(_words, told[:MEASURES]))
        named = plain(kernel.replace(" -> ", " → "))
        id = plain(f"{backends[target]}/{cell}@{target}")
        out.append(f"| {plain(target)} | {named} | {id}{more} | {amounts} |")
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
    name = "registers per thread" if name == "registers" else name
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
