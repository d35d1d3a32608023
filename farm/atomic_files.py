"""Files that a reader sees complete, the old one or the new one, whatever happens to who writes."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write(path: Path, content: str | bytes, *, links: bool = True, sync: bool = False) -> None:
    """Write a file in one step, with text as UTF-8.  OSError; then what was there is as before.

    A pipe or a device (/dev/stdout, /dev/null) is written to; it is never replaced, which root could.  `links`: whether
    a link outside /dev may lead to one; else the file takes the link's place.  `sync`: whether the content is on the
    disk before it has its name, for what must outlive a host that loses power.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file() and (links or not path.is_symlink() or path.is_relative_to("/dev")):
        path.write_bytes(data)
        return
    beside = path.with_name(f".{path.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
