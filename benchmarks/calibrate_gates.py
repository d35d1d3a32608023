"""Calibrate the gates of rms_norm by simulation: no correct kernel may be accused, every wrong one must fall.

    python benchmarks/calibrate_gates.py            about a minute on one core
    python benchmarks/calibrate_gates.py --full     more seeds, shapes and families

Kernels are simulated in NumPy with float32 arithmetic and the roundings of each casting.  Prints, per dtype, how near
correct kernels come to their gates (below 1) and how far the least visible wrong one is beyond (above 1); exit code 1
where either fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from farm.accuracy.dtypes import decode, encode, round_to
from farm.accuracy.evaluate import evaluate, fill_reference, make_inputs
from farm.accuracy.gates import resolve, verdict
from farm.cell import Cell
from kernels.contract import Array
from kernels.ops.rms_norm.contract import CONTRACT

F32 = np.float32
HIDDEN = (1, 7, 63, 64, 65, 127, 128, 1000, 1024, 2048, 4096, 8192, 16384)
ROWS = (1, 3, 8, 64, 512)
DTYPES = ("float32", "float16", "bfloat16")


class Kernel:
    """A simulated rms_norm: float32 arithmetic, with hooks for what may be right or wrong about it."""

    def __init__(self, casting: str = "gemma", **faults: Any) -> None:
        self.casting = casting
        self.fault: dict[str, Any] = faults

    def __call__(self, cell: Cell, inputs: dict[str, Array]) -> dict[str, Array]:
        x, dtype, params = inputs["x"], cell.dtypes["x"], cell.params
        self.round = (lambda a: round_to(a, dtype)) if self.casting != "gemma" else (lambda a: a)
        self.round_all = self.round if self.casting == "none" else (lambda a: a)
        factor = F32(1.0)
        if params["weight"] and not self.fault.get("no_weight"):
            factor = inputs["weight"] + F32(params["offset"] + self.fault.get("offset", 0.0))
        with np.errstate(all="ignore"):
            rstd = self.rstd(x, F32(0.0 if self.fault.get("no_eps") else params["eps"]), dtype)
            normed = self.round(x * rstd)
            if cell.operation == "forward":
                return {"y": self.spoil(encode(normed * factor * F32(self.fault.get("scale", 1.0)), dtype), dtype)}
            return self.backward(cell, inputs, x * rstd, rstd, factor)

    def rstd(self, x: Array, eps: Any, dtype: str) -> Array:
        columns = x.shape[1]
        squares = (x[:, :-1] if self.fault.get("drop_last_sum") and columns > 1 else x) ** 2
        if self.fault.get("sum") == "sequential":
            total = np.cumsum(squares, axis=1, dtype=F32)[:, -1:]
        elif self.fault.get("sum") == "narrow":
            total = narrow_sum(round_to(squares, dtype).T, dtype)[:, None]
        else:
            total = squares.sum(axis=1, keepdims=True, dtype=F32)
        rstd = F32(1) / np.sqrt(total / F32(columns * self.fault.get("n", 1.0)) + eps)
        return rstd * F32(1 + self.fault.get("rsqrt_ulp", 0) * 2.0**-23)

    def backward(
        self, cell: Cell, inputs: dict[str, Array], normed: Array, rstd: Array, factor: Any
    ) -> dict[str, Array]:
        dy, dtype = inputs["dy"], cell.dtypes["x"]
        m = self.round(dy * factor)
        products = self.round_all(m * self.round_all(normed))
        if self.fault.get("sum") == "sequential":
            slope = np.cumsum(products, axis=1, dtype=F32)[:, -1:] / F32(m.shape[1])
        else:
            slope = products.mean(axis=1, keepdims=True, dtype=F32)
        if self.fault.get("no_projection"):
            slope = slope * 0
        dx = rstd * (m - self.round_all(self.round_all(normed) * slope)) * F32(self.fault.get("scale", 1.0))
        found = {"dx": self.spoil(encode(dx, dtype), dtype)}
        if cell.params["weight"]:
            terms = self.round(dy * self.round(normed))
            terms = terms[:-1] if self.fault.get("drop_last_row") else terms
            if self.fault.get("narrow_dw"):
                dw = narrow_sum(terms, dtype)
            elif self.fault.get("sum") == "sequential":
                dw = np.cumsum(terms, axis=0, dtype=F32)[-1]
            else:
                dw = terms.sum(axis=0, dtype=F32)
            found["dw"] = encode(dw * F32(self.fault.get("dw_scale", 1.0)), cell.dtypes["weight"])
        return found

    def spoil(self, stored: Array, dtype: str) -> Array:
        fault = self.fault.get("unwritten")
        if fault == "column":
            stored[:, -1] = 0
        elif fault:
            stored[stored.shape[0] // 3, stored.shape[1] // 2] = encode(np.array([fault], dtype=F32), dtype)[0]
        return stored


def narrow_sum(terms: Array, dtype: str) -> Array:
    """Sum over axis 0, one term after the other, rounded to `dtype` each time."""
    total = np.zeros(terms.shape[1], dtype=F32)
    for term in terms:
        total = round_to(total + term, dtype)
    return total


#: name -> (kernel, castings under whose gates it must pass)
CORRECT: dict[str, tuple[Kernel, tuple[str, ...]]] = {
    "one rounding": (Kernel(), ("gemma", "llama", "none")),
    "one rounding, sequential sum": (Kernel(sum="sequential"), ("gemma", "llama", "none")),
    "one rounding, rsqrt 2 ULP off": (Kernel(rsqrt_ulp=2), ("gemma", "llama", "none")),
    "llama": (Kernel("llama"), ("llama", "none")),
    "none": (Kernel("none"), ("none", "llama")),
}

Domain = Callable[[Cell], bool]


def at_least(rows: int = 1, hidden: int = 64) -> Domain:
    return lambda cell: cell.dims["rows"] >= rows and cell.dims["hidden"] >= hidden


#: name -> (faults, operation, where it must be seen)
WRONG: dict[str, tuple[dict[str, Any], str, Domain]] = {
    "eps forgotten": ({"no_eps": True}, "forward", at_least(2, 1)),
    "scaled by 1.005": ({"scale": 1.005}, "forward", at_least()),
    "last column not summed": ({"drop_last_sum": True}, "forward", at_least()),
    "last column left zero": ({"unwritten": "column"}, "forward", at_least(1, 1)),
    "one element left NaN": ({"unwritten": float("nan")}, "forward", at_least(1, 1)),
    "one element left 123": ({"unwritten": 123.0}, "forward", at_least(1, 1)),
    "accumulated in the dtype": (
        {"sum": "narrow"},
        "forward",
        lambda c: c.dtypes["x"] != "float32" and 1024 <= c.dims["hidden"] <= 4096 and c.dims["rows"] <= 64,
    ),
    "weight ignored": ({"no_weight": True}, "forward", at_least(1, 7)),
    "offset off by one": ({"offset": 1.0}, "forward", at_least(1, 1)),
    "mean over 1.01 N": ({"n": 1.01}, "forward", at_least()),
    "dx: no projection": ({"no_projection": True}, "backward", at_least(8)),  # fewer rows: it may be nearly 0
    "dx: scaled by 1.005": ({"scale": 1.005}, "backward", at_least()),
    "dx: eps forgotten": ({"no_eps": True}, "backward", at_least(2, 1)),
    "dw: scaled by 1.005": ({"dw_scale": 1.005}, "backward", at_least()),
    "dw: last row missing": (
        {"drop_last_row": True},
        "backward",
        lambda c: c.dims["hidden"] >= 64 and c.params["eps"] < 1e-3,  # else a row of 1e-3 is next to nothing
    ),
    "dw: accumulated in the dtype": (
        {"narrow_dw": True},
        "backward",
        lambda c: c.dtypes["x"] != "float32" and c.dims["rows"] >= 512 and 64 <= c.dims["hidden"] <= 4096,
    ),
}


def make_cell(operation: str, x: str, w: str, rows: int, hidden: int, family: str, seed: int, **params: Any) -> Cell:
    defaults = {p.name: p.default for p in CONTRACT.parameters}
    return Cell(
        "cpu", "rms_norm", "simulated", "auto", operation, {"x": x, "weight": w}, {"rows": rows, "hidden": hidden},
        {**defaults, **params}, family=family, seed=seed,
    )  # fmt: skip


def cells(full: bool) -> Iterator[Cell]:
    """Every case to simulate; large ones once per dtype."""
    pairs = [(d, d) for d in DTYPES] + [("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")]
    variants: list[dict[str, Any]] = [{}, {"offset": 1.0}, {"weight": False}, {"eps": 1e-2}, {"eps": 1e-5}]
    for operation in ("forward", "backward"):
        for x, weight in pairs:
            for rows in ROWS:
                for hidden in HIDDEN:
                    if rows * hidden > (1 << 23 if full else 1 << 20):
                        continue
                    small = rows * hidden <= 1 << 16
                    seeds = (20 if full else 4) if small else (3 if full else 1)
                    for seed in range(seeds):
                        variant = variants[seed % len(variants)]
                        yield make_cell(operation, x, weight, rows, hidden, "mixed", seed, **variant)
                    if small or full:
                        for family in ("outlier", "normal", "alternating", "tiny", "large"):
                            yield make_cell(operation, x, weight, rows, hidden, family, rows)


def casting(cell: Cell, name: str) -> Cell:
    return Cell(**{**cell.__dict__, "params": {**cell.params, "casting": name}, "cell_key": "-"})


def label(cell: Cell) -> str:
    extra = {k: v for k, v in cell.params.items() if v != next(p.default for p in CONTRACT.parameters if p.name == k)}
    return f"{cell.operation} {cell.shape} w={cell.dtypes['weight']} {cell.family}/{cell.seed} {extra or ''}"


class Table:
    """Per (name, dtype): the extreme ratio and where it was."""

    def __init__(self, pick: Callable[[float, float], bool]) -> None:
        self.pick, self.rows = pick, {}  # type: ignore[var-annotated]

    def add(self, name: str, dtype: str, ratio: float, where: str) -> None:
        known = self.rows.get((name, dtype))
        if known is None or self.pick(ratio, known[0]):
            self.rows[name, dtype] = (ratio, where)

    def show(self, title: str) -> None:
        print(f"\n{title}")
        for (name, dtype), (ratio, where) in sorted(self.rows.items()):
            print(f"  {name:34} {dtype:9} {ratio:12.4g}   {where}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more seeds, shapes and families")
    parser.add_argument("--metrics", action="store_true", help="also the worst ratio of each gated metric")
    options = parser.parse_args()
    correct, wrong, by_metric = Table(lambda a, b: a > b), Table(lambda a, b: a < b), Table(lambda a, b: a > b)
    count = 0
    for cell in cells(options.full):
        count += 1
        stored = make_inputs(cell, CONTRACT, (0, cell.dims["rows"]))
        dtypes = {t.name: t.dtype for t in CONTRACT.tensors(cell)}
        values = {n: decode(a, dtypes[n]).astype(F32) for n, a in stored.items()}
        reference = fill_reference(cell, CONTRACT, stored)
        dtype = cell.dtypes["x"]
        for name, (kernel, castings) in CORRECT.items():
            judged = evaluate(cell, CONTRACT, kernel(cell, values), stored, reference=reference)
            for c in castings:
                gates = resolve(casting(cell, c), CONTRACT)
                found = verdict(judged.metrics, gates)
                correct.add(
                    f"{name} / {c}",
                    dtype,
                    found.worst_ratio,
                    f"{found.worst_output}.{found.worst_metric} {label(cell)}",
                )
                for output, limits in gates.items():
                    for metric, limit in limits.items():
                        if limit:
                            kind = "short" if cell.dims["hidden"] < 64 else "long"
                            value = judged.metrics[output][metric]
                            by_metric.add(
                                f"{output}.{metric} {c} {kind}",
                                f"{dtype[:4]}/{dtypes[output][:4]}" if output in dtypes else dtype,
                                value / limit,
                                f"{value:.4g} {name} {label(cell)}",
                            )
        if cell.family != "mixed":
            continue
        for name, (faults, operation, domain) in WRONG.items():
            needs_weight = "weight" in name or "offset" in name or name.startswith("dw")
            if operation != cell.operation or not domain(cell) or (needs_weight and not cell.params["weight"]):
                continue
            for base in ("gemma", "llama"):
                judged = evaluate(
                    casting(cell, "llama"), CONTRACT, Kernel(base, **faults)(cell, values), stored, reference=reference
                )
                wrong.add(
                    name, dtype, judged.worst_ratio or 0.0, f"{judged.worst_output}.{judged.worst_metric} {label(cell)}"
                )
    if options.metrics:
        by_metric.show("each gate: the nearest that a correct kernel comes to it")
    correct.show("correct kernels: worst ratio to a gate (must be below 1)")
    wrong.show("wrong kernels: least ratio to a gate, judged by llama's gates (must be above 1)")
    bad = [k for k, (r, _) in correct.rows.items() if r > 1] + [k for k, (r, _) in wrong.rows.items() if r <= 1]
    print(f"\n{count} cells; {'every kernel judged rightly' if not bad else f'judged wrongly: {bad}'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
