"""A journal as a file: repairs after a kill, a power cut, or a writer that was only stopped."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from farm.errors import StoreError


def fence(journal: Path) -> None:
    """Replace the journal by a copy.  A writer on another host that was only stopped still has the old file open.  What
    it, or its kernel's cache, still writes there is discarded, and does not appear among the lines that follow."""
    if journal.is_file():
        copy = journal.with_suffix(".tmp")
        copy.unlink(missing_ok=True)  # never write into the copy of a process that was stopped here and may continue
        with journal.open("rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
        copy.replace(journal)


def fencing(journal: Path) -> bool:
    """Whether a process ended during `fence`, which then has to be repeated."""
    return journal.with_suffix(".tmp").exists()


def mend(journal: Path) -> None:
    """Remove or complete a last line that a kill cut short, so that lines can follow.  StoreError as `torn`."""
    good, bad, whole = torn(journal)
    if bad:
        os.truncate(journal, good)
    if not whole:
        with journal.open("ab") as end:
            end.write(b"\n")


def torn(journal: Path) -> tuple[int, int, bool]:
    """(bytes of good lines, number of the first bad line or 0, whether the last good line ends with a newline).

    A kill, or a power cut, damages only the end.  StoreError if good lines follow a bad one.
    """
    good = bad = number = 0
    whole = True
    with journal.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                json.loads(line)
            except ValueError:
                bad = bad or number
                continue
            if bad:
                raise StoreError(
                    f"{journal}: line {bad} of this journal is damaged, and more lines follow; start a new run",
                    id="store-journal-damaged",
                )
            good, whole = good + len(line), line.endswith(b"\n")
    return good, bad, whole
