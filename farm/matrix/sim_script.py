"""The matrix's `sim:` section, and which script a simulated device follows for a cell.  Pure.

    sim:
      default: {time_us: 10, noise: 0.01}
      rules:
        - {when: {hidden: ">4096"}, time_us: 40}
        - {when: {provider: torch, operation: backward}, signal: 11}
        - {when: {arm: b, hidden: 64}, time_us: 10.5}      # of two arms that are compared

All rules that match are combined; later rules override earlier ones.  Simulated devices are those of backend `sim`,
and those of any backend on a node that simulates it.

The section is read strictly: a misspelt key would otherwise be a fault that is never simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farm.cell import DTYPE_ALIASES, Cell, Owner, Status

from .document import YamlNode, show, suggest
from .rules import Condition, Kind, lookup, parse_rule, split_comparison

PHASES = ("import", "compile", "check", "timing")
_NUMBER, _COUNT, _SWITCH, _WORD, _WORDS, _LIST = (
    "a number",
    "an integer >= 0",
    "true or false",
    "text",
    "a list of text values",
    "a list",
)
#: The keys of a script, and what each value must be; `farm.backends.sim` documents what each does.
SCRIPT: dict[str, str] = {
    **dict.fromkeys(
        (
            "time_us",
            "noise",
            "process_noise",
            "floor_us",
            "host_us",
            "outside_us",
            "wall_s",
            "error",
            "leak_mib",
            "keep_mib",
            "keep_s",
            "compile_s",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(("unwritten", "exit", "signal", "until_attempt", "from_round"), _COUNT),
    **dict.fromkeys(("cold", "passes_trial", "after_trials"), _SWITCH),
    **dict.fromkeys(("reason", "fault"), _WORD),
    "status": "a status",
    "owner": "an owner",
    "hang": f"true or a phase ({', '.join(PHASES)})",
    "lie": "true or text",
    "telemetry": "a mapping",
}
TELEMETRY: dict[str, str] = {
    **dict.fromkeys(("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w"), _NUMBER),
    **dict.fromkeys(("ecc_uncorrected", "until_try"), _COUNT),
    **dict.fromkeys(("throttle", "foreign"), _WORDS),
    "xid": _LIST,
}
SECTION = ("default", "rules")
#: The kinds in JSON Schema.
KINDS: dict[str, dict[str, Any]] = {
    _NUMBER: {"type": "number"},
    _COUNT: {"type": "integer", "minimum": 0},
    _SWITCH: {"type": "boolean"},
    _WORD: {"type": "string"},
    _WORDS: {"type": "array", "items": {"type": "string"}},
    _LIST: {"type": "array"},
    SCRIPT["status"]: {"enum": [s.value for s in Status]},
    SCRIPT["owner"]: {"enum": [o.value for o in Owner]},
    SCRIPT["hang"]: {"anyOf": [{"type": "boolean"}, {"enum": [*PHASES]}]},
    SCRIPT["lie"]: {"type": ["boolean", "string"]},
    SCRIPT["telemetry"]: {"type": "object"},
}


def read_script(node: YamlNode | None, known: Mapping[str, Kind]) -> dict[str, Any]:
    """The section as plain data; MatrixError for an unknown key and for a value of the wrong kind."""
    if node is None:
        return {}
    for key, child in node.mapping("default: {time_us: 10}").items():
        if key not in SECTION:
            raise child.key_error(f"is not a key of sim; {suggest(key, SECTION, 'keys')}", id="matrix-sim-key")
        if key == "default":
            _entries(child, SCRIPT, "a script")
            continue
        for rule in child.items() if child.value != [] else ():  # programs that write matrices write an empty list
            given = dict(rule.mapping("when: {dtype: float16}, time_us: 40"))
            when = given.pop("when", None)
            if when is not None:
                of_arms = {**known, "arm": Kind("str", ("a", "b"))}
                parse_rule(when.mapping("dtype: float16"), of_arms, beside=())
            _check(given, SCRIPT, "a script", extra=("when",))
    return dict(node.plain())


def _entries(node: YamlNode, kinds: Mapping[str, str], what: str) -> None:
    if node.value != {}:
        _check(node.mapping(f"{next(iter(kinds))}: 10"), kinds, what)


def _check(given: Mapping[str, YamlNode], kinds: Mapping[str, str], what: str, extra: Iterable[str] = ()) -> None:
    for key, child in given.items():
        if key not in kinds:
            message = f"is not a key of {what}; {suggest(key, [*extra, *kinds], 'keys')}"
            raise child.key_error(message, id="matrix-script-key")
        if not _is(child.value, kinds[key]):
            raise child.error(f"is {show(child.value)}; it must be {kinds[key]}", id="matrix-script-value")
        if kinds[key] == "a status" and child.value not in [s.value for s in Status]:
            raise child.unknown([s.value for s in Status], "statuses", id="matrix-script-status")
        if kinds[key] == "an owner" and child.value not in [o.value for o in Owner]:
            raise child.unknown([o.value for o in Owner], "owners", id="matrix-script-owner")
        if key == "telemetry":
            _entries(child, TELEMETRY, "telemetry")


def _is(value: Any, kind: str) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == _NUMBER:
        return number
    if kind == _COUNT:
        return number and isinstance(value, int) and value >= 0
    if kind == _SWITCH:
        return isinstance(value, bool)
    if kind == _WORDS:
        return isinstance(value, list) and all(isinstance(n.value, str) for n in value)
    if kind == _LIST:
        return isinstance(value, list)
    if kind == SCRIPT["telemetry"]:
        return isinstance(value, dict)
    if kind == SCRIPT["hang"]:
        return isinstance(value, bool) or value in PHASES
    if kind == SCRIPT["lie"]:
        return isinstance(value, (bool, str))
    return isinstance(value, str)


def script_for(section: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """The script of one cell."""
    script = dict(section.get("default", {}))
    value_of = lookup(cell)
    for rule in section.get("rules", []):
        if all(_holds(key, want, value_of(key)) for key, want in rule.get("when", {}).items()):
            script.update({k: v for k, v in rule.items() if k != "when"})
    return script


def _holds(key: str, want: Any, value: Any) -> bool:
    """Whether a condition, as written in the file, holds for a cell's value; the parser of `exclude` has checked it."""
    if isinstance(want, list):
        return any(_holds(key, w, value) for w in want)
    sign, text = split_comparison(want)
    literal = _like(text, value) if sign else want
    if key == "dtype" or key.endswith("_dtype"):
        literal = DTYPE_ALIASES.get(literal, literal)
    return Condition(key, sign or "in", (literal,)).holds(value)


def _like(text: str, value: Any) -> Any:
    """The text after an operator, converted to the type of the value that it is compared with."""
    if isinstance(value, bool):
        return text.lower() == "true"
    return float(text) if isinstance(value, (int, float)) else text
