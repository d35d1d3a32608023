"""The seven questions of a reviewer, answered near the top of a comment.  Pure.

What got worse, by how much, how sure, on which hardware, did accuracy change, what was not run, how to repeat one cell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from farm.pr import result as results
from farm.pr import timed, untimed
from farm.pr.result import DEVICES, FAILS, statuses
from farm.report.format import cells, clip, count, sig
from farm.report.markdown import code, plain

Json = Mapping[str, Any]
_A_DEVICE = {"cuda": "an NVIDIA GPU", "rocm": "an AMD GPU", "ascend": "an Ascend NPU"}
#: Evidence -> what it is, where the word stands.
EVIDENCE = {
    "executed": "compiled and run on the device",
    "interpreted": "run by Triton's interpreter on a CPU: results, no times",
    "simulated": "played from a script: no hardware, and no real times",
    "compiled": "compiled, not run",
}
NOT_RUN = 10


def answers(result: Json, accepted: Mapping[str, float]) -> list[str]:
    """A list item for each question, and the command that repeats one cell."""
    told = (
        ("What got worse?", _worse(result, accepted)),
        ("By how much?", _how_much(result, accepted)),
        ("How sure?", _how_sure(result)),
        ("On which hardware?", _hardware(result)),
        ("Did accuracy change?", _accuracy(result["pairs"])),
        ("What was not run?", _not_run(result)),
    )
    out = [f"- **{question}** {answer}" for question, answer in told]
    return [*out, *_repeat_one(result, accepted), ""]


def broken(pairs: Sequence[Json]) -> list[Json]:
    """What fails in head and not in base, the worst first."""
    found = [p for p in pairs if statuses(p) == "broken" or (statuses(p) == "new" and p["status_b"] in FAILS)]
    return sorted(found, key=lambda p: -(p["worst_b"] or 0))


def slower(pairs: Sequence[Json], accepted: Mapping[str, float]) -> list[Json]:
    """What got slower and nobody accepted, the slowest first."""
    return timed.slowest([p for p in pairs if p["speed"] == "regressed" and not results.accepted(p, accepted)])


def was_timed(pairs: Sequence[Json]) -> list[Json]:
    return [p for p in pairs if p["speed"] != "none" and p["ratio"]]


def of_timed(had_time: Sequence[Json]) -> str:
    """`timed cells`, or what these were instead."""
    simulated = all(p["evidence"] == "simulated" for p in had_time)
    return "cells timed on simulated devices" if simulated else "timed cells"


def _worse(result: Json, accepted: Mapping[str, float]) -> str:
    pairs, static = result["pairs"], result["static"]
    told = []
    if wrong := broken(pairs):
        of = f"{count(len(wrong))} of {cells(len(pairs))}"
        told.append(f"{of} broke: right in base, not in head; first {_of(wrong[0])}")
    had_time = was_timed(pairs)
    if late := slower(pairs, accepted):
        of = f"{count(len(late))} of {count(len(had_time))} {of_timed(had_time)}"
        told.append(f"{of} got slower; the slowest is {_of(late[0])}")
    if taken := sum(p["speed"] == "regressed" for p in pairs) - len(late):
        told.append(f"{cells(taken)} got slower and somebody accepted it")
    for t in (static or {"targets": ()})["targets"]:
        if failed := [f for f in t["failed"] if f["status_b"] in FAILS and f["status_a"] not in FAILS]:
            told.append(f"{cells(len(failed))} of head no longer compile for {plain(t['target'])}")
        if spills := {m["kernel"] for m in t["moves"] if m["worse"] and m["measure"] == "spills"}:
            kernels = "a kernel of head spills" if len(spills) == 1 else f"{count(len(spills))} kernels of head spill"
            told.append(f"{kernels} registers on {plain(t['target'])}")
    if own := results.broken_tests(result):
        told.append(f"{count(len(own))} of the repository's own tests broke: first {plain(own[0]['id'])}")
    if static and static["unreached"]:
        names = ", ".join(plain(n) for n in static["unreached"][:3])
        told.append(f"unknown for {names}: changed, but no cell launches it")
    if told:
        return f"{_first(told)}{'; '.join(told[1:])}."
    if results.unchanged(result):
        return "Nothing: no code that a kernel depends on changed."
    if not any(p["status_a"] not in (*FAILS, *results.WITHHELD) for p in pairs):
        return "Nothing is known: no cell worked in base." if pairs else "Nothing is known: no cell ran."
    speed = f" and none of {count(len(had_time))} timed cells got slower" if had_time else "; speed was not measured"
    return f"Nothing that was seen: none of {cells(len(pairs))} broke{speed}."


def _first(told: Sequence[str]) -> str:
    return f"{told[0][:1].upper()}{told[0][1:]}{'; ' if told[1:] else ''}"


def _how_much(result: Json, accepted: Mapping[str, float]) -> str:
    pairs = result["pairs"]
    told = []
    if wrong := [p for p in broken(pairs) if _error(p)]:
        told.append(f"the largest error of a broken cell is {_error(wrong[0])} times what is allowed")
    if late := [p for p in slower(pairs, accepted) if p["ratio"]]:
        told.append(f"the slowest takes {timed.amount(late[0])}")
        if len(late) > 2:
            told.append(f"half of the slower cells take at least {sig(median(p['ratio'] for p in late), 4)} times")
    if fast := sorted((p for p in pairs if p["speed"] == "improved" and p["ratio"]), key=lambda p: p["ratio"]):
        told.append(f"{cells(len(fast))} got faster, the best takes {timed.amount(fast[0])} ({_of(fast[0])})")
    had_time = was_timed(pairs)
    if told:
        return f"{_first(told)}{'; '.join(told[1:])}."
    if had_time:
        low, high = min(p["ratio"] for p in had_time), max(p["ratio"] for p in had_time)
        return f"Head takes {sig(low, 4)} to {sig(high, 4)} times base's time: no cell is beyond its threshold."
    if broken(pairs):
        return "A cell that ends without a result has no size of error; the reason stands below."
    return "Not measured: nothing was timed, because timing needs a device." if pairs else "Not measured."


def _error(p: Json) -> str:
    """A broken cell's error over the tolerance; "" where there is no such ratio."""
    worst = p["worst_b"]
    return sig(worst) if worst and p["status_b"] == "inaccurate" and worst < untimed.NO_RATIO else ""


