"""Which branches of a module's kernels are taken, counted in a copy of it, or of several modules that share functions.

The copy's every condition (of an `if`, of a conditional expression, each operand of `and` and `or`) goes through a
recorder that gives it back as it is, and every `for` through one that counts its turns.  Nothing else differs, so what
the copy takes the module takes.  What one of the modules imports from another, its copy imports from the other's copy.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Branch(NamedTuple):
    """A condition, as it is written; `number` tells equal ones of one function apart."""

    function: str
    text: str
    number: int

    def __str__(self) -> str:
        return f"{self.function}: {self.text}" + (f" ({self.number})" if self.number > 1 else "")


PACKAGE = "kernels.ops.rms_norm.gpu"


class Way(NamedTuple):
    """A branch taken one way: a condition that held or not, a loop with more than one turn or not."""

    branch: str
    taken: bool


class Recorder:
    """Copies of modules, their branches, and which ways were taken since they were made.

    A module comes after those of `sources` that it imports from; no two of them have a function of one name.  Their
    relative imports are those of the package PACKAGE.
    """

    def __init__(self, folder: Path, *sources: Path) -> None:
        counting = _Counting()
        self.modules: list[ModuleType] = []
        for source in sources:
            tree = counting.visit(ast.parse(source.read_text(encoding="utf-8")))
            copy = folder / f"counted_{source.parent.name}_{source.stem}.py"
            copy.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
            self.modules.append(self._loaded(copy))
            counting.copies[source.with_suffix("").parts] = copy.stem
        self.branches = [str(b) for b in counting.branches]
        self.taken: set[Way] = set()

    @property
    def ways(self) -> set[Way]:
        """Both ways of every branch."""
        return {Way(b, taken) for b in self.branches for taken in (True, False)}

    def _loaded(self, copy: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(copy.stem, copy)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[copy.stem] = module  # for good: the interpreter knows modules by their address
        spec.loader.exec_module(module)
        module.__dict__.update(_held=self._held, _turns=self._turns)
        return module

    def _held(self, branch: int, condition: Any) -> Any:
        self.taken.add(Way(self.branches[branch], bool(condition)))
        return condition

    def _turns(self, branch: int, iterable: Iterable[Any]) -> Iterator[Any]:
        count = 0
        for value in iterable:
            count += 1
            yield value
        self.taken.add(Way(self.branches[branch], count > 1))


class _Counting(ast.NodeTransformer):
    """Inside functions, wraps each condition and each loop in a call; imports from copies what has been copied."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []
        self.copies: dict[tuple[str, ...], str] = {}
        self.function = ""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.level:
            parents = PACKAGE.split(".")
            above = parents[: len(parents) - node.level + 1]
            node.module, node.level = ".".join([*above, *([node.module] if node.module else [])]), 0
        module = tuple((node.module or "").split("."))
        for path, copy in self.copies.items():
            if path[-len(module) :] == module:
                node.module = copy
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.function = node.name
        node.body = [self.visit(statement) for statement in node.body]  # not its decorators, not its annotations
        self.function = ""
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._wrapped(node, "test", "if ", "_held")

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._wrapped(node, "test", "if ", "_held")

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._wrapped(node, "iter", "for ", "_turns")

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        texts = [ast.unparse(value) for value in node.values]
        self.generic_visit(node)
        if self.function:
            node.values = [self._call("_held", text, value) for text, value in zip(texts, node.values)]
        return node

    def _wrapped(self, node: Any, field: str, word: str, recorder: str) -> ast.AST:
        text = word + ast.unparse(getattr(node, field))
        self.generic_visit(node)
        if self.function:
            setattr(node, field, self._call(recorder, text, getattr(node, field)))
        return node

    def _call(self, recorder: str, text: str, value: ast.expr) -> ast.Call:
        same = sum((b.function, b.text) == (self.function, text) for b in self.branches)
        self.branches.append(Branch(self.function, text, same + 1))
        number = ast.Constant(len(self.branches) - 1)
        return ast.Call(ast.Name(recorder, ast.Load()), [number, value], [])
