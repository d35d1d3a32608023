"""What run.json says of a run's known failures, as `farm.matrix.known.applied` made it.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def covered(found: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The cells whose failure is known, of what `applied` returned."""
    return frozenset(cell for entry in found if entry.get("state") == "covers" for cell in entry.get("cells") or ())


def fixed(found: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries that have to go."""
    return [entry for entry in found if entry.get("state") == "fixed"]


def note(entry: Mapping[str, Any]) -> str:
    """`known.yaml:3: fixed (24 cells pass): remove this known failure (owner ...)`; "" where there is nothing to do."""
    match entry["state"]:
        case "fixed":
            return (
                f"{entry['where']}: this known failure is fixed: {entry['passed']} of its cells passed and none "
                f"failed; remove it (owner: {entry['owner']})"
            )
        case "expired":
            return (
                f"{entry['where']}: this known failure expired on {entry['until']}, and {entry['count']} of its cells "
                f"fail; solve the problem, or give it another day (owner: {entry['owner']})"
            )
    return ""
