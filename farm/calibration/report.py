"""The file of a calibration, and its summary for a terminal.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farm.timing.roof import SCHEMA, fingerprint_id

KIB = 1024
#: Times of one copy that differ by more than this are told as a warning: the device was not the same all the time.
DRIFT = 0.03


def record(
    found: Mapping[str, Any],
    *,
    up: Mapping[str, Any],
    policy: Mapping[str, Any],
    evidence: str,
    revision: Mapping[str, Any],
    made: datetime,
    telemetry: Mapping[str, Any] | None = None,
    complaint: str = "",
) -> dict[str, Any]:
    """A calibration as it is stored: what was measured (`found`), on what (`up`: the device's own words), and how the
    device was meanwhile (`complaint`: what `farm.guard.telemetry` has against it, "" for nothing)."""
    target, fingerprint = dict(up["target"]), dict(up.get("fingerprint") or {})
    stamp = f"{made:%Y%m%dT%H%M%SZ}"
    return {
        "schema": SCHEMA,
        "id": f"{fingerprint_id(target, fingerprint)}-{stamp}",
        "made": made.isoformat(timespec="seconds"),
        "farm": dict(revision),
        "backend": up["backend"],
        "evidence": evidence,
        "target": target,
        "device": up.get("name", ""),
        "node": up.get("node", ""),
        "fingerprint": fingerprint,
        "policy": dict(policy),
        "cold": policy.get("method") != "host" and policy.get("cache") == "cold",
        **found,
        "notes": [*found["notes"], *([f"the device was {complaint} during the measurement"] if complaint else [])],
        "telemetry": {k: v for k, v in telemetry.items() if k != "raw"} if telemetry else None,
    }


def short(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as a run carries it: without the configurations that were not the best."""
    curve = [{k: v for k, v in p.items() if k != "all"} for p in record["curve"]]
    return {**record, "curve": curve}


def size(nbytes: float) -> str:
    """`1 MiB`, `1.41 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < KIB:
            return f"{nbytes:.0f} {unit}" if nbytes >= 100 else f"{nbytes:.3g} {unit}"
        nbytes /= KIB
    return f"{nbytes:.3g} GiB"


def lines(record: Mapping[str, Any]) -> list[str]:
    """A short table: the powers of two of the curve, floors, GEMM, drift, what was left out."""
    out = [f"{'moved':>9} {'us':>10} {'GB/s':>7}  best copy"]
    shown = [p for p in record["curve"] if p["bytes"] & (p["bytes"] - 1) == 0] or record["curve"]
    out += [f"{size(p['bytes']):>9} {p['us']:>10.2f} {p['bytes'] / p['us'] / 1e3:>7.0f}  {p['config']}" for p in shown]
    more = len(record["curve"]) - len(shown)
    out += [f"and {more} intermediate sizes"] if more else []
    floors = ", ".join(f"{us:.2f} us ({method})" for method, us in record["floors"].items())
    out.append(f"empty launch: {floors or 'not measured'}")
    gemm = ", ".join(f"{g['dtype']} {g['tflops']:.0f} ({g['edge']})" for g in best_gemms(record).values())
    out.append(f"GEMM, 10^12 op/s (matrix size): {gemm or 'none'}")
    out.append(f"drift: {drift(record)}")
    return out + remarks(record)


def remarks(record: Mapping[str, Any]) -> list[str]:
    """What was left out, and what else was noted: a line for each reason, not for each size and dtype."""
    said: dict[tuple[str, str], list[str]] = {}
    for s in record.get("skipped") or []:
        said.setdefault(("omitted: ", str(s["why"])), []).append(size(s["bytes"]))
    for note in map(str, record.get("notes") or []):
        what, colon, why = note.partition(": ")
        if colon and what.startswith("GEMM "):
            said.setdefault(("GEMM ", why), []).append(what[len("GEMM ") :])
        else:
            said.setdefault(("", ""), []).append(note)
    whole = said.pop(("", ""), [])
    return [f"{kind}{', '.join(names)}: {why}" for (kind, why), names in said.items()] + whole


def best_gemms(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """dtype -> its fastest product."""
    best: dict[str, Mapping[str, Any]] = {}
    for g in record["gemm"]:
        if g["dtype"] not in best or g["tflops"] > best[g["dtype"]]["tflops"]:
            best[g["dtype"]] = g
    return best


def drift(record: Mapping[str, Any]) -> str:
    """The same copy at the beginning, in the middle and at the end, in words."""
    found = record.get("drift") or {}
    if not found.get("us") or found.get("spread") is None:
        return "not measured"
    times = ", ".join(f"{us:.2f}" for us in found["us"])
    loud = "; more than 3 %: the clock changed, or another process used the device" if found["spread"] > DRIFT else ""
    return f"{size(found['bytes'])} in {times} us, {found['spread']:.1%} apart{loud}"
