"""Results of several sites as one: of the same arms, each with the cells of its own devices.  Pure.

Every site also runs what needs no device, so they have those cells in common; of a cell that two have, the more harmful
result counts.  A site whose result is missing is said, and is no success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farm.errors import UsageError
from farm.pr import known
from farm.pr import result as results
from farm.pr.result import FAILS, WITHHELD, Json, statuses

#: How cells compare, the least harmful first; what says nothing yields to what says something.
_SPEEDS = ("none", "unfit", "inconclusive", "improved", "same", "regressed")
_SAME = ("repository", "number", "config", "asked")


def merged(found: Sequence[Json], lost: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One result.  `lost`: the name of a site without a result -> why.  UsageError if they are not of one change."""
    if not found:
        raise UsageError("no result was given; name the result.json of a measuring job", id="pr-no-result")
    out = {**found[0]}
    for other in found[1:]:
        for key in _SAME:
            if other.get(key) != out.get(key):
                raise UsageError(
                    f"the results differ in {key}; they are not of one pull request", id="pr-unlike-results"
                )
        for arm in ("base", "head"):
            if (other[arm]["sha"], other[arm]["tree"]) != (out[arm]["sha"], out[arm]["tree"]):
                raise UsageError(f"the results are of different commits of {arm}", id="pr-unlike-results")
        out["pairs"] = _worst([*out["pairs"], *other["pairs"]], lambda p: (p["cell"], p["target"]), _harm)
        out["tests"] = _worst([*out["tests"], *other["tests"]], lambda t: (t["id"], t["kind"]), _test_harm)
        for key in ("faults", "stages"):
            out[key] = [*out[key], *other[key]]
        out["static"] = _static(out["static"], other["static"])
        out["run"] = f"{out['run']}, {other['run']}"
        if other.get("selection") != out.get("selection"):  # the cells tell
            out.pop("selection", None)
        for flag in ("counts_simulated", "counts_memory"):
            out[flag] = bool(out.get(flag) and other.get(flag))
        if out.get("known") or other.get("known"):
            out["known"] = known.merged(out.get("known") or (), other.get("known") or ())
        if out.get("working_tree") or other.get("working_tree"):
            both = dict.fromkeys([*(out.get("working_tree") or ()), *(other.get("working_tree") or ())])
            out["working_tree"] = [*both][:100]
        inputs = [*(out.get("inputs") or ()), *(other.get("inputs") or ())]
        out["inputs"] = [i for n, i in enumerate(inputs) if i not in inputs[:n]]
    if len(found) > 1:
        ran = {p["backend"] for p in out["pairs"] if p["evidence"] == "executed"}
        missing = [n for r in found for n in r["not_run"] if n["what"] not in ran]
        out["not_run"] = list({n["what"]: n for n in missing}.values())
    if lost:
        out["not_run"] = [*({"what": name, "why": why} for name, why in lost.items()), *out["not_run"]]
        out["lost"] = list(lost)
    return out


def _worst(rows: Iterable[Json], key: Callable[[Json], Any], harm: Callable[[Json], Any]) -> list[Json]:
    """One row for each key, at the place of the first: the most harmful."""
    out: dict[Any, Json] = {}
    for row in rows:
        known = out.get(key(row))
        out[key(row)] = row if known is None or harm(row) > harm(known) else known
    return list(out.values())


def _harm(p: Json) -> tuple[bool, int, int, bool, float]:
    both = (p["status_a"], p["status_b"])
    silent = any(s in (*WITHHELD, "unsupported", "skipped") for s in both)
    broken = statuses(p) == "broken" or (statuses(p) == "new" and p["status_b"] in FAILS)
    kind = 2 if broken else 1 if p["status_b"] in FAILS else 0
    return not silent, kind, _SPEEDS.index(p["speed"]), p["same_bits"] is False, p["ratio"] or 0.0


def _test_harm(t: Json) -> tuple[bool, bool, bool]:
    ran = t["status_b"] not in ("unsupported", "skipped", "absent")
    return bool(results.broken_tests({"tests": [t]})), t["status_b"] in FAILS, ran


def _static(a: Any, b: Any) -> Any:
    """What two sites found without a device: all of it, but a kernel is unreached, or its launches are unknown, only
    where no site saw one."""
    if not a or not b:
        return a or b
    out = {**a, "kernels": max(a["kernels"], b["kernels"])}
    for key in ("changed", "host", "harness", "tools"):
        out[key] = list(dict.fromkeys([*a[key], *b[key]]))
    out["unreached"] = [name for name in a["unreached"] if name in b["unreached"]]
    blind = {u["kernel"] for u in b["unknown"]}
    out["unknown"] = [u for u in a["unknown"] if u["kernel"] in blind]
    out["targets"] = [*a["targets"], *(t for t in b["targets"] if t not in a["targets"])]
    return out
