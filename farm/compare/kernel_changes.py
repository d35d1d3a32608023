"""Which kernels differ between two trees of Python sources: read, never imported.

A kernel is a function with a decorator of a kernel language (KERNEL_DECORATORS).  What it is made of is its syntax tree
without positions, comments and docstrings, its decorators included (tuning configurations are), and, the same way, all
that it uses: functions that it calls, module-level values that it reads, wherever in the tree they were imported from.
So a kernel that was only moved, commented or reformatted is not changed, and one whose callee or constant is, is.

What comes from outside the tree (`tl.load`, `torch.float32`) counts by its name.  What cannot be followed, a star
import from outside the tree or a name that nothing defines, makes a kernel `unknown` rather than same.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

#: The last two parts of a decorator's dotted name, or the one that it has -> its language.
KERNEL_DECORATORS: Mapping[str, str] = {
    "triton.jit": "triton",
    "gluon.jit": "gluon",
    "jit": "triton",
    "cute.kernel": "cute",
    "cute.jit": "cute",
    "ct.kernel": "cutile",
    "tilelang.jit": "tilelang",
    "T.prim_func": "tilelang",
}
#: `@jit` alone is a kernel only if it was imported from one of these: the longest that fits says its language.
JIT_HOMES: Mapping[str, str] = {
    "triton.experimental.gluon": "gluon",
    "triton": "triton",
    "cutlass.cute": "cute",
    "tilelang": "tilelang",
}
Tree = Mapping[str, str]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Kernel:
    """A kernel of one tree.  `parts`: what it is made of, each with its digest; unknown: why not all could be read."""

    path: str
    name: str
    line: int
    parts: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    language: str = "triton"

    @property
    def digest(self) -> str:
        """Equal where the kernel and all that it uses are equal, wherever they lie."""
        return _digest(sorted(self.parts.items()))


@dataclass(frozen=True)
class Change:
    """A kernel of two trees: same, changed, new, gone or unknown; `why` names the parts that differ."""

    name: str
    before: Kernel | None
    after: Kernel | None
    state: str
    why: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        return self.before is not None and self.after is not None and self.before.path != self.after.path


@dataclass
class Module:
    """One file: what each name at its top level is bound to."""

    path: str
    tree: ast.Module
    bound: dict[str, list[ast.AST]] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in _top_level(self.tree.body):
            for name in _binds(node):
                self.bound.setdefault(name, []).append(node)
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                self.stars.append(node)

    @cached_property
    def dotted(self) -> str:
        """a/b/__init__.py -> a.b"""
        parts = self.path.removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        return self.dotted if self.path.endswith("__init__.py") else self.dotted.rpartition(".")[0]


class Sources:
    """The modules of a tree.  Whatever folder is no package may be an import path, as "src" is."""

    def __init__(self, tree: Tree):
        self.modules: dict[str, Module] = {}
        self.broken: dict[str, str] = {}
        self._read: dict[int, tuple[str, list[tuple[str, tuple[str, ...]]]]] = {}
        for path, text in sorted(tree.items()):
            if path.endswith(".py"):
                try:
                    self.modules[path] = Module(path, ast.parse(text))
                except (SyntaxError, ValueError, RecursionError) as error:
                    self.broken[path] = f"{path} is no Python ({getattr(error, 'msg', error)})"
        self._by_dotted: dict[str, list[Module]] = {}
        for module in self.modules.values():
            parts = module.dotted.split(".")
            for start in range(len(parts)):
                if start and f"{'/'.join(parts[:start])}/__init__.py" in self.modules:
                    break  # inside of a package: nobody imports from there by a shorter name
                self._by_dotted.setdefault(".".join(parts[start:]), []).append(module)

    def module(self, dotted: str, near: Module | None = None) -> Module | None:
        """The module of an absolute name; of several, the one that lies nearest to the importing file."""
        found = self._by_dotted.get(dotted, [])
        if near is None or len(found) < 2:
            return found[0] if found else None
        return max(found, key=lambda m: (_shared(m.path, near.path), -len(m.path)))

    def read(self, node: ast.AST) -> tuple[str, list[tuple[str, tuple[str, ...]]]]:
        """A node's digest and what it uses, read once."""
        if id(node) not in self._read:
            self._read[id(node)] = _digest(_shape(node)), _free(node)
        return self._read[id(node)]

    def imported(self, node: ast.ImportFrom, inside: Module) -> tuple[str, Module | None]:
        """(absolute name, the module or None) that `from X import ...` means in a module."""
        if not node.level:
            return node.module or "", self.module(node.module or "", inside)
        base = inside.package.split(".") if inside.package else []
        base = base[: len(base) - (node.level - 1)] if node.level > 1 else base
        name = ".".join([*base, *([node.module] if node.module else [])])
        exact = [m for m in self.modules.values() if m.dotted == name]
        return name, exact[0] if exact else None


