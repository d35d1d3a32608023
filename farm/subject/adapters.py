"""The functions that a subject's providers call: found, checked as far as text shows, and sent with their neighbours.

An adapter is a module beside the `farm.yaml`, or one of the subject's own.  What it imports from the same folder is its
neighbour and goes with it, so that it means on a device what it means there.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from farm.errors import MatrixError
from farm.shipping.neighbours import RESERVED, tree, with_neighbours
from farm.shipping.providers import bound_names


def collect(
    folder: Path, paths: Iterable[tuple[str, str]], overlay: Mapping[str, bytes], modules: Iterable[str]
) -> dict[str, bytes]:
    """Relative path -> bytes of every adapter beside the file and of its neighbours.

    `paths`: (`module:function`, where it is named).  `overlay`: the subject's own files.  `modules`: its modules.
    MatrixError for a module or function that is not there.
    """
    own, found = set(modules), dict[str, bytes]()
    for path, where in paths:
        module, _, function = path.partition(":")
        top = module.split(".")[0]
        if top in own:
            text = _text(overlay, module)
            if text is None and overlay and not _native(overlay, module):
                raise _missing(
                    f'{where}: {path}: the subject\'s files have no module "{module}"', module, _modules(overlay)
                )
        else:
            if top in RESERVED:
                raise MatrixError(
                    f"{where}: {path}: a module {top} would stand before the one that children need; rename it",
                    id="subject-adapter-reserved",
                )
            sent = tree(folder, top)
            if not sent:
                known = [p.stem for p in sorted(folder.glob("*.py"))] + sorted(own)
                raise _missing(f'{where}: {path}: there is no module "{top}" in {folder}', top, known)
            found |= sent
            text = _text(sent, module)
            if text is None:
                raise _missing(f'{where}: {path}: there is no module "{module}" in {folder}', module, _modules(sent))
        if text is not None:
            _check(text, function.split(".")[0], f"{where}: {path}")
    return with_neighbours(folder, found, own)


def _text(found: Mapping[str, bytes], module: str) -> bytes | None:
    base = module.replace(".", "/")
    return next((found[n] for n in (f"{base}/__init__.py", f"{base}.py") if n in found), None)


def _native(found: Mapping[str, bytes], module: str) -> bool:
    base = module.replace(".", "/")
    return any(name.startswith(f"{base}.") and name.endswith(".so") for name in found)


def _modules(found: Iterable[str]) -> list[str]:
    return [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in found if name.endswith(".py")
    ]


def _missing(what: str, name: str, known: Iterable[str]) -> MatrixError:
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f'did you mean "{near[0]}"?' if near else "correct the path, or write this module"
    return MatrixError(f"{what}; {hint}", id="subject-adapter-module")


def _check(text: bytes, name: str, where: str) -> None:
    """Refuse a name that the module clearly does not define; the child sees what its text cannot show."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        why = f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else str(error)
        raise MatrixError(f"{where}: the module is not valid Python ({why})", id="subject-adapter-not-python") from None
    names = bound_names(tree)
    if {name, "*", "__getattr__"}.isdisjoint(names):
        near = difflib.get_close_matches(name, names, 1)
        hint = f'did you mean "{near[0]}"?' if near else "correct the name, or write this function"
        raise MatrixError(f'{where}: the module does not define "{name}"; {hint}', id="subject-adapter-function")
