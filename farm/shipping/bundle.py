"""The farm and a revision of the kernels as two blobs that travel by the hash of their content.

A child on another Python, on another host, imports them from where the supervisor unpacked them, and so runs what the
coordinator runs, whatever is installed there.  A blob is a plain tar of text files, sorted and without times: the same
sources give the same bytes on every host and Python, and nothing in it is bound to an architecture.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from farm.errors import InfraError
from farm.ops import ROOT

NAMES = ("kernels", "farm")  # in the order in which a child imports from them
#: Of the farm, what only the supervising side runs.
SUPERVISING = ("cli", "coordinator", "compile", "export", "matrix", "nodes", "sites")
_LEFT_OUT = frozenset({"__pycache__", ".git"})
#: Code, and data that code reads; whatever else lies in a working tree (a build's libraries) is no part of a revision.
KINDS = (".py", ".pyi", ".typed", ".json", ".yaml", ".txt", ".csv")


@dataclass(frozen=True)
class Bundle:
    """`sha`: SHA-256 of `blob`, by which it is known everywhere."""

    name: str
    sha: str
    blob: bytes

    def plain(self) -> dict[str, object]:
        """As it stands in a device actor's config."""
        return {"name": self.name, "sha": self.sha, "blob": self.blob}


def pack(name: str, root: Path = ROOT) -> Bundle:
    """The package `farm` (what a child needs of it) or `kernels` in the folder `root`.  InfraError if there is none."""
    folder = root / name
    if not (folder / "__init__.py").is_file():
        raise InfraError(f"{folder}: there is no package {name} to send to the devices; install the farm anew")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in _files(folder, SUPERVISING if name == "farm" else ()):
            data = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.size, entry.mode, entry.mtime = len(data), 0o644, 0
            tar.addfile(entry, io.BytesIO(data))
    blob = out.getvalue()
    return Bundle(name, hashlib.sha256(blob).hexdigest(), blob)


def pack_all(root: Path = ROOT) -> list[Bundle]:
    """Both, of the working tree or installation that this process runs from."""
    return [pack(name, root) for name in NAMES]


def _files(folder: Path, without: tuple[str, ...]) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and path.suffix in KINDS and not _LEFT_OUT & set(parts) and parts[0] not in without:
            found.append(path)
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def install(sha: str, blob: bytes, folder: str | Path) -> Path:
    """Unpack under `folder`, once per content; returns the folder to import from.

    It bears its name only when it is whole, so several may install at once, and a killed one leaves nothing that looks
    ready.  InfraError for a blob that is not what its hash says, or holds anything but plain files below the folder.
    """
    final = Path(folder, sha[:16])
    if final.is_dir():
        return final
    if hashlib.sha256(blob).hexdigest() != sha:
        raise InfraError(f"a bundle of {len(blob)} bytes is not the one that its hash {sha[:16]} names; run again")
    temporary: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="unpack-", dir=final.parent))
        _unpack(blob, temporary, sha)
        temporary.chmod(0o755)
        temporary.rename(final)
    except OSError as error:
        if not final.is_dir():
            raise InfraError(f"{final}: a bundle cannot be unpacked ({error.strerror or error})") from None
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def _unpack(blob: bytes, folder: Path, sha: str) -> None:
    """Written by hand: only plain files, with no owner, mode or link taken from the archive, on every Python."""
    try:
        with tarfile.open(fileobj=io.BytesIO(blob), mode="r:") as tar:
            for entry in tar:
                parts = PurePosixPath(entry.name)
                if not entry.isreg() or parts.is_absolute() or ".." in parts.parts or not parts.parts:
                    raise InfraError(f'bundle {sha[:16]} holds "{entry.name}", which is no plain file inside it')
                data = tar.extractfile(entry)
                assert data is not None
                target = folder.joinpath(*parts.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data.read())
    except tarfile.TarError as error:
        raise InfraError(f"bundle {sha[:16]} is no archive ({error})") from None
