"""Reads a YAML file into nodes that know their line: safe, bounded, strict.  `read` is the package's only input or
output.

Scalars follow YAML 1.2 (`1e-6` is a number, `on` and `2026-11-20` are text), so that a matrix means the same to every
reader.  Tags, merge keys, duplicate keys and keys that are not text are refused.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.errors import MatrixError
from farm.kernel_package import ROOT

MAX_BYTES = 1_000_000
INSTALLED = ROOT / "farm" / "matrices"  # our own; in a checkout a link


@dataclass(frozen=True)
class YamlNode:
    """A YAML value with its place: `value` is a dict or list of nodes, or a scalar; `where` is `file:line`."""

    value: Any
    where: str
    path: str  # axes.dtype[2]; empty for the document
    key_where: str = ""  # file and line of its key

    def error(self, message: str, *, id: str = "") -> MatrixError:
        """`matrices/nightly.yaml:14: axes.dtype[2] <message>`."""
        return MatrixError(f"{self.where}: {self.path or 'the matrix'} {message}", id=id)

    def key_error(self, message: str, *, id: str = "") -> MatrixError:
        """The same for the node's key instead of its value."""
        return MatrixError(f"{self.key_where or self.where}: {self.path} {message}", id=id)

    def unknown(self, known: Iterable[str], what: str, *, id: str = "") -> MatrixError:
        """The value is none of `known`; the message suggests the nearest one, or lists them."""
        return self.error(f"is {show(self.value)}; {suggest(self.value, known, what)}", id=id)

    def mapping(self, example: str = "name: value") -> dict[str, YamlNode]:
        """The entries of a mapping that is not empty."""
        return self._filled(dict, f"a mapping ({example})")

    def items(self) -> list[YamlNode]:
        """The entries of a list that is not empty."""
        return self._filled(list, "a list")

    def plain(self) -> Any:
        """Plain data without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def _filled(self, kind: type, words: str) -> Any:
        if self.value is None or (isinstance(self.value, kind) and not self.value):
            raise self.error("is empty; give a value, or remove this key", id="matrix-empty-value")
        if not isinstance(self.value, kind):
            raise self.error(f"is {show(self.value)}; it must be {words}", id="matrix-wrong-kind")
        return self.value


def line_of(where: str) -> str:
    """A second place in the same sentence: `in line 14`, or the `--set` it came from."""
    return f"in {where}" if where.startswith("--set") else f"in line {where.rpartition(':')[2]}"


def show(value: Any) -> str:
    """A value as an error message shows it: short, text in quotes."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else f'"{value}"'
    text = text.replace("\n", " ")
    return text if len(text) <= 60 else text[:56] + '..."'


def suggest(value: Any, known: Iterable[str], what: str) -> str:
    """`did you mean "bfloat16"?`, or else the list of available names."""
    names = list(known)
    near = difflib.get_close_matches(str(value)[:100], names, 1) if isinstance(value, str) else []
    if near:
        return f'did you mean "{near[0]}"?'
    if not names:
        return f"no {what} are available"
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"available {what}: {listed}"


def read(path: Path) -> tuple[str, str]:
    """The text of a matrix file and the SHA-256 of its bytes."""
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise MatrixError(f"{path}: is a folder; give the path of a YAML file", id="matrix-file-is-folder")
        if not stat.S_ISREG(info.st_mode):
            raise MatrixError(
                f"{path}: is not a regular file; give the path of a YAML file", id="matrix-file-not-regular"
            )
        if info.st_size > MAX_BYTES:
            size = f"{info.st_size:,} bytes"
            raise MatrixError(
                f"{path}: has {size}; the limit is {MAX_BYTES:,}; split the file", id="matrix-file-too-big"
            )
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise MatrixError(f"{path}: no such file{_near_file(path)}", id="matrix-file-missing") from None
    except OSError as error:
        why = f"cannot be read ({error.strerror}); check the path and the file's permissions"
        raise MatrixError(f"{path}: {why}", id="matrix-file-unreadable") from None
    try:
        return raw.decode("utf-8-sig"), hashlib.sha256(raw).hexdigest()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise MatrixError(
            f"{path}:{line}: is not UTF-8 text; save the file as UTF-8", id="matrix-file-not-utf8"
        ) from None


