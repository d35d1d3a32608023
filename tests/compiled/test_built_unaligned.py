"""Rows that are not 16-byte aligned, compiled for sm_90: bodies are read and written 16 bytes at a time, and as
many programs fit a multiprocessor as it is given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
MATRIX = """
name: unaligned-{op}
op: {op}
axes:
  shape: [{{rows: 6144, hidden: [4095, 4097]}}, {{rows: 32768, hidden: 129}}]
  dtype: [bfloat16, float32]
  operation: [forward, backward]
providers: {{farm: {{mode: auto}}}}
"""


@pytest.fixture(scope="module")
def found(farm_compile: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("matrix")
    files = []
    for op in ("rms_norm", "fused_add_rms_norm"):
        files.append(folder / f"{op}.yaml")
        files[-1].write_text(MATRIX.format(op=op))
    return farm_compile(*map(str, files), "--target", "sm_90,gfx942", "--no-page")


def reports(found: Any, target: str) -> list[tuple[str, dict[str, Any]]]:
    """(cell, kernel) of every one of unaligned.py that a cell's own operation is."""
    rows = [(name, row) for name, row in found.rows.items() if name.endswith(f"@{target}")]
    return [
        (name, kernel)
        for name, row in rows
        for kernel in found.kernels(*re.split("[/@]", name))
        if kernel["kernel"] == f"{row['operation']}_unaligned"
    ]


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_auto_takes_them_to_their_kernels_and_nothing_spills(found: Any, target: str) -> None:
    assert found.code == 0 and {r["status"] for r in found.run.rows} == {"built"}
    kernels = reports(found, target)
    assert len(kernels) == 2 * 3 * 2 * 2
    for name, kernel in kernels:
        assert kernel["spill_store_bytes"] == 0, name
        # Of 129 columns, tiles of 32 rows whose second program does not fit were the fastest on an H200 (tuned.py).
        if target == "sm_90" and "32768x129" not in name:
            assert kernel["blocks_per_core"] >= (1 if "fp32" in name else 2), name


def accesses(ptx: str) -> Counter[str]:
    """How many loads and stores of global memory there are of each width in bits; asynchronous copies are loads."""
    found: Counter[str] = Counter()
    for kind, times, bits in re.findall(r"\b(ld|st)\.global\b[\w.:]*?(?:\.v(\d))?\.[bfus](\d+)\b", ptx):
        found[f"{kind} {int(times or 1) * int(bits)}"] += 1
    for size in re.findall(r"\bcp\.async\.c[ag]\.shared\.global\b[\w.:]* \[[^]]*\], \[[^]]*\], (0x[0-9a-f]+|\d+)", ptx):
        found[f"ld {8 * int(size, 0)}"] += 1
    return found


@pytest.fixture(scope="module")
def texts(cache: Path, found: Any) -> dict[str, list[str]]:
    """The PTX of each kernel's specialisations."""
    assert found.code == 0
    made: dict[str, list[str]] = {"forward_unaligned": [], "backward_unaligned": []}
    for file in sorted((cache / "compile" / "triton").rglob("*_unaligned.ptx")):
        made[file.stem].append(file.read_text())
    return made


@pytest.mark.parametrize("kernel", ["forward_unaligned", "backward_unaligned"])
def test_bodies_go_sixteen_bytes_at_a_time(texts: dict[str, list[str]], kernel: str) -> None:
    """x and the other rows' tensors in 128 bits; what is left goes one element at a time: the weight and dw, once a
    program or from the cache, and an element of each edge."""
    assert len(texts[kernel]) >= 4
    for ptx in texts[kernel]:
        seen = accesses(ptx)
        assert seen["ld 128"] >= (1 if kernel == "forward_unaligned" else 2), seen
        assert seen["st 128"] >= 1, seen
        assert set(seen) <= {"ld 128", "st 128", "ld 16", "ld 32", "st 16", "st 32"}, seen


def test_accesses_are_counted() -> None:
    ptx = """
        ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        @%p1 ld.global.L1::evict_last.L2::cache_hint.v8.b16 { %rs1 }, [ %rd2 + 0 ], %rd3;
        @%p1 ld.global.b16 { %rs1 }, [ %rd2 + 0 ];
        cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
        st.global.v2.b64 [ %rd1 + 0 ], { %rd2, %rd3 };
        st.shared.v4.b32 [ %r1 ], { %r1, %r2, %r3, %r4 };
    """
    assert accesses(ptx) == {"ld 128": 3, "ld 16": 1, "st 128": 1}
