"""Finds the ops: every folder `farm/contracts/ops/<op>/` with a `contract.py`, and the folders that a command names.

A command that reads matrices calls `forget`, then `add` for each folder it is given and `add_installed`; a judge adds
what the coordinator has sent (farm/shipping/contracts.py).  Which folders there are belongs to the process.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module, invalidate_caches, metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from farm.contracts import digest, folders, lazy_torch
from farm.contracts.base import Contract
from farm.contracts.folders import ContractFolder
from farm.errors import ContractError, UsageError

OPS = Path(__file__).resolve().parent / "ops"
#: The package as whose subpackages outside folders are imported, by their number: equal names on every host.
PACKAGE = "farm_contracts"
#: Versions that are not in the hash of a contract: judges check theirs otherwise, or every host has its own.
_UNVERSIONED = frozenset({"python", "numpy", "torch"})

_folders: list[ContractFolder] = []


def forget() -> None:
    """Back to the built-in ops alone."""
    _folders.clear()
    _clear()


def _clear() -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    known_ops.cache_clear()
    contract.cache_clear()
    _origin.cache_clear()
    invalidate_caches()
    if _folders:
        top = _package(PACKAGE, [])
        for number, folder in enumerate(_folders):
            setattr(top, f"r{number}", _package(f"{PACKAGE}.r{number}", [str(folder.path)]))


def _package(name: str, path: list[str]) -> ModuleType:
    """A package without a file, so that whatever is below `path` is imported under a name of ours."""
    made = ModuleType(name)
    made.__path__ = path
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    made.__spec__.submodule_search_locations = path
    sys.modules[name] = made
    return made


def add(path: Path | str, where: str = "") -> ContractFolder:
    """From now on the ops of this folder are known too; a folder that was added before is added once.  `where` names it
    in refusals (default: `--contracts PATH`).  UsageError if it is not a folder of contracts, or if one of its ops is
    known already."""
    where = where or f"--contracts {path}"
    if any(Path(path).resolve() == folder.path for folder in _folders):
        return next(folder for folder in _folders if Path(path).resolve() == folder.path)
    return add_folder(folders.read(Path(path), where))


def add_installed() -> None:
    """The folders that installed packages offer (`farm.contracts.folders.GROUP`), by `add`'s rules."""
    for folder in folders.installed():
        if all(folder.path != other.path for other in _folders):
            add_folder(folder)


def add_folder(folder: ContractFolder) -> ContractFolder:
    """`add` for one that was read already."""
    for op in folder.ops:
        if op in known_ops():
            whose = next((f.where for f in _folders if op in f.ops), "the farm itself")
            raise UsageError(
                f"{folder.where}: the op {op} is already defined by {whose}; rename the folder {op}",
                id="contracts-op-clash",
            )
    _folders.append(folder)
    _clear()
    return folder


def outside() -> tuple[ContractFolder, ...]:
    """The folders that were added, in their order."""
    return tuple(_folders)


@lru_cache(maxsize=1)
def known_ops() -> tuple[str, ...]:
    """The names of all ops, sorted."""
    built_in = (p.parent.name for p in OPS.glob("*/contract.py"))
    return tuple(sorted({*built_in, *(op for folder in _folders for op in folder.ops)}))


def find(op: str) -> Contract | None:
    """The contract of `op`, or None."""
    return contract(op) if op in known_ops() else None


def named(op: str) -> Contract:
    """The contract of an op that a command line names; UsageError if there is none."""
    if op not in known_ops():
        near = difflib.get_close_matches(op, known_ops(), 1)
        hint = f'did you mean "{near[0]}"?' if near else f"the ops are {', '.join(known_ops())}"
        own = "" if _folders else "; for an op of your own, give the folder of its contract: --contracts DIR"
        raise UsageError(f'there is no op "{op}"; {hint}{own}', id="contracts-op-unknown")
    return contract(op)


@cache
def contract(op: str) -> Contract:
    """The contract of `op`; KeyError if there is none, ContractError for an outside one that breaks a rule."""
    if op not in known_ops():
        raise KeyError(op)
    with lazy_torch.standing_in():
        module = import_module(module_of(op))
    made = getattr(module, "CONTRACT", None)
    if not isinstance(made, Contract):
        raise ContractError(
            f"{file_of(op)}: defines no CONTRACT, an instance of a subclass of farm.contracts.Contract; add one",
            id="contract-missing",
        )
    if made.needs_torch:
        made.op = op  # a function may have any name
    parts = [content(op), *([f"torch-{torch_version()}"] if made.needs_torch else [])]
    made.content = "+".join(part for part in parts if part)
    return made


def folder_of(op: str) -> ContractFolder | None:
    """The outside folder that defines `op`; None for a built-in one."""
    return next((folder for folder in _folders if op in folder.ops), None)


def file_of(op: str) -> Path:
    """The `contract.py` of an op."""
    folder = folder_of(op)
    return (folder.path if folder else OPS) / op / folders.FILE


def module_of(op: str) -> str:
    """The module that defines an op's contract."""
    for number, folder in enumerate(_folders):
        if op in folder.ops:
            return f"{PACKAGE}.r{number}.{op}.contract"
    return f"farm.contracts.ops.{op}.contract"


@cache
def _origin(op: str) -> digest.Origin:
    return digest.origin([module_of(op)])


def content(op: str) -> str:
    """What an outside contract is made of, 16 hexadecimal digits: its folder, the modules beside it that it imports,
    and the versions of the packages that it imports.  Empty for a built-in one, which has its version and the farm's.
    ContractError if it loads code that cannot be followed, or if this process lacks the packages it was planned with.
    """
    folder = folder_of(op)
    if folder is None:
        return ""
    own = _origin(op)
    if own.computed:
        raise ContractError(
            f"the contract of {op} loads code by a computed name ({own.computed[0]}), so its content is unknown; "
            "write an import statement",
            id="contract-computed-import",
        )
    here = requires(op)
    for name, version in folder.requires.get(op, {}).items():
        if here.get(name) != version:
            raise ContractError(
                f"the contract of {op} needs {name} {version}, but this Python has {here.get(name) or 'none'}; install "
                "that version on every node",
                id="contract-distribution",
            )
    found = hashlib.sha256()
    for name in files_of(op):
        file, data = folder.path / name, folder.files.get(name)
        if data is None or data != file.read_bytes():
            raise ContractError(
                f"{file} was changed after this command read {folder.where}; repeat the command", id="contract-changed"
            )
        found.update(f"{name}\0{len(data)}\0".encode() + data)
    found.update(repr(sorted(here.items())).encode())
    return found.hexdigest()[:16]


def files_of(op: str) -> list[str]:
    """The files of its folder that an outside contract is made of, by their names in it; none for a built-in one."""
    folder = folder_of(op)
    if folder is None:
        return []
    inside = {file for file in _origin(op).files.values() if folder.path in file.parents}
    return [file.relative_to(folder.path).as_posix() for file in sorted(inside)]


def requires(op: str) -> Mapping[str, str]:
    """The installed packages that an op's contract imports, by version; not those that every judge has."""
    return {k: v for k, v in sorted(_origin(op).versions.items()) if k not in _UNVERSIONED}


def torch_version() -> str:
    """The version of torch in the environment that evaluates references; "" if it has none."""
    return _torch_version[0]()


def own_torch() -> str:
    """Of this Python, without importing it."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


_torch_version: list[Callable[[], str]] = [own_torch]


def ask_torch_version(how: Callable[[], str]) -> None:
    """From now on that version is asked so, once."""
    _torch_version[0] = cache(how)
    contract.cache_clear()
