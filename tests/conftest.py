"""What all rooms of tests share."""

from __future__ import annotations

import gc

import pytest

# The collector of cycles looks at every 700 new objects by default, and again and again at the modules and tests that
# a session keeps.  It cost a third of what the pure tests do.
gc.set_threshold(20_000, 20, 50)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
