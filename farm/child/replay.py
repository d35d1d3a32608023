"""One cell again, alone: what a script of `farm repro` runs from the sources that it carries (farm/report/repro.py).

Inputs, poison, the checked calls, the reference and the comparison are the farm's own; what only a run has (devices'
guards, deadlines, timing, a process of its own for the judge) is left out.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farm.accuracy import evaluate, plans
from farm.accuracy.dtypes import storage_dtype
from farm.backends.api import no_fault
from farm.cell import Cell
from farm.child import author_trace, fault_owner, placing, provider_call, reference, subject_files, tensor_files
from farm.child.checked_calls import CheckedCalls
from farm.child.findings import disqualifying
from farm.contracts.base import Contract
from farm.contracts.torch_contract import evaluate_with
from farm.errors import Unsupported

#: What torch calls the devices of a backend.
_DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "ascend": "npu"}
#: Exit codes: the cell passes, it fails, it cannot run here.
PASSED, FAILED, IMPOSSIBLE = 0, 1, 2
Verdict = dict[str, Any]  # "status", "reason", "places" (farm.accuracy.places.finish)


def main(given: Mapping[str, Any], words: Sequence[str] = ()) -> int:
    """Run the cell, print the verdict and compare it with the run's; the exit code.  `given`: as `farm repro` writes
    it; `words`: `--json` prints the verdict as JSON."""
    faulthandler.enable()
    with tempfile.TemporaryDirectory(prefix="farm-repro-") as place:
        _import_path(given, Path(place))
        found = verdict(given, Path(place))
    lines = told(found, given["verdict"], str(given["run"]))
    sys.stdout.write(f"{json.dumps(found, indent=1) if '--json' in words else chr(10).join(lines)}\n")
    return {"passed": PASSED, "unsupported": IMPOSSIBLE}.get(found["status"], FAILED)


def _import_path(given: Mapping[str, Any], place: Path) -> None:
    """The kernel's folders come first; a subject's files are laid over what is installed as in a run."""
    sys.path[:0] = given["path"]
    subject = given.get("subject")
    if subject:
        for name, folder in subject["origins"].items():
            (place / name).symlink_to(folder, target_is_directory=True)
            sys.path.insert(0, str(place / name))
        wrong = subject_files.place({**subject, "folder": str(place)})["wrong"]
        if wrong:
            sys.exit(f"{wrong}; correct the import path")


def verdict(given: Mapping[str, Any], place: Path) -> Verdict:
    """What the farm says of one attempt of the cell, without timing."""
    cell = Cell.from_dict(given["cell"])
    contract = _contract(cell.op, given["contract"], place)
    device = _opened(cell.backend)
    try:
        return _verdict(cell, contract, device, given)
    except Unsupported as reason:
        return {"status": "unsupported", "reason": str(reason), "places": {}}
    except Exception as error:
        found = fault_owner.verdict(error, fault_of=no_fault, device=device, phase="check", squeezed=lambda: "")
        if found.traced:
            sys.stderr.write(f"{author_trace.written(error)}\n")
        return {"status": found.status, "reason": found.reason, "places": {}}


def _contract(op: str, files: Mapping[str, str], place: Path) -> Contract:
    """The built-in one, or that of these files of its folder."""
    for name, text in files.items():
        file = place / "contracts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    found: Contract = reference.load(str(place / "contracts") if files else "", op)
    if found.needs_torch:
        found.op = op
        evaluate_with(reference.evaluate)
    return found


def _opened(backend: str) -> torch.device:
    """The current device.  SystemExit if there is none."""
    if backend == "cpu":
        torch.set_num_threads(1)
        try:
            from farm.child import interpreter

            interpreter.install()
        except ImportError:  # the kernel may not need Triton
            pass
        return torch.device("cpu")
    kind = _DEVICES.get(backend, backend)
    with suppress(ImportError):  # what brings a kind that is not torch's own
        import_module(f"torch_{kind}")
    if not torch.get_device_module(kind).is_available():
        sys.exit(f"no device of backend {backend} was found here; run this script where there is one")
    return torch.device(kind, torch.get_device_module(kind).current_device())


def _verdict(cell: Cell, contract: Contract, device: torch.device, given: Mapping[str, Any]) -> Verdict:
    call = given["call"]
    inputs = evaluate.fill_inputs(cell, contract)
    described = plans.described(cell, contract)
    for plan in described:
        if plan["name"] in inputs:
            plan["file"] = plan["name"]

    def values(plan: Mapping[str, Any]) -> torch.Tensor:
        return _tensor(inputs[plan["name"]], plan["dtype"]).to(device)

    def problem() -> provider_call.Problem:
        return provider_call.problem(described, cell.operation, lambda p: placing.placed(values(p).clone(), p))

    def synchronize() -> None:
        if device.type != "cpu":
            torch.get_device_module(device.type).synchronize(device)

    function = _called(call, cell.op, described)
    if device.type != "cpu":  # what compiles at its first call does not compile in the checked one
        problem().run(function)
        synchronize()
    calls = CheckedCalls(device, described, problem(), values, synchronize)
    first = calls.first(function)
    others = calls.others(function, stranger=bool(call["provider"].get("path")))
    if contract.batch_invariant:
        calls.alone(function)
    findings = [*calls.findings]
    if call["provider"]["name"] == "farm" and not call["provider"].get("path") and all(t.numel() for t in first):
        findings += calls.launches.findings(cell.operation)

    judged = provider_call.judged(described)
    reference_of = evaluate.fill_reference(cell, contract, inputs)
    found: Verdict = {"status": "passed", "reason": "", "places": {}}
    for where, outputs in (("", first), ("called again at the same addresses with other values: ", others)):
        if outputs is not None and found["status"] == "passed":
            found = _judged(cell, contract, judged, outputs, inputs, reference_of, given["tolerances"])
            found["reason"] = where + found["reason"] if found["reason"] else ""
    bad = disqualifying(findings)
    return {**found, "status": "inaccurate", "reason": f"the provider {bad[0]}"} if bad else found


def _called(call: Mapping[str, Any], op: str, described: list[dict[str, Any]]) -> Any:
    """The function of the cell's input tensors, as a child has it."""
    provider = call["provider"]
    forward = provider_call.resolve(provider, op)
    if not provider.get("backward"):
        return provider_call.lazily_importing(provider_call.bind(forward, dict(call)), provider)
    backward = provider_call.resolve({**provider, "path": provider["backward"]}, op)
    own = provider_call.with_backward(forward, backward, dict(call), described)
    return provider_call.lazily_importing(own, provider)


