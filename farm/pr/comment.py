"""One comment on a pull request: the answer in the first line, then what a reviewer asks next.  Pure.

Rows are ordered by harm, never by name.  Everything that came from the change under test is written literally (no
markup, mention or link).  The text is shortened by whole rows from the least harmful end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.pr import ledger as ledgers
from farm.pr import result as results
from farm.pr.ledger import Ledger
from farm.pr.result import DEVICES, FAILS, Outcome, statuses
from farm.report.findings import where
from farm.report.format import cells, clip, count, duration, label, sig
from farm.report.markdown import code, plain

LIMIT = 60_000  # characters; GitHub refuses 65,536
GROUPS, ROWS, MOVES = 8, 10, 12
SIGNS = {"worse": "❌", "not covered": "❌", "not worse": "✅", "unchanged": "✅", "infrastructure failures": "⚠️"}
_DEVICE = {"cuda": "NVIDIA GPU", "rocm": "AMD GPU", "ascend": "NPU"}
Json = Mapping[str, Any]
Say = Callable[[str], str]


def comment(result: Json, before: Ledger | None = None, limit: int = LIMIT) -> str:
    """The text, with its hidden first line, of at most `limit` characters."""
    accepted = before.accepted if before else {}
    now = ledgers.after(before, result)
    found = results.outcome(result, accepted)
    head = [
        now.line(),
        f"### {SIGNS.get(found.name, '◻️')} **{headline(result, found)}**",
        "",
        *_warnings(result),
        *_backends(result),
    ]
    tail = [*_static(result), *_tests(result), *_since(before, now), *_acks(now), *_not_run(result), *_foot(result)]
    for groups, moves, full in ((GROUPS, True, 400), (GROUPS, True, 40), (4, True, 0), (2, False, 0)):
        body = [*head, *_changes(result, accepted, groups), *(tail if moves else _foot(result)), *_table(result, full)]
        text = "\n".join(body) + "\n"
        if len(text) <= limit:
            return text
    return _cut("\n".join(head), limit)


def headline(result: Json, found: Outcome, say: Say = plain) -> str:
    """The answer and its evidence in one line; `say` makes foreign words harmless where they will be read."""
    pairs = result["pairs"]
    parts = []
    if found.name == "unchanged":
        parts.append("No kernel changed, and no code that one depends on")
    elif found.name in ("worse", "not covered"):
        slower = [p for p in pairs if p["speed"] == "regressed" and p["ratio"]]
        parts += [say(clip(w, 200)) for w in found.why[:3] if not (slower and " regressed: " in w)]
        if slower:
            parts.append(f"{cells(len(slower))} slower, worst {_speed_words(_slowest(slower)[0], say)}")
    elif found.name in ("infrastructure failures", "inconclusive"):
        parts.append(f"{found.name.capitalize()}: {say(clip(found.why[0], 200))}")
    else:
        parts.append(_improved(pairs, say) or ("Not worse" if found.exit_code == 0 else ""))
    if bits := _bits(pairs):
        parts.append(bits)
    parts.append(_evidence(result, say))
    text = "; ".join(p for p in parts if p)
    return f"{text[:1].upper()}{text[1:]}."


def _bits(pairs: Sequence[Json]) -> str:
    known = [p for p in pairs if p["same_bits"] is not None]
    if not known:
        return ""
    same = sum(p["same_bits"] for p in known)
    return f"bits identical in {count(same)} of {count(len(known))} cells"


def _evidence(result: Json, say: Say) -> str:
    """On what it ran, and on what it did not although the change is for it."""
    ran = dict.fromkeys(p["target"] or p["backend"] for p in result["pairs"] if p["evidence"] == "executed")
    out = [f"executed on {', '.join(say(t) for t in ran)}"] if ran else []
    missing = [_DEVICE[b] for b in results.not_executed(result)]
    out += [f"no {' or '.join(missing)} ran"] if missing else []
    simulated = sum(p["evidence"] == "simulated" for p in result["pairs"])
    if simulated:
        out.append(f"{count(simulated)} cells only simulated")
    if not out:
        any_ran = any(p["evidence"] == "interpreted" for p in result["pairs"])
        out.append("interpreted on a CPU, no device ran" if any_ran else "no device ran")
    return "; ".join(out)


def _improved(pairs: Sequence[Json], say: Say) -> str:
    faster = [p for p in pairs if p["speed"] == "improved" and p["ratio"]]
    if not faster:
        return ""
    best = min(faster, key=lambda p: p["ratio"])
    return f"not worse; {count(len(faster))} cells faster, best {_speed_words(best, say)}"


def _speed_words(p: Json, say: Say) -> str:
    rate = f", {sig(p['gbps_a'], 4)} → {sig(p['gbps_b'], 4)} GB/s" if p["gbps_a"] and p["gbps_b"] else ""
    interval = f" ({sig(p['low'], 4)} to {sig(p['high'], 4)})" if p["low"] and p["high"] else ""
    return f"{say(_short(p))}: {sig(p['ratio'], 4)} of base's time{interval}{rate}"


def _short(p: Json) -> str:
    """A cell's id without its backend."""
    return str(p["cell"]).partition("/")[2] or str(p["cell"])


