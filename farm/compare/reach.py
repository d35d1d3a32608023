"""Which changed kernels the cells launched, in which specialisations: what was compared at all.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.compare.kernel_changes import Change, Kernel

#: Languages whose launches are seen without a device: they pass Triton's launcher, or its interpreter.
SEEN = ("triton", "gluon")


@dataclass(frozen=True)
class Launch:
    """A kernel that a cell launches, by name, module ("" where that is not known) and compile-time constants."""

    kernel: str
    module: str = ""
    constants: tuple[tuple[str, Any], ...] = ()

    @property
    def specialisation(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.constants)


@dataclass(frozen=True)
class Reached:
    """A kernel that is not the same in both arms, and what launched it in arm b (a kernel that is gone: in arm a).

    `cells`: specialisation -> cells that launched it.  `through`: launched kernels that are made of it.  `state`:
    reached, unreached, or unseen for a language whose launches are not seen without a device.
    """

    change: Change
    cells: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    through: tuple[str, ...] = ()
    state: str = "reached"

    @property
    def kernel(self) -> Kernel:
        found = self.change.after or self.change.before
        assert found is not None
        return found

    @property
    def all_cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell for cells in self.cells.values() for cell in cells))

    @property
    def finding(self) -> bool:
        """A kernel that differs, and that no cell launched: nothing was said about it."""
        return self.change.state in ("changed", "new") and self.state == "unreached"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "kernel": self.change.name,
            "path": self.kernel.path,
            "language": self.kernel.language,
            "change": self.change.state,
            "moved": self.change.moved,
            "why": list(self.change.why),
            "state": self.state,
            "through": list(self.through),
            "cells": {name: list(cells) for name, cells in self.cells.items()},
        }


def reach(
    changes: Sequence[Change], before: Mapping[str, Iterable[Launch]], after: Mapping[str, Iterable[Launch]]
) -> list[Reached]:
    """Every kernel that is not the same, with the cells that launched it.  `before`, `after`: cell -> its launches in
    arm a and in arm b."""
    named = {k: [c for c in changes if _last(c.name) == k] for k in {_last(c.name) for c in changes}}
    launched = _of(named, after, "after"), _of(named, before, "before")
    out = []
    for change in changes:
        if change.state == "same":
            continue
        side = launched[0] if change.after else launched[1]
        cells = side.get(id(change), {})
        through = () if cells else _through(change, changes, side)
        language = (change.after or change.before).language  # type: ignore[union-attr]
        state = "reached" if cells or through else "unreached" if language in SEEN else "unseen"
        out.append(Reached(change, {n: tuple(found) for n, found in cells.items()}, through, state))
    return out


def _of(
    named: Mapping[str, Sequence[Change]], cells: Mapping[str, Iterable[Launch]], side: str
) -> dict[int, dict[str, list[str]]]:
    """Change (by identity) -> specialisation -> cells of one arm."""
    out: dict[int, dict[str, list[str]]] = {}
    for cell, launches in cells.items():
        for launch in dict.fromkeys(launches):
            for change in _meant(launch, named.get(launch.kernel, ()), side):
                found = out.setdefault(id(change), {}).setdefault(launch.specialisation, [])
                if cell not in found:
                    found.append(cell)
    return out


def _meant(launch: Launch, named: Sequence[Change], side: str) -> Sequence[Change]:
    """The kernels of that name; of several, those that lie where the launched one was imported from."""
    there = [c for c in named if getattr(c, side) is not None]
    if len(there) < 2 or not launch.module:
        return there
    return [c for c in there if _lies_in(getattr(c, side).path, launch.module)] or there


def _lies_in(path: str, module: str) -> bool:
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return dotted == module or dotted.endswith(f".{module}")


def _through(change: Change, changes: Sequence[Change], side: Mapping[int, Any]) -> tuple[str, ...]:
    """The launched kernels that call this one."""
    part = f"{_last(change.name)}()"
    callers = (c for c in changes if c is not change and id(c) in side)
    return tuple(c.name for c in callers if any(k and part in k.parts for k in (c.before, c.after)))


def _last(name: str) -> str:
    return name.rpartition(".")[2]
