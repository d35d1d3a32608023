"""The options of each kernel, which kernels belong together, and what both the rules and the table ask for.  Pure."""

from __future__ import annotations

from typing import Any

#: Backward keeps a float32 share of dw beside the row.
MAX_BACKWARD_BLOCK = 32768

#: The options of each kernel, as they are where a configuration says nothing.  PDL (programmatic dependent launch, from
#: sm_90 on) saves 0.3 us a launch, H200 2026-11.
DEFAULTS: dict[str, dict[str, Any]] = {
    "forward_rows": {
        "span": "row",
        "spread": False,
        "weight": "first",
        "load": "",
        "store": "",
        "tail": True,
        "pdl": True,
    },
    "forward_persistent": {"span": "row", "spread": False, "load": "", "store": "", "pdl": True},
    "forward_chunks": {"keep": 0, "unroll": False, "load": "evict_last", "store": "evict_first", "pdl": True},
    "backward_rows": {
        "span": "row",
        "spread": False,
        "hold": True,
        "fold": True,
        "ahead": 0,
        "load": "",
        "store": "",
        "pdl": True,
    },
    "backward_twice": {"chunk": 4096, "unroll": False, "ahead": 0, "store": "", "pdl": True},
    "backward_columns": {"store": "", "pdl": True},
    "forward_ring": {"slots": 0, "regs": 0, "spare": 3, "hold": True, "early": True, "store": "", "pdl": True},
    "backward_ring": {"slots": 0, "regs": 0, "spare": 3, "hold": True, "store": "", "pdl": True},
    "forward_split": {"parts": 8, "weight": "last", "registers": 0, "load": "", "store": "", "polls": 0, "pdl": True},
    "backward_split": {"parts": 16, "later": True, "load": "", "store": "", "polls": 0, "pdl": True},
    "forward_parts": {"parts": 8, "load": "", "store": "", "pdl": True},
    "backward_strips": {"load": "", "store": "", "pdl": True},
    "forward_unaligned": {"span": "row", "spread": False, "weight": "first", "load": "", "store": "", "pdl": True},
    "backward_unaligned": {
        "span": "row",
        "spread": False,
        "hold": True,
        "fold": True,
        "load": "",
        "store": "",
        "pdl": True,
    },
}

#: The kernels of `unaligned.py`, for rows that are no whole vectors of so many bytes.
UNALIGNED = ("forward_unaligned", "backward_unaligned")
VECTOR = 16
#: The kernels of `ring.py`.
RINGS = ("forward_ring", "backward_ring")
#: The kernels of `split.py`.
SPLITS = ("forward_split", "backward_split")
#: The kernels of `few.py`.
FEW = ("forward_parts", "backward_strips")

#: Bytes of an element.
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