def _warnings(result: Json) -> list[str]:
    out = []
    if result["behind"]:
        out.append(
            f"The base branch has {count(result['behind'])} commits that head has not: merge it to measure them."
        )
    static = result["static"]
    if static and static["harness"]:
        names = ", ".join(plain(n) for n in static["harness"][:5])
        out.append(f"Head changes what judges or calls the kernels ({names}); base's is used for both arms.")
    if any(p["evidence"] == "simulated" for p in result["pairs"]):
        out.append("Simulated devices play a script: their times say nothing about any hardware.")
    return [f"> {line}\n" for line in out]


def _backends(result: Json) -> list[str]:
    """A row per backend and target."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for p in result["pairs"]:
        groups.setdefault((p["backend"], p["target"]), []).append(p)
    static = {t["backend"]: t for t in (result["static"] or {"targets": ()})["targets"]}
    if not groups and not static:
        return []
    head = "| backend | evidence | cells | broken | slower | faster | same | undecided | failing in both | same bits "
    out = [head + "| machine code |", "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"]
    for (backend, target), pairs in groups.items():
        out.append(_backend(backend, target, pairs, static.get(backend)))
    for backend, t in static.items():
        if not any(b == backend for b, _ in groups):
            out.append(_row(plain(t["target"]), "compiled", count(t["compiled"]), *[""] * 7, _code(t)))
    return [*out, ""]


def _backend(backend: str, target: str, pairs: Sequence[Json], static: Json | None) -> str:
    found = results.counted(pairs)
    evidence = ", ".join(dict.fromkeys(p["evidence"] for p in pairs))
    known = [p["same_bits"] for p in pairs if p["same_bits"] is not None]
    undecided = found["inconclusive"] + found["unfit"]
    numbers = (found[k] for k in ("broken", "regressed", "improved"))
    return _row(
        plain(target or backend),
        evidence,
        count(len(pairs)),
        *map(count, numbers),
        count(found["same"] + found["none"]),
        count(undecided),
        count(found["failing"]),
        f"{count(sum(known))} of {count(len(known))}" if known else "",
        _code(static) if static else "",
    )


def _code(t: Json) -> str:
    if t["same_code"] == t["compiled"] and not t["unknown"]:
        return f"{plain(t['target'])}: the same in all {count(t['compiled'])} cells"
    differs = t["compiled"] - t["same_code"] - t["unknown"]
    unknown = f", unknown in {count(t['unknown'])}" if t["unknown"] else ""
    return f"{plain(t['target'])}: differs in {count(differs)} of {count(t['compiled'])}{unknown}"


def _changes(result: Json, accepted: Mapping[str, float], groups: int) -> list[str]:
    """What got worse or better, grouped by what happened, worst first, and where it wins and loses."""
    pairs = result["pairs"]
    out = []
    for title, rows in _groups(pairs, accepted)[:groups]:
        pattern = where([_axes(p) for p in rows], [_axes(p) for p in pairs if p["op"] == rows[0]["op"]])
        at = f" ({plain('; '.join(pattern))})" if pattern else ""
        out += [f"**{title}: {count(len(rows))} of {count(len(pairs))} cells**{at}", ""]
        out += ["| cell | what | GB/s a → b | launch a → b |", "|---|---|---|---|"]
        out += [_cell(p) for p in rows[:ROWS]]
        if len(rows) > ROWS:
            out.append(_row(f"and {count(len(rows) - ROWS)} more, less harmful", "", "", ""))
        out.append("")
        if again := results.repeat(rows[0]["repeat"]):
            out += ["Repeat the first:", *code(again), ""]
    return [*out, *_crossover(pairs)]


def _groups(pairs: Sequence[Json], accepted: Mapping[str, float]) -> list[tuple[str, list[Json]]]:
    """(title, pairs) by harm: what is wrong, then what is slow, accepted losses, and gains at last."""
    broken: dict[tuple[str, str], list[Json]] = {}
    slower: dict[str, list[Json]] = {}
    taken, faster = list[Json](), list[Json]()
    for p in pairs:
        kind = statuses(p)
        if kind == "broken" or (kind == "new" and p["status_b"] in FAILS):
            broken.setdefault((p["op"], p["status_b"]), []).append(p)
        elif p["speed"] == "regressed":
            (taken if results.accepted(p, accepted) else slower.setdefault(p["op"], [])).append(p)
        elif p["speed"] == "improved":
            faster.append(p)
    out = [
        (f"Broken, {plain(op)}: {label(status)}", sorted(rows, key=lambda p: -(p["worst_b"] or 0)))
        for (op, status), rows in sorted(broken.items(), key=lambda item: -len(item[1]))
    ]
    by_loss = sorted(slower.values(), key=lambda rows: -max(p["ratio"] or 0 for p in rows))
    out += [(f"Slower, {plain(rows[0]['op'])}", _slowest(rows)) for rows in by_loss]
    if taken:
        out.append(("Slower, acknowledged", _slowest(taken)))
    if faster:
        out.append(("Faster", sorted(faster, key=lambda p: p["ratio"] or 1)))
    return out


def _slowest(rows: Sequence[Json]) -> list[Json]:
    return sorted(rows, key=lambda p: -(p["ratio"] or 0))


def _cell(p: Json) -> str:
    if p["status_b"] in FAILS:
        what = plain(clip(p["place"] or p["reason"] or label(p["status_b"]), 200))
        if p["worst_b"] and p["status_b"] == "inaccurate":
            what += f"; {sig(p['worst_b'])}x the tolerance"
    else:
        interval = f" ({sig(p['low'], 4)} to {sig(p['high'], 4)})" if p["low"] and p["high"] else ""
        what = f"{sig(p['ratio'] or 1.0, 4)} of base's time{interval}, {count(p['rounds'])} rounds"
    rate = f"{sig(p['gbps_a'], 4)} → {sig(p['gbps_b'], 4)}" if p["gbps_a"] and p["gbps_b"] else ""
    a, b = plain(clip(p["launch_a"], 120)), plain(clip(p["launch_b"], 120))
    return _row(plain(p["cell"]), what, rate, a if a == b else f"{a} → {b}")


def _crossover(pairs: Sequence[Json]) -> list[str]:
    """Where head wins and where it loses, if it does both."""
    slower = [p for p in pairs if p["speed"] == "regressed"]
    faster = [p for p in pairs if p["speed"] == "improved"]
    if not slower or not faster:
        return []
    timed = [_axes(p) for p in pairs if p["speed"] != "none"]
    wins, loses = (where([_axes(p) for p in rows], timed) for rows in (faster, slower))
    words = f"faster at {'; '.join(wins) or 'no single axis'}, slower at {'; '.join(loses) or 'no single axis'}"
    return [f"Head is {plain(words)}.", ""]


def _axes(p: Json) -> dict[str, Any]:
    """A pair's axes, as the patterns of findings read them from rows."""
    axes = dict(p["axes"])
    row = {name: axes.pop(name, "") for name in ("dtype", "operation", "family")}
    dims = {k: int(v) if v.isdecimal() else v for k, v in axes.items()}
    return {**row, "cell_id": p["cell"], "dims": json.dumps(dims), "params": "{}"}


