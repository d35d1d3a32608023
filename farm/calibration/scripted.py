"""A calibration on backend `sim`: a scripted clock, so that the whole way runs where there is no accelerator."""

from __future__ import annotations

from farm.calibration.copies import COPIES, Copy
from farm.errors import CannotMeasure

FLOOR_US = 2.0
GBPS = 1000.0
TFLOPS = {"bfloat16": 100.0, "float16": 100.0, "float32": 10.0}
MEMORY = 16 << 30
#: Seconds of the scripted clock that one measurement takes.
STEP_S = 0.1


def copy_us(nbytes: int) -> float:
    """What the best copy of a fake takes: 2 us, and its bytes at 1000 GB/s."""
    return FLOOR_US + nbytes / (GBPS * 1e3)


class ScriptedDevice:
    """Answers at once; the best configuration is the first, each further one is a hundredth slower."""

    def __init__(self) -> None:
        self.clock = 0.0

    def now(self) -> float:
        return self.clock

    def free_bytes(self) -> int:
        return MEMORY

    def copy_us(self, copy: Copy, nbytes: int) -> float:
        self.clock += STEP_S
        return copy_us(nbytes) * (1 + 0.01 * COPIES.index(copy))

    def gemm_us(self, dtype: str, edge: int) -> float:
        self.clock += STEP_S
        if dtype not in TFLOPS:
            raise CannotMeasure("this simulated device has no rate for the dtype")
        return 2 * edge**3 / TFLOPS[dtype] / 1e6

    def floors(self) -> dict[str, float]:
        return {"host": FLOOR_US}