def kernels(tree: Tree) -> dict[str, Kernel]:
    """Every kernel of a tree (path -> text), by `path:name`."""
    sources = Sources(tree)
    found = {}
    for module in sources.modules.values():
        for prefix, node in _functions(module.tree):
            language = _language(node, module)
            if language:
                reader = _Reader(sources)
                reader.function(node, module, "the kernel itself", skip=())
                name = prefix + node.name
                unknown = tuple(dict.fromkeys(reader.unknown))
                key = f"{module.path}:{name}"
                found[key] = Kernel(module.path, name, node.lineno, dict(reader.parts), unknown, language)
    return found


def changes(before: Tree, after: Tree) -> list[Change]:
    """Every kernel of either tree, by name: in the same file, else in the one that has it alone."""
    a, b = kernels(before), kernels(after)
    pairs = {key: key for key in a.keys() & b.keys()}
    left, right = ([k for k in side if k not in pairs] for side in (a, b))
    for key in left:
        same = [k for k in right if b[k].name == a[key].name]
        if len(same) == 1 and sum(a[k].name == a[key].name for k in left) == 1:
            pairs[key] = same[0]
    taken = set(pairs.values())
    out = [_change(a[x], b[y]) for x, y in pairs.items()]
    out += [Change(a[k].name, a[k], None, "gone") for k in left if k not in pairs]
    out += [Change(b[k].name, None, b[k], "new") for k in right if k not in taken]
    return sorted(out, key=lambda c: ((c.after or c.before).path, c.name))  # type: ignore[union-attr]


def _change(before: Kernel, after: Kernel) -> Change:
    names = [n for n in {**before.parts, **after.parts} if before.parts.get(n) != after.parts.get(n)]
    if before.digest != after.digest:
        return Change(after.name, before, after, "changed", tuple(names))
    unknown = (*before.unknown, *after.unknown)
    return Change(after.name, before, after, "unknown" if unknown else "same", tuple(dict.fromkeys(unknown)))


def host_changes(before: Tree, after: Tree) -> list[str]:
    """Files whose code beside the kernels differs: launchers, dispatch, adapters.

    Comments and docstrings play no part; a file that is no Python differs where its text does."""
    return _differing(before, after, kernels=False)


def code_changes(before: Tree, after: Tree) -> list[str]:
    """Files whose code differs, kernels and all else; comments and docstrings play no part.  Where there is none, a
    kernel is the same whatever of it cannot be read."""
    names = {
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    }  # few of a large tree
    left, right = ({path: tree[path] for path in names & tree.keys()} for tree in (before, after))
    return _differing(left, right, kernels=True)


def _differing(before: Tree, after: Tree, *, kernels: bool) -> list[str]:
    def digests(tree: Tree) -> dict[str, str]:
        sources = Sources(tree)
        out = {path: tree[path] for path in sources.broken}
        for module in sources.modules.values():
            drop = set[int]()
            if not kernels:
                drop = {id(node) for _, node in _functions(module.tree) if _language(node, module)}
            out[module.path] = _digest(_shape(module.tree, drop))
        return out

    a, b = digests(before), digests(after)
    return sorted(path for path in a.keys() | b.keys() if a.get(path) != b.get(path))


