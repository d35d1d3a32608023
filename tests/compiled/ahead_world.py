"""`python ahead_world.py JOBS.json`: be the child of another day: calls each job's function under the offline driver,
with this process's cache, and prints what Triton compiled and what it found, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    os.nice(5)
    told = json.loads(Path(sys.argv[1]).read_text())
    import triton  # noqa: F401

    from farm.child.compilations import Compilations
    from farm.child.compile_ahead import AheadCompiler, Target

    compiler = AheadCompiler(Target(**told["target"]), told["of"], lambda: None)
    with Compilations() as counted:
        answers = [compiler.compile(job) for job in told["cells"]]
    print(json.dumps({"compiled": counted.compiled, "loaded": counted.loaded, "answers": answers}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
