"""What a node says of itself: a YAML file that is read on the node and never travels.

Its name is in FARM_NODE, else it is /etc/farm/node.yaml where that is, else there is none and everything has its
default.  Read by the device actors, by `farm nodes join` and by `farm doctor`; strict as a matrix is: one sentence with
file and line, and exit code 2.

    backend: rocm                        the hardware family of this node's devices
    devices: 8                           how many of them the farm may use
    expect: {model: MI300X, driver: "6.12", torch: "2.9"}    what its devices are held to (farm.nodes.admission)
    labels: {rack: r7}                   further labels of the node, as farm/rack=r7
    environments:
      default: {python: /opt/rocm-torch/bin/python}
      nightly: {command: [apptainer, exec, --rocm, ..., python3, "{child}"], wrapped: true}
    simulate: {model: AMD Instinct MI300X, devices: 2}       tests only: its devices are fakes of that vendor

An environment has `python` (its interpreter; the farm starts the child with it) or `command` (all words, see
`farm.actor.environment.Environment`), and `variables`, `path` (folders of its own for PYTHONPATH), `wrapped` (the
child is not the process that was started: a container's client stands between), `end` (the words that end what is left
when that client is gone).  `default` is the one that a run gets unless it asks for another; a node that names none has
the supervisor's own Python.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from farm.actor import supervise
from farm.actor.environment import MASKS
from farm.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from farm.matrix.document import Node

VARIABLE = "FARM_NODE"
DEFAULT_FILE = Path("/etc/farm/node.yaml")
KEYS = ("backend", "devices", "expect", "labels", "environments", "simulate")
EXPECT = ("model", "partition", "driver", "stack", "torch", "triton", "python")
ENVIRONMENT = ("python", "command", "variables", "path", "wrapped", "end")
#: What a fake may be told; further keys with one word each are versions that its child's fingerprint shows.
SIMULATE = ("model", "opens", "partition", "power_limit_w", "clocks", "driver", "stack", "module", "per_module",
            "devices", "host", "start_s", "refuse", "torch", "triton", "python", "rocm", "cann", "uuid")  # fmt: skip
MAX_DEVICES = 1024
MAX_WATTS = 100_000
_NUMBERS = ("power_limit_w", "per_module", "devices", "start_s")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # of an environment, a label, and its value
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that the farm sets itself, with what to do instead.
_OURS = {
    "PYTHONPATH": "use path",
    **dict.fromkeys(MASKS, "remove it: it would show a child another device than the one that is locked for it"),
}


@dataclass(frozen=True)
class NodeConfig:
    """One node's configuration.  `file` is where it was read from, "" for none; `devices` None: all that are found."""

    file: str = ""
    backend: str = ""
    devices: int | None = None
    expect: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, supervise.Environment] = field(default_factory=dict)
    simulate: Mapping[str, Any] = field(default_factory=dict)


def load(environ: Mapping[str, str] | None = None) -> NodeConfig:
    """This node's configuration.  UsageError where the file is missing, unreadable or wrong."""
    named = (os.environ if environ is None else environ).get(VARIABLE, "")
    if not named and not DEFAULT_FILE.is_file():
        return NodeConfig()
    return read(Path(named) if named else DEFAULT_FILE)


def read(path: Path) -> NodeConfig:
    """The configuration in a file.  UsageError as in `load`."""
    from farm.matrix import document

    try:
        text, _ = document.read(path)
        found = document.parse(text, str(path))
        if not found:
            return NodeConfig(file=str(path))
        if len(found) > 1:
            raise UsageError(f"{found[1].where}: a second document; a node has one configuration")
        return _Reader(path).config(found[0])
    except MatrixError as error:  # the reader of YAML is the matrices'
        said = str(error).replace("a matrix", "a node's configuration").replace("the matrix", "the configuration")
        raise UsageError(said) from None


