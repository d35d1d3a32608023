"""The axes of a matrix: from nodes to values of the contract's types and bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.cell import DTYPE_ALIASES, OPERATIONS
from farm.contracts.base import Contract, Parameter
from farm.contracts.layouts import DENSE, clash

from .document import YamlNode, line_of, show, suggest
from .model import CACHES, MAX_CELLS, METHODS, Provider, View
from .registry import ProviderInfo
from .rules import suggest_dtype

AXES = ("shape", "dtype", "operation", "variant", "family", "seed", "layout", "mode")
TIMING_FIELDS = ("method", "cache", "min_samples", "max_samples", "target_rel_width", "max_seconds")
#: Names that a contract may not give to a dimension or parameter: they mean something in a rule or an id.
RESERVED = frozenset({*AXES, *TIMING_FIELDS, "tag", "backend", "op", "provider", "timing", "reason", "name", "version"})
MAX_SEED = 2**63 - 1


def resolve(
    contract: Contract,
    root: YamlNode,
    axes: Mapping[str, YamlNode],
    providers: YamlNode | None,
    timing: YamlNode | None,
    registry: Mapping[str, ProviderInfo],
    extras: Mapping[str, ProviderInfo],
) -> View:
    """One backend's view.  `axes` are merged already; `registry` contains `extras`, which are added to `providers`."""
    known = [p.name for p in contract.parameters if not p.declared]
    for name, node in axes.items():
        if name not in AXES and name not in known:
            _refuse_declared(contract, name, node)
            message = f"is not an axis of {contract.op}; {suggest(name, [*AXES, *known], 'axes')}"
            raise node.key_error(message, id="matrix-unknown-axis")
    if "shape" not in axes:
        message = f"has no axes.shape; add this key with the dimensions of {contract.op}: {_dimension_names(contract)}"
        raise root.error(message, id="matrix-no-shape")
    return View(
        shapes=_shapes(contract, axes["shape"]),
        dtypes=_dtypes(contract, axes.get("dtype")),
        params=_params(contract, axes),
        families=_families(contract, axes.get("family")),
        seeds=_values(axes.get("seed"), (0,), _seed),
        layouts=_layouts(contract, axes.get("layout")),
        operations=_operations(contract, axes.get("operation")),
        providers=_providers(contract, root, providers, axes.get("mode"), registry, extras),
        timings=timings(timing) if timing else (),
    )


def _refuse_declared(contract: Contract, name: str, node: YamlNode) -> None:
    if any(p.name == name and p.declared for p in contract.parameters):
        message = "is declared by each provider, in DECLARES of the provider's file; remove it here"
        raise node.key_error(message, id="matrix-declared-parameter")


def _dimension_names(contract: Contract) -> str:
    return ", ".join(d.name for d in contract.dimensions)


def entries(node: YamlNode) -> list[YamlNode]:
    """An axis is a list; a single value stands for a list of one."""
    if node.value is None or isinstance(node.value, list):
        return node.items()
    return [node]


def _values(node: YamlNode | None, default: tuple[Any, ...], read: Callable[[YamlNode], Any]) -> tuple[Any, ...]:
    """The values of an axis, each once."""
    return default if node is None else _unique([(read(n), n) for n in entries(node)])


def _unique(found: Sequence[tuple[Any, YamlNode]], name: Callable[[Any], str] = show) -> tuple[Any, ...]:
    """The values; refuses a value that is given twice, because its cells would be listed twice."""
    seen: dict[str, YamlNode] = {}
    for value, node in found:
        key = repr(value)  # true and 1 differ, 1.0 and 1e0 do not
        if key in seen:
            first = line_of(seen[key].where)
            message = f"repeats {name(value) or 'an entry'} (first given {first}); list each value once"
            raise node.error(message, id="matrix-value-twice")
        seen[key] = node
    return tuple(value for value, _ in found)


# Shapes


def _shapes(contract: Contract, axis: YamlNode) -> tuple[tuple[Mapping[str, int], str], ...]:
    found: list[tuple[dict[str, int], YamlNode]] = []
    tags: list[str] = []
    names = [d.name for d in contract.dimensions]
    for entry in axis.items():
        lists, tag = _shape_entry(contract, entry)
        if len(found) + math.prod(len(values) for values in lists) > MAX_CELLS:
            message = f"raises the number of shapes above {MAX_CELLS:,}; shorten the lists"
            raise entry.error(message, id="matrix-too-many-shapes")
        for sizes in itertools.product(*lists):
            found.append((dict(zip(names, sizes)), entry))
            tags.append(tag)
    dims = _unique(found, lambda d: "x".join(str(v) for v in d.values()))
    return tuple(zip(dims, tags))