def _how_sure(result: Json) -> str:
    pairs = result["pairs"]
    had_time, told = was_timed(pairs), []
    if had_time:
        one = timed.slowest(had_time)[0]
        interval = f" (here {sig(one['low'], 4)} to {sig(one['high'], 4)})" if one["low"] and one["high"] else ""
        thresholds = sorted(p["threshold"] for p in had_time if p["threshold"])
        ends = " to ".join(dict.fromkeys(f"{100 * t:.1f} %" for t in (thresholds[:1] + thresholds[-1:])))
        numbers = [p["rounds"] for p in had_time]
        rounds = " to ".join(dict.fromkeys((count(min(numbers)), count(max(numbers)))))
        told.append(
            f"{rounds} rounds a cell, each with a fresh process for base and for head on one device; the ratio of "
            f"times has a 99 % interval{interval}. A cell counts as slower or faster only if that excludes 1 and "
            f"the ratio is beyond the cell's threshold{f' ({ends})' if ends else ''}."
        )
        if all(p["evidence"] == "simulated" for p in had_time):
            told.append("But the devices were simulated, so this says nothing about hardware.")
        if undecided := sum(p["speed"] in ("inconclusive", "unfit") for p in pairs):
            told.append(f"Undecided: {cells(undecided)}.")
    elif pairs:
        told.append("Of speed nothing is known.")
    if any(p["same_bits"] is not None for p in pairs):
        told.append("Results were compared bit by bit, for the same inputs in both; other inputs were not tried.")
    if _built(result):
        told.append(
            "Identical machine code is proof for the cells compiled; where it differs, nothing is known of speed."
        )
    return " ".join(told) or "Nothing was run."


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


def _accuracy(pairs: Sequence[Json]) -> str:
    wrong = [p for p in broken(pairs) if p["status_b"] == "inaccurate"]
    known = [p for p in pairs if p["same_bits"] is not None]
    differ = [p for p in known if not p["same_bits"]]
    errors = [[p[f"worst_{arm}"] for p in known if p[f"worst_{arm}"] is not None] for arm in "ab"]
    largest = ""
    if all(errors):
        a, b = (_largest(values) for values in errors)
        largest = f" Largest error of all cells: {a} in base, {b} in head, where 1 is the most that is allowed."
    if wrong:
        return f"Yes, beyond the tolerance in {cells(len(wrong))}, first {_of(wrong[0])}.{largest}"
    if not known:
        return "Not known: no cell gave outputs in both arms that can be compared."
    if differ:
        return f"Bits differ in {count(len(differ))} of {cells(len(known))}; {_within(differ)}.{largest}"
    return f"No: the same bits in all {cells(len(known))} that were compared.{largest}"


