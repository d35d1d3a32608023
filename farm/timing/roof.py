"""The roof: what a calibrated device can do at best for the same bytes and operations by the same policy.  Pure.

A *calibration* is what `farm calibrate` measured on one device and stored (its file: docs/calibrate.md).  The roof of a
cell is the envelope of copy kernels over as many bytes as its model moves, or the vendor's GEMM over its matrix
operations, whichever takes longer.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

from farm.cell import canonical_json
from farm.errors import FarmSignal

SCHEMA = 1
#: A device is measured anew after so long: fans, drivers and cooling change.
STALE = timedelta(days=30)
#: A calibration is unsteady if copies of one size differ by more than this.  It equals the margin by which a cell may
#: beat the roof (`statistics.ROOF_MARGIN`), so that a roof that is too low by it marks no cell as impossible.
UNSTEADY = 0.05


class BadCalibration(FarmSignal, ValueError):
    """A calibration's file is invalid; the message is the reason."""


@dataclass(frozen=True)
class Point:
    """The best copy of one size: bytes read plus bytes written, its median time, and its configuration."""

    nbytes: int
    us: float
    config: str = ""

    @property
    def gbps(self) -> float:
        """1e9 bytes per second."""
        return self.nbytes / self.us / 1e3


@dataclass(frozen=True)
class Calibration:
    """A device's roof.  `curve`: in ascending order of bytes; `gemm`: the best rate per dtype, in 1e12 op/s; `record`:
    the complete file."""

    id: str
    made: datetime
    policy: Mapping[str, Any]
    cold: bool
    curve: tuple[Point, ...]
    gemm: Mapping[str, float]
    target: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    record: Mapping[str, Any]

    @property
    def uuid(self) -> str:
        return str(self.fingerprint.get("uuid") or "")

    @property
    def simulated(self) -> bool:
        """Whether a fake was measured."""
        return self.record.get("evidence") == "simulated"

    @property
    def sound(self) -> bool:
        """Whether a cell that beats it is impossible: not where the device was throttled, disturbed or unsteady while
        it was measured, which makes a roof too low."""
        said, drift = self.record.get("telemetry"), self.record.get("drift")
        said, drift = (x if isinstance(x, dict) else {} for x in (said, drift))
        spread: Any = drift.get("spread")
        steady = not _positive(spread) or spread <= UNSTEADY
        return steady and not said.get("throttled") and not said.get("disturbed")


#: Ends the flag of a cell whose roof is extrapolated; readers of a run know such cells by it.
EXTRAPOLATED = "the share of the roof is extrapolated"


@dataclass(frozen=True)
class Roof:
    """`us`: the least time that the device needs; `what` limits it: "copy" or "gemm"; `extrapolated`: "below" or
    "above" if the bytes lie outside the measured sizes, else empty."""

    us: float
    what: str
    extrapolated: str = ""


@dataclass(frozen=True)
class RoofChoice:
    """The calibration that a device uses: its `own`, or that of another device of the model; `age` in days."""

    calibration: Calibration
    own: bool
    age: float

    @property
    def stale(self) -> bool:
        return self.age > STALE.days

    def to_dict(self) -> dict[str, Any]:
        c = self.calibration
        return {"id": c.id, "made": c.record["made"], "own": self.own, "stale": self.stale}


