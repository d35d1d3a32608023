"""A node's configuration: a YAML file that is read on the node and never leaves it.

FARM_NODE names the file; the default is /etc/farm/node.yaml if it exists, and with FARM_NODE=none no file is read.
Without a file, everything has its default.
The device actors, `farm nodes join` and `farm doctor` read it.  It is checked as strictly as a matrix: an error is one
sentence with file and line, and exit code 2.

    backend: rocm                        the hardware family of this node's devices
    devices: 8                           how many of them the farm may use
    expect: {model: MI300X, driver: "6.12", torch: "2.9"}    what its devices must be (farm.node.admission)
    labels: {rack: r7}                   further labels of the node, as farm/rack=r7
    environments:
      default: {python: /opt/rocm-torch/bin/python}
      nightly: {command: [apptainer, exec, --rocm, ..., python3, "{child}"], wrapped: true}
    deadlines: {check: 30}               the longest that a matrix may ask for here (farm.limits)
    simulate: {model: AMD Instinct MI300X, devices: 2}       tests only: simulated devices

An environment has `python` (its interpreter; the farm starts the child with it) or `command` (all words, see
`farm.node.environment.Environment`), and `variables`, `pass` (variables of the host that its children get beside
`farm.node.environment.INHERITED`), `path` (additional folders for PYTHONPATH), `wrapped` (the child
is not the started process, which is for example a container's client), `end` (the command that ends the container when
that client is gone), `sandbox` (true, or its limits: children run in one, see `farm.node.sandbox`).  A run uses
`default` unless it names another; without one it is the supervisor's own Python.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from farm import limits
from farm.backends._simulated import SETTINGS
from farm.errors import MatrixError, UsageError
from farm.node import sandbox
from farm.node.environment import MASKS, NEVER, Environment, check_template

if TYPE_CHECKING:
    from farm.matrix.document import YamlNode

VARIABLE = "FARM_NODE"
DEFAULT_FILE = Path("/etc/farm/node.yaml")
#: As the value of VARIABLE: no file, not even the default one.
NONE = "none"
KEYS = ("backend", "devices", "expect", "labels", "environments", "deadlines", "simulate")
EXPECT = ("model", "partition", "driver", "stack", "torch", "triton", "python")
ENVIRONMENT = ("python", "command", "variables", "pass", "path", "wrapped", "end", "sandbox")
#: Keys of `simulate`; further keys with one word each are versions that its child's fingerprint reports.
SIMULATE = (*SETTINGS, "driver", "stack", "torch", "triton", "python", "rocm", "cann", "uuid")
MAX_DEVICES = 1024
MAX_WATTS = 100_000
ALPHABET = "letters, digits, '.', '-' and '_', at most 63 characters"
_NUMBERS = ("power_limit_w", "per_module", "devices", "start_s")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # of an environment, a label, and its value
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that the farm sets, with what to do instead.
_OURS = {
    "PYTHONPATH": "use path",
    **dict.fromkeys(MASKS, "remove this variable: a child could open a device that is not locked for that child"),
}


@dataclass(frozen=True)
class NodeConfig:
    """One node's configuration.  `file`: where it was read from, or ""; `devices`: None for all that are found."""

    file: str = ""
    backend: str = ""
    devices: int | None = None
    expect: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, Environment] = field(default_factory=dict)
    deadlines: Mapping[str, float] = field(default_factory=dict)
    simulate: Mapping[str, Any] = field(default_factory=dict)


def load(environ: Mapping[str, str] | None = None) -> NodeConfig:
    """This node's configuration.  Raises UsageError if the file is missing, unreadable or wrong."""
    named = (os.environ if environ is None else environ).get(VARIABLE, "")
    if named == NONE or (not named and not DEFAULT_FILE.is_file()):
        return NodeConfig()
    return read(Path(named) if named else DEFAULT_FILE)


def read(path: Path) -> NodeConfig:
    """The configuration in a file.  Raises UsageError as `load` does."""
    from farm.matrix import document

    try:
        text, _ = document.read(path)
        found = document.parse(text, str(path))
        if not found:
            return NodeConfig(file=str(path))
        if len(found) > 1:
            what = f"{found[1].where}: a second document; a node has only one configuration, so remove the second one"
            raise UsageError(what, id="node-config-documents")
        return _Reader(path).config(found[0])
    except MatrixError as error:  # the reader of YAML is the matrices'
        text = str(error).replace("a matrix", "a node's configuration").replace("the matrix", "the configuration")
        raise UsageError(text, id=error.id if error.id.startswith("node-") else "node-config-yaml") from None


