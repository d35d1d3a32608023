"""One comment on a pull request: the answer in the first line, then what a reviewer asks next.  Pure.

Rows are ordered by harm, never by name.  Everything that came from the change under test is written literally (no
markup, mention or link).  The text is shortened by whole rows from the least harmful end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.pr import accuracy, memory, questions, repeating, timed, untimed
from farm.pr import ledger as ledgers
from farm.pr import result as results
from farm.pr.ledger import Aside, Ledger
from farm.pr.questions import EVIDENCE
from farm.pr.repeating import Links
from farm.pr.result import DEVICES, FAILS, Outcome, statuses
from farm.report.format import cells, clip, count, duration, label, sig
from farm.report.markdown import code, plain

LIMIT = 60_000  # characters; GitHub refuses 65,536
GROUPS, ROWS, BACKENDS = 8, 10, 20
#: Rows of the table of all cells: as many as there is room for.
FULL = (400, 250, 150, 40)
ANSWERS = "<!-- kernel-farm answers -->"  # what stands behind it was asked for in comments
SIGNS = {"worse": "❌", "not covered": "❌", "not worse": "✅", "unchanged": "✅", "infrastructure failures": "⚠️"}
#: What a verdict means to somebody who reads it for the first time.
MEANING = {
    "worse": "head breaks something, makes it slower, or makes it need more registers or memory than base.",
    "not covered": "head changes a kernel that no cell launches, so nothing tested that change.",
    "not worse": "on what was run, head is as right and as fast as base, or better.",
    "unchanged": "no kernel of head can behave otherwise than base's.",
    "not proven": "nothing that was run shows that head is worse, but it was not run where the change could show.",
    "inconclusive": "too much of what was run is undecided to say that head is not worse.",
    "infrastructure failures": "the farm or a device failed, which says nothing about the change.",
}
#: Names of stages, for readers.
STAGES = {"stage 0": "without a device"}
Json = Mapping[str, Any]
Say = Callable[[str], str]


def comment(
    result: Json, before: Ledger | None = None, limit: int = LIMIT, *, links: Links | None = None, voice: str = ""
) -> str:
    """The text, with its hidden first line, of at most `limit` characters.  `links`, `voice`: what the publishing job
    knows; "" for a voice that nobody has chosen."""
    links = links or Links()
    accepted = before.accepted if before else {}
    now = ledgers.after(before, result)
    found = results.outcome(result, accepted)
    head = [
        now.line(),
        f"### {_sign(result, found)} **{headline(result, found)}**",
        "",
        *_what(result, found, voice),
        *_warnings(result),
        *questions.answers(result, accepted, links),
        *_since(before, now),
        *_acks(now),
        *_backends(result),
        *(untimed.machine_code(result["static"]) if result["static"] else ()),
        *_unlike_sizes(result),
    ]
    static = untimed.static(result["static"], result["pairs"]) if result["static"] else []
    foot = [*_foot(result), *repeating.where_from(result, links)]
    tail = [*untimed.outputs(result["pairs"]), *static, *_tests(result), *foot]
    for groups, moves, full in (*((GROUPS, True, rows) for rows in FULL), (4, True, 0), (2, False, 0)):
        changed = [*timed.changes(result, accepted, groups), *memory.table(result)]
        body = [*head, *changed, *(tail if moves else foot), *_table(result, full)]
        text = "\n".join(body) + "\n" + answers(now.asides)
        if len(text) <= limit:
            return text
    return _cut("\n".join(head), limit)


def headline(result: Json, found: Outcome, say: Say = plain) -> str:
    """The answer and its evidence in one line; `say` makes foreign words harmless where they will be read."""
    pairs, script = result["pairs"], results.only_simulated(result)
    parts = ["SIMULATED, no hardware: nothing is known of real speed"] if script else []
    counting = results.counting(result)
    if found.name == "unchanged":
        parts.append("No kernel changed, and no code that one depends on")
    elif found.name in ("worse", "not covered"):
        slower = [p for p in counting if p["speed"] == "regressed" and p["ratio"]]
        why = [say(clip(w, 200)) for w in found.why[:3] if not (slower and " regressed: " in w)]
        broken = next((p for p in counting if p["status_b"] in FAILS and statuses(p) in ("broken", "new")), None)
        if broken and why and " broken: first " in why[0]:
            what = (broken["place"] or broken["reason"]).partition("; ")[0] or label(broken["status_b"])
            why[0] += f" ({say(clip(what, 160))})"
        parts += why
        if slower:
            of = f"{count(len(slower))} of {count(len(questions.was_timed(counting)))} timed cells slower"
            which = "the worst, " if len(slower) > 1 else ""
            parts.append(of if script else f"{of}: {which}{timed.speed_words(timed.slowest(slower)[0], say)}")
    elif found.name in ("infrastructure failures", "inconclusive"):
        parts.append(f"{found.name.capitalize()}: {say(clip(found.why[0], 200))}")
    else:
        parts += _unknown(result["static"], say)
        executed = [p for p in pairs if p["evidence"] != "simulated"]
        parts.append(_improved(executed, say) or ("Not worse" if found.exit_code == 0 else ""))
    if found.exit_code != 1 and (needs := memory.headline(pairs, say)):
        if found.exit_code == 0:
            parts[-1] += f", but {needs}"
        else:
            parts.append(needs)
    if bits := accuracy.headline(pairs):
        parts.append(bits)
    parts.append(_reached(result))
    if failing := sum(statuses(p) == "failing" for p in counting):
        parts.append(f"{cells(failing)} {'fails' if failing == 1 else 'fail'} in base too")
    if excused := sum(statuses(p) == "known" for p in counting):
        parts.append(f"{cells(excused)} {'fails' if excused == 1 else 'fail'} as base's known failures say")
    parts.append(_same_code(result, say))
    parts.append(_evidence(result, say))
    text = "; ".join(p for p in parts if p)
    return f"{text[:1].upper()}{text[1:]}."


def _reached(result: Json) -> str:
    """How many of the planned cells launch a kernel that changed: what the rest of the line is about."""
    static, chosen = result["static"], result.get("selection")
    if not static or not static["changed"] or {*static["changed"]} <= {u["kernel"] for u in static["unknown"]}:
        return ""
    pairs = [p for p in result["pairs"] if p["evidence"] == "executed"] or result["pairs"]
    launching = chosen["reached"] if chosen else sum(bool(p["kernels"]) for p in pairs)
    planned = chosen["planned"] if chosen else len(pairs)
    of = f"all of {cells(planned)}" if 1 < launching == planned else f"{count(launching)} of {cells(planned)}"
    silent = any(not p["kernels"] and p["status_b"] in FAILS for p in pairs)  # they ended before anybody saw launches
    verb = "seen to launch" if silent else "launches" if launching == 1 else "launch"
    return f"{of} {verb} a changed kernel" if planned else ""


def _unknown(static: Json | None, say: Say) -> list[str]:
    """What could not be seen of the change."""
    if not static or not static["unknown"]:
        return []
    first, more = static["unknown"][0], len(static["unknown"]) - 1
    others = f" and {count(more)} more" if more else ""
    return [f"nothing is known of {say(clip(first['kernel'], 100))}{others}: {say(clip(first['why'], 120))}"]


def _sign(result: Json, found: Outcome) -> str:
    return "🧪" if results.only_simulated(result) and found.exit_code != 1 else SIGNS.get(found.name, "◻️")


def check_words(exit_code: int, voice: str) -> str:
    """What becomes of the check, and of merging."""
    if voice in ("silent", "report"):
        return f"Check: none, so this blocks no merge (the farm's voice here is *{voice}*: it concludes no check)"
    if exit_code == 0:
        return "Check: success, so this blocks no merge"
    if exit_code == 1 and voice == "advise":
        return "Check: neutral, so this blocks no merge (the farm's voice here is *advise*: findings fail no check)"
    if exit_code == 1:
        if voice:
            return "Check: failed; this blocks the merge where the repository requires the check"
        return "Check: failed, and blocks the merge, only where the repository lets the farm block (the voice *block*)"
    return f"Check: neutral, so this blocks no merge: {'nothing is proven' if exit_code == 4 else 'the farm failed'}"


def _what(result: Json, found: Outcome, voice: str) -> list[str]:
    """The verdict and what it means; who says it, and of what."""
    why = f" Here: {plain(clip(found.why[0], 200))}." if found.why and found.exit_code in (3, 4) else ""
    base, head = (plain(result[arm]["sha"][:12]) for arm in ("base", "head"))
    excused = sum(statuses(p) == "known" for p in results.counting(result))
    apart = f" This leaves out {cells(excused)} that base lists as known failures." if excused else ""
    if found.exit_code != 1 and memory.more(result["pairs"]):
        apart += " More device memory is reported, and is no part of the verdict."
    return [
        f"**Verdict: {found.name}**: {MEANING[found.name]}{apart}{why}",
        "",
        f"{check_words(found.exit_code, voice)}.",
        "",
        f"The kernel farm (a tester of GPU and NPU kernels) ran this change (*head*, {head}) beside the commit that it "
        f"starts from (*base*, {base}). A *cell* is one operator with one size, dtype and direction, with the "
        "same inputs in both; its name reads backend/operator/provider/mode/direction/dtype/sizes/parameters.",
        "",
    ]


def _same_code(result: Json, say: Say) -> str:
    """The targets for which the change is proven to do nothing, where it does something elsewhere."""
    static = result["static"]
    all_same = [t for t in static["targets"] if t["compiled"] == t["same_code"] > 0] if static else []
    if not static or not all_same or not (static["changed"] or static["host"]):
        return ""
    same = [t["target"] for t in all_same if not untimed.untested(t, static)]
    idle = [t["target"] for t in all_same if untimed.untested(t, static)]
    touched = [t for t in static["targets"] if untimed.differing(t)]
    counts = ((say(t["target"]), count(untimed.differing(t)), count(t["compiled"])) for t in touched[:4])
    where = [f"{name} in {differ} of {compiled} compiled cells" for name, differ, compiled in counts]
    told = [f"differs for {', '.join(where)}"] if where else []
    told += [f"is identical for {', '.join(map(say, same[:4]))}"] if same else []
    code = f"machine code {', '.join(told)}" if told else ""
    untested = f"for {', '.join(map(say, idle[:4]))} no cell compiles a changed kernel" if idle else ""
    return "; ".join(filter(None, (code, untested)))


def _evidence(result: Json, say: Say) -> str:
    """On what it ran, and on what it did not although the change is for it."""
    ran = dict.fromkeys(p["target"] or p["backend"] for p in result["pairs"] if p["evidence"] == "executed")
    out = [f"executed on {', '.join(say(t) for t in ran)}"] if ran else []
    missing = [DEVICES[b] for b in results.not_executed(result)]
    out += [f"no {' or '.join(missing)} ran"] if missing else []
    simulated = sum(p["evidence"] == "simulated" for p in result["pairs"])
    if simulated and ran:
        out.append(f"{cells(simulated)} simulated, without hardware")
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
    if own := result.get("working_tree"):
        names = ", ".join(plain(n) for n in own[:5])
        out.append(f"Read from the working tree of who ran this, which may be head's, and not from base: {names}.")
    if any(p["evidence"] == "simulated" for p in result["pairs"]):
        counts = (
            "They count here, as the repository's farm.yaml says"
            if result.get("counts_simulated")
            else ("What they find fails no check")
        )
        out.append(
            f"Simulated devices play a script: their results and times say nothing about any hardware. {counts}."
        )
    return [f"> {line}\n" for line in out]


def _backends(result: Json) -> list[str]:
    """A row per device or interpreter that ran cells, the most harmful first."""
    groups: dict[tuple[str, str, str], list[Json]] = {}
    for p in result["pairs"]:
        groups.setdefault((p["backend"], p["target"], p["evidence"]), []).append(p)
    if not groups:
        return []
    out = ["**What ran**, in base and in head", ""]
    others = any(_otherwise(of) for of in groups.values())
    head = ["ran on", "how", "cells", "their sizes", "broken by head", "fail in base too", "right in both"]
    head += ["otherwise"] * others + ["other bits, of those right in both", "slower", "faster", "as fast", "undecided"]
    out += [timed.row(*head), timed.row("---", "---", "--:", "---", *["--:"] * (len(head) - 4))]
    found = sorted(groups.items(), key=lambda g: _backend_harm(g[1]))
    out += [_backend(*of, pairs, others) for of, pairs in found[:BACKENDS]]
    if len(found) > BACKENDS:
        out.append(timed.row(f"and {count(len(found) - BACKENDS)} more, less harmful", *[""] * (len(head) - 1)))
    if others:
        out += ["", "*Otherwise*: fixed by head, in one of both only, without a result, or a known failure."]
    return [*out, ""]


def _otherwise(pairs: Sequence[Json]) -> int:
    """How many cells are neither broken nor failing in both nor right in both."""
    return len(pairs) - len(_right(pairs)) - sum(statuses(p) in ("broken", "failing") for p in pairs)


def _right(pairs: Sequence[Json]) -> list[Json]:
    return [p for p in pairs if p["status_a"] == p["status_b"] == "passed"]


def _backend_harm(pairs: Sequence[Json]) -> tuple[int, int]:
    found = results.counted(pairs)
    return -found["broken"], -found["regressed"]


def _backend(backend: str, target: str, evidence: str, pairs: Sequence[Json], others: bool) -> str:
    found = results.counted(pairs)
    had_time = bool(questions.was_timed(pairs))
    right = _right(pairs)
    bits = accuracy.compared(right)
    differ = count(sum(not p["same_bits"] for p in bits)) if bits else "not known"
    undecided = found["inconclusive"] + found["unfit"]
    numbers = (found["regressed"], found["improved"], found["same"], undecided)
    untimed_ = f", {count(found['none'])} not timed" if had_time and found["none"] else ""
    return timed.row(
        "CPU" if backend == "cpu" else plain(target or backend),
        f"{evidence} ({EVIDENCE.get(evidence, 'nothing ran')})",
        count(len(pairs)),
        plain(clip(untimed.sizes(p["axes"] for p in pairs), 200)),
        count(found["broken"]),
        count(found["failing"]),
        count(len(right)),
        *((count(_otherwise(pairs)),) if others else ()),
        differ,
        *(map(count, numbers[:3]) if had_time else ("not timed",) * 3),
        f"{count(undecided)}{untimed_}" if had_time else "not timed",
    )


def _unlike_sizes(result: Json) -> list[str]:
    """That interpreted cells are not those that were compiled, where they are not."""
    small = [p["axes"] for p in result["pairs"] if p["evidence"] == "interpreted"]
    compiled = {t.get("sizes") for t in result["static"]["targets"]} - {None, ""} if result["static"] else set()
    if not small or not compiled or untimed.sizes(small) in compiled:
        return []
    return [
        "The interpreted cells are not those that were compiled: their sizes differ, as the interpreter is slow.",
        "",
    ]


def _tests(result: Json) -> list[str]:
    tests = result["tests"]
    if not tests:
        said = any("own tests" in n["what"] for n in result["not_run"]) or result.get("asked")
        return [] if said else ["**The repository's own tests**: none ran; its farm.yaml names none (tests:).", ""]
    broken = [t for t in tests if t["status_b"] in FAILS and t["status_a"] not in FAILS]
    both = sum(t["status_b"] in FAILS and t["status_a"] in FAILS for t in tests)
    passed_a, passed = (sum(t[f"status_{arm}"] == "passed" and t["kind"] == "test" for t in tests) for arm in "ab")
    more = f", {count(both)} failing in base too" if both else ""
    ran_a, ran = (
        sum(t["kind"] == "test" and t[f"status_{arm}"] not in ("skipped", "absent") for t in tests) for arm in "ab"
    )
    pass_ = f"base {count(passed_a)} of {count(ran_a)} pass, head {count(passed)} of {count(ran)}"
    out = [f"**The repository's own tests**: {pass_}{more}."]
    out += [f"- broken (not so in base): {plain(t['id'])}: {plain(clip(t['reason'], 160))}" for t in broken[:ROWS]]
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


def _foot(result: Json) -> list[str]:
    base, head = result["base"], result["head"]
    parts = [f"Run {result['run']}", f"base {base['sha'][:12]}", f"head {head['sha'][:12]}"]
    if base["digest"] and head["digest"]:
        parts.append(f"digests of the kernels' files: base {base['digest'][:12]}, head {head['digest'][:12]}")
    stages = [s for s in result["stages"] if s["seconds"] >= 0.05]
    told = ", ".join(f"{STAGES.get(s['stage'], s['stage'])} {duration(s['seconds'])}" for s in stages)
    parts += [f"took: {told}"] if told else []
    out = [" · ".join(plain(p) for p in parts), ""]
    if again := results.repeat(result["repeat"]):
        one = questions.chosen(result, {})
        known = one is not None and results.repeat(one["repeat"])
        place = ", after the same steps" if known else ", in a clone that has both commits"
        out += [f"Repeat all of it{place}:", *code("\n".join([*repeating.setup(result), again])), ""]
    return out


def _table(result: Json, full: int) -> list[str]:
    """The folded table: every compared cell, by harm, at most `full` of them."""
    pairs = result["pairs"]
    if not full or not pairs:
        return []
    rows = sorted(pairs, key=_harm)[:full]
    had_time = any(p["ratio"] for p in rows)
    times = ("head's time over base's", "µs", "GB/s, base → head") if had_time else ()
    peaks = ("device memory, MiB",) if memory.known(rows) else ()
    head = ["cell", "base", "head", *times, *peaks, "bits", "largest error, of its tolerance"]
    order = "broken, slower, other bits, then by error" if had_time else "broken, other bits, then by error"
    title = f"All {cells(len(pairs))} that ran, in this order: {order}"
    out = [f"<details><summary>{title}</summary>", "", timed.row(*head), timed.row(*["---"] * len(head))]
    for p in rows:
        played = p["evidence"] == "simulated"
        ratio = (timed.ratio(p) or _no_time(p), timed.microseconds(p), timed.rate(p)) if had_time else ()
        bits = "from a script" if played else {True: "same", False: "differ", None: ""}[p["same_bits"]]
        out.append(
            timed.row(
                plain(p["cell"]),
                label(p["status_a"]),
                label(p["status_b"]),
                *ratio,
                *((memory.peaks(p),) if peaks else ()),
                bits,
                "from a script" if played else accuracy.error(p),
            )
        )
    if len(pairs) > len(rows):
        more = f"and {count(len(pairs) - len(rows))} more, in the artefact"
        out.append(timed.row(more, *[""] * (len(head) - 1)))
    return [*out, "", "</details>", ""]


def _no_time(p: Json) -> str:
    return "undecided" if p["speed"] in ("inconclusive", "unfit") else "" if p["speed"] == "none" else "no ratio"


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