def environment(config: NodeConfig, name: str) -> supervise.Environment:
    """The environment of that name on this node.  UsageError with the names there, or for an interpreter that is not.

    `default` is always there: where the configuration has none, it is the supervisor's own Python.
    """
    found = config.environments.get(name)
    if found is None and name == "default":
        return supervise.Environment.default()
    if found is None:
        names = sorted({"default", *config.environments})
        near = difflib.get_close_matches(name, names, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"it has {', '.join(names)}"
        where = config.file or f"this node has no configuration ({VARIABLE} is not set)"
        raise UsageError(f'{where}: there is no environment "{name}"; {hint}')
    try:
        return found.located()
    except ValueError as error:
        raise UsageError(f"{config.file}: environments.{name}.{error}") from None


class _Reader:
    """Turns checked YAML into a configuration."""

    def __init__(self, path: Path):
        self.path = path

    def config(self, root: Node) -> NodeConfig:
        """The whole of it."""
        parts = _entries(root, KEYS, "keys of a node's configuration")
        given: dict[str, Any] = {name: getattr(self, f"_{name}")(node) for name, node in parts.items()}
        if "simulate" in given and not given.get("backend"):
            raise parts["simulate"].error("needs backend, which says whose devices the fakes play")
        return NodeConfig(file=str(self.path), **given)

    def _backend(self, node: Node) -> str:
        from farm import backends

        if node.value not in backends.known():
            raise node.unknown(backends.known(), "backends")
        return str(node.value)

    def _devices(self, node: Node) -> int:
        return _count(node)

    def _expect(self, node: Node) -> dict[str, str]:
        found = _entries(node, EXPECT, "things that a device can be held to")
        return {k: _word(n, empty=k == "partition") for k, n in found.items()}  # no partition is one to be held to

    def _labels(self, node: Node) -> dict[str, str]:
        out = {}
        for key, inner in _mapping(node).items():
            if not _NAME.fullmatch(key):
                raise inner.key_error("is no label's name; it has letters, digits, '.', '-', '_', at most 63 of them")
            if key in ("backend", "node"):
                raise inner.key_error("is set by the farm: the backend is a key of its own, the name is --name of join")
            out[key] = _word(inner)
            if not _NAME.fullmatch(out[key]):
                raise inner.error("is no label's value; it has letters, digits, '.', '-', '_', at most 63 of them")
        return out

    def _environments(self, node: Node) -> dict[str, supervise.Environment]:
        out = {}
        for name, inner in _mapping(node).items():
            if not _NAME.fullmatch(name):
                raise inner.key_error("is no name; it has letters, digits, '.', '-', '_', at most 63 of them")
            out[name] = self._one_environment(name, inner)
        return out

    def _one_environment(self, name: str, node: Node) -> supervise.Environment:
        parts = _entries(node, ENVIRONMENT, "keys of an environment")
        if ("python" in parts) == ("command" in parts):
            raise node.error("needs either python (the path of an interpreter) or command (a list of words)")
        command = _words(parts["command"]) if "command" in parts else ()
        if "command" in parts and "{child}" not in command and "farm.child" not in command:
            raise parts["command"].error('never starts the child; end it with python3, "{child}"')
        end = _words(parts["end"]) if "end" in parts else ()
        for key, words in (("command", command), ("end", end)):
            try:
                supervise.check_template(words)
            except ValueError as error:
                raise parts[key].error(str(error)) from None
        if end and not _flag(parts.get("wrapped")):
            raise parts["end"].error("ends what a client left behind, and there is none: say wrapped: true")
        python = _word(parts["python"]) if "python" in parts else ""
        if python and not Path(python).expanduser().is_absolute():
            raise parts["python"].error("is no absolute path; a node's Ray may run with another PATH than yours")
        return supervise.Environment(
            name=name,
            python=python,
            command=command,
            variables=_variables(parts["variables"]) if "variables" in parts else {},
            path=_folders(parts["path"]) if "path" in parts else (),
            wrapped=_flag(parts.get("wrapped")),
            end=end,
        )

    def _simulate(self, node: Node) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, inner in _mapping(node).items():
            near = difflib.get_close_matches(key, SIMULATE, 1, 0.8)
            if key not in SIMULATE and near:
                raise inner.key_error(f'is no key of a fake; did you mean "{near[0]}"?')
            if key in _NUMBERS:
                out[key] = _seconds(inner) if key == "start_s" else _count(inner, MAX_WATTS)
            else:
                out[key] = _word(inner, empty=key == "partition")
        return out


def _entries(node: Node, known: Iterable[str], what: str) -> dict[str, Node]:
    """A mapping's entries, whose keys must be known."""
    from farm.matrix.document import suggest

    known = tuple(known)
    found = _mapping(node)
    for key, inner in found.items():
        if key not in known:
            raise inner.key_error(f"is unknown; {suggest(key, known, what)}")
    return found


def _mapping(node: Node) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        _wrong(node, "a mapping (name: value)")
    return dict(node.value)


def _words(node: Node) -> tuple[str, ...]:
    if not isinstance(node.value, list) or not node.value:
        _wrong(node, "a list of words")
    return tuple(_word(inner) for inner in node.value)


def _folders(node: Node) -> tuple[str, ...]:
    for inner in node.value if isinstance(node.value, list) else ():
        if not Path(_word(inner)).is_absolute():
            raise inner.error("is no absolute path")
    return _words(node)


def _variables(node: Node) -> dict[str, str]:
    out = {}
    for key, inner in _mapping(node).items():
        if not _VARIABLE.fullmatch(key):
            raise inner.key_error("is no variable's name")
        if key in _OURS:
            raise inner.key_error(f"is the farm's to set; {_OURS[key]}")
        out[key] = _word(inner, empty=True)
    return out


def _word(node: Node, *, empty: bool = False) -> str:
    """Text, or a number as it is read; no list, no mapping, no truth value."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or (value == "" and not empty):
        _wrong(node, "text (in quotes where it looks like a number)")
    if isinstance(value, float):  # 7.10 has become 7.1: whoever means a version must say so
        raise node.error("reads as a number, which would lose its last zeros; put it in quotes")
    if "\0" in str(value):
        raise node.error("holds a NUL character; remove it")
    return str(value)


def _count(node: Node, most: int = MAX_DEVICES) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not 1 <= node.value <= most:
        _wrong(node, f"a whole number from 1 to {most}")
    return int(node.value)


def _seconds(node: Node) -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or node.value < 0:
        _wrong(node, "a number of seconds")
    return float(node.value)


def _flag(node: Node | None) -> bool:
    if node is not None and not isinstance(node.value, bool):
        _wrong(node, "true or false")
    return bool(node is not None and node.value)


def _wrong(node: Node, what: str) -> NoReturn:
    from farm.matrix.document import show

    raise node.error(f"is {show(node.value)}; it must be {what}")
