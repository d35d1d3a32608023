"""The known-good cells by which a suspect device proves itself (farm.scheduler.health).

The scheduler names the last cell that passed on such a device.  Before there is one, it is a small norm by torch's own
function: no code under test, and all that a cell needs of a node: its judge, its spool, a child, and the device.
"""

from __future__ import annotations

from farm.cell import Cell
from farm.contracts.discovery import contract

OP, PROVIDER = "rms_norm", "torch"


def small_cell(backend: str) -> Cell:
    """A cell of no plan that a device of any backend can do, in milliseconds once its child is up."""
    op = contract(OP)
    return Cell(
        backend=backend,
        op=OP,
        provider=PROVIDER,
        mode="auto",
        operation="forward",
        dtypes={"x": "float32", "weight": "float32"},
        dims={"rows": 8, "hidden": 64},
        params={p.name: p.default for p in op.parameters},
        contract_version=op.version,
        role="peer",
        cell_id=f"{backend}/{OP}/{PROVIDER}/probe",
    )
