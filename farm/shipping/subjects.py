"""A subject's content as it travels: one blob by its hash, unpacked on a node, first on its children's import path.

The blob holds `overlay/` (the subject's own modules) and `adapters/` (the modules that call them).  Its digest is over
names and bytes of both, and the child computes it again from what was unpacked.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import UsageError
from farm.shipping import bundle, files
from farm.shipping.providers import digest as digest_of

PLACES = ("overlay", "adapters")  # in the order in which a child imports from them


@dataclass(frozen=True)
class PackedSubject:
    """`name`, `revision`, `source`: for rows and people.  `over`: `.py` files to be laid over what is installed.
    `variables`: backend -> variables of its children.  `origins`: of PLACES -> the folder that its author edits."""

    name: str
    revision: str
    source: str
    modules: tuple[str, ...]
    over: bool
    digest: str
    sha: str
    blob: bytes
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """What a run records of it."""
        return {
            "name": self.name,
            "revision": self.revision,
            "source": self.source,
            "digest": self.digest,
            "modules": list(self.modules),
            "over": "installed" if self.over else "",
        }

    def plain(self) -> dict[str, Any]:
        """As it appears in a device actor's config."""
        variables = {backend: dict(found) for backend, found in self.variables.items()}
        travels = {"sha": self.sha, "blob": self.blob, "variables": variables, "origins": dict(self.origins)}
        return {**self.described(), **travels}


def pack(content: Mapping[str, bytes], **told: Any) -> PackedSubject:
    """`content`: `overlay/...` and `adapters/...` -> bytes.  The same content gives the same bytes everywhere."""
    size = sum(map(len, content.values()))
    if size > files.MOST_BYTES or len(content) > files.MOST_FILES:
        raise UsageError(
            f"subject {told['name']}: has {len(content)} files with {size >> 20} MiB, but at most {files.MOST_FILES} "
            f"files with {files.MOST_BYTES >> 20} MiB are sent to devices; name fewer modules, or install it on the "
            "nodes and use overlay: {over: installed, ...}",
            id="shipping-subject-too-big",
        )
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(content):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content[name]), 0o644, 0
            tar.addfile(entry, io.BytesIO(content[name]))
    blob = out.getvalue()
    return PackedSubject(digest=digest_of(content), sha=hashlib.sha256(blob).hexdigest(), blob=blob, **told)


def unpack(subject: Mapping[str, Any], spool: str) -> tuple[Path, tuple[str, ...]]:
    """(its folder on this node, the folders to import from).  Once per content; InfraError if it is damaged."""
    folder = bundle.install(subject["sha"], subject["blob"], Path(spool, "subjects"))
    return folder, tuple(str(folder / place) for place in PLACES if (folder / place).is_dir())