def _static(result: Json) -> list[str]:
    """What is known without a device."""
    s = result["static"]
    if s is None:
        return []
    out = []
    if s["changed"]:
        out.append(
            f"Changed: {count(len(s['changed']))} of {count(s['kernels'])} kernels: "
            f"{', '.join(plain(n) for n in s['changed'][:8])}{' …' if len(s['changed']) > 8 else ''}."
        )
    if s["unreached"]:
        out.append(f"**No cell reaches** {', '.join(plain(n) for n in s['unreached'][:8])}.")
    if s["host"]:
        out.append(f"Host code changed: {', '.join(plain(n) for n in s['host'][:8])}.")
    out += [f"Unknown: {plain(u['kernel'])}, {plain(clip(u['why'], 120))}." for u in s["unknown"][:3]]
    moves = sorted(
        ((t["target"], m) for t in s["targets"] for m in t["moves"]),
        key=lambda tm: (not tm[1]["worse"], -_relative(tm[1])),
    )
    if moves:
        out += ["", "| target | kernel | cells | measure | base → head |", "|---|---|--:|---|---|"]
        for target, m in moves[:MOVES]:
            worse = " (worse)" if m["worse"] else ""
            moved = f"{_amount(m['a'])} → {_amount(m['b'])}{worse}"
            out.append(_row(plain(target), plain(m["kernel"]), count(m["cells"]), plain(m["measure"]), moved))
        if len(moves) > MOVES:
            out.append(_row("", f"and {count(len(moves) - MOVES)} more", "", "", ""))
    if s["tools"]:
        out += ["", f"Compiled by {', '.join(plain(t) for t in s['tools'])}; static counts, not times."]
    return [*out, ""] if out else []


