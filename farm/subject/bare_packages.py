"""Loads one module of a package whose `__init__` cannot be run here.  Standard library only: children import this."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any


class _BarePackage(types.ModuleType):
    """A package with its folders and without what its `__init__` would define."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"package {self.__name__} was loaded bare, so its __init__ was not run and it has no {name}; name the "
            "module that defines it"
        )


def bare(module: str) -> types.ModuleType:
    """The module of that dotted name, loaded without running the `__init__` of the packages that it is in.

    For adapters: a package's `__init__` often imports what an environment lacks (a compiler's, a vendor's, or another
    framework's modules) although the one module under test does not need it.  Those packages stay bare for the rest of
    the process, so what the module itself imports from them (`from package.utils import x`) is loaded in the same way.
    A package that was imported before, with its `__init__`, is used as it is.  ModuleNotFoundError if there is no such
    module.
    """
    parts = module.split(".")
    for count in range(1, len(parts)):
        _bare_package(".".join(parts[:count]))
    return importlib.import_module(module)


def _bare_package(name: str) -> None:
    if name in sys.modules:
        return
    above, _, last = name.rpartition(".")
    path = list(sys.modules[above].__path__) if above else None
    # a top-level name through every finder of this process, since finding it imports nothing
    spec = importlib.util.find_spec(name) if path is None else importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"there is no package {name!r} on the import path", name=name)
    package = _BarePackage(name)
    own = importlib.machinery.ModuleSpec(name, None, is_package=True)
    own.submodule_search_locations = list(spec.submodule_search_locations)
    package.__spec__, package.__package__ = own, name
    package.__path__ = own.submodule_search_locations
    sys.modules[name] = package
    if above:
        setattr(sys.modules[above], last, package)
