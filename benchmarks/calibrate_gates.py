"""Calibrate the gates of rms_norm and fused_add_rms_norm by simulation: no correct kernel may be accused, every wrong
one must fall.

    python benchmarks/calibrate_gates.py            some three minutes on one core
    python benchmarks/calibrate_gates.py --full     more seeds, shapes and families
    python benchmarks/calibrate_gates.py --op rms_norm

Kernels are simulated in NumPy with float32 arithmetic and the roundings of each casting.  Prints, per op and dtype, how
near correct kernels come to their gates (below 1) and how far the least visible wrong one is beyond (above 1); exit
code 1 where either fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from farm.accuracy.dtypes import decode, encode, round_to
from farm.accuracy.evaluate import evaluate, fill_reference, make_inputs
from farm.accuracy.tolerances import resolve, verdict
from farm.cell import Cell
from farm.contracts.base import Array
from farm.contracts.discovery import contract

F32 = np.float32
OPS = ("rms_norm", "fused_add_rms_norm")
HIDDEN = (1, 7, 63, 64, 65, 127, 128, 1000, 1024, 2048, 4096, 8192, 16384)
ROWS = (1, 3, 8, 64, 512)
DTYPES = ("float32", "float16", "bfloat16")


class Kernel:
    """A simulated kernel of either op: float32 arithmetic, with hooks for what may be right or wrong about it.

    Right ones: `casting`; `sum`, the order of the row's sum; `rsqrt_ulp`; `unrounded`, y of the sum before it is
    rounded; `eager`, the norm's gradient rounded before dsum is added.  The others are faults.
    """

    def __init__(self, casting: str = "gemma", **faults: Any) -> None:
        self.casting = casting
        self.fault: dict[str, Any] = faults

    def __call__(self, cell: Cell, inputs: dict[str, Array]) -> dict[str, Array]:
        dtype, params = cell.dtypes["x"], cell.params
        self.round = (lambda a: round_to(a, dtype)) if self.casting != "gemma" else (lambda a: a)
        self.round_all = self.round if self.casting == "none" else (lambda a: a)
        factor = F32(1.0)
        if params["weight"] and not self.fault.get("no_weight"):
            factor = inputs["weight"] + F32(params["offset"] + self.fault.get("offset", 0.0))
        x, stored, found = self.add(inputs, dtype)
        with np.errstate(all="ignore"):
            rstd = self.rstd(x, F32(0.0 if self.fault.get("no_eps") else params["eps"]), dtype)
            if cell.operation == "forward":
                y = self.round(x * rstd) * factor * F32(self.fault.get("scale", 1.0))
                return {"y": self.spoil("unwritten", encode(y, dtype), dtype), **found}
            return self.backward(cell, inputs, stored * rstd, rstd, factor)

    def add(self, inputs: dict[str, Array], dtype: str) -> tuple[Array, Array, dict[str, Array]]:
        """What y is of, what the gradients are of, and the output sum where the op has one."""
        x = inputs["x"]
        if "residual" not in inputs:
            return x, x, {}
        total = x + inputs["residual"]
        stored = round_to(total, dtype)
        given = x if self.fault.get("sum_of_x") else total * F32(self.fault.get("sum_scale", 1.0))
        found = {"sum": self.spoil("sum_unwritten", encode(given, dtype), dtype)}
        if self.fault.get("norm_of_x"):
            return x, x, found
        return total if self.fault.get("unrounded") else stored, stored, found

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
        found = {"dx": self.spoil("unwritten", encode(self.through_sum(dx, inputs, dtype, "dx"), dtype), dtype)}
        if "dsum" in inputs:
            found["dresidual"] = encode(self.through_sum(dx, inputs, dtype, "dresidual"), dtype)
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

    def through_sum(self, dx: Array, inputs: dict[str, Array], dtype: str, name: str) -> Array:
        """The norm's gradient with that of the sum added."""
        if "dsum" not in inputs or name in self.fault.get("no_dsum", ()):
            return dx
        return (round_to(dx, dtype) if self.fault.get("eager") else dx) + inputs["dsum"]

    def spoil(self, which: str, stored: Array, dtype: str) -> Array:
        fault = self.fault.get(which)
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


class Right(NamedTuple):
    """A correct kernel, the castings under whose gates it must pass, and the sum that it is judged by."""

    kernel: Kernel
    castings: tuple[str, ...]
    sum: str = "rounded"


CORRECT: dict[str, Right] = {
    "one rounding": Right(Kernel(), ("gemma", "llama", "none")),
    "one rounding, sequential sum": Right(Kernel(sum="sequential"), ("gemma", "llama", "none")),
    "one rounding, rsqrt 2 ULP off": Right(Kernel(rsqrt_ulp=2), ("gemma", "llama", "none")),
    "llama": Right(Kernel("llama"), ("llama", "none")),
    "none": Right(Kernel("none"), ("none", "llama")),
}
#: Of the op with a residual alone.
CORRECT_WITH_RESIDUAL: dict[str, Right] = {
    "composed: dx rounded, then dsum": Right(Kernel(eager=True), ("gemma", "llama", "none")),
    "composed: llama": Right(Kernel("llama", eager=True), ("llama", "none")),
    "unrounded sum, one rounding": Right(Kernel(unrounded=True), ("gemma", "llama", "none"), "unrounded"),
    "unrounded sum, llama": Right(Kernel("llama", unrounded=True), ("llama", "none"), "unrounded"),
}

