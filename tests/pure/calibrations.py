"""Made-up calibrations and devices for the tests of the roof."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from farm.calibration.copies import COPIES, Copy
from farm.errors import CannotMeasure

MIB = 1 << 20
TARGET = {"backend": "cuda", "model": "NVIDIA H200", "power_limit_w": 700}
MADE = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def record(**given: Any) -> dict[str, Any]:
    """A calibration's file: 1 MiB in 2 us, 4 MiB in 4 us, 1 GiB in 256 us."""
    return {
        "schema": 1,
        "id": "cuda-NVIDIA-H200-abc-20261121T120000Z",
        "made": MADE.isoformat(),
        "farm": {"name": "abc"},
        "backend": "cuda",
        "evidence": "executed",
        "target": TARGET,
        "device": "NVIDIA H200 GPU-1",
        "node": "node-a",
        "fingerprint": {"uuid": "GPU-1", "driver": "580.1"},
        "policy": {"method": "rotating_graph", "version": 2, "cache": "cold"},
        "cold": True,
        "curve": [
            {"bytes": MIB, "us": 2.0, "gbps": MIB / 2e3, "config": "once-512x4", "all": {"once-512x4": 2.0}},
            {"bytes": 4 * MIB, "us": 4.0, "gbps": MIB / 1e3, "config": "once-1024x8", "all": {"once-1024x8": 4.0}},
            {"bytes": 1024 * MIB, "us": 256.0, "gbps": 4 * MIB / 1e3, "config": "once-1024x8", "all": {}},
        ],
        "skipped": [{"bytes": 8192 * MIB, "why": "does not fit in the device's memory"}],
        "floors": {"rotating_graph": 1.1, "events": 4.0},
        "gemm": [
            {"dtype": "bfloat16", "edge": 4096, "us": 250.0, "tflops": 550.0},
            {"dtype": "bfloat16", "edge": 8192, "us": 1500.0, "tflops": 733.0},
        ],
        "drift": {
            "bytes": 64 * MIB,
            "config": "once-1024x8",
            "us": [17.0, 17.1, 17.2],
            "at_s": [0, 9, 20],
            "spread": 0.0118,
        },
        "notes": ["GEMM int8: no such product"],
        "telemetry": None,
        "seconds": 21.0,
        **given,
    }


class FakeDevice:
    """A device whose copies take `us(copy, nbytes)` microseconds and whose every measurement takes `step` seconds."""

    def __init__(
        self,
        us: Callable[[Copy, int], float] = lambda copy, nbytes: 1.0 + nbytes / 4e6,
        *,
        step: float = 0.1,
        free: int = 140 << 30,
        gemms: tuple[str, ...] = ("bfloat16", "float16", "float32", "tf32", "float8_e4m3fn", "int8"),
    ):
        self.us, self.step, self.free, self.gemms = us, step, free, gemms
        self.clock = 100.0
        self.copies: list[tuple[int, str]] = []

    def now(self) -> float:
        return self.clock

    def free_bytes(self) -> int:
        return self.free

    def copy_us(self, copy: Copy, nbytes: int) -> float:
        self.clock += self.step
        self.copies.append((nbytes, copy.name))
        return self.us(copy, nbytes)

    def gemm_us(self, dtype: str, edge: int) -> float:
        self.clock += self.step
        if dtype not in self.gemms:
            raise CannotMeasure("no such product")
        return edge / 100

    def floors(self) -> dict[str, float]:
        return {"rotating_graph": 1.0}


def ranked(copy: Copy) -> float:
    """Each configuration a twentieth slower than the one before it."""
    return 1 + 0.05 * COPIES.index(copy)
