"""Finds the ops: every folder `kernels/ops/<op>/` with a `contract.py`.

Another distribution on the package index is also named `kernels`; wherever both are installed, ours is the one beside
this package, and it is put first.
"""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.contract import Contract

ROOT = Path(__file__).resolve().parent.parent  # the folder that holds `farm` and `kernels`


def foreign_kernels() -> str | None:
    """The path of a `kernels` package that is importable here and is not ours, or None."""
    for entry in sys.path:
        candidate = Path(entry or ".").resolve() / "kernels"
        if (candidate / "__init__.py").is_file() and not (candidate / "contract.py").is_file():
            return str(candidate)
    return None


def use_our_kernels() -> None:
    """Make `kernels` mean ours: a no-op where the import path already leads to a package of this project (the revision
    under test stands before the farm's own), else the farm's own is put first, also over one imported before."""
    loaded = sys.modules.get("kernels")
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        for entry in sys.path:
            candidate = Path(entry or ".") / "kernels"
            if (candidate / "__init__.py").is_file():
                origin = str(candidate / "__init__.py")
                break
    if origin and (Path(origin).parent / "contract.py").is_file():
        return
    sys.path.insert(0, str(home()))
    for name in [n for n in sys.modules if n == "kernels" or n.startswith("kernels.")]:
        del sys.modules[name]


def home() -> Path:
    """The folder that holds our `kernels`: this package's own, or, where this package came in a bundle and the kernels
    in another, the first of them on the import path."""
    places = [ROOT, *(Path(entry) for entry in sys.path if entry)]
    return next((p for p in places if (p / "kernels" / "contract.py").is_file()), ROOT)


@lru_cache(maxsize=1)
def known_ops() -> tuple[str, ...]:
    """The names of all ops, sorted."""
    return tuple(sorted(p.parent.name for p in (home() / "kernels" / "ops").glob("*/contract.py")))


@cache
def contract(op: str) -> Contract:
    """The contract of `op`; KeyError if there is none."""
    if op not in known_ops():
        raise KeyError(op)
    use_our_kernels()
    found: Contract = import_module(f"kernels.ops.{op}.contract").CONTRACT
    return found
