"""Files from elsewhere, by the one unpacker and the one copier: nothing leaves its folder, or its bounds.

What comes from elsewhere names files as it likes: an archive's entries, a provider's files, the logs of a run that
somebody copied here.  Links are never followed, and only plain files are read and written.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from farm.errors import FarmSignal

#: Of one archive, or of one provider.
MOST_BYTES, MOST_FILES = 256 << 20, 20_000
_LONGEST_NAME, _LONGEST_PART = 1000, 255


class NotInside(FarmSignal, ValueError):
    """A name, or a kind of entry, that has no place in a folder; or more than its bounds.  The text is a clause."""


def inside(name: str) -> PurePosixPath:
    """`name` as the path of a file below some folder.  NotInside for any other name."""
    parts = name.split("/")
    wrong = "\0" in name or len(name) > _LONGEST_NAME or any(len(os.fsencode(p)) > _LONGEST_PART for p in parts)
    if wrong or {"", ".", ".."} & set(parts):
        raise NotInside(f'contains "{name[:200]}", which is not a plain file inside it')
    return PurePosixPath(name)


def members(blob: bytes, *, strict: bool = True) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each plain file in a tar archive.  NotInside where there is something else, or, not `strict`,
    without it; tarfile.TarError for what is no archive."""
    left = MOST_BYTES
    with tarfile.open(fileobj=io.BytesIO(blob), mode="r:") as tar:
        for entry in tar:
            if not entry.isreg():
                if strict:
                    raise NotInside(f'contains "{entry.name[:200]}", which is not a plain file inside it')
                continue
            left -= entry.size  # before it is read: of a sparse file the archive holds little
            if left < 0:
                raise NotInside(f"has more than {MOST_BYTES >> 20} MiB")
            data = tar.extractfile(entry)
            assert data is not None
            yield entry.name, data.read()


def write_all(content: Iterable[tuple[str, bytes]], final: Path) -> Path:
    """Write files below `final`, all of them or none; nothing if it is there.  Returns it.

    The folder gets its name only when it is complete, so several processes may do this at once, and a killed one leaves
    nothing that looks complete.  NotInside for a name that would leave it; OSError.
    """
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="unpack-", dir=final.parent))
    try:
        _write_into(temporary, content)
        temporary.chmod(0o755)
        with contextlib.suppress(OSError):
            temporary.rename(final)
        if not final.is_dir():
            temporary.rename(final)  # whose error says why
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _write_into(folder: Path, content: Iterable[tuple[str, bytes]]) -> None:
    left = MOST_BYTES
    for number, (name, data) in enumerate(content):
        left -= len(data)
        if left < 0 or number >= MOST_FILES:
            raise NotInside(f"has more than {MOST_BYTES >> 20} MiB, or more than {MOST_FILES} files")
        target = folder.joinpath(inside(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(data)


def read(path: Path, most: int, *, whole: bool = False) -> bytes:
    """The last `most` bytes of a plain file; OSError for a link or anything else, and, where the `whole` file is
    wanted, for a longer one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path.name} is not a plain file")
        if whole and found.st_size > most:
            raise OSError(f"{path.name} has more than {most >> 20} MiB")
        file.seek(max(0, found.st_size - most))
        return file.read(most)


def copy(source: Path, target: Path, most: int, *, whole: bool = False) -> None:
    """`read` into a new file.  OSError if there is one."""
    data = read(source, most, whole=whole)
    with target.open("xb") as file:
        file.write(data)


def plain(folder: Path) -> list[str]:
    """The names of the files in a folder.  OSError for a link to one, or if it holds anything but plain files."""
    if folder.is_symlink():
        raise OSError(f"{folder.name} is a link")
    found = sorted(folder.iterdir())
    for path in found:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(f"{folder.name}/{path.name} is not a plain file")
    return [path.name for path in found]
