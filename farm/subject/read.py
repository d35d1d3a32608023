"""Reads a `farm.yaml` as strictly as a matrix: file, line, path, what is wrong, and the near miss.

Only the text is judged here, and whether the files that it names are there; `adapters` looks into them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from farm.compare import arms
from farm.contracts.base import Contract
from farm.errors import MatrixError
from farm.matrix import axes as ax
from farm.matrix.document import YamlNode, parse, read, show, suggest
from farm.node.environment import MASKS, NEVER
from farm.shipping.neighbours import RESERVED
from farm.subject.model import AUTOGRAD, Build, OpEntry, Override, Source, Subject, SubjectProvider

KEYS = ("farm", "subject", "overlay", "build", "release", "providers", "contracts", "matrices", "selection", "tuning",
        "tests", "benchmarks")  # fmt: skip
SOURCES = ("overlay", "build", "release")
VERSIONS = (1,)
OVERLAY, BUILD = ("path", "over", "modules"), ("command", "inputs", "gives", "minutes", "modules")
PROVIDER, ENTRY = ("ops", "backends", "role"), ("call", "modes", "backward", "declares")
ON_BACKEND, OP_ON_BACKEND = ("ops", "variables"), ("call", "backward", "modes")
ROLES = ("subject", "peer")
MEMORY = ("reported", "counts")
SELECTION = {"kernels": ("cache_key", "all"), "sentinel": 1000, "simulated": ("ignored", "counts"), "memory": MEMORY}
TUNING = {"triton": arms.TUNING}
MAX_MINUTES = 24 * 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_PROVIDER = re.compile(r"[A-Za-z0-9_-]+")
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that decide what runs at all, or where: they are the node's to set.
NODES = ("PATH", "HOME", "LD_", "FARM_", "TMP", "TEMP", *NEVER, *MASKS)


class SubjectReader:
    """Reads one file.  `ops` and `contract`: what the farm knows; `backends`: their names."""

    def __init__(self, ops: Sequence[str], contract: Callable[[str], Contract | None], backends: Sequence[str]):
        self.ops, self.contract, self.backends = tuple(ops), contract, tuple(backends)

    def file(self, path: Path) -> Subject:
        """The subject that a file describes.  MatrixError begins with the file, and the line where there is one."""
        text, sha256 = read(path)
        return self.text(text, str(path), path.parent, sha256)

    def text(self, text: str, name: str, folder: Path, sha256: str = "") -> Subject:
        """The same, of its text; `folder`: where it lies."""
        roots = parse(text, name)
        if len(roots) != 1 or not isinstance(roots[0].value, dict):
            what = "is empty" if not roots or roots[0].value is None else "is not one mapping"
            raise MatrixError(
                f"{name}: {what}; a subject needs the keys {', '.join(KEYS[:3])} and providers",
                id="subject-not-a-mapping",
            )
        root = roots[0]
        given = root.value
        _known(given, KEYS, "a subject", "subject-unknown-key")
        own_tests = "tests" in given or "benchmarks" in given
        for key in ("farm", "subject", "providers"):
            if key not in given and not (key == "providers" and own_tests):
                example = {"farm": "1", "subject": "my-kernels"}.get(key, "{mine: {ops: {...}}}")
                raise _at(root, f"has no {key}; add {key}: {example}", f"subject-no-{key}")
        if given["farm"].value not in VERSIONS or isinstance(given["farm"].value, bool):
            message = f"is {show(given['farm'].value)}; this farm reads version {VERSIONS[-1]}: write farm: 1"
            raise given["farm"].error(message, id="subject-version")
        own, ops = self._contracts(given.get("contracts"), folder)
        providers = {}
        if "providers" in given:
            providers = self._providers(given["providers"], ops)
            _one_value(providers, given["providers"])
        return Subject(
            file=name,
            folder=str(folder),
            sha256=sha256,
            name=_named(given["subject"], _NAME, "a name has 1 to 80 letters, digits, '.', '_' or '-'", "subject-name"),
            source=self._source(root, given),
            providers=providers,
            contracts=own,
            matrices=tuple(_file(node, folder, "is_file") for node in _entries(given.get("matrices"))),
            selection=_selection(given.get("selection")),
            tuning=_tuning(given.get("tuning")),
            tests=_own(given.get("tests")),
            benchmarks=_own(given.get("benchmarks")),
        )

    # where its files come from

    def _source(self, root: YamlNode, given: Mapping[str, YamlNode]) -> Source:
        named = [key for key in SOURCES if key in given]
        if not named:
            message = "does not say where the subject's files are; add overlay: {path: src, modules: [my_package]}"
            raise _at(root, message, "subject-no-source")
        if "release" in named and len(named) > 1:
            message = f"and {next(n for n in named if n != 'release')} are two sources of the same files; keep one"
            raise given["release"].key_error(message, id="subject-two-sources")
        overlay = _overlay(given["overlay"]) if "overlay" in given else Source()
        if "build" in given:
            if overlay.over:
                message = "is laid over what is installed, but there is also a build; remove over: installed"
                raise given["overlay"].error(message, id="subject-build-over-installed")
            build, modules = _build(given["build"])
            return Source(overlay.modules or modules, overlay.path, build=build, where=overlay.where)
        if "release" in given:
            return Source(release=_release(given["release"]))
        return overlay

    # contracts: folders of ops that the farm does not know

    def _contracts(self, node: YamlNode | None, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(the folders, every op that the farm knows with them)."""
        folders = tuple(_file(entry, folder, "is_dir") for entry in _entries(node))
        more = [p.parent.name for place in folders for p in sorted(Path(place).glob("*/contract.py"))]
        return folders, (*self.ops, *more)

    # providers

    def _providers(self, node: YamlNode, ops: tuple[str, ...]) -> dict[str, SubjectProvider]:
        out = {}
        for name, child in node.mapping("mine: {ops: {...}}").items():
            if not _PROVIDER.fullmatch(name):
                message = "is no name of a provider, which has only letters, digits, _ and -; choose another name"
                raise child.key_error(message, id="subject-provider-name")
            if name == "farm":
                message = "is the farm's own provider, which no subject can replace; choose another name"
                raise child.key_error(message, id="subject-provider-farm")
            given = child.mapping('ops: {rms_norm: {call: "my_adapters:rms_norm"}}')
            _known(given, PROVIDER, "a provider", "subject-provider-key")
            if "ops" not in given:
                raise child.error("has no ops; add ops: {rms_norm: {call: ...}}", id="subject-provider-no-ops")
            role = str(given["role"].value) if "role" in given else ROLES[0]
            if role not in ROLES:
                raise given["role"].unknown(ROLES, "roles", id="subject-role")
            entries = {op: self._entry(op, e, ops) for op, e in given["ops"].mapping("rms_norm: {call: ...}").items()}
            backends = self._backends(given.get("backends"), entries)
            out[name] = SubjectProvider(name, role, entries, backends)
        return out

    def _entry(self, op: str, node: YamlNode, ops: tuple[str, ...]) -> OpEntry:
        if op not in ops:
            message = (
                f"is not an op that the farm knows; {suggest(op, ops, 'ops')}; for an op of your own, name the folder "
                "of its contract, as contracts: [DIR]"
            )
            raise node.key_error(message, id="subject-unknown-op")
        if isinstance(node.value, str):  # `rms_norm: "module:function"` for short
            return OpEntry(_path(node), where=f"{node.where}: {node.path}")
        given = node.mapping('call: "my_adapters:rms_norm"')
        _known(given, ENTRY, "an op", "subject-op-key")
        if "call" not in given:
            raise node.error(f'has no call; add call: "module:{op}"', id="subject-op-no-call")
        modes, asks = _modes(given["modes"]) if "modes" in given else (("auto",), "")
        return OpEntry(
            _path(given["call"]),
            modes,
            asks,
            _backward(given.get("backward")),
            self._declares(op, given.get("declares")),
            f"{node.where}: {node.path}",
        )

    def _declares(self, op: str, node: YamlNode | None) -> dict[str, Any]:
        if node is None:
            return {}
        contract = self.contract(op)
        if contract is None:  # of a folder of contracts: the matrix's reader looks
            return {name: child.plain() for name, child in node.mapping("name: value").items()}
        known = {p.name: p for p in contract.parameters if p.declared}
        out = {}
        for name, child in node.mapping("sum: unrounded").items():
            if name not in known:
                hint = suggest(name, known, "declared parameters") if known else f"{op} has none"
                raise child.key_error(f"is nothing that a provider of {op} declares; {hint}", id="subject-declares")
            out[name] = ax.parameter(known[name], child)
        return out

    def _backends(self, node: YamlNode | None, entries: Mapping[str, OpEntry]) -> dict[str, Override]:
        out = {}
        for backend, child in (node.mapping("ascend: {variables: {...}}") if node else {}).items():
            if backend not in self.backends:
                message = f"is not a backend; {suggest(backend, self.backends, 'backends')}"
                raise child.key_error(message, id="subject-unknown-backend")
            given = child.mapping("variables: {NAME: value}")
            _known(given, ON_BACKEND, "a backend of a provider", "subject-backend-key")
            ops, modes = {}, {}
            for op, entry in (given["ops"].mapping("rms_norm: {call: ...}") if "ops" in given else {}).items():
                if op not in entries:
                    message = f"is not an op of this provider; {suggest(op, entries, 'ops')}"
                    raise entry.key_error(message, id="subject-backend-op")
                fields = entry.mapping('call: "my_adapters:rms_norm"')
                _known(fields, OP_ON_BACKEND, "an op on one backend", "subject-backend-op-key")
                call = _path(fields["call"]) if "call" in fields else ""
                ops[op] = (call, _backward(fields["backward"]) if "backward" in fields else "")
                if "modes" in fields:
                    modes[op] = _listed_modes(fields["modes"], "write a list of the modes that there are there")
            out[backend] = Override(ops, modes, _variables(given.get("variables")))
        return out


