"""Archives that people carry from one site to another: a gzipped tar, the same bytes for the same files.

What comes back is read by the one unpacker (`farm.shipping.files`): plain files, each name once, within its bounds,
also where a few bytes claim to be gigabytes.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Collection, Mapping

from farm.shipping import files
from farm.shipping.files import NotInside

_BLOCKS = 2048  # bytes of headers and padding that a file of an archive may have beside its content


def pack(content: Mapping[str, bytes], top: str, executable: Collection[str] = ()) -> bytes:
    """The files under a folder `top`, without times and owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(content):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode, entry.mtime = len(content[name]), 0o755 if name in executable else 0o644, 0
            tar.addfile(entry, io.BytesIO(content[name]))
    return gzip.compress(out.getvalue(), mtime=0)


def unpack(blob: bytes) -> dict[str, bytes]:
    """The files of an archive, by their names below its one folder.  NotInside, whose text is a clause, for anything
    else than such an archive."""
    found: dict[str, bytes] = {}
    tops = set()
    try:
        for name, data in files.members(_inflated(blob)):
            files.inside(name)
            top, _, rest = name.partition("/")
            tops.add(top)
            if not rest or len(tops) > 1:
                raise NotInside("has more than one folder at its top")
            if rest in found:
                raise NotInside(f'contains "{name[:200]}" twice')
            if len(found) >= files.MOST_FILES:
                raise NotInside(f"has more than {files.MOST_FILES} files")
            found[rest] = data
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, NotInside):
            raise
        raise NotInside(f"is not a whole archive ({error})") from None
    if not found:
        raise NotInside("is empty")
    return found


def _inflated(blob: bytes) -> bytes:
    """The tar of a gzipped one."""
    most = files.MOST_BYTES + files.MOST_FILES * _BLOCKS
    inflate = zlib.decompressobj(wbits=31)
    try:
        out = inflate.decompress(blob, most)
    except zlib.error as error:
        raise NotInside(f"is not a gzipped archive ({error})") from None
    if inflate.unconsumed_tail or len(out) >= most:
        raise NotInside(f"has more than {files.MOST_BYTES >> 20} MiB")
    if not inflate.eof:
        raise NotInside("was cut short")
    return out
