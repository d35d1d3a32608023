"""The comparison of two arms as text: the verdict first, then what led to it.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farm.compare.decide import Verdict
from farm.compare.summary import Summary
from farm.report import two_arms
from farm.report.format import cells
from farm.report.pair_rows import NEITHER, counts
from farm.report.two_arms import digits

Row = Mapping[str, Any]
MAX_SHOWN = 10  # of each kind
#: What a reader looks at, in this order.
_SHOWN = ("broken", "new", "lost", "fixed", "failing", "unlike")
#: Why both arms are known to run the same code (farm.compare.equal_code).
_ALIKE = {"peer": "of peers", "machine code": "by equal machine code", "unchanged kernels": "by unchanged kernels"}
_WORDS = {
    "broken": "passes in a, fails in b",
    "new": "has a result only in b",
    "lost": "has a result only in a",
    "fixed": "fails in a, passes in b",
    "failing": "fails in both, so b is not blamed",
    "unlike": "not compared: the two results prove different things",
}


def lines(
    arms: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Row],
    found: Summary | None,
    *,
    complete: bool = True,
    kernels: Sequence[Mapping[str, Any]] = (),
    told: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """The verdict with its reasons, the arms, counts, then each pair that a reader has to look at.  `kernels`: those
    that differ, and `told`: all of the comparison, as run.json has them."""
    if found is None or not complete:
        yield "not decided: the run was interrupted"
    else:
        yield f"{found.name}: exit {found.exit_code}"
        yield from (f"  {why}" for why in found.why)
    yield from (arm_line(name, arm) for name, arm in arms.items())
    yield from _counts(rows, complete)
    yield from _noise(told or {})
    yield from kernel_lines(kernels)
    times = [row for row in rows if row["verdict"] and not row["control"]] if complete else []
    yield from two_arms.lines(rows) if complete else ()
    for verdict in (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.UNFIT, Verdict.IMPROVED):
        of = [row for row in times if row["verdict"] == verdict.value]
        of.sort(key=lambda row: -abs((row["ratio"] or 1.0) - 1.0))
        yield from _listed(verdict.value, "", of, time_line)
    for kind in _SHOWN:
        yield from _listed(kind, f" ({_WORDS[kind]})", [row for row in rows if row["change"] == kind], _status_line)
    noted = [row for row in rows if row["note"]]
    yield from _listed("of these, in later rounds", "", noted, lambda row: f"{row['cell']}: {row['note']}")


def arm_line(name: str, arm: Mapping[str, Any]) -> str:
    """`a: revision main (commit 1f2e3d, digest 0a1b2c)`."""
    revision = (arm.get("subject") or {}).get("revision") or arm.get("revision")
    told = [f"revision {revision}" if revision else "", f"digest {arm['digest']}" if arm.get("digest") else ""]
    more = ", ".join(t for t in told if t)
    return f"{name}: {arm.get('called', '')}{f' ({more})' if more else ''}"


def kernel_lines(kernels: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`kernels that differ: 2`, and of each who launched it."""
    if kernels:
        yield f"kernels that differ: {len(kernels)}"
    apart: dict[str, list[str]] = {}
    for one in kernels:
        launched = {cell for cells_ in one["cells"].values() for cell in cells_}
        place = one["path"].removeprefix("overlay/")  # the name by which stage 0 and Python know it
        if launched or one["through"]:
            by = f"launched by {cells(len(launched))}" if launched else f"part of {', '.join(one['through'][:3])}"
            yield f"  {one['kernel']} ({place}): {one['change']}, {by}"
        else:
            words = (
                "launched by no cell" if one["state"] == "unreached" else "whether a cell launched it cannot be seen"
            )
            apart.setdefault(f"{one['change']}, {words}", []).append(f"{one['kernel']} ({place})")
    for words, names in apart.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"  {words}: {', '.join(names[:3])}{more}"


