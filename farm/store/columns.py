"""Columns of an index as NumPy arrays.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Texts(NamedTuple):
    """A column of texts: `values[codes[i]]` is row i's."""

    values: list[str]
    codes: NDArray[np.int64]

    def where(self, wanted: Iterable[str]) -> NDArray[np.bool_]:
        """Which rows have one of these texts."""
        some = set(wanted)
        return np.array([v in some for v in self.values] or [False], dtype=bool)[self.codes]