def _near_file(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        names = []
    installed = INSTALLED.is_dir() and not INSTALLED.is_symlink()
    if installed and (INSTALLED / path.name).is_file():
        return f'; did you mean "{INSTALLED / path.name}"?'
    near = difflib.get_close_matches(path.name, names, 1)
    if near:
        return f'; did you mean "{path.parent / near[0]}"?'
    return f"; check the path (the farm's own matrices are in {INSTALLED})" if installed else "; check the path"


def parse(text: str, name: str) -> list[YamlNode]:
    """Every document of `text`; `name` is the name of the file in error messages."""
    try:
        from . import yaml_reader  # whoever runs a plan reads no YAML, and may have no PyYAML
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        what = f"{name}: PyYAML is not installed in this Python, and this file is YAML; pip install pyyaml"
        raise MatrixError(what, id="matrix-no-pyyaml") from None
    return yaml_reader.documents(text, name)


_STEP = re.compile(r"\.?([^.\[\]]+)|\[([0-9]{1,6})\]")


def override(root: YamlNode, key: str, text: str) -> YamlNode:
    """`root` with the value at the dotted path `key` (`timing.min_samples`, `axes.shape[0].rows`) replaced by `text`
    read as YAML.  A missing key is added: the code that reads it decides whether it is valid."""
    where = f"--set {key}={text if len(text) <= 40 else text[:37] + '...'}"
    steps: list[str] = []
    end = 0
    for match in _STEP.finditer(key):
        if match.start() != end:
            break
        steps.append(match[1] or match[2])
        end = match.end()
    if not steps or end != len(key):
        message = f"{show(key)} is not a path; write a path like timing.min_samples or axes.shape[0].rows"
        raise MatrixError(f"{where}: {message}", id="matrix-set-path")
    try:
        documents = parse(text, where)
    except MatrixError:
        raise MatrixError(f"{where}: the value is not valid YAML; quote the value", id="matrix-set-not-yaml") from None
    if len(documents) != 1:
        raise MatrixError(f"{where}: the value is empty; write KEY=VALUE", id="matrix-set-empty")
    return _put(root, steps, documents[0], where)


def _put(node: YamlNode, steps: Sequence[str], new: YamlNode, where: str) -> YamlNode:
    if not steps:
        return _moved(new, node.path, where)
    step, rest = steps[0], steps[1:]
    if isinstance(node.value, list):
        if not step.isdecimal() or int(step) >= len(node.value):
            number = f"{len(node.value)} {'entry' if len(node.value) == 1 else 'entries'}, numbered from 0"
            message = f"{node.path}[{step}] does not exist; {node.path} has {number}"
            raise MatrixError(f"{where}: {message}", id="matrix-set-entry")
        entries = list(node.value)
        entries[int(step)] = _put(entries[int(step)], rest, new, where)
        return replace(node, value=entries)
    if not isinstance(node.value, dict):
        message = f"{node.path} is {show(node.value)} and has no {show(step)}; set {node.path} itself"
        raise MatrixError(f"{where}: {message}", id="matrix-set-scalar")
    inner = f"{node.path}.{step}" if node.path else step
    child = node.value.get(step) or YamlNode({}, where, inner, where)
    return replace(node, value={**node.value, step: _put(child, rest, new, where)})


def _moved(node: YamlNode, path: str, where: str) -> YamlNode:
    value = node.value
    if isinstance(value, dict):
        value = {k: _moved(child, f"{path}.{k}", where) for k, child in value.items()}
    elif isinstance(value, list):
        value = [_moved(child, f"{path}[{i}]", where) for i, child in enumerate(value)]
    return YamlNode(value, where, path, where)
