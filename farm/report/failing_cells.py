"""What failing cells have in common that passing ones have not, in one sentence per kernel.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from farm.cell import Status
from farm.report.findings import axis_values
from farm.store.results import place

Row = Mapping[str, Any]

_PASSING = (Status.PASSED.value, Status.BUILT.value)
_LISTED = 3  # values of an axis


def sentences(rows: Iterable[Row], failing: Collection[int]) -> list[str]:
    """`rms_norm/mine: 4 of 8 cells fail: those with hidden 1000; those with hidden 1024 pass`, for each kernel some of
    whose cells pass.

    `rows` are all cells of a run as stored, `failing` the indices of those with a finding.  "those with" means that
    every failing cell has these values, and no passing one; "all with" that some passing ones have, too.  The clause
    on passing cells is true of each cell that passed or failed.
    """
    out = []
    groups = _grouped(rows)
    several = len({where for where, *_ in groups}) > 1
    for (where, op, provider, mode), members in groups.items():
        failed = [r for r in members if r["index"] in failing]
        passed = [r for r in members if r["status"] in _PASSING]
        words = common(failed, passed) if failed and passed else ""
        if words:
            name = f"{op}/{provider}" + (f"/{mode}" if mode != "auto" else "") + (f" on {where}" if several else "")
            count = f"{len(failed)} of {len(failed) + len(passed)} cells {'fails' if len(failed) == 1 else 'fail'}"
            out.append(f"{name}: {count}{words}")
    return out


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, str, str, str], list[Row]]:
    found: dict[tuple[str, str, str, str], list[Row]] = {}
    for r in rows:
        found.setdefault((place(r), r["op"], r["provider"], r["mode"]), []).append(r)
    return found


def common(failed: Sequence[Row], passed: Sequence[Row]) -> str:
    """`: those with hidden 1000; those with hidden 1024 pass`; "" where the failing cells have no value in common that
    sets them apart."""
    of = [axis_values(r) for r in (*failed, *passed)]
    mine, others = of[: len(failed)], of[len(failed) :]
    names = [n for n in dict.fromkeys(k for one in of for k in one) if len({str(one.get(n)) for one in of}) > 1]
    values = {n: {one.get(n) for one in mine} for n in names}
    restricting = [n for n in names if values[n] != {one.get(n) for one in of}]

    def also(chosen: Sequence[str]) -> int:
        return sum(all(one.get(n) in values[n] for n in chosen) for one in others)

    if not restricting:
        return ""
    alone = [n for n in restricting if not also([n])]
    those = "the one" if len(failed) == 1 else "those"
    if alone:
        return f": {those} with {_words(alone, values, of)}{_passing(alone, values, of, others, 'and')}"
    chosen = list(restricting)
    for n in restricting[::-1]:
        fewer = [c for c in chosen if c != n]
        if fewer and also(fewer) == also(chosen):
            chosen = fewer
    left = also(chosen)
    if not left:
        return f": {those} with {_words(chosen, values, of)}{_passing(chosen, values, of, others, 'or')}"
    whole = "with" if len(failed) == 1 else "all with"
    some = f", with which {left} {'cell passes' if left == 1 else 'cells pass'}"
    return f", {whole} {_words(chosen, values, of)}{some}{_passing(chosen, values, of, others, 'or')}"


def _passing(
    chosen: Sequence[str], values: Mapping[str, set[Any]], of: Sequence[Mapping[str, Any]], others: Any, link: str
) -> str:
    """`; those with hidden 1024 pass`: the contrast, which shows what the failing values are beside."""
    rest = {n: {one.get(n) for one in of} - values[n] for n in chosen}
    count = sum(any(one.get(n) in rest[n] for n in chosen) for one in others)
    words = f" {link} ".join(f"{n} {_listed(rest[n], values[n], plainly=True)}" for n in chosen)
    return f"; {'the one' if count == 1 else 'those'} with {words} {'passes' if count == 1 else 'pass'}"


def _words(chosen: Sequence[str], values: Mapping[str, set[Any]], of: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(f"{n} {_listed(values[n], {one.get(n) for one in of} - values[n])}" for n in chosen)


def _listed(found: set[Any], rest: set[Any], plainly: bool = False) -> str:
    """`fp16, bf16`; `from 33 on`, `up to 64` where that parts many values; `other than 5` for all but a few.
    `plainly`: a few values by name, however many are left."""
    order = sorted(found, key=_order)
    if len(order) <= _LISTED and (len(order) == 1 or len(rest) > 1 or plainly):
        return ", ".join(map(_text, order))
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in found | rest):
        if min(order) > max(rest):
            return f"from {min(order)} on"
        if max(order) < min(rest):
            return f"up to {max(order)}"
    if len(rest) <= _LISTED:
        return f"other than {', '.join(map(_text, sorted(rest, key=_order)))}"
    return f"{', '.join(map(_text, order[:_LISTED]))}, ..."


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers as numbers, before all else."""
    number = isinstance(value, int | float)
    return not number, value if number else str(value)


def _text(value: Any) -> str:
    return "dense" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
