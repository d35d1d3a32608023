"""What another user of this host reaches of a run: `python intruder.py UID PATH...`, started by root, becomes that user
and prints a JSON line for each thing under the paths that it could read, write, replace or connect to."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import sys
from pathlib import Path


def reached(path: Path) -> list[str]:
    """What worked: look (a folder's names), read, write, make (a name in a folder), remove, connect."""
    found = []
    try:
        mode = path.lstat().st_mode
    except OSError:
        return []
    if stat.S_ISDIR(mode):
        with contextlib.suppress(OSError):
            list(path.iterdir())
            found.append("look")
        with contextlib.suppress(OSError):
            (path / "intruder").touch(exist_ok=False)
            found.append("make")
    elif stat.S_ISSOCK(mode):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as end:
            end.connect(str(path))
            found.append("connect")
    elif stat.S_ISREG(mode):
        for word, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
            with contextlib.suppress(OSError):
                os.close(os.open(path, flags | os.O_NONBLOCK))
                found.append(word)
    if not stat.S_ISDIR(mode):
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"{path.name}-moved"))
            found.append("replace")
    return found


def main() -> None:
    user = int(sys.argv[1])
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    print(json.dumps({"uid": os.getuid()}))
    for root in map(Path, sys.argv[2:]):
        for path in [root, *sorted(root.rglob("*"))] if os.access(root, os.R_OK | os.X_OK) else [root]:
            for what in reached(path):
                print(json.dumps({"path": str(path), "what": what}))


if __name__ == "__main__":
    main()
