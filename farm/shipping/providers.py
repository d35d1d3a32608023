"""Sends a user's provider to the devices: finds it as Python would, packs it by content, unpacks it on the node."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from farm.errors import InfraError, UsageError
from farm.shipping import files
from farm.shipping.neighbours import with_neighbours

MAX_BYTES = 32 << 20


def parse(spec: str) -> tuple[str, str]:
    """`[OP:]NAME=module:function` as (`[OP:]NAME`, `module:function`)."""
    name, equals, path = spec.partition("=")
    module, colon, function = path.partition(":")
    if not (name and equals and module and colon and function):
        message = f'--provider "{spec}" is not [OP:]NAME=module:function; write for example mine=my_kernels:rms_norm'
        raise UsageError(message, id="shipping-provider-form")
    return name, path


def pack(paths: Iterable[str]) -> dict[str, Any] | None:
    """The files behind `module:function` paths: {"sha", "files": {relative path: bytes}, "origins": {top-level file or
    folder among them: the folder that it is from}}; None for no files.

    An installed module (in the standard library or site-packages) is not sent: the node imports its own.  What a sent
    file imports from the folder beside it is sent with it.
    """
    found: dict[str, Path] = {}
    folders: list[Path] = []
    origins: dict[str, str] = {}
    for path in paths:
        module, _, function = path.partition(":")
        top = module.split(".")[0]
        origin = _find(top, path)
        _check_function(_module_file(origin, module, path), function.split(".")[0], path)
        if _installed(origin):
            continue
        if origin.is_dir():
            found.update({f"{top}/{f.relative_to(origin)}": f for f in _package_files(origin)})
        else:
            found[origin.name] = origin
        folders.append(origin.parent)
        origins[origin.name] = str(origin.parent.absolute())
    size = sum(file.stat().st_size for file in found.values())
    content = {name: file.read_bytes() for name, file in sorted(found.items())} if size <= MAX_BYTES else {}
    for folder in dict.fromkeys(folders):
        content = with_neighbours(folder, content)
        origins |= {name.split("/")[0]: str(folder.absolute()) for name in content if name.split("/")[0] not in origins}
    size = max(size, sum(map(len, content.values())))
    if size > MAX_BYTES:
        raise UsageError(
            f"--provider: the provider's files have {size >> 20} MiB, but at most {MAX_BYTES >> 20} MiB are sent to "
            "devices; install the package on the nodes and name a small module that imports it",
            id="shipping-provider-too-big",
        )
    if not found:
        return None
    return {"sha": digest(content), "files": content, "origins": origins}


def file_of(path: str) -> Path:
    """The file that the module of `module:function` is in.  UsageError if there is none."""
    module = path.partition(":")[0]
    return _module_file(_find(module.split(".")[0], path), module, path)


def _package_files(folder: Path) -> list[Path]:
    return [f for f in folder.rglob("*") if f.is_file() and not {"__pycache__", ".git"} & set(f.parts)]


def _installed(origin: Path) -> bool:
    places = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    return any(place in origin.resolve().parents for place in places)


def _find(top: str, path: str) -> Path:
    """The file of a top-level module, or the folder of a package."""
    spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, str(Path.cwd())])
    if spec is None:
        raise UsageError(
            f'--provider {path}: there is no module "{top}" on PYTHONPATH or in {Path.cwd()}; '
            "run farm in the folder of this module, or add that folder to PYTHONPATH",
            id="shipping-provider-module",
        )
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(str(spec.origin))


def _module_file(origin: Path, module: str, path: str) -> Path:
    """The file of a dotted module inside its package."""
    if not origin.is_dir():
        if "." in module:
            message = f'"{origin.name}" is a single module, not a package with a module "{module}"'
            raise UsageError(f"--provider {path}: {message}; correct the path", id="shipping-provider-not-a-package")
        return origin
    base = origin.joinpath(*module.split(".")[1:])
    for file in (base / "__init__.py", base.with_suffix(".py")):
        if file.is_file():
            return file
    if any(base.parent.glob(f"{base.name}.*.so")):
        return base.with_suffix(".so")  # compiled: only the child can see what it defines
    message = f'the package {origin} has no module "{module}"; correct the path'
    raise UsageError(f"--provider {path}: {message}", id="shipping-provider-submodule")


def bound_names(tree: ast.AST) -> set[str]:
    """The names that a module's source may give it, as far as reading can tell."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
    return names


def _check_function(file: Path, name: str, path: str) -> None:
    """Refuse a name that the module clearly does not define; the child checks what its text cannot show."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        why = f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else "not UTF-8 text"
        message = f"{file} is not valid Python ({why}); correct this file"
        raise UsageError(f"--provider {path}: {message}", id="shipping-provider-not-python") from None
    if {name, "*", "__getattr__"}.isdisjoint(bound_names(tree)):
        message = f'{file} does not define "{name}"; correct the name'
        raise UsageError(f"--provider {path}: {message}", id="shipping-provider-function")


def unpack(shipped: dict[str, Any], spool: str) -> str:
    """Write the files under the run's folder, once per content; returns the folder to import from.  InfraError for
    files that do not match their hash, or whose names leave the folder."""
    sha = str(shipped["sha"])
    if digest(shipped["files"]) != sha:
        message = f"the files of a provider do not match their hash {sha[:16]}; run again"
        raise InfraError(message, id="shipping-provider-hash")
    final = Path(spool, "providers", sha)
    try:
        return str(files.write_all(shipped["files"].items(), final))
    except files.NotInside as error:
        raise InfraError(f"provider {sha} {error}; run again", id="shipping-provider-entry") from None
    except OSError as error:
        message = f"{final}: a provider cannot be unpacked ({error.strerror or error}); check the disk and permissions"
        raise InfraError(message, id="shipping-provider-unpack") from None


def digest(content: Mapping[str, bytes]) -> str:
    """The hash of a provider's files, shortened."""
    found = hashlib.sha256()
    for name, data in sorted(content.items()):
        found.update(f"{name}\0{len(data)}\0".encode() + data)
    return found.hexdigest()[:16]
