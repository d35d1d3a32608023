"""A run that was killed, or told to end, goes on in its own directory and has the ledger of one that was not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_command import FarmCommand
from farm_process import FarmRun

from farm.cli.main import main
from farm.judge.digest import judging_digest
from farm.store import Run
from farm.store.journal import encoded

Farm = Callable[..., FarmRun]
Resume = Callable[..., FarmCommand]
CELLS = 30


def matrix(cells: int = CELLS, **script: object) -> str:
    return json.dumps(
        {
            "name": "resumed",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"},
            "providers": ["farm"],
            "exclude": [{"hidden": 65, "reason": "not this one"}],
            "sim": {
                "default": {"time_us": 10, "wall_s": 0.1, **script},
                "rules": [{"when": {"hidden": 70}, "error": 0.1}],
            },
        }
    )


@pytest.fixture
def resume() -> Iterator[Resume]:
    """Starts `farm resume` of a run."""
    started: list[FarmCommand] = []

    def start(run: FarmRun, *words: str, command: str = "resume") -> FarmCommand:
        given = (command, run.run_id, "--out", str(run.store.path), "--no-page", *words)
        found = FarmCommand(run.folder, run.store.path, run.run_id, *given)
        started.append(found)
        return found.start()

    yield start
    for one in started:
        one.end()


def kill(run: FarmRun) -> None:
    assert run.process is not None
    run.process.kill()
    run.process.wait(timeout=20)
    run.assert_nothing_left()


def ledger(run: Run) -> list[tuple[Any, ...]]:
    """What two runs of one matrix have in common: everything but places, times and attempts."""
    names = (
        "index",
        "cell_id",
        "cell_key",
        "status",
        "reason",
        "fault_owner",
        "evidence",
        "role",
        "output_hash",
        "timing_method",
        "samples",
        "worst_metric",
    )
    return [tuple(row[n] for n in names) for row in run.rows]


def assert_whole(run: FarmRun, before: list[dict[str, Any]], *, cells: int = CELLS) -> None:
    """Complete; what was known stands as it was; nothing ran twice under one number; samples of every timed cell."""
    found = run.run
    assert found.complete and not (found.dir / "writer.lock").exists()
    rows = {r["cell_id"]: r for r in run.rows()}
    assert len(rows) == cells
    for event in before:
        assert rows[event["row"]["cell_id"]] == event["row"]
    seen = Counter((e["cell"], e["attempt"]) for e in run.journal("started"))
    assert max(seen.values()) == 1
    assert Counter(e["row"]["cell_id"] for e in run.journal("result")) == dict.fromkeys(rows, 1)
    assert sorted(s["cell_id"] for s in found.samples()) == sorted(i for i, r in rows.items() if r["samples"])
    assert found.head["counts"] == {"passed": cells - 2, "inaccurate": 1, "skipped": 1}
    assert run.journal()[-1]["event"] == "finished"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_ended_run_goes_on_to_the_ledger_of_one_that_was_not(
    farm: Farm, resume: Resume, how: signal.Signals
) -> None:
    run, other = farm(matrix()), farm(matrix())
    run.wait_for("result", 6)
    assert run.process is not None
    run.process.send_signal(how)
    assert run.wait() == (3 if how == signal.SIGTERM else -9)
    run.assert_nothing_left()
    before = run.journal("result")
    assert 0 < len(before) < CELLS
    if how == signal.SIGTERM:
        assert f"farm resume {run.run_id} --out {run.store.path}" in run.said()
    again = resume(run)
    assert again.wait() == 1, again.said()
    assert f"{len(before)} of {CELLS} cells already finished" in again.said()
    assert_whole(run, before)
    assert other.wait() == 1
    assert ledger(run.run) == ledger(other.run)
    head = run.run.head
    (went_on,) = head["resumed"]
    assert went_on["argv"][:2] == ["resume", run.run_id] and went_on["revision"]["name"]
    assert head["argv"][0] == "run" and head["seconds"] > 1.0
    assert [e["event"] for e in run.journal() if e["event"] in ("run", "planned", "resumed", "finished")] == [
        "run",
        "planned",
        "resumed",
        "finished",
    ]
    again.assert_nothing_left()


def test_a_resumed_run_that_is_killed_is_resumed(farm: Farm, resume: Resume) -> None:
    run = farm(matrix())
    run.wait_for("result", 5)
    kill(run)
    with (run.run.dir / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"event":"result","row":{"index":')
    first = run.journal("result")
    again = resume(run)
    again.wait_for("result", len(first) + 5)
    kill(again)
    second = run.journal("result")
    assert second[: len(first)] == first and len(second) >= len(first) + 5
    last = resume(run)
    assert last.wait() == 1, last.said()
    assert_whole(run, second)
    assert len(run.run.head["resumed"]) == len(run.journal("resumed")) == 2


def test_a_run_killed_while_it_wrote_its_tables_needs_no_device(farm: Farm, resume: Resume) -> None:
    run = farm(matrix())
    assert run.wait() == 1
    rows, samples, head = run.rows(), run.run.samples(), run.run.head
    (run.run.dir / "run.json").unlink()
    (run.run.dir / "cells.parquet").unlink()
    (run.run.dir / "samples.parquet").rename(run.run.dir / "samples.tmp")
    again = resume(run, "--address", "inline")
    assert again.wait() == 1, again.said()
    found = run.run
    assert found.rows == rows
    assert sorted(found.samples(), key=str) == sorted(samples, key=str)
    assert len(run.journal("device_up")) == 2  # of the first time
    assert {k: found.head[k] for k in ("counts", "verdict", "exit_code", "plan_hash", "matrices", "created")} == {
        k: head[k] for k in ("counts", "verdict", "exit_code", "plan_hash", "matrices", "created")
    }
    known = {b: sorted(d["device"] for d in told["devices"]) for b, told in found.head["backends"].items()}
    assert known == {"sim": ["sim:0", "sim:1"]}


def test_a_run_that_is_written_is_not_resumed(farm: Farm, resume: Resume) -> None:
    run = farm(matrix())
    run.wait_for("result", 2)
    assert run.process is not None
    os.kill(worker := run.worker, signal.SIGSTOP)  # or a busy host has ended it before the other has even begun
    other = resume(run)
    assert other.wait() == 2
    assert f"process {worker} on" in other.said() and "[store-run-busy]" in other.said()
    kill(run)
    first, second = resume(run), resume(run)
    codes = sorted([first.wait(), second.wait()])
    assert codes == [1, 2], first.said() + second.said()
    refused = second if "[store-run-busy]" in second.said() else first
    assert "[store-run-busy]" in refused.said() or "[store-run-complete]" in refused.said()
    assert_whole(run, [])


def test_lost_cells_are_run_again(farm: Farm, resume: Resume) -> None:
    """A run that stopped, since all of its devices had failed, and is never complete before it is whole."""
    run = farm(matrix(8), "--set", "deadlines.spawn=0.01")
    assert run.wait() == 3
    assert Counter(r["status"] for r in run.rows()) == {"lost": 7, "skipped": 1}
    assert "[run-devices-out]" in run.said() and not (run.run.dir / "run.json").exists()
    edit(run, lambda head: [m["deadlines"].update(spawn=60.0) for m in head["matrices"]])  # better devices today
    again = resume(run)
    assert again.wait() == 1, again.said()
    assert Counter(r["status"] for r in run.rows()) == {"passed": 6, "inaccurate": 1, "skipped": 1}


@pytest.mark.long
def test_options_of_the_first_run_hold_until_they_are_given_anew(farm: Farm, resume: Resume) -> None:
    run = farm(matrix(), "--devices", "1")
    run.wait_for("result", 3)
    kill(run)
    again = resume(run)
    again.wait_for("result", len(run.journal("result")) + 3)
    assert {e["device"] for e in run.journal("device_up")} == {"sim:0"}
    kill(again)
    last = resume(run, "--devices", "3")
    assert last.wait() == 1, last.said()
    assert {e["device"] for e in run.journal("device_up")} == {"sim:0", "sim:1", "sim:2"}
    assert {d["device"] for d in run.run.head["backends"]["sim"]["devices"]} == {"sim:0", "sim:1", "sim:2"}


# Refusals


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmRun]:
    """A run with a provider of its own, killed in the middle."""
    folder = tmp_path_factory.mktemp("cut")
    (folder / "mine.py").write_text("def norm(x, weight, eps): return x\n")
    run = FarmRun(folder, matrix(), ("--provider", "own=mine:norm"))
    run.start()
    run.wait_for("result", 4)
    kill(run)
    yield run
    run.end()


@pytest.fixture
def copied(cut: FarmRun, tmp_path: Path) -> FarmRun:
    shutil.copytree(cut.folder, tmp_path / "run")
    copy = FarmRun(tmp_path / "run", cut.matrix)
    copy.run_id = cut.run_id
    return copy


@pytest.fixture
def refused(copied: FarmRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`farm resume` of the copy in this process: one sentence and exit code 2."""
    monkeypatch.chdir(copied.folder)

    def refuse(*words: str) -> str:
        assert main(["resume", copied.run_id, "--out", str(copied.store.path), "--no-page", *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "Traceback" not in said
        return said

    return refuse


def edit(run: FarmRun, change: Callable[[dict[str, Any]], Any]) -> None:
    rewrite(run, lambda line: change(line) if line["event"] == "run" else None)


def rewrite(run: FarmRun, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the lines of a journal, with their checksums."""
    lines = list(run.run.journal())
    for line in lines:
        change(line)
    (run.run.dir / "journal.jsonl").write_text("".join(encoded(line) for line in lines))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda h: h.update(schema=3), "schema 3 [resume-schema]"),
        (lambda h: h.update(kind="compile"), "[resume-kind]"),
        (lambda h: h.update(plan_hash="0" * 64), "[resume-plan-hash]"),
        (lambda h: h.pop("matrices"), "[resume-matrices-missing]"),
        (lambda h: h["revision"].update(kernels="other", name="abc"), "revision abc [resume-code-changed]"),
        (lambda h: h["providers"]["own"].update(sha256="x"), "provider own [resume-code-changed]"),
        (lambda h: h.update(matrices=7), "[resume-matrices-missing]"),
    ],
)
def test_what_cannot_go_on_is_refused_and_stays_as_it_is(
    copied: FarmRun, refused: Callable[..., str], change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    edit(copied, change)
    before = (copied.run.dir / "journal.jsonl").read_bytes()
    said, (data, _, name) = refused(), told.rpartition("[")
    assert data.strip() in said and f"[{name}" in said
    assert (copied.run.dir / "journal.jsonl").read_bytes() == before
    assert not (copied.run.dir / "writer.lock").exists()


def test_a_plan_that_was_not_written_whole_is_refused(copied: FarmRun, refused: Callable[..., str]) -> None:
    path = copied.run.dir / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:9]))
    assert "[resume-plan-incomplete]" in refused()


def test_a_missing_provider_is_one_sentence(copied: FarmRun, refused: Callable[..., str]) -> None:
    (copied.folder / "mine.py").rename(copied.folder / "yours.py")
    assert '"mine"' in refused()
    assert "[resume-provider-unknown]" in refused("--provider", "other=yours:norm")


def test_two_revisions_are_mixed_only_when_that_is_wanted(copied: FarmRun, resume: Resume) -> None:
    edit(copied, lambda h: h["revision"].update(kernels="other", name="abc"))
    other = "0123456789abcdef"

    def judge(line: dict[str, Any]) -> None:
        for part in (line, line.get("row", {})):
            if part.get("judged_by") == judging_digest():
                part["judged_by"] = other

    rewrite(copied, judge)
    judged = {e["row"]["cell_id"] for e in copied.journal("result") if e["row"]["judged_by"] == other}
    again = resume(copied, "--other-revision")
    assert again.wait() == 1, again.said()
    assert "revision abc" in again.said() and "[resume-code-mixed]" in again.said()
    assert "[resume-judge-mixed]" in again.said() and other in again.said() and judging_digest() in again.said()
    assert {r["cell_id"] for r in copied.rows() if r["judged_by"] == other} == judged
    assert {r["judged_by"] for r in copied.rows() if r["status"] == "passed"} == {other, judging_digest()}
    assert copied.run.complete and copied.run.head["revision"]["name"] == "abc"
    assert copied.run.head["resumed"][0]["revision"]["name"] != "abc"
    owners = {r["provider"] for r in copied.rows()}
    assert owners == {"farm", "own"}


@pytest.mark.long
def test_a_part_of_a_plan_is_resumed_as_that_part(tmp_path: Path, resume: Resume) -> None:
    (tmp_path / "m.yaml").write_text(matrix())
    made = FarmCommand(tmp_path, tmp_path, "", "plan", "m.yaml", "--backend", "sim,cpu", "--out", "PLAN").start()
    assert made.wait() == 0, made.said()
    words = ("run", "--plan", "PLAN", "--target", "sim", "--address", "inline", "--out", "store", "--run-id", "r")
    run = FarmCommand(tmp_path, tmp_path / "store", "r", *words).start()
    try:
        run.wait_for("result", 4)
        kill(run)
        again = resume(run)
        assert again.wait() == 1, again.said()
    finally:
        run.end()
    assert run.run.head["plan"]["part"] == "sim"
    merge = FarmCommand(
        tmp_path, tmp_path / "store", "all", "merge", "r", "--run-id", "all", "--out", "store", "--no-page"
    ).start()
    assert merge.wait() == 3, merge.said()
    assert Counter((r["backend"], r["status"]) for r in merge.rows()) == {
        ("sim", "passed"): 28,
        ("sim", "inaccurate"): 1,
        ("sim", "skipped"): 1,
        ("cpu", "lost"): 30,
    }


@pytest.mark.long
@pytest.mark.ray
def test_a_killed_run_on_ray_is_resumed_on_ray(farm: Farm, resume: Resume) -> None:
    run = farm(matrix(), address="local")
    run.wait_for("result", 5)
    assert run.process is not None
    run.process.kill()
    run.process.wait(timeout=20)
    before = run.journal("result")
    again = resume(run)
    assert again.wait(120) == 1, again.said()
    assert_whole(run, before)
    assert os.path.lexists(run.run.dir / "run.json")
