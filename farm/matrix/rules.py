"""The rule language of `exclude`, of tolerances, and of `--select`.

A rule is a set of conditions that must all hold.  A condition's value is a literal, a list of literals, or
`OP value` with OP one of `<`, `<=`, `>`, `>=` (numbers) and `!=` (anything).  `--select` has further keys: `id` and
`shape`, whose values are patterns, and `status` where a run is named.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from farm.cell import DTYPE_ALIASES, DTYPES, FARM_FAULTS, FINDINGS, OPERATIONS, Cell, Status
from farm.contracts.base import Contract
from farm.contracts.layouts import DENSE
from farm.device_pattern import pattern_of
from farm.errors import FarmSignal, UsageError

from .document import YamlNode, show, suggest

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
#: Cells that failed, of whoever's fault.
FAILED = tuple(s.value for s in Status if s in FINDINGS | FARM_FAULTS)
#: Dtypes that a farm without them must not take for a misspelt float64.
_NARROW = re.compile(r"(float|fp|u?int|nf|mxfp|nvfp)[468](?!\d)")
_PAIR = re.compile(r"^\s*([^\s=<>!]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*$", re.S)
_OPERATOR = re.compile(r"^\s*(<=|>=|!=|<|>)\s*(.*?)\s*$")


@dataclass(frozen=True)
class Kind:
    """The type of a key's values: `int`, `float`, `bool`, `str`, `dtype`, `pattern` (text with `*`, `?` and `[..]`) or
    `status`; `known` lists them if the set is closed, but for those that `pattern` describes."""

    type: str
    known: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True)
class Condition:
    """`key` is one of `values` (op `in`), is none of them (`!=`), compares with `values[0]`, or fits a pattern among
    them (`like`) or none (`unlike`)."""

    key: str
    op: str
    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        if value is None:  # the cell's op has no such key
            return False
        if self.op in _COMPARE:
            return _COMPARE[self.op](value, self.values[0])
        if self.op in ("like", "unlike"):
            return any(fnmatchcase(value, pattern) for pattern in self.values) == (self.op == "like")
        # A tag may join several origins, `tilegym+liger`: it is each of them.
        found = value in self.values or (self.key == "tag" and any(part in self.values for part in value.split("+")))
        return found if self.op == "in" else not found

    def __str__(self) -> str:
        values = "|".join(_text(v) for v in self.values)
        sign = {"in": "=", "like": "=", "unlike": "!="}.get(self.op, self.op)
        return f"{self.key}{sign}{values}"


@dataclass(frozen=True)
class Rule:
    """Conditions that must all hold, in the fixed order of keys, and the reason."""

    conditions: tuple[Condition, ...]
    reason: str = ""

    def holds(self, lookup: Callable[[str], Any]) -> bool:
        return all(c.holds(lookup(c.key)) for c in self.conditions)

    def __str__(self) -> str:
        return ", ".join(str(c) for c in self.conditions)

    def to_list(self) -> list[list[Any]]:
        return [[c.key, c.op, list(c.values)] for c in self.conditions]

    @classmethod
    def from_list(cls, data: Iterable[Iterable[Any]], reason: str = "") -> Rule:
        return cls(tuple(Condition(key, op, tuple(values)) for key, op, values in data), reason)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def kinds(
    contract: Contract,
    backends: Iterable[str],
    providers: Iterable[str],
    modes: Iterable[str],
    methods: Iterable[str],
    targets: Iterable[str] = (),
) -> dict[str, Kind]:
    """Every key that a rule may have, in the order in which a rule is printed."""
    out = {
        "backend": Kind("str", tuple(backends)),
        "target": Kind("str", tuple(targets)),
        "op": Kind("str", (contract.op,)),
        "provider": Kind("str", tuple(providers)),
        "mode": Kind("str", tuple(modes)),
        "operation": Kind("str", OPERATIONS),
        "dtype": Kind("dtype"),
    }
    out.update({f"{tensor}_dtype": Kind("dtype") for tensor in contract.typed})
    out.update({d.name: Kind("int") for d in contract.dimensions})
    for p in contract.parameters:
        closed = tuple(str(v) for v in p.allowed) if p.allowed and p.type is str else ()
        out[p.name] = Kind(p.type.__name__, closed)
    out.update({"tag": Kind("str"), "family": Kind("str", contract.families), "seed": Kind("int")})
    out.update({f"{tensor}_layout": Kind("str", (DENSE, *names)) for tensor, names in contract.layouts.items()})
    out["timing"] = Kind("str", tuple(methods))
    return out


#: Keys of `--select` alone.
OF_SELECT: Mapping[str, Kind] = {
    "id": Kind("pattern"),
    "shape": Kind("pattern"),
    "status": Kind("status", ("failed", *(s.value for s in Status))),
}


def lookup(cell: Cell) -> Callable[[str], Any]:
    """How a rule's keys are read from a cell; None for a key that its op does not have."""

    def get(key: str) -> Any:
        if key in ("backend", "op", "provider", "mode", "operation", "dtype", "tag", "family", "seed", "arm"):
            return getattr(cell, key)
        if key == "timing":
            return cell.timing.method
        if key in OF_SELECT and key not in cell.dims and key not in cell.params:
            return {"id": cell.cell_id, "shape": cell.shape}.get(key)
        if key == "target":
            return pattern_of(cell.target)
        if key in cell.dims:
            return cell.dims[key]
        if key in cell.params:
            return cell.params[key]
        if key.endswith("_layout"):
            return cell.layout.get(key.removesuffix("_layout"), DENSE)
        return cell.dtypes.get(key.removesuffix("_dtype")) if key.endswith("_dtype") else None

    return get


