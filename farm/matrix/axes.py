"""The axes of a matrix: from nodes to values of the contract's types and bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.cell import DTYPE_ALIASES, OPERATIONS
from farm.errors import MatrixError
from kernels.contract import Contract, Parameter

from .document import Node, line_of, show, suggest
from .model import CACHES, MAX_CELLS, METHODS, Provider, View
from .registry import ProviderInfo
from .rules import suggest_dtype

AXES = ("shape", "dtype", "operation", "variant", "family", "seed", "mode")
TIMING_FIELDS = ("method", "cache", "min_samples", "max_samples", "target_rel_width", "max_seconds")
#: Names that a contract may not give to a dimension or parameter: they mean something in a rule or an id.
RESERVED = frozenset({*AXES, *TIMING_FIELDS, "tag", "backend", "op", "provider", "timing", "reason", "name", "version"})
MAX_SEED = 2**63 - 1


def resolve(
    contract: Contract,
    root: Node,
    axes: Mapping[str, Node],
    providers: Node | None,
    timing: Node | None,
    registry: Mapping[str, ProviderInfo],
    extras: Mapping[str, ProviderInfo],
) -> View:
    """One backend's view.  `axes` are merged already; `registry` holds `extras` too, which are added to `providers`."""
    known = [p.name for p in contract.parameters if not p.declared]
    for name, node in axes.items():
        if name not in AXES and name not in known:
            _refuse_declared(contract, name, node)
            raise node.key_error(f"is no axis of {contract.op}; {suggest(name, [*AXES, *known], 'axes')}")
    if "shape" not in axes:
        raise root.error(f"has no axes.shape; give the dimensions of {contract.op}: {_dimension_names(contract)}")
    return View(
        shapes=_shapes(contract, axes["shape"]),
        dtypes=_dtypes(contract, axes.get("dtype")),
        params=_params(contract, axes),
        families=_families(contract, axes.get("family")),
        seeds=_values(axes.get("seed"), (0,), _seed),
        operations=_operations(contract, axes.get("operation")),
        providers=_providers(contract, root, providers, axes.get("mode"), registry, extras),
        timings=timings(timing) if timing else (),
    )


def _refuse_declared(contract: Contract, name: str, node: Node) -> None:
    if any(p.name == name and p.declared for p in contract.parameters):
        raise node.key_error("is what a provider says of itself, in DECLARES of its file; remove it here")


def _dimension_names(contract: Contract) -> str:
    return ", ".join(d.name for d in contract.dimensions)


def entries(node: Node) -> list[Node]:
    """An axis is a list; a single value stands for a list of one."""
    if node.value is None or isinstance(node.value, list):
        return node.items()
    return [node]


def _values(node: Node | None, default: tuple[Any, ...], read: Callable[[Node], Any]) -> tuple[Any, ...]:
    """The values of an axis, each once."""
    return default if node is None else _unique([(read(n), n) for n in entries(node)])


def _unique(found: Sequence[tuple[Any, Node]], name: Callable[[Any], str] = show) -> tuple[Any, ...]:
    """The values, refusing one that stands twice: its cells would be listed twice."""
    seen: dict[str, Node] = {}
    for value, node in found:
        key = repr(value)  # true and 1 are unlike, 1.0 and 1e0 are like
        if key in seen:
            first = line_of(seen[key].where)
            raise node.error(f"gives {name(value)} a second time (first {first}); list each cell once")
        seen[key] = node
    return tuple(value for value, _ in found)


# Shapes


def _shapes(contract: Contract, axis: Node) -> tuple[tuple[Mapping[str, int], str], ...]:
    found: list[tuple[dict[str, int], Node]] = []
    tags: list[str] = []
    names = [d.name for d in contract.dimensions]
    for entry in axis.items():
        lists, tag = _shape_entry(contract, entry)
        if len(found) + math.prod(len(values) for values in lists) > MAX_CELLS:
            raise entry.error(f"brings the shapes to more than {MAX_CELLS:,}; shorten its lists")
        for sizes in itertools.product(*lists):
            found.append((dict(zip(names, sizes)), entry))
            tags.append(tag)
    dims = _unique(found, lambda d: "x".join(str(v) for v in d.values()))
    return tuple(zip(dims, tags))


def _shape_entry(contract: Contract, entry: Node) -> tuple[list[list[int]], str]:
    """The values of each dimension in the contract's order, and the tag."""
    given = entry.mapping("dimension: size")
    names = [d.name for d in contract.dimensions]
    for name, node in given.items():
        if name not in names and name != "tag":
            raise node.key_error(f"is no dimension of {contract.op}; {suggest(name, [*names, 'tag'], 'dimensions')}")
    lists = []
    for d in contract.dimensions:
        if d.name not in given:
            raise entry.error(f"lacks {d.name}; give each dimension of {contract.op}: {_dimension_names(contract)}")
        lists.append([_whole(node, d.low, d.high) for node in entries(given[d.name])])
    return lists, word(given["tag"]) if "tag" in given else ""


