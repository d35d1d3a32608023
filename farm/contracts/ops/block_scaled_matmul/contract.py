"""The op block_scaled_matmul: c = (a scaled) @ (b scaled)^T of 8-bit floats, in bfloat16.

A scale belongs to 1 x 128 elements of a, and to 128 x 128 elements of b, which lies as the weight of a linear layer
does: [n, k].  Products are summed in at least float32 and c is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from farm.contracts import gates as g
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Tensor, Work
from farm.contracts.layouts import STRIDES

GROUP = 128
#: Elements of b that are scaled at a time.
_CHUNK = 1 << 24
#: The inputs' spread, in the middle of what 8 bits hold; scales are from 2^-5 to 2^-4, as whole multiples of 2^-12.
_SPREAD, _STEPS, _STEP = 16.0, (128, 256), 2.0**-12


class BlockScaledMatmul(Contract):
    """Forward matmul; the row dimension is m, and b is whole."""

    op = "block_scaled_matmul"
    version = 1
    dimensions = (Dimension("m", 0, 2**30), Dimension("n", 1, 2**30), Dimension("k", GROUP, 2**30))
    typed = ("a",)
    dtypes = ("float8_e4m3fn", "float8_e4m3fnuz")
    families = ("normal", "mixed")
    layouts = dict.fromkeys(("a", "a_scale", "b", "b_scale"), STRIDES)
    determinism = "tolerance"
    check_sizes = {"n": 200, "k": 256}

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """a [m, k], a_scale float32 [m, k / 128], b [n, k] like a, b_scale float32 [ceil(n / 128), k / 128];
        c bfloat16 [m, n]."""
        m, n, k = (cell.dims[d] for d in ("m", "n", "k"))
        dtype, groups = cell.dtypes["a"], k // GROUP
        return (
            Tensor("a", dtype, (m, k), "input"),
            Tensor("a_scale", "float32", (m, groups), "input"),
            Tensor("b", dtype, (n, k), "input", blocked=False),
            Tensor("b_scale", "float32", (-(-n // GROUP), groups), "input", blocked=False),
            Tensor("c", "bfloat16", (m, n), "output"),
        )

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """Operands plain in every family; all scales positive."""
        n, k, dtype = cell.dims["n"], cell.dims["k"], cell.dtypes["a"]
        groups = k // GROUP

        def scale(name: str, rows: tuple[int, int]) -> Array:
            return (family.integers(name, rows, groups, *_STEPS) * _STEP).astype(np.float32)

        return {
            "a": family.normal("a", block, k, dtype, scale=_SPREAD),
            "a_scale": scale("a_scale", block),
            "b": family.normal("b", (0, n), k, dtype, scale=_SPREAD),
            "b_scale": scale("b_scale", (0, -(-n // GROUP))),
        }

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """The product of the scaled operands in float64."""
        a = _scaled_rows(inputs)
        parts = [a @ b.T for b in _scaled_columns(inputs)]
        return {"c": parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)}

    def scales(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """The row's mean over columns of the sum of a^2 b^2, both scaled."""
        squares = sum(np.einsum("ij,ij->j", b, b) for b in _scaled_columns(inputs)) / len(inputs["b"])
        return {"c": _scaled_rows(inputs) ** 2 @ np.reshape(squares, (-1, 1))}

    def work(self, cell: CellLike) -> Work:
        """Each operand once; a multiplication and an addition per term."""
        m, n, k = (cell.dims[d] for d in ("m", "n", "k"))
        scales = m * (k // GROUP) + -(-n // GROUP) * (k // GROUP)
        return Work((m + n) * k + 4 * scales, 2 * m * n, {"tensor": 2 * m * n * k})

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """As those of matmul in bfloat16: sums in float32, or in a tensor core's fewer bits promoted to float32 every
        128 terms, err far less than c's rounding."""
        return {"c": g.limits(g.DOUBLE["bfloat16"], cell.dims["n"], cell.dims["m"] * cell.dims["n"])}

    def supports(self, cell: CellLike, target: str | None = None) -> str | None:
        """Whole groups of k only."""
        k = cell.dims["k"]
        return None if k % GROUP == 0 else f"k must be a multiple of {GROUP}, but is {k}"


def _scaled_rows(inputs: Mapping[str, Array]) -> Array:
    """a times its scales, float64 [rows, k]."""
    return inputs["a"].astype(np.float64) * np.repeat(inputs["a_scale"], GROUP, axis=1)


def _scaled_columns(inputs: Mapping[str, Array]) -> Iterator[Array]:
    """b times its scales, float64, some of its n rows at a time: never all of it."""
    b, scale = inputs["b"], inputs["b_scale"]
    step = GROUP * max(1, _CHUNK // (GROUP * b.shape[1]))
    for at in range(0, len(b), step):
        part = b[at : at + step]
        scales = np.repeat(scale[at // GROUP : -(-(at + len(part)) // GROUP)], GROUP, axis=0)[: len(part)]
        yield part.astype(np.float64) * np.repeat(scales, GROUP, axis=1)


CONTRACT = BlockScaledMatmul()
