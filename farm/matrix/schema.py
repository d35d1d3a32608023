"""The JSON Schema of a matrix (one YAML document), for editors.  The loader is stricter; the schema accepts everything
that the loader accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm import backends as farm_backends
from farm import limits
from farm.cell import DTYPE_ALIASES, OPERATIONS, QUIET
from farm.contracts import discovery as farm_ops
from farm.contracts.base import Contract, Parameter
from farm.contracts.layouts import DENSE

from .axes import MAX_SEED
from .declared import ROLES
from .model import CACHES, METHODS
from .registry import ProviderInfo, builtin_providers
from .sim_script import KINDS, SCRIPT, TELEMETRY

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def json_schema(
    *,
    contracts: Callable[[str], Contract] = farm_ops.contract,
    ops: Sequence[str] | None = None,
    registry: Mapping[str, ProviderInfo] | None = None,
    backends: Sequence[str] | None = None,
) -> dict[str, Any]:
    """JSON Schema, draft 2020-12.  The axes depend on the matrix's op."""
    ops = list(farm_ops.known_ops() if ops is None else ops)
    backends = farm_backends.known() if backends is None else backends
    providers = sorted(builtin_providers() if registry is None else registry)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A matrix of the kernel farm",
        "type": "object",
        "required": ["name", "op"],
        "additionalProperties": False,
        "properties": {
            "name": _described(
                "The matrix's name, unique in a run.", type="string", pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$"
            ),
            "op": _described("The operation to compute.", enum=ops),
            "axes": _described(
                "The axes, whose product gives the cells. An omitted axis has the default of the contract.",
                type="object",
            ),
            "providers": _providers(providers),
            "backends": _described(
                "Settings per backend: an axis, providers or timing given here replaces the matrix's general "
                "setting on that backend.",
                type="object",
                properties={b: {"type": "object"} for b in backends},
                additionalProperties=False,
            ),
            "targets": _described(
                "Devices by name: each cell of the backend is planned once for each name, and runs only on such "
                "devices.",
                type="object",
                minProperties=1,
                additionalProperties=False,
                properties=dict.fromkeys(
                    backends,
                    _one_or_many(
                        {"type": "string", "minLength": 1},
                        "MODEL[:PARTITION][:POWERW][:CLOCKS], like H200:mig-1g.18gb.",
                    ),
                ),
            ),
            "quiet": _described(
                "Which devices are kept idle while a cell is timed: the other devices of the same module, or of "
                "the same host.",
                enum=[*QUIET],
            ),
            "exclude": _described(
                'Cells to skip. A value is a literal, a list, or a comparison like ">8192".',
                type="array",
                minItems=1,
                items={
                    "type": "object",
                    "required": ["reason"],
                    "minProperties": 2,
                    "properties": {"reason": _described("Why these cells are not run.", type="string", minLength=1)},
                },
            ),
            "timing": _one_or_many(
                _timing(),
                "How cells are timed. With several policies, each cell is planned once per policy. Cells on cpu "
                "are never timed.",
            ),
            "require": _described(
                "Backends that the cluster must have.",
                type="array",
                minItems=1,
                uniqueItems=True,
                items={"enum": [*backends]},
            ),
            "deadlines": _described(
                "Time limits, in seconds: of each phase of a child, and of what surrounds it.",
                type="object",
                additionalProperties=False,
                properties={
                    phase: _described(f"Default {seconds:g}.", type="number", exclusiveMinimum=0)
                    for phase, seconds in limits.TABLE.items()
                },
            ),
            "sim": _script(),
            "tolerances": _tolerances(),
        },
        "$defs": {
            "modes": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "mode": _one_or_many({"type": "string"}, "Kernel strategies of this provider."),
                    "call": _described("module:function of a provider that this matrix declares.", type="string"),
                    "role": _described("Whether its failures are findings. Only with call.", enum=[*ROLES]),
                },
            },
            **{f"axes-{op}": _object(_axes(contracts(op))) for op in ops},
            **{f"difference-{op}": _difference(contracts(op)) for op in ops},
        },
        "allOf": [_for_op(op, backends) for op in ops],
    }


def _described(description: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, **schema}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "minProperties": 1, "additionalProperties": False, "properties": dict(properties)}


def _one_or_many(one: Mapping[str, Any], description: str) -> dict[str, Any]:
    return _described(description, anyOf=[one, {"type": "array", "minItems": 1, "items": one}])


def _providers(names: Sequence[str]) -> dict[str, Any]:
    """Names that `--provider` adds are valid too, so the known names only serve completion."""
    return _described(
        "The implementations to run: a list of providers, or a mapping from each provider to its modes.",
        anyOf=[
            {"type": "array", "minItems": 1, "items": {"anyOf": [{"enum": [*names]}, {"type": "string"}]}},
            {
                "type": "object",
                "minProperties": 1,
                "properties": {name: {"$ref": "#/$defs/modes"} for name in names},
                "additionalProperties": {"$ref": "#/$defs/modes"},
            },
        ],
    )


def _timing() -> dict[str, Any]:
    return {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {
            "method": _described("The timing policy; default: the backend's own.", enum=[*METHODS]),
            "cache": _described("cold: inputs come from memory; warm: from the last-level cache.", enum=[*CACHES]),
            "min_samples": _described("Take at least this many samples.", type="integer", minimum=1),
            "max_samples": _described("Take at most this many samples.", type="integer", minimum=1),
            "target_rel_width": _described(
                "Stop when the relative half-width of the median's 95 % confidence interval is below this.",
                type="number",
                exclusiveMinimum=0,
            ),
            "max_seconds": _described("Stop after this many seconds.", type="number", exclusiveMinimum=0),
        },
    }