def _shape_entry(contract: Contract, entry: YamlNode) -> tuple[list[list[int]], str]:
    """The values of each dimension in the contract's order, and the tag."""
    given = entry.mapping("dimension: size")
    names = [d.name for d in contract.dimensions]
    for name, node in given.items():
        if name not in names and name != "tag":
            message = f"is not a dimension of {contract.op}; {suggest(name, [*names, 'tag'], 'dimensions')}"
            raise node.key_error(message, id="matrix-unknown-dimension")
    lists = []
    for d in contract.dimensions:
        if d.name not in given:
            message = f"has no {d.name}; give every dimension of {contract.op}: {_dimension_names(contract)}"
            raise entry.error(message, id="matrix-no-dimension")
        lists.append([_whole(node, d.low, d.high) for node in entries(given[d.name])])
    return lists, word(given["tag"]) if "tag" in given else ""


def _whole(node: YamlNode, low: int, high: int) -> int:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int):
        raise node.error(f"is {show(value)}; it must be an integer", id="matrix-not-an-integer")
    if not low <= value <= high:
        raise node.error(f"is {show(value)}; it must be between {low} and {high}", id="matrix-out-of-range")
    return value


def word(node: YamlNode) -> str:
    """Text that is not empty, without the spaces at its ends."""
    if not isinstance(node.value, str) or not node.value.strip():
        raise node.error(f"is {show(node.value)}; it must be non-empty text", id="matrix-not-text")
    return node.value.strip()


# Dtypes


def _dtypes(contract: Contract, axis: YamlNode | None) -> tuple[Mapping[str, str], ...]:
    if axis is None:
        return (dict.fromkeys(contract.typed, contract.dtypes[0]),)
    found = []
    for node in entries(axis):
        if isinstance(node.value, dict):
            found.append((_dtypes_by_tensor(contract, node), node))
        else:
            found.append((dict.fromkeys(contract.typed, _dtype(contract, node)), node))
    return _unique(found, lambda dtypes: ", ".join(f"{k} {v}" for k, v in dtypes.items()))


def _dtypes_by_tensor(contract: Contract, node: YamlNode) -> dict[str, str]:
    given = node.mapping("tensor: dtype")
    for name, child in given.items():
        if name not in contract.typed:
            hint = suggest(name, contract.typed, "tensors")
            message = f"is not a tensor of {contract.op} that can have its own dtype; {hint}"
            raise child.key_error(message, id="matrix-unknown-tensor")
    if contract.typed[0] not in given:
        message = (
            f"has no {contract.typed[0]}; give the dtype of this tensor, which is also the default for the other "
            "tensors"
        )
        raise node.error(message, id="matrix-no-first-dtype")
    first = _dtype(contract, given[contract.typed[0]])
    return {t: _dtype(contract, given[t]) if t in given else first for t in contract.typed}


def _dtype(contract: Contract, node: YamlNode) -> str:
    value = node.value
    if not isinstance(value, str):
        raise node.error(f"is {show(value)}; it must be a dtype like bfloat16", id="matrix-dtype-not-text")
    if value not in DTYPE_ALIASES:
        raise node.error(f"is {show(value)}; {suggest_dtype(value, contract)}", id="matrix-unknown-dtype")
    full = DTYPE_ALIASES[value]
    if full not in contract.dtypes:
        message = f"is {show(value)}; {contract.op} supports {', '.join(contract.dtypes)}"
        raise node.error(message, id="matrix-unsupported-dtype")
    return full


# Operations, families, seeds


def _operations(contract: Contract, axis: YamlNode | None) -> tuple[str, ...]:
    def read(node: YamlNode) -> str:
        if not isinstance(node.value, str) or node.value not in OPERATIONS:
            raise node.unknown(OPERATIONS, "operations", id="matrix-unknown-operation")
        if node.value not in contract.operations:
            message = f"is {show(node.value)}; {contract.op} supports {', '.join(contract.operations)}"
            raise node.error(message, id="matrix-unsupported-operation")
        return node.value

    return _values(axis, (contract.operations[0],), read)


def _families(contract: Contract, axis: YamlNode | None) -> tuple[str, ...]:
    def read(node: YamlNode) -> str:
        if not isinstance(node.value, str) or node.value not in contract.families:
            raise node.unknown(contract.families, "families", id="matrix-unknown-family")
        return node.value

    return _values(axis, contract.families[:1], read)


def _seed(node: YamlNode) -> int:
    return _whole(node, 0, MAX_SEED)


# Layouts


def _layouts(contract: Contract, axis: YamlNode | None) -> tuple[Mapping[str, str], ...]:
    """Each entry in the contract's order of tensors, without what is dense."""
    if axis is None:
        return ({},)
    return _unique([(_layout(contract, node), node) for node in entries(axis)], lambda layout: _pairs(layout) or DENSE)


