"""One comment on a pull request: the answer in the first line, then what a reviewer asks next.  Pure.

Rows are ordered by harm, never by name.  Everything that came from the change under test is written literally (no
markup, mention or link).  The text is shortened by whole rows from the least harmful end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.pr import ledger as ledgers
from farm.pr import result as results
from farm.pr import timed, untimed
from farm.pr.ledger import Aside, Ledger
from farm.pr.result import DEVICES, FAILS, Outcome, statuses
from farm.report.format import cells, clip, count, duration, label, sig
from farm.report.markdown import code, plain

LIMIT = 60_000  # characters; GitHub refuses 65,536
GROUPS, ROWS = 8, 10
ANSWERS = "<!-- kernel-farm answers -->"  # what stands behind it was asked for in comments
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
        _verdict(found),
        "",
        *_warnings(result),
        *_backends(result),
    ]
    static = untimed.static(result["static"], result["pairs"]) if result["static"] else []
    tail = [
        *untimed.outputs(result["pairs"]),
        *static,
        *_tests(result),
        *_since(before, now),
        *_acks(now),
        *_not_run(result),
        *_foot(result),
    ]
    for groups, moves, full in ((GROUPS, True, 400), (GROUPS, True, 40), (4, True, 0), (2, False, 0)):
        body = [
            *head,
            *timed.changes(result, accepted, groups),
            *(tail if moves else _foot(result)),
            *_table(result, full),
        ]
        text = "\n".join(body) + "\n" + answers(now.asides)
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
        broken = next((p for p in pairs if p["status_b"] in FAILS and statuses(p) in ("broken", "new")), None)
        if broken and parts and " broken: first " in parts[0]:
            what = (broken["place"] or broken["reason"]).partition("; ")[0] or label(broken["status_b"])
            parts[0] += f" ({say(clip(what, 160))})"
        if slower:
            parts.append(f"{cells(len(slower))} slower, worst {timed.speed_words(timed.slowest(slower)[0], say)}")
    elif found.name in ("infrastructure failures", "inconclusive"):
        parts.append(f"{found.name.capitalize()}: {say(clip(found.why[0], 200))}")
    else:
        parts += _unknown(result["static"], say)
        parts.append(_improved(pairs, say) or ("Not worse" if found.exit_code == 0 else ""))
    if bits := _bits(pairs):
        parts.append(bits)
    parts.append(_same_code(result, say))
    parts.append(_evidence(result, say))
    text = "; ".join(p for p in parts if p)
    return f"{text[:1].upper()}{text[1:]}."


def _unknown(static: Json | None, say: Say) -> list[str]:
    """What could not be seen of the change."""
    if not static or not static["unknown"]:
        return []
    first, more = static["unknown"][0], len(static["unknown"]) - 1
    others = f" and {count(more)} more" if more else ""
    return [f"nothing is known of {say(clip(first['kernel'], 100))}{others}: {say(clip(first['why'], 120))}"]


def _verdict(found: Outcome) -> str:
    why = f": {plain(clip(found.why[0], 200))}" if found.why and found.exit_code in (0, 4) else ""
    return f"Verdict: {found.name}{why}."


def _bits(pairs: Sequence[Json]) -> str:
    known = [p for p in pairs if p["same_bits"] is not None]
    if not known:
        return ""
    differ = [p for p in known if not p["same_bits"]]
    within = differ and all(p["status_b"] == "passed" for p in differ)
    others = ", the others within tolerance" if within else ""
    return f"bits identical in {count(len(known) - len(differ))} of {count(len(known))} cells{others}"


def _same_code(result: Json, say: Say) -> str:
    """The targets for which the change is proven to do nothing, where it does something elsewhere."""
    static = result["static"]
    same = [t["target"] for t in static["targets"] if t["compiled"] == t["same_code"] > 0] if static else []
    if not same or not (static["changed"] or static["host"]):
        return ""
    touched = [t for t in static["targets"] if t["compiled"] - t["unknown"] > t["same_code"]]
    where = [f"{say(t['target'])} in {_differing(t)} of {count(t['compiled'])} cells" for t in touched[:4]]
    differs = f"differs for {', '.join(where)}, " if where else ""
    return f"machine code {differs}{'is ' if where else ''}identical for {', '.join(map(say, same[:4]))}"


def _differing(t: Json) -> str:
    return count(t["compiled"] - t["unknown"] - t["same_code"])


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
    return f"not worse; {count(len(faster))} cells faster, best {timed.speed_words(best, say)}"


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
    """A row per backend that ran, with what is known of its machine code, and one per target of the others."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for p in result["pairs"]:
        groups.setdefault((p["backend"], p["target"]), []).append(p)
    codes = _codes(result)
    if not groups and not codes:
        return []
    head = "| backend | evidence | cells | broken | slower | faster | same | undecided | failing in both | same bits "
    out = [head + "| machine code |", "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"]
    for (backend, target), pairs in sorted(groups.items(), key=lambda g: _backend_harm(g[1])):
        out.append(_backend(backend, target, pairs, codes.get(backend, ())))
    alone = [t for b, ts in codes.items() if not any(b == ran for ran, _ in groups) for t in ts]
    for t in sorted(alone, key=lambda t: t["same_code"] - t["compiled"]):
        out.append(timed.row(plain(t["target"]), "compiled", count(t["compiled"]), *[""] * 7, untimed.code(t)))
    return [*out, ""]


