"""A result.json as a value, and the verdict on it.  Pure.

The verdict is worked out here from what the cells say; a result has no field in which it could claim one.  What it
claims of its arms is held against the forge: `mismatch`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.compare import summary as pairs_summary
from farm.compare.decide import Verdict
from farm.errors import UsageError
from farm.pr import known, memory
from farm.pr.result_schema import MAX_BYTES, SCHEMA

Json = Mapping[str, Any]
FAILS = ("inaccurate", "compile_error", "crashed", "timed_out", "out_of_memory")
WITHHELD = ("infra_error", "lost")
RATIO_DIGITS = 4  # as an acknowledged ratio is kept
#: Backends of which a result says something only if it ran there -> what a reader calls their devices.
DEVICES = {"cuda": "NVIDIA GPU", "rocm": "AMD GPU", "ascend": "NPU"}

#: Options of a command that repeats something -> what they may say.
_REPEATED = {
    "--target": r"[a-z0-9_,]{1,200}",
    "--a": r"revision=[0-9a-f]{4,40}",
    "--b": r"revision=[0-9a-f]{4,40}(,patch=what-if\.diff)?",
    **dict.fromkeys(("--base", "--head"), r"[0-9a-f]{4,40}"),
    **dict.fromkeys(("--backend", "--select"), r"[^-].*"),
    **dict.fromkeys(("--subject", "--known"), r"[\w./][\w./-]*"),
    "--repo": r"\.",
}


#: What a cell that stage 0 refuses does, by its reason (farm.compile.gate); else it does not compile.
_REFUSED = (
    ("needs too much Unified Buffer", "need too much Unified Buffer", r" bytes of Unified Buffer, but only "),
    ("cannot be launched", "cannot be launched", r" cannot be launched: the grid"),
    ("fits on no core", "fit on no core", r" cannot run: no block fits"),
    ("spills registers", "spill registers", r" may not spill for "),
    ("falls back to the scalar unit", "fall back to the scalar unit", r" falls back to the scalar unit \("),
)


@dataclass(frozen=True)
class Outcome:
    """The verdict on a pull request.

    name: worse, not covered (no cell launches a changed kernel), not worse, unchanged, not proven, inconclusive or
    infrastructure failures; exit_code as everywhere: 3 for the farm, 1 for what head made worse or no cell covers, 4
    where nothing is proven, 0; why: sentences, the first for the headline.
    """

    name: str
    exit_code: int
    why: tuple[str, ...]


def read(text: str | bytes) -> Json:
    """The result of a file.  UsageError for anything that its schema does not allow."""
    import jsonschema  # on demand: it takes a tenth of a second

    if len(text) > MAX_BYTES:
        raise UsageError(f"the result has {len(text):,} bytes; the limit is {MAX_BYTES:,}", id="pr-result-too-big")
    try:
        found = json.loads(text, parse_constant=_not_a_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the result is not JSON: {str(error)[:200]}", id="pr-result-not-json") from None
    wrong = next(jsonschema.Draft202012Validator(SCHEMA).iter_errors(found), None)
    if wrong is not None:
        at = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in wrong.absolute_path).lstrip(".")
        raise UsageError(
            f"the result breaks its schema at {at or 'the top'}: {wrong.message[:200]}; was it made by another version "
            "of the farm?",
            id="pr-result-schema",
        )
    twice = [cell for cell, n in Counter((p["cell"], p["target"]) for p in found["pairs"]).items() if n > 1]
    if twice:
        raise UsageError(f"the result has the cell {twice[0][0]!r} more than once", id="pr-result-cell-twice")
    return dict(found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object: of a name that is there twice, two readers would see two results."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{Counter(name for name, _ in pairs).most_common(1)[0][0][:100]!r} is there twice")
    return found


def _not_a_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def mismatch(
    result: Json, repository: str, number: int, head: str, bases: Sequence[str], trees: Mapping[str, str]
) -> str:
    """Why a result is not of this pull request as the forge knows it; "" if it is.  `trees`: commit -> git tree."""
    if result["repository"] != repository or result["number"] != number:
        return f"it is of {result['repository']}#{result['number']}"
    if head_of(result) != head:
        return f"it is of head {head_of(result)[:12]}; the pull request has moved to {head[:12]}"
    asked = result.get("asked")
    if asked and bool(asked["patch"]) != (asked["kind"] == "what-if"):
        return "it has a patch, but is no what-if" if asked["patch"] else "it is a what-if without a patch"
    if asked and asked["patch"]:  # both arms have one commit
        if result["base"]["sha"] != result["head"]["sha"] or result["base"]["sha"] not in (head, *bases):
            return "it is a what-if on another commit than head or base"
    elif result["head"]["sha"] != head:
        return "it compares another commit than head"
    elif result["base"]["sha"] not in bases:
        return f"its base {result['base']['sha'][:12]} is not where head left the base branch, nor its tip"
    for arm in ("base", "head"):
        claimed = result[arm]
        if trees.get(claimed["sha"]) != claimed["tree"]:
            return f"its {arm} claims another content than the commit {claimed['sha'][:12]} has"
    return ""


def head_of(result: Json) -> str:
    """The head of the pull request that a result is about; of a what-if on base, neither arm has it."""
    return str((result.get("asked") or result["head"]).get("head") or result["head"]["sha"])


def beside(result: Json, ran: bool) -> bool:
    """Whether a result answers a question of its own and is no verdict on the pull request: a what-if, a cell that
    somebody chose to run again, or a run of something else or less than the one before.  `ran`: whether a result of
    the same head, with devices, is there already."""
    asked = result.get("asked")
    return asked is not None and narrower(asked["kind"], asked["matrix"], asked["backends"], ran)


def narrower(kind: str, matrix: str, backends: Sequence[str], ran: bool) -> bool:
    """`beside`, of a command."""
    return kind in ("what-if", "rerun") or bool(matrix) or (bool(backends) and ran)


def outcome(result: Json, acknowledged: Mapping[str, float] | None = None) -> Outcome:
    """The verdict.  `acknowledged`: cell -> the ratio of times that somebody accepted; a regression up to a threshold
    beyond it does not count."""
    pairs, static = counting(result), result["static"]
    of_pairs = [_pair(p, acknowledged or {}) for p in pairs]
    unreached = static["unreached"] if static else []
    found = pairs_summary.summary(of_pairs, unreached) if pairs or unreached else None
    worse = [*_broken_tests(result), *_worse_builds(result), *known.findings(result), *memory.findings(result)]
    if result["faults"] or (found and found.exit_code == 3):
        why = found.why if found and found.exit_code == 3 else ()
        return Outcome("infrastructure failures", 3, (*why, *result["faults"], *worse))
    failed = found if found and found.exit_code == 1 else None
    if worse or failed:
        return Outcome("worse" if worse or not failed else failed.name, 1, (*(failed.why if failed else ()), *worse))
    if lost := result.get("lost"):  # of a merged result: sites of which nothing is known
        return Outcome("not proven", 4, (f"{lost[0]} has no result",))
    if unchanged(result):
        return Outcome("unchanged", 0, ("nothing that a kernel depends on changed",))
    if unseen := _unseen(result):
        return Outcome("not proven", 4, (f"launches of the changed kernel {unseen[0]} are not seen",))
    missing = not_executed(result)
    if only_simulated(result) and not result.get("counts_simulated"):
        return Outcome("not proven", 4, ("only simulated devices took part, and what they find does not count",))
    if missing:
        where = ", ".join(f"{b} ({DEVICES[b]})" for b in missing)
        return Outcome("not proven", 4, (f"no changed cell ran on a device of {where}",))
    if found and found.exit_code == 4:
        return Outcome("inconclusive", 4, found.why)
    if not pairs:
        return Outcome("not proven", 4, ("no cell was compared",))
    return Outcome("not worse", 0, found.why if found else ())


def counting(result: Json) -> list[Json]:
    """The pairs whose findings count.  Simulated devices play a script, which says nothing of the change."""
    return [p for p in result["pairs"] if p["evidence"] != "simulated" or result.get("counts_simulated")]


def only_simulated(result: Json) -> bool:
    """Whether simulated devices took part, and no real one."""
    found = {p["evidence"] for p in result["pairs"]}
    return "simulated" in found and "executed" not in found


def unchanged(result: Json) -> bool:
    """Whether stage 0 proves that nothing reachable changed: no kernel, no host code, and no machine code differs, and
    nothing was unreadable."""
    s = result["static"]
    if s is None or s["changed"] or s["unknown"] or s["host"]:
        return False
    return all(
        t["compiled"] == t["same_code"] + _fails_alike(t) and t["unknown"] <= _fails_alike(t) for t in s["targets"]
    )


def _fails_alike(target: Json) -> int:
    """How many cells do not compile for a target in either arm, for which there is no machine code to compare."""
    return sum(f["status_a"] == f["status_b"] in FAILS for f in target["failed"])


def _unseen(result: Json) -> list[str]:
    """The changed kernels of which nobody knows whether a cell launched them."""
    s = result["static"] or {"changed": (), "unknown": ()}
    unknown = {u["kernel"] for u in s["unknown"]}
    return [name for name in s["changed"] if name in unknown]


def not_executed(result: Json) -> list[str]:
    """Backends that changed cells belong to, but on no device of which one ran."""
    changed = {p["backend"] for p in result["pairs"] if p["kernels"] or p["same_bits"] is False}
    if result["static"]:
        host = bool(result["static"]["host"])  # which decides how the same machine code is launched
        changed |= {t["backend"] for t in result["static"]["targets"] if host or t["same_code"] < t["compiled"]}
    ran = {p["backend"] for p in result["pairs"] if p["evidence"] == "executed"}
    return [b for b in DEVICES if b in changed and b not in ran]


def statuses(pair: Json) -> str:
    """How the statuses of a pair compare: broken, fixed, failing (in both), known (base lists it), new, lost,
    unlike or same."""
    a, b = pair["status_a"], pair["status_b"]
    if b in FAILS and a not in FAILS and pair.get("known"):
        return "known"
    if a == "absent":
        return "new"
    if b == "absent":
        return "lost"
    if b in FAILS:
        return "failing" if a in FAILS else "broken"
    if a in FAILS:
        return "fixed" if b == "passed" else "unlike"
    return "same" if a == b else "unlike"


def _pair(pair: Json, acknowledged: Mapping[str, float]) -> pairs_summary.Pair:
    speed = None if pair["speed"] == "none" else Verdict(pair["speed"])
    if speed is Verdict.REGRESSED and accepted(pair, acknowledged):
        speed = Verdict.SAME
    both = (pair["status_a"], pair["status_b"])
    return pairs_summary.Pair(
        pair["cell"],
        pair["op"],
        status=statuses(pair),
        withheld=any(s in WITHHELD for s in both),
        fails=pair["status_b"] in FAILS,
        time=speed,
        kernels=tuple(pair["kernels"]),
    )


def accepted(pair: Json, acknowledged: Mapping[str, float]) -> bool:
    """Whether a regression is one that was acknowledged, and no more than a threshold worse than then."""
    known = acknowledged.get(pair["cell"])
    if known is None:
        return False
    return round(pair["ratio"] or 1.0, RATIO_DIGITS) <= round(known * (1 + (pair["threshold"] or 0.0)), RATIO_DIGITS)


def broken_tests(result: Json) -> list[Json]:
    """The repository's own tests that fail in head alone."""
    return [t for t in result["tests"] if t["status_b"] in FAILS and t["status_a"] not in FAILS]


