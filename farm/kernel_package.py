"""Finds our kernel package: the folder `kernels/` of a checkout or bundle, or the installed wheel `farm-kernels`.

Another distribution on the package index is also named `kernels`.  Ours is told from it by its `launches.py`; in a
checkout and in a bundle it is put first on the import path.  Installed from its wheel it is named `farm_kernels` and
stands in nobody's way.  The farm loads it under one of the two names in a process, never under both.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent  # the folder that holds `farm`, and in a checkout `kernels`
INSTALLED = "farm_kernels"
DISTRIBUTION = "farm-kernels"
_MARK = "launches.py"
_loaded = ""  # the name under which `load` loaded it in this process


def folder() -> Path | None:
    """Where our kernel package's sources are on this host, or None: beside this package, else the first of that name
    on the import path (this package came in one bundle, the kernels in another), else the installed distribution."""
    for place in (ROOT, *(Path(entry) for entry in sys.path if entry)):
        if (place / "kernels" / _MARK).is_file():
            return place / "kernels"
    return _installed_folder()


def _installed_folder() -> Path | None:
    spec = find_spec(INSTALLED)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def is_source(parts: tuple[str, ...]) -> bool:
    """Whether a file of our kernel package, by the parts of its path in it, is more than what building its wheel or
    running it leaves behind."""
    return not (parts[0] == "build" or parts[0].endswith(".egg-info") or "__pycache__" in parts)


def version() -> str:
    """The version of DISTRIBUTION, if this process takes our kernel package from there; else ""."""
    ours = folder()
    name = _loaded or (ours.name if ours else "")
    try:
        return metadata.version(DISTRIBUTION) if name == INSTALLED else ""
    except metadata.PackageNotFoundError:
        return ""


def foreign() -> str | None:
    """The path of a `kernels` package that is importable here and is not ours, or None."""
    for entry in sys.path:
        candidate = Path(entry or ".").resolve() / "kernels"
        if (candidate / "__init__.py").is_file() and not (candidate / _MARK).is_file():
            return str(candidate)
    return None


def use_our_kernels() -> None:
    """Make `kernels` mean ours where a checkout or bundle has it: a no-op where the import path already leads to one
    (the revision under test comes before the farm's own), else the farm's own is put first, also over a package of
    that name that was imported before.  Where ours is only installed as `farm_kernels`, nothing is changed."""
    loaded = sys.modules.get("kernels")
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        for entry in sys.path:
            candidate = Path(entry or ".") / "kernels"
            if (candidate / "__init__.py").is_file():
                origin = str(candidate / "__init__.py")
                break
    if origin and (Path(origin).parent / _MARK).is_file():
        return
    ours = folder()
    if ours is None or ours.name != "kernels":
        return
    sys.path.insert(0, str(ours.parent))
    for name in [n for n in sys.modules if n == "kernels" or n.startswith("kernels.")]:
        del sys.modules[name]


def load(module: str = "") -> ModuleType:
    """Our kernel package, or a module of it, under the one name that it has in this process.  ModuleNotFoundError
    if it is neither in a checkout or bundle on the import path nor installed."""
    global _loaded
    if _loaded != INSTALLED:  # else it stays so, also when code under test puts a checkout on the import path
        use_our_kernels()
        ours = folder()
        if ours is None:
            what = "the farm's own kernels are not installed; install farm-kernels, or run from a checkout"
            raise ModuleNotFoundError(what, name=DISTRIBUTION)
        _loaded = ours.name
    return import_module(f"{_loaded}.{module}" if module else _loaded)
