"""What run.json says of a run's known failures, as `farm.matrix.known.applied` made it.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def sound(found: Any) -> list[dict[str, Any]]:
    """The entries of a run from elsewhere that have the form which `applied` gives them."""
    entries = [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []
    texts = ("state", "reason", "owner", "until", "where")
    return [
        e
        for e in entries
        if all(isinstance(e.get(name), str) for name in texts)
        and isinstance(e.get("cells"), list)
        and all(isinstance(cell, str) for cell in e["cells"])
    ]


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
