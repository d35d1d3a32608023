"""From YAML to a resolved matrix, its cells, and a plan.  Pure, except for reading the file.

Needs PyYAML, and NumPy for contracts.

matrices = load_all(path)            one per YAML document
cells(matrix, ["cuda"])              lazily, in order
plan(matrices, ["cuda"])             each cell once, numbered, counted, hashed
"""

from .expand import cells, select, select_rule
from .ids import cell_id
from .load import load, load_all, load_files, load_tolerances
from .model import DEFAULT_DEADLINES, Matrix, MatrixInfo, Tolerance, quiet_of, tolerances_for
from .plan import Plan, default_backends, estimate_seconds, plan
from .registry import ProviderInfo, builtin_providers
from .schema import json_schema
from .timing_policy import default_timing

__all__ = [
    "DEFAULT_DEADLINES",
    "Matrix",
    "MatrixInfo",
    "Plan",
    "ProviderInfo",
    "Tolerance",
    "builtin_providers",
    "cell_id",
    "cells",
    "default_backends",
    "default_timing",
    "estimate_seconds",
    "json_schema",
    "load",
    "load_all",
    "load_files",
    "load_tolerances",
    "plan",
    "quiet_of",
    "select",
    "select_rule",
    "tolerances_for",
]
