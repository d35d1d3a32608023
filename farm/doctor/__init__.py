"""What a host has and lacks: `gather` looks, within deadlines; `examine` judges what was seen, and is pure.

The names are imported when they are asked for: `farm.doctor.attempts` runs in every environment's Python, and there
nothing but the standard library need exist.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.doctor.facts import Asked, BackendFacts, Environment, Facts, Head, Node, Space, System, Token, Trial
    from farm.doctor.finding import Finding, Level, exit_code
    from farm.doctor.host import Host
    from farm.doctor.judgement import examine
    from farm.doctor.look import for_join, gather

_WHERE = {
    "examine": "judgement", "Finding": "finding", "Level": "finding", "exit_code": "finding", "gather": "look",
    "for_join": "look", "Host": "host",
    **dict.fromkeys(
        ("Asked", "BackendFacts", "Environment", "Facts", "Head", "Node", "Space", "System", "Token", "Trial"), "facts"
    ),
}  # fmt: skip

__all__ = [
    "Asked", "BackendFacts", "Environment", "Facts", "Finding", "Head", "Host", "Level", "Node", "Space", "System",
    "Token", "Trial", "examine", "exit_code", "for_join", "gather",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"farm.doctor.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
