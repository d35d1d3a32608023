"""A journal as a file: what a kill, a power cut or a writer that was only stopped did to it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from farm.errors import StoreError


def fence(journal: Path) -> None:
    """Put a copy in the journal's place.  Whoever wrote it on another host and was only stopped has the old file open:
    what it, or its kernel's cache, still writes there is nobody's, and does not land among the lines that follow."""
    if journal.is_file():
        copy = journal.with_suffix(".tmp")
        copy.unlink(missing_ok=True)  # never into the copy of one who was stopped within this, and may go on
        with journal.open("rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
        copy.replace(journal)


def fencing(journal: Path) -> bool:
    """Whether somebody was ended within `fence`: then it is still to be done."""
    return journal.with_suffix(".tmp").exists()


def mend(journal: Path) -> None:
    """Make a journal that a kill cut short end with a whole line, so that lines can follow.  StoreError as `torn`."""
    good, bad, whole = torn(journal)
    if bad:
        os.truncate(journal, good)
    if not whole:
        with journal.open("ab") as end:
            end.write(b"\n")


def torn(journal: Path) -> tuple[int, int, bool]:
    """(bytes of good lines, number of the first bad one or 0, whether the last good one has its end).

    A kill, or a power cut, spoils the end and only that.  StoreError where good lines follow a bad one.
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
                raise StoreError(f"{journal}: line {bad} is damaged, and lines follow it; run it again")
            good, whole = good + len(line), line.endswith(b"\n")
    return good, bad, whole
