"""`farm compile` of cells for which `auto` chooses a ring kernel, planted in the table of measured configurations; and
the table's own for sm_100."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_built_ring import SHARED, compile_for

from kernels.ops.rms_norm.gpu import choose, measured, tuned

pytestmark = pytest.mark.long
MATRIX = """
name: rings
op: rms_norm
axes: {shape: [{rows: 4096, hidden: [8192, 32768]}], dtype: bfloat16, operation: backward}
"""
PROVIDERS = ("ringed", "without_gluon", "spilling", "misaligned")
#: (op, operation, dtype, rows, hidden) of what the table has for ring kernels, and of one that is like it.
LIKE = ("rms_norm", "backward", "bfloat16", 8192, 32768)
TUNED = [
    ((*key, rows, hidden), config)
    for key, entries in tuned.TABLE.items()
    for rows, hidden, config in entries
    if config["kernel"] in choose.RINGS
]


@pytest.fixture(scope="module")
def found(farm_compile: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("matrix") / "rings.yaml"
    file.write_text(MATRIX)
    own = [w for p in PROVIDERS for w in ("--provider", f"{p}=planted_ring:{p}")]
    return farm_compile(str(file), "--target", "sm_90,sm_100,gfx942", "--no-page", *own)


def names(found: Any, *parts: str) -> list[str]:
    return [kernel["kernel"] for kernel in found.kernels(*parts)]


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_a_cell_of_ring_kernels_is_built_and_its_resources_are_read(found: Any, target: str) -> None:
    for shape in ("4096x8192", "4096x32768"):
        assert found.row("ringed", shape, target)["status"] == "built"
        assert names(found, "ringed", shape, target) == ["forward_ring", "backward_ring", "sum_partials"]
        for kernel in found.kernels("ringed", shape, target)[:2]:
            assert 0 < kernel["registers"] < 256 and kernel["spill_store_bytes"] == kernel["spill_load_bytes"] == 0
            assert 180_000 < kernel["shared_bytes"] <= SHARED and kernel["blocks_per_core"] == 1
            assert kernel["instructions"]["async_copies"] and kernel["instructions"]["global_stores"]
            assert {"CHUNK", "CHUNKS", "SLOTS", "REGS", "AGAIN"} <= set(kernel["constants"])


@pytest.mark.parametrize("shape", ["4096x8192", "4096x32768"])
def test_where_the_ring_cannot_be_another_kernel_is_built(found: Any, shape: str) -> None:
    for target in ("sm_90", "sm_100"):
        assert found.row("without_gluon", shape, target)["status"] == "built"
        assert names(found, "without_gluon", shape, target)[1] == "backward_twice"
    assert found.row("ringed", shape, "gfx942")["status"] == "built"
    assert not any("ring" in name for name in names(found, "ringed", shape, "gfx942"))


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_a_spill_of_a_ring_kernel_is_a_finding_in_narrow_rows(found: Any, target: str) -> None:
    assert found.code == 1
    row = found.row("spilling", "4096x8192", target)
    assert row["status"] == "compile_error" and row["reason"].startswith("backward_ring spills ")
    assert "auto chooses may not spill for hidden up to 8192" in row["reason"]


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_a_ring_kernel_that_does_not_compile_is_named(found: Any, target: str) -> None:
    row = found.row("misaligned", "4096x8192", target)
    assert row["status"] == "compile_error" and row["reason"].startswith("kernel forward_ring: ")
    assert "cp.async does not support transfers smaller than 4 bytes" in found.log("misaligned", "4096x8192", target)


NIGHTLY = pytest.mark.skipif(not os.environ.get("FARM_NIGHTLY"), reason="11 s; as sm_100, so far: make nightly")


@pytest.mark.parametrize("name", ["sm_100", pytest.param("sm_103", marks=NIGHTLY)])
def test_what_is_tuned_spills_nothing_on_blackwell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its table is that of sm_90: what would spill is exchanged, `gpu/measured.py`."""
    ring = {"mode": "static_persistent", "kernel": "backward_ring", "block": 2048, "num_warps": 8, "regs": 2}
    planted = [(LIKE, ring), (LIKE, {**ring, "block": 4096, "num_warps": 16})]
    cases = []
    for asked, config in [*TUNED, *planted]:
        op, operation, dtype, rows, hidden = asked
        monkeypatch.setattr(tuned, "TABLE", {asked[:3]: ((rows, hidden, config),)})
        shape = (name.replace("sm_", "cuda:"), op, operation, dtype, rows, hidden)
        chosen = measured.find(*shape, ring=True, cores=132)
        if chosen is not None:
            cases.append(
                {"op": operation, "fused": op.startswith("fused"), "hidden": hidden, "dtype": dtype, "config": chosen}
            )
    spilling = {**cases[-1], "hidden": 8192, "config": {**ring, "block": 8192, "num_warps": 2}}
    done = compile_for(name, [*cases, spilling], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    spills = [kernel["spill_store_bytes"] for kernel in json.loads(done.stdout.splitlines()[-1])]
    assert spills[:-1] == [0] * len(cases) and len(cases) >= 2
    assert spills[-1] > 0  # what spills is seen
