"""Wheels: a published release, downloaded once and kept by its hash, or a file; read into what a child imports."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from farm.errors import InfraError, UsageError
from farm.process import command
from farm.shipping import files
from farm.subject import cache

DOWNLOAD_SECONDS = 600.0
MOST_WHEEL_BYTES = 1 << 30
_META = re.compile(r"^[^/]+\.dist-info/")
_DATA = re.compile(r"^[^/]+\.data/(purelib|platlib)/(.+)$")


def release(named: str) -> Path:
    """The wheel of `name==version`: of the cache, else downloaded by this Python's pip, as it is configured, alone."""
    index = cache.root() / "wheels" / f"{named}.json"
    known = _kept(index)
    if known:
        return known
    with tempfile.TemporaryDirectory(prefix="farm-wheel-") as folder:
        words = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "-q", "-d", folder, named]
        done = command.run([sys.executable, *words], DOWNLOAD_SECONDS)
        found = sorted(Path(folder).glob("*.whl"))
        if done.code != 0 or len(found) != 1:
            why = (done.err.strip().splitlines() or [f"no answer within {DOWNLOAD_SECONDS:g} s"])[-1]
            raise UsageError(
                f"release {named}: pip cannot download its wheel ({why.strip()[:300]}); without a network, give the "
                "file: --wheel FILE",
                id="subject-release-download",
            )
        data = found[0].read_bytes()
        sha = hashlib.sha256(data).hexdigest()
        try:
            place = index.parent / sha / found[0].name
            files.write_all([(found[0].name, data)], place.parent)
            index.write_text(json.dumps({"sha256": sha, "file": found[0].name}), encoding="utf-8")
        except OSError as error:
            message = f"{index.parent}: cannot be written ({error.strerror or error}); make room, or set FARM_CACHE"
            raise InfraError(message, id="subject-cache") from None
        return place


def _kept(index: Path) -> Path | None:
    """The wheel of an earlier download, if it still has its hash."""
    try:
        told = json.loads(index.read_text(encoding="utf-8"))
        place = index.parent / files.inside(told["sha256"]) / files.inside(told["file"])
        return place if hashlib.sha256(place.read_bytes()).hexdigest() == told["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def content(wheel: Path, modules: Sequence[str] = ()) -> tuple[dict[str, bytes], tuple[str, ...], str]:
    """(relative path -> bytes of what an installation would put on the import path, its top-level modules, version).

    With `modules`, only those and the wheel's metadata.  UsageError for what is no wheel, or lacks a module.
    """
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > files.MOST_BYTES:
                raise UsageError(
                    f"{wheel}: has {size >> 20} MiB unpacked, but at most {files.MOST_BYTES >> 20} MiB are sent to "
                    "devices; install it on the nodes and lay its .py files over it: overlay: {over: installed, ...}",
                    id="subject-wheel-too-big",
                )
            for entry in archive.infolist():
                name = _place(entry.filename)
                if name and not entry.is_dir():
                    found[str(files.inside(name))] = archive.read(entry)
    except (OSError, zipfile.BadZipFile, files.NotInside, NotImplementedError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{wheel}: is not a readable wheel ({why}); give a .whl file", id="subject-wheel") from None
    tops = dict.fromkeys(_top(name) for name in found if not _META.match(name))
    names = tuple(sorted(t for t in tops if t))
    if not names:
        raise UsageError(f"{wheel}: contains no Python package; give a .whl file", id="subject-wheel-empty")
    for module in modules:
        if module not in names:
            raise UsageError(
                f'{wheel}: has no module "{module}"; its modules are {", ".join(names)}', id="subject-wheel-module"
            )
    kept = {n: data for n, data in found.items() if not modules or _META.match(n) or _top(n) in modules}
    return kept, tuple(modules) or names, _version(found)


def _place(name: str) -> str:
    """Where a file of the archive belongs on the import path; "" for scripts, headers and data."""
    data = _DATA.match(name)
    if data:
        return data[2]
    return "" if re.match(r"^[^/]+\.data/", name) else name


def _top(name: str) -> str:
    """`pkg/x.py` -> pkg, `mod.py` and `mod.cpython-311.so` -> mod; "" for a file that is no module."""
    first, slash, _ = name.partition("/")
    if slash:
        return first if first.isidentifier() else ""
    stem, _, suffix = first.partition(".")
    return stem if suffix.split(".")[-1] in ("py", "so") and stem.isidentifier() else ""


def _version(found: dict[str, bytes]) -> str:
    for name, data in found.items():
        if name.endswith(".dist-info/METADATA"):
            told = re.search(r"^Version: *(\S+)", data.decode("utf-8", "replace"), re.M)
            return told[1] if told else ""
    return ""
