"""Inputs and references: made by this process for its run (or the runs of one `farm run --watch`), and gone with it.

Code under test runs as the same user, so it can write every file that a path leads to, with its manifest, its digest
and any key that is stored.  Therefore what a verdict depends on has no path: small arrays are plain memory, large ones
maps of files without a name, whose descriptors are closed.  Nothing is kept that a run could write, so no run can
depend on what an earlier one wrote.  Children get copies (`GivenFiles`), which nobody reads again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import math
import mmap
import os
import secrets
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm import limits
from farm.store import spool as spools

#: Of a host's file system, what all its judges may fill: this many GiB (FARM_CACHE_GIB sets another limit), and this
#: share of it.
DEFAULT_GIB, FREE_SHARE = 24.0, 0.3
#: Arrays up to this size are plain memory: a map costs more than their bytes.  Of these a judge keeps so much.
SMALL_BYTES, MEMORY_BYTES = 1 << 20, 32 << 20
KEPT_KEYS = 4096
#: The share of the spool's file system that copies for children may fill, and for how long one that was asked for stays
#: whatever they fill, because a child may be about to read it.
GIVEN_SHARE, YOUNG_SECONDS = 1 / 8, 600.0
#: Why a place cannot hold another file: the next one is tried.
_UNUSABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT)
#: Why a file system has no files without a name: NFS, and the layers of a container on older kernels.
_UNABLE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)

Allocate = Callable[[str, tuple[int, ...], Any], Any]  # name, shape, dtype -> an array to be filled


def default_root() -> Path:
    """FARM_CACHE, else the user's cache folder."""
    if os.environ.get("FARM_CACHE"):
        return Path(os.environ["FARM_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel-farm"


@dataclass(frozen=True)
class Made:
    """What a key stands for: arrays by name, which nobody may write, and their digest where it is needed."""

    arrays: Mapping[str, Any]
    digest: str = ""

    @property
    def in_memory(self) -> int:
        return sum(a.nbytes for a in self.arrays.values() if a.nbytes <= SMALL_BYTES)

    @property
    def in_files(self) -> int:
        return sum(a.nbytes for a in self.arrays.values()) - self.in_memory


class PrivateArrays:
    """Arrays by key, made by the first thread of this process that needs them while the others wait `lock_s` seconds at
    most, and kept as long as there is room: the longest unused go first.

    `places`: folders whose file systems hold large arrays, the first that can; `sharers`: how many judges of this host
    divide the limit.
    """

    def __init__(
        self,
        places: Sequence[Path],
        limit_gib: float | None = None,
        sharers: int = 1,
        lock_s: float = limits.TABLE["lock"],
    ):
        self._places, self._lock_s = list(places), lock_s
        limit = (limit_gib or float(os.environ.get("FARM_CACHE_GIB", DEFAULT_GIB))) * 2**30
        self._limit, self._sharers = limit, max(1, sharers)
        self._used = self._places[0]  # where the last large array is
        self._kept: dict[str, Future[Made]] = {}  # in the order of their last use
        self._sizes: dict[str, tuple[int, int]] = {}  # of those that are made: bytes in memory, and in files
        self._memory = self._files = 0  # the sums of these
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[Allocate], Made]) -> Made:
        """OSError if no place has room."""
        with self._lock:
            found = self._kept.pop(key, None)
            mine: Future[Made] = found or Future()
            self._kept[key] = mine
        if found is not None:
            with contextlib.suppress(Exception):  # it failed, or is stopped: then the same work is done twice
                return found.result(timeout=self._lock_s)
            return _sealed(make(self._allocate))
        try:
            made = _sealed(make(self._allocate))
        except BaseException as error:
            with self._lock:
                self._kept.pop(key, None)
            mine.set_exception(error)
            raise
        mine.set_result(made)
        with self._lock:
            self._count(key, made.in_memory, made.in_files)
            self._make_room()
        return made

    def _count(self, key: str, memory: int, files: int) -> None:
        self._sizes[key] = memory, files
        self._memory, self._files = self._memory + memory, self._files + files

    def _make_room(self) -> None:
        """Forget the longest unused, but never the last; who still uses one keeps its memory."""
        while (
            self._memory > MEMORY_BYTES or len(self._kept) > KEPT_KEYS or (self._files and self._files > self._share())
        ):
            if len(self._sizes) < 2:
                return
            key = next(k for k in self._kept if k in self._sizes)  # others are being made
            del self._kept[key]
            memory, files = self._sizes.pop(key)
            self._memory, self._files = self._memory - memory, self._files - files

    def _share(self) -> float:
        limit = self._limit
        with contextlib.suppress(OSError):
            limit = min(limit, FREE_SHARE * shutil.disk_usage(self._used).total)
        return limit / self._sharers

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size <= SMALL_BYTES:
            return np.zeros(shape, dtype)
        with contextlib.suppress(OSError):  # somebody has removed it
            self._places[0].mkdir(parents=True, exist_ok=True, mode=0o700)
        unable = False
        for place in self._places:
            try:
                found = _mapped(_unnamed(place), size, shape, dtype)
            except OSError as error:
                if error.errno not in (*_UNUSABLE, *_UNABLE):
                    raise
                unable, last = unable or error.errno in _UNABLE, error
            else:
                self._used = place
                return found
        if not unable:
            raise last
        return _mapped(os.memfd_create("farm", os.MFD_CLOEXEC), size, shape, dtype)


