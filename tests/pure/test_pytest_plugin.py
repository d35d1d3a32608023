"""`pytest --farm`, by pytester: what is collected, selected, run, cancelled and told.

The run is a fake that writes the journal of a real store; one test of tests/fake has a real one, under pytest-xdist.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from farm.cell import Status
from farm.cli import run_command
from farm.cli.main import parser
from farm.cli.run import read_ids
from farm.errors import UsageError
from farm.matrix import load_files, plan
from farm.store import Run, Store, results
from farm.store.journal import encoded
from farm.testing import session

pytest_plugins = "pytester"
ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ("-p", "farm.testing.plugin", "-p", "no:xdist")
MATRIX = """\
name: m
op: rms_norm
axes:
  shape: [{rows: 4, hidden: [16, 17, 18, 19]}]
  dtype: [float32, bfloat16]
providers: [farm, torch]
"""
PLACE = "y: 4 of 68 elements are wrong: the last column (16) of every row, never written; first [0, 16]: expected 1"
FAULTS: dict[tuple[str, int], tuple[str, str]] = {
    ("farm", 17): ("inaccurate", PLACE),
    ("torch", 17): ("crashed", "of a peer"),
    ("farm", 18): ("unsupported", "takes no such width"),
    ("farm", 19): ("infra_error", "the device is gone"),
}


class FakeRun:
    """In place of the process of `farm run`: at once writes the result of every cell that it is asked for, but of
    those of `silent` none."""

    made: list[FakeRun] = []
    silent: Callable[[Any], bool] = staticmethod(lambda cell: False)
    ends = True

    def __init__(self, words: list[str], *, cwd: Path, stdout: Any, **_: Any):
        FakeRun.made.append(self)
        self.args = parser("run").parse_args(words[words.index("run") :])
        self.signals: list[int] = []
        self.code: int | None = 0 if self.ends else None
        ids = self.ids = read_ids(self.args.cells)
        planned = plan(load_files([cwd / m for m in self.args.matrices]), ["cpu"], ids=ids)
        writer = Store(cwd / (self.args.out or "farm-results")).create(self.args.run_id)
        writer.plan({"matrices": [m.to_dict() for m in planned.matrices], "planned": len(planned.cells)}, planned.cells)
        for cell in planned.cells:
            status, reason = FAULTS.get((cell.provider, cell.dims["hidden"]), ("passed", ""))
            made = {"attempt": 1, "evidence": "interpreted", "origin": {}, "owner": ""}
            row = results.finish_row(cell, status=Status(status), reason=reason, **made)
            row["log"] = writer.log(cell.cell_id, "what the kernel printed") if status == "inaccurate" else ""
            if not self.silent(cell):
                writer.append({"event": "result", "row": row})
        writer.close()
        stdout.write(b"run x: 2 cells\nfindings in 2 cells: exit 1\n")

    @property
    def alive(self) -> bool:
        return self.code is None

    def wait(self, seconds: float) -> int | None:
        return self.code

    def signal(self, number: int) -> None:
        self.signals.append(number)
        self.code = 3

    def kill(self, grace: float = 0.0) -> bool:
        return True


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("FARM_STORE", "FARM_ADDRESS", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "ProcessGroup", FakeRun)
    monkeypatch.setattr(FakeRun, "made", [])
    monkeypatch.setattr(run_command, "host_has", lambda backend: backend in ("cpu", "sim"))  # on a GPU host, too
    pytester.makefile(".yaml", m=MATRIX)
    pytester.makepyfile(test_own="def test_own(): pass")
    return pytester


def run(tests: pytest.Pytester, *words: str, farm: str = "m.yaml --backend cpu") -> pytest.RunResult:
    return tests.runpytest_inprocess(*PLUGIN, "--farm", farm, *words)


def ids(tests: pytest.Pytester, *words: str, farm: str = "m.yaml --backend cpu") -> list[str]:
    lines = run(tests, "--collect-only", "-q", *words, farm=farm).outlines
    return [line.partition("::")[2] for line in lines if "::" in line]


def test_a_cell_is_a_test_and_its_result_is_the_tests(tests: pytest.Pytester) -> None:
    done = run(tests, "-rsxfE", "-v")
    done.assert_outcomes(passed=8, failed=2, skipped=4, errors=2)
    said = done.stdout.str()
    assert "m.yaml::cpu/rms_norm/farm/auto/forward/bf16/4x16/llama PASSED" in said
    assert f"inaccurate: {PLACE}\nlog: {tests.path}/farm-results/runs/" in said, "as the assertion's message"
    assert "Captured farm log call" in said and "what the kernel printed" in said
    assert "SKIPPED [2] m.yaml:1: unsupported: takes no such width" in said
    assert "SKIPPED [2] m.yaml:1: peer crashed: of a peer" in said
    assert "infra_error: the device is gone" in said and "farm/testing" not in said
    assert "results: " in said and "findings in 2 cells: exit 1" in said
    (only,) = FakeRun.made
    assert len(only.ids) == 16 and only.signals == [] and "test_own" not in said


def test_peers_fail_where_they_are_asked_for(tests: pytest.Pytester) -> None:
    run(tests, farm="m.yaml --backend cpu --strict-peers").assert_outcomes(passed=8, failed=4, skipped=2, errors=2)


def test_the_option_may_be_repeated_and_there_is_one_run(tests: pytest.Pytester) -> None:
    tests.makefile(".yaml", other=MATRIX.replace("name: m", "name: other").replace("rows: 4", "rows: 5"))
    run(tests, "--farm", "other.yaml", "-k", "4x16 or 5x16").assert_outcomes(passed=8)
    (only,) = FakeRun.made
    assert {i.split("/")[6] for i in only.ids} == {"4x16", "5x16"}


def test_tests_that_are_named_run_beside_the_cells(tests: pytest.Pytester) -> None:
    run(tests, "test_own.py").assert_outcomes(passed=9, failed=2, skipped=4, errors=2)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("-k", "bf16 and not torch"), 4),
        (("-k", "4x16"), 4),
        (("-m", "torch and float32"), 4),
        (("-m", "farm and cpu and rms_norm"), 16),
        (("-m", "farm(provider='torch', dtype='bfloat16')"), 4),
        (("-m", "not farm"), 0),
        (("m.yaml::cpu/rms_norm/farm/auto/forward/fp32/4x16/llama",), 1),
        (("--deselect", "m.yaml::cpu/rms_norm/farm"), 8),
        (("--strict-markers",), 16),
    ],
)
def test_what_is_deselected_is_not_run(tests: pytest.Pytester, words: tuple[str, ...], count: int) -> None:
    run(tests, "-p", "no:randomly", *words)
    assert [len(fake.ids) for fake in FakeRun.made] == ([count] if count else [])


def test_only_what_failed_last_runs_again(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tests)
    monkeypatch.delitem(FAULTS, ("farm", 17))
    monkeypatch.delitem(FAULTS, ("farm", 19))
    run(tests, "--lf").assert_outcomes(passed=4)
    assert [len(fake.ids) for fake in FakeRun.made] == [16, 4]
    assert "/4x17/" in FakeRun.made[1].ids[0]


def test_the_first_failure_cancels_the_run(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRun, "ends", False)
    run(tests, "-x", "-k", "farm/").assert_outcomes(passed=2, failed=1)
    assert FakeRun.made[0].signals == [2]


def test_a_run_that_is_left_alone_is_not_cancelled(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(FakeRun, "ends", False)
    monkeypatch.setattr(FakeRun, "wait", lambda self, seconds: seen.append(seconds))
    run(tests, "-k", "4x16")
    assert session.END_SECONDS in seen and FakeRun.made[0].signals == []


def test_a_cell_without_a_result_is_an_error(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRun, "silent", staticmethod(lambda cell: cell.dims["hidden"] == 16))
    done = run(tests, "-k", "4x16 or (torch and 4x18)")
    done.assert_outcomes(passed=2, errors=4)
    assert "the run ended without a result of this cell: findings in 2 cells: exit 1" in done.stdout.str()


def test_a_dead_controller_ends_the_wait(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRun, "ends", False)
    monkeypatch.setattr(FakeRun, "silent", staticmethod(lambda cell: True))
    monkeypatch.setattr(session.Controller, "_watch", lambda self, process: None)
    monkeypatch.setattr(session, "SILENT_SECONDS", -1.0)
    done = run(tests, "-k", "4x16 and fp32 and torch")
    assert "the process that watched it has died" in done.stdout.str()


@pytest.mark.parametrize(
    ("farm", "words"),
    [
        ("none.yaml", "none.yaml: no such file"),
        ("m.yaml --backend cuda", "[run-backend-absent]"),
        ("m.yaml --select hidden=7", "[plan-select-nothing]"),
        ("m.yaml --nonsense", "farm run has no option --nonsense"),
        ("m.yaml --devices x", "invalid int value"),
        ("m.yaml --backend cpu --failed", "pytest decides what runs; omit --failed"),
        ("m.yaml -x", "omit -x"),
        ("m.yaml --address 127.0.0.1:1", "name its backends with --backend"),
        ("'m.yaml", "No closing quotation"),
        ("m.yaml --run-id a/b", "[option-run-id-invalid]"),
    ],
)
def test_what_cannot_run_is_one_sentence(tests: pytest.Pytester, farm: str, words: str) -> None:
    done = run(tests, farm=farm)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in done.errlines if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("ERROR: --farm") and words in lines[0], lines
    assert FakeRun.made == []


def test_nothing_runs_where_only_the_collection_is_asked_for(tests: pytest.Pytester) -> None:
    assert len(ids(tests)) == 16 and FakeRun.made == []
    tests.makepyfile(test_broken="import nothing_of_this_name")
    run(tests, "test_broken.py")
    assert FakeRun.made == [], "pytest runs nothing either"


def test_a_name_that_pytest_gives_a_meaning_is_no_mark() -> None:
    cell = dict.fromkeys(session.FACTS, "x") | {"provider": "skip", "op": "_own"}
    assert session.marks_of(cell) == ["x"]


def test_without_the_option_nothing_is_imported() -> None:
    code = (
        "import sys, pytest; code = pytest.main(['-q', '-p', 'farm.testing.plugin', '--collect-only', '--rootdir', '/',"
        " '-c', '/dev/null', '/dev/null']); "
        "print([m for m in sys.modules if m.split('.')[0] in ('farm', 'torch', 'ray', 'numpy', 'yaml')])"
    )
    more = {"cwd": "/", "capture_output": True, "text": True, "check": True, "timeout": 60}
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, **more)
    assert done.stdout.splitlines()[-1] == "['farm', 'farm.testing', 'farm.testing.plugin']"


def test_the_entry_point_has_the_name_that_p_knows() -> None:
    """Else `-p farm.testing.plugin` beside an installed farm would register it twice."""
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\n"farm.testing.plugin" = "farm.testing.plugin"' in text


def test_the_workflow_of_the_guide_is_yaml_and_asks_for_what_there_is() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "pytest.md").read_text(), re.M | re.S)
    steps = yaml.safe_load(text)["jobs"]["cells"]["steps"]
    (farm,) = [step["run"] for step in steps if "--farm" in step.get("run", "")]
    words = shlex.split(shlex.split(farm)[2])
    assert session._parsed(words).matrices == [Path("matrices/smoke.yaml")] and (ROOT / words[0]).is_file()


@pytest.mark.parametrize(
    ("text", "id"),
    [(None, "run-cells"), ("", "run-cells"), ("\n \n", "run-cells"), ("cpu/no/such\n", "plan-id-unknown")],
)
def test_cells_of_a_file_that_cannot_be_had(tmp_path: Path, text: str | None, id: str) -> None:
    file = tmp_path / "cells.txt"
    (tmp_path / "m.yaml").write_text(MATRIX)
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as caught:
        plan(load_files([tmp_path / "m.yaml"]), ["cpu"], ids=read_ids(file))
    assert caught.value.id == id


def test_cells_and_a_selection_together_keep_what_both_do(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX)
    matrices = load_files([tmp_path / "m.yaml"])
    every = [c.cell_id for c in plan(matrices, ["cpu"]).cells]
    found = plan(matrices, ["cpu"], select="provider=torch", ids=every[:4]).cells
    assert [c.cell_id for c in found] == [i for i in every[:4] if "/torch/" in i]


def test_a_journal_is_followed_while_it_is_written(tmp_path: Path) -> None:
    follower = Run(tmp_path).follow()
    assert follower.new() == []
    lines = [encoded({"event": "x", "n": n}) for n in range(3)]
    with (tmp_path / "journal.jsonl").open("w") as file:
        file.write(lines[0] + "damaged\n" + lines[1][:5])
        file.flush()
        assert [line["n"] for line in follower.new()] == [0]
        file.write(lines[1][5:] + lines[2])
        file.flush()
        assert [line["n"] for line in follower.new()] == [1, 2] and follower.new() == []