def _whole(node: Node, low: int, high: int) -> int:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int):
        raise node.error(f"is {show(value)}; it must be a whole number")
    if not low <= value <= high:
        raise node.error(f"is {show(value)}; it goes from {low} to {high}")
    return value


def word(node: Node) -> str:
    """Text that is not empty and has no space at its ends."""
    if not isinstance(node.value, str) or not node.value.strip():
        raise node.error(f"is {show(node.value)}; it must be text")
    return node.value.strip()


# Dtypes


def _dtypes(contract: Contract, axis: Node | None) -> tuple[Mapping[str, str], ...]:
    if axis is None:
        return (dict.fromkeys(contract.typed, contract.dtypes[0]),)
    found = []
    for node in entries(axis):
        if isinstance(node.value, dict):
            found.append((_dtypes_by_tensor(contract, node), node))
        else:
            found.append((dict.fromkeys(contract.typed, _dtype(contract, node)), node))
    return _unique(found, lambda dtypes: ", ".join(f"{k} {v}" for k, v in dtypes.items()))


def _dtypes_by_tensor(contract: Contract, node: Node) -> dict[str, str]:
    given = node.mapping("tensor: dtype")
    for name, child in given.items():
        if name not in contract.typed:
            hint = suggest(name, contract.typed, "tensors")
            raise child.key_error(f"is no tensor of {contract.op} with a dtype of its own; {hint}")
    if contract.typed[0] not in given:
        raise node.error(f"lacks {contract.typed[0]}, whose dtype the others take; give it")
    first = _dtype(contract, given[contract.typed[0]])
    return {t: _dtype(contract, given[t]) if t in given else first for t in contract.typed}


def _dtype(contract: Contract, node: Node) -> str:
    value = node.value
    if not isinstance(value, str):
        raise node.error(f"is {show(value)}; it must be a dtype like bfloat16")
    if value not in DTYPE_ALIASES:
        raise node.error(f"is {show(value)}; {suggest_dtype(value)}")
    full = DTYPE_ALIASES[value]
    if full not in contract.dtypes:
        raise node.error(f"is {show(value)}; {contract.op} takes {', '.join(contract.dtypes)}")
    return full


# Operations, families, seeds


def _operations(contract: Contract, axis: Node | None) -> tuple[str, ...]:
    def read(node: Node) -> str:
        if not isinstance(node.value, str) or node.value not in OPERATIONS:
            raise node.unknown(OPERATIONS, "operations")
        if node.value not in contract.operations:
            raise node.error(f"is {show(node.value)}; {contract.op} has {', '.join(contract.operations)}")
        return node.value

    return _values(axis, (contract.operations[0],), read)


def _families(contract: Contract, axis: Node | None) -> tuple[str, ...]:
    def read(node: Node) -> str:
        if not isinstance(node.value, str) or node.value not in contract.families:
            raise node.unknown(contract.families, "families")
        return node.value

    return _values(axis, contract.families[:1], read)


def _seed(node: Node) -> int:
    return _whole(node, 0, MAX_SEED)


# Parameters


def _params(contract: Contract, axes: Mapping[str, Node]) -> tuple[Mapping[str, Any], ...]:
    """The product of `variant` and of the axes that are named like a parameter; every parameter resolved."""
    by_name = {p.name: p for p in contract.parameters if not p.declared}
    groups: list[list[tuple[dict[str, Any], Node]]] = []
    taken: dict[str, Node] = {}
    if "variant" in axes:
        groups.append([(_variant(by_name, entry, contract, taken), entry) for entry in axes["variant"].items()])
    for p in by_name.values():  # the contract's order, never the file's
        if p.name in axes:
            if p.name in taken:
                raise axes[p.name].key_error(f"is also given in {taken[p.name].path}; give {p.name} in one of the two")
            groups.append([({p.name: parameter(p, node)}, node) for node in entries(axes[p.name])])
    if math.prod(len(group) for group in groups) > MAX_CELLS:
        raise axes[next(n for n in axes if n == "variant" or n in by_name)].error("and the other parameters multiply "
            f"to more than {MAX_CELLS:,}; shorten them")  # fmt: skip
    default = {p.name: p.default for p in contract.parameters}
    for group in groups:  # told at the place where it happens
        _unique([({**default, **given}, node) for given, node in group], _told)
    product = itertools.product(*[[given for given, _ in group] for group in groups])
    return tuple({**default, **{k: v for given in combination for k, v in given.items()}} for combination in product)


def _told(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in params.items())


def _variant(
    by_name: Mapping[str, Parameter], entry: Node, contract: Contract, taken: dict[str, Node]
) -> dict[str, Any]:
    given = entry.mapping("parameter: value")
    for name, node in given.items():
        if name not in by_name:
            _refuse_declared(contract, name, node)
            raise node.key_error(f"is no parameter of {contract.op}; {suggest(name, by_name, 'parameters')}")
        taken.setdefault(name, node)
    return {name: parameter(by_name[name], node) for name, node in given.items()}


