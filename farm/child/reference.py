"""Evaluates references that are PyTorch functions, on the CPU: `python -m farm.child.reference THREADS`.

An order is a line of JSON: where the contract is, its parameters and dtypes, and a folder with an array in a file for
each input and upstream gradient.  The answer says which arrays it has put there: each output and gradient in float64,
under `NAME.own` what the function gives at the cell's dtypes, and under
`NAME.others` further samples of its own error.

    {"root": "...", "op": "softmax", "number": 0, "folder": "...", "dtypes": {...}, "parameters": {...},
     "backward": true, "samples": 1}          ->    {"arrays": ["y", "y.own"]} or {"failed": "ValueError: ..."}

The process first says {"torch": "2.9.0"}.  Needs the standard library, NumPy and torch; it ends when its orders do.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from farm.contracts.discovery import own_torch
from farm.contracts.dtypes import DTYPES
from farm.contracts.torch_contract import Job, TorchContract

#: The package as whose subpackages folders of contracts are imported here, with the real torch.
PACKAGE = "farm_references"
_contracts: dict[tuple[str, str], TorchContract] = {}


def load(root: str, op: str) -> TorchContract:
    """The contract of `op` in the folder `root`, "" for a built-in one, imported with the torch of this process."""
    if (root, op) not in _contracts:
        if not root:
            name = f"farm.contracts.ops.{op}.contract"
        else:
            known = [r for r, _ in _contracts if r]
            number = dict.fromkeys([*known, root])
            part = f"r{list(number).index(root)}"
            _package(PACKAGE, [])
            _package(f"{PACKAGE}.{part}", [root])
            name = f"{PACKAGE}.{part}.{op}.contract"
        _contracts[root, op] = importlib.import_module(name).CONTRACT
    return _contracts[root, op]


def _package(name: str, path: list[str]) -> None:
    if name not in sys.modules:
        made = ModuleType(name)
        made.__path__ = path
        made.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = made


def evaluate(contract: TorchContract, job: Job) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs and gradients in float64 (integers as integers), and of those that are floats `NAME.own`: the function's
    own result at the cell's dtypes, float32 (float64 for float64); of float32 outputs, wherever that is further off,
    the result of inputs that are a rounding beside these.  With `job.samples` above 1 `NAME.others`, float64
    [samples - 1, ...]: the result plus the function's own error on inputs beside these.  With 0, neither."""
    out = _run(contract, job, exact=True)
    if not job.samples:
        return out
    floats = [name for name in out if DTYPES[job.dtypes[name]].is_float]
    found = _run(contract, job, exact=False)
    if any(job.dtypes[name] == "float32" for name in floats):
        rounded = _run(contract, replace(job, values=_rounded_beside(job)), exact=True)
        for name in (n for n in floats if job.dtypes[n] == "float32"):
            found[name] = _further_off(out[name], found[name], rounded[name])
    others = [_error_beside(contract, job, number) for number in range(job.samples - 1)]
    for name in floats:
        wide = np.float64 if job.dtypes[name] == "float64" else np.float32
        if others:
            out[f"{name}.others"] = np.stack([out[name] + error[name] for error in others])
        out[f"{name}.own"] = found[name].astype(wide)
    return out


#: What one rounding of its inputs may do to a row, of the row's RMS: more is a jump of the function (a tie that
#: breaks), and no implementation's error.
_LARGEST_RESPONSE = 2.0**-10


def _rounded_beside(job: Job) -> dict[str, np.ndarray[Any, Any]]:
    """Every float a unit of float32 larger or smaller; which, follows from its value and its place in its row.

    How far a result moves is what any float32 implementation may be off, however it adds up: where the function's own
    one is exact by luck (the mean of equal numbers, which another order of summation misses by a unit), its error says
    nothing of the others'.
    """
    values = {}
    for name, value in job.values.items():
        dtype = DTYPES[job.dtypes[name]] if name in job.dtypes else None
        if dtype and dtype.is_float:
            wide = np.asarray(value, np.float64)
            bits = wide.astype(np.float32).view(np.uint32)
            place = np.arange(np.prod(wide.shape[1:], dtype=int), dtype=np.uint32).reshape(wide.shape[1:])
            with np.errstate(over="ignore"):
                mixed = (bits ^ (place * np.uint32(0x9E3779B1))) * np.uint32(0x85EBCA6B)
            value = wide * (1.0 + np.where(mixed >> np.uint32(16) & np.uint32(1), 2.0**-23, -(2.0**-23)))
        values[name] = value
    return values


