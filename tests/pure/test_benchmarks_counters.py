"""Counted bytes: what ncu prints is read right, and where it cannot count that is said."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import pytest

from benchmarks import counters
from benchmarks.cases import Case

TABLE = """==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Disconnected from process 4242
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","byte","byte"
"0","4242","forward_rows","134,234,112","120,000,000.00"
"1","4242","sum_partials","1000","24"
"""


def test_the_table_is_read_whole() -> None:
    first, second = counters.parse(TABLE)
    assert first == {"kernel": "forward_rows", "read": 134_234_112, "written": 120_000_000}
    assert second == {"kernel": "sum_partials", "read": 1000, "written": 24}


def test_counted_bytes_stand_beside_the_models() -> None:
    case = Case("rms_norm", "forward", "bfloat16", 8192, 8192)
    found = counters.line(case, "farm", [{"kernel": "k", "read": 2 * 8192 * 8192 * 2, "written": 8192 * 8192 * 2}])
    assert (found["model_read"], found["model_written"]) == (8192 * 8192 * 2 + 8192 * 2, 8192 * 8192 * 2)
    assert found["read_ratio"] == pytest.approx(2, abs=1e-3) and found["written_ratio"] == 1
    assert "2.00 of the model's" in counters.shown(found)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "does not let this user read counters"),
        ("==WARNING== No kernels were profiled.\n", "no table: ==WARNING== No kernels"),
        ("", "it printed nothing"),
    ],
)
def test_no_table_is_no_number(text: str, told: str) -> None:
    with pytest.raises(counters.Refused, match=told):
        counters.parse(text)


def fake_ncu(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_ncu(tmp_path, TABLE, monkeypatch)
    assert counters.main(["--out", str(tmp_path / "out"), "--cells", "rms_norm/forward/bf16/8192x8192 farm"]) == 0
    lines = json.loads((tmp_path / "out" / "counters.json").read_text())["lines"]
    assert {found["subject"] for found in lines} == {"farm", "farm:multi_wave_cached", "farm:multi_wave_reload"}
    assert all(found["read"] == 134_235_112 and len(found["kernels"]) == 2 for found in lines)
    assert capsys.readouterr().out.count("of the model's") == len(lines)


def test_a_driver_that_refuses_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_ncu(tmp_path, "==ERROR== ERR_NVGPUCTRPERM", monkeypatch)
    assert counters.main(["--out", str(tmp_path / "out")]) == 4
    assert "counters cannot be read here: the driver does not let" in capsys.readouterr().out


def test_what_ncu_watched_ends_with_it_when_the_time_is_up(tmp_path: Path) -> None:
    """A process that stays on the device would be beside every cell that is timed after it."""
    mark = f"60.{secrets.randbelow(10**9):09d}"
    assert counters.said(["sh", "-c", f"echo begun; sleep {mark} & wait"], 0.5) is None
    commands = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not any(mark.encode() in words and words.startswith(b"sleep") for words in commands)
    assert counters.said(["sh", "-c", "echo out; echo err >&2"], 20.0) == "out\nerr\n"


def test_a_host_without_ncu_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(counters, "find_ncu", lambda: None)
    assert counters.main([]) == 4
    assert "ncu is not on this host" in capsys.readouterr().out


def test_what_a_subject_cannot_do_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu(tmp_path, "unsupported: provider liger: No module named 'liger_kernel'", monkeypatch)
    found = counters.count("ncu", Case("rms_norm", "forward", "bfloat16", 8, 8), "liger", 20)
    assert found["reason"].startswith("unsupported: provider liger") and "unsupported" in counters.shown(found)