def _codes(result: Json) -> dict[str, list[Json]]:
    """Backend -> what is known of its targets' machine code."""
    out: dict[str, list[Json]] = {}
    for t in result["static"]["targets"] if result["static"] else ():
        out.setdefault(t["backend"], []).append(t)
    return out


def _backend_harm(pairs: Sequence[Json]) -> tuple[int, int]:
    found = results.counted(pairs)
    return -found["broken"], -found["regressed"]


def _backend(backend: str, target: str, pairs: Sequence[Json], codes: Sequence[Json]) -> str:
    found = results.counted(pairs)
    evidence = ", ".join(dict.fromkeys(p["evidence"] for p in pairs))
    known = [p["same_bits"] for p in pairs if p["same_bits"] is not None]
    undecided = found["inconclusive"] + found["unfit"]
    had_time = any(p["speed"] != "none" for p in pairs)
    numbers = (count(found["regressed"]), count(found["improved"])) if had_time else ("not timed", "")
    return timed.row(
        plain(backend if backend == "cpu" else target or backend),
        evidence,
        count(len(pairs)),
        count(found["broken"]),
        *numbers,
        count(found["same"] + found["none"]),
        count(undecided),
        count(found["failing"]),
        f"{count(sum(known))} of {count(len(known))}" if known else "",
        "; ".join(map(untimed.code, codes)),
    )


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
    benchmarks = [t for t in tests if t["kind"] == "benchmark" and t["us_a"] and t["us_b"]]
    benchmarks.sort(key=lambda t: -t["us_b"] / t["us_a"])
    for t in benchmarks[:ROWS]:
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
    codes = _codes(result)
    out = []
    for n in result["not_run"][:ROWS]:
        device = f" ({_DEVICE[n['what']]})" if n["what"] in _DEVICE else ""
        known = "".join(f"; machine code for {untimed.code(t)}" for t in codes.get(n["what"], ()))
        out.append(f"- {plain(n['what'])}{device}: {plain(clip(n['why'], 200))}{known}")
    if len(result["not_run"]) > ROWS:
        out.append(f"- and {count(len(result['not_run']) - ROWS)} more")
    return ["Not run:", *out, ""]


def _foot(result: Json) -> list[str]:
    base, head = result["base"], result["head"]
    parts = [f"run {result['run']}", f"base {base['sha'][:12]}", f"head {head['sha'][:12]}"]
    if base["digest"] and head["digest"]:
        parts.append(f"content {base['digest'][:12]} and {head['digest'][:12]}")
    stages = [f"{s['stage']} {duration(s['seconds'])}" for s in result["stages"] if s["seconds"] >= 0.05]
    parts += [", ".join(stages)] if stages else []
    out = [" · ".join(plain(p) for p in parts), ""]
    one = max(result["pairs"], key=lambda p: (p["same_bits"] is False, bool(p["kernels"])), default=None)
    if one and (again := results.repeat(one["repeat"])) and not timed.groups(result["pairs"], {}):
        out += ["Repeat one cell:", *code(again), ""]
    if again := results.repeat(result["repeat"]):
        out += ["Repeat all of it:", *code(again), ""]
    return out


def _table(result: Json, full: int) -> list[str]:
    """The folded table: every compared cell, by harm, at most `full` of them."""
    pairs = result["pairs"]
    if not full or not pairs:
        return []
    rows = sorted(pairs, key=_harm)[:full]
    had_time = any(p["ratio"] for p in rows)
    head = [
        "cell",
        "base",
        "head",
        *(("time, head's over base's", "GB/s") if had_time else ()),
        "bits",
        "error, of the tolerance",
    ]
    out = ["<details><summary>All cells</summary>", "", timed.row(*head), timed.row(*["---"] * len(head))]
    for p in rows:
        rate = f"{sig(p['gbps_a'], 4)} → {sig(p['gbps_b'], 4)}" if p["gbps_a"] and p["gbps_b"] else ""
        times = (sig(p["ratio"], 4) if p["ratio"] else "", rate) if had_time else ()
        bits = {True: "same", False: "differ", None: ""}[p["same_bits"]]
        out.append(
            timed.row(
                plain(p["cell"]),
                label(p["status_a"]),
                label(p["status_b"]),
                *times,
                bits,
                untimed.error(p).removesuffix(" in both"),
            )
        )
    if len(pairs) > len(rows):
        more = f"and {count(len(pairs) - len(rows))} more, in the artefact"
        out.append(timed.row(more, *[""] * (len(head) - 1)))
    return [*out, "", "</details>", ""]


def _harm(p: Json) -> tuple[bool, bool, float, bool, float]:
    slower, error = -(p["ratio"] or 0.0), -(p["worst_b"] or 0.0)
    return statuses(p) != "broken", p["status_b"] not in FAILS, slower, p["same_bits"] is not False, error


def answers(asides: Sequence[Aside]) -> str:
    """What people asked for in comments, answered; "" for nothing."""
    return "\n".join([ANSWERS, *(a.text for a in asides)]) if asides else ""


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