def _counts(rows: Sequence[Row], complete: bool) -> Iterator[str]:
    told = counts(rows)
    changes, verdicts = told["changes"], told["verdicts"]
    words = [f"{n} {kind}" for kind, n in changes.items() if kind not in ("same", NEITHER)]
    words.append(f"{changes.get('same', 0)} same")
    words += [f"{changes[NEITHER]} not run in either"] if NEITHER in changes else []
    yield f"statuses of {cells(len(rows))}: {', '.join(words)}"
    yield from bits_lines(rows, told)
    if not complete:
        yield from _so_far(verdicts)
        return
    if verdicts:
        yield f"times of {cells(sum(verdicts.values()))}: {', '.join(f'{n} {k}' for k, n in verdicts.items())}"
    else:
        yield "times: none, since no cell passed in both arms with a time"
    yield from control_lines(told)


def _so_far(verdicts: Mapping[str, int]) -> Iterator[str]:
    """What the rounds before an interruption have decided; nothing where no pair was timed further."""
    left = verdicts.get(Verdict.UNFIT.value, 0)
    decided = {kind: n for kind, n in verdicts.items() if kind != Verdict.UNFIT.value}
    if decided:
        words = [f"{n} {kind}" for kind, n in decided.items()] + ([f"{left} not decided yet"] if left else [])
        yield f"times so far, of {cells(sum(verdicts.values()))}: {', '.join(words)}"


def bits_lines(rows: Sequence[Row], told: Mapping[str, Any]) -> Iterator[str]:
    """`bits equal: 12 of 16; the first that differs: CELL`; nothing where none were compared.  `told`: `counts`."""
    if told["bits_compared"]:
        other = next(
            (f"; the first that differs: {r['cell']}" for r in rows if r["bits"] is not None and not r["bits"]), ""
        )
        yield f"bits equal: {told['bits_equal']} of {told['bits_compared']}{other}"


def control_lines(told: Mapping[str, Any]) -> Iterator[str]:
    if told["controls"]:
        yield f"controls: {cells(told['controls'])} that run the same code in both arms"


def _noise(told: Mapping[str, Any]) -> Iterator[str]:
    """What identical code says of this comparison."""
    if told.get("same"):
        yield "both arms are the same code, so a change that is claimed here is the environment's, or a false alarm"
    if told.get("controls_changed"):
        yield (
            f"of the controls, {cells(told['controls_changed'])} would have been called changed, although the code is "
            "the same: the environment differs between the arms"
        )
    alike = told.get("same_code") or {}
    if alike:
        by = ", ".join(f"{n} {_ALIKE.get(why, why)}" for why, n in alike.items())
        yield f"same code in both arms: {cells(sum(alike.values()))} ({by}), of which the controls are timed further"
    if told.get("with_records"):
        yield f"thresholds of {cells(told['with_records'])} also rest on earlier records of identical code"


def _listed(what: str, more: str, rows: Sequence[Row], shown: Any) -> Iterator[str]:
    if rows:
        yield f"{what}: {cells(len(rows))}{more}"
    yield from (f"  {shown(row)}"[:500] for row in rows[:MAX_SHOWN])
    if len(rows) > MAX_SHOWN:
        yield f"  and {len(rows) - MAX_SHOWN} more, in pairs.parquet"


def time_line(row: Row) -> str:
    """`cuda/...: 1.052 (1.047 to 1.058), 10.00 -> 10.52 us, 812 -> 772 GB/s; 15 rounds; num_warps 4 -> 8`."""
    if row["ratio"] is None:
        return f"{row['cell']}: no round gave a time in both arms"
    parts = [f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})" if row["low"] else f"{row['ratio']:.3f}"]
    parts.append(f"{digits(row['time_us_a'])} -> {digits(row['time_us_b'])} us")
    if row["bandwidth_gbps_a"] and row["bandwidth_gbps_b"]:
        parts.append(f"{digits(row['bandwidth_gbps_a'])} -> {digits(row['bandwidth_gbps_b'])} GB/s")
    told = [", ".join(parts), f"{row['rounds']} rounds, threshold {row['threshold']:.1%}"]
    if row["threshold"] is None:
        told.pop()
    return f"{row['cell']}: {'; '.join([*told, *two_arms.launches(row)])}"


def _status_line(row: Row) -> str:
    a, b = row["status_a"] or "not planned", row["status_b"] or "not planned"
    reason = row["reason_b"] or row["reason_a"] or ""
    peer = "" if row["role"] == "subject" else " (peer)"
    return f"{row['cell']}{peer}: {a} -> {b}{f': {reason}' if reason else ''}"
