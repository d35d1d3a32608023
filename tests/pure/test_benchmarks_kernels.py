"""From the events of measuring processes to rows, tables and an exit code; nothing is dropped on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cases, kernels, tables
from benchmarks.cases import Case, item
from benchmarks.roof import bucket

NAMES = ["farm", "torch", "liger", "quack"]
WIDE = Case("rms_norm", "forward", "bfloat16", 8192, 4096)
SMALL = Case("rms_norm", "forward", "float32", 64, 128)


def ok(case: Case, subject: str, gbps: float | None, quality: str = "ok", **more: Any) -> dict[str, Any]:
    us = case.bytes_moved / (gbps or 9e4) / 1e3
    base = {"event": "result", "case": case.id, "subject": subject, "status": "ok", "gbps": gbps, "us": us}
    return {**base, "quality": quality, "rel_mad": 0.01, "samples_us": [us], **more}


def failed(case: Case, subject: str, status: str, reason: str) -> dict[str, Any]:
    return {"event": "result", "case": case.id, "subject": subject, "status": status, "reason": reason}


def roof(case: Case, gbps: float) -> dict[str, Any]:
    return {"event": "roof", "nbytes": bucket(case.bytes_moved), "gbps": gbps}


def group(*events: dict[str, Any], planned: tuple[Case, ...] = (WIDE, SMALL)) -> dict[str, Any]:
    items = [item(c, NAMES, roof=True, check=True) for c in planned]
    return {
        "cases": list(planned),
        "items": items,
        "events": [*events, {"event": "end", "why": "done"}],
        "seconds": 1.0,
    }


GOOD = (
    roof(WIDE, 4000.0),
    ok(WIDE, "farm", 3960.0, launches_of_ours=[{"mode": "row_packed"}]),
    ok(WIDE, "torch", 3000.0),
    ok(WIDE, "liger", 3500.0, "noisy"),
    failed(WIDE, "quack", "unsupported", "No module named 'quack'"),
    roof(SMALL, 50.0),
    ok(SMALL, "farm", 49.0, "launch_bound"),
    failed(SMALL, "torch", "wrong", "y: max_ulp is 9, tolerance 2"),
    ok(SMALL, "liger", None, "impossible"),
    failed(SMALL, "quack", "unsupported", "No module named 'quack'"),
)


def test_rows_hold_what_each_subject_came_to() -> None:
    wide, small = kernels.report([group(*GOOD)], NAMES)["groups"][0]["rows"]
    assert wide["share"] == pytest.approx(0.99) and wide["best_peer"] == "liger" and wide["missed"] == []
    assert wide["choice"] == {"farm": [{"mode": "row_packed"}]}
    assert small["best_peer"] is None and small["ratio"] is None  # a wrong and an impossible one are no peers
    assert small["status"] == {"farm": "ok", "torch": "wrong", "liger": "ok", "quack": "unsupported"}


def test_the_best_of_several_processes_roofs_counts() -> None:
    rows = kernels.rows_of([WIDE], [roof(WIDE, 3000.0), *GOOD, roof(WIDE, 2000.0)])
    assert rows[0]["roof_gbps"] == 4000.0


def test_the_text_tells_everything() -> None:
    text, mark = kernels.written(kernels.report([group(*GOOD)], NAMES))
    lines = text.splitlines()
    assert " ".join(lines[1].split()) == "shape dtype MiB roof farm torch liger of roof of peer best peer"
    assert lines[2].split() == ["8192x4096", "bf16", "128", "4000", "3960", "3000", "3500?", "0.990", "1.131", "liger"]
    assert lines[3].split() == ["64x128", "fp32", "0", "50", "49~", "WRONG", "too", "fast", "0.980"]
    assert "quack: No module named 'quack'" in text
    assert "64x128 fp32 torch: wrong: y: max_ulp is 9, tolerance 2" in text
    assert "geometric mean of ours over the best peer: 1.131 over 1 cells" in text
    assert "cells that miss a bar: 0 of 2" in text and "not reached (" not in text
    table = [line for line in mark.splitlines() if line.startswith("|")]
    assert len(table) == 4 and len({line.count("|") for line in table}) == 1
    assert table[2].startswith("| 8192x4096 | bf16 | 128 | 4000 | 3960 | 3000 | 3500? | 0.990 | 1.131 | liger |")


def test_what_misses_a_bar_is_marked() -> None:
    events = [
        roof(WIDE, 4000.0),
        ok(WIDE, "farm", 3000.0),
        ok(WIDE, "liger", 3500.0),
        ok(WIDE, "farm:row_packed", 3100.0),
    ]
    text, mark = kernels.written(kernels.report([group(*events, planned=(WIDE,))], [*NAMES, "farm:row_packed"]))
    assert "<- 0.750 of the roof, bar 0.97; 0.857 of liger, bar 0.98" in text
    assert "misses: geometric mean 0.857 of the best peer, bar 1.00" in text
    assert "cells that miss a bar: 1 of 1" in text
    assert "8192x4096 bf16: farm:row_packed beats auto by 3.3 %" in text
    assert "| **0.750** | **0.857** | liger |" in mark


def test_what_was_not_reached_is_listed() -> None:
    found = kernels.report([group(*GOOD[:3])], NAMES)
    text, mark = kernels.written(found)
    want = "2 cells: rms_norm/forward/bf16/8192x4096 (liger, quack), rms_norm/forward/fp32/64x128"
    assert want in text and want in mark
    assert text.splitlines()[2].split()[4:7] == ["3960", "3000", "."] or "." in text.splitlines()[2]


def test_a_group_of_which_nothing_is_known_says_why() -> None:
    empty = {**group(), "events": [{"event": "end", "why": "failed", "reason": "a process told nothing"}]}
    text, _ = kernels.written(kernels.report([empty], NAMES))
    assert text.startswith("rms_norm forward: nothing was measured (a process told nothing)")
    assert "not reached (failed), 2 cells" in text


@pytest.mark.parametrize(
    "events, gate, code",
    [
        (GOOD, False, 0),
        ((), False, 1),
        (GOOD[:3], False, 0),
        (GOOD[:3], True, 1),  # something was not reached
        ((*GOOD, failed(WIDE, "farm", "wrong", "y")), False, 1),
        ((*GOOD, ok(WIDE, "farm", 3000.0)), False, 0),
        ((*GOOD, ok(WIDE, "farm", 3000.0)), True, 1),
        (GOOD, True, 0),
    ],
)
def test_the_exit_code(events: tuple[dict[str, Any], ...], gate: bool, code: int) -> None:
    assert kernels.exit_code(kernels.report([group(*events)], NAMES), gate) == code


def test_files_are_whole_and_json_holds_samples(tmp_path: Path) -> None:
    kernels.save(tmp_path, kernels.report([group(*GOOD)], NAMES))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernels.json", "kernels.md", "kernels.txt"]
    data = json.loads((tmp_path / "kernels.json").read_text())
    assert data["groups"][0]["results"][0]["samples_us"] and data["groups"][0]["summary"]["compared"] == 1
    kernels.save(None, data)


def test_a_column_is_for_who_has_something_to_tell() -> None:
    rows = kernels.rows_of([WIDE, SMALL], list(GOOD))
    assert tables.columns(rows, NAMES) == ["farm", "torch", "liger"]
    assert tables.columns(rows, ["farm:row_packed", "quack"]) == []


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--shapes", "4096"], "ROWSxHIDDEN"),
        (["--budget", "0"], "seconds above 0"),
        (["--budget", "soon"], "seconds above 0"),
        (["--ops", "matmul"], "invalid choice"),
        (["--peers", "nobody"], "no provider 'nobody'"),
        (["--peers", "../torch"], "no provider"),
        (["--modes", "fast"], "invalid choice"),
        (["--warm", "-1"], "0 or more"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_2(argv: list[str], said: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        kernels.parse(argv)
    assert stop.value.code == 2 and said in capsys.readouterr().err.splitlines()[-1]


def test_the_command_line() -> None:
    options = kernels.parse(["--modes", "all", "--dtypes", "bf16", "--shapes", "4x8", "--peers"])
    assert options.modes == list(cases.MODES) and options.dtypes == ["bfloat16"] and options.shapes == [(4, 8)]
    assert options.peers == []
    groups = kernels.plan_groups(kernels.parse(["--shapes", "4x8", "3x5"]), NAMES)
    assert len(groups) == 2 * len(cases.available_ops())
    assert [i["subjects"][0] for i in groups[0]["items"][:2]] == ["farm", "torch"]
    assert all(i["roof"] and i["check"] for g in groups for i in g["items"])


def test_without_a_gpu_it_says_so_and_exits_2(capsys, monkeypatch) -> None:
    told = [{"event": "end", "why": "no device", "reason": "torch sees no GPU"}]
    monkeypatch.setattr(kernels.processes, "supervise", lambda *a, **k: told)
    assert kernels.main(["--warm", "0", "--shapes", "4x8"]) == 2
    monkeypatch.setattr(kernels.processes, "together", lambda *a, **k: told)
    assert kernels.main(["--warm", "2", "--shapes", "4x8"]) == 2
    assert capsys.readouterr().err.count("benchmarks.kernels: torch sees no GPU") == 2


def test_each_process_gets_its_share_and_the_report_is_printed(capsys, monkeypatch, tmp_path) -> None:
    given = []

    def supervise(plan: Any, seconds: float, *, tick: Any) -> Any:
        given.append(seconds)
        case = cases.case_of(plan["items"][0]["case"])
        events = [roof(case, 4000.0), ok(case, "farm", 3900.0), ok(case, "torch", 3000.0)]
        tick(events)
        return [*events, {"event": "end", "why": "done"}]

    monkeypatch.setattr(kernels.processes, "supervise", supervise)
    argv = [
        "--warm",
        "0",
        "--shapes",
        "8192x4096",
        "--dtypes",
        "bf16",
        "--peers",
        "torch",
        "--out",
        str(tmp_path / "o"),
    ]
    assert kernels.main([*argv, "--budget", "100"]) == 0
    count = 2 * len(cases.available_ops())
    assert len(given) == count and given[0] == pytest.approx(100 / count, rel=0.05)
    assert given[-1] == pytest.approx(100, rel=0.05)  # nothing was used, so all is left
    assert "rms_norm backward" in capsys.readouterr().out
    assert json.loads((tmp_path / "o" / "kernels.json").read_text())["groups"][1]["rows"][0]["gbps"]["farm"] == 3900.0
