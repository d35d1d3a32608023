"""A resolved matrix: every field has its value, and nothing refers to YAML.  Only this is sent to devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm import limits
from farm.cell import METHODS as METHODS
from farm.cell import Cell, Timing
from farm.contracts.base import Contract

from .rules import Kind, Rule, lookup
from .timing_policy import resolve_timing

MAX_CELLS = 1_000_000
#: Seconds that each phase of a child may take.
DEFAULT_DEADLINES = limits.PHASES
CACHES = ("cold", "warm")


@dataclass(frozen=True)
class Provider:
    """A provider in a matrix, with the modes to run, and the op's declared parameters as it has them."""

    name: str
    role: str
    modes: tuple[str, ...]
    declared: Mapping[str, Any] = field(default_factory=dict)
    backend_modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "" for other backends; {} alike on all

    def on(self, backend: str) -> Provider:
        """The provider with those of its modes that there are on a backend: if none is among them, the first there."""
        there = self.backend_modes.get(backend, self.backend_modes.get(""))
        if there is None:
            return self
        return replace(self, modes=tuple(m for m in self.modes if m in there) or there[:1])


@dataclass(frozen=True)
class View:
    """The axes of one backend; cells are their product.  Entries are in the order of the matrix."""

    shapes: tuple[tuple[Mapping[str, int], str], ...]  # dimensions in the contract's order, and the tag
    dtypes: tuple[Mapping[str, str], ...]
    params: tuple[Mapping[str, Any], ...]
    families: tuple[str, ...]
    seeds: tuple[int, ...]
    layouts: tuple[Mapping[str, str], ...]  # tensor -> layout, what is not dense
    operations: tuple[str, ...]
    providers: tuple[Provider, ...]
    timings: tuple[Mapping[str, Any], ...]  # given fields only: the backend fills in the rest

    def on(self, backend: str) -> View:
        """The view with the modes that there are on a backend."""
        if not any(p.backend_modes for p in self.providers):
            return self
        return replace(self, providers=tuple(p.on(backend) for p in self.providers))

    def timings_on(self, backend: str) -> tuple[Timing, ...]:
        resolved = [resolve_timing(backend, spec) for spec in self.timings or ({},)]
        return tuple(dict.fromkeys(resolved))

    def size(self, backend: str) -> int:
        """How many cells the view has on `backend`."""
        count = sum(len(p.modes) for p in self.providers)
        for axis in (self.shapes, self.dtypes, self.params, self.families, self.seeds, self.layouts, self.operations):
            count *= len(axis)
        return count * len(self.timings_on(backend))


@dataclass(frozen=True)
class Tolerance:
    """A tolerance that the matrix replaces, with the reason and the date of the decision."""

    rule: Rule
    output: str  # or "*"
    metric: str
    limit: float
    reason: str
    date: str  # ISO

    def to_dict(self) -> dict[str, Any]:
        return {"match": self.rule.to_list(), **self.override()}

    def override(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("output", "metric", "limit", "reason", "date")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tolerance:
        return cls(Rule.from_list(data["match"]), *(data[k] for k in ("output", "metric", "limit", "reason", "date")))


@dataclass(frozen=True)
class MatrixInfo:
    """What the rest of the farm needs to know about a matrix once its cells exist; part of a plan."""

    name: str
    path: str
    sha256: str
    op: str
    require: tuple[str, ...] = ()
    deadlines: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_DEADLINES))
    sim: Mapping[str, Any] = field(default_factory=dict)
    tolerances: tuple[Tolerance, ...] = ()
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # backend -> patterns of farm.device_pattern
    quiet: str = "none"  # of farm.cell.QUIET

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "require": list(self.require),
            "deadlines": dict(self.deadlines),
            "sim": dict(self.sim),
            "tolerances": [t.to_dict() for t in self.tolerances],
            "targets": {backend: list(patterns) for backend, patterns in self.targets.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MatrixInfo:
        tolerances = tuple(Tolerance.from_dict(t) for t in data["tolerances"])
        targets = {backend: tuple(patterns) for backend, patterns in data.get("targets", {}).items()}
        return cls(**{**data, "require": tuple(data["require"]), "tolerances": tolerances, "targets": targets})


@dataclass(frozen=True)
class Matrix:
    """One matrix: what `load` returns and `cells` expands."""

    info: MatrixInfo
    contract: Contract
    base: View | None  # None: the matrix has axes only for the backends in `views`
    views: Mapping[str, View]  # the backends that differ
    exclude: tuple[Rule, ...]
    kinds: Mapping[str, Kind]  # the keys that a rule or --select may use
    calls: Mapping[str, str] = field(default_factory=dict)  # provider that the matrix declares -> module:function

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def path(self) -> str:
        return self.info.path

    @property
    def sha256(self) -> str:
        return self.info.sha256

    @property
    def op(self) -> str:
        return self.info.op

    @property
    def require(self) -> tuple[str, ...]:
        return self.info.require

    @property
    def deadlines(self) -> Mapping[str, float]:
        return self.info.deadlines

    @property
    def sim(self) -> Mapping[str, Any]:
        return self.info.sim

    @property
    def tolerances(self) -> tuple[Tolerance, ...]:
        return self.info.tolerances

    def view(self, backend: str) -> View | None:
        found = self.views.get(backend, self.base)
        return found and found.on(backend)

    def patterns(self, backend: str) -> tuple[str, ...]:
        """The targets that each cell of the backend is planned for; ("",) if any device of the backend will do."""
        return self.info.targets.get(backend) or ("",)


def quiet_of(matrix: MatrixInfo, cell: Cell) -> str:
    """Which sibling devices must be idle while the cell runs; "none" for a cell that is not timed."""
    return "none" if cell.timing.method == "none" else matrix.quiet


def tolerances_for(tolerances: Sequence[Tolerance], cell: Cell) -> list[dict[str, Any]]:
    """Those of `tolerances` that are for a cell, later ones over earlier ones: output, metric, limit, reason, date."""
    get = lookup(cell)
    return [t.override() for t in tolerances if t.rule.holds(get)]
