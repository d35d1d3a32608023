"""Our kernels on rows that hold a NaN or an infinity: such a row spoils itself, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judged import Call, norm_cell

from kernels.ops.rms_norm.choice import MODES


@pytest.mark.parametrize("family", ["nan", "inf"])
@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
def test_every_mode(op: str, mode: str, operation: str, family: str) -> None:
    for dtype, rows, hidden in (("bfloat16", 7, 130), ("float32", 3, 64)):
        call = Call(replace(norm_cell(op, mode, operation, dtype, "same", rows, hidden), family=family, cell_key=""))
        call.judge(call.run())
