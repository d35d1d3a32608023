"""Folders of arrays by content key, made once per host and kept between runs up to a size limit.

Inputs and float64 references depend only on their key, and reading them is cheaper than making them.  The next run of
the same matrix, and the other judges of this host, find them here.  The key contains a digest of the sources that make
them (`source_digest`), so a changed contract is never used with an old reference; the rest of it is made of what the
contract can read (farm/contracts/view.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from farm import STARTED_NS, limits
from farm.contracts.digest import Origin, origin
from farm.contracts.discovery import PACKAGE, contract, module_of
from farm.deadline import Deadline
from farm.errors import ContractError

#: Raised when the files in a folder, or their format, change.
LAYOUT = 2
#: The size limit of the cache: this many GiB (FARM_CACHE_GIB sets another limit), and this share of the file system.
DEFAULT_GIB, FREE_SHARE = 24.0, 0.3
#: A folder used this recently is never removed, because a child may be about to read it.
YOUNG_SECONDS = 1800.0
#: How often the time of a used folder is updated; and how often a cache full of recent folders is scanned.
TOUCH_SECONDS, FULL_SECONDS = 60.0, 60.0
#: A cache above its limit is reduced to this share of it.  It is scanned again after this process has added the second
#: share of the space left then: other processes add folders too, and a scan of 10^5 folders takes seconds.
LOW_SHARE, ADDED_SHARE = 0.9, 1 / 32
#: How often one that waits for another's work looks whether it is done.
LOCK_LOOK_SECONDS = 0.02
#: Folders whose manifests a process keeps in memory.
KEPT_FOLDERS = 50_000


def default_root() -> Path:
    """FARM_CACHE, else the user's cache folder."""
    if os.environ.get("FARM_CACHE"):
        return Path(os.environ["FARM_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel-farm"


@cache
def source_digest(op: str) -> str:
    """Digest of all that makes an op's inputs and references: the sources of its contract and of what cuts its work
    into blocks, with their imports, data files and versions, and how folders of this cache are laid out.

    If a source was changed after this process began, nobody knows which text the process has loaded.  What it makes is
    then its own: no other process finds it.  ContractError if the contract loads code that cannot be followed.
    """
    contract(op)  # first: it may extend where modules are found
    own = origin([module_of(op)])
    if own.computed:
        raise ContractError(
            f"the contract of {op} loads code by a computed name ({own.computed[0]}), so a reference could be older "
            "than its sources; write an import statement",
            id="contract-computed-import",
        )
    parts: list[Any] = [LAYOUT, own.digest, _evaluation().digest]
    # what was sent to this process was unpacked after it began, and its content was checked
    loaded = replace(own, files={k: v for k, v in own.files.items() if not k.startswith(f"{PACKAGE}.")})
    if loaded.changed_after(STARTED_NS) or _evaluation().changed_after(STARTED_NS):
        parts += [os.getpid(), STARTED_NS]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@cache
def _evaluation() -> Origin:
    return origin(["farm.accuracy.evaluate"])


class FileCache:
    """Folders under `root`, each with a manifest of sizes and sums.  A folder with its final name is complete.

    `verified` is a folder that exists as long as the run.  It marks each key whose content was compared with its
    manifest, so that each run reads each cached file once before it relies on it: after a crash of the host, data may
    be missing on disk, and a wrong input makes a wrong reference, which lets a wrong kernel pass.
    """

    def __init__(
        self,
        root: Path,
        limit_gib: float | None = None,
        verified: Path | None = None,
        lock_s: float = limits.TABLE["lock"],
    ):
        self.root, self._lock_s = root, lock_s
        self._limit = (limit_gib or float(os.environ.get("FARM_CACHE_GIB", DEFAULT_GIB))) * 2**30
        self._verified = verified or Path(tempfile.mkdtemp(prefix="farm-verified-"))
        self._known: dict[Path, tuple[dict[str, int], float]] = {}  # verified folders: their files' sizes, last touch
        self._lock = threading.Lock()
        self._left = 0.0  # bytes that this process may add before it scans the cache again
        self._full_until = 0.0  # nothing can be removed before then
        self._verified.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_folders()

    def _make_folders(self) -> None:
        """The cache's own, again where somebody has removed them; not after the run has ended, which may hold them."""
        if self._verified.is_dir():
            for name in ("inputs", "references", "locks", "trash"):
                (self.root / name).mkdir(parents=True, exist_ok=True, mode=0o700)

    def folder(self, kind: str, key: str, make: Callable[[Path], None]) -> Path:
        """The folder of a key, made by the first process on this host that needs it, while the others wait `lock_s`
        seconds at most.

        OSError if the file system is full; no incomplete folder is left.
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
                    self._left -= _write_manifest(temporary, f"{kind}/{key}")
                    self._named(temporary, final)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
            os.utime(final)
            with contextlib.suppress(FileNotFoundError):  # the run, and its folder, has ended meanwhile
                mark.touch()
                self._keep_in_mind(final)
        return final

    def _named(self, made: Path, final: Path) -> None:
        """Give a folder its name; one that another process has made meanwhile stays, if it is whole."""
        try:
            made.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not _unchanged(final):
                self._trash(final)
                made.rename(final)

    def _still_there(self, final: Path) -> bool:
        """Whether this process knows that the run has verified the folder, and every file still has its size."""
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
        with contextlib.suppress(OSError, *_GARBLED):
            if len(self._known) >= KEPT_FOLDERS:
                self._known.clear()
            self._known[final] = ({name: size for name, (size, _) in _manifest(final).items()}, time.monotonic())

    @contextlib.contextmanager
    def _only_one(self, key: str) -> Iterator[bool]:
        """Held by one thread of one process; the kernel releases it when its holder dies.  False after `lock_s` without
        it: its holder may be stopped, and whoever goes on without it does the same work twice, and no harm."""
        self._make_folders()
        with (self.root / "locks" / "keys").open("ab") as file:
            deadline = Deadline(self._lock_s)
            while not (mine := _locked(file.fileno(), key)) and not deadline.expired:
                time.sleep(min(LOCK_LOOK_SECONDS, deadline.remaining))
            yield mine

    def _make_room(self) -> None:
        """Remove the least recently used folders once the cache exceeds its limit; open maps stay readable."""
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
        """Remove a complete folder: first its name, then its files."""
        place = Path(tempfile.mkdtemp(dir=self.root / "trash"))
        with contextlib.suppress(FileNotFoundError):
            folder.rename(place / "gone")
        shutil.rmtree(place, ignore_errors=True)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        for folder in [*(self.root / "references").iterdir(), *(self.root / "inputs").iterdir()]:
            with contextlib.suppress(OSError):
                yield folder.stat().st_mtime, sum(f.stat().st_size for f in folder.iterdir()), folder


def _locked(file: int, key: str) -> bool:
    """Lock the key's byte in an open file, which may be empty: no two keys have the same one.  True also where the file
    system has no such locks."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


MANIFEST = "manifest.json"
_GARBLED = (ValueError, TypeError, AttributeError, KeyError)  # what reading a manifest that is none may raise


def names(folder: Path) -> list[str]:
    """The files of a complete folder, by its manifest."""
    return sorted(_manifest(folder))


def _manifest(folder: Path) -> dict[str, list[int]]:
    """File -> size, sum.  ValueError if it is not the manifest of this folder: an older one, a copy, garbage."""
    told = json.loads((folder / MANIFEST).read_text())
    if not isinstance(told, dict) or told.get("of") != f"{LAYOUT} {folder.parent.name}/{folder.name}":
        raise ValueError(f"{folder}: its manifest belongs to another folder")
    found: dict[str, list[int]] = told["files"]
    return found


def _write_manifest(folder: Path, name: str) -> int:
    """Returns the total size of the files in the manifest."""
    found = {f.name: [f.stat().st_size, _sum(f)] for f in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"of": f"{LAYOUT} {name}", "files": found}))
    return sum(size for size, _ in found.values())


def _whole(folder: Path) -> bool:
    """Whether every file of the manifest has its size."""
    try:
        return all((folder / name).stat().st_size == size for name, (size, _) in _manifest(folder).items())
    except (OSError, *_GARBLED):
        return False


def _unchanged(folder: Path) -> bool:
    """Whether every file of the manifest is unchanged."""
    try:
        return all(_sum(folder / name) == total for name, (_, total) in _manifest(folder).items())
    except (OSError, *_GARBLED):
        return False


def _sum(file: Path) -> int:
    """Two sums of the file's 64-bit words, all of them and every fifth, block by block.  They run at memory speed, and
    differ for zeros, a truncated file, or exchanged blocks."""
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
    """A raw file of `shape` as a writable map.  Its blocks are allocated first, so that a full disk is an OSError here
    and not a bus error during writing."""
    if 0 in shape:
        path.write_bytes(b"")
        return np.empty(shape, dtype)
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape)


def create_npy(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """The same as a .npy file, which stores its dtype and shape."""
    if 0 in shape:
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped
