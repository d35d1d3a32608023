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

import yaml

from farm.errors import FarmSignal, MatrixError, Message, id_of
from farm.kernel_package import ROOT

MAX_BYTES = 1_000_000
MAX_NODES = 100_000  # after aliases are expanded: ten nested lists of ten aliases would be 10^10
MAX_DEPTH = 32
INSTALLED = ROOT / "farm" / "matrices"  # our own; in a checkout a link
MAX_DIGITS = 40  # of an integer, with its sign
_CORE = "tag:yaml.org,2002:"


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


class _BoundError(FarmSignal):
    """The document exceeds a limit; the argument is a Message."""


class _Loader(yaml.SafeLoader):
    """Composes nodes; never constructs objects.  Counts nodes and depth while it reads."""

    yaml_implicit_resolvers: dict[Any, Any] = {}
    depth = 0
    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nodes += 1
        self.depth += 1
        _check_bounds(self.nodes, self.depth)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _check_bounds(nodes: int, depth: int) -> None:
    if nodes > MAX_NODES:
        much = f"has more than {MAX_NODES:,} values after its aliases are expanded; make the file smaller"
        raise _BoundError(Message(much, id="matrix-too-many-values"))
    if depth > MAX_DEPTH:
        deep = f"is nested more than {MAX_DEPTH} levels deep; use fewer levels"
        raise _BoundError(Message(deep, id="matrix-too-deep"))


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(_CORE + _tag, re.compile(_pattern), list(_first))


def parse(text: str, name: str) -> list[YamlNode]:
    """Every document of `text`; `name` is the name of the file in error messages."""
    try:
        loader = _Loader(text)
        builder = _Builder(name)
        documents: list[YamlNode] = []
        while loader.check_node():
            if (document := loader.get_node()) is not None:
                documents.append(builder.build(document, "", 1))
        return documents
    except _BoundError as error:
        raise MatrixError(f"{name}: {error}", id=id_of(error.args[0])) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = "contains a control character; remove it"
        raise MatrixError(f"{name}:{line}: {what}", id="matrix-control-character") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        problem = " ".join(str(error.problem or error.context).split())
        if "'\\t'" in problem:
            problem = "a tab is used for indentation; use spaces"
        raise MatrixError(f"{place}: is not valid YAML: {problem}", id="matrix-not-yaml") from None


class _Builder:
    """Turns PyYAML's nodes into ours; expands and counts aliases."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes = 0

    def build(self, node: yaml.Node, path: str, depth: int, key_where: str = "") -> YamlNode:
        self.nodes += 1
        _check_bounds(self.nodes, depth)
        where = self._where(node)
        if isinstance(node, yaml.MappingNode) and node.tag == _CORE + "map":
            return YamlNode(self._mapping(node, path, depth), where, path, key_where)
        if isinstance(node, yaml.SequenceNode) and node.tag == _CORE + "seq":
            entries = [self.build(child, f"{path}[{i}]", depth + 1) for i, child in enumerate(node.value)]
            return YamlNode(entries, where, path, key_where)
        if isinstance(node, yaml.ScalarNode):
            return YamlNode(self._scalar(node, where, path), where, path, key_where)
        raise YamlNode(None, where, path).error(f"has the YAML tag {show(node.tag)}; remove it", id="matrix-tag")

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, YamlNode]:
        out: dict[str, YamlNode] = {}
        for key_node, child in node.value:
            where = self._where(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _CORE + "str":
                shown = show(getattr(key_node, "value", None))
                message = f"has a key that is not text ({shown}); write a word instead"
                raise YamlNode(None, where, path).error(message, id="matrix-key-not-text")
            key = key_node.value
            inner = f"{path}.{key}" if path else key
            if key == "<<":
                message = f"{inner} is a YAML merge key, which matrices do not support; write the keys out"
                raise MatrixError(f"{where}: {message}", id="matrix-merge-key")
            if key in out:
                first = line_of(out[key].key_where)
                raise MatrixError(f"{where}: {inner} is given twice (first {first}); keep one", id="matrix-key-twice")
            out[key] = self.build(child, inner, depth + 1, where)
        return out

    def _scalar(self, node: yaml.ScalarNode, where: str, path: str) -> Any:
        kind, text = node.tag.removeprefix(_CORE), node.value
        try:
            if kind == "str":
                return text
            if kind == "null":
                return None
            if kind == "bool" and text.lower() in ("true", "false"):
                return text.lower() == "true"
            if kind == "int" and len(text) <= MAX_DIGITS:
                return int(text)
            if kind == "float":
                number = float(text)
                if number - number == 0:  # neither infinite nor NaN
                    return number
        except ValueError:
            pass
        if kind in ("int", "float", "bool"):
            message = f"is {show(text)}; it must be a finite number (an integer: at most {MAX_DIGITS} characters)"
            raise YamlNode(None, where, path).error(message, id="matrix-number")
        raise YamlNode(None, where, path).error(f"has the YAML tag {show(node.tag)}; remove it", id="matrix-scalar-tag")

    def _where(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"


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
