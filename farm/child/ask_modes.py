"""`python -m farm.child.ask_modes JSON`: calls the functions that list a provider's modes, in a process of their own.

JSON: {"subject": as farm.child.subject_files.place takes it, "paths": ["module:function", ...]}.  The last line of
standard output is {"module:function": {"modes": [...]} or {"error": "..."}}; what the functions print goes elsewhere.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

MOST_MODES = 1000


def ask(path: str) -> dict[str, Any]:
    """The answer of one function."""
    module, _, function = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
        found = found()
        modes = list(found) if isinstance(found, (list, tuple)) else None
        if not modes or len(modes) > MOST_MODES or not all(isinstance(m, str) for m in modes):
            return {"error": f"it returned {found!r:.100}, not a list of names"}
        return {"modes": modes}
    except Exception as error:  # anything that its code raises
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def main(argv: list[str]) -> int:
    """Prints the answers."""
    from farm.child import confinement, subject_files

    confinement.limit(os.environ.pop("FARM_LIMITS", ""))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(argv[0])
    wrong = subject_files.place(order["subject"])["wrong"]  # not where a node's package is missing here
    answers = {path: {"error": wrong} if wrong else ask(path) for path in order["paths"]}
    out.write(json.dumps(answers) + "\n")
    out.flush()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
