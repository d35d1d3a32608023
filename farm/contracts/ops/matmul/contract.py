"""The op matmul: c = a @ b, accumulated in at least float32, rounded once to the operands' dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from farm.contracts import gates as g
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Tensor, Work, nbytes
from farm.contracts.layouts import STRIDES

#: Elements of b that are in float64 at a time.
_CHUNK = 1 << 24


class Matmul(Contract):
    """Forward matmul; the row dimension is m, and b is whole.  float32 means float32: TF32 does not pass."""

    op = "matmul"
    version = 1
    dimensions = (Dimension("m", 0, 2**30), Dimension("n", 1, 2**30), Dimension("k", 1, 2**30))
    typed = ("a", "b")
    families = ("normal", "mixed")
    layouts = {"a": STRIDES, "b": STRIDES}
    determinism = "tolerance"
    check_sizes = {"n": 96, "k": 64}

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """a [m, k], b [k, n], c [m, n], all of one dtype."""
        m, n, k = (cell.dims[d] for d in ("m", "n", "k"))
        dtype = cell.dtypes["a"]
        return (
            Tensor("a", dtype, (m, k), "input"),
            Tensor("b", dtype, (k, n), "input", blocked=False),
            Tensor("c", dtype, (m, n), "output"),
        )

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """Both operands plain, in every family."""
        n, k, dtype = cell.dims["n"], cell.dims["k"], cell.dtypes["a"]
        return {"a": family.normal("a", block, k, dtype), "b": family.normal("b", (0, k), n, dtype)}

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """a @ b in float64."""
        a, b = inputs["a"].astype(np.float64), inputs["b"]
        step = max(1, _CHUNK // max(b.shape[0], 1))  # b is never whole in float64
        parts = [a @ b[:, at : at + step].astype(np.float64) for at in range(0, b.shape[1], step)]
        return {"c": parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)}

    def scales(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """The row's mean over columns of the sum of a^2 b^2."""
        b = inputs["b"]
        step = max(1, _CHUNK // max(b.shape[1], 1))
        parts = (b[at : at + step].astype(np.float64) for at in range(0, b.shape[0], step))
        squares = np.concatenate([np.einsum("ij,ij->i", part, part) for part in parts])
        return {"c": inputs["a"].astype(np.float64) ** 2 @ (squares / b.shape[1])[:, None]}

    def work(self, cell: CellLike) -> Work:
        """Each operand once; a multiplication and an addition per term."""
        m, n, k = (cell.dims[d] for d in ("m", "n", "k"))
        item = nbytes(cell.dtypes["a"])
        return Work((m * k + k * n) * item, m * n * item, {"tensor": 2 * m * n * k})

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """Relative to the terms' size: float32 sums of k terms err by a random walk, 2^-24 sqrt(k) at most; 16-bit
        outputs are rounded once more where a vendor's GEMM splits k and stores partial sums."""
        m, n, k = (cell.dims[d] for d in ("m", "n", "k"))
        if cell.dtypes["a"] == "float32":
            walk = 2.0**-24 * (2 + math.sqrt(k))
            return {"c": g.limits(g.Limits(walk, 2 * walk, 2 * walk, 8 + 4 * math.sqrt(k)), n, m * n)}
        return {"c": g.limits(g.DOUBLE[cell.dtypes["a"]], n, m * n)}

    def supports(self, cell: CellLike, target: str | None = None) -> str | None:
        """Operands of one dtype only."""
        a, b = cell.dtypes["a"], cell.dtypes["b"]
        return None if a == b else f"matmul requires operands of one dtype, not {a} and {b}"


CONTRACT = Matmul()
