"""The process that evaluates references which are PyTorch functions, as a judge uses it: one, started when needed."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.contracts import discovery
from farm.contracts.torch_contract import Job, TorchContract
from farm.deadline import Deadline
from farm.errors import ContractError, InfraError
from farm.process.line_process import ChildDied, ChildLied, ChildTimedOut, LineProcess
from farm.process.own_modules import module_words, own_variables

#: In a run's folder: how its judges start the process (farm.node.reference), where that is not with their own Python.
NAME = "reference.json"
#: Importing torch from a cold file system takes a minute; a block of a reference, seconds.
START_SECONDS, EVALUATE_SECONDS = 180.0, 600.0
_KEEP_LOG = 4 << 10
MODULE = "farm.child.reference"


@dataclass(frozen=True)
class ReferenceCommand:
    """The words that start the process, all but its arguments, and its whole environment."""

    words: tuple[str, ...]
    variables: Mapping[str, str]

    @classmethod
    def own(cls) -> ReferenceCommand:
        """With this process's Python and import path."""
        return cls(tuple(module_words(MODULE)), own_variables())

    @classmethod
    def left(cls, place: str | Path) -> ReferenceCommand:
        """What was left in a run's folder; else `own`."""
        found = Path(place, NAME)
        if not found.is_file():
            return cls.own()
        told = json.loads(found.read_text(encoding="utf-8"))
        return cls(tuple(told["words"]), told["variables"])

    def leave(self, place: str | Path) -> None:
        """Leave it in a run's folder."""
        Path(place).mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"words": list(self.words), "variables": dict(self.variables)})
        Path(place, NAME).write_text(text, encoding="utf-8")


class References:
    """Evaluates references in a process of its own; any thread may call, one order at a time.  `place`: the folder for
    arrays."""

    def __init__(self, place: str | Path, threads: int = 2, command: ReferenceCommand | None = None):
        self._place, self._threads = Path(place), threads
        self._command = command or ReferenceCommand.left(place)
        self._process: LineProcess | None = None
        self._torch = ""
        self._lock = threading.Lock()

    def version(self) -> str:
        """Of the torch there.  InfraError if the process cannot be started."""
        with self._lock:
            self._started()
            return self._torch

    def __call__(self, contract: TorchContract, job: Job) -> dict[str, Any]:
        """The arrays of one job.  ContractError if the function raises; InfraError if the process is no more."""
        folder = discovery.folder_of(job.op)
        self._place.mkdir(parents=True, exist_ok=True, mode=0o700)
        arrays = Path(tempfile.mkdtemp(prefix="reference-", dir=self._place))
        try:
            for name, value in job.values.items():
                np.save(arrays / f"{name}.npy", value)
            order = {
                "root": str(folder.path) if folder else "",
                "op": job.op,
                "folder": str(arrays),
                "dtypes": dict(job.dtypes),
                "parameters": dict(job.parameters),
                "backward": job.backward,
                "samples": job.samples,
            }
            with self._lock:
                answer = self._ask(order)
            if "failed" in answer:
                raise ContractError(
                    f"the reference of {job.op} failed ({answer['failed'].splitlines()[0]}); correct its function",
                    id="contract-reference-failed",
                )
            return {name: np.load(arrays / f"{name}.out.npy") for name in answer["arrays"]}
        finally:
            shutil.rmtree(arrays, ignore_errors=True)

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        process = self._started()
        try:
            process.write(json.dumps(order).encode() + b"\n", EVALUATE_SECONDS)
            answer: dict[str, Any] = json.loads(process.read(Deadline(EVALUATE_SECONDS)))
        except (ChildDied, ChildLied, ChildTimedOut, ValueError) as error:
            raise self._gone(process, error) from None
        return answer

    def _started(self) -> LineProcess:
        if self._process is None:
            try:
                words = [*self._command.words, str(self._threads)]
                process = LineProcess(words, env=self._command.variables, orders=True)
            except OSError as error:
                raise InfraError(
                    f"{self._command.words[0]}: the process that evaluates references cannot be started ({error}); "
                    "correct the environment reference of this node",
                    id="reference-not-started",
                ) from None
            self._process = process
            try:
                self._torch = str(json.loads(process.read(Deadline(START_SECONDS)))["torch"])
            except (ChildDied, ChildLied, ChildTimedOut, ValueError, KeyError, TypeError) as error:
                raise self._gone(process, error) from None
        return self._process

    def _gone(self, process: LineProcess, error: Exception) -> InfraError:
        last = (process.log(_KEEP_LOG).strip().splitlines() or ["it printed nothing"])[-1]
        process.close()
        self._process = None
        what = "did not answer in time" if isinstance(error, ChildTimedOut) else str(error)
        return InfraError(
            f"the process that evaluates references ended ({what}; {last[:200]}); it needs torch and NumPy",
            id="reference-died",
        )

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None