def _at(root: YamlNode, message: str, id: str) -> MatrixError:
    return MatrixError(f"{root.where}: the subject {message}", id=id)


def _known(given: Mapping[str, YamlNode], keys: Sequence[str], what: str, id: str) -> None:
    for key, node in given.items():
        if key not in keys:
            raise node.key_error(f"is not a key of {what}; {suggest(key, keys, 'keys')}", id=id)


def _entries(node: YamlNode | None) -> list[YamlNode]:
    return node.items() if node else []


def _named(node: YamlNode, pattern: re.Pattern[str], rule: str, id: str) -> str:
    text = ax.word(node)
    if not pattern.fullmatch(text):
        raise node.error(f"is {show(text)}; {rule}", id=id)
    return text


def _path(node: YamlNode) -> str:
    return _named(node, _PATH, 'write module:function, for example "my_adapters:rms_norm"', "subject-path")


def _backward(node: YamlNode | None) -> str:
    return (
        AUTOGRAD
        if node is None or node.value == AUTOGRAD
        else _named(
            node,
            _PATH,
            f'write {AUTOGRAD}, or module:function, for example "my_adapters:rms_norm_backward"',
            "subject-backward",
        )
    )


def _modes(node: YamlNode) -> tuple[tuple[str, ...], str]:
    """(the modes, "") or ((), the function that lists them)."""
    if isinstance(node.value, str) and ":" in node.value:
        return (), _path(node)
    return _listed_modes(node, "write a list of modes, or module:function of a function that returns them"), ""


