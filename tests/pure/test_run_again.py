"""`farm run --failed`, `-x`, `--write`, the last line, and where a run without --address runs.

No device: a cluster that would be started is an exception, so that what is asked of it can be seen.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import made_runs
import pytest

from farm.cell import Status
from farm.cli import common, failed, main, progress, run_command
from farm.cli.main import parser
from farm.cli.run import Matrices
from farm.cluster import address, ray_folder
from farm.coordinator.request import RunOutcome
from farm.errors import InfraError, StoreError, UsageError
from farm.process.supervisor import Outcome
from farm.store import Store


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FARM_STORE", "FARM_ADDRESS", "RAY_ADDRESS", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray_folder, "LONGEST_BASE", 1000)
    monkeypatch.setattr(ray_folder.procfs, "command_lines", list)


def wrong(cell: Any) -> dict[str, Any]:
    """Of the farm, float32 is inaccurate and 16 rows of bfloat16 crash; a peer crashes, too."""
    if cell.provider == "torch":
        return {"status": "crashed" if cell.dims["rows"] == 16 else "passed"}
    if cell.dtype == "float32":
        return {"status": "inaccurate"}
    return {"status": "crashed" if cell.dims["rows"] == 16 else "passed"}


def again(*words: str) -> tuple[argparse.Namespace, failed.FailedCells]:
    return failed.again(parser("run").parse_args(["run", *words, "--out", "."]), Store("."))


def planned(*words: str) -> list[str]:
    """The cells that `farm run --failed` would run."""
    args, cells = again(*words)
    work = Matrices(args, cells)
    return [f"{c.provider} {c.dtype} {c.dims['rows']}" for c in work.planned(cells.backends).cells]


# the failed cells


def test_the_failed_cells_of_the_newest_run(tmp_path: Path) -> None:
    made_runs.make(tmp_path, "a", wrong, options=("--devices", "1", "--set", "axes.seed=0"))
    made_runs.make(tmp_path, "b", lambda c: {"status": "inaccurate" if c.provider == "farm" else "passed"})
    assert len(planned("--failed")) == 4
    assert planned("--failed", "a") == ["farm float32 4", "farm float32 16", "farm bfloat16 16"]
    assert planned("--failed", "a", "--select", "status=crashed") == ["farm bfloat16 16"]
    assert planned("--failed", "a", "--select", "status!=crashed", "--select", "rows>=5") == ["farm float32 16"]
    assert planned("--failed", "a", "--select", "status=failed,shape=4x*") == ["farm float32 4"]
    assert "torch float32 16" in planned("--failed", "a", "--strict-peers")


def test_it_has_the_options_of_that_run_unless_others_are_given(tmp_path: Path) -> None:
    options = ("--devices", "3", "--address", "local", "--provider", "rms_norm:mine=mod:f", "--select", "rows=4")
    made_runs.make(tmp_path, "a", wrong, options=(*options, "--run-id", "x", "--no-page", "-x", "--write", "csv=f"))
    args, _ = again("--failed", "a", "--devices", "1", "--provider", "rms_norm:mine=other:g")
    assert (args.devices, args.address, args.backend) == (1, "local", "cpu")
    assert args.provider == ["rms_norm:mine=other:g"] and args.matrices == [tmp_path / "m.yaml"]
    assert args.select is None, "what was selected then has already narrowed what failed"
    assert (args.run_id, args.no_page, args.stop_at_first, args.write) == (None, False, False, [])


@pytest.mark.parametrize(
    ("options", "more", "at"),
    [
        ((), (), "inline"),
        (("--address", "local"), (), "local"),
        (("--address", "local"), ("--address", "inline"), "inline"),
    ],
)
def test_it_runs_where_that_run_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], more: tuple[str, ...], at: str
) -> None:
    """Through the command: a default must not count as given."""
    made_runs.make(tmp_path, "a", wrong, options=options)
    seen = []

    def connect(args: argparse.Namespace, *_: Any) -> None:
        seen.append(args.address)
        raise StoreError("no further", id="x")

    monkeypatch.setattr(run_command, "connect", connect)
    assert main(["run", "--failed", "--out", ".", *more]) == 2
    assert seen == [at]


def test_its_command_line_is_complete(tmp_path: Path) -> None:
    """A page repeats and `farm resume` continues a run by its argv; a rerun of a rerun starts from it."""
    made_runs.make(tmp_path, "a", wrong, options=("--set", "axes.seed=0", "--strict-peers"))
    args, _ = again("--failed", "a", "--select", "status=inaccurate", "-x")
    found = parser("run").parse_args(args.argv)
    assert (found.failed, found.matrices, found.overrides) == ("a", [tmp_path / "m.yaml"], ["axes.seed=0"])
    assert found.strict_peers and found.stop_at_first and found.select == "status=inaccurate"
    made_runs.make(tmp_path, "b", wrong, argv=args.argv)
    second, _ = again("--failed")
    assert second.failed == "b" and second.select is None and second.strict_peers


SUBJECT = ("--repo", "r@1", "--subject", "f.yaml", "--release", "p==1")


def test_every_option_that_defines_the_cells_is_repeated(tmp_path: Path) -> None:
    options = ("--contracts", "c", "--contracts", "d", *SUBJECT, "--set", "axes.seed=0", "--provider", "p=m:f")
    made_runs.make(tmp_path, "a", wrong, options=options)
    args, _ = again("--failed", "a")
    found = parser("run").parse_args(args.argv)
    assert found.contracts == [Path("c"), Path("d")]
    assert (found.repo, found.subject, found.wheel, found.release) == ("r@1", "f.yaml", None, "p==1")
    declared = argparse.ArgumentParser()
    common.matrix_options(declared, needed=False)
    common.subject_options(declared)
    names = {word for action in declared._actions for word in action.option_strings}
    apart = {"-h", "--help", "--select", "--wheel"}  # --select narrowed what failed; --wheel is instead of --release
    assert names - apart <= {*args.argv}, "an option that says what a run is of, and that its repetition would lose"


@pytest.mark.parametrize(
    ("first", "now", "found"),
    [
        (SUBJECT, ("--wheel", "w.whl"), ("r@1", "f.yaml", Path("w.whl"), None)),
        (SUBJECT, ("--subject", "none"), (None, "none", None, None)),
        (SUBJECT, ("--repo", "s"), ("s", "f.yaml", None, "p==1")),
        (("--subject", "none"), ("--repo", "s"), ("s", None, None, None)),
    ],
)
def test_a_subject_that_is_named_now_replaces_what_it_contradicts(
    tmp_path: Path, first: tuple[str, ...], now: tuple[str, ...], found: tuple[Any, ...]
) -> None:
    made_runs.make(tmp_path, "a", wrong, options=first)
    args, _ = again("--failed", "a", *now)
    assert (args.repo, args.subject, args.wheel, args.release) == found


def test_a_matrix_behind_it_is_no_run(tmp_path: Path) -> None:
    made_runs.make(tmp_path, "a", wrong)
    args, _ = again("--failed", "m.yaml")
    assert (args.failed, args.matrices) == ("a", [Path("m.yaml")])


def test_cells_without_a_result_are_for_resume(tmp_path: Path) -> None:
    def half(cell: Any) -> dict[str, Any]:
        return {} if cell.dims["rows"] == 16 else wrong(cell)

    made_runs.make(tmp_path, "a", half, complete=False)
    assert planned("--failed") == ["farm float32 4"]


def test_cells_that_the_matrix_lost_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make(tmp_path, "a", wrong)
    (tmp_path / "m.yaml").write_text(made_runs.MATRIX.replace("[4, 16]", "[4]"))
    assert planned("--failed") == ["farm float32 4"]
    said = capsys.readouterr().err
    assert "[run-failed-missing]" in said and "2 cells" in said
    (tmp_path / "m.yaml").write_text(made_runs.MATRIX.replace("[4, 16]", "[5]"))
    with pytest.raises(UsageError) as caught:
        planned("--failed")
    assert caught.value.id == "plan-failed-nothing"
    with pytest.raises(UsageError) as caught:
        planned("--failed", "--select", "status=timed_out")
    assert caught.value.id == "plan-select-nothing"


@pytest.mark.parametrize(("exit_code", "code"), [(0, 0), (4, 4)])
def test_where_nothing_failed_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exit_code: int, code: int
) -> None:
    status = "passed" if exit_code == 0 else "unsupported"
    made_runs.make(tmp_path, "a", lambda c: {"status": status})
    assert main(["run", "--failed", "--out", str(tmp_path)]) == code
    said = capsys.readouterr().err
    assert "nothing runs again" in said and said.endswith(f": exit {code}\n")


@pytest.mark.parametrize(
    ("head", "id"),
    [({"kind": "compile"}, "run-failed-kind"), ({"argv": ["run", "m.yaml", "--of-a-newer-farm"]}, "run-failed-kind")],
)
def test_a_run_that_cannot_be_repeated_so(tmp_path: Path, head: dict[str, Any], id: str) -> None:
    made_runs.make(tmp_path, "a", wrong, **head)
    with pytest.raises(UsageError) as caught:
        again("--failed")
    assert caught.value.id == id


def test_a_run_judged_again_leads_to_its_origin(tmp_path: Path) -> None:
    made_runs.make(tmp_path, "a")
    made_runs.make(tmp_path, "b", wrong, kind="judged", derived_from="a", argv=["judge", "a"])
    assert planned("--failed") == ["farm float32 4", "farm float32 16", "farm bfloat16 16"]


# --write


def test_a_run_in_every_format(tmp_path: Path) -> None:
    cell = "cpu/rms_norm/farm/auto/forward/fp32/4x64/llama"
    run = made_runs.make(tmp_path, "a", wrong, logs={cell: "my print \x1b[31m"})
    found = {kind: common.export(run, kind) for kind in common.FORMATS}
    (case,) = [c for c in ElementTree.fromstring(found["junit"]).iter("testcase") if c.get("name") == cell]
    assert case.findtext("system-out") == "my print \N{REPLACEMENT CHARACTER}[31m"
    data = json.loads(found["json"])
    assert data["run"]["run_id"] == "a" and len(data["cells"]) == 8 and data["cells"][0]["dims"]["hidden"] == 64
    lines = list(csv.DictReader(found["csv"].splitlines()))
    assert [line["cell_id"] for line in lines] == [c["cell_id"] for c in data["cells"]]
    assert found["markdown"].startswith("### ")


def test_formats_of_the_command_line_are_those_that_exist() -> None:
    from farm.report import exports

    assert set(common.FORMATS) == set(exports.FORMATS)


def test_the_logs_in_a_junit_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.report.junit.MAX_LOGS", 150)
    ids = ["cpu/rms_norm/farm/auto/forward/fp32/4x64/llama", "cpu/rms_norm/farm/auto/forward/fp32/16x64/llama"]
    run = made_runs.make(tmp_path, "a", wrong, logs=dict.fromkeys(ids, "x" * 100))
    text = common.export(run, "junit")
    assert text.count("x" * 100) == 1 and text.count("is left out") == 1


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    values = {"max_ulp": float("inf"), "rel_l2": float("nan")}
    run = made_runs.make(tmp_path, "a", lambda c: {"status": "inaccurate", **values})
    first = json.loads(common.export(run, "json"))["cells"][0]
    assert (first["max_ulp"], first["rel_l2"]) == ("inf", None)


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (["pdf=f"], "option-write-malformed"),
        (["junit"], "option-write-malformed"),
        (["junit="], "option-write-malformed"),
        (["=f"], "option-write-malformed"),
        (["junit=none/f"], "option-write-unwritable"),
        (["junit=."], "option-write-unwritable"),
        (["junit=f", "csv=f"], "option-write-twice"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run(words: list[str], id: str) -> None:
    args = parser("run").parse_args(["run", "m.yaml", *(w for text in words for w in ("--write", text))])
    with pytest.raises(UsageError) as caught:
        run_command.check(args)
    assert caught.value.id == id


def test_a_file_that_fails_later_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_runs.make(tmp_path, "a")
    (tmp_path / "f").write_text("older")

    def full(self: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError) as caught:
        common.write_export(run, "csv", tmp_path / "f", "--write csv")
    assert caught.value.id == "export-unwritable" and (tmp_path / "f").read_text() == "older"
    assert not list(tmp_path.glob(".f.*"))


def test_a_missing_file_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_runs.make(tmp_path, "a")
    args = argparse.Namespace(command="run", out=".", no_page=True, strict_peers=False, write=["csv=gone/f"])
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr(common, "write_export", lambda *a: (_ for _ in ()).throw(StoreError("no", id="x")))
    assert run_command.tell(args, Store("."), "a", RunOutcome(run.rows, "passed", 0, False), 1.0) == 3
    assert capsys.readouterr().err.endswith("passed, but not everything could be written: exit 3\n")


# the last line


def rows(*statuses: str, role: str = "subject") -> list[dict[str, Any]]:
    one = {"role": role, "provider": "mine", "backend": "cpu", "cell_id": "x", "reason": ""}
    return [{**one, "status": s} for s in statuses]


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (RunOutcome(rows("passed"), "passed", 0, False), "passed: exit 0"),
        (RunOutcome(rows("passed", "crashed"), "findings", 1, False), "findings in 1 cell: exit 1"),
        (RunOutcome(rows("lost", "infra_error"), "farm_fault", 3, False), "infrastructure failures in 2 cells: exit 3"),
        (RunOutcome(rows("lost"), "farm_fault", 3, True), "interrupted: exit 3"),
        (RunOutcome(rows("lost"), "farm_fault", 1, True, "at ...", True), "stopped at the first finding (-x): exit 1"),
        (
            RunOutcome(rows("skipped"), "inconclusive", 4, False),
            "inconclusive, because the matrices exclude every cell, so nothing ran: exit 4",
        ),
        (
            RunOutcome(rows("unsupported") + rows("passed", role="peer"), "inconclusive", 4, False),
            "inconclusive, because every cell of mine on cpu is unsupported: exit 4",
        ),
    ],
)
def test_the_last_line_is_the_verdict_and_the_exit_code(outcome: RunOutcome, line: str) -> None:
    assert progress.ending(outcome, outcome.final_code, False) == line


def test_every_status_has_a_last_line() -> None:
    from farm.store import results

    for status in Status:
        verdict, code = results.verdict(rows(status.value))
        line = progress.ending(RunOutcome(rows(status.value), verdict, code, False), code, False)
        assert line.endswith(f"exit {code}")


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [("interrupted", 3, "interrupted: exit 3"), ("unannounced", 3, "interrupted: exit 3"),
     ("page missing", 1, "findings, without a page: exit 1")],
)  # fmt: skip
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_whose_process_ended_has_it_too(
    kind: str, code: int, line: str, begun: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"run": "r", "out": None, "store": ".", "no_page": True} if begun else {}
    run_command.explain("run", Outcome(code, kind, facts, "signal 9"))
    assert capsys.readouterr().err.splitlines()[-1] == (line if begun else f"interrupted: exit {code}")


# where a run without --address runs


def test_one_host_runs_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert address.default({}) == ("inline", "")
    assert address.default({"FARM_ADDRESS": " h:1 "}) == ("h:1", "FARM_ADDRESS")
    record = ray_folder.of_node({"RAY_TMPDIR": str(tmp_path)}) / "ray" / "ray_current_cluster"
    record.parent.mkdir(parents=True)
    record.write_text("10.0.0.1:6379\n")
    environ = {"RAY_TMPDIR": str(tmp_path)}
    assert address.default(environ) == ("inline", ""), "the node has ended; its file is still there"
    lines = ["python other", f"raylet --session-dir={record.parent}/session_2026 --x"]
    monkeypatch.setattr(ray_folder.procfs, "command_lines", lambda: lines)
    assert address.default(environ) == ("10.0.0.1:6379", str(record))
    assert address.default({**environ, "FARM_ADDRESS": "inline"})[0] == "inline"


def test_an_address_from_the_environment_is_named_in_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_ADDRESS", "nowhere")
    args = parser("run").parse_args(["run", "m.yaml"])
    with pytest.raises(UsageError) as caught:
        run_command.check(args)
    assert "FARM_ADDRESS" in str(caught.value)


@pytest.mark.parametrize("command", [["run", "m.yaml"], ["calibrate"]])
def test_no_command_starts_ray_unasked(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    args = parser(command[0]).parse_args(command)
    assert args.address is None
    run_command.resolve_address(args)
    assert args.address == "inline"


def test_make_run_goes_through_ray() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    lines = [line for line in makefile.splitlines() if "farm run matrices/smoke" in line]
    assert lines and all(line.endswith("--address local") for line in lines)


@pytest.mark.parametrize(("error", "code"), [(StoreError("disk full", id="x"), 2), (InfraError("no loop", id="x"), 3)])
def test_a_run_that_an_error_breaks_off_ends_with_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    def connect(args: Any, run_id: str, choose: Any, planned: Any, ready: Any) -> tuple[Any, list[Any], Any]:
        return argparse.Namespace(close=lambda: None), [], planned(["cpu"])

    def execute(*_: Any) -> None:
        raise error

    (tmp_path / "m.yaml").write_text(made_runs.MATRIX)
    monkeypatch.setattr(run_command, "connect", connect)
    monkeypatch.setattr(run_command, "execute", execute)
    assert main(["run", "m.yaml", "--backend", "cpu", "--address", "inline"]) == code
    *_, why, last = capsys.readouterr().err.splitlines()
    assert why == f"farm run: {error} [x]" and last == f"broken off: exit {code}"
