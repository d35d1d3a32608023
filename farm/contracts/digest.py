"""Which sources of the farm a module is made of, and a digest of their content.

Whoever compares what code has made (a verdict) names that code by content.  A closure is
found by reading imports rather than by listing files, so a new helper cannot be forgotten.  It is read from the sources
and not from `sys.modules`: what a process has loaded depends on what it did before, so two processes would disagree.
What reading cannot follow, an import by a computed name, is reported instead (`Origin.computed`).

`digest` and `closure` keep to the farm.  `origin` also has the modules of others, data files and versions.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata, util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

#: Held while Python parses into a tree, which CPython 3.11 cannot do in two threads at once (it raises SystemError).
PARSING = threading.Lock()
ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package `farm` of this process
PACKAGE = "farm"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: What loads code that no import statement names; the first three by their bare name alone.
_BARE = frozenset({"__import__", "eval", "exec"})
#: The fields of a node that hold statements, or what holds such fields.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_LOADERS = frozenset({"exec_module", "import_module", "run_module", "run_path", "spec_from_file_location"})


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
        if name in followed:
            continue
        followed.add(name)
        file = _file(name, root)
        if file is None:
            continue
        found |= {above: path for above in _above(name) if above not in found and (path := _file(above, root))}
        found[name] = file
        waiting += _imports(name, file, root, _importing(file.read_bytes(), file))
    return found


def modules_in(package: str, root: Path = ROOT) -> list[str]:
    """Every module of a package."""
    folder = root.joinpath(*package.split("."))
    relative = (f.relative_to(root).with_suffix("").parts for f in sorted(folder.rglob("*.py")))
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in relative]


def _nodes(content: bytes, file: Path) -> list[ast.AST]:
    with PARSING:
        return list(ast.walk(ast.parse(content, str(file))))


def _importing(content: bytes, file: Path) -> list[ast.AST]:
    """The nodes of a source that can import: its statements, and where it names `import_module` all, since walking
    through the expressions costs every process more than parsing does."""
    if b"import_module" in content:
        return _nodes(content, file)
    with PARSING:
        found: list[ast.AST] = [ast.parse(content, str(file))]
    for node in found:  # which grows meanwhile
        for name in _BLOCKS:
            found += getattr(node, name, ())
    return found


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


@dataclass(frozen=True)
class Origin:
    """All that modules are made of.

    `files`: by a name that is the same on every host, each source, and each data file beside one.  `versions`: of the
    installed packages that are imported, and of Python.  `computed`: `file:line` of imports that cannot be followed.
    """

    files: dict[str, Path] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)
    _sums: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of the content that was read, whatever the files contain now."""
        return hashlib.sha256(repr([sorted(self.versions.items()), sorted(self._sums.items())]).encode()).hexdigest()[
            :16
        ]

    def add(self, name: str, file: Path) -> bytes:
        content = file.read_bytes()
        self.files[name], self._sums[name] = file, hashlib.sha256(content).hexdigest()
        return content


def origin(modules: Iterable[str], root: Path = ROOT) -> Origin:
    """What `modules` are made of: they, the packages above them, and all that these import.

    A module of the standard library or of site-packages counts by its version, unless it belongs to the farm or to the
    top-level package of one of `modules`.  Of a given module in a package, everything in its folder counts.
    """
    given = list(modules)
    ours = {PACKAGE, *(name.partition(".")[0] for name in given)}
    found = Origin(versions={"python": ".".join(map(str, sys.version_info[:2]))})
    followed: set[str] = set()
    waiting = list(given)
    while waiting:
        name = waiting.pop()
        if not name or name in followed:
            continue
        followed.add(name)
        waiting += _above(name)
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in found.versions:
            continue
        file = _source(name, root)
        if top not in ours and (file is None or _INSTALLED & set(file.parts)):
            if name == top:  # else its turn comes
                found.versions[top] = _version(top, file)
        elif file is not None:
            content = found.add(name, file)
            for beside, path in _beside(name, file, whole=name in given and "." in name):
                found.add(beside, path)
            if file.suffix == ".py":
                nodes = _nodes(content, file)
                found.computed.extend(f"{file}:{line}" for line in _computed(nodes))
                waiting += [*_imports(name, file, root, nodes), *_attributes(name, file, nodes)]
    return found


def _source(name: str, root: Path) -> Path | None:
    """The file of any module, without importing anything; None if there is none."""
    if name.partition(".")[0] == PACKAGE:
        file = _file(name, root)
        if file is not None or root != ROOT:
            return file
    spec = _spec(name)
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _spec(name: str) -> ModuleSpec | None:
    above = name.rpartition(".")[0]
    try:
        if not above:
            return util.find_spec(name)
        loaded = getattr(sys.modules.get(above), "__path__", None)
        spec = None if loaded else _spec(above)
        places = loaded or (spec and spec.submodule_search_locations)
        return PathFinder.find_spec(name, places) if places else None
    except (ImportError, ValueError):  # a module without a spec, a package that is not one
        return None


def _version(top: str, file: Path | None) -> str:
    """Of an installed package; of one that does not say, its file's content; "" if it is not there."""
    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        told = getattr(sys.modules.get(top), "__version__", "")
        return str(told or (hashlib.sha256(file.read_bytes()).hexdigest() if file else ""))


def _beside(name: str, file: Path, whole: bool) -> Iterator[tuple[str, Path]]:
    """The data in a module's folder; if `whole`, everything in it and below.  Not what is hidden or left by tools."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for path in file.parent.rglob("*") if whole else file.parent.iterdir():
        inside = path.relative_to(file.parent)
        left = any(p.startswith(".") or p == "__pycache__" or p.endswith("~") for p in inside.parts)
        if not left and (whole or path.suffix != ".py") and path.is_file():
            yield f"{package}/{inside.as_posix()}", path


def _attributes(name: str, file: Path, nodes: list[ast.AST]) -> Iterator[str]:
    """Dotted names that begin with an imported name: `farm.accuracy.dtypes` after `import farm.accuracy`."""
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            tops = {a.name.partition(".")[0] for a in node.names if not a.asname}
            bound.update({a.asname: a.name for a in node.names if a.asname} | {top: top for top in tops})
        elif isinstance(node, ast.ImportFrom):
            bound.update({a.asname or a.name: f"{_base(name, file, node)}.{a.name}" for a in node.names})
    for node in nodes:
        parts: list[str] = []
        root = node
        while isinstance(root, ast.Attribute):
            parts.insert(0, root.attr)
            root = root.value
        if parts and isinstance(root, ast.Name) and root.id in bound:
            yield ".".join([bound[root.id], *parts])


def _computed(nodes: list[ast.AST]) -> Iterator[int]:
    """Lines that load code by other means than an import statement or `import_module` of a literal."""
    plain = set()
    for node in nodes:
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            plain.add(node.func)
        renamed = isinstance(node, ast.ImportFrom) and any(a.asname and a.name in _LOADERS for a in node.names)
        named = getattr(node, "id", "") in _BARE | _LOADERS or getattr(node, "attr", "") in _LOADERS
        if renamed or (isinstance(node, (ast.Name, ast.Attribute)) and named and node not in plain):
            yield getattr(node, "lineno", 0)