def split_comparison(value: Any) -> tuple[str, str]:
    """(operator, value) of `OP value`; ("", "") for a literal."""
    match = _OPERATOR.match(value) if isinstance(value, str) else None
    return (match[1], match[2]) if match else ("", "")


class _BadValueError(FarmSignal):
    """Why a value does not fit its key."""

    def __init__(self, message: str, *, id: str) -> None:
        super().__init__(message)
        self.id = id


def parse_rule(
    entries: Mapping[str, YamlNode], known: Mapping[str, Kind], reason: str = "", beside: Sequence[str] = ("reason",)
) -> Rule:
    """A rule from the entries of a YAML mapping; errors name the place.  `beside`: other keys allowed there."""
    found = {}
    for key, node in entries.items():
        if key not in known:
            message = f"is not a key of a rule; {suggest(key, [*known, *beside], 'keys')}"
            raise node.key_error(message, id="matrix-rule-key")
        found[key] = _condition(key, node.items() if isinstance(node.value, list) else [node], known[key])
    return Rule(tuple(found[key] for key in known if key in found), reason)


def _condition(key: str, nodes: list[YamlNode], kind: Kind) -> Condition:
    values = []
    for node in nodes:
        try:
            sign, text = split_comparison(node.value)
            if len(nodes) == 1 and sign:
                return _compare(key, sign, text, kind)
            values.append(_literal(node.value, kind))
        except _BadValueError as error:
            raise node.error(f"is {show(node.value)}; {error}", id=error.id) from None
    return Condition(key, "in", tuple(values))


def _compare(key: str, sign: str, text: str, kind: Kind) -> Condition:
    if sign != "!=" and kind.type not in ("int", "float"):
        message = f"{key} is not a number and cannot be compared with {sign}"
        raise _BadValueError(message, id="matrix-rule-comparison")
    return Condition(key, sign, (_from_text(text, kind, loose=sign != "!="),))


def _from_text(text: str, kind: Kind, loose: bool = False) -> Any:
    """A literal written as text, as in `--select` or after an operator; `loose` lets an int be compared to 0.5."""
    if kind.type in ("int", "float"):
        for make in (int, float) if kind.type == "int" and loose else ((int,) if kind.type == "int" else (float,)):
            try:
                return make(text)
            except ValueError:
                continue
        what = "an integer" if kind.type == "int" and not loose else "a number"
        raise _BadValueError(f"{show(text)} is not {what}", id="matrix-rule-not-a-number")
    if kind.type == "bool":
        if text.lower() not in ("true", "false"):
            raise _BadValueError("the value must be true or false", id="matrix-rule-text-not-boolean")
        return text.lower() == "true"
    return _literal(text, kind)


def _literal(value: Any, kind: Kind) -> Any:
    if kind.type == "int" and (isinstance(value, bool) or not isinstance(value, int)):
        message = 'the value must be an integer, a list of integers, or a comparison like ">8192"'
        raise _BadValueError(message, id="matrix-rule-integer")
    if kind.type == "float":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            message = 'the value must be a number, a list of numbers, or a comparison like ">0.5"'
            raise _BadValueError(message, id="matrix-rule-number")
        return float(value)
    if kind.type == "bool" and not isinstance(value, bool):
        raise _BadValueError("the value must be true or false", id="matrix-rule-boolean")
    if kind.type == "str" and not isinstance(value, str):
        raise _BadValueError("the value must be text", id="matrix-rule-text")
    if kind.type == "dtype":
        if value not in DTYPE_ALIASES:
            raise _BadValueError(suggest_dtype(value), id="matrix-rule-dtype")
        return DTYPE_ALIASES[value]
    described = bool(kind.pattern and isinstance(value, str) and re.fullmatch(kind.pattern, value, re.ASCII))
    if kind.known and value not in kind.known and not described:
        raise _BadValueError(suggest(value, kind.known, "values"), id="matrix-rule-value")
    return value


