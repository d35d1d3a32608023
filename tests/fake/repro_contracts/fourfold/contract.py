"""z = 2 x + 1 of [batch, heads, queries, width], and x is doubled where it lies."""

import numpy as np

from farm.contracts import Contract, Dimension, Tensor, Work

from .factors import TWICE


class Fourfold(Contract):
    op = "fourfold"
    dimensions = tuple(Dimension(n, 1, 4096) for n in ("batch", "heads", "queries", "width"))
    typed = ("x",)
    operations = ("forward",)

    def tensors(self, cell):
        dims = tuple(cell.dims.values())
        dtype = cell.dtypes["x"]
        return Tensor("x", dtype, dims, "mutated"), Tensor("z", dtype, dims, "output")

    def inputs(self, cell, family, block):
        _, *rest = cell.dims.values()
        made = family.normal("x", block, int(np.prod(rest)), cell.dtypes["x"])
        return {"x": made.reshape(-1, *rest)}

    def reference(self, inputs, cell, block):
        x = inputs["x"].astype(np.float64)
        return {"x": TWICE * x, "z": TWICE * x + 1}

    def work(self, cell):
        return Work(1, 1, {"vector": 1})

    def gates(self, cell):
        return {name: {"max_ulp": 2.0} for name in ("x", "z")}


CONTRACT = Fourfold()
