"""The farm and a revision of the kernels as two blobs, identified by the hash of their content.

A child on another Python or host imports them from where the supervisor unpacked them, so it runs the same code as the
coordinator, whatever is installed there.  A blob is a plain tar of text files, sorted and without times: the same
sources give the same bytes on every host and Python, and its content does not depend on an architecture.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm import kernel_package
from farm.errors import InfraError
from farm.kernel_package import ROOT
from farm.shipping import files

NAMES = ("kernels", "farm")  # in the order in which a child imports from them
#: Of the farm, what only the supervising side runs.
SUPERVISING = (
    "cli",
    "cluster",
    "compile",
    "coordinator",
    "dashboards",
    "matrices",
    "matrix",
    "node",
    "report",
    "sites",
    "stage_zero",
    "tuning",
)
#: Of rooms that both sides have, what a child gets.
CHILDS = {"subject": ("__init__.py", "bare_packages.py")}
_LEFT_OUT = frozenset({"__pycache__", ".git"})
#: Code, and data that code reads; other files in a working tree (built libraries) are not part of a revision.
KINDS = (".py", ".pyi", ".typed", ".json", ".yaml", ".txt", ".csv")


@dataclass(frozen=True)
class Bundle:
    """`sha`: the SHA-256 of `blob`, which identifies it everywhere."""

    name: str
    sha: str
    blob: bytes

    def plain(self) -> dict[str, object]:
        """As it appears in a device actor's config."""
        return {"name": self.name, "sha": self.sha, "blob": self.blob}


def pack(name: str, root: Path = ROOT) -> Bundle:
    """The package `farm` (the part that a child needs) or `kernels` in the folder `root`.  InfraError if missing."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, data in sources(name, SUPERVISING if name == "farm" else (), root, childs=True).items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), 0o644, 0
            tar.addfile(entry, io.BytesIO(data))
    blob = out.getvalue()
    return Bundle(name, hashlib.sha256(blob).hexdigest(), blob)


def sources(name: str, without: tuple[str, ...] = (), root: Path = ROOT, *, childs: bool = False) -> dict[str, bytes]:
    """`farm/...` or `kernels/...` -> bytes: the package's files, in order, but for the rooms `without`; with `childs`
    of rooms that both sides have what a child gets.  InfraError if the package is missing."""
    folder = (kernel_package.folder() if name == "kernels" and root == ROOT else None) or root / name
    if not (folder / "__init__.py").is_file():
        message = f"{folder}: package {name}, which is sent to the devices, does not exist; reinstall the farm"
        raise InfraError(message, id="shipping-package-missing")
    found = _files(folder, without, CHILDS if childs and without else {})
    return {f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in found}


def pack_all(root: Path = ROOT) -> list[Bundle]:
    """Both, from the working tree or installation that this process runs from; only the farm if our kernels are not
    installed with it."""
    absent = root == ROOT and kernel_package.folder() is None
    return [pack(name, root) for name in NAMES if not (absent and name == "kernels")]


def _files(folder: Path, without: tuple[str, ...], childs: Mapping[str, tuple[str, ...]]) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if not kernel_package.is_source(parts) or _LEFT_OUT & set(parts) or parts[0] in without:
            continue
        if parts[0] in childs and "/".join(parts[1:]) not in childs[parts[0]]:
            continue
        if path.is_file() and path.suffix in KINDS:
            found.append(path)
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def install(sha: str, blob: bytes, folder: str | Path) -> Path:
    """Unpack under `folder`, once per content; returns the folder to import from.

    InfraError for a blob that does not match its hash, or that contains anything but
    plain files below the folder.
    """
    final = Path(folder, sha[:16])
    if final.is_dir():
        return final
    if hashlib.sha256(blob).hexdigest() != sha:
        message = f"a bundle of {len(blob)} bytes does not match its hash {sha[:16]}; run again"
        raise InfraError(message, id="shipping-bundle-hash")
    try:
        return files.write_all(files.members(blob), final)
    except files.NotInside as error:
        raise InfraError(f"bundle {sha[:16]} {error}; run again", id="shipping-bundle-entry") from None
    except tarfile.TarError as error:
        raise InfraError(
            f"bundle {sha[:16]} is not an archive ({error}); run again", id="shipping-bundle-archive"
        ) from None
    except OSError as error:
        message = f"{final}: a bundle cannot be unpacked ({error.strerror or error}); check the disk and permissions"
        raise InfraError(message, id="shipping-bundle-unpack") from None