def environment(config: NodeConfig, name: str) -> Environment:
    """The environment of that name on this node.  Raises UsageError for an unknown name or a missing interpreter.

    `default` always exists: if the configuration has none, it is the supervisor's own Python.
    """
    found = config.environments.get(name)
    if found is None and name == "default":
        return Environment.default()
    if found is None:
        names = sorted({"default", *config.environments})
        near = difflib.get_close_matches(name, names, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"available: {', '.join(names)}"
        where = config.file or f"this node has no configuration ({VARIABLE} is not set)"
        raise UsageError(f'{where}: there is no environment "{name}"; {hint}', id="node-no-environment")
    try:
        return found.located()
    except ValueError as error:
        raise UsageError(f"{config.file}: environments.{name}.{error}", id="node-no-interpreter") from None


class _Reader:
    """Turns checked YAML into a configuration."""

    def __init__(self, path: Path):
        self.path = path

    def config(self, root: YamlNode) -> NodeConfig:
        """The complete configuration."""
        parts = _entries(root, KEYS, "keys of a node's configuration")
        given: dict[str, Any] = {name: getattr(self, f"_{name}")(node) for name, node in parts.items()}
        if "simulate" in given and not given.get("backend"):
            raise _refused(parts["simulate"], "needs the key backend: the vendor of the simulated devices", "simulate")
        return NodeConfig(file=str(self.path), **given)

    def _backend(self, node: YamlNode) -> str:
        from farm import backends

        if node.value not in backends.known():
            raise MatrixError(str(node.unknown(backends.known(), "backends")), id="node-config-backend")
        return str(node.value)

    def _devices(self, node: YamlNode) -> int:
        return _count(node)

    def _expect(self, node: YamlNode) -> dict[str, str]:
        found = _entries(node, EXPECT, "properties that a device can be checked for")
        return {
            k: _word(n, empty=k == "partition") for k, n in found.items()
        }  # partition may be empty: none is expected

    def _labels(self, node: YamlNode) -> dict[str, str]:
        out = {}
        for key, inner in _mapping(node).items():
            if not _NAME.fullmatch(key):
                raise _refused_key(inner, f"is not a valid name of a label: {ALPHABET}", "label")
            if key in ("backend", "node"):
                what = "is set by the farm: write the key backend, or use farm nodes join --name"
                raise _refused_key(inner, what, "label-reserved")
            out[key] = _word(inner)
            if not _NAME.fullmatch(out[key]):
                raise _refused(inner, f"is not a valid value of a label: {ALPHABET}", "label")
        return out

    def _environments(self, node: YamlNode) -> dict[str, Environment]:
        out = {}
        for name, inner in _mapping(node).items():
            if not _NAME.fullmatch(name):
                raise _refused_key(inner, f"is not a valid name: {ALPHABET}", "name")
            out[name] = self._one_environment(name, inner)
        return out

    def _one_environment(self, name: str, node: YamlNode) -> Environment:
        parts = _entries(node, ENVIRONMENT, "keys of an environment")
        if ("python" in parts) == ("command" in parts):
            what = "needs either python (the path of an interpreter) or command (a list of words)"
            raise _refused(node, what, "environment-start")
        command = _words(parts["command"]) if "command" in parts else ()
        if "command" in parts and "{child}" not in command and "farm.child" not in command:
            what = 'does not start the child; add python3, "{child}" at the end of the command'
            raise _refused(parts["command"], what, "command-child")
        end = _words(parts["end"]) if "end" in parts else ()
        for key, words in (("command", command), ("end", end)):
            try:
                check_template(words)
            except ValueError as error:
                raise _refused(parts[key], str(error), "template") from None
        if end and not _flag(parts.get("wrapped")):
            what = "removes what a container's client leaves running, so it needs wrapped: true"
            raise _refused(parts["end"], what, "end")
        if _sandbox(parts.get("sandbox")) is not None and _flag(parts.get("wrapped")):
            what = (
                "hides the service that a container's client needs; remove it, and close the container by its command"
            )
            raise _refused(parts["sandbox"], what, "sandbox-wrapped")
        python = _word(parts["python"]) if "python" in parts else ""
        if python and not Path(python).expanduser().is_absolute():
            what = "is not an absolute path; a node's Ray may run with a different PATH than your shell"
            raise _refused(parts["python"], what, "path")
        return Environment(
            name=name,
            python=python,
            command=command,
            variables=_variables(parts["variables"]) if "variables" in parts else {},
            path=_folders(parts["path"]) if "path" in parts else (),
            wrapped=_flag(parts.get("wrapped")),
            end=end,
            passed=_passed(parts["pass"]) if "pass" in parts else (),
            sandbox=_sandbox(parts.get("sandbox")),
        )

    def _deadlines(self, node: YamlNode) -> dict[str, float]:
        return {k: _seconds(n, above=0.0) for k, n in _entries(node, limits.CAPPED, "limits of a node").items()}

    def _simulate(self, node: YamlNode) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, inner in _mapping(node).items():
            near = difflib.get_close_matches(key, SIMULATE, 1, 0.8)
            if key not in SIMULATE and near:
                raise _refused_key(inner, f'is not a key of simulate; did you mean "{near[0]}"?', "key")
            if key in _NUMBERS:
                out[key] = _seconds(inner) if key == "start_s" else _count(inner, MAX_WATTS)
            else:
                out[key] = _word(inner, empty=key == "partition")
        return out


def _entries(node: YamlNode, known: Iterable[str], what: str) -> dict[str, YamlNode]:
    """A mapping's entries, whose keys must be known."""
    from farm.matrix.document import suggest

    known = tuple(known)
    found = _mapping(node)
    for key, inner in found.items():
        if key not in known:
            raise _refused_key(inner, f"is unknown; {suggest(key, known, what)}", "key")
    return found


def _mapping(node: YamlNode) -> dict[str, YamlNode]:
    if not isinstance(node.value, dict):
        _wrong(node, "a mapping (name: value)")
    return dict(node.value)


def _words(node: YamlNode) -> tuple[str, ...]:
    if not isinstance(node.value, list) or not node.value:
        _wrong(node, "a list of words")
    return tuple(_word(inner) for inner in node.value)


def _folders(node: YamlNode) -> tuple[str, ...]:
    for inner in node.value if isinstance(node.value, list) else ():
        if not Path(_word(inner)).is_absolute():
            raise _refused(inner, "is not an absolute path; write one that begins with /", "path")
    return _words(node)


def _variables(node: YamlNode) -> dict[str, str]:
    out = {}
    for key, inner in _mapping(node).items():
        if not _VARIABLE.fullmatch(key):
            raise _refused_key(inner, "is not a valid name of a variable", "variable")
        if key in _OURS:
            raise _refused_key(inner, f"is set by the farm; {_OURS[key]}", "variable-reserved")
        out[key] = _word(inner, empty=True)
    return out


def _passed(node: YamlNode) -> tuple[str, ...]:
    """Names of the host's variables, and prefixes with `*`."""
    for inner in node.value if isinstance(node.value, list) else ():
        word = _word(inner)
        if not _VARIABLE.fullmatch(word.removesuffix("*")):
            raise _refused(inner, "is neither the name of a variable nor a prefix with *, for example HF_*", "pass")
        if word.startswith(NEVER) or word in MASKS:
            raise _refused(inner, "is never passed to a child; remove this entry, or set it under variables", "pass")
    return _words(node)


def _word(node: YamlNode, *, empty: bool = False) -> str:
    """Text, or a number as it is read; not a list, a mapping or a boolean."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or (value == "" and not empty):
        _wrong(node, "text (in quotes if it looks like a number)")
    if isinstance(value, float):  # 7.10 has become 7.1: a version must be quoted
        raise _refused(node, "is read as a number, which would lose trailing zeros; put the value in quotes", "number")
    if "\0" in str(value):
        raise _refused(node, "contains a NUL character; remove this character", "nul")
    return str(value)


def _count(node: YamlNode, most: int = MAX_DEVICES) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not 1 <= node.value <= most:
        _wrong(node, f"an integer from 1 to {most}")
    return int(node.value)


def _seconds(node: YamlNode, above: float = -1e-9, of: str = "seconds") -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or not node.value > above:
        _wrong(node, f"a number of {of}" + (" above 0" if above == 0 else ""))
    return float(node.value)


def _flag(node: YamlNode | None) -> bool:
    if node is not None and not isinstance(node.value, bool):
        _wrong(node, "true or false")
    return bool(node is not None and node.value)


def _sandbox(node: YamlNode | None) -> dict[str, float] | None:
    """True, false, or limits by their names."""
    if node is None or not isinstance(node.value, dict):
        return {} if _flag(node) else None
    found = _entries(node, sandbox.KEYS, "limits of a sandbox")
    return {k: _count(n, 1 << 22) if k == "processes" else _seconds(n, above=0.0, of="GiB") for k, n in found.items()}


def _wrong(node: YamlNode, what: str) -> NoReturn:
    from farm.matrix.document import show

    raise _refused(node, f"is {show(node.value)}; it must be {what}", "value")


def _refused(node: YamlNode, what: str, name: str) -> MatrixError:
    """`node.error` with the identifier `node-config-<name>`."""
    return MatrixError(str(node.error(what)), id=f"node-config-{name}")


def _refused_key(node: YamlNode, what: str, name: str) -> MatrixError:
    """`node.key_error` with the identifier `node-config-<name>`."""
    return MatrixError(str(node.key_error(what)), id=f"node-config-{name}")
