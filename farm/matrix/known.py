"""Known failures: which cells may fail for now, why, whose they are, and until when.

    known:
      - match: {op: rms_norm, provider: farm, mode: column_tiled, hidden: ">=16384"}
        status: crashed                # optional: which failures; without it, every finding
        reason: the Unified Buffer overflows (triton-ascend 123)
        owner: jane@example.org
        until: 2026-12-31

A known failure changes a run's verdict and exit code, never a status.  It counts apart while it fails and its day has
not passed.  Once all of its cells that ran pass, it is `fixed`, and once its day has passed, `expired`: both are
findings, so that the file does not outlive what it describes.  Pure but for `load_known`, which reads through
`document.read`.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm import backends as farm_backends
from farm.cell import FINDINGS, Cell, Status
from farm.contracts import discovery as farm_ops
from farm.errors import MatrixError

from . import axes as ax
from .document import YamlNode, parse, read, show, suggest
from .model import METHODS, Matrix
from .registry import builtin_providers
from .rules import Kind, Rule, kinds, lookup, merged_kinds, parse_rule

#: Where a matrix's known failures are looked for.
FILE = "known.yaml"
_KEYS = ("match", "status", "reason", "owner", "until")
_STATUSES = tuple(s.value for s in Status if s in FINDINGS)
#: The most cells that a run names of one entry.
MOST_NAMED = 10_000


@dataclass(frozen=True)
class KnownFailure:
    """One entry.  `statuses`: those of a cell that it explains; `until`: its last day, ISO; `where`: file and line."""

    rule: Rule
    statuses: tuple[str, ...]
    reason: str
    owner: str
    until: str
    where: str

    def to_dict(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("reason", "owner", "until", "where")}
        return {"match": self.rule.to_list(), "status": list(self.statuses), **told}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KnownFailure:
        told = (str(data[name]) for name in ("reason", "owner", "until", "where"))
        return cls(Rule.from_list(data["match"]), tuple(data["status"]), *told)


def load_known(path: Path | str, matrices: Sequence[Matrix]) -> tuple[KnownFailure, ...]:
    """The known failures in a file; MatrixError for everything that a matrix is refused for.

    matrices: those of the run, whose providers and modes are known besides the farm's own.  An entry may be of an op
    that none of them has, since one file lies beside many matrices.
    """
    text, _ = read(Path(path))
    roots = parse(text, str(path))
    if len(roots) != 1 or not isinstance(roots[0].value, dict):
        message = "is not a file of known failures; it must have one key, known, with a list of them"
        raise MatrixError(f"{path}: {message}", id="known-not-a-file")
    given = roots[0].mapping()
    for key, node in given.items():
        if key != "known":
            message = "is not a key of a file of known failures; its only key is known"
            raise node.key_error(message, id="known-file-key")
    reader = _Reader(matrices)
    found: dict[str, KnownFailure] = {}
    for node in given["known"].items():
        entry = reader.entry(node)
        same = f"{entry.rule} {','.join(entry.statuses)}"
        if same in found:
            message = f"matches the same cells as the entry in {found[same].where}; keep one"
            raise node.error(message, id="known-twice")
        found[same] = entry
    return tuple(found.values())


class _Reader:
    """Reads entries with the keys and values that rules may have."""

    def __init__(self, matrices: Sequence[Matrix]):
        registry = builtin_providers()
        modes = dict.fromkeys(m for info in registry.values() for m in info.modes)
        own = {m.op for m in matrices}
        others = [
            kinds(farm_ops.contract(op), farm_backends.known(), sorted(registry), modes, METHODS)
            for op in farm_ops.known_ops()
            if op not in own
        ]
        self._kinds = merged_kinds([*(m.kinds for m in matrices), *others])
        self._near = {name: self._kinds[name].known for name in ("provider", "mode", "target")}
        for name in self._near:  # another matrix may have more
            self._kinds[name] = Kind("str")

    def entry(self, node: YamlNode) -> KnownFailure:
        given = node.mapping("match: {op: rms_norm, provider: farm}, reason: why, owner: who, until: 2026-12-31")
        for key, child in given.items():
            if key not in _KEYS:
                message = f"is not a key of a known failure; {suggest(key, _KEYS, 'keys')}"
                raise child.key_error(message, id="known-key")
        for key in ("match", "reason", "owner", "until"):
            if key not in given:
                message = f"has no {key}; a known failure needs match, reason, owner and until"
                raise node.error(message, id=f"known-no-{key}")
        rule = parse_rule(given["match"].mapping("op: rms_norm, provider: farm"), self._kinds, beside=())
        self._check_names(given["match"].value)
        statuses = self._statuses(given.get("status"))
        reason, owner = ax.word(given["reason"]), ax.word(given["owner"])
        return KnownFailure(rule, statuses, reason, owner, _date(given["until"]), node.where)

    def _check_names(self, match: Mapping[str, YamlNode]) -> None:
        """MatrixError for a name that is nearly one that is known: it would match nothing, silently."""
        for key, names in self._near.items():
            nodes = [match[key]] if key in match else []
            for node in nodes[0].items() if nodes and isinstance(nodes[0].value, list) else nodes:
                value = str(node.value).removeprefix("!=").strip()
                if value not in names and difflib.get_close_matches(value, names, 1, 0.75):
                    message = f"is {show(node.value)}; {suggest(value, names, 'values')}"
                    raise node.error(message, id="known-name")

    def _statuses(self, node: YamlNode | None) -> tuple[str, ...]:
        if node is None:
            return _STATUSES
        nodes = node.items() if isinstance(node.value, list) else [node]
        for child in nodes:
            if child.value in (s.value for s in Status if s.value not in _STATUSES):
                message = f"is {show(child.value)}; only these are failures of a cell: {', '.join(_STATUSES)}"
                raise child.error(message, id="known-status")
            if child.value not in _STATUSES:
                raise child.unknown(_STATUSES, "statuses of a failure", id="known-status")
        return tuple(dict.fromkeys(child.value for child in nodes))


def _date(node: YamlNode) -> str:
    text = ax.word(node)
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):  # newer Pythons accept more forms
            raise ValueError
        datetime.date.fromisoformat(text)
    except ValueError:
        raise node.error(f"is {show(text)}; it must be a date like 2026-12-31", id="known-date") from None
    return text


def applied(
    known: Iterable[KnownFailure], rows: Iterable[tuple[Cell, str]], today: str, *, whole: bool = True
) -> list[dict[str, Any]]:
    """What became of every entry in a run, as run.json has it: `state` and the `cells` that it covers.

    rows: each cell with its status; today: ISO; whole: whether all cells of the matrices ran, so that an entry none of
    whose cells fails is fixed.  State: `covers`, `expired` (its cells fail, and its day has passed), `fixed`, or
    `idle`: nothing of it failed, and nothing proves that it is fixed.
    """
    entries = list(known)
    failing: list[list[str]] = [[] for _ in entries]
    passing = [0] * len(entries)
    for cell, status in rows if entries else ():
        get = lookup(cell)
        for i, entry in enumerate(entries):
            if entry.rule.holds(get):
                if status in entry.statuses:
                    failing[i].append(cell.cell_id)
                passing[i] += status in (Status.PASSED.value, Status.BUILT.value)
    out = []
    for entry, cells, passed in zip(entries, failing, passing):
        state = "covers" if cells else "fixed" if passed and whole else "idle"
        state = "expired" if cells and entry.until < today else state
        told = {"state": state, "count": len(cells), "passed": passed, "cells": cells[:MOST_NAMED]}
        out.append(entry.to_dict() | told)
    return out
