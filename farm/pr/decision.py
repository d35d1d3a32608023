"""What was decided about an event, as a file: how a trusted job tells a measuring one what to run.  Pure.

The reader believes none of it that it can check: a decision is held against its schema, against the rules for commands
and patches, and, where it came with an event, against that event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from farm.errors import UsageError
from farm.pr import commands, events, patches
from farm.pr.commands import Command
from farm.pr.config_block import TESTS, Config
from farm.pr.events import Asked, Decision, Policy, Request
from farm.pr.patches import Suggestion

#: GitHub takes 65,535 characters of inputs of a workflow.
MAX_CHARACTERS = 60_000
KINDS = ("ok", *events.STARTS)
_SHA = "^[0-9a-f]{40}$(?!\\n)"


def _text(most: int, pattern: str = "") -> dict[str, Any]:
    return {"type": "string", "maxLength": most, **({"pattern": pattern} if pattern else {})}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_LINE = {"type": "integer", "minimum": 1, "maximum": 10_000_000}
_COMMAND = _object(
    {
        "kind": {"enum": [*KINDS]},
        "sha": _text(40, "^([0-9a-f]{40})?$(?!\\n)"),
        "matrix": _text(200),
        "backends": {"type": "array", "items": {"enum": [*commands.BACKENDS]}, "maxItems": 4, "uniqueItems": True},
        "cell": _text(300),
        "reason": _text(commands.MAX_REASON),
        "patch": _text(patches.MAX_CHARACTERS),
        "on": {"enum": ["", *commands.ARMS]},
        "review": {"type": "integer", "minimum": 0},
    }
)
_SUGGESTION = _object({"path": _text(300), "first": _LINE, "last": _LINE, "text": _text(patches.MAX_CHARACTERS)})
SCHEMA: dict[str, Any] = _object(
    {
        "decision": {"const": "request"},
        "repository": _text(201),
        "number": {"type": "integer", "minimum": 1, "maximum": 10**10 - 1},
        "head": _text(40, _SHA),
        "base": _text(40, _SHA),
        "from_fork": {"type": "boolean"},
        "command": _COMMAND,
        "config": _object(
            {
                "build": {"type": "boolean"},
                "test": {"type": "array", "items": {"enum": [*TESTS]}, "maxItems": len(TESTS), "uniqueItems": True},
                "given": {"type": "boolean"},
                "digest": _text(64),
            }
        ),
        "approved_by": _text(100),
        "by": _text(100),
        "suggestion": {"anyOf": [_SUGGESTION, {"type": "null"}]},
    }
)


def written(found: Decision) -> str:
    """A decision as JSON.  UsageError if a request is too long to be handed on."""
    plain: dict[str, Any] = {"decision": type(found).__name__.lower(), **asdict(found)}
    if isinstance(found, Request):
        plain["config"]["digest"] = found.config.digest
    text = json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace").decode()
    if isinstance(found, Request) and len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"the decision has {len(text):,} characters, and {MAX_CHARACTERS:,} can be handed on; shorten the patch",
            id="pr-decision-long",
        )
    return text


def read(text: str) -> Request:
    """The request of a decision.  UsageError, in one sentence, for anything that no decision of the farm says."""
    import jsonschema  # on demand: it takes a tenth of a second

    if len(text) > MAX_CHARACTERS:
        raise _wrong(f"it has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # no halves of characters, which no file can hold
    except (ValueError, RecursionError):
        raise _wrong("it is not JSON") from None
    bad = next(jsonschema.Draft202012Validator(SCHEMA).iter_errors(found), None)
    if bad is not None:
        at = ".".join(str(part) for part in bad.absolute_path) or "the top"
        raise _wrong(f"it breaks its schema at {at}: {bad.message[:200]}")
    given = found["command"]
    command = Command(**{**given, "backends": tuple(given["backends"])})
    suggestion = Suggestion(**found["suggestion"]) if found["suggestion"] else None
    _check(command, suggestion)
    config = Config(found["config"]["build"], tuple(found["config"]["test"]), found["config"]["given"])
    if config.digest != found["config"]["digest"]:
        raise _wrong("its config is not the one that was approved")
    if not events.is_repository(found["repository"]):
        raise _wrong("it names no repository")
    own = {name: found[name] for name in ("repository", "number", "head", "base", "from_fork", "approved_by", "by")}
    return Request(**own, command=command, config=config, suggestion=suggestion)


def _check(command: Command, suggestion: Suggestion | None) -> None:
    """UsageError for a command that nobody can have written."""
    if command.kind == "what-if":
        if bool(command.patch) == (suggestion is not None) or not command.on:
            raise _wrong("its what-if has not exactly one patch or suggestion, and an arm that it is for")
    elif suggestion is not None:
        raise _wrong(f"its {command.kind} has a suggestion")
    said = {
        "run": f"/farm run {command.matrix} {','.join(command.backends)}",
        "rerun": f"/farm rerun {command.cell}",
    }.get(command.kind)
    if said is not None and commands.read(said) != command:
        raise _wrong(f"its {command.kind} is none that a comment can ask for")
    own = {"ok": ("sha",), "what-if": ("patch", "on", "review")}.get(command.kind, ())
    if said is None and command != Command(command.kind, **{name: getattr(command, name) for name in own}):
        raise _wrong(f"its {command.kind} has what belongs to another command")


def decided(payload: Mapping[str, Any], policy: Policy, asked: Asked | None = None) -> Decision:
    """As `events.decide`, and for a workflow that a decision started (workflow_dispatch) that decision."""
    inputs = payload.get("inputs") if isinstance(payload, Mapping) else None
    if not isinstance(inputs, Mapping) or "ref" not in payload or "after" in payload or "comment" in payload:
        return events.decide(payload, policy, asked)
    found = read(str(inputs.get("decision") or ""))
    repository = payload.get("repository")
    name = repository.get("full_name") if isinstance(repository, Mapping) else ""
    if name != found.repository or payload["ref"] != f"refs/heads/{branch(found.number)}":
        raise _wrong("it is of another repository or pull request than the event")
    return found


def branch(number: int) -> str:
    """The branch that holds what was approved of a pull request."""
    return f"pull-request/{number}"


def _wrong(why: str) -> UsageError:
    return UsageError(f"the decision is not used: {why}", id="pr-decision")