def _listed_modes(node: YamlNode, rule: str) -> tuple[str, ...]:
    if not isinstance(node.value, list):
        raise node.error(f"is {show(node.value)}; {rule}", id="subject-modes")
    pairs = [(_named(e, _NAME, "a mode has letters, digits, '.', '_' or '-'", "subject-mode"), e) for e in node.items()]
    return ax._unique(pairs)


def _inside(node: YamlNode, what: str = "a path") -> str:
    """A relative path that stays where it is."""
    text = ax.word(node)
    parts = PurePosixPath(text)
    if parts.is_absolute() or ".." in parts.parts or "\0" in text:
        message = f"is {show(text)}; write {what} inside the repository, relative to its root"
        raise node.error(message, id="subject-path-outside")
    return str(parts)


def _own(node: YamlNode | None) -> tuple[str, ...]:
    """Files of the repository, which each of its revisions may have or not."""
    found = tuple(_inside(entry, "a file or folder") for entry in _entries(node))
    for name, entry in zip(found, _entries(node)):
        if name.startswith("-"):
            raise entry.error(f"is {show(name)}; a name that begins with '-' is an option", id="subject-own-tests")
    return found


def _file(node: YamlNode, folder: Path, kind: str) -> str:
    """A file or folder that the subject's own folder holds."""
    place = folder / _inside(node)
    if not getattr(place, kind)():
        near = suggest(
            place.name, sorted(p.name for p in place.parent.glob("*")) if place.parent.is_dir() else [], "files"
        )
        what = "no such file" if kind == "is_file" else "no such folder"
        raise node.error(f"is {show(node.value)}, but {folder} has {what}; {near}", id="subject-file-missing")
    return str(place)


def _overlay(node: YamlNode) -> Source:
    given = node.mapping("path: src, modules: [my_package]")
    _known(given, OVERLAY, "an overlay", "subject-overlay-key")
    over = "over" in given
    if over and given["over"].value != "installed":
        message = f"is {show(given['over'].value)}; an overlay lies over what is installed, so write over: installed"
        raise given["over"].error(message, id="subject-over")
    if "modules" not in given:
        raise node.error(
            "has no modules; name the packages that it holds, as modules: [my_package]", id="subject-no-modules"
        )
    if "path" not in given and not over:
        raise node.error("has no path; write the folder that holds the modules, as path: src", id="subject-no-path")
    path = _inside(given["path"], "a folder") if "path" in given else "."
    return Source(_modules(given["modules"]), path, over, where=node.where)


