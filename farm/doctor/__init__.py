"""Checks a host: `gather` collects facts within deadlines; `examine` turns them into findings, and is pure.

Names are imported on first use: `farm.doctor.probes` runs in every environment's Python, where only the standard
library may exist.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.doctor.collect import for_join, gather
    from farm.doctor.facts import (
        Asked,
        BackendFacts,
        EnvironmentFacts,
        Facts,
        HeadFacts,
        NodeFacts,
        ProbeResult,
        SpaceFacts,
        SystemFacts,
        TokenFacts,
    )
    from farm.doctor.finding import Finding, Level, exit_code
    from farm.doctor.host import HostReader
    from farm.doctor.rules import examine

_WHERE = {
    "examine": "rules",
    "Finding": "finding",
    "Level": "finding",
    "exit_code": "finding",
    "gather": "collect",
    "for_join": "collect",
    "HostReader": "host",
    **dict.fromkeys(
        (
            "Asked",
            "BackendFacts",
            "EnvironmentFacts",
            "Facts",
            "HeadFacts",
            "NodeFacts",
            "SpaceFacts",
            "SystemFacts",
            "TokenFacts",
            "ProbeResult",
        ),
        "facts",
    ),
}

__all__ = [
    "Asked",
    "BackendFacts",
    "EnvironmentFacts",
    "Facts",
    "Finding",
    "HeadFacts",
    "HostReader",
    "Level",
    "NodeFacts",
    "ProbeResult",
    "SpaceFacts",
    "SystemFacts",
    "TokenFacts",
    "examine",
    "exit_code",
    "for_join",
    "gather",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"farm.doctor.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
