"""What the kernel benchmarks measure: cases, their bytes, their order, and how a time budget is dealt.  Pure.

A *case* is an op, an operation, a dtype and a shape; a *subject* is who is timed on it: a provider, or `farm:MODE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from farm.cell import DTYPE_ALIASES, SHORT_DTYPES, Cell
from farm.contracts.discovery import contract, known_ops

OURS = "farm"
#: Whom we are held against, in the order of the tables' columns.
PEERS = ("torch", "torch_compile", "liger", "quack")
OPS = ("rms_norm", "fused_add_rms_norm")
OPERATIONS = ("forward", "backward")
#: Our own kernels, by name; `auto` chooses among them.
MODES = ("static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed", "column_tiled")

#: (rows, hidden) of the shapes on which peers were first measured, forward and backward in one list.
SHAPES = (
    (32768, 128),
    (32768, 256),
    (32768, 1024),
    (4096, 1024),
    (4096, 4096),
    (8192, 4096),
    (4096, 16384),
    (32768, 4096),
    (32768, 8192),
    (16384, 32768),
    (8192, 131072),
    (2048, 2048),
    (8192, 8192),
    (8192, 32768),
)
#: Hidden sizes that are no powers of two; 64 to 128 MiB move in a plain bf16 forward.
ODD_SHAPES = ((24576, 1000), (8192, 3584), (6144, 4095), (6144, 4097), (4096, 5120), (4096, 7168))
#: The shapes that are measured in the other dtypes too.
OTHER_DTYPE_SHAPES = ((32768, 128), (4096, 1024), (4096, 4096), (8192, 4096), (8192, 8192), (4096, 16384))


@dataclass(frozen=True)
class Case:
    """One line of a table."""

    op: str
    operation: str
    dtype: str
    rows: int
    hidden: int

    @property
    def id(self) -> str:
        """`rms_norm/forward/bf16/4096x1024`: what `--cells` is matched with."""
        return f"{self.op}/{self.operation}/{SHORT_DTYPES[self.dtype]}/{self.shape}"

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.hidden}"

    @property
    def bytes_moved(self) -> int:
        """The model's bytes, read and written: what the op's contract says."""
        work = contract(self.op).work(self.cell(OURS))
        return work.bytes_read + work.bytes_written

    def cell(self, subject: str) -> Cell:
        """The farm's cell of this case for a subject: every parameter at its default, or as its provider declares."""
        op = contract(self.op)
        provider, mode = split(subject)
        return Cell(
            backend="cuda",
            op=self.op,
            provider=provider,
            mode=mode,
            operation=self.operation,
            dtypes=dict.fromkeys(op.typed, self.dtype),
            dims={"rows": self.rows, "hidden": self.hidden},
            params={**{p.name: p.default for p in op.parameters}, **declared(provider, self.op)},
            cell_key="-",
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def case_of(data: Mapping[str, Any]) -> Case:
    """The inverse of `to_dict`; other keys are ignored.  KeyError where one is missing."""
    return Case(data["op"], data["operation"], data["dtype"], int(data["rows"]), int(data["hidden"]))


def split(subject: str) -> tuple[str, str]:
    """(provider, mode) of a subject: `farm:row_packed` names a mode, a bare name has the mode auto."""
    provider, _, mode = subject.partition(":")
    return provider, mode or "auto"


def declared(provider: str, op: str) -> dict[str, Any]:
    """The parameters that a provider declares of its own implementation: nothing for one that is not in this tree."""
    try:
        module = import_module(f"farm.providers.{provider}")
    except ModuleNotFoundError:
        return {}
    return dict(getattr(module, "DECLARES", {}).get(op, {}))


def subjects(peers: Sequence[str], modes: Sequence[str]) -> list[str]:
    """Ours (auto), our modes that were asked for, then the peers."""
    return [OURS, *(f"{OURS}:{m}" for m in modes if m != "auto"), *peers]


def available_ops() -> tuple[str, ...]:
    """The benchmarked ops that have a contract in this tree."""
    return tuple(op for op in OPS if op in known_ops())


def parse_shape(text: str) -> tuple[int, int]:
    """(rows, hidden) of `4096x1024`; ValueError in one sentence."""
    rows, x, hidden = text.lower().partition("x")
    if not (x and rows.isdigit() and hidden.isdigit() and int(rows) and int(hidden)):
        raise ValueError(f"a shape is ROWSxHIDDEN, both at least 1, like 4096x1024; got {text!r}")
    return int(rows), int(hidden)


def plan(
    op: str, operation: str, dtypes: Iterable[str] = ("bf16", "fp16", "fp32"), shapes: Sequence[tuple[int, int]] = ()
) -> list[Case]:
    """The cases of one process, those that matter most first: bf16 on the reference shapes, odd sizes, other dtypes.

    With `shapes`, those in every dtype instead.
    """
    wanted = [DTYPE_ALIASES[d] for d in dtypes]
    if shapes:
        return [Case(op, operation, d, *s) for d in wanted for s in shapes]
    first = [Case(op, operation, d, *s) for d in wanted if d == "bfloat16" for s in (*SHAPES, *ODD_SHAPES)]
    return first + [Case(op, operation, d, *s) for d in wanted if d != "bfloat16" for s in OTHER_DTYPE_SHAPES]


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The subjects in another order for each case, so that nobody is always timed first, on the coolest device."""
    at = by % len(names) if names else 0
    return [*names[at:], *names[:at]]


def share(left_s: float, processes_left: int) -> float:
    """Seconds for the next process: an even part of what is left, so that what one does not use goes to the rest."""
    return max(0.0, left_s) / max(1, processes_left)


def warm_shares(cases: Sequence[Case], names: Sequence[str], processes: int) -> list[list[dict[str, Any]]]:
    """The compilations of all cases, dealt to processes: (case, subject) pairs one after the other.

    A backward runs its forward, so a forward whose backward is there is left out.
    """
    backwards = {(c.op, c.dtype, c.rows, c.hidden) for c in cases if c.operation == "backward"}
    kept = [c for c in cases if c.operation == "backward" or (c.op, c.dtype, c.rows, c.hidden) not in backwards]
    jobs = [item(c, [n]) for n in names for c in kept]
    return [jobs[i::processes] for i in range(processes) if jobs[i::processes]]


def item(case: Case, names: Sequence[str], *, roof: bool = False, check: bool = False) -> dict[str, Any]:
    """One case of a plan for a measuring process (`benchmarks.child`)."""
    return {"case": case.to_dict(), "subjects": list(names), "roof": roof, "check": check}