Domain = Callable[[Cell], bool]


def at_least(rows: int = 1, hidden: int = 64) -> Domain:
    return lambda cell: cell.dims["rows"] >= rows and cell.dims["hidden"] >= hidden


class Wrong(NamedTuple):
    """Faults, the operation and the cells in which they must be seen; by whose gates, kernels and sum."""

    faults: dict[str, Any]
    operation: str
    where: Domain
    gates: str = "llama"
    kernels: tuple[str, ...] = ("gemma", "llama")
    sum: str = "rounded"


def narrow(cell: Cell) -> bool:
    return cell.dtypes["x"] != "float32"


WRONG: dict[str, Wrong] = {
    "eps forgotten": Wrong({"no_eps": True}, "forward", at_least(2, 1)),
    "scaled by 1.005": Wrong({"scale": 1.005}, "forward", at_least()),
    "last column not summed": Wrong({"drop_last_sum": True}, "forward", at_least()),
    "last column left zero": Wrong({"unwritten": "column"}, "forward", at_least(1, 1)),
    "one element left NaN": Wrong({"unwritten": float("nan")}, "forward", at_least(1, 1)),
    "one element left 123": Wrong({"unwritten": 123.0}, "forward", at_least(1, 1)),
    "accumulated in the dtype": Wrong(
        {"sum": "narrow"}, "forward", lambda c: narrow(c) and 1024 <= c.dims["hidden"] <= 4096 and c.dims["rows"] <= 64
    ),
    "weight ignored": Wrong({"no_weight": True}, "forward", at_least(1, 7)),
    "offset off by one": Wrong({"offset": 1.0}, "forward", at_least(1, 1)),
    "mean over 1.01 N": Wrong({"n": 1.01}, "forward", at_least()),
    "dx: no projection": Wrong({"no_projection": True}, "backward", at_least(8)),  # fewer rows: it may be nearly 0
    "dx: scaled by 1.005": Wrong({"scale": 1.005}, "backward", at_least()),
    "dx: eps forgotten": Wrong({"no_eps": True}, "backward", at_least(2, 1)),
    "dw: scaled by 1.005": Wrong({"dw_scale": 1.005}, "backward", at_least()),
    "dw: last row missing": Wrong(
        {"drop_last_row": True},
        "backward",
        lambda c: c.dims["hidden"] >= 64 and c.params["eps"] < 1e-3,  # else a row of 1e-3 is next to nothing
    ),
    "dw: accumulated in the dtype": Wrong(
        {"narrow_dw": True},
        "backward",
        lambda c: narrow(c) and c.dims["rows"] >= 512 and 64 <= c.dims["hidden"] <= 4096,
    ),
}
#: Of the op with a residual alone.
WRONG_WITH_RESIDUAL: dict[str, Wrong] = {
    "y: residual forgotten": Wrong({"norm_of_x": True}, "forward", at_least(1, 7)),
    "sum: residual forgotten": Wrong({"sum_of_x": True}, "forward", at_least(1, 1)),
    "sum: scaled by 1.005": Wrong({"sum_scale": 1.005}, "forward", at_least()),
    "sum: last column left zero": Wrong({"sum_unwritten": "column"}, "forward", at_least(1, 1)),
    "sum: one element left NaN": Wrong({"sum_unwritten": float("nan")}, "forward", at_least(1, 1)),
    "dx: gradient of x alone": Wrong({"norm_of_x": True}, "backward", at_least(1, 7)),
    "dx: dsum forgotten": Wrong({"no_dsum": ("dx", "dresidual")}, "backward", at_least(1, 7)),
    "dresidual: dsum forgotten": Wrong({"no_dsum": ("dresidual",)}, "backward", at_least(1, 7)),
    # The two sums are two definitions: with one rounding after it, neither passes for the other.
    "y of the unrounded sum": Wrong(
        {"unrounded": True}, "forward", lambda c: narrow(c) and at_least(8, 1000)(c), "gemma", ("gemma",)
    ),
    "y of the rounded sum, if declared not to": Wrong(
        {}, "forward", lambda c: narrow(c) and at_least(8, 1000)(c), "gemma", ("gemma",), "unrounded"
    ),
}


def make_cell(
    op: str, operation: str, x: str, w: str, rows: int, hidden: int, family: str, seed: int, **params: Any
) -> Cell:
    defaults = {p.name: p.default for p in contract(op).parameters}
    return Cell(
        "cpu",
        op,
        "simulated",
        "auto",
        operation,
        {"x": x, "weight": w},
        {"rows": rows, "hidden": hidden},
        {**defaults, **params},
        family=family,
        seed=seed,
    )


def cells(op: str, full: bool) -> Iterator[Cell]:
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
                        yield make_cell(op, operation, x, weight, rows, hidden, "mixed", seed, **variant)
                    if small or full:
                        for family in ("outlier", "normal", "alternating", "tiny", "large"):
                            yield make_cell(op, operation, x, weight, rows, hidden, family, rows)


