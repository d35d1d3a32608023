"""Sends a user's provider to the devices: found as Python would find it, packed by content, unpacked on the node."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from farm.errors import UsageError

MAX_BYTES = 32 << 20


def parse(spec: str) -> tuple[str, str]:
    """`[OP:]NAME=module:function` as (`[OP:]NAME`, `module:function`)."""
    name, equals, path = spec.partition("=")
    module, colon, function = path.partition(":")
    if not (name and equals and module and colon and function):
        raise UsageError(f'--provider "{spec}" is not [OP:]NAME=module:function, for example mine=my_kernels:rms_norm')
    return name, path


def pack(paths: Iterable[str]) -> dict[str, Any] | None:
    """The files behind `module:function` paths: {"sha", "files": {relative path: bytes}}; None for no files."""
    files: dict[str, bytes] = {}
    for path in paths:
        module, _, function = path.partition(":")
        top = module.split(".")[0]
        origin = _find(top, path)
        if origin.is_dir():
            for file in sorted(origin.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts and ".git" not in file.parts:
                    files[f"{top}/{file.relative_to(origin)}"] = file.read_bytes()
        else:
            files[origin.name] = origin.read_bytes()
            _check_function(origin, function.split(".")[0], path)
    size = sum(len(content) for content in files.values())
    if size > MAX_BYTES:
        raise UsageError(
            f"--provider: its files are {size >> 20} MiB, more than the {MAX_BYTES >> 20} MiB that travel to devices; "
            "install the package there and name a small module that imports it"
        )
    if not files:
        return None
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return {"sha": digest.hexdigest()[:16], "files": files}


def _find(top: str, path: str) -> Path:
    spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, str(Path.cwd())])
    if spec is None:
        raise UsageError(
            f'--provider {path}: there is no module "{top}" on PYTHONPATH or in {Path.cwd()}; '
            "run from its folder or put that on PYTHONPATH"
        )
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(str(spec.origin))


def _check_function(file: Path, name: str, path: str) -> None:
    """Refuse a name that the module plainly does not define; what its text cannot tell is left to the child."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"--provider {path}: {file} is no Python that can be read ({error})") from None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
    if name not in names and "*" not in names and "__getattr__" not in names:
        raise UsageError(f'--provider {path}: {file} defines no "{name}"')


def unpack(shipped: dict[str, Any], spool: str) -> str:
    """Write the files under the run's folder, once per content; returns the folder to import from."""
    final = Path(spool, "providers", shipped["sha"])
    if final.is_dir():
        return str(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="unpack-", dir=final.parent))
    for name, content in shipped["files"].items():
        target = temporary / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    try:
        temporary.rename(final)
    except OSError:
        if not final.is_dir():
            raise
    return str(final)
