"""Reads the results that measuring jobs left: of one site, or of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farm.errors import UsageError
from farm.pr import result as results
from farm.pr.result import Json


def read(paths: Sequence[Path]) -> tuple[list[Json], dict[str, str]]:
    """(results, the file of each site that has none that can be read -> why).  UsageError if no site has one."""
    found, lost = list[Json](), dict[str, str]()
    first: UsageError | None = None
    for path in paths:
        try:
            with path.open("rb") as file:
                found.append(results.read(file.read(results.MAX_BYTES + 1)))
        except OSError as error:
            lost[str(path)] = f"it cannot be read ({error.strerror}); the measuring job left no result"
            first = first or UsageError(f"{path}: {lost[str(path)]}", id="pr-no-result")
        except UsageError as error:
            lost[str(path)] = str(error)
            first = first or error
    if first and not found:
        raise first
    return found, lost
