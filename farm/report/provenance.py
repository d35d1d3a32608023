"""Where a run ran and what it left: devices, environments, logs and files.

Pure, except `log_path`, `log_tail` and `files`, which read the run's folder.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.report.queries import Row, RunLike, parse


def devices(run: RunLike) -> list[tuple[str, dict[str, Any]]]:
    """(backend, device) from run.json, else from the cells."""
    if listed := [(b, d) for b, x in (run.head.get("backends") or {}).items() for d in x.get("devices") or []]:
        return listed
    found = {}
    for r in run.rows:
        if r.get("evidence"):
            device = {n: r.get(n) or "" for n in ("node", "target")} | {"name": r.get("device") or ""}
            key = (r["backend"], *device.values())
            device["name"] = device["name"] or "compiled"  # for a target, on a host without it
            found[key] = (r["backend"], device | {"fingerprint": parse(r["fingerprint"])})
    return list(found.values())


def environment(run: RunLike) -> list[tuple[str, list[str], list[tuple[str, str]]]]:
    """(backend, devices, fingerprint as sorted pairs); devices whose fingerprints differ only in their UUID are one
    entry."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = defaultdict(list)
    for backend, d in devices(run):
        facts = flat(d.get("fingerprint") or {})
        uuid, name = facts.pop("uuid", ""), str(d.get("name"))
        pairs = tuple(sorted(facts.items()))
        here = f"{name if uuid in name else f'{name} {uuid}'} on {d.get('node')} ({d.get('target')})"
        mine = [r for r in run.rows if (r.get("device"), r.get("node")) == (d.get("name"), d.get("node"))]
        found[backend, pairs].append(here + vitals(mine))
    return [(backend, names, list(pairs)) for (backend, pairs), names in found.items()]


def versions(run: RunLike) -> dict[str, dict[str, str]]:
    """Backend -> provider -> the version that ran, several with commas; providers without a known one are left out."""
    found: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for row in run.rows:
        known = found[str(row.get("backend") or "")]
        if row.get("provider_version"):
            known[str(row.get("provider"))][str(row["provider_version"])] = None
    return {backend: {p: ", ".join(sorted(v)) for p, v in known.items()} for backend, known in found.items()}


def settings(run: RunLike) -> dict[str, dict[str, str]]:
    """Backend -> provider -> how it was called: `defaults`, or `auto: defaults; tuned: ...` where several modes ran."""
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for row in run.rows:
        if row.get("provider_settings"):
            known = found[str(row.get("backend") or "")][str(row.get("provider"))]
            known[str(row.get("mode") or "auto")] = str(row["provider_settings"])
    return {
        backend: {
            p: "; ".join(f"{mode}: {text}" for mode, text in told.items())
            if len(told) > 1
            else next(iter(told.values()))
            for p, told in known.items()
        }
        for backend, known in found.items()
    }


def vitals(rows: Sequence[Row]) -> str:
    """A device's range over its timed cells (median clock and power, and the highest temperature, of each cell):
    `; while timed 1200-1980 MHz, 35-61 degrees, 120-640 W, 2 cells throttled`; "" where nothing was read."""
    parts = []
    for name, unit in (("sm_clock_mhz", "MHz"), ("temperature_c", "°C"), ("power_w", "W")):
        if values := [float(v) for r in rows if (v := r.get(name)) is not None]:
            least, most = f"{min(values):.0f}", f"{max(values):.0f}"
            parts.append(f"{least} {unit}" if least == most else f"{least}–{most} {unit}")
    slow = sum(r.get("timing_quality") == "throttled" for r in rows)
    parts += [f"{slow} cell{'s' if slow > 1 else ''} throttled"] if slow else []
    return f"; while timed {', '.join(parts)}" if parts else ""


def facts(run: RunLike) -> dict[str, str]:
    """What may explain that two runs differ: revision, matrices, targets, tool chain, timing methods."""
    rows = [r for r in run.rows if r.get("evidence")]
    prints = [parse(text) for text in dict.fromkeys(str(r.get("fingerprint") or "") for r in rows)]

    def of(values: Iterable[Any]) -> str:
        return ", ".join(sorted({str(v) for v in values if v}))

    revision = run.head.get("revision") or {}
    names = dict.fromkeys(n for p in prints for n, v in p.items() if isinstance(v, str) and n not in ("uuid", "node"))
    return {
        "created": str(run.head.get("created") or ""),
        "revision": str(revision.get("commit") or "") + (" + changes" if revision.get("dirty") else ""),
        "matrices": of(f"{m.get('name')} {str(m.get('sha256'))[:12]}" for m in run.head.get("matrices") or []),
        "plan": str(run.head.get("plan_hash") or "")[:12],
        "target": of(r.get("target") for r in rows),
        "timing method": of(r.get("timing_method") for r in rows),
        "evidence": of(r.get("evidence") for r in rows),
        "subject": of(f"{r.get('subject')} {r.get('subject_revision')}" for r in rows if r.get("subject")),
        "nodes": of(r.get("node") for r in rows),
        **{name: of(p.get(name) for p in prints) for name in names},
    }


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted names."""
    out: dict[str, str] = {}
    for name, v in value.items():
        if isinstance(v, Mapping):
            out |= flat(v, f"{prefix}{name}.")
        else:
            out[prefix + str(name)] = v if isinstance(v, str) else json.dumps(v)
    return out


def log_path(run: RunLike, name: str) -> Path | None:
    """The file of a log, if it is one and lies inside the run's folder of logs; anything else is None."""
    folder = run.dir.resolve() / "logs"
    try:
        if folder.is_symlink():
            return None
        path = (folder / name.removeprefix("logs/")).resolve()
        return path if path.is_relative_to(folder) and path.is_file() else None
    except (OSError, ValueError):  # a name with a NUL, or one that is too long
        return None


def log_tail(run: RunLike, name: str, lines: int = 12, limit: int = 1500) -> str:
    """The last lines of a log, so that a page without its store still shows the reason; "" if the log is gone."""
    path = log_path(run, name)
    if path is None:
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - limit))
        text = file.read(limit).decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:])


def files(run: RunLike) -> list[tuple[str, int]]:
    """(name, bytes) of the run's own files, logs summed."""
    if not run.dir.is_dir():
        return []
    out = [(p.name, p.stat().st_size) for p in sorted(run.dir.iterdir()) if p.is_file()]
    logs = [p.stat().st_size for p in (run.dir / "logs").glob("*") if p.is_file()]
    return [*out, (f"logs/ ({len(logs)})", sum(logs))] if logs else out
