"""What was launched: kernels note their launches here while a recorder listens, and at no other time.

A caller that wants to know which kernel really served a call (a mode may be `auto`) wraps it:

    enable(); rms_norm(x, w); disable(); drain()
    # [{"kernel": "forward_block", "grid": [4096], "num_warps": 8, "num_stages": 1, "block": 4096, ...}]
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

_lock = threading.Lock()  # backward runs in autograd's own thread
_records: list[dict[str, Any]] = []
_enabled = False


def enable() -> None:
    """Start to record; what was recorded before stays until it is drained."""
    global _enabled
    _enabled = True


def disable() -> None:
    """Stop to record: from here a launch pays one check of a flag."""
    global _enabled
    _enabled = False


def listening() -> bool:
    """Whether a recorder listens: what is only for it need not be made otherwise."""
    return _enabled


def record(kernel_name: str, grid: Sequence[int], meta: Mapping[str, Any]) -> None:
    """Note one launch, if a recorder listens; `meta` holds what decided it (num_warps, block, mode, direction)."""
    if _enabled:
        with _lock:
            _records.append({"kernel": kernel_name, "grid": [int(g) for g in grid], **meta})


def drain() -> list[dict[str, Any]]:
    """The launches since the last drain, in order; they are forgotten here."""
    with _lock:
        out = list(_records)
        _records.clear()
    return out
