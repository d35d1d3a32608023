"""`judge`: one function against the contract of an op, inside the calling process.

The inputs, the poisoned and repeated calls, the reference and the tolerances are those of a run.  The function runs in
the process that judges it, so code that wants to could reach its judge: what `judge` says is a test's, never a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from farm import backends
from farm.accuracy import contract_check, dtypes, evaluate, plans
from farm.cell import Cell
from farm.child import interpreter, placing, provider_call, tensor_files
from farm.child.checked_calls import CheckedCalls
from farm.child.findings import disqualifying
from farm.contracts import discovery
from farm.contracts.base import Contract
from farm.contracts.call import call_for
from farm.errors import BackendError, MatrixError, Unsupported, UsageError, WrongAnswer
from farm.guard import locks
from farm.matrix import plan as planned
from farm.matrix.load import load_text

WHERE = "farm.testing.judge"
PROVIDER = "tested"
MOST_SHOWN = 10


def judge(
    op: str,
    function: Callable[..., Any],
    *,
    shape: Any = None,
    dtype: Any = None,
    operation: Any = "forward",
    device: str | torch.device | None = None,
    tolerances: Sequence[Mapping[str, Any]] = (),
    **axes: Any,
) -> None:
    """Judge `function` by the contract of `op`; AssertionError names the first cells that are wrong, and where.

    `function` is called as a provider is: the op's inputs, then its positional parameters, then keywords for what
    differs from the op's defaults.  It gets tensors of the cell's dtypes on `device` ("cpu", "cuda", "cuda:1", "npu";
    default: the current accelerator, else the CPU), and returns the op's outputs.

    `shape`: sizes in the contract's order, `(16, 4096)`, or by name, `{"rows": 16, "hidden": 4096}` (default: a small
    one).  `dtype`: "float16", or by tensor, `{"x": "bfloat16", "weight": "float32"}` (default: the op's first).
    `operation`: forward, no-grad-forward, backward or full.  `axes`: `family`, `seed`, `layout`, and the parameters of
    the op by name (`eps=1e-5`).  A list stands for several values, and every combination is judged.  `tolerances`: as
    in a matrix.

    On a CPU, Triton kernels need TRITON_INTERPRET=1 in the environment before triton is imported.  On an accelerator
    the device's lock is held meanwhile: a run on the same device waits for this, and this for a run.  What `function`
    raises is raised.  UsageError, MatrixError or BackendError, in one sentence, for what cannot be asked; LockRefused
    where the device stays in use.
    """
    where, backend, physical = _device(device)
    if backend == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        with suppress(ImportError):  # no Triton: there is nothing to repair
            interpreter.install()
    contract = _contract(op)
    cells = _cells(contract, backend, {"shape": shape, "dtype": dtype, "operation": operation, **axes}, tolerances)
    with _held(physical):
        wrong = [f"{c.cell_id}: {said}" for c in cells if (said := _wrong(c, contract, function, where, tolerances))]
    if wrong:
        more = f"\nand {len(wrong) - MOST_SHOWN} more cells" if len(wrong) > MOST_SHOWN else ""
        raise AssertionError("\n".join(wrong[:MOST_SHOWN]) + more)


def _contract(op: str) -> Contract:
    """The contract of an op, also of one that an installed package offers."""
    discovery.add_installed()
    if op not in discovery.known_ops():
        known = ", ".join(discovery.known_ops())
        raise UsageError(f'{WHERE}: there is no op "{op}" (available ops: {known})', id="testing-unknown-op")
    return discovery.contract(op)


def _cells(
    contract: Contract, backend: str, asked: Mapping[str, Any], tolerances: Sequence[Mapping[str, Any]]
) -> tuple[Cell, ...]:
    """The cells that are asked for, read as a matrix is."""
    axes = {name: value for name, value in asked.items() if value is not None}
    axes["shape"] = [_dims(contract, entry) for entry in _entries(asked["shape"])]
    document: dict[str, Any] = {"name": "test", "op": contract.op, "axes": axes, "timing": {"method": "none"}}
    if backend == "cpu":
        del document["timing"]  # which is never timed
    if tolerances:
        document["tolerances"] = list(tolerances)
    try:
        text = json.dumps(document, default=_plain)
    except TypeError as error:
        raise UsageError(f"{WHERE}: {error}; give numbers, names, and lists of them", id="testing-not-plain") from None
    try:
        found = load_text(text, WHERE, extra_providers={PROVIDER: "a:function"})
    except MatrixError as error:  # which speaks of a file
        raise MatrixError(str(error).replace(f"{WHERE}:1: axes.", f"{WHERE}: "), id=error.id) from None
    return planned(found, [backend]).cells


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r:.80} is not a value of a matrix")


def _entries(shape: Any) -> list[Any]:
    """The shapes of an argument that may be one of them."""
    if isinstance(shape, list) and not all(isinstance(size, int) for size in shape):
        return shape
    return [shape]


def _dims(contract: Contract, shape: Any) -> Any:
    names = [d.name for d in contract.dimensions]
    if shape is None:
        return contract_check.sizes(contract)
    if not isinstance(shape, (tuple, list)):
        return shape
    if len(shape) != len(names):
        raise UsageError(
            f"{WHERE}: shape has {len(shape)} sizes, but {contract.op} has the dimensions {', '.join(names)}; give one "
            "size for each",
            id="testing-shape",
        )
    return dict(zip(names, shape))


def _device(asked: str | torch.device | None) -> tuple[torch.device, str, str]:
    """(the device, its backend, the name of its lock, "" for none)."""
    kinds = {"cpu": "cpu", "cuda": "rocm" if torch.version.hip else "cuda", "npu": "ascend"}
    try:
        device = torch.device(asked) if asked is not None else _current()
        if device.type not in kinds:
            raise RuntimeError(f"the farm has no backend for {device.type}")
        if device.type != "cpu":
            api = torch.get_device_module(device.type)
            device = torch.device(device.type, api.current_device() if device.index is None else device.index)
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise BackendError(
            f"{WHERE}: device {asked} cannot be used ({why}); name another", id="testing-device"
        ) from None
    backend = kinds[device.type]
    module = backends.get(backend)
    return device, backend, module.physical_id(_masked(device.index or 0), {})


def _current() -> torch.device:
    """The accelerator that torch uses now, else the CPU."""
    if not hasattr(torch, "accelerator"):  # before torch 2.6
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _masked(index: int) -> str:
    """The device of that index as the vendor's mask names it."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        names = [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]
        if index < len(names):
            return names[index]
    return str(index)


@contextmanager
def _held(physical: str) -> Iterator[None]:
    """The device is this process's alone meanwhile.  LockRefused names who has it."""
    lock = locks.acquire(physical, {"run": "a test"}, locks.wait_seconds()) if physical else None
    try:
        yield
    finally:
        if lock:
            lock.release()


def _wrong(
    cell: Cell,
    contract: Contract,
    function: Callable[..., Any],
    device: torch.device,
    tolerances: Sequence[Mapping[str, Any]],
) -> str:
    """What is wrong with the function in this cell, in one sentence; "" for nothing."""
    if reason := evaluate.unsupported(cell, contract):
        return f"the op does not support this: {reason}"
    stored = evaluate.fill_inputs(cell, contract)
    described = plans.described(cell, contract)
    given = {p["name"]: p["dtype"] for p in described if p["name"] in stored}
    for plan in described:  # by which a child knows that there are values
        if plan["name"] in given:
            plan["file"] = plan["name"]

    def load(tensor: Mapping[str, Any]) -> torch.Tensor:
        return placing.placed(values(tensor), dict(tensor))

    def values(tensor: Mapping[str, Any]) -> torch.Tensor:
        name = tensor["name"]
        return _tensor(stored[name], given[name], tensor["shape"], device)

    def synchronize() -> None:
        if device.type != "cpu":
            torch.get_device_module(device.type).synchronize(device)

    try:
        bound = provider_call.bind(function, call_for(cell, contract, {"name": PROVIDER}))
        if device.type != "cpu":  # it may compile, and the checked call's findings are of a call that does not
            provider_call.problem(described, cell.operation, load).run(bound)
        problem = provider_call.problem(described, cell.operation, load)
        calls = CheckedCalls(device, described, problem, values, synchronize)
        outputs = calls.first(bound)
        others = calls.others(bound, stranger=True)
    except (WrongAnswer, Unsupported) as error:
        return str(error)
    if bad := disqualifying(calls.findings):
        return f"the function {bad[0]}"
    expected = provider_call.judged(described)
    for made, when in ((outputs, ""), (others, "called again at the same addresses with other values: ")):
        if made is not None:
            said = _inaccurate(cell, contract, dict(zip([p["name"] for p in expected], made)), stored, tolerances)
            if said:
                return when + said
    return ""


def _inaccurate(
    cell: Cell,
    contract: Contract,
    made: Mapping[str, torch.Tensor],
    inputs: Mapping[str, Any],
    tolerances: Sequence[Mapping[str, Any]],
) -> str:
    outputs = {}
    for tensor in evaluate.judged_tensors(cell, contract):
        value = made[tensor.name]
        dtype = tensor_files.NAMES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        if wrong := evaluate.check_layout(tensor, dtype, value.shape):
            return wrong
        outputs[tensor.name] = _array(value, dtype)
    return evaluate.evaluate(cell, contract, outputs, inputs, tolerances=tolerances).reason


def _tensor(stored: Any, dtype: str, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """A storage array as a tensor of its own memory."""
    kind = tensor_files.DTYPES[dtype]
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=kind, device=device)
    raw = torch.frombuffer(bytearray(np.ascontiguousarray(stored).tobytes()), dtype=kind)
    return raw.reshape(tuple(shape)).to(device)


def _array(value: torch.Tensor, dtype: str) -> Any:
    """A tensor as the array that is judged."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(dtypes.storage_dtype(dtype)).reshape(tuple(value.shape))
