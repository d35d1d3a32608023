"""What `benchmarks/tune.py` found on the chips that were measured.  Pure; made by it, not edited.

    python -m benchmarks.tune --table REPORT.json... > kernels/ops/rms_norm/gpu/tuned.py

NVIDIA H200 (sm_90, 132 SMs), torch 2.11.0+cu130, triton 3.6.0, 2026-11-21, policy rotating_graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

#: (op, operation, dtype) -> (rows, hidden, configuration): what `choose.build` takes, but for the kernel's defaults.
# fmt: off
_TEXT: dict[tuple[str, str, str], tuple[tuple[int, int, str], ...]] = {
    ('fused_add_rms_norm', 'backward', 'bfloat16'): (
        (32768, 127, "row_packed backward_unaligned fold=False hold=False num_warps=8 per_core=2 rows=32"),
        (32768, 127, "row_packed backward_rows num_warps=4 per_core=8 rows=8"),
        (32768, 128, "row_packed backward_rows fold=False num_warps=8 per_core=2 rows=32 spread=True"),
        (32768, 129, "row_packed backward_unaligned fold=False hold=False num_warps=8 per_core=2 rows=32"),
        (32768, 129, "row_packed backward_rows num_warps=4 per_core=8 rows=4"),
        (32768, 256, "row_packed backward_rows fold=False num_warps=8 per_core=2 rows=16 span=warp spread=True"),
        (16384, 1000, "row_packed backward_rows hold=False num_warps=4 per_core=4 rows=4"),
        (2048, 1024, "row_packed backward_rows hold=False num_warps=4 per_core=6 rows=8 store=evict_first"),
        (32768, 1024, "row_packed backward_rows load=evict_first num_stages=3 num_warps=4 per_core=3 rows=2"),
        (2048, 2048, "row_packed backward_rows load=evict_last num_stages=4 num_warps=8 per_core=1 rows=2"),
        (8192, 3584, "row_packed backward_rows num_stages=3 num_warps=8 per_core=1 rows=2 spread=True store=evict_first"),
        (6144, 4095, "static_persistent backward_unaligned load=evict_last num_stages=3 num_warps=4 per_core=2"),
        (6144, 4095, "row_packed backward_rows num_warps=32 per_core=1 rows=2"),
        (8192, 4095, "row_packed backward_rows num_stages=2 num_warps=32 per_core=1 rows=2"),
        (4096, 4096, "row_packed backward_rows fold=False load=evict_first num_stages=3 num_warps=16 per_core=1 rows=2"),
        (8192, 4096, "row_packed backward_rows fold=False load=evict_first num_stages=3 num_warps=16 per_core=1 rows=2"),
        (6144, 4097, "static_persistent backward_unaligned load=evict_last num_warps=8 per_core=2"),
        (6144, 4097, "static_persistent backward_rows num_warps=32 per_core=1"),
        (4096, 5120, "static_persistent backward_rows num_stages=4 num_warps=16 per_core=1 store=evict_first"),
        (8192, 5120, "static_persistent backward_rows load=evict_first num_stages=4 num_warps=16 per_core=1 store=evict_first"),
        (4096, 7168, "static_persistent backward_rows load=evict_last num_stages=3 num_warps=16 per_core=1"),
        (8192, 8192, "static_persistent backward_rows fold=False load=evict_last num_stages=3 num_warps=16 per_core=1"),
        (4096, 16384, "static_persistent backward_rows hold=False num_warps=16 per_core=1"),
        (8192, 32768, "static_persistent backward_split later=False load=evict_last num_stages=3 num_warps=8 parts=8 per_core=3"),
        (8192, 32768, "static_persistent backward_ring block=4096 num_warps=16 per_core=1"),
        (8192, 32768, "static_persistent backward_twice chunk=8192 num_warps=16 per_core=1"),
        (4096, 65536, "multi_wave_reload backward_columns block=1024 num_stages=2 num_warps=4 per_core=8 store=evict_first"),
        (8192, 131072, "static_persistent backward_split load=evict_first num_stages=4 num_warps=8 parts=32 per_core=2"),
        (8192, 131072, "column_tiled backward_columns block=1024 num_warps=4 per_core=8 rows=4"),
    ),
    ('fused_add_rms_norm', 'backward', 'float32'): (
        (32768, 128, "row_packed backward_rows fold=False hold=False num_warps=4 per_core=4 rows=16 span=warp spread=True"),
        (2048, 1024, "row_packed backward_rows hold=False num_warps=4 per_core=3 rows=8 store=evict_first"),
        (4096, 4096, "static_persistent backward_rows load=evict_last num_stages=3 num_warps=16 per_core=1"),
        (8192, 4096, "static_persistent backward_rows load=evict_last num_stages=3 num_warps=16 per_core=1"),
        (8192, 8192, "static_persistent backward_ring block=4096 num_warps=32 per_core=1 regs=1 slots=2"),
        (8192, 8192, "static_persistent backward_rows load=evict_last num_stages=2 num_warps=32 per_core=1"),
        (4096, 16384, "static_persistent backward_split later=False load=evict_last num_stages=3 num_warps=8 parts=4 per_core=2"),
        (4096, 16384, "static_persistent backward_ring block=4096 num_warps=16 per_core=1"),
        (4096, 16384, "static_persistent backward_twice num_warps=32 per_core=1 unroll=True"),
        (8192, 32768, "static_persistent backward_twice chunk=2048 num_stages=3 num_warps=16 per_core=1 store=evict_first"),
    ),
    ('fused_add_rms_norm', 'forward', 'bfloat16'): (
        (32768, 127, "row_packed forward_unaligned num_warps=1 rows=4 weight=last"),
        (32768, 127, "row_packed forward_rows num_warps=1 rows=4"),
        (32768, 128, "row_packed forward_rows load=evict_last num_warps=2 rows=16"),
        (32768, 129, "row_packed forward_unaligned num_warps=1 rows=4 weight=last"),
        (32768, 129, "row_packed forward_rows num_warps=1 rows=4"),
        (32768, 256, "row_packed forward_rows load=evict_last num_warps=2 rows=8 span=warp tail=False"),
        (32768, 512, "row_packed forward_rows load=evict_last num_warps=4 rows=4 span=warp spread=True tail=False"),
        (32768, 1000, "row_packed forward_rows load=evict_last num_warps=8 rows=4"),
        (4096, 1024, "row_packed forward_rows load=evict_last num_warps=2 rows=2 tail=False"),
        (32768, 1024, "row_packed forward_rows load=evict_last num_warps=2 rows=2 span=warp spread=True tail=False"),
        (2048, 2048, "multi_wave_cached forward_rows load=evict_last num_warps=2 tail=False"),
        (8192, 3584, "multi_wave_cached forward_rows load=evict_last num_warps=16 tail=False"),
        (16384, 3584, "multi_wave_cached forward_rows load=evict_last num_warps=16"),
        (6144, 4095, "multi_wave_cached forward_unaligned load=evict_last num_warps=4"),
        (6144, 4095, "row_packed forward_rows num_warps=4 rows=2"),
        (8192, 4095, "row_packed forward_rows num_warps=4 rows=2 store=evict_first"),
        (4096, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=16 tail=False"),
        (8192, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=16"),
        (32768, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=16 tail=False weight=last"),
        (6144, 4097, "multi_wave_cached forward_unaligned load=evict_last num_warps=8"),
        (6144, 4097, "multi_wave_cached forward_rows num_warps=4"),
        (4096, 5120, "multi_wave_cached forward_rows load=evict_last num_warps=16 tail=False"),
        (8192, 5120, "multi_wave_cached forward_rows load=evict_last num_warps=16 tail=False"),
        (4096, 7168, "multi_wave_cached forward_rows load=evict_last num_warps=4 tail=False"),
        (8192, 7168, "multi_wave_reload forward_chunks block=8192 num_warps=8 store="),
        (8192, 8192, "multi_wave_cached forward_chunks block=32768 keep=8192 num_warps=16 store="),
        (32768, 8192, "multi_wave_cached forward_chunks block=8192 keep=8192 num_warps=16 store="),
        (4096, 16384, "multi_wave_cached forward_split load=evict_last num_warps=4 registers=48 store=evict_first"),
        (4096, 16384, "multi_wave_reload forward_chunks block=16384 num_warps=32 store="),
        (16384, 32768, "multi_wave_cached forward_split load=evict_last num_warps=16 parts=2 weight=first"),
        (16384, 32768, "multi_wave_reload forward_chunks block=16384 num_warps=32 unroll=True"),
        (8192, 65536, "multi_wave_reload forward_chunks block=16384 keep=32768 num_warps=16"),
        (8192, 131072, "multi_wave_cached forward_split load=evict_last num_warps=16 parts=16 weight=first"),
        (8192, 131072, "multi_wave_reload forward_chunks block=16384 keep=32768 num_warps=16"),
    ),
    ('fused_add_rms_norm', 'forward', 'float32'): (
        (32768, 128, "row_packed forward_rows load=evict_last num_warps=4 rows=8"),
        (4096, 1024, "multi_wave_cached forward_rows load=evict_last num_warps=4"),
        (2048, 2048, "multi_wave_cached forward_rows load=evict_last num_warps=8"),
        (4096, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=16"),
        (8192, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=32"),
        (8192, 8192, "multi_wave_cached forward_chunks block=8192 keep=8192 num_warps=32"),
        (4096, 16384, "multi_wave_cached forward_rows load=evict_last num_warps=16"),
        (16384, 32768, "multi_wave_reload forward_chunks block=32768 num_warps=32"),
    ),
    ('rms_norm', 'backward', 'bfloat16'): (
        (32768, 127, "row_packed backward_unaligned fold=False num_warps=8 per_core=2 rows=32 spread=True"),
        (32768, 127, "row_packed backward_rows fold=False num_warps=4 per_core=8 rows=8"),
        (32768, 128, "row_packed backward_rows fold=False num_stages=5 num_warps=8 per_core=1 rows=32"),
        (32768, 129, "row_packed backward_unaligned fold=False num_warps=8 per_core=2 rows=32 spread=True"),
        (32768, 129, "row_packed backward_rows fold=False num_stages=3 num_warps=4 per_core=4 rows=8"),
        (32768, 256, "row_packed backward_rows fold=False num_stages=3 num_warps=4 per_core=2 rows=16 span=warp spread=True"),
        (16384, 1000, "row_packed backward_rows hold=False load=evict_last num_warps=4 per_core=4 rows=4 store=evict_first"),
        (2048, 1024, "row_packed backward_rows fold=False load=evict_first num_warps=4 per_core=4 rows=8 spread=True store=evict_first"),
        (32768, 1024, "row_packed backward_rows fold=False num_stages=3 num_warps=4 per_core=3 rows=2"),
        (2048, 2048, "row_packed backward_rows hold=False load=evict_first num_warps=8 per_core=2 rows=4 store=evict_first"),
        (8192, 3584, "static_persistent backward_rows num_stages=3 num_warps=8 per_core=2"),
        (6144, 4095, "static_persistent backward_unaligned fold=False num_stages=3 num_warps=8 per_core=2"),
        (6144, 4095, "static_persistent backward_rows num_warps=4 per_core=4"),
        (8192, 4095, "static_persistent backward_rows ahead=1 num_stages=2 num_warps=4 per_core=4"),
        (4096, 4096, "static_persistent backward_rows fold=False load=evict_last num_stages=3 num_warps=8 per_core=2"),
        (8192, 4096, "row_packed backward_rows fold=False num_stages=3 num_warps=16 per_core=1 rows=2"),
        (6144, 4097, "static_persistent backward_unaligned fold=False num_stages=3 num_warps=8 per_core=2"),
        (6144, 4097, "static_persistent backward_rows num_warps=32 per_core=1"),
        (4096, 5120, "row_packed backward_rows load=evict_last num_stages=3 num_warps=16 per_core=1 rows=2"),
        (8192, 5120, "row_packed backward_rows load=evict_last num_stages=3 num_warps=16 per_core=1 rows=2"),
        (4096, 7168, "static_persistent backward_rows load=evict_first num_stages=4 num_warps=16 per_core=1"),
        (8192, 8192, "static_persistent backward_rows fold=False load=evict_first num_stages=3 num_warps=16 per_core=1"),
        (4096, 16384, "static_persistent backward_rows hold=False num_warps=16 per_core=1"),
        (8192, 32768, "static_persistent backward_ring block=2048 num_warps=8 per_core=1 regs=2"),
        (8192, 32768, "static_persistent backward_twice chunk=16384 num_warps=8 per_core=2 unroll=True"),
        (16384, 32768, "static_persistent backward_ring block=2048 num_warps=8 per_core=1 regs=2"),
        (16384, 32768, "static_persistent backward_twice chunk=16384 num_warps=8 per_core=2 unroll=True"),
        (4096, 65536, "multi_wave_reload backward_columns block=2048 num_warps=4 per_core=8"),
        (8192, 131072, "static_persistent backward_split later=False load=evict_first num_stages=3 num_warps=8 parts=8 per_core=1"),
        (8192, 131072, "multi_wave_reload backward_columns block=2048 num_warps=4 per_core=8"),
    ),
    ('rms_norm', 'backward', 'float32'): (
        (32768, 128, "row_packed backward_rows fold=False num_warps=8 per_core=1 rows=32"),
        (2048, 1024, "row_packed backward_rows hold=False num_warps=4 per_core=8 rows=8"),
        (2048, 2048, "row_packed backward_rows load=evict_first num_stages=3 num_warps=16 per_core=1 rows=2"),
        (4096, 4096, "static_persistent backward_rows load=evict_last num_stages=3 num_warps=16 per_core=1"),
        (8192, 4096, "static_persistent backward_rows load=evict_first num_stages=3 num_warps=32 per_core=1"),
        (8192, 8192, "static_persistent backward_rows load=evict_last num_warps=16 per_core=1"),
        (4096, 16384, "static_persistent backward_split later=False load=evict_last num_stages=3 num_warps=8 parts=4 per_core=2"),
        (4096, 16384, "static_persistent backward_twice chunk=8192 num_stages=3 num_warps=32 per_core=1 unroll=True"),
        (8192, 32768, "static_persistent backward_twice chunk=16384 num_warps=8 per_core=4"),
    ),
    ('rms_norm', 'forward', 'bfloat16'): (
        (32768, 127, "row_packed forward_unaligned load=evict_first num_warps=1 rows=16 store=evict_first"),
        (32768, 127, "row_packed forward_rows num_warps=1 rows=8"),
        (32768, 128, "row_packed forward_rows load=evict_first num_warps=1 rows=8 store=evict_first tail=False"),
        (32768, 129, "row_packed forward_unaligned load=evict_first num_warps=1 rows=16 store=evict_first"),
        (32768, 129, "row_packed forward_rows num_warps=2 rows=8 span=warp spread=True"),
        (32768, 256, "row_packed forward_rows load=evict_last num_warps=4 rows=8 tail=False"),
        (32768, 512, "row_packed forward_rows load=evict_last num_warps=8 rows=8 span=warp tail=False"),
        (32768, 1000, "row_packed forward_rows load=evict_last num_warps=4 rows=2 spread=True weight=last"),
        (4096, 1024, "row_packed forward_rows load=evict_last num_warps=2 rows=2 span=warp store=evict_first"),
        (32768, 1024, "row_packed forward_rows load=evict_last num_warps=2 rows=2 span=warp"),
        (2048, 2048, "static_persistent forward_persistent num_stages=3 num_warps=4 per_core=12"),
        (8192, 3584, "multi_wave_cached forward_rows load=evict_last num_warps=4 tail=False"),
        (16384, 3584, "multi_wave_cached forward_rows load=evict_last num_warps=8 weight=last"),
        (6144, 4095, "static_persistent forward_unaligned num_stages=3 num_warps=4 per_core=8"),
        (6144, 4095, "row_packed forward_rows num_warps=4 rows=2"),
        (8192, 4095, "row_packed forward_rows num_warps=4 rows=2 tail=False"),
        (4096, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=8"),
        (8192, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=8 tail=False"),
        (32768, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=8"),
        (6144, 4097, "static_persistent forward_unaligned num_stages=3 num_warps=4 per_core=8"),
        (6144, 4097, "multi_wave_cached forward_rows num_warps=4"),
        (4096, 5120, "multi_wave_cached forward_rows load=evict_first num_warps=4 store=evict_first"),
        (8192, 5120, "multi_wave_cached forward_rows load=evict_last num_warps=4"),
        (4096, 7168, "multi_wave_cached forward_rows load=evict_last num_warps=8"),
        (8192, 7168, "multi_wave_cached forward_rows load=evict_last num_warps=8"),
        (8192, 8192, "multi_wave_cached forward_rows load=evict_last num_warps=8 tail=False"),
        (32768, 8192, "column_tiled forward_chunks block=16384 num_warps=8 rows=2"),
        (4096, 16384, "multi_wave_cached forward_rows load=evict_last num_warps=16"),
        (8192, 32768, "multi_wave_reload forward_chunks block=8192 num_warps=32 unroll=True"),
        (16384, 32768, "multi_wave_cached forward_split load=evict_last num_warps=4 registers=40 store=evict_first"),
        (16384, 32768, "multi_wave_reload forward_chunks block=2048 num_warps=32 unroll=True"),
        (8192, 65536, "multi_wave_reload forward_chunks block=32768 keep=32768 num_warps=32 unroll=True"),
        (8192, 131072, "multi_wave_cached forward_split num_warps=4 parts=16"),
        (8192, 131072, "static_persistent forward_ring block=8192 hold=False num_warps=8 per_core=1 regs=6"),
        (8192, 131072, "multi_wave_reload forward_chunks block=32768 keep=16384 num_warps=32"),
    ),
    ('rms_norm', 'forward', 'float16'): (
        (4096, 1024, "static_persistent forward_persistent load=evict_last num_stages=3 num_warps=4 per_core=8 rows=4"),
    ),
    ('rms_norm', 'forward', 'float32'): (
        (32768, 128, "row_packed forward_rows load=evict_last num_warps=1 rows=8"),
        (4096, 1024, "row_packed forward_rows load=evict_last num_warps=1 rows=2 span=warp spread=True"),
        (2048, 2048, "row_packed forward_rows load=evict_first num_warps=8 rows=4"),
        (4096, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=16"),
        (8192, 4096, "multi_wave_cached forward_rows load=evict_last num_warps=16"),
        (8192, 8192, "multi_wave_cached forward_chunks block=8192 keep=8192 num_warps=16"),
        (4096, 16384, "multi_wave_reload forward_chunks block=4096 num_warps=32"),
        (16384, 32768, "multi_wave_reload forward_chunks block=32768 num_warps=32"),
        (8192, 65536, "static_persistent forward_ring block=8192 hold=False num_warps=16 per_core=1 regs=2"),
    ),
}
# fmt: on


def _value(text: str) -> int | bool | str:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else text


def _parsed(text: str) -> dict[str, Any]:
    """ "mode kernel key=value ..." as a dict."""
    mode, kernel, *pairs = text.split()
    return {"mode": mode, "kernel": kernel, **{k: _value(v) for k, v in (p.split("=") for p in pairs)}}


#: The same with each configuration parsed.
TABLE: dict[tuple[str, str, str], tuple[tuple[int, int, dict[str, Any]], ...]] = {
    key: tuple((rows, hidden, _parsed(text)) for rows, hidden, text in entries) for key, entries in _TEXT.items()
}

#: Measured on sm_90; sm_100 and sm_103 take the same (reasoned: the same registers and threads a multiprocessor).
TARGETS = ("cuda:90", "cuda:100", "cuda:103")
#: How many times fewer rows than the measured shape a configuration is still trusted with, and a forward's with how
#: many times more (reasoned).  A backward's fixed grid loops over any number: more rows only repeat what was measured.
_FAR = 16


def _tile(hidden: int, vector: int, kernel: str) -> int:
    """The tile of a row; the unaligned kernels' holds its whole vectors."""
    columns = hidden // vector * vector if kernel.endswith("_unaligned") else hidden
    return 1 << max(columns - 1, 0).bit_length()


