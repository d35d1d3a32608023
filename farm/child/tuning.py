"""What Triton's autotuner costs a cell.  An arm whose `tuning` is none takes the first configuration, untimed."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

#: Set in a child whose kernels take their first configuration.
VARIABLE = "FARM_TUNING"


class Tuning:
    """Watches the autotuner of this process, once it has one.  `seconds`: spent on configurations since `begin`;
    `tried`: how many there were."""

    def __init__(self) -> None:
        self.seconds, self.tried = 0.0, 0
        self._none = os.environ.get(VARIABLE) == "none"
        self._watched: type | None = None

    def begin(self) -> None:
        """A cell begins: what imports Triton only now is watched too."""
        self.seconds, self.tried = 0.0, 0
        tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
        if tuner is None or tuner is self._watched or not hasattr(tuner, "_bench"):
            return
        stock, self._watched = tuner._bench, tuner

        def bench(*args: Any, **kwargs: Any) -> Any:
            self.tried += 1
            if self._none:  # all are equally fast, so the first that pruning leaves is taken
                return [1.0, 1.0, 1.0]
            start = time.perf_counter()
            try:
                return stock(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        tuner._bench = bench
