"""YAML text as nodes: the one module that needs PyYAML, which `document.parse` loads when there is a text to read."""

from __future__ import annotations

import re
from typing import Any

import yaml

from farm.errors import FarmSignal, MatrixError, Message, id_of

from .document import YamlNode, line_of, show

MAX_NODES = 100_000  # after aliases are expanded: ten nested lists of ten aliases would be 10^10
MAX_DEPTH = 32
MAX_DIGITS = 40  # of an integer, with its sign
_CORE = "tag:yaml.org,2002:"


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


def documents(text: str, name: str) -> list[YamlNode]:
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