def find(
    target: str,
    op: str,
    operation: str,
    dtype: str,
    rows: int,
    hidden: int,
    serves: Callable[[str, int], bool] = lambda kernel, measured: True,
    own: Mapping[tuple[str, str, str], tuple[tuple[int, int, dict[str, Any]], ...]] = MappingProxyType({}),
) -> tuple[int, dict[str, Any]] | None:
    """(measured columns, configuration) for a shape: of the shapes measured in the same tile the nearest one; None
    where there is none.

    `serves` says which kernels, measured at so many columns, can serve; of one shape's configurations the first that
    does was the fastest.  `own`: what was measured on this target besides; it comes first where both are as near.
    """
    vector = 4 if dtype == "float32" else 8  # elements in 16 bytes
    entries: tuple[tuple[int, int, dict[str, Any]], ...] = ()
    for kind in (dtype, "bfloat16") if dtype == "float16" else (dtype,):  # as large, where it was not measured itself
        entries += own.get((op, operation, kind), ())
        entries += TABLE.get((op, operation, kind), ()) if target in TARGETS else ()
    near = []
    for place, (measured_rows, measured_hidden, config) in enumerate(entries):
        ratio, kernel = math.log2(measured_rows / rows), config["kernel"]
        same_tile = _tile(measured_hidden, vector, kernel) == _tile(hidden, vector, kernel)
        same_loads = (measured_hidden % vector == 0) == (hidden % vector == 0)  # in rows that are aligned, or not
        most = math.inf if operation == "backward" else math.log2(_FAR)
        if serves(kernel, measured_hidden) and same_tile and same_loads and -most <= ratio <= math.log2(_FAR):
            far = abs(ratio) + 4 * abs(math.log2(measured_hidden / hidden))
            near.append((far, place, measured_hidden, config))
    return min(near, key=lambda n: n[:2])[2:] if near else None
