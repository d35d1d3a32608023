"""The language of sizes: names of dimensions, whole numbers, and their products, sums, differences and quotients."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from farm.errors import ContractError

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Mult: lambda a, b: a * b,
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.FloorDiv: lambda a, b: a // b,
}


def value(word: str | int, dims: Mapping[str, int]) -> int:
    """The value of one size of a shape, like `2*hidden`.  ContractError for what is no size."""

    def of(node: ast.expr) -> int:
        if isinstance(node, ast.Name) and node.id in dims:
            return dims[node.id]
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        raise _no_size(word)

    return of(_tree(str(word)))


def names(word: str) -> list[str]:
    """The dimensions that a size names."""
    return [node.id for node in ast.walk(_tree(word)) if isinstance(node, ast.Name)]


def _tree(word: str) -> ast.expr:
    try:
        return ast.parse(word, mode="eval").body
    except SyntaxError:
        raise _no_size(word) from None


def _no_size(word: str | int) -> ContractError:
    return ContractError(
        f'"{word}" is not a size; write a name, a number, or a*b, a+b, a-b, a//b', id="contract-torch-size"
    )
