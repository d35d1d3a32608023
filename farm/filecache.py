"""Folders of arrays by content key, made once per host and kept between runs within a bound.

Inputs and float64 references depend on nothing but their key, and making them costs more than reading them: the next
run of the same matrix, and the other judges of this host, find them here.  The key holds a digest of the sources that
make them, so a changed contract never meets an old reference.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from farm.ops import ROOT

#: What the cache may take: this many bytes (FARM_CACHE_GIB sets another bound), and this share of the file system.
DEFAULT_GIB, FREE_SHARE = 24.0, 0.3
#: What was used this recently is never removed: a child may be about to read it.
YOUNG_SECONDS = 1800.0
#: How often what is used says so, by its time; and how often a cache that is full of the young is looked through.
TOUCH_SECONDS, FULL_SECONDS = 60.0, 60.0
#: Once it outgrows its bound it is brought down to this share of it.  It is looked through again when this process has
#: added so much of what was left of the bound then: others add too, and to look through 10^5 folders takes seconds.
LOW_SHARE, ADDED_SHARE = 0.9, 1 / 32
#: Folders whose manifests a process keeps in mind.
KEPT_FOLDERS = 50_000


def default_root() -> Path:
    """FARM_CACHE, else the user's cache folder."""
    if os.environ.get("FARM_CACHE"):
        return Path(os.environ["FARM_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel-farm"


@cache
def source_digest(op: str) -> str:
    """Digest of the sources and the NumPy that make an op's inputs and references."""
    digest = hashlib.sha256(np.__version__.encode())
    ops = ROOT / "kernels" / "ops"
    files = [ROOT / "kernels" / "contract.py", *sorted(ops.glob("*.py"))]  # there lies what contracts share
    files += [*sorted((ROOT / "farm" / "accuracy").glob("*.py")), *sorted((ops / op).glob("contract*.py"))]
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


class FileCache:
    """Folders under `root`, each complete exactly when it bears its final name, with a manifest of sizes and sums.

    `verified` is a folder that lives as long as the run: a key whose content was compared with its manifest is marked
    there, so that each run reads each cached file once before it relies on it (a disk may forget what a crashed host
    had not written yet, and a wrong input makes a wrong reference, and that passes a wrong kernel).
    """

    def __init__(self, root: Path, limit_gib: float | None = None, verified: Path | None = None):
        self.root = root
        self._limit = (limit_gib or float(os.environ.get("FARM_CACHE_GIB", DEFAULT_GIB))) * 2**30
        self._verified = verified or Path(tempfile.mkdtemp(prefix="farm-verified-"))
        self._known: dict[Path, tuple[dict[str, int], float]] = {}  # marked: its files' sizes, when it was touched
        self._lock = threading.Lock()
        self._left = 0.0  # bytes that this process may add before it looks the cache through again
        self._full_until = 0.0  # there is nothing to remove before then
        for folder in (*(root / name for name in ("inputs", "references", "locks", "trash")), self._verified):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def folder(self, kind: str, key: str, make: Callable[[Path], None]) -> Path:
        """The folder of a key, made by whoever comes first on this host while the others wait.

        OSError if the file system is full; nothing half-made is left.
        """
        final = self.root / kind / key
        if self._still_there(final):
            return final
        mark = self._verified / f"{kind}-{key}"
        if mark.exists() and _whole(final):
            with contextlib.suppress(FileNotFoundError):
                os.utime(final)
                self._keep_in_mind(final)
                return final
        with self._only_one(key):
            if not (_whole(final) and (mark.exists() or _unchanged(final))):
                self._trash(final)
                self._make_room()
                temporary = Path(tempfile.mkdtemp(prefix="making-", dir=self.root / "trash"))
                try:
                    make(temporary)
                    self._left -= _write_manifest(temporary)
                    temporary.rename(final)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
            os.utime(final)
            with contextlib.suppress(FileNotFoundError):  # the run has ended meanwhile, its folder with it
                mark.touch()
                self._keep_in_mind(final)
        return final

    def _still_there(self, final: Path) -> bool:
        """Whether this process knows the folder as one that bears the run's mark, and every file has its size still."""
        sizes, touched = self._known.get(final, (None, 0.0))
        if sizes is None:
            return False
        try:
            whole = all((final / name).stat().st_size == size for name, size in sizes.items())
            if whole and time.monotonic() - touched > TOUCH_SECONDS:
                os.utime(final)
                self._known[final] = (sizes, time.monotonic())
        except OSError:
            whole = False
        if not whole:
            self._known.pop(final, None)
        return whole

    def _keep_in_mind(self, final: Path) -> None:
        with contextlib.suppress(OSError, ValueError):
            if len(self._known) >= KEPT_FOLDERS:
                self._known.clear()
            self._known[final] = ({name: size for name, (size, _) in _manifest(final).items()}, time.monotonic())

    @contextlib.contextmanager
    def _only_one(self, key: str) -> Iterator[None]:
        """Held by one thread of one process; the kernel lets go of it when its holder dies."""
        bucket = hashlib.sha256(key.encode()).hexdigest()[:2]  # 256 files in all, not one for every key ever made
        with (self.root / "locks" / bucket).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_room(self) -> None:
        """Remove what was used longest ago once the cache outgrows its bound; maps that are open stay readable."""
        with self._lock:
            if self._left > 0 or time.monotonic() < self._full_until:
                return
            limit = min(self._limit, FREE_SHARE * shutil.disk_usage(self.root).total)
            entries = sorted(self._entries(), key=lambda e: e[0])
            total = sum(size for _, size, _ in entries)
            goal = limit if total <= limit else LOW_SHARE * limit
            for used, size, folder in entries:
                if total <= goal or time.time() - used < YOUNG_SECONDS:
                    break
                self._trash(folder)
                total -= size
            self._left = (limit - total) * ADDED_SHARE
            if total >= limit:
                self._full_until = time.monotonic() + FULL_SECONDS

    def _trash(self, folder: Path) -> None:
        """Remove a folder whole: its name is gone before any of its files is."""
        place = Path(tempfile.mkdtemp(dir=self.root / "trash"))
        with contextlib.suppress(FileNotFoundError):
            folder.rename(place / "gone")
        shutil.rmtree(place, ignore_errors=True)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        for folder in [*(self.root / "references").iterdir(), *(self.root / "inputs").iterdir()]:
            with contextlib.suppress(OSError):
                yield folder.stat().st_mtime, sum(f.stat().st_size for f in folder.iterdir()), folder


MANIFEST = "manifest.json"


def names(folder: Path) -> list[str]:
    """The files of a complete folder, by its manifest."""
    return sorted(_manifest(folder))


def _manifest(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = json.loads((folder / MANIFEST).read_text())
    return found


def _write_manifest(folder: Path) -> int:
    """Returns the bytes of the files that it tells of."""
    found = {f.name: [f.stat().st_size, _sum(f)] for f in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(found))
    return sum(size for size, _ in found.values())


def _whole(folder: Path) -> bool:
    """Whether every file of the manifest has its size."""
    try:
        return all((folder / name).stat().st_size == size for name, (size, _) in _manifest(folder).items())
    except (OSError, ValueError):
        return False


def _unchanged(folder: Path) -> bool:
    """Whether every file of the manifest still holds what was written."""
    try:
        return all(_sum(folder / name) == total for name, (_, total) in _manifest(folder).items())
    except (OSError, ValueError):
        return False


def _sum(file: Path) -> int:
    """Two sums of the file's 64-bit words, all and every fifth, block by block: at the speed of memory, and not the
    same for zeros, for a cut file, or for blocks that changed places."""
    total = 0
    for number, block in enumerate(_blocks(file)):
        both = int(block.sum(dtype=np.uint64)) + 3 * int(block[::5].sum(dtype=np.uint64))
        total = (total * 31 + number + both) % (1 << 62)
    return total


def _blocks(file: Path, size: int = 1 << 20) -> Iterator[Any]:
    with file.open("rb") as source:
        while chunk := source.read(8 * size):
            yield np.frombuffer(chunk + bytes(-len(chunk) % 8), dtype=np.uint64)


def create(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A raw file of `shape` as a writable map.  Its blocks are claimed first: a full disk is an OSError here, and not
    a bus error in the middle of writing."""
    if 0 in shape:
        path.write_bytes(b"")
        return np.empty(shape, dtype)
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape)


def create_npy(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """The same as a .npy file, which knows its own dtype and shape."""
    if 0 in shape:
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped
