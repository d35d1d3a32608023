"""Reads the event file of a forge, and a decision about one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from farm.errors import UsageError

MAX_BYTES = 5_000_000


def payload(path: Path) -> dict[str, Any]:
    """The event.  UsageError if the file is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give the event file", id="pr-event") from None
    try:
        found = json.loads(raw) if len(raw) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        what = f"it is not a JSON object of at most {MAX_BYTES:,} bytes"
        raise UsageError(f"{path} is no event file: {what}", id="pr-event")
    return found


def text(path: Path) -> str:
    """The text of a decision.  UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(
            f"{path} cannot be read ({why}); give the file that farm pr --decide printed", id="pr-decision"
        ) from None