def _layout(contract: Contract, node: YamlNode) -> dict[str, str]:
    if node.value == DENSE:
        return {}
    if isinstance(node.value, str):
        message = f"is {show(node.value)}; write dense, or the tensor that it is for, like {{x: {node.value}}}"
        raise node.error(message, id="matrix-layout-without-tensor")
    given = node.mapping("tensor: layout")
    for name, child in given.items():
        if name not in contract.layouts:
            able = suggest(name, contract.layouts, "tensors") if contract.layouts else "none of its tensors has"
            message = f"is not a tensor of {contract.op} that can have a layout; {able}"
            raise child.key_error(message, id="matrix-layout-tensor")
        known = (DENSE, *contract.layouts[name])
        if not isinstance(child.value, str) or child.value not in known:
            raise child.unknown(known, f"layouts of {name}", id="matrix-unknown-layout")
    found = {name: given[name].value for name in contract.layouts if name in given and given[name].value != DENSE}
    wrong = clash(found)
    if wrong:
        raise node.error(wrong, id=wrong.id)
    return found


# Parameters


def _params(contract: Contract, axes: Mapping[str, YamlNode]) -> tuple[Mapping[str, Any], ...]:
    """The product of `variant` and of the axes that are named like a parameter; every parameter resolved."""
    by_name = {p.name: p for p in contract.parameters if not p.declared}
    groups: list[list[tuple[dict[str, Any], YamlNode]]] = []
    taken: dict[str, YamlNode] = {}
    if "variant" in axes:
        groups.append([(_variant(by_name, entry, contract, taken), entry) for entry in axes["variant"].items()])
    for p in by_name.values():  # the contract's order, never the file's
        if p.name in axes:
            if p.name in taken:
                message = f"is also given in {taken[p.name].path}; remove one of the two"
                raise axes[p.name].key_error(message, id="matrix-parameter-twice")
            groups.append([({p.name: parameter(p, node)}, node) for node in entries(axes[p.name])])
    if math.prod(len(group) for group in groups) > MAX_CELLS:
        message = f"and the other parameters give more than {MAX_CELLS:,} combinations; shorten their lists"
        first = axes[next(n for n in axes if n == "variant" or n in by_name)]
        raise first.error(message, id="matrix-too-many-parameters")
    default = {p.name: p.default for p in contract.parameters}
    for group in groups:  # here, because the error names the place
        _unique([({**default, **given}, node) for given, node in group], _pairs)
    product = itertools.product(*[[given for given, _ in group] for group in groups])
    return tuple({**default, **{k: v for given in combination for k, v in given.items()}} for combination in product)


def _pairs(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in params.items())


def _variant(
    by_name: Mapping[str, Parameter], entry: YamlNode, contract: Contract, taken: dict[str, YamlNode]
) -> dict[str, Any]:
    given = entry.mapping("parameter: value")
    for name, node in given.items():
        if name not in by_name:
            _refuse_declared(contract, name, node)
            message = f"is not a parameter of {contract.op}; {suggest(name, by_name, 'parameters')}"
            raise node.key_error(message, id="matrix-unknown-parameter")
        taken.setdefault(name, node)
    return {name: parameter(by_name[name], node) for name, node in given.items()}


def parameter(p: Parameter, node: YamlNode) -> Any:
    """The value of parameter `p`, of its type and within its bounds."""
    value: Any = node.value
    if value is None and p.default is None:
        return None
    if p.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not p.type:
        words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
        message = f"is {show(node.value)}; it must be {words.get(p.type, p.type.__name__)}"
        raise node.error(message, id="matrix-parameter-type")
    if p.allowed is not None and value not in p.allowed:
        raise node.unknown([str(v) for v in p.allowed], "values", id="matrix-parameter-value")
    low, high = (-math.inf if p.low is None else p.low), (math.inf if p.high is None else p.high)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not low <= value <= high:
        raise node.error(f"is {show(node.value)}; it must be {_range(p)}", id="matrix-parameter-range")
    return value


def _range(p: Parameter) -> str:
    """`between 1 and 8`, or `>= 0.0` where one end is open."""
    if p.low is not None and p.high is not None:
        return f"between {p.low} and {p.high}"
    return f">= {p.low}" if p.high is None else f"<= {p.high}"


# Providers and modes


def _providers(
    contract: Contract,
    root: YamlNode,
    section: YamlNode | None,
    mode_axis: YamlNode | None,
    registry: Mapping[str, ProviderInfo],
    extras: Mapping[str, ProviderInfo],
) -> tuple[Provider, ...]:
    named = _named_providers(contract, section, registry) if section else []
    if not named and not extras:
        message = "has no providers; name the implementations to run, for example providers: [farm, torch]"
        raise root.error(message, id="matrix-no-providers")
    named += [(extras[name], None) for name in sorted(extras) if name not in {info.name for info, _ in named}]
    wanted = _mode_axis(mode_axis, [info for info, _ in named]) if mode_axis else ("auto",)
    out = []
    for info, node in named:
        if node is not None and isinstance(node.value, dict) and node.value:
            modes = _own_modes(info, node)
        else:  # a provider that has none of the axis's modes runs in its first
            modes = tuple(m for m in wanted if m in info.modes) or info.modes[:1]
        declares = info.declares.get(contract.op, {})
        declared = {p.name: declares.get(p.name, p.default) for p in contract.parameters if p.declared}
        out.append(Provider(info.name, info.role, modes, declared, info.backend_modes.get(contract.op, {})))
    return tuple(out)