def parameter(p: Parameter, node: Node) -> Any:
    """The value of parameter `p`, of its type and within its bounds."""
    value: Any = node.value
    if value is None and p.default is None:
        return None
    if p.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not p.type:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise node.error(f"is {show(node.value)}; it must be {words.get(p.type, p.type.__name__)}")
    if p.allowed is not None and value not in p.allowed:
        raise node.unknown([str(v) for v in p.allowed], "values")
    low, high = (-math.inf if p.low is None else p.low), (math.inf if p.high is None else p.high)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not low <= value <= high:
        raise node.error(f"is {show(node.value)}; it goes from {low} to {high}")
    return value


# Providers and modes


def _providers(
    contract: Contract,
    root: Node,
    section: Node | None,
    mode_axis: Node | None,
    registry: Mapping[str, ProviderInfo],
    extras: Mapping[str, ProviderInfo],
) -> tuple[Provider, ...]:
    named = _named_providers(contract, section, registry) if section else []
    if not named and not extras:
        raise root.error("has no providers; say who implements the op, like providers: [farm, torch]")
    named += [(extras[name], None) for name in sorted(extras) if name not in {info.name for info, _ in named}]
    wanted = _mode_axis(mode_axis, [info for info, _ in named]) if mode_axis else ("auto",)
    out = []
    for info, node in named:
        if node is not None and isinstance(node.value, dict) and node.value:
            modes = _own_modes(info, node)
        else:  # a provider that has none of the modes of the axis runs in its one way
            modes = tuple(m for m in wanted if m in info.modes) or info.modes[:1]
        said = info.declares.get(contract.op, {})
        declared = {p.name: said.get(p.name, p.default) for p in contract.parameters if p.declared}
        out.append(Provider(info.name, info.role, modes, declared))
    return tuple(out)


def _named_providers(
    contract: Contract, section: Node, registry: Mapping[str, ProviderInfo]
) -> list[tuple[ProviderInfo, Node | None]]:
    """In a list, the list's order; in a mapping, whose order means nothing, `farm` first and then by name."""
    if isinstance(section.value, dict):
        given = section.mapping("name: {mode: [auto]}")
        for name, node in given.items():
            if name not in registry:
                hint = suggest(name, sorted(registry), "providers")
                raise node.key_error(f"is no provider; {hint}")
        ordered = sorted(given.items(), key=lambda item: (item[0] != "farm", item[0]))
        pairs: list[tuple[str, Node]] = ordered
    else:
        pairs = []
        for node in section.items():
            if not isinstance(node.value, str) or node.value not in registry:
                raise node.unknown(sorted(registry), "providers")
            pairs.append((node.value, node))
        _unique(pairs)
    for name, node in pairs:
        if not registry[name].does(contract.op):
            able = ", ".join(sorted(n for n, info in registry.items() if info.does(contract.op))) or "nobody"
            raise MatrixError(f"{node.key_where or node.where}: {node.path} names {name}, which has no "
                              f"{contract.op}; {able} can do it")  # fmt: skip
    return [(registry[name], node) for name, node in pairs]


def _own_modes(info: ProviderInfo, node: Node) -> tuple[str, ...]:
    for name, child in node.mapping("mode: [auto]").items():
        if name != "mode":
            raise child.key_error(f"is no key of a provider; {suggest(name, ['mode'], 'keys')}")

    def read(child: Node) -> str:
        if not isinstance(child.value, str) or child.value not in info.modes:
            raise child.unknown(info.modes, f"modes of {info.name}")
        return child.value

    return _values(node.value["mode"], (), read)


def _mode_axis(axis: Node, infos: Sequence[ProviderInfo]) -> tuple[str, ...]:
    known = dict.fromkeys(m for info in infos for m in info.modes)

    def read(node: Node) -> str:
        if not isinstance(node.value, str) or node.value not in known:
            raise node.unknown(known, "modes")
        return node.value

    return _values(axis, (), read)


# Timing


def timings(section: Node) -> tuple[Mapping[str, Any], ...]:
    """The policies that a `timing` section gives, each with its given fields only."""
    nodes = section.items() if isinstance(section.value, list) else [section]
    return _unique([(_timing(node), node) for node in nodes], _told)


def _timing(node: Node) -> dict[str, Any]:
    given = node.mapping("method: events")
    for name, child in given.items():
        if name not in TIMING_FIELDS:
            raise child.key_error(f"is no field of a timing; {suggest(name, TIMING_FIELDS, 'fields')}")
    out: dict[str, Any] = {}
    for name, known in (("method", METHODS), ("cache", CACHES)):
        if name in given:
            if given[name].value not in known:
                raise given[name].unknown(known, f"timing {name}s")
            out[name] = given[name].value
    for name in ("min_samples", "max_samples"):
        if name in given:
            out[name] = _whole(given[name], 1, 1_000_000)
    for name in ("target_rel_width", "max_seconds"):
        if name in given:
            out[name] = positive(given[name])
    low, high = out.get("min_samples", 20), out.get("max_samples", 200)
    if low > high:
        raise node.error(f"asks for at least {low} and at most {high} samples; raise max_samples")
    return out


def positive(node: Node) -> float:
    """A number above zero."""
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or not 0 < node.value <= 1e9:
        raise node.error(f"is {show(node.value)}; it must be a number above 0")
    return float(node.value)
