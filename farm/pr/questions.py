"""The seven questions of a reviewer, answered near the top of a comment.  Pure.

What got worse, by how much, how sure, on which hardware, did accuracy change, what was not run, how to repeat one cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from farm.pr import accuracy, known, memory, repeating, timed, untimed
from farm.pr import result as results
from farm.pr.result import DEVICES, FAILS, statuses
from farm.report.format import cells, clip, count, label, sig
from farm.report.markdown import plain

Json = Mapping[str, Any]
#: Evidence -> what it is, where the word stands.
EVIDENCE = {
    "executed": "compiled and run on the device",
    "interpreted": "run by Triton's interpreter on a CPU: results, no times",
    "simulated": "played from a script: no hardware, and no real times",
    "compiled": "compiled, not run",
}
NOT_RUN = 10


def answers(result: Json, accepted: Mapping[str, float], links: repeating.Links) -> list[str]:
    """A list item for each question, and the command that repeats one cell."""
    told = (
        ("What got worse?", _worse(result, accepted)),
        ("By how much?", _how_much(result, accepted)),
        ("How sure?", _how_sure(result)),
        ("On which hardware?", _hardware(result)),
        ("Did accuracy change?", _accuracy(result)),
        ("What was not run?", _not_run(result)),
    )
    out = [f"- **{question}** {answer}" for question, answer in told]
    return [*out, *repeating.one_cell(result, chosen(result, accepted), links), ""]


def _accuracy(result: Json) -> str:
    if results.unchanged(result) and not result["pairs"]:
        return "No: no code that computes anything changed, so nothing was computed."
    return accuracy.answer(result["pairs"], _inaccurate(result))


def _inaccurate(result: Json) -> list[Json]:
    return [p for p in broken(results.counting(result)) if p["status_b"] == "inaccurate"]


def broken(pairs: Sequence[Json]) -> list[Json]:
    """What fails in head and not in base, the worst first."""
    found = [p for p in pairs if statuses(p) == "broken" or (statuses(p) == "new" and p["status_b"] in FAILS)]
    return sorted(found, key=lambda p: -(p["worst_b"] or 0))


def slower(pairs: Sequence[Json], accepted: Mapping[str, float]) -> list[Json]:
    """What got slower and nobody accepted, the slowest first."""
    return timed.slowest([p for p in pairs if p["speed"] == "regressed" and not results.accepted(p, accepted)])


def was_timed(pairs: Sequence[Json]) -> list[Json]:
    return [p for p in pairs if p["speed"] != "none" and p["ratio"]]


def played(had_time: Sequence[Json]) -> bool:
    """Whether all times are those of a script."""
    return bool(had_time) and all(p["evidence"] == "simulated" for p in had_time)


def _in_script(pairs: Sequence[Json]) -> str:
    """What the simulated devices' script made slower, which is no finding."""
    had_time = was_timed(pairs)
    if not played(had_time):
        return ""
    late = timed.slowest([p for p in had_time if p["speed"] == "regressed"])
    first = f", slowest {_of(late[0])}" if late else ""
    of = f"{count(len(late)) if late else 'none'} of {cells(len(had_time))}"
    return f" In the script that the simulated devices play, {of} {'is' if len(late) == 1 else 'are'} slower{first}."


