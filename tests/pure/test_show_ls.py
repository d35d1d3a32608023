"""`farm show` and `farm ls`: one cell, and the list of runs, from stores that are real, old or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_runs
import pytest

from farm.cli import main
from farm.report import cell_facts

CELL = "cpu/rms_norm/farm/auto/forward/fp32/4x64/llama"
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
Farm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def farm(capsys: pytest.CaptureFixture[str]) -> Farm:
    def command(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(w) for w in words])
        except SystemExit as end:
            code = int(str(end.code))
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def wrong(cell: Any) -> dict[str, Any]:
    """The farm's float32 cells are wrong; every cell has a time."""
    timed = {"time_us_p50": 12.0, "timing_quality": "ok", "timing_method": "events", "samples_us": [11.0, 12.0, 14.0]}
    if cell.provider == "torch" or cell.dtype != "float32":
        return {"status": "passed", **timed, "time_us_p50": 6.0 if cell.provider == "torch" else 12.0}
    place = {"worst_row": 3, "worst_column": 17, "worst_got": 1.5, "worst_want": 0.5, "max_ulp": 99.0}
    return {
        "status": "inaccurate",
        "reason": "y: max_ulp is 99, tolerance 2; worst element [3, 17]: got 1.5, want 0.5",
        "metrics": json.dumps({"y": place}),
        "gates": json.dumps({"y": {"max_ulp": 2.0}}),
        "worst_output": "y",
        "worst_metric": "max_ulp",
        "worst_ratio": 49.5,
        "output_hash": "abcd",
        "timing_method": "events",
    }


