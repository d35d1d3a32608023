"""Helpers for references that round on the way, as the kernels do.  Pure; nothing here imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.contracts.dtypes import get
from farm.errors import ContractError

Array = Any  # numpy.ndarray


def round_to(values: Array, dtype: str) -> Array:
    """Values rounded to a dtype of floats, to nearest, ties to even, as float64: for references in NumPy.

    What is beyond the dtype's largest number becomes an infinity, or NaN where the dtype has none.
    """
    d = get(dtype)
    if not d.is_float:
        raise ContractError(f"round_to rounds to dtypes of floats, and {dtype} is none", id="contract-round-to")
    exact = np.asarray(values, np.float64)
    if dtype == "float64":
        return exact
    _, exponent = np.frexp(exact)  # |x| in [2^(e-1), 2^e)
    step = np.exp2((np.maximum(exponent - 1, d.smallest) - d.precision + 1).astype(np.float64))
    with np.errstate(invalid="ignore"):
        found = np.rint(exact / step) * step
    beyond = np.abs(found) > d.largest
    return np.where(beyond, np.copysign(np.inf, found) if d.infinite else np.nan, found)


def wide(tensor: Any) -> Any:
    """A tensor of torch in float32, or as it is if it is float64: for functions that compute in float32 whatever they
    are given, and whose float64 reference does not round."""
    return tensor if str(tensor.dtype) == "torch.float64" else tensor.float()
