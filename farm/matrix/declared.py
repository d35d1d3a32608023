"""Providers that a matrix declares itself: `providers: {mine: {call: "module:function", mode: [a, b], role: peer}}`."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from .axes import entries, word
from .document import YamlNode, show
from .registry import ProviderInfo

ROLES = ("subject", "peer")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def declared_providers(
    root: YamlNode, known: Mapping[str, ProviderInfo], given: Container[str] = ()
) -> tuple[dict[str, ProviderInfo], dict[str, str]]:
    """(the providers with a `call`, by name; name -> `module:function`), of `providers` here and under `backends`.

    `given`: those that the command line gives another call, by `--provider`, which has the last word.
    """
    found: dict[str, ProviderInfo] = {}
    calls: dict[str, str] = {}
    for section in _sections(root):
        for name, node in section.value.items():
            if not isinstance(node.value, dict) or "call" not in node.value:
                continue
            if name in known and name not in given:
                message = "has a call, but is a provider that the farm has already; choose another name"
                raise node.key_error(message, id="matrix-declared-known")
            if not _NAME.fullmatch(name):
                message = "is no name of a provider, which has only letters, digits, _ and -; choose another name"
                raise node.key_error(message, id="matrix-declared-name")
            path = word(node.value["call"])
            if not _PATH.fullmatch(path):
                message = f'is {show(path)}; write module:function, for example "my_kernels:rms_norm"'
                raise node.value["call"].error(message, id="matrix-declared-call")
            if calls.setdefault(name, path) != path:
                message = f"is {show(path)}, but this matrix also gives {name} the call {show(calls[name])}; use one"
                raise node.value["call"].error(message, id="matrix-declared-twice")
            modes = dict.fromkeys(word(m) for m in entries(node.value["mode"])) if "mode" in node.value else {}
            before = found[name].modes if name in found else ()
            every = tuple(dict.fromkeys((*before, *(modes or ("auto",)))))
            found[name] = ProviderInfo(name, _role(node.value.get("role")), every)
    return found, {name: path for name, path in calls.items() if name not in given}


def _sections(root: YamlNode) -> list[YamlNode]:
    """Every mapping of providers in the matrix."""
    backends = root.value.get("backends")
    of_backends = backends.value.values() if backends is not None and isinstance(backends.value, dict) else ()
    places = [
        root.value.get("providers"),
        *(b.value.get("providers") for b in of_backends if isinstance(b.value, dict)),
    ]
    return [p for p in places if p is not None and isinstance(p.value, dict)]


def _role(node: YamlNode | None) -> str:
    if node is None:
        return ROLES[0]
    if node.value not in ROLES:
        raise node.unknown(ROLES, "roles", id="matrix-declared-role")
    return str(node.value)
