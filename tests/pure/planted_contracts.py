"""Small contracts written to a folder and found as ops, and a judge that is asked about kernels of theirs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm.contracts.ops as ops
from farm.accuracy import dtypes
from farm.cell import Cell
from farm.contracts import discovery
from farm.judge.judge import Judge

#: A contract of one blocked input x; each test's own lines replace or add methods.
BASE = """
import numpy as np
from farm.contracts import Contract, Dimension, Parameter, Tensor, Work


class Base(Contract):
    op = "{op}"
    dimensions = (Dimension("rows", 0, 2**30), Dimension("columns", 1, 2**30))
    typed = ("x",)
    operations = ("forward", "no-grad-forward")

    def shape(self, cell):
        return cell.dims["rows"], cell.dims["columns"]

    def x(self, cell, family, block):
        return family.normal("x", block, cell.dims["columns"], cell.dtypes["x"])

    def tensors(self, cell):
        return tuple(Tensor(n, cell.dtypes["x"], self.shape(cell), r) for n, r in (("x", "input"), ("y", "output")))

    def inputs(self, cell, family, block):
        return {{"x": self.x(cell, family, block)}}

    def reference(self, inputs, cell, block):
        return {{"y": inputs["x"].astype(np.float64)}}

    def work(self, cell):
        return Work(1, 1, {{"vector": 1}})

    def gates(self, cell):
        return {{"y": {{"max_ulp": 1.0}}}}

"""
Kernel = Callable[[Mapping[str, Any]], Any]  # the inputs by name -> y


@contextmanager
def planted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """`plant(op, body)` makes an op of BASE and a class's `body`; all of them are gone afterwards."""
    names: list[str] = []

    def forget() -> None:
        discovery.known_ops.cache_clear()
        discovery.contract.cache_clear()
        for name in [m for m in sys.modules for n in names if m.startswith(f"{ops.__name__}.{n}")]:
            del sys.modules[name]

    def plant(op: str, body: str) -> None:
        (folder / op).mkdir(parents=True)
        names.append(op)
        indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
        text = f"{BASE.format(op=op)}\nclass Op(Base):\n{indented}\n\n\nCONTRACT = Op()\n"
        (folder / op / "contract.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        forget()

    monkeypatch.setattr(discovery, "OPS", folder)
    monkeypatch.setattr(ops, "__path__", [str(folder), *ops.__path__])
    try:
        yield plant
    finally:
        forget()


def cell_of(op: str, operation: str = "forward", rows: int = 4, columns: int = 8, **params: Any) -> Cell:
    return Cell("cpu", op, "mine", "auto", operation, {"x": "float32"}, {"rows": rows, "columns": columns}, params)


class Asked:
    """A judge of a new run over the cache of `folder`."""

    def __init__(self, folder: Path, run: str = "run"):
        self.folder = folder
        self.judge = Judge(str(folder / run), 1, str(folder / "cache"))

    def inputs(self, cell: Cell) -> dict[str, Any]:
        """What a child is given."""
        return {
            t["name"]: np.fromfile(t["file"], dtypes.storage_dtype(t["dtype"])).reshape(t["shape"])
            for t in self.judge.prepare(cell.to_dict())["tensors"]
            if t.get("file")
        }

    def verdict(self, cell: Cell, kernel: Kernel) -> str:
        """The status of a float32 kernel."""
        path = self.folder / "y.bin"
        made = np.ascontiguousarray(kernel(self.inputs(cell)), dtype=np.float32)
        made.tofile(path)
        told = {"name": "y", "dtype": "float32", "shape": list(made.shape), "path": str(path)}
        return str(self.judge.judge({"cell": cell.to_dict(), "outputs": [told]})["status"])
