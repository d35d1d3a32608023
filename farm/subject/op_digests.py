"""What each op of a repository of kernels is made of at a commit, as git knows it.

An op's files are those of its name (`ops/rms_norm.py`, `ops/backends/x/rms_norm.py`) in a folder `ops`, and whatever of
the repository they import, however indirectly, but for the `__init__.py` of packages, which only gather names.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from farm.process import command

SECONDS = 60.0
MOST = 5_000


def is_repository(repo: Path) -> bool:
    """Whether git takes a folder for a repository, with or without a working tree."""
    return _git(repo, "rev-parse", "--git-dir") is not None


def of(repo: Path, commit: str, ops: Collection[str]) -> dict[str, str] | None:
    """Op -> digest, of those of `ops` that have files; None if the repository has no such commit."""
    listed = _git(repo, "ls-tree", "-r", "--full-tree", f"{commit}^{{commit}}")
    if listed is None:
        return None
    blobs: dict[str, str] = {}
    for line in listed.splitlines()[: 40 * MOST]:
        facts, _, path = line.partition("\t")
        _, kind, blob = facts.split()
        if kind == "blob" and path.endswith(".py") and not path.startswith(("test", "benchmark", "docs", "example")):
            blobs[path] = blob

    return digests(blobs, lambda path: _blob(repo, blobs[path]), ops)


@lru_cache(maxsize=1024)
def _blob(repo: Path, blob: str) -> str:
    return _git(repo, "cat-file", "blob", blob) or ""


def digests(blobs: Mapping[str, str], text: Callable[[str], str], ops: Collection[str]) -> dict[str, str]:
    """Op -> digest.  blobs: path -> what names its content; text: path -> content."""
    found: dict[str, list[str]] = {}
    for path in blobs:
        parts = PurePosixPath(path)
        if "ops" in parts.parts[:-1] and parts.stem in ops:
            found.setdefault(parts.stem, []).append(path)
    modules = {re.sub(r"^(src|python)\.", "", p.removesuffix(".py").replace("/", ".")): p for p in blobs}
    used: dict[str, frozenset[str]] = {}

    def uses(path: str) -> frozenset[str]:
        if path not in used:
            used[path] = frozenset(modules[name] for name in _imports(text(path)) if name in modules)
        return used[path]

    out = {}
    for op, files in found.items():
        seen: set[str] = set()
        waiting = list(files)
        while waiting and len(seen) < MOST:
            path = waiting.pop()
            if path not in seen:
                seen.add(path)
                waiting += uses(path)
        digest = hashlib.sha256("".join(f"{p}\0{blobs[p]}\0" for p in sorted(seen)).encode())
        out[op] = digest.hexdigest()[:16]
    return out


def _imports(source: str) -> set[str]:
    """The absolute names that a module imports: `a.b` and `a.b.c` of `from a.b import c`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _git(repo: Path, *words: str) -> str | None:
    try:
        done = command.run(["git", "-C", str(repo), *words], SECONDS)
    except OSError:
        return None
    return done.out if done.code == 0 else None
