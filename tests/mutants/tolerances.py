"""What other projects' tests allow, as they publish it, held against the same outputs: for every element
|got - want| <= atol + rtol |want|, and NaN and infinities in the same places.

`want` is our float64 reference rounded to the output's dtype, which is kinder than their references in the dtype
itself; outputs lie in memory that was poisoned, which is kinder too: an element that was not written is a NaN here and
may be yesterday's right value there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mutant_registry import BFLOAT16, EVERY, FLOAT16, FLOAT32, FUSED, RMS
from mutant_suite import Called, Trial

from farm.accuracy import evaluate
from farm.accuracy.dtypes import decode, encode
from farm.accuracy.inputs import hashes
from farm.cell import Cell
from farm.contracts.discovery import contract

Array = Any  # numpy.ndarray
Limit = tuple[float, float]  # atol, rtol


@dataclass(frozen=True)
class Rule:
    """A project's tolerances; `limits` by op, operation and dtype, none where its tests do not go.  `source`: where it
    says so."""

    name: str
    source: str
    limits: Mapping[tuple[str, str, str], Limit] = field(repr=False)

    def allows(self, cell: Cell, got: Mapping[str, Array], want: Mapping[str, Array]) -> bool:
        """Whether every output is within the tolerance of this cell, which has one."""
        atol, rtol = self.limits[cell.op, cell.operation, cell.dtype]
        return all(close(got[name], want[name], atol, rtol) for name in want)


def close(got: Array, want: Array, atol: float, rtol: float) -> bool:
    """NumPy's allclose, with NaN equal to NaN, for values of float64."""
    with np.errstate(invalid="ignore"):
        return bool(np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True))


def everywhere(limits: Mapping[str, Limit], ops: tuple[str, ...] = (RMS, FUSED)) -> dict[tuple[str, str, str], Limit]:
    """The same limits of a dtype for each op and operation."""
    return {(op, o, d): limit for op in ops for o in ("forward", "backward") for d, limit in limits.items()}


RULES = (
    Rule(
        "TileGym",
        "NVIDIA/TileGym tests/ops/test_rms_norm.py: 5e-2 and no relative part, all dtypes, backward too; its suite of "
        "fused_add_rms_norm: 1e-2 of both, backward 1e-1",
        {
            **everywhere(dict.fromkeys(EVERY, (5e-2, 0.0)), (RMS,)),
            **{(FUSED, "forward", d): (1e-2, 1e-2) for d in EVERY},
            **{(FUSED, "backward", d): (1e-1, 1e-1) for d in EVERY},
        },
    ),
    Rule(
        "Liger",
        "linkedin/Liger-Kernel test/transformers/test_rms_norm.py and test_fused_add_rms_norm.py; no float16 there",
        everywhere({FLOAT32: (1e-4, 1e-6), BFLOAT16: (2e-1, 2e-2)}),
    ),
    Rule(
        "aiter",
        "ROCm/aiter op_tests/triton_tests/normalization/test_rmsnorm.py, taken as atol and rtol alike",
        everywhere({FLOAT32: (1e-4, 1e-4), FLOAT16: (1e-2, 1e-2), BFLOAT16: (1e-2, 1e-2)}),
    ),
    Rule(
        "torch defaults",
        "torch.testing.assert_close without arguments",
        everywhere({FLOAT32: (1e-5, 1.3e-6), FLOAT16: (1e-5, 1e-3), BFLOAT16: (1e-5, 1.6e-2)}),
    ),
)
#: The name under which the farm's own gates stand beside them.
FARM = "farm"


def allowed_by(trial: Trial, called: Called) -> tuple[str, ...]:
    """The rules, by name, that find nothing wrong with a call; what raised, no rule lets through."""
    if called.status:
        return ()
    dtypes = {t.name: t.dtype for t in trial.judged}
    want = {n: decode(encode(trial.reference[n], d), d) for n, d in dtypes.items()}
    got = {n: decode(called.outputs[n], d) for n, d in dtypes.items()}
    place = (trial.cell.op, trial.cell.operation, trial.cell.dtype)
    return tuple(r.name for r in RULES if place in r.limits and r.allows(trial.cell, got, want))


# ---- data ----------------------------------------------------------------------------------------------------------

Make = Callable[[Cell], dict[str, Array]]


def own(cell: Cell) -> dict[str, Array]:
    """What the cell's own family gives."""
    return evaluate.make_inputs(cell, contract(cell.op), (0, evaluate.row_count(cell)))


def unit_weight(cell: Cell) -> dict[str, Array]:
    """Liger's: normal, and a weight of ones."""
    made = own(cell)
    return {**made, "weight": encode(np.ones(cell.dims["hidden"], np.float32), cell.dtypes["weight"])}


def far_from_zero(cell: Cell) -> dict[str, Array]:
    """TileGym's for rms_norm: x uniform between -2.3 and -1.8.  Of the other op, normal."""
    made = own(cell)
    if cell.op != RMS:
        return made
    size = cell.dims["rows"] * cell.dims["hidden"]
    unit = (hashes("uniform", cell.seed, np.arange(size)) >> np.uint64(40)).astype(np.float64) / 2.0**24
    x = (-2.3 + 0.5 * unit).reshape(tuple(cell.dims.values()))
    return {**made, "x": encode(x, cell.dtypes["x"])}


@dataclass(frozen=True)
class Data:
    """A kind of data: the family of its cells, what makes the inputs, and the rules whose own it is."""

    name: str
    family: str
    make: Make
    rules: tuple[str, ...]


_ALL = (FARM, *(r.name for r in RULES))
DATA = (
    Data("ours: rows of several scales, zero, constant, NaN, Inf", "", own, _ALL),
    Data("plain normal x, varied weight", "normal", own, _ALL),
    Data("TileGym's: x in [-2.3, -1.8]", "normal", far_from_zero, (FARM, "TileGym")),
    Data("Liger's: normal x, weight of ones", "normal", unit_weight, (FARM, "Liger")),
)
