"""From matrices and targets to what is compiled: each subject's cell once per target, and what a worker is told of it.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from farm.cell import Cell
from farm.compile import targets as known
from farm.compile.targets import CompileTarget
from farm.contracts import layouts
from farm.contracts.call import call_for
from farm.contracts.discovery import contract
from farm.errors import UsageError
from farm.matrix import Matrix, Plan, plan
from farm.matrix.plan import Count, plan_hash


def plan_for(
    matrices: Sequence[Matrix],
    targets: Sequence[CompileTarget],
    select: str | None = None,
    ids: Sequence[str] | None = None,
) -> Plan:
    """Every cell of a subject, for each target of its backend: the id ends in `@target`, the key is the backend's.

    Peers are not planned: what they compile to is theirs, and much of it is no Triton.  A target may be left without
    cells (its count says so); UsageError where all are.
    """
    found: list[Cell] = []
    counts: dict[str, Count] = {}
    ordinary = plan(matrices, known.backends(targets), select=select, named_targets=False, ids=ids)
    for target in targets:
        subjects = [c for c in ordinary.cells if c.role == "subject" and c.backend == target.backend]
        for cell in subjects:
            made = replace(cell, cell_id=f"{cell.cell_id}@{target.name}", target=target.target, index=len(found))
            found.append(made)
        skipped = sum(bool(c.skip_reason) for c in subjects)
        counts[target.name] = Count(len(subjects), skipped, 0.05 * (len(subjects) - skipped))
    if not found:
        what = f"--select {select} keeps" if select else "the matrices contain"
        raise UsageError(
            f"{what} only peers, but peers are not compiled; select cells of farm, or of your own --provider",
            id="compile-peers-only",
        )
    return Plan(tuple(found), ordinary.matrices, plan_hash(found), counts)


def target_of(cell: Cell) -> str:
    """The name of the target that a planned cell is for."""
    return cell.cell_id.rpartition("@")[2]


def ahead_target(backend: str, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
    """What kernels are built for ahead of the cells of a device that has told this of itself, as
    `farm.child.compile_ahead.Target` takes it; None where nothing can be.  Of a part that the farm does not know, a
    program may take as much memory as of the largest: what takes more than there is fails in the child."""
    if backend == "cuda":
        triton, name, cores, warp = "cuda", str(fingerprint.get("sm", "")), fingerprint.get("multiprocessors"), 32
        arch: int | str = int(name[3:]) if name.startswith("sm_") and name[3:].isdigit() else 0
    elif backend == "rocm":
        triton, name, cores = "hip", str(fingerprint.get("arch", "")).split(":")[0], fingerprint.get("compute_units")
        arch, warp = name, fingerprint.get("warp_size", 64)
    else:
        return None
    sound = [isinstance(n, int) and not isinstance(n, bool) and 0 < n < 1 << 20 for n in (cores, warp)]
    if not arch or not all(sound):
        return None
    like = known.TARGETS.get(name)
    largest = max(t.block_memory for t in known.TARGETS.values() if t.backend == backend)
    memory = like.block_memory if like else largest
    return {"triton": triton, "arch": arch, "warp": warp, "cores": cores, "block_memory": memory}


def told(cell: Cell, provider: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker must know of a cell."""
    return {
        "index": cell.index,
        "op": cell.op,
        "operation": cell.operation,
        "call": call_for(cell, contract(cell.op), provider),
        "tensors": _tensors(cell),
    }


def _tensors(cell: Cell) -> list[dict[str, Any]]:
    """The cell's tensors in the contract's order; an optional input that it does not have is marked `absent`."""
    op = contract(cell.op)
    absent = {p.name: p.nullifies for p in op.parameters if p.nullifies and cell.params.get(p.name) is False}
    here = {t.name for t in op.tensors(cell)}
    whole = replace(cell, params={**cell.params, **dict.fromkeys(absent, True)})
    plans = [
        {
            "name": t.name,
            "dtype": t.dtype,
            "shape": list(t.dims),
            "role": t.role,
            "of": t.of,
            "absent": t.name not in here,
            **({} if t.blocked else {"blocked": False}),
        }
        for t in op.tensors(whole)
        if t.name in here or t.name in absent.values()
    ]
    return [layouts.described(plan, cell.layout, next(iter(cell.dims.values()))) for plan in plans]
