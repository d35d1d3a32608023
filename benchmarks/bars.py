"""The bars that our kernels are held to, and what a set of rows says of them.  Pure.

A *row* is what `benchmarks.kernels` found for one case: {"case", "bytes", "roof_gbps", "gbps": {subject: GB/s or None}}
and what these functions add: `share` (ours over the roof), `best_peer`, `ratio` (ours over that peer), `missed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import OURS, split

MIB = 1 << 20
#: Peers below this share of the roof have left something; there we want to be ahead, not only level.
PEER_SLACK = 0.96
#: What a large backward reaches for, beyond its bar: the partial sums of dw are 2 % of the traffic there.
REACH, REACH_MIB = 0.95, 512


@dataclass(frozen=True)
class Bars:
    """What one operation must reach.  `None`: no bar."""

    ratio: float  # of the best peer, in each cell; under it a cell is to be confirmed by `benchmarks.confirm`
    geomean: float  # of those ratios
    slack_geomean: float | None  # of those in which the peer is under PEER_SLACK of the roof


FORWARD = Bars(ratio=0.98, geomean=1.00, slack_geomean=1.03)
BACKWARD = Bars(ratio=1.00, geomean=1.15, slack_geomean=None)


def bars(operation: str) -> Bars:
    """Those of a backward, or of a forward with or without grad."""
    return BACKWARD if operation == "backward" else FORWARD


def share_bar(operation: str, moved: int, hidden: int) -> float | None:
    """The share of the roof that a case of `moved` bytes must reach; None where there is no bar.

    Forward: 0.97 from 64 MiB, 0.92 below.  Backward, from 96 MiB: 0.85 to hidden 8,192, 0.70 beyond.
    """
    if operation != "backward":
        return 0.97 if moved >= 64 * MIB else 0.92
    if moved < 96 * MIB:
        return None
    return 0.85 if hidden <= 8192 else 0.70


def geomean(values: Iterable[float]) -> float | None:
    """exp(mean(ln v)) of positive values; None of none."""
    logs = [math.log(v) for v in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def best_peer(gbps: Mapping[str, float | None]) -> str | None:
    """The fastest subject that is not ours; None where no peer has a number."""
    peers = {name: v for name, v in gbps.items() if v is not None and split(name)[0] != OURS}
    return max(peers, key=lambda n: peers[n]) if peers else None


def complete(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with `share`, `best_peer`, `ratio` and `missed`: the bars that it misses, in words."""
    gbps, roof, case = row["gbps"], row["roof_gbps"], row["case"]
    ours, peer = gbps.get(OURS), best_peer(gbps)
    share = ours / roof if ours and roof else None
    ratio = ours / gbps[peer] if ours and peer else None
    missed = []
    bar = share_bar(case["operation"], row["bytes"], case["hidden"])
    if ours is None:
        missed.append("no time of ours")
    elif bar is not None and share is None:
        missed.append(f"no roof to hold to {bar:.2f}")
    elif bar is not None and share < bar:  # type: ignore[operator]
        missed.append(f"{share:.3f} of the roof, bar {bar:.2f}")
    least = bars(case["operation"]).ratio
    if ratio is not None and ratio < least:
        missed.append(f"{ratio:.3f} of {peer}, bar {least:.2f}")
    return {**row, "share": share, "best_peer": peer, "ratio": ratio, "missed": missed}


def peer_share(row: Mapping[str, Any]) -> float | None:
    """The best peer's share of the roof."""
    if not row["best_peer"] or not row["roof_gbps"]:
        return None
    found: float = row["gbps"][row["best_peer"]] / row["roof_gbps"]
    return found


def summary(operation: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometric means of completed rows of one operation, and which of their bars are missed, in words."""
    ratios = [r["ratio"] for r in rows if r["ratio"] is not None]
    slack = [r["ratio"] for r in rows if r["ratio"] is not None and (peer_share(r) or 1.0) < PEER_SLACK]
    wanted, missed = bars(operation), []
    whole, part = geomean(ratios), geomean(slack)
    if whole is None:
        missed.append(f"geometric mean: no cell has both ours and a peer; bar {wanted.geomean:.2f}")
    elif whole < wanted.geomean:
        missed.append(f"geometric mean {whole:.3f} of the best peer, bar {wanted.geomean:.2f}")
    if wanted.slack_geomean is not None and part is not None and part < wanted.slack_geomean:
        missed.append(f"geometric mean {part:.3f} where the peer leaves room, bar {wanted.slack_geomean:.2f}")
    return {
        "cells": len(rows),
        "compared": len(ratios),
        "geomean": whole,
        "slack_cells": len(slack),
        "slack_geomean": part,
        "missed": missed,
    }


def short_of_reach(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Large backwards under REACH of the roof: no bar, but what we reach for."""
    return [
        r
        for r in rows
        if r["case"]["operation"] == "backward" and r["bytes"] >= REACH_MIB * MIB and (r["share"] or REACH) < REACH
    ]


def better_modes(row: Mapping[str, Any], by: float = 0.01) -> list[tuple[str, float]]:
    """Modes of ours that beat `auto` by more than `by`, with the factor, best first: what auto should have chosen."""
    auto = row["gbps"].get(OURS)
    if not auto:
        return []
    found = [(n, v / auto) for n, v in row["gbps"].items() if v and split(n)[0] == OURS and n != OURS]
    return sorted(((n, f) for n, f in found if f > 1 + by), key=lambda p: -p[1])