def _judged(
    cell: Cell,
    contract: Contract,
    judged: Sequence[Mapping[str, Any]],
    outputs: Sequence[torch.Tensor],
    inputs: Mapping[str, Any],
    reference_of: Mapping[str, Any],
    tolerances: Sequence[Mapping[str, Any]],
) -> Verdict:
    expected = {t.name: t for t in evaluate.judged_tensors(cell, contract)}
    stored = {}
    for plan, tensor in zip(judged, outputs):
        dtype = tensor_files.NAMES.get(tensor.dtype, str(tensor.dtype))
        wrong = evaluate.check_layout(expected[plan["name"]], dtype, tensor.shape)
        if wrong:
            return {"status": "inaccurate", "reason": wrong, "places": {}}
        stored[plan["name"]] = _array(tensor, dtype)
    found = evaluate.evaluate(cell, contract, stored, inputs, reference=reference_of, tolerances=tolerances)
    return {"status": "passed" if found.ok else "inaccurate", "reason": found.reason, "places": found.places}


def _tensor(stored: Any, dtype: str) -> torch.Tensor:
    """A storage array as a tensor on the CPU, bit for bit."""
    kind = tensor_files.DTYPES[dtype]
    if not stored.size:
        return torch.empty(stored.shape, dtype=kind)
    raw = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    return torch.from_numpy(raw.copy()).view(kind).reshape(stored.shape)


def _array(tensor: torch.Tensor, dtype: str) -> Any:
    """A tensor as a storage array, bit for bit."""
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), storage_dtype(dtype))
    raw = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return raw.view(storage_dtype(dtype)).reshape(tuple(tensor.shape))


def told(found: Verdict, expected: Verdict, run: str) -> list[str]:
    """The verdict in lines, the last of which compares it with that of the run."""
    lines = [": ".join(part for part in (found["status"], found["reason"]) if part)]
    for name, place in found["places"].items():
        lines += [
            f"{name}: count {place['count']} of {place['of']}, first {place['first']}, box {place['box']}",
            f"{name}: pattern {', '.join(p for p in (place['pattern'], place['values']) if p) or 'none'}",
        ]
        lines += [f"  {e['at']}: got {e['got']}, expected {e['expected'] or '?'}" for e in place["examples"]]
    return [*lines, compared(found, expected, run)]


def compared(found: Verdict, expected: Verdict, run: str) -> str:
    """Whether both verdicts are the same: status, and of each wrong output count, first place and pattern."""

    def key(verdict: Verdict) -> Any:
        facts = {n: [p[k] for k in ("count", "first", "pattern", "values")] for n, p in verdict["places"].items()}
        return verdict["status"], facts

    if key(found) == key(expected):
        return f"the same as in run {run}"
    text = ": ".join(part for part in (expected["status"], expected["reason"]) if part)
    if "timed" in expected["reason"]:
        text += " (only a run has timed launches)"
    return f"not the same as in run {run}, which reported: {text}"