def kind_of(target: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two devices must have in common to share a roof: backend, model, partition, power limit, driver, and the
    clocks where an operator has set them."""
    clocks = target.get("clocks") or ""
    return (
        target.get("backend"),
        target.get("model"),
        target.get("partition") or "",
        target.get("power_limit_w"),
        fingerprint.get("driver") or "",
        *([clocks] if clocks else []),  # else the names of devices stay what they were
    )


def fingerprint_id(target: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """`cuda-NVIDIA-H200-3f2a9c81d0`: one name per device, as it is set up now."""
    backend, model, *_ = kind_of(target, fingerprint)
    whole = canonical_json([*kind_of(target, fingerprint), fingerprint.get("uuid") or ""])
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{backend} {model}").strip("-")
    return f"{name}-{hashlib.sha256(whole.encode()).hexdigest()[:10]}"


def parse(data: Any) -> Calibration:
    """The calibration in a file's JSON.  BadCalibration, in one sentence, if it is not one."""
    if not isinstance(data, dict):
        raise BadCalibration("the file is not a JSON object")
    if data.get("schema") != SCHEMA:
        raise BadCalibration(f"the calibration has schema {data.get('schema')!r}, but this farm reads schema {SCHEMA}")
    for name, kind in (
        ("id", str),
        ("made", str),
        ("policy", dict),
        ("curve", list),
        ("gemm", list),
        ("target", dict),
        ("fingerprint", dict),
    ):
        if not isinstance(data.get(name), kind):
            raise BadCalibration(f"the field {name} is missing or not a {kind.__name__}")
    try:
        made = datetime.fromisoformat(data["made"])
    except ValueError:
        raise BadCalibration(f"the field made is {data['made']!r}, which is not an ISO 8601 time") from None
    if made.tzinfo is None:
        made = made.replace(tzinfo=timezone.utc)
    if not isinstance(data["policy"].get("method"), str) or not isinstance(data["policy"].get("version"), int):
        raise BadCalibration("the calibration does not state the method and the version of its timing policy")
    curve = tuple(_point(i, p) for i, p in enumerate(data["curve"]))
    if not curve:
        raise BadCalibration("the calibration's curve is empty")
    for a, b in pairwise(curve):
        if b.nbytes <= a.nbytes:
            raise BadCalibration(f"the curve goes from {a.nbytes} bytes to {b.nbytes}, but sizes must increase")
    gemm: dict[str, float] = {}
    for i, g in enumerate(data["gemm"]):
        dtype, tflops = (g.get("dtype"), g.get("tflops")) if isinstance(g, dict) else (None, None)
        if not isinstance(dtype, str) or not _positive(tflops):
            raise BadCalibration(f"gemm[{i}] has no dtype with a positive rate")
        gemm[dtype] = max(gemm.get(dtype, 0.0), float(tflops))  # type: ignore[arg-type]
    return Calibration(
        data["id"], made, data["policy"], bool(data.get("cold")), curve, gemm, data["target"], data["fingerprint"], data
    )


def _point(index: int, data: Any) -> Point:
    nbytes: Any = data.get("bytes") if isinstance(data, dict) else None
    us: Any = data.get("us") if isinstance(data, dict) else None
    if not _positive(nbytes) or not _positive(us) or nbytes != int(nbytes):
        raise BadCalibration(f"curve[{index}] has {nbytes!r} bytes in {us!r} us, but both must be positive")
    return Point(int(nbytes), float(us), str(data.get("config") or ""))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def copy_us(curve: Sequence[Point], nbytes: int) -> tuple[float, str]:
    """(microseconds of the best copy that moves `nbytes`, "below" or "above" if outside the measured sizes, else "").

    Linear on log-log axes between measured sizes; the smallest size's time below it, the largest's bandwidth above it.
    """
    first, last = curve[0], curve[-1]
    if nbytes < first.nbytes:
        return first.us, "below"
    if nbytes > last.nbytes:
        return last.us * nbytes / last.nbytes, "above"
    for a, b in pairwise(curve):
        if nbytes < b.nbytes:
            part = math.log(nbytes / a.nbytes) / math.log(b.nbytes / a.nbytes)
            return a.us * (b.us / a.us) ** part, ""
    return last.us, ""


def roof_us(calibration: Calibration, bytes_moved: int, operations: Mapping[str, int], dtype: str) -> Roof | None:
    """The roof of work that moves `bytes_moved` and does `operations` (by datapath) in `dtype`; None if nothing of it
    was measured.

    Only operations of the datapath `tensor` have a roof: the vendor's GEMM in the same dtype (float32 is not TF32).
    """
    found = []
    if bytes_moved > 0:
        us, beyond = copy_us(calibration.curve, bytes_moved)
        found.append(Roof(us, "copy", beyond))
    matrix, rate = operations.get("tensor", 0), calibration.gemm.get(dtype)
    if matrix > 0 and rate:
        found.append(Roof(matrix / rate / 1e6, "gemm"))
    if matrix > 0 and not rate:
        return None  # bytes alone would flatter it
    return max(found, key=lambda r: r.us, default=None)


def of_cell(
    calibration: Calibration,
    *,
    method: str,
    version: int,
    cold: bool,
    bytes_moved: int,
    operations: Mapping[str, int],
    dtype: str,
) -> dict[str, Any] | None:
    """The `roof` of a measured cell: {"us", "what", "calibration", "extrapolated"}.  None if its timing cannot be
    compared with this calibration: another policy, another version of it, or a warm cache."""
    policy = calibration.policy
    if (method, version) != (policy.get("method"), policy.get("version")) or (calibration.cold and not cold):
        return None
    roof = roof_us(calibration, bytes_moved, operations, dtype)
    if roof is None:
        return None
    return {"us": roof.us, "what": roof.what, "calibration": calibration.id, "extrapolated": roof.extrapolated}


def choose(
    calibrations: Iterable[Calibration],
    target: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
    policies: Iterable[tuple[str, int]],
    now: datetime,
    evidence: str = "executed",
) -> RoofChoice | None:
    """The newest calibration of this device by one of the `policies` (method, version); else the newest of another
    device of this kind; else None.  `evidence`: the device's; simulated devices share roofs only with each other."""
    wanted, uuid = set(policies), str(fingerprint.get("uuid") or "")
    fit = [
        c
        for c in calibrations
        if kind_of(c.target, c.fingerprint) == kind_of(target, fingerprint)
        and c.simulated == (evidence == "simulated")
        and (c.policy.get("method"), c.policy.get("version")) in wanted
    ]
    own = [c for c in fit if uuid and c.uuid == uuid]
    newest = max(own or fit, key=lambda c: c.made, default=None)
    if newest is None:
        return None
    return RoofChoice(newest, bool(own), max(0.0, (now - newest.made) / timedelta(days=1)))
