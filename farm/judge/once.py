"""Outputs that a judge has found right are not compared again: those of the same bytes, for the same inputs, parameters
and tolerances.  An arm that changes nothing, a mode that `auto` chose, and a second attempt make such outputs.

What is known is memory of the judge's own process, as its references are, and gone with it: code under test runs as the
user that the farm runs as, and what it could write would be no verdict (docs/decisions.md).  The judge hashes the
outputs itself.  Only what passed is kept: a failure is looked at again, because its reader wants to know where.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from farm.accuracy import evaluate
from farm.cell import Cell, canonical_json
from farm.contracts.base import Contract

#: Of a cell, what no verdict depends on.
_BESIDE = ("index", "matrix", "cell_id", "cell_key", "tag", "arm", "role", "skip_reason", "timing", "target")
#: Whose outputs they are.  A contract is not told; one from outside the farm could look.
_WHOSE = ("provider", "mode")
#: Verdicts that a judge keeps, of some KiB each.
MOST = 2048


def key_of(
    judge: str,
    cell: Cell,
    op: Contract,
    tolerances: Sequence[Mapping[str, Any]],
    layout: Sequence[Mapping[str, Any]],
    inputs: str,
    outputs: str,
) -> str:
    """By all that a verdict depends on.  `judge`: the digest of what judges; `layout`: name, dtype and shape of each
    output; `inputs` and `outputs`: digests of their bytes."""
    left_out = {*_BESIDE, *(() if op.content else _WHOSE)}
    parts = {
        "judge": judge,
        "contract": [op.content, op.version],
        "cell": {name: value for name, value in cell.to_dict().items() if name not in left_out},
        "reference": evaluate.reference_key(cell, op),
        "tolerances": [dict(one) for one in tolerances],
        "layout": [[str(o["name"]), str(o["dtype"]), list(o["shape"])] for o in layout],
        "inputs": inputs,
        "outputs": outputs,
    }
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


class JudgedOnce:
    """Verdicts by key.  Any thread may call; what is given and got is the caller's own."""

    def __init__(self, most: int = MOST):
        self._most = most
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}  # in the order of their last use
        self._lock = threading.Lock()

    def get(self, key: str) -> dict[str, Any] | None:
        """The verdict, with the cell whose outputs were judged in `judged_as`; None if there is none."""
        with self._lock:
            known = self._known.pop(key, None)
            if known is None:
                return None
            self._known[key] = known
        return {**copy.deepcopy(known[1]), "judged_as": known[0]}

    def keep(self, key: str, cell_id: str, found: Mapping[str, Any]) -> None:
        if found.get("status") != "passed":
            return
        with self._lock:
            while len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[key] = cell_id, copy.deepcopy(dict(found))
