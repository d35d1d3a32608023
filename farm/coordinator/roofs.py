"""Which calibration serves each device of a run, and what of it each measured cell carries.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farm.calibration.report import short
from farm.cell import Cell
from farm.timing import roof
from farm.timing.methods import VERSIONS
from farm.timing.roof import Calibration, Choice


class Roofs:
    """`calibrations`: those of the store; `cells`: the plan's, whose timing policies must be the calibration's own.
    `otherwise(backend)`: the method that times a cell there whose graph cannot be captured, "" for none."""

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
        self._chosen: dict[str, tuple[Choice, ...]] = {}  # by device: of the planned policies, and of those instead
        self._told: set[str] = set()

    def device_up(self, device: str, backend: str, said: Mapping[str, Any], now: datetime) -> tuple[Choice | None, str]:
        """(the calibration of a device that says its target and fingerprint, what the user is to be told, if anything).
        Nothing is chosen, nor told, where nothing is timed; and nothing is told twice."""
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
        fresh = text not in self._told
        self._told.add(text)
        return text if fresh else ""

    def chosen(self, device: str) -> Choice | None:
        """The calibration that serves the device; where there are two, that of the policy that was planned."""
        return next(iter(self.serving(device)), None)

    def serving(self, device: str) -> tuple[Choice, ...]:
        """That one, and behind it the calibration by the method that times what cannot be captured."""
        return self._chosen.get(device, ())

    def used(self) -> dict[str, dict[str, Any]]:
        """Every calibration that serves a device, by its id, as the run keeps it."""
        return {c.calibration.id: short(c.calibration.record) for found in self._chosen.values() for c in found}

    def of_cell(
        self, device: str, cell: Cell, timing: Mapping[str, Any], work: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The roof that a cell measured on `device` carries: {"us", "what", "calibration", "extrapolated", "own",
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
