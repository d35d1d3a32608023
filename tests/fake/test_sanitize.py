"""`farm run --sanitize` on simulated NVIDIA devices, with a stub in place of compute-sanitizer.

The stub starts what it is given as the tool does, prints on its standard output, and writes a log as the tool's
documentation shows it; the first child's has a wrong access.
"""

from __future__ import annotations

import json
from pathlib import Path

from farm_process import FarmRun
from test_simulated_vendors import node

STUB = """#!/bin/sh
echo "========= COMPUTE-SANITIZER says something on its standard output"
log="$4"
shift 12
"$@"
code=$?
echo "========= COMPUTE-SANITIZER" > "$log"
if mkdir {once} 2>/dev/null; then
cat >> "$log" <<END
========= Invalid __global__ write of size 4 bytes
=========     at _tile+0x1b0 in {provider}:12
=========     by thread (3,0,0) in block (7,0,0)
=========     Address 0x7f2a1c003c9c is out of bounds
=========     and is 29 bytes after the nearest allocation at 0x7f2a1c003c00 of size 128 bytes
=========
========= ERROR SUMMARY: 1 error
END
fi
exit $code
"""
MATRIX = {
    "name": "s",
    "op": "rms_norm",
    "axes": {"shape": [{"rows": 3, "hidden": [16, 17]}], "dtype": "float32"},
    "providers": ["farm"],
    "sim": {"default": {"time_us": 10}},
}


def test_what_the_sanitizer_finds_is_the_cells_and_nothing_is_timed(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(STUB.format(once=tmp_path / "once", provider="/src/mine.py"))
    tool.chmod(0o755)
    more = {**node(tmp_path / "node", "cuda"), "PATH": f"{tool.parent}:/usr/bin:/bin"}
    words = ("--sanitize", "--devices", "1", "--no-page")
    run = FarmRun(tmp_path / "run", json.dumps(MATRIX), words, backend="cuda", environment=more)
    try:
        assert run.start().wait(120) == 1, run.said()
    finally:
        run.end()
    first, second = run.rows()
    assert (first["status"], first["fault_owner"], second["status"]) == ("crashed", "kernel", "passed"), run.said()
    assert first["reason"] == (
        "memcheck: Invalid __global__ write of size 4 bytes in kernel _tile at /src/mine.py:12, by thread (3,0,0) of "
        "block (7,0,0): Address 0x7f2a1c003c9c is out of bounds and is 29 bytes after the nearest allocation at "
        "0x7f2a1c003c00 of size 128 bytes"
    )
    assert second["timing_method"] == "none" and "it ran under compute-sanitizer" in second["flags"]
    assert "(1 reported)" in run.run.log_text(first["log"])
    run.assert_nothing_left()
