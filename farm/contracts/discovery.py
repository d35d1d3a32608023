"""Finds the ops: every folder `farm/contracts/ops/<op>/` with a `contract.py`."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path

from farm.contracts.base import Contract

OPS = Path(__file__).resolve().parent / "ops"


@lru_cache(maxsize=1)
def known_ops() -> tuple[str, ...]:
    """The names of all ops, sorted."""
    return tuple(sorted(p.parent.name for p in OPS.glob("*/contract.py")))


def find(op: str) -> Contract | None:
    """The contract of `op`, or None."""
    return contract(op) if op in known_ops() else None


@cache
def contract(op: str) -> Contract:
    """The contract of `op`; KeyError if there is none."""
    if op not in known_ops():
        raise KeyError(op)
    found: Contract = import_module(module_of(op)).CONTRACT
    return found


def module_of(op: str) -> str:
    """The module that defines an op's contract."""
    return f"farm.contracts.ops.{op}.contract"
