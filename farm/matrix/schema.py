"""The JSON Schema of a matrix (one YAML document), for editors.  The loader is stricter; the schema never refuses what
the loader takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm import backends as farm_backends
from farm import ops as farm_ops
from farm.cell import DTYPE_ALIASES, OPERATIONS
from farm.scheduler.events import QUIET
from kernels.contract import Contract, Parameter

from .axes import MAX_SEED
from .model import CACHES, DEFAULT_DEADLINES, METHODS
from .registry import ProviderInfo, builtin_providers
from .script import KINDS, SCRIPT, TELEMETRY

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def json_schema(
    *,
    contracts: Callable[[str], Contract] = farm_ops.contract,
    ops: Sequence[str] | None = None,
    registry: Mapping[str, ProviderInfo] | None = None,
    backends: Sequence[str] | None = None,
) -> dict[str, Any]:
    """JSON Schema, draft 2020-12.  Axes are those of the matrix's op."""
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
            "name": _said("The matrix's name, unique in a run.", type="string", pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$"),
            "op": _said("What is computed.", enum=ops),
            "axes": _said("What is multiplied; an axis left out takes the contract's default.", type="object"),
            "providers": _providers(providers),
            "backends": _said(
                "Differences: an axis, the providers or the timing given here replace those above on that backend.",
                type="object",
                properties={b: {"type": "object"} for b in backends},
                additionalProperties=False,
            ),
            "targets": _said(
                "Devices by name: each cell of the backend is planned once for each, and runs nowhere else.",
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
            "quiet": _said(
                "What stands still while a cell is timed: the other devices of its module, or of its host.",
                enum=[*QUIET],
            ),
            "exclude": _said(
                'Cells that are planned as skipped. A value is a literal, a list, or OP number like ">8192".',
                type="array",
                minItems=1,
                items={
                    "type": "object",
                    "required": ["reason"],
                    "minProperties": 2,
                    "properties": {"reason": _said("Why these cells are not run.", type="string", minLength=1)},
                },
            ),
            "timing": _one_or_many(_timing(), "How cells are timed; several policies run side by side. cpu: never."),
            "require": _said(
                "Backends that must be there.", type="array", minItems=1, uniqueItems=True, items={"enum": [*backends]}
            ),
            "deadlines": _said(
                "Seconds that each phase of a child may take.",
                type="object",
                additionalProperties=False,
                properties={
                    phase: _said(f"Default {seconds:g}.", type="number", exclusiveMinimum=0)
                    for phase, seconds in DEFAULT_DEADLINES.items()
                },
            ),
            "sim": _script(),
            "tolerances": _tolerances(),
        },
        "$defs": {
            "modes": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"mode": _one_or_many({"type": "string"}, "The provider's own kernel strategies.")},
            },
            **{f"axes-{op}": _object(_axes(contracts(op))) for op in ops},
            **{f"difference-{op}": _difference(contracts(op)) for op in ops},
        },
        "allOf": [_for_op(op, backends) for op in ops],
    }


def _said(description: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, **schema}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "minProperties": 1, "additionalProperties": False, "properties": dict(properties)}


def _one_or_many(one: Mapping[str, Any], description: str) -> dict[str, Any]:
    return _said(description, anyOf=[one, {"type": "array", "minItems": 1, "items": one}])


def _providers(names: Sequence[str]) -> dict[str, Any]:
    """Names that `--provider` adds may stand here too, so the known ones only complete."""
    return _said(
        "Who implements the op: a list, or a mapping with each one's own modes.",
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
            "method": _said("The policy; default: the backend's own.", enum=[*METHODS]),
            "cache": _said("cold: inputs come from memory; warm: from the last-level cache.", enum=[*CACHES]),
            "min_samples": _said("At least so many samples.", type="integer", minimum=1),
            "max_samples": _said("At most so many samples.", type="integer", minimum=1),
            "target_rel_width": _said(
                "Stop when the half-width of the median's 95 % interval, relative, is below this.",
                type="number",
                exclusiveMinimum=0,
            ),
            "max_seconds": _said("Stop after so many seconds.", type="number", exclusiveMinimum=0),
        },
    }


def _tolerances() -> dict[str, Any]:
    return _said(
        "Gates that replace the contract's, with who decided and when.",
        type="array",
        minItems=1,
        items={
            "type": "object",
            "additionalProperties": False,
            "required": ["output", "metric", "limit", "reason", "date"],
            "properties": {
                "match": _said("Which cells, as in exclude; all where left out.", type="object", minProperties=1),
                "output": _said("The output's name, or * for each.", type="string"),
                "metric": _said("The metric, like rel_l2.", type="string"),
                "limit": _said("The new limit.", type="number", minimum=0),
                "reason": _said("Why.", type="string", minLength=1),
                "date": _said("When, like 2026-01-31.", type="string", pattern=r"^\d{4}-\d{2}-\d{2}$"),
            },
        },
    )


def _difference(contract: Contract) -> dict[str, Any]:
    """What `backends` may hold for one backend."""
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
            {"type": "integer", "minimum": d.low, "maximum": d.high}, f"{d.low} to {d.high}; a list multiplies."
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
        "properties": {**sizes, "tag": _said("Where the shape comes from; a+b for two origins.", type="string")},
    }
    variant = {"type": "object", "minProperties": 1, "additionalProperties": False, "properties": parameters}
    operations = [o for o in OPERATIONS if o in contract.operations]
    return {
        "shape": _said("The contract's dimensions.", type="array", minItems=1, items=entry),
        "dtype": _one_or_many({"anyOf": [dtype, by_tensor]}, "One dtype for all tensors, or one per tensor."),
        "operation": _one_or_many({"enum": operations}, "What is run and timed."),
        "variant": _said("Parameters that go together.", type="array", minItems=1, items=variant),
        "family": _one_or_many({"enum": [*contract.families]}, "The kind of input values."),
        "seed": _one_or_many({"type": "integer", "minimum": 0, "maximum": MAX_SEED}, "The seed of the input values."),
        "mode": _one_or_many({"type": "string"}, "Kernel strategies, for the providers that have them."),
        **{name: _one_or_many(schema, f"Parameter {name} of {contract.op}.") for name, schema in parameters.items()},
    }


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
    return _said(f"Default {p.default!r}.", **out)


def _script() -> dict[str, Any]:
    script = {name: _scripted(kind) for name, kind in SCRIPT.items()}
    told = {name: _scripted(kind) for name, kind in TELEMETRY.items()}
    script["telemetry"] = _closed("What the fake says of itself.", told)
    rule = {"when": _said("The cells, as in exclude.", type="object", minProperties=1), **script}
    items = {**_closed("A rule.", rule), "minProperties": 1}
    rules = _said("Of all that match, the later over the earlier.", type="array", items=items)
    found = {"default": _closed("What every cell plays.", script), "rules": rules}
    return {**_closed("The script of fake devices.", found), "minProperties": 1}


def _scripted(kind: str) -> dict[str, Any]:
    return _said(f"Must be {kind}.", **KINDS[kind])


def _closed(text: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return _said(text, type="object", additionalProperties=False, properties=dict(properties))
