"""Where compiled kernels are kept between runs: Triton's own cache, and reports of resources, under one bound."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

from farm.judge.cache import default_root

#: A kernel takes about 150 kB in Triton's cache: some 25,000 kernels.
LIMIT_BYTES = 4 << 30
#: What was used this recently stays whatever the size: a run that goes on may be reading it.
YOUNG_SECONDS = 3600.0


def folder(fallback: Path) -> Path:
    """The cache's folder; `fallback` where the user's cannot be written."""
    root = default_root() / "compile"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError:
        fallback.mkdir(parents=True, exist_ok=True)
        return fallback
    return root


def trim(root: Path, limit: int = LIMIT_BYTES, now: float | None = None) -> int:
    """Remove kernels that were made longest ago once all of them take more than `limit` bytes; returns how many."""
    entries = []
    with contextlib.suppress(OSError):
        for entry in (root / "triton").iterdir():
            with contextlib.suppress(OSError):
                size = sum(f.stat().st_size for f in entry.iterdir()) if entry.is_dir() else entry.stat().st_size
                entries.append((entry.stat().st_mtime, size, entry))
    total = sum(size for _, size, _ in entries)
    removed = 0
    for used, size, entry in sorted(entries):
        if total <= limit or (now or time.time()) - used < YOUNG_SECONDS:
            break
        shutil.rmtree(entry, ignore_errors=True)
        total -= size
        removed += 1
    return removed