def _worse(result: Json, accepted: Mapping[str, float]) -> str:
    pairs, static = results.counting(result), result["static"]
    told = []
    script = "" if result.get("counts_simulated") else _in_script(result["pairs"])
    excused = sum(statuses(p) == "known" for p in pairs)
    if excused:
        script = f" {cells(excused)} {'breaks' if excused == 1 else 'break'} as base's known failures say.{script}"
    if wrong := broken(pairs):
        of = f"{count(len(wrong))} of {cells(len(pairs))}"
        told.append(f"{of} broke: right in base, not in head; first {_of(wrong[0])}")
    had_time = was_timed(pairs)
    if late := slower(pairs, accepted):
        of = f"{count(len(late))} of {count(len(had_time))} timed cells"
        told.append(f"{of} got slower; the slowest is {_of(late[0])}")
    if taken := sum(p["speed"] == "regressed" for p in pairs) - len(late):
        told.append(f"{cells(taken)} got slower and somebody accepted it")
    for t in (static or {"targets": ()})["targets"]:
        for words, _ in results.refused(t):
            told.append(f"in head {words} for {plain(t['target'])}, and not in base")
        if spills := {m["kernel"] for m in t["moves"] if m["worse"] and m["measure"] == "spills"}:
            kernels = "a kernel of head spills" if len(spills) == 1 else f"{count(len(spills))} kernels of head spill"
            told.append(f"{kernels} registers on {plain(t['target'])}")
    needs = memory.worse(pairs)
    if needs and (told or memory.counts(result)):
        told.append(needs)
    told += known.findings(result, plain)
    if own := results.broken_tests(result):
        told.append(f"{count(len(own))} of the repository's own tests broke: first {plain(own[0]['id'])}")
    if static and static["unreached"]:
        told.append(f"unknown for {_named_kernels(static['unreached'])}: changed, but launched by no cell")
    if told:
        return f"{_first(told)}{'; '.join(told[1:])}.{script}"
    if results.unchanged(result):
        return f"Nothing: no code that a kernel depends on changed.{script}"
    if not any(p["status_a"] not in (*FAILS, *results.WITHHELD) for p in pairs):
        nothing = (
            "no cell worked in base"
            if pairs
            else "no cell ran on hardware or was computed"
            if script
            else "no cell ran"
        )
        return f"Nothing is known: {nothing}.{script}"
    speed = f"none of {count(len(had_time))} timed cells got slower" if had_time else "speed was not measured"
    grew = accuracy.grown_words(pairs)
    inside = f"; {grew}" if grew else ""
    beyond = "Nothing beyond the tolerances" if grew else "Nothing that was seen"
    if needs:
        beyond = f"{needs}. Apart from that, {beyond[:1].lower()}{beyond[1:]}"
    of = f"none of {'the other ' if excused else ''}{cells(len(pairs) - excused)}"
    return f"{beyond}: {of} broke{' and ' if had_time else '; '}{speed}{inside}.{script}"


def _first(told: Sequence[str]) -> str:
    name = "/" in told[0].partition(" ")[0]  # a cell's, which is copied as it stands
    return f"{told[0][:1] if name else told[0][:1].upper()}{told[0][1:]}{'; ' if told[1:] else ''}"


def _named_kernels(names: Sequence[str]) -> str:
    """`_a, _b, _c and 2 more`."""
    more = f" and {count(len(names) - 3)} more" if len(names) > 3 else ""
    return f"{', '.join(plain(n) for n in names[:3])}{more}"


def _how_much(result: Json, accepted: Mapping[str, float]) -> str:
    pairs = result["pairs"]
    told = []
    if wrong := broken(results.counting(result)):
        more = f"; {cells(len(wrong) - 1)} more" if len(wrong) > 1 else ""
        told.append(f"{_of(wrong[0])}: {_both(wrong[0])}{more}")
    if late := [p for p in slower(pairs, accepted) if p["ratio"]]:
        told.append(f"the slowest takes {timed.amount(late[0])}")
        if len(late) > 2:
            told.append(f"half of the slower cells take at least {sig(median(p['ratio'] for p in late), 4)} times")
    if fast := sorted((p for p in pairs if p["speed"] == "improved" and p["ratio"]), key=lambda p: p["ratio"]):
        told.append(f"{cells(len(fast))} got faster, the best takes {timed.amount(fast[0])} ({_of(fast[0])})")
    had_time = was_timed(pairs)
    if played(had_time) and not result.get("counts_simulated"):
        words = f" In the script: {'; '.join(told)}." if told else ""
        return f"Of real speed nothing is known: nothing was timed on hardware.{words}"
    told += [f"device memory {memory.in_cell(of[0])}" for of in (memory.more(pairs), memory.less(pairs)) if of]
    if grew := accuracy.grown(pairs):
        told.append(f"the error that grew most is {accuracy.of_both(grew[0])} ({_of(grew[0])})")
    if had_time and not any(p["speed"] in ("regressed", "improved") for p in had_time):
        low, high = min(p["ratio"] for p in had_time), max(p["ratio"] for p in had_time)
        told.append(f"head takes {sig(low, 4)} to {sig(high, 4)} times base's time: no cell is beyond its threshold")
    if pairs and not had_time:
        why = "nothing was timed, because timing needs a device"
        told.append(f"of time nothing is known: {why}" if told else f"not measured: {why}")
    if not told and results.unchanged(result):
        return "Not at all: no code that runs changed."
    return f"{_first(told)}{'; '.join(told[1:])}." if told else "Not measured."