def _named_providers(
    contract: Contract, section: YamlNode, registry: Mapping[str, ProviderInfo]
) -> list[tuple[ProviderInfo, YamlNode | None]]:
    """A list keeps its order; a mapping, whose order means nothing, has `farm` first and the others by name."""
    if isinstance(section.value, dict):
        given = section.mapping("name: {mode: [auto]}")
        for name, node in given.items():
            if name not in registry:
                hint = suggest(name, sorted(registry), "providers")
                raise node.key_error(f"is not a provider; {hint}", id="matrix-unknown-provider-key")
        ordered = sorted(given.items(), key=lambda item: (item[0] != "farm", item[0]))
        pairs: list[tuple[str, YamlNode]] = ordered
    else:
        pairs = []
        for node in section.items():
            if not isinstance(node.value, str) or node.value not in registry:
                raise node.unknown(sorted(registry), "providers", id="matrix-unknown-provider")
            pairs.append((node.value, node))
        _unique(pairs)
    for name, node in pairs:
        if not registry[name].does(contract.op):
            able = ", ".join(sorted(n for n, info in registry.items() if info.does(contract.op))) or "none"
            message = f"names {name}, which does not implement {contract.op}; providers that do: {able}"
            raise node.key_error(message, id="matrix-provider-without-op")
    return [(registry[name], node) for name, node in pairs]


def _own_modes(info: ProviderInfo, node: YamlNode) -> tuple[str, ...]:
    declared = "call" in node.value
    keys = DECLARED if declared else ("mode",)
    for name, child in node.mapping("mode: [auto]").items():
        if name not in keys:
            message = f"is not a key of a provider; {suggest(name, keys, 'keys')}"
            raise child.key_error(message, id="matrix-provider-key")
    if declared and "mode" not in node.value:
        return info.modes

    def read(child: YamlNode) -> str:
        if not isinstance(child.value, str) or not info.takes(child.value):
            raise child.unknown(info.modes, f"modes of {info.name}", id="matrix-provider-mode")
        return child.value

    return _values(node.value["mode"], (), read)


def _mode_axis(axis: YamlNode, infos: Sequence[ProviderInfo]) -> tuple[str, ...]:
    known = dict.fromkeys(m for info in infos for m in info.modes)

    def read(node: YamlNode) -> str:
        if not isinstance(node.value, str) or node.value not in known:
            raise node.unknown(known, "modes", id="matrix-unknown-mode")
        return node.value

    return _values(axis, (), read)


#: Keys of a provider that the matrix itself declares.
DECLARED = ("call", "mode", "role")


# Timing


def timings(section: YamlNode) -> tuple[Mapping[str, Any], ...]:
    """The policies of a `timing` section, each with only the fields that are given."""
    nodes = section.items() if isinstance(section.value, list) else [section]
    return _unique([(_timing(node), node) for node in nodes], _pairs)


def _timing(node: YamlNode) -> dict[str, Any]:
    given = node.mapping("method: events")
    for name, child in given.items():
        if name not in TIMING_FIELDS:
            message = f"is not a field of timing; {suggest(name, TIMING_FIELDS, 'fields')}"
            raise child.key_error(message, id="matrix-timing-field")
    out: dict[str, Any] = {}
    for name, known in (("method", METHODS), ("cache", CACHES)):
        if name in given:
            if given[name].value not in known:
                raise given[name].unknown(known, f"timing {name}s", id=f"matrix-timing-{name}")
            out[name] = given[name].value
    for name in ("min_samples", "max_samples"):
        if name in given:
            out[name] = _whole(given[name], 1, 1_000_000)
    for name in ("target_rel_width", "max_seconds"):
        if name in given:
            out[name] = positive(given[name])
    low, high = out.get("min_samples", 20), out.get("max_samples", 200)
    if low > high:
        message = f"asks for at least {low} and at most {high} samples; raise max_samples"
        raise node.error(message, id="matrix-timing-samples")
    return out


def positive(node: YamlNode) -> float:
    """A number above zero."""
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or not 0 < node.value <= 1e9:
        message = f"is {show(node.value)}; it must be a number above 0, at most 1e9"
        raise node.error(message, id="matrix-not-positive")
    return float(node.value)
