"""What a comment says of bits and errors: of cells that were computed, never of those that a script played.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.pr.result import statuses
from farm.report.format import cells, count, sig
from farm.report.markdown import plain

#: From here on an error over its tolerance stands for what has no ratio.
NO_RATIO = 1e8
Json = Mapping[str, Any]


def compared(pairs: Sequence[Json]) -> list[Json]:
    """The cells whose bits of both arms are known, and were computed."""
    return [p for p in pairs if p["same_bits"] is not None and p["evidence"] != "simulated"]


def headline(pairs: Sequence[Json]) -> str:
    """`bits identical in 12 of 12 cells (interpreted on a CPU)`."""
    known = compared(pairs)
    if not known:
        return ""
    differ = [p for p in known if not p["same_bits"]]
    within = differ and all(p["status_b"] == "passed" for p in differ)
    others = ", the others within tolerance" if within else ""
    how = " (interpreted on a CPU)" if {p["evidence"] for p in known} == {"interpreted"} else ""
    played = f", {count(_played(pairs))} more were played from a script" if _played(pairs) else ""
    return f"bits identical in {count(len(known) - len(differ))} of {_computed(known, pairs)}{how}{others}{played}"


def _computed(known: Sequence[Json], pairs: Sequence[Json]) -> str:
    """`4 cells`, or `4 cells that were computed` beside some that were not."""
    were = "was" if len(known) == 1 else "were"
    return f"{cells(len(known))}{f' that {were} computed' if _played(pairs) else ''}"


def _played(pairs: Sequence[Json]) -> int:
    return sum(p["evidence"] == "simulated" for p in pairs)


def grown(pairs: Sequence[Json]) -> list[Json]:
    """The cells whose error grew although they pass, those that grew most first."""
    found = [p for p in compared(pairs) if p["status_b"] == "passed" and _growth(p) > 1]
    return sorted(found, key=lambda p: -_growth(p))


def _growth(p: Json) -> float:
    a, b = p["worst_a"], p["worst_b"]
    if a is None or b is None or p["same_bits"] or b >= NO_RATIO:
        return 1.0
    return float(b / a) if a else 1.0 if not b else NO_RATIO


def grown_words(pairs: Sequence[Json]) -> str:
    """`the error grew in 2 cells, up to 1.67 times, to 3.5 % of the tolerance`; "" where it did not."""
    found = grown(pairs)
    if not found:
        return ""
    most = _growth(found[0])
    times = f", up to {sig(most)} times" if most < NO_RATIO else ""
    worst = max(found, key=lambda p: p["worst_b"])
    return f"the error grew in {cells(len(found))}{times}, and is at most {share(worst['worst_b'])} of the tolerance"


def share(value: float | None) -> str:
    """An error over its tolerance as words: `3.5 %`, `3.00 times`."""
    if value is None:
        return "none"
    if value >= NO_RATIO:
        return "beyond any ratio"
    if value > 1:
        return f"{sig(value)} times"
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{sig(100 * value, 2)} %"


def error(p: Json) -> str:
    """`2.1 % → 3.5 %`: a pair's largest error in base and in head, as a share of its tolerance."""
    a, b = share(p["worst_a"]), share(p["worst_b"])
    return a if a == b else f"{a} → {b}"


def of_both(p: Json) -> str:
    """`2.1 % of the tolerance in base, 3.00 times the tolerance in head`."""
    return f"{_of_tolerance(p['worst_a'])} in base, {_of_tolerance(p['worst_b'])} in head"


def _of_tolerance(value: float | None) -> str:
    if value is None or value >= NO_RATIO:
        return "not known" if value is None else "beyond any ratio to the tolerance"
    return f"{share(value)} {'the' if value > 1 else 'of the'} tolerance"


def answer(pairs: Sequence[Json], wrong: Sequence[Json]) -> str:
    """Did accuracy change?  `wrong`: the cells that became inaccurate."""
    known = compared(pairs)
    played = _played(pairs)
    beside = f" The {count(played)} simulated cells do not count: a script plays their results." if played else ""
    if wrong:
        beyond = f"Yes, beyond the tolerance in {cells(len(wrong))}, first {plain(wrong[0]['cell'])}."
        return f"{beyond}{_largest(known)}{beside}"
    silent = sum(_silent(p) for p in pairs)
    beside = f"{f' In {cells(silent)} head gave no output to compare.' if silent else ''}{beside}"
    if not known:
        return f"Not known: no cell gave outputs in both arms that can be compared.{beside}"
    differ = [p for p in known if not p["same_bits"]]
    if not differ:
        of = _computed(known, pairs)
        return f"No: the same bits in {'all ' * (len(known) > 1)}{of}.{_largest(known)}{beside}"
    bits = f"other bits in {count(len(differ))} of {_computed(known, pairs)}"
    failing = sum(p["status_b"] != "passed" for p in differ)
    if failing:
        some = (
            " all fail in base too"
            if all(statuses(p) == "failing" for p in differ if p["status_b"] != "passed")
            else ""
        )
        return f"Yes: {bits}; {count(failing)} of these did not pass{';' * bool(some)}{some}.{_largest(known)}{beside}"
    if told := grown_words(pairs):
        return f"Yes, within the tolerance: {bits}; {told}.{_largest(known)}{beside}"
    return f"No, apart from the bits: {bits}, and no error grew.{_largest(known)}{beside}"


def _silent(p: Json) -> bool:
    """Whether a cell that works in base ended in head before it gave any output."""
    return p["same_bits"] is None and p["evidence"] != "simulated" and statuses(p) == "broken"


def _largest(known: Sequence[Json]) -> str:
    errors = [[p[f"worst_{arm}"] for p in known if p[f"worst_{arm}"] is not None] for arm in "ab"]
    if not all(errors):
        return ""
    a, b = (share(max(values)) for values in errors)
    told = f"{a} of its tolerance in base and in head" if a == b else f"{a} of its tolerance in base, {b} in head"
    return f" The largest error of all cells is {told}."
