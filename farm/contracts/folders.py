"""Folders of contracts outside the farm: `<folder>/<op>/contract.py`, with whatever modules and data lie below.

A folder is read once, when a command names it, and from then on known by its content: what is sent to judges, and what
a run keeps, are these bytes.  Nothing of it is imported here.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from farm.errors import UsageError

#: Entry points of this group name a package whose folder is a folder of contracts.  Only a coordinator looks for them.
GROUP = "kernel_farm.contracts"
MAX_BYTES, MAX_FILES = 32 << 20, 5000
FILE = "contract.py"
_OP = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class ContractFolder:
    """`path`: where its modules are imported from in this process.  `where`: what named it (`--contracts DIR`).
    `files`: relative path -> content.  `requires`: op -> the installed packages that its contract imports, by version;
    empty until it is packed, and then what a judge must have."""

    path: Path
    where: str
    files: Mapping[str, bytes]
    requires: Mapping[str, Mapping[str, str]]

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that it defines, sorted."""
        return tuple(sorted(name.split("/")[0] for name in self.files if re.fullmatch(rf"[^/]+/{FILE}", name)))

    @property
    def sha(self) -> str:
        """Of the content of every file, 16 hexadecimal digits."""
        found = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            found.update(f"{name}\0{len(data)}\0".encode() + data)
        return found.hexdigest()[:16]

    def plain(self, requires: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        """As JSON-able data, to be sent and kept; `unpacked` is the inverse, but for the path."""
        content = {name: base64.b64encode(data).decode("ascii") for name, data in sorted(self.files.items())}
        needed = {op: dict(versions) for op, versions in requires.items()}
        return {"where": self.where, "sha": self.sha, "files": content, "requires": needed}


def unpacked(plain: Mapping[str, Any], path: Path) -> ContractFolder:
    """The folder that `plain` describes, to be imported from `path`.  ValueError if its content does not have its
    hash."""
    files = {str(name): base64.b64decode(data, validate=True) for name, data in plain["files"].items()}
    requires = {str(op): {str(k): str(v) for k, v in of.items()} for op, of in plain["requires"].items()}
    found = ContractFolder(path, str(plain["where"]), files, requires)
    if found.sha != plain["sha"]:
        raise ValueError(f"the contracts of {found.where} do not match their hash {plain['sha']}")
    return found


def read(path: Path, where: str) -> ContractFolder:
    """The folder at `path`, which `where` names.  UsageError if it is not a folder of contracts."""
    if not path.is_dir():
        raise UsageError(f"{where}: there is no folder {path}; correct the path", id="contracts-no-folder")
    if (path / FILE).is_file():
        raise UsageError(
            f"{where}: {path} holds a {FILE} itself; name the folder above it, whose folders are named like the ops",
            id="contracts-folder-of-one",
        )
    files: dict[str, bytes] = {}
    size = 0
    for name, file in _walk(path):
        try:
            size += file.stat().st_size
            if size > MAX_BYTES or len(files) >= MAX_FILES:
                raise UsageError(
                    f"{where}: {path} has more than {MAX_BYTES >> 20} MiB or {MAX_FILES} files, and all of them are "
                    "sent to the judges; name a folder that holds contracts alone",
                    id="contracts-folder-too-big",
                )
            files[name] = file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"{where}: {file} cannot be read ({error.strerror or error}); make it readable",
                id="contracts-file-unreadable",
            ) from None
    found = ContractFolder(path.resolve(), where, files, {})
    if not found.ops:
        raise UsageError(
            f"{where}: {path} defines no op; a contract is a file OP/{FILE} in it", id="contracts-folder-empty"
        )
    for op in found.ops:
        if not _OP.fullmatch(op):
            raise UsageError(
                f"{where}: the folder {path}/{op} gives an op its name, which must have lower-case letters, digits and "
                "_ alone and begin with a letter; rename it",
                id="contracts-op-name",
            )
    return found


def _walk(path: Path) -> Iterator[tuple[str, Path]]:
    """Each file below, also behind links to folders, each folder once; not what is hidden or left by tools."""
    seen: set[str] = set()
    for folder, inner, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        inner[:] = sorted(n for n in inner if not n.startswith(".") and n != "__pycache__")
        if real in seen:
            inner[:] = []
            continue
        seen.add(real)
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and not name.endswith(("~", ".pyc")) and file.is_file():
                yield file.relative_to(path).as_posix(), file


def installed() -> list[ContractFolder]:
    """The folders that installed packages offer by entry points of GROUP, by name.  Nothing of them is imported.
    UsageError for an entry point that leads nowhere."""
    return [
        read(_folder_of(point.value, where), where)
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda p: (p.name, p.value))
        for where in [f"the entry point {point.name} of {GROUP}"]
    ]


def _folder_of(module: str, where: str) -> Path:
    top, *rest = module.partition(":")[0].strip().split(".")
    spec = PathFinder.find_spec(top)
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        folder = Path(place, *rest)
        if folder.is_dir():
            return folder
    raise UsageError(
        f"{where} names {module}, which is not a package that is installed here; reinstall it, or uninstall it",
        id="contracts-entry-point",
    )
