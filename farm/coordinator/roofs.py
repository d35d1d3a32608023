"""Which calibration serves each device of a run, and what of it each measured cell carries.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farm.calibration.report import short
from farm.cell import Cell
from farm.timing import roof
from farm.timing.roof import Calibration, Choice


class Roofs:
    """`calibrations`: those of the store; `cells`: the plan's, whose timing policies must be the calibration's own."""

    def __init__(self, calibrations: Iterable[Calibration], cells: Sequence[Cell]):
        self._all = tuple(calibrations)
        self._policies: dict[str, set[tuple[str, int]]] = {}
        for cell in cells:
            if cell.timing.method != "none" and not cell.skip_reason:
                self._policies.setdefault(cell.backend, set()).add((cell.timing.method, cell.timing.version))
        self._chosen: dict[str, Choice] = {}  # by device
        self._told: set[str] = set()

    def device_up(self, device: str, backend: str, said: Mapping[str, Any], now: datetime) -> tuple[Choice | None, str]:
        """(the calibration of a device that says its target and fingerprint, what the user is to be told, if anything).
        Nothing is chosen, nor told, where nothing is timed; and nothing is told twice."""
        policies = self._policies.get(backend)
        if not policies:
            return None, ""
        target, fingerprint = said["target"], said.get("fingerprint") or {}
        evidence = str(said.get("evidence") or "")
        choice = roof.choose(self._all, target, fingerprint, policies, now, evidence)
        if choice:
            self._chosen[device] = choice
        else:
            self._chosen.pop(device, None)
        return choice, self._once(_sentence(choice, backend, str(target.get("model") or backend)))

    def _once(self, text: str) -> str:
        fresh = text not in self._told
        self._told.add(text)
        return text if fresh else ""

    def chosen(self, device: str) -> Choice | None:
        """The calibration that serves the device."""
        return self._chosen.get(device)

    def used(self) -> dict[str, dict[str, Any]]:
        """Every calibration that serves a device, by its id, as the run keeps it."""
        return {c.calibration.id: short(c.calibration.record) for c in self._chosen.values()}

    def of_cell(
        self, device: str, cell: Cell, timing: Mapping[str, Any], work: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The roof that a cell measured on `device` carries: {"us", "what", "calibration", "extrapolated", "own",
        "sound"}."""
        choice = self._chosen.get(device)
        if choice is None or not timing.get("samples_us"):
            return None
        found = roof.of_cell(
            choice.calibration,
            method=str(timing.get("method")),
            version=cell.timing.version,
            cold=bool(timing.get("cold")),
            bytes_moved=int(work["bytes_read"]) + int(work["bytes_written"]),
            operations=work["operations"],
            dtype=cell.dtype,
        )
        return {**found, "own": choice.own, "sound": choice.calibration.sound} if found else None


def beyond_the_curve(facts: Mapping[str, Any], roof: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A cell's facts, flagged where its roof lies outside of what was measured."""
    if not roof or not roof["extrapolated"]:
        return facts
    said = f"its bytes lie {roof['extrapolated']} the calibrated sizes: its share of the roof is extrapolated"
    return {**facts, "flags": [*facts.get("flags", []), said]}


def _sentence(choice: Choice | None, backend: str, model: str) -> str:
    command = f"farm calibrate --backend {backend}"
    if choice is None:
        return f"no calibration of {model} in this store, so no share of the roof is told; {command} makes one"
    if choice.stale:
        return f"the roof of {model} was measured {choice.age:.0f} days ago; {command} measures it anew"
    if not choice.own:
        return f"the roof is that of another {model}; {command} measures this one's own"
    return ""
