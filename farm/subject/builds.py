"""A subject that must be built: its command runs in a copy of the tree, once per content of its inputs."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from farm.errors import InfraError, MatrixError
from farm.process import command
from farm.shipping import files
from farm.subject import cache
from farm.subject.model import Build

_LEFT_OUT = {".git", "__pycache__", ".venv"}
LAST_LINES = 3


def built(build: Build, folder: Path, where: str) -> Path:
    """The wheel, or the folder, that the command gives for this tree: of the cache, else it runs now.

    MatrixError, beginning with `where`, for inputs that are not there, a command that fails or gives nothing.
    """
    inputs = _files(folder, build.inputs, where)
    key = _key(build, folder, inputs)
    place = cache.root() / "builds" / key
    kept = _one(place)
    if kept:
        return kept
    with tempfile.TemporaryDirectory(prefix="farm-build-") as scratch:
        tree = Path(scratch, "tree")
        shutil.copytree(folder, tree, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        done = command.run(["/bin/sh", "-c", build.command], build.minutes * 60, cwd=tree, env={**os.environ})
        if done.code != 0:
            how = (
                f"was not done within its {build.minutes:g} minutes" if done.code is None else f"ended with {done.code}"
            )
            last = " | ".join((done.err.strip() or done.out.strip()).splitlines()[-LAST_LINES:])
            raise MatrixError(f"{where}: build.command {how}: {last[:600]}", id="subject-build-failed")
        given = sorted(tree.glob(build.gives))
        if len(given) != 1:
            what = (
                "nothing matches it" if not given else f"{len(given)} match it: {', '.join(p.name for p in given[:5])}"
            )
            message = (
                f'{where}: build.gives is "{build.gives}", but after the build {what}; one wheel or folder is needed'
            )
            raise MatrixError(message, id="subject-build-gives")
        return _keep(given[0], place)


def _keep(given: Path, place: Path) -> Path:
    """Move what was built into the cache, whole or not at all."""
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        shutil.copytree(given, beside / given.name) if given.is_dir() else shutil.copy2(given, beside / given.name)
        if not place.is_dir():
            beside.rename(place)
    except OSError as error:
        kept = _one(place)  # of another command that was quicker
        if kept:
            return kept
        message = f"{place}: cannot be written ({error.strerror or error}); make room, or set FARM_CACHE"
        raise InfraError(message, id="subject-cache") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place / given.name


def _one(place: Path) -> Path | None:
    found = list(place.iterdir()) if place.is_dir() else []
    return found[0] if len(found) == 1 else None


def _key(build: Build, folder: Path, inputs: Sequence[Path]) -> str:
    """By the command, what it gives, and the name and content of every input."""
    digest = hashlib.sha256(repr((build.command, build.gives)).encode())
    for path in inputs:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:32]


def _files(folder: Path, inputs: Sequence[str], where: str) -> list[Path]:
    """The files of `inputs`; of the whole tree where none are named."""
    found: set[Path] = set()
    for name in inputs or (".",):
        place = folder / name
        if not place.exists():
            raise MatrixError(
                f'{where}: build.inputs names "{name}", but {folder} has no such file', id="subject-build-input"
            )
        every = place.rglob("*") if place.is_dir() else [place]
        found |= {p for p in every if p.is_file() and not _LEFT_OUT & set(p.relative_to(folder).parts)}
        if len(found) > files.MOST_FILES:
            raise MatrixError(
                f"{where}: build.inputs are more than {files.MOST_FILES} files; name only what the build reads",
                id="subject-build-inputs",
            )
    return sorted(found)
