"""Which sources of the farm a module is made of, and a digest of their content.

Whoever compares what code has made (a verdict) names that code by content.  A closure is found by reading imports
rather than by listing files, so a new helper cannot be forgotten.  It is read from the sources and not from
`sys.modules`: what a process has loaded depends on what it did before, so two processes would disagree.
"""

from __future__ import annotations

import ast
import hashlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Held while Python parses into a tree, which CPython 3.11 cannot do in two threads at once (it raises SystemError).
PARSING = threading.Lock()
ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package `farm` of this process
PACKAGE = "farm"


def digest(modules: Iterable[str], root: Path = ROOT) -> str:
    """The content of `modules` and of all that they import of the farm, as 16 hexadecimal digits."""
    found = hashlib.sha256()
    for name, file in sorted(closure(modules, root).items()):
        text = file.read_bytes()
        found.update(f"{name}\0{len(text)}\0".encode() + text)
    return found.hexdigest()[:16]


def closure(modules: Iterable[str], root: Path = ROOT) -> dict[str, Path]:
    """Module -> file of `modules` and of all that they import of the farm, wherever in them.

    The packages above a module are executed before it, so they belong to it; but what they import for others does not,
    unless the module takes a name from them.
    """
    found: dict[str, Path] = {}
    followed: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        file = _file(name, root)
        if file is None or name in followed:
            continue
        followed.add(name)
        found |= {above: path for above in _above(name) if (path := _file(above, root))}
        found[name] = file
        waiting += _imports(name, file, root, _nodes(file.read_bytes(), file))
    return found


def modules_in(package: str, root: Path = ROOT) -> list[str]:
    """Every module of a package."""
    folder = root.joinpath(*package.split("."))
    relative = (f.relative_to(root).with_suffix("").parts for f in sorted(folder.rglob("*.py")))
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in relative]


def _nodes(content: bytes, file: Path) -> list[ast.AST]:
    with PARSING:
        return list(ast.walk(ast.parse(content, str(file))))


def _imports(name: str, file: Path, root: Path, nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(name, file, node)
            modules = [f"{base}.{a.name}" for a in node.names]
            yield from modules
            if any(_file(module, root) is None for module in modules):  # a name of the package itself
                yield base
        elif isinstance(node, ast.Call) and "import_module" in (getattr(node.func, n, "") for n in ("id", "attr")):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str))


def _base(name: str, file: Path, node: ast.ImportFrom) -> str:
    """The module that `from ... import` names, also relative."""
    if not node.level:
        return node.module or ""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _file(name: str, root: Path) -> Path | None:
    """The source of a module of the farm, or None."""
    if name.partition(".")[0] != PACKAGE:
        return None
    place = root.joinpath(*name.split("."))
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if file.is_file():
            return file
    return None