def _further_off(
    exact: np.ndarray[Any, Any], own: np.ndarray[Any, Any], beside: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """`own`, and wherever `beside` is further from `exact`, something as far from it that is larger in magnitude: such
    errors may be common to a row (those of its mean are).  But for what no rounding moves so far."""
    if not exact.size:
        return own
    rows = exact.reshape(len(exact) if exact.ndim else 1, -1)
    finite = np.where(np.isfinite(rows), rows, 0.0)
    most = _LARGEST_RESPONSE * np.sqrt(np.mean(finite**2, axis=1, keepdims=True))
    with np.errstate(invalid="ignore"):
        moved = np.abs(beside.reshape(rows.shape) - rows)
        taken = (moved <= most) & (moved > np.abs(own.reshape(rows.shape) - rows))
    return np.where(taken.reshape(exact.shape), exact + np.copysign(moved.reshape(exact.shape), exact), own)


_FACTORS = (0.625, 0.75, 0.875, 1.125, 1.25, 1.375)


def _error_beside(contract: TorchContract, job: Job, number: int) -> dict[str, np.ndarray[Any, Any]]:
    """The function's own error on inputs whose vectors along the last axis are a little larger or smaller.

    As good a sample as on these inputs, and no worse conditioned: a constant row stays as it is.  (With elements beside
    its own, or with more bits, its variance would be what rounding leaves of 0.)
    """
    drawn = np.random.default_rng(number)
    values = {}
    for name, value in sorted(job.values.items()):
        dtype = DTYPES[job.dtypes[name]] if name in job.dtypes else None  # of an upstream gradient in a forward, none
        if dtype and dtype.is_float:
            moved = torch.from_numpy(_scaled(np.asarray(value, np.float64), drawn))
            value = _stored(moved, job.dtypes[name], exact=False).astype(np.float64)
        values[name] = value
    there = replace(job, values=values)
    exact, own = (_run(contract, there, exact=exact) for exact in (True, False))
    return {name: own[name] - exact[name] for name in exact if DTYPES[job.dtypes[name]].is_float}


def _scaled(values: np.ndarray[Any, Any], drawn: np.random.Generator) -> np.ndarray[Any, Any]:
    """Each vector along the last axis times one of _FACTORS, but for those of one value."""
    if not values.size:
        return values
    lines = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    factor = drawn.choice(_FACTORS, (len(lines), 1))
    if lines.shape[1] > 1:
        factor[(lines == lines[:, :1]).all(axis=1)] = 1.0
    return (lines * factor).reshape(values.shape)


def _run(contract: TorchContract, job: Job, exact: bool) -> dict[str, np.ndarray[Any, Any]]:
    def given(name: str) -> torch.Tensor:
        values = torch.from_numpy(np.array(job.values[name]))  # a copy: the function may write to it
        return (
            values.to(torch.float64 if exact else _computed(job.dtypes[name])) if values.is_floating_point() else values
        )

    inputs = [given(name) for name in contract.given]
    wanted = [t for t, name in zip(inputs, contract.given) if job.backward and name in contract.gradients]
    for t in wanted:
        t.requires_grad_(True)
    arguments = dict(job.parameters)
    with torch.set_grad_enabled(job.backward):
        # an in-place function may not write to a leaf that requires a gradient
        made = contract.function(*(t.clone() if t.requires_grad else t for t in inputs), **arguments)
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    if len(outputs) != len(contract.made) or not all(isinstance(t, torch.Tensor) for t in outputs):
        raise ValueError(f"the function returns {len(outputs)} values, not {len(contract.made)} tensors")
    found = {name: _stored(t.detach(), job.dtypes[name], exact) for name, t in zip(contract.made, outputs)}
    if not job.backward:
        return found
    upstream = {name: t for name, t in zip(contract.made, outputs) if f"d{name}" in job.values}
    able = {name: t for name, t in upstream.items() if t.requires_grad}
    gradients = torch.autograd.grad(
        list(able.values()), wanted, [given(f"d{name}").to(t.dtype) for name, t in able.items()], allow_unused=True
    )
    for name, t, gradient in zip([n for n in contract.given if n in contract.gradients], wanted, gradients):
        value = torch.zeros_like(t) if gradient is None else gradient
        found[f"d{name}"] = _stored(value, job.dtypes[f"d{name}"], exact)
    return found


def _computed(dtype: str) -> torch.dtype:
    """In what a dtype is computed: 8-bit floats in float32."""
    found: torch.dtype = torch.float32 if DTYPES[dtype].bits < 16 else getattr(torch, dtype)
    return found


def _stored(value: torch.Tensor, dtype: str, exact: bool) -> np.ndarray[Any, Any]:
    """An output, rounded to its dtype unless it is exact."""
    if not DTYPES[dtype].is_float:
        return value.to(getattr(torch, dtype)).numpy()
    if exact:
        return value.to(torch.float64).numpy()
    wide = torch.float64 if dtype == "float64" else torch.float32
    return value.to(getattr(torch, dtype)).to(wide).numpy()


def _serve(order: Mapping[str, Any]) -> dict[str, Any]:
    folder = Path(order["folder"])
    contract = load(order["root"], order["op"])
    values = {f.stem: np.load(f) for f in sorted(folder.glob("*.npy"))}
    job = Job(order["op"], values, order["dtypes"], order["parameters"], order["backward"], order["samples"])
    found = evaluate(contract, job)
    for name, value in found.items():
        np.save(folder / f"{name}.out", value)
    return {"arrays": sorted(found)}


def hello() -> dict[str, str]:
    """What the process is.  The version is the package's, which whoever plans reads without importing torch: that of
    the module may have a suffix more (`2.11.0+cu130`)."""
    return {"torch": own_torch() or torch.__version__}


def main(argv: list[str]) -> None:
    """Serve orders until there are none."""
    torch.set_num_threads(int(argv[0]))
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a function prints is no answer
    sink.write(json.dumps(hello()) + "\n")
    for line in sys.stdin:
        try:
            answer = _serve(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        sys.stdout.flush()
        sink.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