def suggest_dtype(value: Any, contract: Contract | None = None) -> str:
    """Suggest the nearest dtype by its full name, also if a short name is nearest; only one that the contract's op
    takes, whose dtypes are listed where none is near."""
    takes = contract.dtypes if contract else DTYPES
    what = f"{contract.op} supports" if contract else "available dtypes:"
    if isinstance(value, str):
        if "," in value and all(v.strip().lower() in DTYPE_ALIASES for v in value.split(",")):
            return f"a list is written [{value}]"
        text = suggest(value.strip().lower(), DTYPE_ALIASES, "dtypes")
        near = DTYPE_ALIASES[text.split(chr(34))[1]] if text.startswith("did") else ""
        if near in takes and not _NARROW.match(value.lower()):
            return f'did you mean "{near}"?'
    return f"{what} {', '.join(takes)}"


def parse_select(text: str, known: Mapping[str, Kind], *, of_run: bool = False) -> Rule:
    """`hidden>=8192,dtype=bf16|fp16,provider!=torch` as a rule; UsageError, which suggests the nearest name.  `of_run`:
    the cells have a status.  The operator may also stand behind the sign: `hidden=>8192` is `hidden>8192`."""
    keys = {**OF_SELECT, **known}
    if not of_run:
        keys = {k: v for k, v in keys.items() if k != "status" or k in known}
    found: dict[str, list[Condition]] = {}
    for part in text.split(","):
        pair = _PAIR.match(part)
        if not pair or not pair[3]:
            message = f"{show(part)} is not KEY=VALUE; write for example hidden=64, hidden>=64 or provider!=torch"
            raise UsageError(f"--select {text}: {message}", id="matrix-select-pair")
        key, sign, raw = pair.groups()
        if sign in ("=", "=="):
            sign, raw = split_comparison(raw) if _OPERATOR.match(raw) else ("", raw)
        if key not in keys:
            raise UsageError(f"--select {text}: {_not_a_key(key, keys)}", id="matrix-select-key")
        if not sign and any(c.op in ("in", "like") for c in found.get(key, ())):
            message = f"{key} is given twice; write {key}=a|b to select both values"
            raise UsageError(f"--select {text}: {message}", id="matrix-select-twice")
        try:
            found.setdefault(key, []).append(_selects(key, sign, raw, keys[key]))
        except _BadValueError as error:
            raise UsageError(f"--select {text}: {key} is {show(raw)}; {error}", id=error.id) from None
    return Rule(tuple(c for key in keys for c in found.get(key, ())))


def _not_a_key(key: str, keys: Mapping[str, Kind]) -> str:
    if key == "status":
        return "a cell has a status only in a run; name the run with --failed [RUN]"
    return f"{show(key)} is not a key; {suggest(key, keys, 'keys')}"


def _selects(key: str, sign: str, raw: str, kind: Kind) -> Condition:
    """`key SIGN raw` of `--select`; sign is "" for equality.  Alternatives are written `a|b`."""
    if sign in _COMPARE:
        return _compare(key, sign, raw, kind)
    texts = [v.strip() for v in raw.split("|")]
    if kind.type == "pattern":
        return Condition(key, "unlike" if sign else "like", tuple(texts))
    values = tuple(_from_text(v, kind) for v in texts)
    if kind.type == "status":
        values = tuple(dict.fromkeys(s for v in values for s in (FAILED if v == "failed" else (v,))))
    return Condition(key, sign or "in", values)


def merged_kinds(many: Iterable[Mapping[str, Kind]]) -> dict[str, Kind]:
    """The keys of several matrices: a select may name any of them, and a cell without the key is not selected."""
    out: dict[str, Kind] = {}
    for one in many:
        for key, kind in one.items():
            seen = out.setdefault(key, kind)
            if seen.known and kind.known:
                out[key] = replace(kind, known=tuple(dict.fromkeys((*seen.known, *kind.known))))
            elif seen.known:
                out[key] = Kind(kind.type)
    return out
