"""Rows of a compiled run, made up, for the tests of differences and pages."""

from __future__ import annotations

import json
from typing import Any

from synthetic_runs import row

BACKEND = {"sm_90": "cuda", "sm_100": "cuda", "gfx942": "rocm", "ascend910b": "ascend"}


def kernel(name: str = "norm", phase: str = "forward", **given: Any) -> dict[str, Any]:
    """What a GPU's compiler says of one kernel."""
    return {
        "kernel": name,
        "phase": phase,
        "hash": f"{name}-{phase}",
        "launches": 1,
        "grid": [64, 1, 1],
        "constants": {"BLOCK": 4096},
        "registers": 40,
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
        "stack_bytes": 0,
        "shared_bytes": 32,
        "warps": 8,
        "blocks_per_core": 6,
        "occupancy": 0.75,
        "limiter": "registers",
        "code_bytes": 2560,
        "code_digest": "aa",
        "instructions": {
            "counted_in": "sass",
            "global_loads": {"128": 4},
            "global_stores": {"128": 2},
            "async_copies": {},
            "local_loads": {},
            "local_stores": {},
        },
        **given,
    }


def buffered(name: str = "norm", phase: str = "forward", **given: Any) -> dict[str, Any]:
    """What the Ascend compiler says of one."""
    return {
        "kernel": name,
        "phase": phase,
        "hash": f"{name}-{phase}",
        "launches": 1,
        "grid": [40, 1, 1],
        "constants": {},
        "ub_bytes": 98_304,
        "ub_limit_bytes": 196_608,
        "ub_share": 0.5,
        "buffers": 14,
        "multi_buffered": 8,
        "scalar_accesses": 0,
        "syncs": 19,
        **given,
    }


def built(
    index: int, target: str = "sm_90", kernels: list[dict[str, Any]] | None = None, **given: Any
) -> dict[str, Any]:
    """One row of a compiled run."""
    found = [kernel()] if kernels is None else kernels
    backend = BACKEND[target]
    base = row(index, **{"backend": backend, "status": "built", **given})
    base.update(
        cell_id=f"{base['cell_id']}@{target}",
        target=f"{backend}:{target}",
        evidence=given.get("evidence", "compiled"),
        resources=json.dumps(found),
        node="node-a",
        device="",
        timing_method="none",
        fingerprint=json.dumps({"triton": "3.7.1"}),
    )
    return base
