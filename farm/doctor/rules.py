"""From facts to findings, each problem with its cure.  Pure."""

from __future__ import annotations

from collections.abc import Callable

from farm.doctor import check_devices, check_host, check_node, check_python, check_ray
from farm.doctor.facts import Facts
from farm.doctor.finding import Finding, Findings

CHECKS: tuple[Callable[[Facts], Findings], ...] = (
    check_python.python,
    check_node.node,
    check_python.environments,
    check_python.sandbox,
    check_devices.devices,
    check_ray.ray,
    check_ray.token,
    check_ray.head,
    check_host.space,
    check_host.limits,
    check_host.name,
    check_python.compilers,
    check_host.clock,
)


def examine(facts: Facts) -> list[Finding]:
    """All findings, section by section, in a fixed order, without duplicates."""
    return list(dict.fromkeys(finding for check in CHECKS for finding in check(facts)))
