"""The farm's vocabulary as frozen types: cells, their ids and keys, statuses, targets.  Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

_FLOATS8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_PACKED = {"float4_e2m1fn": "e2m1", "int4": "i4", "uint4": "u4"}
_WHOLE = ("float64", "float32", "float16", "bfloat16", *_FLOATS8, "int64", "int32", "int16", "int8", "uint8", "bool")
DTYPES = (*_WHOLE, *_PACKED)
SHORT_DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    **{name: name.partition("_")[2] for name in _FLOATS8},
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
    **_PACKED,
}
DTYPE_ALIASES = {short: full for full, short in SHORT_DTYPES.items()} | {d: d for d in DTYPES}
OPERATIONS = ("forward", "no-grad-forward", "backward", "full")
#: Stands before the arm at the end of a cell's id.
ARM = "~"
#: What stands still around a cell while it is measured: nothing, the devices of its module, those of its host.
QUIET = ("none", "module", "host")


class Status(str, Enum):
    """How a planned cell ended; exactly one per cell."""

    PASSED = "passed"
    BUILT = "built"
    INACCURATE = "inaccurate"
    COMPILE_ERROR = "compile_error"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"
    INFRA_ERROR = "infra_error"
    LOST = "lost"


#: Statuses that accuse the code under test; on a subject they are findings (exit code 1).
FINDINGS = frozenset({Status.INACCURATE, Status.COMPILE_ERROR, Status.CRASHED, Status.TIMED_OUT, Status.OUT_OF_MEMORY})
#: Statuses that accuse the farm (exit code 3).
FARM_FAULTS = frozenset({Status.INFRA_ERROR, Status.LOST})


#: How the reason begins of a cell that was given up because what served it died each time (farm.scheduler).
DEADLY = "its device's actor, its node or its judge died"


def deadly(row: Mapping[str, Any]) -> bool:
    """Whether the cell of a result was given up because what served it died each time: it may be the cause."""
    return row.get("status") == Status.INFRA_ERROR.value and str(row.get("reason")).startswith(DEADLY)


class Quality(str, Enum):
    """What a timing is worth; `impossible` and `none` are never shown as a speed."""

    OK = "ok"
    LAUNCH_BOUND = "launch_bound"
    NOISY = "noisy"
    THROTTLED = "throttled"
    IMPOSSIBLE = "impossible"
    NONE = "none"


class Evidence(str, Enum):
    """What a result proves.  `simulated` marks the scripted fakes of backend `sim`: it proves nothing of a kernel.
    `imported` marks what others have published: nothing of it was run or judged here."""

    INTERPRETED = "interpreted"
    COMPILED = "compiled"
    EXECUTED = "executed"
    SIMULATED = "simulated"
    IMPORTED = "imported"


class Owner(str, Enum):
    """Whose fault a failure is; all but those of the `kernel` are tried again, elsewhere."""

    KERNEL = "kernel"
    HARNESS = "harness"
    DEVICE = "device"
    INFRA = "infra"


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces: equal values give equal text on every Python."""
    return _canonical(value)


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


#: The timing methods by name, with the version of each.  A version is raised when what a method measures changes, and
#: only then: it is in the key of every cell that the method times, and results are compared within equal keys.
#:
#:     rotating_graph  1  samples began before the device had left its idle state;  2  works for 25 ms first
#:     events          1, 2  the same fault;  3  works for 25 ms first
#:     profiler        1  first
#:     host            1  first;  2  the same (one number stood for all methods then)
#:     mspti           1  first
VERSIONS: Mapping[str, int] = MappingProxyType(
    {"rotating_graph": 2, "events": 3, "profiler": 1, "host": 2, "mspti": 1, "none": 2}
)
METHODS: tuple[str, ...] = tuple(VERSIONS)
#: After these a process cannot capture graphs any more, and launches more slowly: it times nothing else.
SPENDING = frozenset({"profiler", "mspti"})


def spends(method: str) -> bool:
    """Whether a process that has timed by `method` may no longer be used for other methods."""
    return method in SPENDING


