"""Looks around a repository for functions of ops that the farm knows, by name and signature.  Nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Folders that hold no package to test.
NO_PACKAGE = re.compile(
    r"(tests?|docs?|examples?|bench(marks?)?|scripts?|tools?|build|dist|site-packages|\..*|_.*)$", re.I
)
NO_MODULE = {"setup", "conftest", "noxfile", "tasks", "farm_adapters"}
#: Words in a name that say that it is something else than the op: a reference, a part, a test.
ELSE = re.compile(r"(^|_)(torch|ref|reference|naive|test|bench|benchmark|bwd|backward|kernel|module|config|init)(_|$)")
#: Words in a module's or function's name by which it computes something else than the plain op.
VARIANT = re.compile(r"int[248]|fp[48]|float8|quant|sparse|grouped|modulated|experimental", re.I)
#: Names of an op beside its own, without underscores.
ALSO = {
    "fused_add_rms_norm": ("addrmsnorm", "rmsnormadd"),
    "matmul": ("gemm",),
    "rms_norm": ("rmsnormforward", "rmsnormfwd"),
}
#: What people call a tensor or parameter of a contract.
ALIASES = {
    "x": ("input", "inputs", "hidden_states", "hidden", "inp"),
    "weight": ("w", "gamma", "g", "scale", "weights"),
    "residual": ("r", "res", "residual_in", "residuals"),
    "eps": ("epsilon", "variance_epsilon", "norm_eps"),
    "casting": ("casting_mode",),
    "a": ("x", "input", "lhs", "mat1"),
    "b": ("y", "w", "weight", "other", "rhs", "mat2"),
}
MOST_FILES, MOST_BYTES = 5000, 2 << 20


@dataclass(frozen=True)
class Candidate:
    """A function, or the `apply` of an autograd function, that may do `op`.  `arguments`: (its parameter, whether it
    has a default, that default's source); `rank`: 0 for the op's own name."""

    op: str
    module: str
    name: str
    rank: int
    applied: bool
    arguments: tuple[tuple[str, bool, str], ...]


@dataclass(frozen=True)
class Call:
    """How to call a candidate with what the farm gives.  `given`: (its parameter, expression), by position where it is
    applied; `keywords`: the contract's parameters that it takes by name."""

    candidate: Candidate
    given: tuple[tuple[str, str], ...]
    keywords: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Where a repository has its packages: the folder, relative to the root, and what is in it."""

    path: str
    modules: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)  # dotted module -> source


def layout(folder: Path) -> Layout:
    """The packages of `src/`, else those at the root, else single modules there."""
    for place in (folder / "src", folder):
        if place.is_dir():
            tops = [p for p in sorted(place.iterdir()) if not NO_PACKAGE.match(p.name)]
            packages = [p.name for p in tops if (p / "__init__.py").is_file()]
            single = [p.stem for p in tops if p.suffix == ".py" and p.stem not in NO_MODULE and p.stem.isidentifier()]
            if packages or single:
                names = tuple(packages or single)
                return Layout("src" if place != folder else ".", names, _sources(place, names))
    return Layout(".", ())


def _sources(place: Path, names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        single = place / f"{name}.py"
        for path in [single] if single.is_file() else sorted((place / name).rglob("*.py")):
            if len(found) < MOST_FILES and path.is_file() and path.stat().st_size <= MOST_BYTES:
                parts = path.relative_to(place).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8", "replace")
    return found


def candidates(files: Mapping[str, str], ops: Sequence[str]) -> list[Candidate]:
    """All that may do one of the ops, best first: named as the op is, a plain function, in the shorter module."""
    found = []
    for module, text in files.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in tree.body:
            arguments = _arguments(node)
            op, rank = _op_of(node.name, ops) if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ("", 0)
            if op and arguments is not None and isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                applied = isinstance(node, ast.ClassDef)
                found.append(Candidate(op, module, node.name, rank + 2 * applied, applied, arguments))
    return sorted(found, key=lambda c: (c.op, c.rank, c.module.count("."), c.module, c.name))


def _op_of(name: str, ops: Sequence[str]) -> tuple[str, int]:
    """(the op that a name means, how far it is from the op's own); ("", 0) for none."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if name.startswith("_") or ELSE.search(snake.removesuffix("_function")):
        return "", 0
    plain = snake.removesuffix("_function").replace("_", "")
    words = [(word, op) for op in ops for word in (op.replace("_", ""), *ALSO.get(op, ()))]
    for word, op in sorted(
        words, key=lambda pair: -len(pair[0])
    ):  # the longest first: a fused op's name ends in another's
        if plain == word:
            return op, 0
        if plain.endswith(word):
            return op, 1
    return "", 0


def _arguments(node: ast.stmt) -> tuple[tuple[str, bool, str], ...] | None:
    """(name, has a default, its source) of a function's parameters, or of an autograd function's forward without ctx;
    None for what is neither, and for kernels."""
    if isinstance(node, ast.ClassDef):
        if not any(ast.unparse(base).endswith("Function") for base in node.bases):
            return None
        forward = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
        found = _arguments(forward) if forward else None
        return found[1:] if found else None
    if not isinstance(node, ast.FunctionDef) or any("jit" in ast.unparse(d) for d in node.decorator_list):
        return None
    a = node.args
    if a.vararg:
        return None
    plain = [*a.posonlyargs, *a.args]
    given = [None] * (len(plain) - len(a.defaults)) + list(a.defaults)
    pairs = [*zip(plain, given), *zip(a.kwonlyargs, a.kw_defaults)]
    return tuple(
        (arg.arg, default is not None, ast.unparse(default) if default is not None else "") for arg, default in pairs
    )


def call_of(
    candidate: Candidate, inputs: Sequence[str], positional: Sequence[str], keywords: Mapping[str, object]
) -> Call | str:
    """How to call it with the contract's inputs and parameters, or why that cannot be told.

    `keywords`: the contract's parameters that may be passed by name -> their defaults.
    """
    names = [*inputs, *positional]
    variant = VARIANT.search(f"{candidate.module}.{candidate.name}")
    if variant and not VARIANT.search(candidate.op):
        return f"is {variant[0]} by its name, so another op"
    given: list[tuple[str, str]] = []
    taken: list[str] = []
    by_name: list[str] = []
    for parameter, optional, default in candidate.arguments:
        meant = _meant(parameter, [n for n in names if n not in taken])
        by_keyword = _meant(parameter, list(keywords)) if not meant else ""
        if meant:
            taken.append(meant)
            given.append((parameter, meant))
        elif by_keyword:
            by_name.append(by_keyword)
            given.append((parameter, by_keyword))
        elif not optional:
            return f"needs {parameter}, which the farm does not know"
        elif candidate.applied:
            given.append((parameter, default))
    missing = [n for n in names if n not in taken]
    return f"takes no {missing[0]}" if missing else Call(candidate, tuple(given), tuple(by_name))


def _meant(parameter: str, names: Sequence[str]) -> str:
    lower = parameter.lower()
    exact = [n for n in names if n == lower]
    return next(iter(exact or [n for n in names if lower in ALIASES.get(n, ())]), "")