def _both(p: Json) -> str:
    """What a broken cell is in base and in head, with the errors of both where there are any."""
    if p["status_b"] == "inaccurate" and p["worst_b"] is not None:
        return f"the error is {accuracy.of_both(p)}"
    was = f" (its largest error {accuracy.share(p['worst_a'])} of the tolerance)" if p["worst_a"] is not None else ""
    return f"{label(p['status_a'])}{was} in base, {label(p['status_b'])} in head"


def _how_sure(result: Json) -> str:
    pairs = result["pairs"]
    had_time, told = was_timed(pairs), []
    if had_time:
        one = timed.slowest(had_time)[0]
        interval = f" (here {sig(one['low'], 4)} to {sig(one['high'], 4)})" if one["low"] and one["high"] else ""
        thresholds = sorted(p["threshold"] for p in had_time if p["threshold"])
        ends = " to ".join(dict.fromkeys(f"{100 * t:.1f} %" for t in (thresholds[:1] + thresholds[-1:])))
        if played(had_time):
            told.append("Of real speed nothing is known. What follows is how the script's times were judged.")
        told.append(
            f"{_rounds(pairs)}. Each round has a fresh process for base and for head, on one device; the ratio of "
            f"times has a 99 % interval{interval}. A cell counts as slower or faster only if that excludes 1 and "
            f"the ratio is beyond the cell's threshold{f' ({ends})' if ends else ''}."
        )
        if undecided := [p for p in pairs if p["speed"] in ("inconclusive", "unfit")]:
            first = f"{_of(undecided[0])} ({timed.undecided_why(undecided[0])})"
            told.append(f"Undecided: {cells(len(undecided))}{', first' if len(undecided) > 1 else ':'} {first}.")
    elif pairs:
        told.append("Of speed nothing is known.")
    if accuracy.compared(pairs):
        told.append("Results were compared bit by bit, for the same inputs in both; other inputs were not tried.")
    if memory.more(pairs) or memory.less(pairs):
        told.append("Peaks of device memory are counted, not measured: the same code allocates the same.")
    built = _built(result)
    if any(t["same_code"] and not untimed.untested(t, result["static"]) for t in built):
        told.append(
            "Where machine code is identical, the kernel itself behaves identically; launch parameters and host code "
            "are not covered."
        )
    if any(untimed.differing(t) for t in built):
        told.append("Where machine code differs, that alone says nothing of speed.")
    if not told and results.unchanged(result):
        told.append(
            "By reading: the kernels and the code that calls them are the same in both, comments and docstrings aside."
        )
    return " ".join([*told, *(["Nothing was run."] if not pairs and not built else [])])


def _rounds(pairs: Sequence[Json]) -> str:
    """`8 cells were timed: 4 are judged by 3 rounds, 3 by 7 and 1 gave no time that counts`; what rounds there are."""
    timed_ = [p for p in pairs if p["speed"] != "none"]
    by = Counter(p["rounds"] for p in timed_ if p["ratio"])
    by_few = sorted(by)
    if len(by_few) > 6:
        told = [f"{count(sum(by.values()))} {_are(sum(by.values()))} judged by {by_few[0]} to {by_few[-1]} rounds"]
    else:
        told = [f"{count(by[n])}{f' {_are(by[n])} judged' if k == 0 else ''} by {n}" for k, n in enumerate(by_few)]
        told[:1] = [f"{told[0]} rounds"] if told else []
    if none := len(timed_) - sum(by.values()):
        told.append(f"{count(none)} gave no time that counts")
    listed = f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else told[0]
    were = "was" if len(timed_) == 1 else "were"
    how = "Every cell is timed in 2 or 3 rounds. What these leave in doubt is timed in 4 to 7 fresh ones and judged by"
    how += " them alone"
    how += " (one that stands out is timed again), and what they would call a change in 5 more"
    return f"{cells(len(timed_))} {were} timed: {listed}. {how}"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _hardware(result: Json) -> str:
    by: dict[tuple[str, str], int] = {}
    for p in result["pairs"]:
        where = "" if p["evidence"] == "interpreted" else p["target"] or p["backend"]
        by[p["evidence"], where] = by.get((p["evidence"], where), 0) + 1
    order = ("executed", "simulated", "interpreted", "compiled", "none")
    told = []
    for (evidence, where), n in sorted(by.items(), key=lambda item: (order.index(item[0][0]), -item[1])):
        named = f"{plain(where)}: " if where else ""
        told.append(f"{named}{cells(n)} {evidence} ({EVIDENCE.get(evidence, 'nothing ran')})")
    if targets := _built(result):
        names = ", ".join(f"{plain(t['target'])}{_named(t['backend'])}" for t in targets[:8])
        told.append(f"compiled for {names}, and not run from that")
    if not any(p["evidence"] == "executed" for p in result["pairs"]):
        told.insert(0, "None: no GPU or NPU took part" if told else "None")
    return f"{'; '.join(told)}."