@dataclass(frozen=True)
class Timing:
    """A timing policy as asked for.  `method` names it; `version` is the policy's own; the rest are its parameters."""

    method: str = "none"  # of METHODS
    version: int = 0  # 0: the method's current one
    cache: str = "cold"  # cold: every launch finds its inputs in memory; warm: in the last-level cache
    min_samples: int = 20
    max_samples: int = 200
    target_rel_width: float = 0.01  # stop when the median's 95 % interval is this narrow, relative, half-width
    max_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not self.version:
            object.__setattr__(self, "version", VERSIONS.get(self.method, 1))

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A read-only copy; one that is read-only already is shared: 100,000 cells hold few different ones."""
    return mapping if type(mapping) is MappingProxyType else MappingProxyType(dict(mapping))


@dataclass(frozen=True, eq=False)
class Cell:
    """One op x provider x mode x operation x dtypes x dimensions x parameters on one backend.

    `dtypes` maps the op's typed tensors to full dtype names; `dims` its dimensions, `params` its parameters,
    every one resolved.  `index` is the place in the plan.  `short` is the id's parts that need the contract
    (made by the matrix), so that a cell can say its id alone.
    """

    backend: str
    op: str
    provider: str
    mode: str
    operation: str
    dtypes: Mapping[str, str]
    dims: Mapping[str, int]
    params: Mapping[str, Any]
    family: str = "mixed"
    seed: int = 0
    timing: Timing = field(default_factory=Timing)
    contract_version: int = 1
    role: str = "subject"  # or "peer"
    tag: str = ""
    cell_id: str = ""
    cell_key: str = ""
    skip_reason: str = ""  # the matrix excluded it: with the rule
    index: int = -1
    matrix: str = ""
    target: str = ""  # where the planned unit is (key, target): `cuda:sm_90`, and the id ends in `@sm_90`
    layout: Mapping[str, str] = field(default_factory=dict)  # tensor -> of farm.contracts.layouts, what is not dense
    contract_content: str = ""  # of a contract outside the farm: what it is made of
    arm: str = ""  # a or b where the run compares two arms; the id then ends in `~a` or `~b`, the key knows no arm

    def __post_init__(self) -> None:
        for name in ("dtypes", "dims", "params", "layout"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        if not self.cell_key:
            object.__setattr__(self, "cell_key", cell_key(self))

    def __getstate__(self) -> dict[str, Any]:
        return self.to_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in Cell.from_dict(state).__dict__.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and (self is other or self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash(self.cell_key)

    @property
    def shape(self) -> str:
        """The dimensions in the contract's order, `4096x8192`."""
        return "x".join(str(v) for v in self.dims.values())

    @property
    def dtype(self) -> str:
        """The first tensor's dtype: the one a reader means."""
        return next(iter(self.dtypes.values()))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; `from_dict` is its inverse.  A cell without layouts or arm, or of a built-in contract,
        is what it was before there were others."""
        out = dict(self.__dict__)
        for name in ("dtypes", "dims", "params", "layout"):
            out[name] = dict(out[name])
        if not out["layout"]:
            del out["layout"]
        for name in ("contract_content", "arm"):
            if not out[name]:
                del out[name]
        out["timing"] = self.timing.to_dict()
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        return cls(**{**data, "timing": Timing(**data["timing"])})


def cell_key(cell: Cell) -> str:
    """SHA-256 of what decides the measurement; tag, target, revision, device and tolerances are not in it."""
    return hashlib.sha256(
        canonical_json(
            {
                "backend": cell.backend,
                "op": cell.op,
                "provider": cell.provider,
                "mode": cell.mode,
                "operation": cell.operation,
                "dtypes": dict(cell.dtypes),
                "dims": dict(cell.dims),
                "params": dict(cell.params),
                "family": cell.family,
                "seed": cell.seed,
                "timing": cell.timing.to_dict(),
                "contract_version": cell.contract_version,
                **({"layout": dict(cell.layout)} if cell.layout else {}),
                **({"contract_content": cell.contract_content} if cell.contract_content else {}),
            }
        ).encode()
    ).hexdigest()


@dataclass(frozen=True)
class Target:
    """What results may be compared within, as read from the device."""

    backend: str
    model: str  # "NVIDIA H200", "cpu-x86_64"
    partition: str = ""  # MIG or SPX/CPX/NPS; "" for a whole device in the vendor's default mode
    power_limit_w: int | None = None
    clocks: str = ""  # "" for the vendor's default policy, else what an operator has set

    def __str__(self) -> str:
        parts = [self.backend, self.model.replace(" ", "-").replace("/", "-")]
        if self.partition:
            parts.append(self.partition)
        if self.power_limit_w:
            parts.append(f"{self.power_limit_w}W")
        if self.clocks:
            parts.append(self.clocks)
        return ":".join(parts)
