"""The judge: makes inputs, keeps references, compares outputs.  `farm.judges` is a pool of these for one node.

The pure core is `farm.accuracy.evaluate`; this is the edge that gives it files and threads.  Inputs and references are
kept by content (`farm.filecache`), so that the judges of a host, and its next run, share them without talking.

Code under test is never told where a reference is.  This is no sandbox: it runs as the same user (docs/trust.md).
"""

from __future__ import annotations

import errno
import hashlib
import math
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from farm import spool as spools
from farm.accuracy import dtypes, evaluate, gates
from farm.cell import Cell
from farm.child.findings import disqualifying
from farm.filecache import FileCache, create, create_npy, default_root, names, source_digest
from farm.ops import contract

#: Files up to this size are read and not mapped: a map costs more than their bytes.
SMALL_BYTES = 1 << 20
KEPT_SMALL = 32  # folders of small arrays that a judge has in memory
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class Judge:
    """One judge on one node: `spool` is the run's folder in shared memory, `threads` its share of the cores."""

    def __init__(self, spool: str, threads: int, cache: str | None = None):
        self.spool = Path(spool)
        self.closing = False
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="judge")
        self._lock = threading.Lock()
        self._small: dict[Path, dict[str, Any]] = {}
        spools.claim(spool)
        spools.sweep(Path(spool).parent)  # this node's, where nobody else may start anything
        self._cache = self._open_cache(Path(cache) if cache else default_root())
        self._own = self._cache if self._cache.root == self.spool / "cache" else None

    def _open_cache(self, root: Path) -> FileCache:
        """The host's cache, or where that cannot be written (a home that is not there), the run's own."""
        try:
            return FileCache(root, verified=self.spool / "verified")
        except OSError:
            return FileCache(self.spool / "cache", verified=self.spool / "verified")

    def _folder(self, kind: str, key: str, make: Callable[[Path], None]) -> Path:
        """From the cache; in the run's own folder where the cache is full or read-only: that is no reason to fail."""
        try:
            return self._cache.folder(kind, key, make)
        except OSError as error:
            ended = self.closing or not self.spool.is_dir()  # nothing is made again for a run that is over
            if ended or self._own is self._cache or error.errno not in _UNWRITABLE:
                raise
            if self._own is None:
                self._own = FileCache(self.spool / "cache", verified=self.spool / "verified-own")
            return self._own.folder(kind, key, make)

    def prepare(self, cell_data: Mapping[str, Any]) -> dict[str, Any]:
        """The cell's tensors as the child is told of them (inputs with their files), and the model's bytes."""
        cell = Cell.from_dict(cell_data)
        op = contract(cell.op)
        folder = self._inputs(cell)
        tensors = []
        for t in op.tensors(cell):
            plan: dict[str, Any] = {"name": t.name, "dtype": t.dtype, "shape": list(t.dims), "role": t.role, "of": t.of}
            plan["may_overwrite"] = t.may_overwrite
            plan["blocked"] = t.blocked
            if t.role in ("input", "upstream", "mutated"):
                plan["file"] = str(folder / f"{t.name}.bin")
            tensors.append(plan)
        work = op.work(cell)
        return {"tensors": _with_absent(cell, tensors), "work": {"bytes_moved": work.bytes_read + work.bytes_written}}

    def warm(self, cell_data: Mapping[str, Any]) -> None:
        """Make the cell's inputs and reference now, so that nobody has to wait for them later."""
        cell = Cell.from_dict(cell_data)
        self._reference(cell, self._read_inputs(cell))

    def judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """{"status", "reason", "owner", metrics, gates, the worst of them, hashes} of an attempt's outputs."""
        try:
            return self._judge(request)
        except Exception as error:
            if not self.closing:  # else the folder that it works in is gone, as it should be
                traceback.print_exc()
            return {
                "status": "infra_error",
                "owner": "harness",
                "reason": f"the judge failed: {type(error).__name__}: {error}",
            }

    def _judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        cell = Cell.from_dict(request["cell"])
        bad = disqualifying(request.get("flags", []))
        found = self._compare(cell, request["outputs"], request)
        if found["status"] == "passed" and request.get("timed_outputs"):
            found = _both(found, self._compare(cell, request["timed_outputs"], request), "in a timed launch")
        for other in request.get("others") or []:
            if found["status"] == "passed":
                found = _both(found, self._compare(cell, other["outputs"], request), other["where"])
        if bad:
            found.update(status="inaccurate", owner="kernel", reason=f"it {bad[0]}")
        return found

    def _compare(self, cell: Cell, described: list[dict[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
        op = contract(cell.op)
        expected = {t.name: t for t in evaluate.judged_tensors(cell, op)}
        outputs, digest = {}, hashlib.sha256()
        for o in described:
            wrong = evaluate.check_layout(expected[o["name"]], o["dtype"], o["shape"])
            if wrong:
                return {"status": "inaccurate", "owner": "kernel", "reason": wrong}
            outputs[o["name"]] = _read(Path(o["path"]), o["dtype"], tuple(o["shape"]))
            _digest(digest, outputs[o["name"]])
        inputs = self._read_inputs(cell)
        judgement = evaluate.evaluate(
            cell,
            op,
            outputs,
            inputs,
            reference=self._reference(cell, inputs),
            map=self._map,
            tolerances=[{k: v for k, v in t.items() if k != "date"} for t in request.get("tolerances", [])],
        )
        return {
            "status": "passed" if judgement.ok else "inaccurate",
            "owner": None if judgement.ok else "kernel",
            "reason": judgement.reason,
            "metrics": judgement.metrics,
            "gates": judgement.gates,
            "worst_output": judgement.worst_output,
            "worst_metric": judgement.worst_metric,
            "worst_ratio": judgement.worst_ratio,
            "output_hash": digest.hexdigest()[:16],
            "input_hash": (self._inputs(cell) / "hash").read_text(encoding="ascii"),
        }

    # files by content

    def _map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """In the pool; a single item here, since to hand it over and wait costs more than a small cell's work."""
        items = list(items)
        return self._pool.map(work, items) if len(items) > 1 else map(work, items)

    def _inputs(self, cell: Cell) -> Path:
        key = f"{source_digest(cell.op)}-{cell.input_key()}-{_input_names(cell)}"
        return self._folder("inputs", key, lambda folder: self._make_inputs(cell, folder))

    def _read_inputs(self, cell: Cell) -> dict[str, Any]:
        folder = self._inputs(cell)
        return self._in_mind(
            folder,
            lambda: {
                t.name: _read(folder / f"{t.name}.bin", t.dtype, t.dims)
                for t in contract(cell.op).tensors(cell)
                if t.role in ("input", "upstream", "mutated")
            },
        )

    def _make_inputs(self, cell: Cell, folder: Path) -> None:
        op = contract(cell.op)
        tensors = {t.name: t for t in op.tensors(cell) if t.role in ("input", "upstream", "mutated")}
        files = {
            name: create(folder / f"{name}.bin", dtypes.storage_dtype(t.dtype), t.dims) for name, t in tensors.items()
        }

        def fill(block: tuple[int, int]) -> None:
            made = evaluate.make_inputs(cell, op, block)
            for name, values in made.items():
                if tensors[name].blocked:
                    files[name][block[0] : block[1]] = values
                elif block[0] == 0:
                    files[name][...] = values

        for _ in self._map(fill, evaluate.blocks(evaluate.row_count(cell), evaluate.default_rows(cell, op))):
            pass
        digest = hashlib.sha256()
        for name in sorted(files):
            _digest(digest, files[name])
        (folder / "hash").write_text(digest.hexdigest()[:16], encoding="ascii")

    def _reference(self, cell: Cell, inputs: Mapping[str, Any]) -> dict[str, Any]:
        op = contract(cell.op)
        key = f"{source_digest(cell.op)}-{evaluate.reference_key(cell, op)}"
        folder = self._folder("references", key, lambda target: self._make_reference(cell, inputs, target))
        return self._in_mind(folder, lambda: {Path(name).stem: _load(folder / name) for name in names(folder)})

    def _in_mind(self, folder: Path, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The arrays of a folder; small ones as they were read, for the cells beside the one that they were read for:
        those share them, and come one after another."""
        with self._lock:
            found = self._small.get(folder)
        if found is None:
            found = read()
            if sum(a.nbytes for a in found.values()) <= SMALL_BYTES:
                for array in found.values():
                    array.setflags(write=False)
                with self._lock:
                    self._small[folder] = found
                    while len(self._small) > KEPT_SMALL:
                        del self._small[next(iter(self._small))]
        return dict(found)

    def _make_reference(self, cell: Cell, inputs: Mapping[str, Any], folder: Path) -> None:
        def allocate(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
            return create_npy(folder / f"{name}.npy", dtype, shape)

        evaluate.fill_reference(cell, contract(cell.op), inputs, map=self._map, allocate=allocate)

    def clean(self) -> None:
        """Remove the run's folder."""
        self.closing = True
        spools.remove(self.spool)


def _both(first: dict[str, Any], other: dict[str, Any], where: str) -> dict[str, Any]:
    """What is said of two calls of one cell, the first of which passed: the other's status, and the worse metrics of
    both, so that the verdict can be given again from what is stored."""
    if not other.get("metrics"):
        return {**other, "reason": f"{where}: {other['reason']}"}
    found = {**first, "metrics": gates.worse(first["metrics"], other["metrics"])}
    if other["status"] != "passed":
        found = {**other, "metrics": found["metrics"], "reason": f"{where}: {other['reason']}"}
    _, *worst = gates.verdict(found["metrics"], found["gates"])
    return {**found, **dict(zip(("worst_output", "worst_metric", "worst_ratio"), worst))}


def _input_names(cell: Cell) -> str:
    """Which inputs this operation has, since a backward also has upstream gradients, and a weight may be absent."""
    names = [t.name for t in contract(cell.op).tensors(cell) if t.role in ("input", "upstream", "mutated")]
    return ".".join(names)


def _with_absent(cell: Cell, tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put a place without a file where an optional input is absent, so that it is passed as None."""
    op = contract(cell.op)
    absent = {p.name: p.nullifies for p in op.parameters if p.nullifies and cell.params.get(p.name) is False}
    whole = replace(cell, params={**cell.params, **dict.fromkeys(absent, True)})
    out = list(tensors)
    for place, t in enumerate(op.tensors(whole)):  # in the contract's order
        if t.name in absent.values():
            out.insert(place, {"name": t.name, "dtype": t.dtype, "shape": [], "role": "input", "of": None})
    return out


def _read(path: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    """A raw file.  ValueError where it is shorter than `shape`."""
    stored = np.dtype(dtypes.storage_dtype(dtype))
    if 0 in shape:
        return np.empty(shape, stored)
    count = math.prod(shape)
    if count * stored.itemsize > SMALL_BYTES:
        return np.memmap(path, dtype=stored, mode="r", shape=shape)
    with open(path, "rb") as file:
        return np.frombuffer(file.read(count * stored.itemsize), stored).reshape(shape)


def _load(path: Path) -> Any:
    return np.load(path, mmap_mode="r" if path.stat().st_size > SMALL_BYTES else None)


def _digest(digest: Any, array: Any) -> None:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest.update(flat.data)