def _broken_tests(result: Json) -> list[str]:
    broken = broken_tests(result)
    return [f"{len(broken)} of the repository's own tests broken: first {broken[0]['id']}"] if broken else []


def _worse_builds(result: Json) -> list[str]:
    """What stage 0 found: kernels that do not compile any more, and spills."""
    out = []
    for t in (result["static"] or {"targets": ()})["targets"]:
        for words, failed in refused(t):
            where = f"for {t['target']} any more" if words.endswith("compile") else f"on {t['target']}, and not in base"
            out.append(f"{words} {where}: first {failed[0]['cell']}")
        spills = [m for m in t["moves"] if m["worse"] and m["measure"] == "spills"]
        if spills:
            out.append(f"{spills[0]['kernel']} spills registers on {t['target']}")
    return out


def refused(target: Json) -> list[tuple[str, list[Json]]]:
    """(`4 cells spill registers`, those cells) of what stage 0 refuses for a target in head alone."""
    found: dict[tuple[str, str], list[Json]] = {}
    for f in no_longer_compile(target):
        words = next((w[:2] for w in _REFUSED if re.search(w[2], f["reason"])), ("does not compile", "do not compile"))
        found.setdefault(words, []).append(f)
    return [
        (f"1 cell {one}" if len(rows) == 1 else f"{len(rows)} cells {many}", rows)
        for (one, many), rows in found.items()
    ]


def no_longer_compile(target: Json) -> list[Json]:
    """The cells that stage 0 refuses for a target in head alone, and that base does not list as known failures."""
    return [f for f in target["failed"] if f["status_b"] in FAILS and f["status_a"] not in FAILS and not f.get("known")]


def repeat(text: str) -> str:
    """A command that a reader may copy, if it is one that a measuring job of ours writes: comparing revisions of the
    reader's own repository; else "".  The job may have run code that wrote another."""
    try:
        words = shlex.split(text)
    except ValueError:
        return ""
    if shlex.join(words) != text or not text.isprintable() or words[:2] not in (["farm", "ab"], ["farm", "pr"]):
        return ""
    rest = iter(words[2:])
    for word in rest:
        if word in _REPEATED:
            if not re.fullmatch(_REPEATED[word], next(rest, "")):
                return ""
        elif word not in ("--sandbox", "--working-tree") and not re.fullmatch(r"[\w./][\w./-]*\.ya?ml", word):
            return ""
    return text


def counted(pairs: Sequence[Json]) -> Counter[str]:
    """Pairs by what is said of them: their status where it differs or fails, else their speed."""
    return Counter(s if (s := statuses(p)) != "same" else p["speed"] for p in pairs)