def _modules(node: YamlNode) -> tuple[str, ...]:
    pairs = []
    for entry in node.items():
        name = _named(entry, _MODULE, "write the name of a top-level package or module", "subject-module")
        if name in RESERVED:
            message = f"is {show(name)}, which every child needs for itself; a subject cannot replace it"
            raise entry.error(message, id="subject-module-reserved")
        pairs.append((name, entry))
    return ax._unique(pairs)


def _build(node: YamlNode) -> tuple[Build, tuple[str, ...]]:
    given = node.mapping('command: "python -m build --wheel", gives: "dist/*.whl"')
    _known(given, BUILD, "a build", "subject-build-key")
    for key in ("command", "gives"):
        if key not in given:
            example = '"python -m build --wheel"' if key == "command" else '"dist/*.whl"'
            raise node.error(f"has no {key}; add {key}: {example}", id=f"subject-build-no-{key}")
    minutes = ax.positive(given["minutes"]) if "minutes" in given else 10.0
    if minutes > MAX_MINUTES:
        raise given["minutes"].error(
            f"is {show(minutes)}; at most {MAX_MINUTES:g} are allowed", id="subject-build-minutes"
        )
    inputs = tuple(_inside(entry) for entry in _entries(given.get("inputs")))
    modules = _modules(given["modules"]) if "modules" in given else ()
    return Build(ax.word(given["command"]), inputs, _inside(given["gives"], "a pattern"), minutes), modules


def _release(node: YamlNode) -> str:
    return _named(node, _RELEASE, "write name==version, for example liger-kernel==0.8.5", "subject-release")


def check_release(text: str, option: str) -> str:
    """The same of an option."""
    if not _RELEASE.fullmatch(text):
        raise MatrixError(
            f"{option} {text}: write name==version, for example liger-kernel==0.8.5", id="subject-release"
        )
    return text


def _variables(node: YamlNode | None) -> dict[str, str]:
    out = {}
    for name, child in (node.mapping("NAME: value") if node else {}).items():
        if not _VARIABLE.fullmatch(name):
            raise child.key_error("is no name of a variable", id="subject-variable-name")
        if name.startswith(NODES):
            message = "decides what runs on a node, or where, and is the node's to set; remove it"
            raise child.key_error(message, id="subject-variable-forbidden")
        if isinstance(child.value, (dict, list)) or child.value is None:
            raise child.error(f"is {show(child.value)}; write text", id="subject-variable-value")
        text = (
            child.value
            if isinstance(child.value, str)
            else str(child.value).lower()
            if isinstance(child.value, bool)
            else str(child.value)
        )
        if "\0" in text:
            raise child.error("has a NUL character; write text", id="subject-variable-value")
        out[name] = text
    return out


def _one_value(providers: Mapping[str, SubjectProvider], node: YamlNode) -> None:
    """All providers share a device's child, so a variable has one value on a backend."""
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for provider in providers.values():
        for backend, override in provider.backends.items():
            for name, value in override.variables.items():
                first = seen.setdefault((backend, name), (value, provider.name))
                if first[0] != value:
                    place = node.value[provider.name].value["backends"].value[backend].value["variables"].value[name]
                    other = f"{first[1]} sets it to {show(first[0])}"
                    message = f"is {show(value)}, but {other}, and both share a process; use one value"
                    raise place.error(message, id="subject-variable-twice")


def _selection(node: YamlNode | None) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, child in (node.mapping("kernels: cache_key") if node else {}).items():
        if key not in SELECTION:
            raise child.key_error(
                f"is not a key of a selection; {suggest(key, SELECTION, 'keys')}", id="subject-selection-key"
            )
        if key == "kernels" and child.value not in ("cache_key", "all"):
            raise child.unknown(("cache_key", "all"), "values", id="subject-selection-kernels")
        if key == "simulated" and child.value not in ("ignored", "counts"):
            raise child.unknown(("ignored", "counts"), "values", id="subject-selection-simulated")
        if key == "memory" and child.value not in MEMORY:
            raise child.unknown(MEMORY, "values", id="subject-selection-memory")
        out[key] = ax._whole(child, 0, 1000) if key == "sentinel" else child.value
    return out


def _tuning(node: YamlNode | None) -> dict[str, str]:
    out = {}
    for key, child in (node.mapping("triton: freeze") if node else {}).items():
        if key not in TUNING:
            raise child.key_error(f"is not a key of tuning; {suggest(key, TUNING, 'keys')}", id="subject-tuning-key")
        if child.value not in TUNING[key]:
            raise child.unknown(TUNING[key], "values", id="subject-tuning")
        out[key] = str(child.value)
    return out