class _Reader:
    """Follows what one kernel uses."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self.parts: dict[str, str] = {}
        self.unknown: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def function(self, node: ast.AST, module: Module, part: str, skip: tuple[str, ...]) -> None:
        digest, free = self.sources.read(node)
        self._add(part, digest)
        for name, chain in free:
            if name not in skip:
                self._name(name, chain, module)

    def _add(self, part: str, digest: str) -> None:
        known = self.parts.get(part)
        self.parts[part] = digest if known in (None, digest) else _digest(sorted([known or "", digest]))

    def _name(self, name: str, chain: tuple[str, ...], module: Module) -> None:
        if (module.path, ".".join((name, *chain))) in self._seen:
            return
        self._seen.add((module.path, ".".join((name, *chain))))
        if name not in module.bound:
            self._unbound(name, chain, module)
            return
        for node in module.bound[name]:
            if isinstance(node, ast.Import):
                self._import(node, name, chain, module)
            elif isinstance(node, ast.ImportFrom):
                self._from(node, name, chain, module)
            elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                self.function(node, module, f"{node.name}()", skip=(name,))
            else:
                self.function(node, module, name, skip=(name,))

    def _unbound(self, name: str, chain: tuple[str, ...], module: Module) -> None:
        for star in module.stars:
            dotted, target = self.sources.imported(star, module)
            if target is None:
                self.unknown.append(f"{name} may come from `from {dotted} import *` in {module.path}")
            elif name in target.bound or target.stars:
                self._name(name, chain, target)
                return
        if hasattr(builtins, name):
            self.parts[f"builtin {name}"] = name
        elif not module.stars:
            self.unknown.append(f"{name} is defined nowhere in {module.path}")

    def _import(self, node: ast.Import, name: str, chain: tuple[str, ...], module: Module) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            if bound != name:
                continue
            dotted, rest = (alias.name if alias.asname else bound), chain
            target = self.sources.module(dotted, module)
            while rest and (deeper := self.sources.module(f"{dotted}.{rest[0]}", module)) is not None:
                dotted, rest, target = f"{dotted}.{rest[0]}", rest[1:], deeper
            self._member(dotted, rest, target)

    def _from(self, node: ast.ImportFrom, name: str, chain: tuple[str, ...], module: Module) -> None:
        for alias in node.names:
            if (alias.asname or alias.name) != name:
                continue
            dotted, target = self.sources.imported(node, module)
            deeper = self.sources.module(f"{dotted}.{alias.name}", module)
            if target is not None and alias.name in target.bound:
                self._name(alias.name, chain, target)
            elif deeper is not None:
                self._member(f"{dotted}.{alias.name}", chain, deeper)
            else:
                self._member(dotted, (alias.name, *chain), target)

    def _member(self, dotted: str, rest: tuple[str, ...], target: Module | None) -> None:
        if target is None:
            full = ".".join((dotted, *rest))
            self.parts[f"outside {full}"] = full
        elif rest:
            self._name(rest[0], rest[1:], target)
        else:
            self.unknown.append(f"{dotted} is used as a value")


def _language(node: ast.AST, module: Module) -> str:
    """The language of a kernel; "" for a function that is none."""
    for decorator in getattr(node, "decorator_list", ()):
        dotted = _dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if not dotted:
            continue
        last = ".".join(dotted.split(".")[-2:])
        if last not in KERNEL_DECORATORS:
            continue
        if "." in last:
            return KERNEL_DECORATORS[last]
        homes = (n.module or "" for n in module.bound.get(last, ()) if isinstance(n, ast.ImportFrom))
        home = next((h for name in homes for h in JIT_HOMES if name.startswith(h)), "")
        if home:
            return JIT_HOMES[home]
    return ""


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(prefix, function) of every function, also in classes and in functions."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _FUNCTIONS):
            yield prefix, child
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that bind a module's names, also those of `if`, `try`, `with` and loops at its top level."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, part, None) or [])
            for handler in getattr(node, "handlers", ()):
                yield from _top_level(handler.body)


def _binds(node: ast.stmt) -> list[str]:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Import):
        return [a.asname or a.name.split(".")[0] for a in node.names]
    if isinstance(node, ast.ImportFrom):
        return [a.asname or a.name for a in node.names if a.name != "*"]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For)
        else []
    )
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def _free(node: ast.AST) -> list[tuple[str, tuple[str, ...]]]:
    """(name, attributes read of it) for each name that a function or statement reads and does not bind itself."""
    local: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg):
            local.add(inner.arg)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store | ast.Del):
            local.add(inner.id)
        elif (isinstance(inner, _FUNCTIONS) and inner is not node) or (
            isinstance(inner, ast.ExceptHandler) and inner.name
        ):
            local.add(str(inner.name))
        elif isinstance(inner, ast.Import | ast.ImportFrom) and inner is not node:
            local |= {a.asname or a.name.split(".")[0] for a in inner.names}
    if not isinstance(node, _FUNCTIONS):
        local -= set(_binds(node)) if isinstance(node, ast.stmt) else set()
    out: dict[tuple[str, tuple[str, ...]], None] = {}
    inside: set[int] = set()
    for inner in ast.walk(node):
        if id(inner) in inside:
            continue
        dotted = _dotted(inner) if isinstance(inner, ast.Attribute | ast.Name) else ""
        if dotted:
            inside |= {id(n) for n in ast.walk(inner)}
            name, *chain = dotted.split(".")
            if name not in local:
                out[(name, tuple(chain))] = None
    return list(out)


def _dotted(node: ast.AST) -> str:
    """a.b.c of a chain of attributes of a name; else nothing."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def _shape(node: Any, drop: set[int] = frozenset()) -> Any:  # type: ignore[assignment]
    """A syntax tree as plain data, without positions, docstrings and the nodes to drop."""
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "type_comment", "kind"):
                continue
            if name == "body" and isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Module)):
                value = _without_docstring(value)
            fields.append((name, _shape(value, drop)))
        return (type(node).__name__, *fields)
    if isinstance(node, list):
        return [_shape(item, drop) for item in node if id(item) not in drop]
    return repr(node)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _shared(a: str, b: str) -> int:
    """How many leading folders two paths share."""
    n = 0
    for x, y in zip(a.split("/"), b.split("/")):
        if x != y:
            break
        n += 1
    return n