def test_a_cell_is_shown_whole(tmp_path: Path, farm: Farm) -> None:
    made_runs.make(tmp_path, "a")
    made_runs.make(tmp_path, "b", wrong, logs={CELL: "first\nmy own print\n\x1b[31mred"})
    code, out, err = farm("show", CELL, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"inaccurate: {CELL}"
    for part in ("b (2026-11-20 10:00)", "y[3, 17]: got 1.5, want 0.5", "max_ulp 99 of 2", "| my own print", "abcd"):
        assert part in out, part
    assert "torch: passed, 6.000 us" in out, "the same cell of a peer, with its time"
    assert "a: passed" in out, "the run before"
    assert "again     farm run" in out and "\x1b" not in out
    assert "time " not in out, "a wrong kernel has no speed"


def test_times_stand_beside_the_statistics_of_their_samples(tmp_path: Path, farm: Farm) -> None:
    made_runs.make(tmp_path, "b", wrong)
    rows = made_runs.Store(tmp_path).run("b").rows
    key = next(r["cell_key"] for r in rows if (r["provider"], r["dtype"]) == ("farm", "bfloat16"))
    found = json.loads(farm("show", key[:12], "--json", "--out", tmp_path)[1])
    its = found["samples"]
    assert (its["samples"], its["min_us"], its["p50_us"], its["max_us"]) == (3, 11.0, 12.0, 14.0)
    assert its["values_us"] == [11.0, 12.0, 14.0] and found["cell"]["dims"] == {"rows": 4, "hidden": 64}
    assert found["peers"][0] | {"ratio": 2.0, "time_us_p50": 6.0} == found["peers"][0]


def test_an_impossible_time_is_never_shown(tmp_path: Path, farm: Farm) -> None:
    made_runs.make(tmp_path, "b", lambda c: {**wrong(c), "status": "passed", "timing_quality": "impossible"})
    code, out, _ = farm("show", CELL.replace("fp32", "bf16"), "--out", tmp_path)
    assert code == 0 and "impossible, so no time is shown" in out and "12.0" not in out and " us" not in out


def test_an_arm_is_repeated_as_an_arm_and_told_by_its_own_revision(tmp_path: Path, farm: Farm) -> None:
    """The working folder has other files than an arm had, and another revision than the farm's."""
    one = {"status": "passed", "subject_revision": "aaaa"}
    made_runs.make(tmp_path, "a", lambda cell: one, argv=["ab", "m.yaml", "--a", "revision=main", "--b", "revision=."])
    made_runs.make(tmp_path, "b")
    again = farm("show", CELL, "--run", "a", "--out", tmp_path)[1].partition("  again ")[2].splitlines()[0]
    assert again.split()[:2] == ["farm", "ab"] and "--a revision=main --b revision=. --select" in again
    assert "revision aaaa" in farm("show", CELL, "--run", "b", "--out", tmp_path)[1]


def test_the_newest_run_counts_and_another_by_name(tmp_path: Path, farm: Farm) -> None:
    made_runs.make(tmp_path, "a", wrong)
    made_runs.make(tmp_path, "b")
    assert farm("show", CELL, "--out", tmp_path)[1].startswith("passed: ")
    assert farm("show", CELL, "--run", "a", "--out", tmp_path)[1].startswith("inaccurate: ")
    assert farm("show", CELL, "--run", tmp_path / "runs/a", "--out", tmp_path)[1].startswith("inaccurate: ")


@pytest.mark.parametrize(
    ("cell", "id", "part"),
    [
        ("cpu/rms_norm/farm", "show-cell-ambiguous", "matches 4 cells"),
        ("cpu/rms_norm/farm/auto/forwrd/fp32/4x64/llama", "show-cell-unknown", f"did you mean {CELL}"),
        ("4X64", "show-cell-unknown", "4x64"),
        ("zzz", "show-cell-unknown", "farm plan"),
        ("", "show-cell-unknown", "farm plan"),
        ("\x1b]0;x\x07" * 500, "show-cell-unknown", "farm plan"),
    ],
)
def test_a_cell_that_is_not_one_is_one_sentence(tmp_path: Path, farm: Farm, cell: str, id: str, part: str) -> None:
    made_runs.make(tmp_path, "a")
    code, out, err = farm("show", cell, "--out", tmp_path)
    assert (code, out) == (2, "") and err.count("\n") == 1 and f"[{id}]" in err and part in err and "\x1b" not in err


def test_near_misses_of_many_cells_are_found_in_bounded_time() -> None:
    ids = [f"cuda/rms_norm/farm/auto/forward/bf16/{rows}x4096/llama" for rows in range(100_000)]
    assert cell_facts.near_misses("cuda/rms_norm/farm/auto/forwrd/bf16/7x4096/llama", ids)


def test_a_place_is_not_shown_for_what_is_not_finite() -> None:
    """Elements that are not finite are in no other metric: the place would be that of a healthy element."""
    row = {"status": "inaccurate", "worst_output": "y", "worst_metric": "nonfinite"}
    row["metrics"] = json.dumps({"y": {"worst_row": 6, "worst_column": 614, "worst_got": 1.0, "worst_want": 1.0}})
    assert cell_facts.worst_place(row) is None
    assert cell_facts.worst_place({**row, "worst_metric": "max_ulp"}) is not None


def test_a_log_from_elsewhere_reads_no_other_file(tmp_path: Path, farm: Farm) -> None:
    (tmp_path / "secret").write_text("do not show")
    made_runs.make(tmp_path, "a", lambda c: {**wrong(c), "log": "logs/../../../secret"})
    code, out, _ = farm("show", CELL, "--out", tmp_path)
    assert code == 0 and "do not show" not in out


def test_cells_of_a_run_that_is_not_complete(tmp_path: Path, farm: Farm) -> None:
    def half(cell: Any) -> dict[str, Any]:
        return {**wrong(cell), "status": "passed"} if cell.dtype == "float32" else {}

    made_runs.make(tmp_path, "a", half, complete=False)
    assert farm("show", CELL, "--out", tmp_path)[1].startswith("passed: ")
    code, out, _ = farm("show", CELL.replace("fp32", "bf16"), "--out", tmp_path)
    assert code == 0 and out.startswith("lost: ") and "not complete" in out


@pytest.mark.parametrize("run", ["golden-finished", "golden-interrupted", "golden-compiled"])
def test_old_runs_are_shown(farm: Farm, run: str) -> None:
    for row in made_runs.Store(GOLDEN).run(run).rows:
        code, out, err = farm("show", row["cell_id"], "--run", run, "--out", GOLDEN)
        assert (code, err) == (0, "") and row["cell_id"] in out
        assert json.loads(farm("show", row["cell_key"], "--run", run, "--json", "--out", GOLDEN)[1]) or "@" in out


def test_the_list_of_runs_is_bounded_and_newest_first(tmp_path: Path, farm: Farm) -> None:
    for name in ("a", "b", "c"):
        made_runs.make(tmp_path, name, wrong if name == "b" else made_runs.passes, complete=name != "c")
    (tmp_path / "runs/a/run.json").write_text("[")
    code, out, err = farm("ls", "--out", tmp_path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["c", "b", "a"]
    assert "interrupted" in lines[0] and "findings" in lines[1] and "6 passed, 2 inaccurate" in lines[1]
    assert "1 cpu (cpu-0)" in lines[1] and "unreadable" in lines[2]
    _, out, err = farm("ls", "--limit", "1", "--out", tmp_path)
    assert len(out.splitlines()) == 1 and "the newest 1 of 3 runs" in err
    found = json.loads(farm("ls", "--json", "--out", tmp_path)[1])
    assert [f["id"] for f in found] == ["c", "b", "a"] and found[1]["counts"] == {"passed": 6, "inaccurate": 2}


def test_a_store_without_runs(tmp_path: Path, farm: Farm) -> None:
    code, out, err = farm("ls", "--out", tmp_path / "none")
    assert (code, out) == (0, "") and "no runs" in err
    assert farm("ls", "--json", "--out", tmp_path / "none")[1] == "[]\n"
    assert "[store-run-unknown]" in farm("show", "x", "--out", tmp_path / "none")[2]
    assert "[option-number-range]" in farm("ls", "--limit", "0", "--out", tmp_path)[2]
    assert "[store-run-path]" in farm("show", "x", "--run", "/tmp/elsewhere", "--out", tmp_path)[2]