def _largest(values: Sequence[float]) -> str:
    return sig(max(values)) if max(values) < untimed.NO_RATIO else "beyond any ratio"


def _within(differ: Sequence[Json]) -> str:
    passed = sum(p["status_b"] == "passed" for p in differ)
    those = "all" if passed == len(differ) else count(passed)
    worst = max(differ, key=lambda p: p["worst_b"] or 0)
    return (
        f"{those} of these are within the tolerance; the largest error among them, base → head: {untimed.error(worst)}"
    )


def _not_run(result: Json) -> str:
    """Every backend and every group of cells that has no result, with the reason."""
    told = [f"{_what(n)}: {plain(clip(n['why'], 200))}" for n in result["not_run"][:NOT_RUN]]
    if len(result["not_run"]) > NOT_RUN:
        told.append(f"and {count(len(result['not_run']) - NOT_RUN)} more")
    withheld = sum(any(p[f"status_{arm}"] in results.WITHHELD for arm in "ab") for p in result["pairs"])
    if withheld:
        told.append(f"{cells(withheld)} without a result: the farm or a device failed")
    unfit = [p for p in result["pairs"] if p["speed"] != "none" and not p["ratio"]]
    if unfit:
        why = plain(clip(unfit[0]["reason"], 160)) or "its samples cannot be judged"
        told.append(f"{cells(len(unfit))} without a time that can be judged: first {_of(unfit[0])} ({why})")
    failing = [p for p in result["pairs"] if statuses(p) == "failing"]
    if failing:
        told.append(f"{cells(len(failing))} ran and failed in base too, so head's part in them is not known")
    targets = {t["backend"] for t in (result["static"] or {"targets": ()})["targets"]}
    if missing := [b for b in results.not_executed(result) if b in targets]:
        names = ", ".join(DEVICES[b] for b in missing)
        told.append(f"the compiled cells, whose code the change may have moved, on a device ({names})")
    return f"{'; '.join(told)}." if told else "Nothing that was planned is missing."


def _what(entry: Json) -> str:
    return f"{plain(entry['what'])}{_named(entry['what'])}"


def _of(p: Json) -> str:
    return plain(p["cell"])


def chosen(result: Json, accepted: Mapping[str, float]) -> Json | None:
    """The cell that a reader would repeat first."""
    found = timed.groups(result["pairs"], accepted)
    if found:
        return found[0][1][0]
    return max(result["pairs"], key=lambda p: (p["same_bits"] is False, bool(p["kernels"])), default=None)


def _repeat_one(result: Json, accepted: Mapping[str, float]) -> list[str]:
    ask, one = "- **How to repeat one cell?**", chosen(result, accepted)
    if one is None:
        return [f"{ask} No cell was compared."]
    if not (again := results.repeat(one["repeat"])):
        return [f"{ask} The result has no command for it."]
    host = _A_DEVICE.get(one["backend"], "any host")
    return [f"{ask} {_of(one)}, on {host}. {where(result, again)}", "", *code(again)]


def where(result: Json, command: str) -> str:
    """Where a command that repeats something is run, and what has to be there."""
    words = shlex.split(command)
    files = list(dict.fromkeys(plain(w) for w in words if re.search(r"\.ya?ml$", w)))
    own = f" It reads files of the job that measured: {', '.join(files)}." if files else ""
    box = " --sandbox needs Linux with bubblewrap." if "--sandbox" in words else ""
    name, fetch, source = "the repository", "", ""
    if result["number"]:
        name = plain(result["repository"])
        fetch = f" (`git fetch origin pull/{result['number']}/head` brings head)"
        source = " (the workflows' variable FARM_PACKAGE says from where)"
    return (
        f"Run it in the root of a clone of {name} that has both commits{fetch}, with the kernel farm "
        f"{plain(result['farm'])} installed{source} beside torch and triton.{box}{own}"
    )
