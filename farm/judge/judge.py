"""The judge: makes inputs, keeps references, compares outputs.  `farm.judge.pool` is a pool of judges for one node.

The pure core is `farm.accuracy.evaluate`; this module adds files and threads.  A judge makes its inputs and references
itself, once per run, and keeps them where no path leads (`farm.judge.cache`); code under test gets copies of inputs.
This is no sandbox: it runs as the same user (docs/trust.md).
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from farm import limits
from farm.accuracy import dtypes, evaluate, plans, tolerances
from farm.cell import Cell
from farm.child.findings import disqualifying
from farm.contracts import discovery, view
from farm.contracts.base import Contract
from farm.contracts.discovery import contract
from farm.contracts.torch_contract import evaluate_with
from farm.errors import ContractError, FarmSignal, fault_owner
from farm.judge.cache import SMALL_BYTES, Allocate, GivenFiles, Made, PrivateArrays, default_root
from farm.judge.digest import judging_digest
from farm.judge.once import JudgedOnce, key_of
from farm.judge.references import References
from farm.store import spool as spools


class Judge:
    """One judge on one node: `spool` is the run's folder in shared memory, `threads` its share of the cores, `cache` a
    folder whose disk holds large arrays, `lock_s` how long one thread waits for another, `sharers` how many judges this
    host has.  `digest`: of what judges here, where it is known."""

    def __init__(
        self,
        spool: str,
        threads: int,
        cache: str | None = None,
        lock_s: float = limits.TABLE["lock"],
        digest: str = "",
        sharers: int = 1,
    ):
        self.spool = Path(spool)
        self.closing = False
        self.digest = digest or judging_digest()
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="judge")
        spools.claim(spool)
        spools.sweep(self.spool.parent)  # on this node, where no other process may clean up
        self._reserve = spools.reserve(spool)
        spools.sweep(self._reserve.parent)
        self._references = References(self.spool, threads)
        evaluate_with(self._references)
        discovery.ask_torch_version(self._references.version)
        self._private = PrivateArrays([Path(cache) if cache else default_root(), self.spool], None, sharers, lock_s)
        self._given = GivenFiles(self.spool, self._reserve, sharers)
        self._once = JudgedOnce()

    def prepare(self, cell_data: Mapping[str, Any]) -> dict[str, Any]:
        """The description of the cell's tensors for the child (inputs with their files), and the model's bytes."""
        cell = Cell.from_dict(cell_data)
        op = contract(cell.op)
        _same_content(cell, op)
        inputs = self._inputs(cell).arrays
        files = self._given.files(self._input_key(cell), inputs)
        tensors = plans.described(cell, op)
        for plan in tensors:
            if plan["role"] in view.GIVEN and plan["name"] in files:
                plan["file"] = str(files[plan["name"]])
        work = evaluate.work_of(cell, op, inputs)
        told: dict[str, Any] = {"bytes_moved": work.bytes_read + work.bytes_written}
        if op.batch_invariant:
            told["batch_invariant"] = True
        return {"tensors": tensors, "work": told}

    def warm(self, cell_data: Mapping[str, Any]) -> None:
        """Make the cell's inputs and reference now, so that no device has to wait for them later."""
        cell = Cell.from_dict(cell_data)
        self._reference(cell, self._inputs(cell).arrays)

    def judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """{"status", "reason", "owner", metrics, tolerances, the worst of them, hashes} of an attempt's outputs, the
        digest of what judged them, and `judged_as`, the cell as which the same bytes were judged before, if any."""
        try:
            return {"judged_as": "", **self._judge(request), "judged_by": self.digest}
        except Exception as error:
            if not self.closing:  # otherwise its folder has been removed, as intended
                traceback.print_exc()
            return {
                "status": "infra_error",
                "owner": fault_owner(error),
                "reason": f"the judge failed: {type(error).__name__}: {error}",
            }

    def _judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        cell = Cell.from_dict(request["cell"])
        bad = disqualifying(request.get("flags", []))
        if request.get("known") and not bad and self._is_known(cell, request):
            return {"status": "passed", "owner": None, "reason": "", "output_hash": request["known"]}
        found = self._compare(cell, request["outputs"], request)
        if found["status"] == "passed" and request.get("timed_outputs"):
            found = _both(found, self._compare(cell, request["timed_outputs"], request), "in a timed launch")
        for other in request.get("others") or []:
            if found["status"] == "passed":
                found = _both(found, self._compare(cell, other["outputs"], request), other["where"])
        if bad:
            why = f"the provider {bad[0]}"
            if (
                found["status"] == "inaccurate" and "timed launches" in why
            ):  # what is never written is the same each time
                why = f"{found['reason']}; and {why}"
            found.update(status="inaccurate", owner="kernel", reason=why)
        return found

    def _is_known(self, cell: Cell, request: Mapping[str, Any]) -> bool:
        """Whether all outputs, those of a timed launch too, are bit for bit what an earlier round judged in full."""
        every = [request["outputs"], request.get("timed_outputs") or request["outputs"]]
        every += [other["outputs"] for other in request.get("others") or []]
        expected = {t.name: t for t in evaluate.judged_tensors(cell, contract(cell.op))}
        if any(evaluate.check_layout(expected[o["name"]], o["dtype"], o["shape"]) for of in every for o in of):
            return False
        try:
            return all(_hash(of) == request["known"] for of in every)
        except NotAFile:
            return False  # the comparison says which

    def _compare(self, cell: Cell, described: list[dict[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
        op = contract(cell.op)
        expected = {t.name: t for t in evaluate.judged_tensors(cell, op)}
        outputs, digest = {}, hashlib.sha256()
        for o in described:
            wrong = evaluate.check_layout(expected[o["name"]], o["dtype"], o["shape"])
            if wrong:
                return {"status": "inaccurate", "owner": "kernel", "reason": wrong}
            try:
                outputs[o["name"]] = _read(Path(o["path"]), o["dtype"], tuple(o["shape"]))
            except NotAFile as reason:
                return {"status": "crashed", "owner": "kernel", "reason": f"{o['name']}: {reason}"}
            _digest(digest, outputs[o["name"]])
        inputs = self._inputs(cell)
        demanded = request.get("tolerances", [])
        key = key_of(self.digest, cell, op, demanded, described, inputs.digest, digest.hexdigest())
        known = self._once.get(key)
        if known is not None:
            return known
        found = self._evaluated(cell, op, outputs, inputs, demanded)
        found |= {"output_hash": _shown(digest), "input_hash": inputs.digest}
        self._once.keep(key, cell.cell_id, found)
        return found

    def _evaluated(
        self, cell: Cell, op: Contract, outputs: Mapping[str, Any], inputs: Made, demanded: list[dict[str, Any]]
    ) -> dict[str, Any]:
        judgement = evaluate.evaluate(
            cell,
            op,
            outputs,
            inputs.arrays,
            reference=self._reference(cell, inputs.arrays),
            map=self._map,
            tolerances=demanded,
        )
        told: dict[str, Any] = {}
        if judgement.sampled_rows is not None:
            told["sampled_rows"] = judgement.sampled_rows
        if op.work_from_inputs:
            told["work"] = evaluate.work_of(cell, op, inputs.arrays).plain()
        return {
            **told,
            "status": "passed" if judgement.ok else "inaccurate",
            "owner": None if judgement.ok else "kernel",
            "reason": judgement.reason,
            "metrics": judgement.metrics,
            "gates": judgement.gates,
            "worst_output": judgement.worst_output,
            "worst_metric": judgement.worst_metric,
            "worst_ratio": judgement.worst_ratio,
            "places": judgement.places,
        }

    # inputs and references

    def _map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """In the pool; a single item runs here, because the transfer costs more than the work of a small cell."""
        items = list(items)
        return self._pool.map(work, items) if len(items) > 1 else map(work, items)

    def _input_key(self, cell: Cell) -> str:
        return f"inputs {cell.op} {evaluate.input_key(cell, contract(cell.op))}"

    def _inputs(self, cell: Cell) -> Made:
        def make(allocate: Allocate) -> Made:
            arrays = evaluate.fill_inputs(cell, contract(cell.op), map=self._map, allocate=allocate)
            digest = hashlib.sha256()
            for name in sorted(arrays):
                _digest(digest, arrays[name])
            return Made(arrays, digest.hexdigest()[:16])

        return self._private.get(self._input_key(cell), make)

    def _reference(self, cell: Cell, inputs: Mapping[str, Any]) -> dict[str, Any]:
        op = contract(cell.op)

        def make(allocate: Allocate) -> Made:
            return Made(evaluate.fill_reference(cell, op, inputs, map=self._map, allocate=allocate))

        return dict(self._private.get(f"reference {cell.op} {evaluate.reference_key(cell, op)}", make).arrays)

    def clean(self) -> None:
        """Remove the run's folder."""
        self.closing = True
        self._references.close()
        spools.remove(self.spool)
        spools.remove(self._reserve)


def _same_content(cell: Cell, op: Contract) -> None:
    """ContractError if the cell was planned with another contract, or another torch to evaluate it."""
    if op.content != cell.contract_content and (op.needs_torch or cell.contract_content):
        raise ContractError(
            f"the cell was planned with the contract {cell.contract_content or 'of the farm'}, but this judge has "
            f"{op.content or 'that of the farm'}; plan again, and give every node the same torch",
            id="judge-contract-content",
        )


def _both(first: dict[str, Any], other: dict[str, Any], where: str) -> dict[str, Any]:
    """The judgement of two calls of one cell, the first of which passed: the other's status, and the worse metrics of
    both, so that the verdict can be repeated from the stored metrics."""
    if not other.get("metrics"):
        return {**other, "reason": f"{where}: {other['reason']}"}
    found = {**first, "metrics": tolerances.worse(first["metrics"], other["metrics"])}
    if other["status"] != "passed":
        found = {**other, "metrics": found["metrics"], "reason": f"{where}: {other['reason']}"}
    _, *worst = tolerances.verdict(found["metrics"], found["gates"])
    return {**found, **dict(zip(("worst_output", "worst_metric", "worst_ratio"), worst))}


class NotAFile(FarmSignal):
    """A tensor's path leads to no regular file of its size.  The actor saw one: a process of the cell changed it."""


def _read(path: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    """A raw file, which is opened without waiting for anybody and without following a link.  NotAFile if it is none, or
    shorter than `shape`."""
    stored = np.dtype(dtypes.storage_dtype(dtype))
    if 0 in shape:
        return np.empty(shape, stored)
    count = math.prod(shape)
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise NotAFile("its file was replaced") from None
        raise
    found = os.fstat(opened)
    if stat.S_ISDIR(found.st_mode):  # which `open` refuses
        os.close(opened)
        raise NotAFile("its file was replaced")
    with open(opened, "rb") as file:
        if not stat.S_ISREG(found.st_mode) or found.st_size < count * stored.itemsize:
            raise NotAFile(f"its file was replaced, or is shorter than {count * stored.itemsize} bytes")
        if count * stored.itemsize > SMALL_BYTES:  # read and not mapped: a map costs more than their bytes
            return np.memmap(file, dtype=stored, mode="r", shape=shape)
        return np.frombuffer(file.read(count * stored.itemsize), stored).reshape(shape)


def _hash(described: list[dict[str, Any]]) -> str:
    """Of outputs in files, in their order.  NotAFile."""
    digest = hashlib.sha256()
    for o in described:
        _digest(digest, _read(Path(o["path"]), o["dtype"], tuple(o["shape"])))
    return _shown(digest)


def _shown(digest: Any) -> str:
    """As much of a digest as a row has."""
    return str(digest.hexdigest()[:16])


def _digest(digest: Any, array: Any) -> None:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest.update(flat.data)
