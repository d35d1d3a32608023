"""Which table of measured launches `auto` uses besides the one that comes with the kernels."""

from __future__ import annotations

import os

from . import dispatch
from .gpu import carried


def use_table(path: str | os.PathLike[str] | None) -> None:
    """Have `auto` use the launches of a table that `farm tune` wrote, from the next call on; None: only those that come
    with the kernels.  ValueError in one sentence for a file that is no table: nothing changes then.

    The environment variable FARM_KERNELS_TABLE names one for the whole process instead.  Not while calls run.
    """
    from . import prepared

    carried.give(path)
    dispatch.choose.cache_clear()
    prepared.forget()
