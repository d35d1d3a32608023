"""What compilers report about a run's kernels, as tables: per target and op, modes by shapes.  Pure.

One spot is one cell.  A cell may launch several kernels: the spot shows the worst one (it spills, overflows, or has the
lowest occupancy), the tip shows all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.compile.gate import spill_text, spilled
from farm.dashboards.layout import Layout, by_width, lay_out
from farm.report.format import HARM, clip, count, glyph, label, percent, short_dtype
from farm.report.queries import in_order, is_build, is_subject, parse
from farm.store.results import place

Row = Mapping[str, Any]
#: The vendor's name for the memory that a block shares.
MEMORY = {"cuda": "smem", "rocm": "LDS", "ascend": "UB"}
LIMITERS = {
    "registers": "reg",
    "shared memory": "smem",
    "LDS": "LDS",
    "warps": "warps",
    "waves": "waves",
    "blocks": "blocks",
    "groups": "groups",
}


@dataclass(frozen=True)
class BuildSpot:
    """One cell.  `level` in [0, 1] is its colour: occupancy, or on Ascend the share of the Unified Buffer."""

    index: int
    kind: str  # occupancy, buffer, status
    level: float
    main: str  # registers, or the share of the Unified Buffer
    side: str  # occupancy, or buffers
    below: str  # shared memory and what limits occupancy, or waits
    trouble: str  # a spill, an overflow; emphasised
    tip: str
    status: str
    anchor: str = ""


@dataclass(frozen=True)
class Table:
    """One target's cells of one op at one dtype.  `layout` numbers its cells as `spots` does."""

    dtype: str
    backend: str
    layout: Layout
    spots: Mapping[int, BuildSpot]
    legend: tuple[tuple[str, int], ...]  # (status, cells) of what was not built
    failed: tuple[tuple[str, int], ...]  # (status, cells) of subjects' findings


@dataclass(frozen=True)
class BuildSummary:
    """One provider's kernels on one target: each compiled kernel once, however many cells launch it."""

    kernels: int
    spilling: int
    most: str  # `255 reg`, or `74 % UB`
    least_occupancy: float | None


def kernels(row: Row) -> list[dict[str, Any]]:
    """What the compiler reported about a row's kernels, in the order of launches."""
    found = parse(row.get("resources"))
    return found if isinstance(found, list) else []


def summary(rows: Iterable[Row]) -> BuildSummary:
    """The rows' kernels, each counted once."""
    seen = {k["hash"]: k for r in rows for k in kernels(r)}
    registers = [k["registers"] for k in seen.values() if k.get("registers") is not None]
    shares = [_share(k) for k in seen.values() if k.get("ub_limit_bytes")]
    most = f"{max(registers)} reg" if registers else f"{percent(max(shares))} UB" if shares else ""
    occupancies = [float(k["occupancy"]) for k in seen.values() if k.get("occupancy") is not None]
    return BuildSummary(len(seen), sum(map(spilled, seen.values())), most, min(occupancies, default=None))


@dataclass(frozen=True)
class Remark:
    """A compiler warning about some cells of a target that is not a finding."""

    target: str
    text: str
    cells: int
    where: str


