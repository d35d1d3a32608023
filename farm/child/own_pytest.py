"""A plugin of pytest, copied beside the repository's own tests: it notes each test that begins, and leaves some out.

Standard library only.  `plan.json` beside it has `begun`, the file descriptor that takes a line of JSON for each test,
and `left_out`, the node ids that are not run: pytest's own `--deselect` would also leave out what begins alike.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_PLAN = Path(__file__).with_name("plan.json")
PLAN: dict[str, Any] = json.loads(_PLAN.read_text(encoding="utf-8")) if _PLAN.is_file() else {}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what ended an earlier process."""
    left_out = set(PLAN["left_out"])
    gone = [item for item in items if item.nodeid in left_out]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_runtest_logstart(nodeid: str, location: tuple[str, int | None, str]) -> None:
    """Note that a test begins."""
    os.write(PLAN["begun"], f"{json.dumps(nodeid)}\n".encode())
