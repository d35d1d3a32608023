"""`farm nodes`: the nodes of the cluster, as plain data and as lines.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from farm.cell import Target
from farm.cluster.inventory import ClusterNode
from farm.cluster.registry import UP, away

GONE = "gone"
COLUMNS = ("node", "host", "backend", "devices", "model", "versions", "state", "last fault")
LONGEST_FAULT = 100


def rows(table: Sequence[ClusterNode], registry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each node of the cluster, and for each node of the farm that has left it and has not returned, by name.

    registry: from `farm.cluster.registry.Registry.told`.
    """
    living = {n.name for n in table if n.alive}
    lost = {n.name: n for n in table if not n.alive and n.backends and n.name not in living}
    return [
        _row(node, registry)
        for node in sorted([n for n in table if n.alive] + list(lost.values()), key=lambda n: (n.name, n.id))
    ]


def _row(node: ClusterNode, registry: Mapping[str, Any]) -> dict[str, Any]:
    drained = away(registry["out"], node.name, node.id)
    seen = {d: k for d, k in registry["devices"].items() if k.get("node") == node.name}
    faults = [{"device": d, **k["fault"]} for d, k in seen.items() if k.get("fault")]
    ups = [k["up"] for k in seen.values() if k.get("up")]
    return {
        "node": node.name,
        "id": node.id,
        "host": node.host,
        "address": node.address,
        "backends": {b: node.count(b) for b in node.backends},
        "model": node.labels.get("model", "") or _one(u["target"].get("model", "") for u in ups),
        "targets": sorted({str(Target(**u["target"])) for u in ups if u.get("target")}),
        "versions": _versions(node, ups),
        "simulated": any(u.get("evidence") == "simulated" for u in ups),
        "labels": dict(node.labels),
        "state": (drained["state"] if drained else UP) if node.alive else GONE,
        "out": drained,
        "last_fault": max(faults, key=lambda f: float(f["at"])) if faults else None,
        "health": dict(Counter(k["health"]["state"] for k in seen.values() if _unfit(k))),
        "devices": seen,
    }


def _unfit(device: Mapping[str, Any]) -> bool:
    """Whether the last run that used the device found it suspect or quarantined, and not ready again."""
    return bool(device.get("health")) and device["health"]["state"] != "ready"


def _versions(node: ClusterNode, ups: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The versions that the last device to come up there reported, else those in the node's labels."""
    labels = {"farm" if k == "version" else k: node.labels[k] for k in ("driver", "version") if node.labels.get(k)}
    return {**labels, **(max(ups, key=lambda u: float(u["at"]))["versions"] if ups else {})}


def _one(values: Iterable[str]) -> str:
    found = Counter(v for v in values if v)
    return ", ".join(found)


def lines(found: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    """The rows as a table for people."""
    table = [[c.upper() for c in COLUMNS], *(_cells(row, now) for row in found)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table]


def _cells(row: Mapping[str, Any], now: float) -> list[str]:
    have = row["backends"]
    versions = row["versions"]
    shown = [
        f"{k} {versions[k]}"
        for k in ("farm", "driver", "stack", "rocm", "cann", "cuda", "torch", "triton")
        if k in versions
    ]
    model = row["model"] or "-"
    fault = row["last_fault"]
    return [
        row["node"],
        row["host"] or "-",
        ",".join(have) or "-",
        ",".join(str(n) for n in have.values()) or "-",
        f"simulated {model}" if row["simulated"] else model,
        ", ".join(shown) or "-",
        _state(row),
        f"{fault['device'].rpartition('/')[2]} {ago(now - float(fault['at']))} ago: {fault['reason'][:LONGEST_FAULT]}"
        if fault
        else "-",
    ]


def _state(row: Mapping[str, Any]) -> str:
    out = row["out"]
    if not out:
        return ", ".join([str(row["state"]), *(f"{n} {state}" for state, n in sorted(row["health"].items()))])
    since = datetime.fromtimestamp(float(out["since"]), timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
    why = f": {out['reason']}" if out.get("reason") else ""
    return f"{row['state']} by {out['who']} since {since}{why}"


def ago(seconds: float) -> str:
    """A duration for people: `40 s`, `3 min`, `5 h`, `12 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def chosen(table: Sequence[ClusterNode], name: str) -> list[ClusterNode]:
    """The living nodes that a command line names: by name, Ray's id or its beginning, host, or address."""
    living = [n for n in table if n.alive]
    for same in (
        lambda n: n.name == name,
        lambda n: n.id == name or (len(name) >= 6 and n.id.startswith(name)),
        lambda n: n.host == name or n.address == name,
    ):
        found = [n for n in living if same(n)]
        if found:
            return found
    return []