def remarks(rows: Iterable[Row]) -> list[Remark]:
    """Flags of compiled cells, grouped; most cells first."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if is_build(row):
            for flag in parse(row.get("flags")) or []:
                found[place(row).rpartition("@")[2], str(flag)].append(row)
    made = [Remark(target, flag, len(members), _where(members)) for (target, flag), members in found.items()]
    return sorted(made, key=lambda r: (-r.cells, r.target, r.text))


def _where(rows: Sequence[Row]) -> str:
    """`rms_norm farm/auto, farm/row_packed · backward · fp32 · 4096x32768 and 3 more`."""
    axes = [
        dict.fromkeys(f"{r.get('op')}" for r in rows),
        dict.fromkeys(_column(r) for r in rows),
        dict.fromkeys(str(r.get("operation")) for r in rows),
        dict.fromkeys(short_dtype(str(r.get("dtype") or "")) for r in rows),
        dict.fromkeys(str(r.get("shape")) for r in rows),
    ]
    named = [", ".join([*list(a)[:4], *([f"and {len(a) - 4} more"] if len(a) > 4 else [])]) for a in axes]
    return " · ".join(named)


def tables(
    rows: Sequence[Row], anchors: Mapping[int, str], only: tuple[str, str] | None = None
) -> dict[tuple[str, str, str], list[Table]]:
    """(backend, target, op) -> a table per dtype; each row that is a build is in exactly one spot.

    `anchors`: id() of a failed row -> the anchor of the group that reports it; `only`: just this backend and op.
    """
    found: dict[tuple[str, str, str], dict[str, list[tuple[int, Row]]]] = defaultdict(lambda: defaultdict(list))
    for index, row in enumerate(rows):
        if is_build(row) and only in (None, (place(row), row["op"])):
            backend, _, target = place(row).partition("@")
            found[backend, target, str(row["op"])][str(row.get("dtype") or "")].append((index, row))
    return {
        key: [_table(key[0], dtype, members, anchors) for dtype, members in sorted(panes.items(), key=by_width)]
        for key, panes in found.items()
    }


def _table(backend: str, dtype: str, members: Sequence[tuple[int, Row]], anchors: Mapping[int, str]) -> Table:
    spots = {index: _spot(index, row, anchors.get(id(row), "")) for index, row in members}
    silent = Counter(s.status for s in spots.values() if s.kind == "status")
    failed = Counter(str(r["status"]) for _, r in members if is_subject(r) and r.get("status") in HARM)
    laid = lay_out(members, subjects_first=False)
    return Table(dtype, backend, laid, spots, tuple(silent.items()), tuple(in_order(failed).items()))


def _column(row: Row) -> str:
    return f"{row.get('provider')}/{row.get('mode')}"


def _spot(index: int, row: Row, anchor: str) -> BuildSpot:
    status, found = str(row.get("status") or ""), kernels(row)
    mine = [k for k in found if row.get("operation") != "backward" or k["phase"] == "backward"] or found
    ran = str(row.get("mode_resolved") or "")
    notes = [f"ran {ran}"] if ran not in ("", row.get("mode")) else []
    memory = MEMORY.get(str(row.get("backend")), "shared")
    lines = [*notes, *(_in_full(k, memory) for k in found)]
    if status != "built" or not mine:
        reason = clip(str(row.get("reason") or ""), 300)
        tip = "\n".join(p for p in (label(status), reason, *lines) if p)
        return BuildSpot(index, "status", 0.0, glyph(status), "", "", "", tip, status, anchor)
    worst = max(mine, key=_badness)
    more = f" +{len(mine) - 1}" if len(mine) > 1 else ""
    if worst.get("ub_limit_bytes"):
        return BuildSpot(
            index,
            "buffer",
            _share(worst),
            percent(_share(worst)),
            f"{worst.get('buffers', 0)} buf{more}",
            f"{worst.get('multi_buffered', 0)} multi · {worst.get('syncs', 0)} sync",
            _trouble(worst),
            "\n".join(lines),
            status,
        )
    limiter = LIMITERS.get(worst["limiter"], worst["limiter"])
    below = f"{_bytes(worst['shared_bytes'])} {memory}"
    return BuildSpot(
        index,
        "occupancy",
        worst["occupancy"],
        str(worst["registers"]),
        f"{percent(worst['occupancy'])}{more}",
        f"{below} · {limiter}" if limiter else below,
        _trouble(worst),
        "\n".join(lines),
        status,
    )


def _badness(kernel: Mapping[str, Any]) -> tuple[bool, bool, float, int]:
    return (
        bool(kernel.get("ub_overflow_bytes")),
        spilled(kernel),
        _share(kernel) if kernel.get("ub_limit_bytes") else -float(kernel.get("occupancy") or 0.0),
        int(kernel.get("registers") or 0),
    )


def _trouble(kernel: Mapping[str, Any]) -> str:
    if spilled(kernel):
        return f"spills {_bytes(kernel['spill_store_bytes'])}"
    return "stack" if kernel.get("stack_bytes") else ""


def _share(kernel: Mapping[str, Any]) -> float:
    """Share of the Unified Buffer; above 1 where it overflows."""
    used = kernel.get("ub_overflow_bytes") or kernel.get("ub_bytes") or 0
    return float(used) / float(kernel["ub_limit_bytes"])


def _in_full(kernel: Mapping[str, Any], memory: str) -> str:
    """One kernel in full, as a line of a tip.  Terse, because most of a page is tips."""
    if kernel.get("ub_limit_bytes"):
        over = kernel.get("ub_overflow_bytes")
        used = f"needs {over:,}" if over else f"{kernel['ub_bytes']:,}"
        parts = [
            f"{used} of {kernel['ub_limit_bytes']:,} B UB",
            f"{kernel.get('buffers', 0)} buffers",
            f"{kernel.get('multi_buffered', 0)} multi-buffered",
            f"{kernel.get('scalar_accesses', 0)} scalar accesses",
            f"{kernel.get('syncs', 0)} waits",
        ]
    else:
        limiter = f" ({kernel['limiter']})" if kernel["limiter"] else ""
        parts = [
            f"{kernel['registers']} reg",
            f"{kernel['warps']} warps",
            f"{kernel['shared_bytes']:,} B {memory}",
            f"{kernel['blocks_per_core']} blocks per core, {percent(kernel['occupancy'])}{limiter}",
        ]
        parts += [f"spills {spill_text(kernel)}"] if spilled(kernel) else []
        counted = kernel.get("instructions") or {}
        parts += [f"{words} {_widths(counted[kind])}" for kind, words in _SHOWN.items() if counted.get(kind)]
        parts.append(f"{count(kernel['code_bytes'])} B code")
    return f"{kernel['kernel']} ({kernel['phase']}): {', '.join(parts)}"


_SHOWN = {"global_loads": "loads", "global_stores": "stores", "async_copies": "async"}


def _widths(counts: Mapping[str, int]) -> str:
    """Instructions by bits: `4×128 1×32`."""
    return " ".join(f"{n}×{bits}" for bits, n in counts.items())


def _bytes(value: int) -> str:
    return f"{value / 1024:.0f} KiB" if value >= 10240 else f"{value / 1024:.1f} KiB" if value >= 1024 else f"{value} B"