def given(cell: Cell, **params: Any) -> Cell:
    """`cell` with other parameters, those that its op has."""
    known = {name: value for name, value in params.items() if name in cell.params}
    return replace(cell, params={**cell.params, **known}, cell_key="-")


def label(cell: Cell) -> str:
    default = {p.name: p.default for p in contract(cell.op).parameters}
    extra = {k: v for k, v in cell.params.items() if v != default[k]}
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
            print(f"  {name:48} {dtype:9} {ratio:12.4g}   {where}")


class Calibration:
    """One op's correct and wrong kernels over all its cells."""

    def __init__(self, op: str) -> None:
        self.op, self.contract, self.count = op, contract(op), 0
        summed = len(self.contract.summands) > 1  # type: ignore[attr-defined]
        self.right = {**CORRECT, **(CORRECT_WITH_RESIDUAL if summed else {})}
        self.wrong = {**WRONG, **(WRONG_WITH_RESIDUAL if summed else {})}
        self.correct, self.by_metric = Table(lambda a, b: a > b), Table(lambda a, b: a > b)
        self.least = Table(lambda a, b: a < b)

    def take(self, cell: Cell) -> None:
        self.count += 1
        stored = make_inputs(cell, self.contract, (0, cell.dims["rows"]))
        dtypes = {t.name: t.dtype for t in self.contract.tensors(cell)}
        values = {n: decode(a, dtypes[n]).astype(F32) for n, a in stored.items()}
        references = {s: fill_reference(given(cell, sum=s), self.contract, stored) for s in self.sums(cell)}
        self.judge_right(cell, values, stored, references, dtypes)
        if cell.family == "mixed":
            self.judge_wrong(cell, values, stored, references)

    def sums(self, cell: Cell) -> tuple[str, ...]:
        return ("rounded", "unrounded") if "sum" in cell.params else ("rounded",)

    def judge_right(self, cell: Cell, values: Any, stored: Any, references: Any, dtypes: Any) -> None:
        dtype = cell.dtypes["x"]
        for name, right in self.right.items():
            outputs = right.kernel(cell, values)
            judged = evaluate(
                given(cell, sum=right.sum), self.contract, outputs, stored, reference=references[right.sum]
            )
            for casting in right.castings:
                gates = resolve(given(cell, casting=casting), self.contract)
                found = verdict(judged.metrics, gates)
                where = f"{found.worst_output}.{found.worst_metric} {label(cell)}"
                self.correct.add(f"{name} / {casting}", dtype, found.worst_ratio, where)
                kind = "short" if cell.dims["hidden"] < 64 else "long"
                for output, metric, limit in ((o, m, v) for o, of in gates.items() for m, v in of.items() if v):
                    value = judged.metrics[output][metric]
                    pair = f"{dtype[:4]}/{dtypes[output][:4]}" if output in dtypes else dtype
                    of = f"{output}.{metric} {casting} {kind}"
                    self.by_metric.add(of, pair, value / limit, f"{value:.4g} {name} {label(cell)}")

    def judge_wrong(self, cell: Cell, values: Any, stored: Any, references: Any) -> None:
        for name, wrong in self.wrong.items():
            needs_weight = "weight" in name or "offset" in name or name.startswith("dw")
            if wrong.operation != cell.operation or not wrong.where(cell):
                continue
            if needs_weight and not cell.params["weight"]:
                continue
            asked = given(cell, casting=wrong.gates, sum=wrong.sum)
            for base in wrong.kernels:
                outputs = Kernel(base, **wrong.faults)(cell, values)
                judged = evaluate(asked, self.contract, outputs, stored, reference=references[wrong.sum])
                where = f"{judged.worst_output}.{judged.worst_metric} {label(cell)}"
                self.least.add(name, cell.dtypes["x"], judged.worst_ratio or 0.0, where)

    def show(self, metrics: bool) -> list[Any]:
        """Print the tables; gives what was judged wrongly."""
        if metrics:
            self.by_metric.show(f"{self.op}, each gate: the nearest that a correct kernel comes to it")
        self.correct.show(f"{self.op}, correct kernels: worst ratio to a gate (must be below 1)")
        self.least.show(f"{self.op}, wrong kernels: least ratio to a gate, llama's if not said (must be above 1)")
        bad = [k for k, (r, _) in self.correct.rows.items() if r > 1]
        bad += [k for k, (r, _) in self.least.rows.items() if r <= 1]
        print(f"\n{self.op}, {self.count} cells; {f'judged wrongly: {bad}' if bad else 'every kernel judged rightly'}")
        return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more seeds, shapes and families")
    parser.add_argument("--metrics", action="store_true", help="also the worst ratio of each gated metric")
    parser.add_argument("--op", choices=OPS, action="append", help="only this one (may be given twice)")
    options = parser.parse_args()
    bad = []
    for op in options.op or OPS:
        calibration = Calibration(op)
        for cell in cells(op, options.full):
            calibration.take(cell)
        bad += calibration.show(options.metrics)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
