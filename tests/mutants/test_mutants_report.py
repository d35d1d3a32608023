"""What `python -m benchmarks.mutants` says of outcomes, and that a share which does not come back is told."""

from __future__ import annotations

import time

import mutant_suite as suite
import pytest
import tolerances
from mutant_registry import RMS, Mutant

from benchmarks import mutants as bench
from farm.cell import Cell

CELLS = [c for c in suite.planned("cpu") if c.matrix == "torch-rms_norm" and c.operation == "forward"]
WRONG = Mutant("wrong", "All", lambda op: print, (RMS,))
SLY = Mutant("sly", "Little", lambda op: print, (RMS,))
CONTROL = Mutant("torch-control", "Nothing", lambda op: print, (RMS,))


def outcome(mutant: Mutant, cell: Cell, caught: bool, *allowed_by: str) -> suite.Outcome:
    status = "inaccurate" if caught else "passed"
    return suite.Outcome(mutant.name, cell, status, "why", "y", "max_ulp", 2.0 * caught, allowed_by)


def test_a_mutant_that_is_missed_in_one_place_is_told() -> None:
    outcomes = [outcome(WRONG, c, True) for c in CELLS]
    outcomes += [outcome(SLY, c, c.dtype != "float16") for c in CELLS]
    lines = bench.of_mutants([WRONG, SLY], CELLS, outcomes)
    assert [(m["places"], m["missed"]) for m in lines] == [(3, []), (3, ["rms_norm/forward/float16"])]
    assert lines[0]["by"] == {"y.max_ulp": len(CELLS)} and lines[0]["cells"] == lines[0]["caught"] == len(CELLS)
    right = bench.of_mutants([CONTROL], CELLS, [outcome(CONTROL, c, False) for c in CELLS])
    text = bench.summary(lines, right, "a device")
    assert "1 of 2" in text and "5 of 6" in text and f"{len(CELLS)} of {len(CELLS)}" in text
    assert "MISSED sly in rms_norm/forward/float16" in text and "ACCUSED" not in text


def test_an_accused_control_is_told() -> None:
    right = bench.of_mutants([CONTROL], CELLS, [outcome(CONTROL, c, c is CELLS[0]) for c in CELLS])
    text = bench.summary([], right, "a device")
    assert f"ACCUSED torch-control: {CELLS[0].cell_id}: why" in text


def test_a_tolerance_that_refuses_the_right_kernel_tells_nothing_apart() -> None:
    """Strict refuses both, Loose neither, Fair the wrong one alone, in one cell."""
    some = [c for c in CELLS if c.dtype == "float32"]
    outcomes = []
    for cell in some:
        outcomes.append(outcome(CONTROL, cell, False, "Loose", "Fair"))
        outcomes.append(outcome(WRONG, cell, True, "Loose", *(() if cell is some[0] else ("Fair",))))
    found = bench.let_through([WRONG], outcomes, ["Strict", "Loose", "Fair", "farm"])
    told = {rule: (of["float32"]["through"], of["float32"]["refused"]) for rule, of in found.items()}
    assert told == {"Strict": (["wrong"], len(some)), "Loose": (["wrong"], 0), "Fair": ([], 0), "farm": ([], 0)}
    assert found["Fair"]["float32"]["of"] == 1 and found["Fair"]["bfloat16"]["of"] == 0
    text = bench.tolerance_table({"data": found}, [("Loose", "float16")])
    strict, loose = (next(line.split() for line in text.splitlines() if rule in line) for rule in ("Strict", "Loose"))
    assert strict[2:6] == ["1", "of", "1", f"({len(some)}/{len(some)})"]
    assert loose[2:6] == ["1", "of", "1", "-"]


def test_what_only_a_flag_caught_is_no_matter_of_tolerances() -> None:
    lines = bench.of_mutants([WRONG, SLY], CELLS, [outcome(WRONG, CELLS[0], True), flagged(SLY)])
    assert bench.of_numbers([WRONG, SLY], lines) == [WRONG]
    both = bench.of_mutants([SLY], CELLS, [outcome(SLY, CELLS[0], True), flagged(SLY)])
    assert bench.of_numbers([SLY], both) == [SLY]


def flagged(mutant: Mutant) -> suite.Outcome:
    return suite.Outcome(mutant.name, CELLS[0], "inaccurate", "changed its inputs")


def test_shares_are_all_mutants_once_and_other_data_has_the_same_cells() -> None:
    every = suite.every()
    shared = [m.name for i in range(5) for m in bench.shared_out(every, i, 5)]
    assert sorted(shared) == sorted(m.name for m in every)
    planned = suite.planned("cpu")
    assert bench.of_family(planned, "") == planned
    normal = bench.of_family(planned, "normal")
    assert {c.family for c in normal} == {"normal"}
    assert len({c.cell_key for c in normal}) == len(normal) == len([c for c in planned if c.family == "mixed"])
    assert {d.family for d in tolerances.DATA} == {"", "normal"}


def test_a_share_that_is_not_done_in_time_is_told_and_ended() -> None:
    began = time.monotonic()
    found, trouble = bench.gather([bench.Share(i, 2, "cpu", -1, False) for i in range(2)], 2, 0.2)
    assert found == [] and trouble == [f"share {i} of 2: not done within 0.2 s" for i in range(2)]
    assert time.monotonic() - began < 60  # a hang, not a measurement: the shares alone take longer than their budget


@pytest.mark.parametrize(
    "arguments, message",
    [(["--jobs", "0"], "at least 1"), (["--device", "tpu"], "invalid choice"), (["--budget", "x"], "invalid float")],
)
def test_wrong_usage_is_one_sentence_and_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", *arguments])
    with pytest.raises(SystemExit) as raised:
        bench.main()
    assert raised.value.code == 2 and message in capsys.readouterr().err


def test_without_a_gpu_cuda_is_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["mutants", "--device", "cuda"])
    assert bench.main() == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
