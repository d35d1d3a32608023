"""A subject's files in a child: laid where they are imported first, and proven to be what is imported.

An overlay that silently did not take effect (an editable install, a `.pth` file, another copy of the package) would
make every result one of other code.  So before anything is imported the child computes the digest of the files anew and
asks Python where it would import each module from; and in each cell it looks where it did.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import FarmSignal
from farm.shipping.providers import digest

MERGED = "merged"


class NotTheSubject(FarmSignal):
    """What was imported under a subject's name is not what was sent."""


@dataclass
class PlacedSubject:
    """`roots`: where its modules may come from.  `missing`: of an overlay over what is installed, why nothing is."""

    modules: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    missing: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """NotTheSubject for a loaded module of the subject that is not of its files."""
        for name, file in _loaded(self.modules):
            if not file.startswith(self.roots):
                raise NotTheSubject(f"{name} was imported from {file}, which is not one of the subject's files")


#: Of this process.
placed = PlacedSubject()


def place(given: Mapping[str, Any]) -> dict[str, Any]:
    """Prove where this process imports the subject from; what the supervisor is told.

    `given`: its `folder` on this node, `modules`, `over` ("installed" or "").  The answer has `digest`, as computed
    here, `modules` (name -> file), `missing`, and `wrong`: why the overlay did not take effect, "" where it did.
    """
    global placed
    folder, modules = Path(given["folder"]), tuple(given["modules"])
    overlay = folder / "overlay"
    roots, missing = [str(overlay)], ""
    if given.get("over"):
        merged, missing = _merge(folder, modules)
        roots = [str(merged)]
        if not missing:
            sys.path.insert(0, str(merged))
            importlib.invalidate_caches()
    placed = PlacedSubject(modules, tuple(f"{os.path.realpath(r)}{os.sep}" for r in roots), missing)
    found = {} if missing else {name: _origin(name) for name in modules}
    placed.said = {
        "digest": digest(dict(_files(folder))),
        "modules": found,
        "missing": missing,
        "wrong": next((_wrong(n, file, overlay) for n, file in found.items() if not _is_of(file)), ""),
    }
    return placed.said


def _is_of(file: str) -> bool:
    return bool(file) and _real(file).startswith(placed.roots)


def _wrong(name: str, file: str, overlay: Path) -> str:
    if not file:
        return f"Python does not find {name} on the import path, although it was sent to {overlay}"
    return f"{name} would be imported from {file} and not from the files that were sent ({overlay})"


def _origin(name: str) -> str:
    """The file, or the folder of a package without one, that a module would be imported from; "" for none."""
    loaded = sys.modules.get(name)
    try:
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return ""
    if spec is None:
        return ""
    if spec.origin and spec.has_location:
        return str(spec.origin)
    return str(next(iter(spec.submodule_search_locations or ()), ""))


def _loaded(modules: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(name, file) of every module of these that this process has imported from a file."""
    tops = set(modules)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in tops:
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
            if isinstance(file, str):
                yield name, _real(file)


def _real(file: str) -> str:
    """The file's path with its folders resolved and its own name kept: a merged folder holds links to what is
    installed."""
    return f"{os.path.realpath(Path(file).parent)}{os.sep}{Path(file).name}"


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if parts[0] != MERGED and "__pycache__" not in parts and path.is_file():
            yield "/".join(parts), path.read_bytes()


def _merge(folder: Path, modules: Iterable[str]) -> tuple[Path, str]:
    """A folder in which each installed package has the subject's `.py` files and its own other files, as links.

    (the folder, "" or why there is none).  By the installed places, since environments on one node differ.
    """
    elsewhere = [p for p in sys.path if not _within(p, folder)]
    installed: dict[str, Path] = {}
    for name in modules:
        spec = importlib.machinery.PathFinder.find_spec(name, elsewhere) or _by_any_finder(name, folder)
        locations = list(spec.submodule_search_locations or ()) if spec else []
        if not locations:
            return folder, f"its .py files belong over an installed {name}, which this environment lacks"
        installed[name] = Path(locations[0]).resolve()
    key = digest({name: str(path).encode() for name, path in installed.items()})
    merged = folder / MERGED / key
    if not merged.is_dir():
        merged.parent.mkdir(exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".merging-", dir=merged.parent))
        beside.chmod(0o755)
        for name, package in installed.items():
            _link(package, folder / "overlay" / name, beside / name)
        try:
            beside.rename(merged)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            if not merged.is_dir():  # else another child of this node was quicker
                raise
    return merged, ""


def _by_any_finder(name: str, folder: Path) -> Any:
    """What an editable install's own finder says."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return spec if places and not _within(places[0], folder) else None


def _within(path: str, folder: Path) -> bool:
    return f"{os.path.realpath(path)}{os.sep}".startswith(f"{os.path.realpath(folder)}{os.sep}")


def _link(installed: Path, ours: Path, out: Path) -> None:
    """The files of both as links; ours where both have one.  Folders are real, so that a file finds its neighbours."""
    out.mkdir(parents=True)
    places = [p for p in (installed, ours) if p.is_dir()]
    for name in sorted({p.name for place in places for p in place.iterdir()} - {"__pycache__"}):
        theirs, mine = installed / name, ours / name
        if theirs.is_dir() or mine.is_dir():
            _link(theirs, mine, out / name)
        else:
            (out / name).symlink_to(mine if mine.is_file() else theirs)