def _built(result: Json) -> list[Json]:
    """The targets for which cells of both arms were compiled."""
    return [t for t in (result["static"] or {"targets": ()})["targets"] if t["compiled"] > t["unknown"]]


def _named(backend: str) -> str:
    return f" ({DEVICES[backend]})" if backend in DEVICES else ""


def _not_run(result: Json) -> str:
    """Every backend and every group of cells that has no result, with the reason."""
    told = [f"{_what(n)}: {plain(clip(n['why'], 200))}{_compiled_only(result, n)}" for n in result["not_run"][:NOT_RUN]]
    if len(result["not_run"]) > NOT_RUN:
        told.append(f"and {count(len(result['not_run']) - NOT_RUN)} more")
    if idle := (result["static"] or {"unreached": ()})["unreached"]:
        kernels = "a changed kernel" if len(idle) == 1 else f"{count(len(idle))} changed kernels"
        told.append(f"{kernels} that no cell launches: {_named_kernels(idle)}")
    withheld = sum(any(p[f"status_{arm}"] in results.WITHHELD for arm in "ab") for p in result["pairs"])
    if withheld:
        told.append(f"{cells(withheld)} without a result: the farm or a device failed")
    unfit = [p for p in result["pairs"] if p["speed"] != "none" and not p["ratio"]]
    if unfit:
        why = timed.undecided_why(unfit[0])
        told.append(f"{cells(len(unfit))} without a time that can be judged: first {_of(unfit[0])} ({why})")
    failing = [p for p in result["pairs"] if statuses(p) == "failing"]
    if failing:
        told.append(f"{cells(len(failing))} ran and failed in base too, so head's part in them is not known")
    listed = {n["what"] for n in result["not_run"][:NOT_RUN]}
    for backend in results.not_executed(result):
        if backend not in listed and (only := _compiled_only(result, {"what": backend})):
            told.append(f"{_what({'what': backend})}{only}")
    return f"{'; '.join(told)}." if told else "Nothing that was planned is missing."


def _compiled_only(result: Json, entry: Json) -> str:
    """Of a backend without a device: how many cells were compiled for it alone, and in how many the code differs."""
    told = []
    for t in (result["static"] or {"targets": ()})["targets"]:
        if t["backend"] == entry["what"] in DEVICES and t["compiled"]:
            state = f"other machine code in {count(untimed.differing(t))}" if untimed.differing(t) else ""
            state = state or ("identical machine code in all" if t["same_code"] == t["compiled"] else "not comparable")
            told.append(f"{cells(t['compiled'])} only compiled for {plain(t['target'])} ({state})")
    return f", {', '.join(told)}" if told else ""


def _what(entry: Json) -> str:
    return f"{plain(entry['what'])}{_named(entry['what'])}"


def _of(p: Json) -> str:
    return plain(p["cell"])


def chosen(result: Json, accepted: Mapping[str, float]) -> Json | None:
    """The cell that a reader would repeat first."""
    found = timed.groups(result["pairs"], accepted)
    if found:
        return found[0][1][0]
    if needs := memory.more(result["pairs"]):
        return needs[0]
    return max(result["pairs"], key=lambda p: (p["same_bits"] is False, bool(p["kernels"])), default=None)
