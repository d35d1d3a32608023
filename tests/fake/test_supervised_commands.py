"""`farm calibrate` and `farm compile` end as `farm run` does: whatever ends them, the exit code is not a library's, the
end is one sentence, and no process of theirs is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import killing
import pytest
from farm_command import FarmCommand
from farm_process import marked, parent_of, wait_for

MATRIX = "name: m\nop: rms_norm\naxes: {shape: [{rows: [4, 5], hidden: 64}], dtype: bfloat16}\nproviders: [farm]\n"
WORDS = {
    "calibrate": ["--backend", "sim", "--address", "inline", "--devices", "1"],
    "compile": ["m.yaml", "--target", "sm_90", "--workers", "1", "--run-id", "cut", "--no-page"],
}
#: What its command line has whose end the command waits for.
WORKS = {"calibrate": "farm.child", "compile": "farm.compile.worker"}


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("SIGTERM to its process", "interrupted"),
        ("SIGHUP to the group", "interrupted"),
        ("SIGKILL to its worker", "ended with signal 9 (SIGKILL)"),
    ],
)
def test_whatever_ends_it_is_told_in_time_and_nothing_is_left(
    tmp_path: Path, command: str, end: str, said: str
) -> None:
    if command == "compile":
        pytest.importorskip("triton")
    (tmp_path / "m.yaml").write_text(MATRIX, encoding="utf-8")
    one = FarmCommand(tmp_path, tmp_path / "store", "cut", command, *WORDS[command], "--out", str(tmp_path / "store"))
    one.start(**killing.HEARD)
    try:
        assert one.process is not None
        (stuck,) = wait_for(
            "its own process works", lambda: [p for p, line in marked(one.mark).items() if WORKS[command] in line]
        )
        os.kill(stuck, signal.SIGSTOP)  # it will not end by itself now
        if "group" in end:
            os.killpg(one.process.pid, signal.SIGHUP)
        elif "worker" in end:
            (worker,) = [p for p in marked(one.mark) if parent_of(p) == one.process.pid]
            os.kill(worker, signal.SIGKILL)
        else:
            one.process.send_signal(signal.SIGTERM)
        assert one.wait(60) == 3, one.said()
        assert said in one.said() and "Traceback" not in one.said(), one.said()
        one.assert_nothing_left()
    finally:
        one.end()
    if command == "compile":
        assert not one.run.complete and {r["status"] for r in one.rows()} == {"lost"}
    else:
        assert not list((tmp_path / "store").rglob("*.json"))
