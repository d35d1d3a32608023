"""The file of a plan: what a site needs to run its part without the matrices, with a hash against damage.  Pure.

It contains the plan as `farm.matrix.Plan` writes it (cells; each matrix's deadlines, tolerances and scripts), `farm`
(the version that planned), `providers` (those of `--provider`: their import path and the hash of their files, which
are not included), `subject` (what a farm.yaml described: its name, revision and digest), `arms` (of a comparison: what
each is, with the digest of its files) and `sha256` over everything.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm import __version__, device_pattern
from farm.cell import VERSIONS, Cell, canonical_json, cell_key
from farm.contracts import discovery
from farm.errors import UsageError
from farm.matrix import Plan, estimate_seconds
from farm.matrix.plan import Count, plan_hash

MAX_SHOWN = 12  # parts that a refusal names


@dataclass(frozen=True)
class PlanFile:
    """A plan.  `providers`: `[OP:]NAME` -> {"path": module:function, "sha256": of its files, "" if installed}."""

    plan: Plan
    providers: Mapping[str, Mapping[str, str]]
    sha256: str
    text: str  # as it is on disk
    subject: Mapping[str, Any] = field(
        default_factory=dict
    )  # name, revision, source, digest, modules, over; {} for none
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as run.json has them; {} for none

    def described(self, part: str) -> dict[str, Any]:
        """What a run records about the plan that it is a part of."""
        return {"hash": self.plan.plan_hash, "sha256": self.sha256, "part": part, "of": list(parts(self.plan))}


def write(
    plan: Plan,
    providers: Mapping[str, Mapping[str, str]],
    subject: Mapping[str, Any] | None = None,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The file's text; the same plan gives the same text wherever it is made."""
    data = {**plan.to_dict(), "farm": __version__, "providers": {k: dict(v) for k, v in providers.items()}}
    data |= {"subject": dict(subject)} if subject else {}
    data |= {"arms": {name: dict(arm) for name, arm in arms.items()}} if arms else {}
    return json.dumps({"sha256": _digest(data), **data}, ensure_ascii=True, allow_nan=False) + "\n"


def read(text: str, where: str) -> PlanFile:
    """The plan of a file's text.  UsageError, beginning with `where`, if it is not a plan or was damaged."""
    try:
        data = json.loads(text)
        kept = dict(data)
        stated = kept.pop("sha256")
        providers = {str(k): {"path": str(v["path"]), "sha256": str(v["sha256"])} for k, v in data["providers"].items()}
        subject = {str(k): v for k, v in dict(data.get("subject") or {}).items()}
        if subject:
            subject = {**subject, **{k: str(subject[k]) for k in ("name", "revision", "digest")}}
        arms = {str(k): {**v, "digest": str(v["digest"])} for k, v in dict(data.get("arms") or {}).items()}
        if arms and sorted(arms) != ["a", "b"]:
            raise ValueError("a comparison has the arms a and b")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(
            f"{where}: this file was not written by farm plan --out, or was truncated; plan again", id="plan-invalid"
        ) from None
    if stated != _digest(kept):
        raise UsageError(
            f"{where}: the content of this plan does not match its hash, so the file was edited or damaged; plan again",
            id="plan-damaged",
        )
    try:
        return PlanFile(Plan.from_json(text), providers, stated, text, subject, arms)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", id=error.id) from None


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(json.loads(json.dumps(data))).encode()).hexdigest()


def unit(cell: Cell) -> str:
    """The target that a cell is planned for: `cuda:GB200` if the matrix names targets, else `cuda`."""
    return cell.target or cell.backend


def parts(plan: Plan) -> dict[str, int]:
    """The parts that --target can name, with their number of cells: each backend, then its named targets."""
    found: dict[str, int] = {}
    for backend in dict.fromkeys(c.backend for c in plan.cells):
        mine = [c for c in plan.cells if c.backend == backend]
        found[backend] = len(mine)
        for target in dict.fromkeys(c.target for c in mine if c.target):
            found[target] = sum(c.target == target for c in mine)
    return found


def part(plan: Plan, target: str) -> Plan:
    """The cells of `target`, renumbered.  `cuda`: all cells of the backend; `cuda:PATTERN`: the cells of named targets
    that a device of this pattern serves (farm.device_pattern.serves).  UsageError if the plan has no such part."""
    backend, colon, pattern = target.partition(":")
    chosen = [c for c in plan.cells if c.backend == backend and (not colon or _serves(c, target, pattern))]
    if not chosen:
        have = parts(plan)
        near = difflib.get_close_matches(target, have, 1)
        hint = f'did you mean "{near[0]}"? ' if near else ""
        names = [f"{name} ({n} cell{'s' if n > 1 else ''})" for name, n in list(have.items())[:MAX_SHOWN]]
        raise UsageError(
            f"--target {target}: the plan has no such part; {hint}parts of the plan: {', '.join(names)}",
            id="plan-part-unknown",
        )
    return of_cells(plan, chosen)


def of_cells(plan: Plan, chosen: Sequence[Cell]) -> Plan:
    """These cells of a plan, all of one backend, renumbered."""
    cells = tuple(replace(cell, index=index) for index, cell in enumerate(chosen))
    used = {cell.matrix for cell in cells}
    work = [c for c in cells if not c.skip_reason]
    seconds = sum(estimate_seconds(c, discovery.find(c.op)) for c in work)
    count = Count(len(cells), len(cells) - len(work), round(seconds, 3))
    matrices = tuple(m for m in plan.matrices if m.name in used)
    return Plan(cells, matrices, plan_hash(cells), {chosen[0].backend: count})


def _serves(cell: Cell, target: str, pattern: str) -> bool:
    if not cell.target or not pattern:
        return False
    return cell.target == target or device_pattern.serves(cell.target.partition(":")[2], target)


def providers_of(file: PlanFile, cells: tuple[Cell, ...]) -> dict[str, Mapping[str, str]]:
    """The plan's own providers that these cells use."""
    called = {name for c in cells for name in (c.provider, f"{c.op}:{c.provider}")}
    return {name: its for name, its in file.providers.items() if name in called}


def unfit(
    cells: tuple[Cell, ...], version: Callable[[str], int | None], content: Callable[[str], str] = lambda op: ""
) -> str:
    """Why this farm would measure something other than the plan describes; "" if it would not.  `version`: the version
    of an op's contract here, None if there is no such op; `content`: what a contract outside the farm is made of."""
    for cell in cells:
        here = version(cell.op)
        if here is None:
            cure = "; name its folder with --contracts" if cell.contract_content else ""
            return f"the plan contains cells of {cell.op}, an op that this farm does not have{cure}"
        if content(cell.op) != cell.contract_content:
            there, ours = cell.contract_content or "the farm's own", content(cell.op) or "the farm's own"
            return f"the plan uses the contract {there} of {cell.op}, but here it is {ours}"
        if here != cell.contract_version:
            return f"the plan uses version {cell.contract_version} of {cell.op}'s contract, but this farm has {here}"
        mine = VERSIONS.get(cell.timing.method, 1)
        if cell.timing.method != "none" and mine != cell.timing.version:
            method = cell.timing.method
            return f"the plan uses version {cell.timing.version} of {method} timing, but this farm has {mine}"
        if cell_key(cell) != cell.cell_key:
            return f"{cell.cell_id} has a different key in this farm"
    return ""
