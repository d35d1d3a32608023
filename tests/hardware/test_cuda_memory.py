"""On a real NVIDIA GPU: peak memory as peers count it, by their own way of counting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from farm.cli import main
from farm.store import Store

pytestmark = pytest.mark.cuda

if not torch.cuda.is_available():
    pytest.skip("no GPU that torch sees on this host", allow_module_level=True)

MATRIX = """
name: memory
op: rms_norm
axes: {shape: [{rows: 4096, hidden: 4096}], dtype: [bfloat16, float32], operation: [forward, backward]}
providers: [torch, farm]
timing: {method: none}
"""


def test_it_is_what_the_allocator_says_with_the_inputs_alive(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX)
    words = ["run", str(tmp_path / "m.yaml"), "--backend", "cuda", "--address", "inline", "--no-page"]
    assert main([*words, "--out", str(tmp_path / "store"), "--run-id", "memory"]) == 0
    rows = {(r["provider"], r["dtype"], r["operation"]): r for r in Store(tmp_path / "store").run("memory").rows}
    for (_, dtype, operation), row in rows.items():
        matrix = 4096 * 4096 * (4 if dtype == "float32" else 2) / 2**20
        inputs = matrix * (1 if operation == "forward" else 2)
        assert row["peak_memory_live_mib"] - row["peak_memory_mib"] == pytest.approx(inputs, abs=0.1)
        assert row["peak_memory_mib"] >= matrix
    torch.cuda.empty_cache()
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.nn.functional.rms_norm(x, (4096,), weight, 1e-6)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated() - x.nbytes - weight.nbytes  # whatever else lives in this process
    torch.cuda.reset_peak_memory_stats()
    torch.nn.functional.rms_norm(x, (4096,), weight, 1e-6)
    peers = (torch.cuda.max_memory_allocated() - before) / 2**20
    assert rows["torch", "bfloat16", "forward"]["peak_memory_live_mib"] == pytest.approx(peers, rel=0.01)