def _tolerances() -> dict[str, Any]:
    return _described(
        "Tolerances that replace the tolerances of the contract, with reason and date.",
        type="array",
        minItems=1,
        items={
            "type": "object",
            "additionalProperties": False,
            "required": ["output", "metric", "limit", "reason", "date"],
            "properties": {
                "match": _described(
                    "Cells that this tolerance applies to, written as in exclude (default: all).",
                    type="object",
                    minProperties=1,
                ),
                "output": _described("Name of the output, or * for every output.", type="string"),
                "metric": _described("The metric, like rel_l2.", type="string"),
                "limit": _described("The new limit.", type="number", minimum=0),
                "reason": _described("Why the limit is changed.", type="string", minLength=1),
                "date": _described(
                    "Date of the decision, like 2026-01-31.", type="string", pattern=r"^\d{4}-\d{2}-\d{2}$"
                ),
            },
        },
    )


def _difference(contract: Contract) -> dict[str, Any]:
    """What `backends` may contain for one backend."""
    axes = {name: {"$ref": f"#/$defs/axes-{contract.op}/properties/{name}"} for name in _axes(contract)}
    return _object({**axes, "providers": {"$ref": "#/properties/providers"}, "timing": {"$ref": "#/properties/timing"}})


def _for_op(op: str, backends: Sequence[str]) -> dict[str, Any]:
    difference = {"$ref": f"#/$defs/difference-{op}"}
    return {
        "if": {"properties": {"op": {"const": op}}, "required": ["op"]},
        "then": {
            "properties": {
                "axes": {"$ref": f"#/$defs/axes-{op}"},
                "backends": {"properties": dict.fromkeys(backends, difference)},
            }
        },
    }


def _axes(contract: Contract) -> dict[str, Any]:
    sizes = {
        d.name: _one_or_many(
            {"type": "integer", "minimum": d.low, "maximum": d.high},
            f"{d.low} to {d.high}; a list gives one shape per value.",
        )
        for d in contract.dimensions
    }
    dtype = {"enum": [name for name, full in DTYPE_ALIASES.items() if full in contract.dtypes]}
    by_tensor = {
        "type": "object",
        "properties": dict.fromkeys(contract.typed, dtype),
        "additionalProperties": False,
        "required": list(contract.typed[:1]),
    }
    parameters = {p.name: _parameter(p) for p in contract.parameters if not p.declared}
    entry = {
        "type": "object",
        "required": list(sizes),
        "additionalProperties": False,
        "properties": {**sizes, "tag": _described("Where the shape comes from; a+b for two origins.", type="string")},
    }
    variant = {"type": "object", "minProperties": 1, "additionalProperties": False, "properties": parameters}
    operations = [o for o in OPERATIONS if o in contract.operations]
    return {
        "shape": _described("The contract's dimensions.", type="array", minItems=1, items=entry),
        "dtype": _one_or_many({"anyOf": [dtype, by_tensor]}, "One dtype for all tensors, or one per tensor."),
        "operation": _one_or_many({"enum": operations}, "The part of the op to run and time."),
        "variant": _described("Combinations of parameters.", type="array", minItems=1, items=variant),
        "family": _one_or_many({"enum": [*contract.families]}, "The family of input values."),
        "seed": _one_or_many({"type": "integer", "minimum": 0, "maximum": MAX_SEED}, "The seed of the input values."),
        "layout": _one_or_many(_layout(contract), "How tensors lie in memory: dense, or a layout per tensor."),
        "mode": _one_or_many({"type": "string"}, "Kernel strategies, for providers that offer several."),
        **{name: _one_or_many(schema, f"Parameter {name} of {contract.op}.") for name, schema in parameters.items()},
    }


def _layout(contract: Contract) -> dict[str, Any]:
    by_tensor = {tensor: {"enum": [DENSE, *names]} for tensor, names in contract.layouts.items()}
    return {"anyOf": [{"const": DENSE}, _object(by_tensor)]} if by_tensor else {"const": DENSE}


def _parameter(p: Parameter) -> dict[str, Any]:
    out: dict[str, Any] = {"type": _JSON_TYPES[p.type]} if p.type in _JSON_TYPES else {}
    if p.allowed is not None:
        out["enum"] = list(p.allowed)
    if p.low is not None:
        out["minimum"] = p.low
    if p.high is not None:
        out["maximum"] = p.high
    if p.default is None and "type" in out:
        out["type"] = [out["type"], "null"]
    return _described(f"Default {p.default!r}.", **out)


def _script() -> dict[str, Any]:
    script = {name: _scripted(kind) for name, kind in SCRIPT.items()}
    telemetry = {name: _scripted(kind) for name, kind in TELEMETRY.items()}
    script["telemetry"] = _closed("The telemetry that the simulated device reports.", telemetry)
    rule = {
        "when": _described("Cells that this rule applies to, written as in exclude.", type="object", minProperties=1),
        **script,
    }
    items = {**_closed("A rule.", rule), "minProperties": 1}
    rules = _described("All matching rules apply; later ones override earlier ones.", type="array", items=items)
    found = {"default": _closed("The script of every cell.", script), "rules": rules}
    return {**_closed("The script of simulated devices.", found), "minProperties": 1}


def _scripted(kind: str) -> dict[str, Any]:
    return _described(f"Must be {kind}.", **KINDS[kind])


def _closed(text: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return _described(text, type="object", additionalProperties=False, properties=dict(properties))