def _relative(m: Json) -> float:
    a, b = m["a"] or 0.0, m["b"] or 0.0
    return abs(b - a) / max(a, b, 1e-9)


def _amount(value: float | None) -> str:
    if value is None:
        return "none"
    return count(int(value)) if value == int(value) else sig(value)


def _tests(result: Json) -> list[str]:
    tests = result["tests"]
    if not tests:
        return []
    broken = [t for t in tests if t["status_b"] in FAILS and t["status_a"] not in FAILS]
    both = sum(t["status_b"] in FAILS and t["status_a"] in FAILS for t in tests)
    passed = sum(t["status_b"] == "passed" for t in tests)
    more = f", {count(both)} failing in base too" if both else ""
    out = [f"The repository's own tests: {count(passed)} of {count(len(tests))} passed{more}."]
    out += [f"- broken: {plain(t['id'])}: {plain(clip(t['reason'], 160))}" for t in broken[:ROWS]]
    timed = [t for t in tests if t["kind"] == "benchmark" and t["us_a"] and t["us_b"]]
    timed.sort(key=lambda t: -t["us_b"] / t["us_a"])
    for t in timed[:ROWS]:
        out.append(f"- its benchmark, not judged: {plain(t['id'])}: {sig(t['us_a'])} → {sig(t['us_b'])} µs")
    return [*out, ""]


def _since(before: Ledger | None, now: Ledger) -> list[str]:
    text = ledgers.since(before, now)
    return [text, ""] if text else []


def _acks(now: Ledger) -> list[str]:
    out = [
        f"- {plain(a.by)}, {plain(a.when[:10])}: {plain(a.reason)} ({count(len(a.cells))} cells)" for a in now.acks[-5:]
    ]
    return ["Acknowledged as a trade-off (a later, worse regression fails again):", *out, ""] if out else []


def _not_run(result: Json) -> list[str]:
    if not result["not_run"]:
        return []
    out = [f"- {plain(n['what'])}: {plain(clip(n['why'], 200))}" for n in result["not_run"][:ROWS]]
    if len(result["not_run"]) > ROWS:
        out.append(f"- and {count(len(result['not_run']) - ROWS)} more")
    return ["Not run:", *out, ""]


def _foot(result: Json) -> list[str]:
    base, head = result["base"], result["head"]
    parts = [f"run {result['run']}", f"base {base['sha'][:12]}", f"head {head['sha'][:12]}"]
    if base["digest"] and head["digest"]:
        parts.append(f"content {base['digest'][:12]} and {head['digest'][:12]}")
    if result["stages"]:
        parts.append(", ".join(f"{s['stage']} {duration(s['seconds'])}" for s in result["stages"]))
    out = [" · ".join(plain(p) for p in parts), ""]
    if again := results.repeat(result["repeat"]):
        out += ["Repeat all of it:", *code(again), ""]
    return out


def _table(result: Json, full: int) -> list[str]:
    """The folded table: every compared cell, by harm, at most `full` of them."""
    pairs = result["pairs"]
    if not full or not pairs:
        return []
    rows = sorted(pairs, key=_harm)[:full]
    out = [
        "<details><summary>All cells</summary>",
        "",
        "| cell | base | head | time | GB/s | bits |",
        "|---|---|---|--:|---|---|",
    ]
    for p in rows:
        time = sig(p["ratio"], 4) if p["ratio"] else ""
        rate = f"{sig(p['gbps_a'], 4)} → {sig(p['gbps_b'], 4)}" if p["gbps_a"] and p["gbps_b"] else ""
        bits = {True: "same", False: "differ", None: ""}[p["same_bits"]]
        out.append(_row(plain(p["cell"]), label(p["status_a"]), label(p["status_b"]), time, rate, bits))
    if len(pairs) > len(rows):
        out.append(_row(f"and {count(len(pairs) - len(rows))} more, in the artefact", "", "", "", "", ""))
    return [*out, "", "</details>", ""]


def _harm(p: Json) -> tuple[bool, bool, float]:
    return (statuses(p) != "broken", p["status_b"] not in FAILS, -(p["ratio"] or 0.0))


def _row(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def _cut(text: str, limit: int) -> str:
    note = "\n(shortened; the artefact has it all)\n"
    return text[: limit - len(note)].rsplit("\n", 1)[0] + note


def outdated(body: str, head: str) -> str:
    """A comment of an earlier head, folded."""
    mark, _, rest = body.partition("\n")
    if "<summary>Outdated" in rest[:200]:
        return body
    folded = f"{mark}\n<details><summary>Outdated: {plain(head[:12])} is newer</summary>\n\n{rest}"
    return folded[: LIMIT - 20] + "\n\n</details>\n"


#: Backends whose cells a CPU alone cannot answer for.
assert set(_DEVICE) == set(DEVICES)
