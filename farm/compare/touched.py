"""Whether anything that an op is made of differs between two trees of sources: what a commit range did to it.  Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from farm.compare.kernel_changes import Sources, Tree, changes


def touched(before: Tree, after: Tree, op: str) -> tuple[str, ...] | None:
    """The kernels and files of an op that are not the same in both trees; None where neither tree shows which files are
    the op's.

    A file is an op's if it, or a folder above it, has the op's name.  A kernel of such a file counts if it differs, or
    anything that it uses, wherever that lies; the rest of the file counts by its syntax tree, so that comments and
    formatting do not.
    """
    mine, theirs = (_of(Sources(tree), op) for tree in (before, after))
    if not mine and not theirs:
        return None
    kernels = [
        c.name
        for c in changes(before, after)
        if c.state != "same" and any(k is not None and _is_of(k.path, op) for k in (c.before, c.after))
    ]
    files = [path for path in sorted(mine.keys() | theirs.keys()) if mine.get(path) != theirs.get(path)]
    return tuple(dict.fromkeys([*kernels, *files]))


def _of(sources: Sources, op: str) -> Mapping[str, str]:
    """The op's files -> what they say."""
    found = {p: ast.dump(m.tree) for p, m in sources.modules.items() if _is_of(p, op)}
    return found | {p: why for p, why in sources.broken.items() if _is_of(p, op)}


def _is_of(path: str, op: str) -> bool:
    return op in path.removesuffix(".py").split("/")
