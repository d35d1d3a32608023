"""Shapes that nobody chose, and the matrices of a sweep over them.  Pure.

A draw depends on the seed and on its own number alone, so the first 20 of 40 draws are the 20 draws of the same seed:

    rows     log-uniform from 1 to 2^20
    hidden   a quarter multiples of 1,024, half multiples of 128, a quarter any from 64; log-uniform, up to 65,536
    dtype    bfloat16 in three of five, float16 and float32 in one of five each

Where the matrix would be larger than `most_bytes`, or the shape was drawn before, rows and hidden are drawn again; the
kind of width and the dtype stay, so their shares do not depend on the limit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

MOST_ROWS, MOST_HIDDEN, LEAST_ANY = 2**20, 65536, 64
MOST_BYTES = 4 << 30
LEAST_LARGEST = 1 << 20  # `most_bytes` is at least so many: every kind of width has shapes below
MOST_COUNT = 10_000
OPERATIONS = ("forward", "no-grad-forward", "backward")
#: The dimensions of the ops that a sweep is for.
DIMENSIONS = ("rows", "hidden")
_TRIES = 1000
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
#: Peers of one vendor's devices: elsewhere all their cells would be unsupported.
VENDORS = {
    "aiter": ("rocm",),
    "torch_npu": ("ascend",),
    **dict.fromkeys(("quack", "flashinfer", "tilegym"), ("cuda",)),
    **dict.fromkeys(("apex", "transformer_engine", "vllm"), ("cuda", "rocm")),
}
#: A tuned peer searches within the phase `compile`.
TUNING_SECONDS = 600


@dataclass(frozen=True)
class Draw:
    """One shape of [rows, hidden] in a dtype."""

    rows: int
    hidden: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """Of one matrix."""
        return self.rows * self.hidden * BYTES[self.dtype]


def draws(seed: str, count: int, most_bytes: int = MOST_BYTES) -> tuple[Draw, ...]:
    """`count` different shapes of `seed`, none larger than `most_bytes` (at least LEAST_LARGEST); fewer only if so few
    are left that a thousand draws in a row do not find one."""
    found: dict[Draw, None] = {}
    for index in range(count):
        kind, which = _uniform(seed, index, "kind"), _uniform(seed, index, "dtype")
        dtype = "bfloat16" if which < 0.6 else "float16" if which < 0.8 else "float32"
        for attempt in range(_TRIES):
            rows = round(MOST_ROWS ** _uniform(seed, index, f"rows{attempt}"))
            draw = Draw(rows, _hidden(kind, _uniform(seed, index, f"hidden{attempt}")), dtype)
            if draw.nbytes <= most_bytes and draw not in found:
                found[draw] = None
                break
    return tuple(found)


def _hidden(kind: float, at: float) -> int:
    step = 1024 if kind < 0.25 else 128 if kind < 0.75 else 1
    least = max(step, LEAST_ANY)
    width = least * (MOST_HIDDEN / least) ** at
    return max(least, step * round(width / step))


def _uniform(seed: str, index: int, what: str) -> float:
    """A number in [0, 1), the same everywhere: no generator of a library, which another version may change."""
    digest = hashlib.sha256(f"{seed}\0{index}\0{what}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def on(peers: Iterable[str], backends: Sequence[str]) -> list[str]:
    """Those of `peers` that may run on one of the backends; all of them on a simulated one."""
    return [p for p in peers if "sim" in backends or not set(VENDORS.get(p, backends)).isdisjoint(backends)]


def first(
    ops: Mapping[str, Sequence[str]], drawn: Sequence[Draw], own: Sequence[str], peers: Mapping[str, Sequence[str]]
) -> str:
    """The matrices of the first phase: every shape, every operation that the op has; our own choice of mode and each
    peer's default.
    `ops`: op -> what it supports; `own`: subjects; `peers`: op -> its peers."""
    found = []
    for op, supported in ops.items():
        operations = [o for o in OPERATIONS if o in supported]
        for dtype in dict.fromkeys(d.dtype for d in drawn):
            shapes = [d for d in drawn if d.dtype == dtype]
            providers: dict[str, Any] = {name: {} for name in (*own, *peers[op])}
            found.append(_matrix(f"sweep-{op}-{dtype}", op, shapes, dtype, operations, providers))
    return _text(found)


def second(
    cells: Iterable[tuple[str, str, Draw]], own: Sequence[str], modes: Mapping[str, Mapping[str, Sequence[str]]]
) -> str:
    """The matrices of the second phase, "" where nothing is left to ask: of `cells` (op, operation, shape) all modes
    of our kernels and of the peers.  `modes`: op -> provider -> its modes there."""
    groups: dict[tuple[str, str, str], list[Draw]] = {}
    for op, operation, draw in cells:
        groups.setdefault((op, operation, draw.dtype), []).append(draw)
    found = []
    for (op, operation, dtype), shapes in groups.items():
        providers: dict[str, Any] = {
            name: {"mode": list(its)} if len(its) > 1 else {} for name, its in modes[op].items()
        }
        name = f"sweep-modes-{op}-{operation}-{dtype}"
        found.append(_matrix(name, op, shapes, dtype, (operation,), {**{n: {} for n in own}, **providers}, True))
    return _text(found)


def _matrix(
    name: str,
    op: str,
    shapes: Sequence[Draw],
    dtype: str,
    operations: Sequence[str],
    providers: Mapping[str, Any],
    tuned: bool = False,
) -> dict[str, Any]:
    listed = [{"rows": d.rows, "hidden": d.hidden} for d in shapes]
    axes = {"shape": listed, "dtype": dtype, "operation": list(operations)}
    limits = {"deadlines": {"compile": TUNING_SECONDS}} if tuned else {}
    return {"name": name, "op": op, "axes": axes, "providers": dict(providers), **limits}


def _text(matrices: Sequence[Mapping[str, Any]]) -> str:
    return yaml.safe_dump_all(matrices, sort_keys=False, default_flow_style=None, width=120) if matrices else ""
