"""Checks and runs this kit: `python3 run.py`.  README.txt says what it does; the standard library alone is used here.

The Python that runs this file runs the kernels as well, so it has to be the one with your torch.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CODE = ("farm", "kernels", "providers")


def main() -> int:
    """The exit code."""
    if sys.version_info < (3, 10):  # noqa: UP036 - it is this file that finds out
        version = sys.version.split()[0]
        return _refuse(f"{sys.executable} is Python {version}, but 3.10 or newer is needed; use another one")
    try:
        wanted = json.loads((HERE / "kit.json").read_bytes().decode("utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return _refuse(f"{HERE}: kit.json cannot be read; unpack the kit again")
    there = _digests()
    for name in sorted(wanted):
        if there.get(name) != wanted[name]:
            return _refuse(f"{HERE}: {name} is missing or has changed; unpack the kit again")
    for name in sorted(there):
        if name not in wanted and name.split("/")[0] in CODE:
            return _refuse(f"{HERE}: {name} does not belong to this kit; unpack it again, in another folder")
    sys.path[:] = [str(HERE), *(entry for entry in sys.path if entry and Path(entry).resolve() != HERE)]
    from farm.cli import kit_site

    return kit_site.main(str(HERE), sys.argv[1:])


def _digests() -> dict[str, str]:
    """File -> SHA-256, of the files here and of all code; not of what Python leaves behind and runs have written."""
    found = [path for path in HERE.iterdir() if path.is_file()]
    for top in CODE:
        found += [path for path in (HERE / top).rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    return {path.relative_to(HERE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def _refuse(reason: str) -> int:
    sys.stderr.write(f"run.py: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
