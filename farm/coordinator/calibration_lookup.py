"""Which calibration each device of a run uses, and the roof that each measured cell gets from it.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farm.calibration.report import short
from farm.cell import VERSIONS, Cell
from farm.errors import Message
from farm.timing import roof
from farm.timing.roof import Calibration, RoofChoice


class CalibrationLookup:
    """`calibrations`: those of the store; `cells`: those of the plan, whose timing policies a calibration must match.
    `otherwise(backend)`: the method that times a cell whose graph cannot be captured there, "" for none."""

    def __init__(
        self,
        calibrations: Iterable[Calibration],
        cells: Sequence[Cell],
        otherwise: Callable[[str], str] = lambda backend: "",
    ):
        self._all = tuple(calibrations)
        self._policies: dict[str, set[tuple[str, int]]] = {}
        self._instead: dict[str, set[tuple[str, int]]] = {}
        for cell in cells:
            if cell.timing.method == "none" or cell.skip_reason:
                continue
            self._policies.setdefault(cell.backend, set()).add((cell.timing.method, cell.timing.version))
            other = otherwise(cell.backend) if cell.timing.method == "rotating_graph" else ""
            if other:
                self._instead.setdefault(cell.backend, set()).add((other, VERSIONS[other]))
        self._chosen: dict[
            str, tuple[RoofChoice, ...]
        ] = {}  # by device: for the planned policies, and for the fallback
        self._reported: set[str] = set()

    def device_up(
        self, device: str, backend: str, said: Mapping[str, Any], now: datetime
    ) -> tuple[RoofChoice | None, str]:
        """(the calibration for a device with this target and fingerprint, a `Message` for the user or "").  If nothing
        is timed, no calibration is chosen and nothing is reported; and no message is repeated."""
        policies = self._policies.get(backend)
        if not policies:
            return None, ""
        target, fingerprint = said["target"], said.get("fingerprint") or {}
        evidence = str(said.get("evidence") or "")
        found = [
            roof.choose(self._all, target, fingerprint, wanted, now, evidence)
            for wanted in (policies, self._instead.get(backend, set()) - policies)
        ]
        self._chosen[device] = tuple(c for c in found if c)
        choice = self.chosen(device)
        return choice, self._once(_sentence(choice, backend, str(target.get("model") or backend)))

    def _once(self, text: str) -> str:
        fresh = text not in self._reported
        self._reported.add(text)
        return text if fresh else ""

    def chosen(self, device: str) -> RoofChoice | None:
        """The calibration that the device uses; of two, that of the planned policy."""
        return next(iter(self.serving(device)), None)

    def serving(self, device: str) -> tuple[RoofChoice, ...]:
        """The same, and after it the calibration of the method for cells that cannot be captured."""
        return self._chosen.get(device, ())

    def used(self) -> dict[str, dict[str, Any]]:
        """Every calibration that a device uses, by its id, as the run keeps it."""
        return {c.calibration.id: short(c.calibration.record) for found in self._chosen.values() for c in found}

    def of_cell(
        self, device: str, cell: Cell, timing: Mapping[str, Any], work: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The roof of a cell that was measured on `device`: {"us", "what", "calibration", "extrapolated", "own",
        "sound"}."""
        method = str(timing.get("method"))
        planned = method == cell.timing.method
        for choice in self.serving(device) if timing.get("samples_us") else ():
            found = roof.of_cell(
                choice.calibration,
                method=method,
                version=cell.timing.version if planned else VERSIONS.get(method, 0),
                cold=bool(timing.get("cold")),
                bytes_moved=int(work["bytes_read"]) + int(work["bytes_written"]),
                operations=work["operations"],
                dtype=cell.dtype,
            )
            if found:
                return {**found, "own": choice.own, "sound": choice.calibration.sound}
        return None


def beyond_the_curve(facts: Mapping[str, Any], found: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A cell's facts, with a flag if its roof lies outside the calibrated sizes."""
    if not found or not found["extrapolated"]:
        return facts
    flag = f"the cell's bytes are {found['extrapolated']} the calibrated sizes, so {roof.EXTRAPOLATED}"
    return {**facts, "flags": [*facts.get("flags", []), flag]}


def _sentence(choice: RoofChoice | None, backend: str, model: str) -> str:
    command = f"farm calibrate --backend {backend}"
    if choice is None:
        text = f"no calibration of {model} is stored, so no share of the roof is reported; to add one, run {command}"
        return Message(text, id="roof-missing")
    if choice.stale:
        text = f"the roof of {model} was measured {choice.age:.0f} days ago; for a new measurement, run {command}"
        return Message(text, id="roof-stale")
    if not choice.own:
        text = f"the roof was measured on another {model}; to measure this device, run {command}"
        return Message(text, id="roof-of-another")
    return ""
