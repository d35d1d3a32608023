"""The modules that lie beside a file and that it imports: they are sent along, so that it means the same elsewhere."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

#: Top-level names that every child has of its own: none is taken from the folder of a user's file.
RESERVED = frozenset(sys.stdlib_module_names) | {"farm", "torch", "numpy", "triton"}
_OURS = {"kernels", "farm_kernels"}
_LEFT_OUT = {"__pycache__", ".git"}


def with_neighbours(folder: Path, found: Mapping[str, bytes], without: Collection[str] = ()) -> dict[str, bytes]:
    """`found` (path relative to `folder` -> bytes) with all that these files import from the folder, and what that
    imports; `without`: top-level names that come from elsewhere."""
    out = dict(found)
    waiting, seen = list(found), {name.split("/")[0].removesuffix(".py") for name in found}
    while waiting:
        name = waiting.pop()
        if not name.endswith(".py"):
            continue
        for top in sorted(_imports(out[name]) - seen - set(without) - RESERVED - _OURS):
            seen.add(top)
            more = tree(folder, top)
            out |= more
            waiting += more
    return out


def tree(folder: Path, top: str) -> dict[str, bytes]:
    """The files of a module or package in the folder; none if it has no such one."""
    if (folder / f"{top}.py").is_file():
        return {f"{top}.py": (folder / f"{top}.py").read_bytes()}
    place = folder / top
    if not (place / "__init__.py").is_file():
        return {}
    names = (p for p in sorted(place.rglob("*")) if p.is_file() and not _LEFT_OUT & set(p.relative_to(folder).parts))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in names}


def _imports(text: bytes) -> set[str]:
    """The first names of what a source imports absolutely, wherever in it."""
    try:
        parsed = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found