def _sealed(made: Made) -> Made:
    for array in made.arrays.values():
        array.setflags(write=False)
    return made


def _mapped(file: int, size: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of zeros in an open file without a name.  Its blocks are allocated first, so that a full disk is an
    OSError here and not a bus error during writing.  No descriptor of it stays open: /proc/PID/fd would be a path."""
    try:
        os.posix_fallocate(file, 0, size)
        address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(file)
    memory: Any = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False  # threads may still read
    return np.frombuffer(memory, dtype).reshape(shape)


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _unnamed(place: Path) -> int:
    """A file that no folder lists and that cannot be given a name.  A name that is removed again would not do: the file
    could be opened in between."""
    return os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)


class GivenFiles:
    """Copies of inputs for children, as raw files in the run's spool: the one folder that a container shares too.

    A child may write them.  What that harms is the input of other children of this run, whose outputs then do not match
    the judge's own inputs: never the judge.  `reserve` is a folder for what the spool cannot hold.
    """

    def __init__(self, spool: Path, reserve: Path, sharers: int = 1):
        self._places, self._sharers = (spool, reserve), max(1, sharers)
        self._name = f"inputs/{secrets.token_hex(8)}"  # below one folder, which a sandbox shows
        self._number = itertools.count()
        self._there: dict[str, _Copies] = {}  # in the order of their last use
        self._total = 0  # bytes
        self._lock = threading.Lock()

    def files(self, key: str, arrays: Mapping[str, Any]) -> dict[str, Path]:
        """Array -> its file.  OSError if there is no room."""
        with self._lock:
            found = self._there.pop(key, None)
            if found is not None and not found.whole():
                self._remove(found)
                found = None
            if found is None:
                self._make_room()
                found = self._copied(arrays)
                self._total += found.size
            found.used = time.monotonic()
            self._there[key] = found
            return {name: found.folder / f"{name}.bin" for name in found.sizes}

    def _copied(self, arrays: Mapping[str, Any]) -> _Copies:
        spool, reserve = self._places
        try:
            return self._copied_to(spool, arrays)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not spool.is_dir():
                raise
        spools.claim(str(reserve))
        return self._copied_to(reserve, arrays)

    def _copied_to(self, place: Path, arrays: Mapping[str, Any]) -> _Copies:
        above = place / self._name
        for made in (above.parent, above):
            made.mkdir(exist_ok=True, mode=0o700)
        folder = above / str(next(self._number))
        folder.mkdir(mode=0o700)
        try:
            for name, array in arrays.items():
                _write(folder / f"{name}.bin", array)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return _Copies(folder, {name: a.nbytes for name, a in arrays.items()})

    def _make_room(self) -> None:
        """Remove the longest unused once all take more than this judge's share, but none that is young."""
        limit = GIVEN_SHARE * shutil.disk_usage(self._places[0]).total / self._sharers
        while self._there and self._total > limit:
            key, oldest = next(iter(self._there.items()))
            if time.monotonic() - oldest.used < YOUNG_SECONDS:
                return
            del self._there[key]
            self._remove(oldest)

    def _remove(self, copies: _Copies) -> None:
        shutil.rmtree(copies.folder, ignore_errors=True)
        self._total -= copies.size


@dataclass
class _Copies:
    folder: Path
    sizes: dict[str, int]
    used: float = 0.0

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def whole(self) -> bool:
        """Whether every file is there, of its size: a spool may be deleted under a run."""
        with contextlib.suppress(OSError):
            files = {f"{self.folder}/{name}.bin": size for name, size in self.sizes.items()}
            return all(os.stat(file).st_size == size for file, size in files.items())  # noqa: PTH116 - of each cell
        return False


def _write(path: Path, array: Any) -> None:
    with path.open("xb", buffering=0) as file:
        if array.nbytes:
            os.posix_fallocate(file.fileno(), 0, array.nbytes)
            left = memoryview(array.reshape(-1).view(np.uint8))
            while left:
                left = left[file.write(left) :]
