"""The `sim` section, read strictly: a key that no fake knows would otherwise be a fault that nobody planted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farm.cell import Status

from .document import Node, show, suggest
from .rules import Kind, parse_rule

PHASES = ("import", "compile", "check", "timing")
_NUMBER, _COUNT, _SWITCH, _WORD, _WORDS, _LIST = "a number", "a whole number, 0 or more", "true or false", "text", \
    "a list of texts", "a list"  # fmt: skip
#: What a script may say of a cell, and what each value must be; what it does is told in `farm.backends.sim`.
SCRIPT: dict[str, str] = {
    **dict.fromkeys(("time_us", "noise", "floor_us", "host_us", "outside_us", "wall_s", "error", "leak_mib",
                     "keep_mib", "keep_s", "compile_s"), _NUMBER),
    **dict.fromkeys(("unwritten", "exit", "signal", "until_attempt"), _COUNT),
    **dict.fromkeys(("cold", "passes_trial", "after_trials"), _SWITCH),
    **dict.fromkeys(("owner", "reason", "fault"), _WORD),
    "status": "a status",
    "hang": f"true or a phase ({', '.join(PHASES)})",
    "lie": "true or text",
    "telemetry": "a mapping",
}  # fmt: skip
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
    SCRIPT["hang"]: {"anyOf": [{"type": "boolean"}, {"enum": [*PHASES]}]},
    SCRIPT["lie"]: {"type": ["boolean", "string"]},
    SCRIPT["telemetry"]: {"type": "object"},
}


def read_script(node: Node | None, known: Mapping[str, Kind]) -> dict[str, Any]:
    """The section as plain data; MatrixError for a key that means nothing there, and for a value of another kind."""
    if node is None:
        return {}
    for key, child in node.mapping("default: {time_us: 10}").items():
        if key not in SECTION:
            raise child.key_error(f"is no key of sim; {suggest(key, SECTION, 'keys')}")
        if key == "default":
            _entries(child, SCRIPT, "a script")
            continue
        for rule in child.items() if child.value != [] else ():  # none, said by who makes matrices
            given = dict(rule.mapping("when: {dtype: float16}, time_us: 40"))
            when = given.pop("when", None)
            if when is not None:
                parse_rule(when.mapping("dtype: float16"), known, beside=())
            _check(given, SCRIPT, "a script", extra=("when",))
    return dict(node.plain())


def _entries(node: Node, kinds: Mapping[str, str], what: str) -> None:
    if node.value != {}:
        _check(node.mapping(f"{next(iter(kinds))}: 10"), kinds, what)


def _check(given: Mapping[str, Node], kinds: Mapping[str, str], what: str, extra: Iterable[str] = ()) -> None:
    for key, child in given.items():
        if key not in kinds:
            raise child.key_error(f"is no key of {what}; {suggest(key, [*extra, *kinds], 'keys')}")
        if not _is(child.value, kinds[key]):
            raise child.error(f"is {show(child.value)}; it must be {kinds[key]}")
        if kinds[key] == "a status" and child.value not in [s.value for s in Status]:
            raise child.unknown([s.value for s in Status], "statuses")
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
