"""Three clusters that do not know each other: real processes, a store each, fakes of three vendors; one ledger."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_command import FarmCommand

from farm.store import Run, Store
from farm.store.lock import acquire
from farm.store.results import counts

MODELS = {"cuda": "NVIDIA GB200", "rocm": "AMD Instinct MI300X", "ascend": "Ascend910B3"}
Command = Callable[..., FarmCommand]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """`farm WORDS` at a site, which has its own folder, store and node configuration."""
    started: list[FarmCommand] = []

    def start(site: str, *words: str, run_id: str = "nightly") -> FarmCommand:
        folder = tmp_path_factory.getbasetemp() / f"site-{site}"
        folder.mkdir(exist_ok=True)
        environment = {}
        if site in MODELS:
            node = {"backend": site, "simulate": {"model": MODELS[site], "devices": 2}}
            (folder / "node.yaml").write_text(json.dumps(node))
            environment = {"FARM_NODE": str(folder / "node.yaml")}
        found = FarmCommand(folder, folder / "store", run_id, *words, "--out", "store", environment=environment)
        started.append(found)
        return found.start()

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for three vendors; one kernel is wrong on AMD's."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "m.yaml").write_text(
        json.dumps(
            {
                "name": "sites",
                "op": "rms_norm",
                "require": ["cuda", "rocm", "ascend"],
                "axes": {"shape": [{"rows": 2, "hidden": [64, 65, 66, 67]}], "dtype": "float32"},
                "providers": ["farm", "torch"],
                "exclude": [{"provider": "torch", "hidden": 67, "reason": "odd"}],
                "sim": {
                    "default": {"time_us": 10, "noise": 0.01},
                    "rules": [{"when": {"backend": "rocm", "provider": "farm", "hidden": 65}, "error": 0.1}],
                },
            }
        )
    )
    made = FarmCommand(folder, folder, "", "plan", "m.yaml", "--out", "PLAN").start()
    assert made.wait() == 0, made.said()
    (folder / "m.yaml").unlink()  # no site has it
    return folder / "PLAN"


@pytest.fixture(scope="module")
def sites(command: Command, plan: Path) -> dict[str, Path]:
    """The run directories of two sites that ran their parts; the third is silent."""
    runs = [
        command(b, "run", "--plan", str(plan), "--target", b, "--address", "inline", "--run-id", "nightly", "--no-page")
        for b in ("cuda", "rocm")
    ]
    assert [r.wait() for r in runs] == [0, 1], [r.said() for r in runs]  # AMD's has a finding
    return {b: r.run.dir for b, r in zip(("cuda", "rocm"), runs)}


def test_a_site_runs_its_part_and_keeps_the_whole_plan(sites: dict[str, Path], plan: Path) -> None:
    for backend, folder in sites.items():
        run = Run(folder)
        assert {r["backend"] for r in run.rows} == {backend} and len(run.rows) == run.head["planned"] == 8
        assert (folder / "plan.json").read_text() == plan.read_text()
        told = run.head["plan"]
        assert told["part"] == backend and told["of"] == ["cuda", "rocm", "ascend"]
        assert told["hash"] == json.loads(plan.read_text())["plan_hash"] != run.head["plan_hash"]
        assert {r["evidence"] for r in run.rows if r["status"] != "skipped"} == {"simulated"}


def test_a_silent_site_is_lost_in_the_one_ledger(command: Command, sites: dict[str, Path]) -> None:
    merge = command("head", "merge", *map(str, sites.values()), "--run-id", "all", run_id="all")
    assert merge.wait() == 3, merge.said()
    rows = merge.rows()
    assert [r["index"] for r in rows] == list(range(24))
    assert Counter((r["backend"], r["status"]) for r in rows) == {
        ("cuda", "passed"): 7,
        ("cuda", "skipped"): 1,
        ("rocm", "passed"): 6,
        ("rocm", "inaccurate"): 1,
        ("rocm", "skipped"): 1,
        ("ascend", "lost"): 8,
    }
    assert {r["reason"] for r in rows if r["status"] == "lost"} == {"no site reported ascend"}
    run = merge.run
    assert run.complete and run.head["kind"] == "merged" and run.head["silent"] == {"ascend": 8}
    assert run.head["counts"] == counts(rows) and sum(run.head["counts"].values()) == run.head["planned"]
    assert (run.head["verdict"], run.head["exit_code"]) == ("farm_fault", 3)
    assert {s["cell_id"] for s in run.samples()} == {r["cell_id"] for r in rows if r["evidence"]}
    (bad,) = [r for r in rows if r["status"] == "inaccurate"]
    assert "tolerance" in (run.dir / bad["log"]).read_text()
    for row in rows:  # each is the site's own, but for its place and its log
        if row["backend"] in sites:
            (own,) = [r for r in Run(sites[row["backend"]]).rows if r["cell_id"] == row["cell_id"]]
            assert {**own, "index": 0, "log": ""} == {**row, "index": 0, "log": ""}
    said = merge.said()
    assert "no site reported part ascend; 8 cells lost" in said and "24 planned = 24 accounted for" in said
    page = Path(said.rpartition("page: ")[2].splitlines()[0]).read_text()
    assert "no site reported ascend" in page


@pytest.mark.long
def test_the_third_site_reports_later(command: Command, sites: dict[str, Path], plan: Path) -> None:
    early = command("later", "merge", *map(str, sites.values()), "--run-id", "early", "--no-page", run_id="early")
    assert early.wait() == 3, early.said()
    run = ("run", "--plan", str(plan), "--target", "ascend", "--address", "inline", "--run-id", "nightly", "--no-page")
    late = command("ascend", *run)
    assert late.wait() == 0, late.said()
    merge = command("later", "merge", "early", str(late.run.dir), "--run-id", "all", "--no-page", run_id="all")
    assert merge.wait() == 1, merge.said()  # nothing is lost, and AMD's finding is one
    assert counts(merge.rows()) == {"passed": 20, "inaccurate": 1, "skipped": 3}
    assert [r["part"] for r in merge.run.head["merged"]] == ["cuda", "rocm", "ascend"]
    assert (merge.run.dir / "plan.json").read_text() == plan.read_text()
    judged = command("later", "judge", "all", "--run-id", "again", "--no-page", run_id="again")
    assert judged.wait() == 1, judged.said()
    assert counts(judged.rows()) == counts(merge.rows())


def test_runs_that_are_damaged_edited_or_named_twice_are_refused(
    command: Command, sites: dict[str, Path], tmp_path: Path
) -> None:
    def broken(name: str, spoil: Callable[[Path], Any]) -> str:
        copy = tmp_path / name
        shutil.copytree(sites["cuda"], copy)
        spoil(copy)
        merge = command("refusing", "merge", str(copy), str(sites["rocm"]), "--no-page")
        assert merge.wait() == 2, merge.said()
        assert merge.said().count("\n") == 1 and "Traceback" not in merge.said()
        return merge.said()

    def edit(run: Path) -> None:
        import pyarrow.parquet as pq

        table = pq.read_table(run / "cells.parquet")
        column = table.schema.get_field_index("reason")
        pq.write_table(table.set_column(column, table.schema.field(column), [["fine"] * 8]), run / "cells.parquet")

    def faster(run: Path) -> None:
        import pyarrow.parquet as pq

        table = pq.read_table(run / "samples.parquet")
        column = table.schema.get_field_index("samples_us")
        quick = [["[1.0]"] * len(table)]
        pq.write_table(table.set_column(column, table.schema.field(column), quick), run / "samples.parquet")

    def cut(run: Path) -> None:
        data = (run / "cells.parquet").read_bytes()
        (run / "cells.parquet").write_bytes(data[: len(data) // 2])

    def replan(run: Path) -> None:
        text = (run / "plan.json").read_text()
        (run / "plan.json").write_text(text.replace('"reason": "odd"', '"reason": "even"').replace('"odd', '"even'))

    edited, slower = broken("edited", edit), broken("faster", faster)
    assert ": reason differs" in edited and "[merge-damaged]" in edited
    assert ": samples_us differs between samples.parquet" in slower and "[merge-damaged]" in slower
    assert "cannot be read" in broken("cut", cut)
    assert "[plan-damaged]" in broken("replanned", replan)
    assert "cannot be read" in broken("headless", lambda run: (run / "run.json").write_text("{"))
    assert "[merge-run-copied]" in _twice(command, sites, tmp_path)
    assert "no run" in _refused(command, "merge", "nowhere")
    assert "[merge-folder-missing]" in _refused(command, "merge", "no/where")
    assert not list(Store(tmp_path.parent / "site-refusing" / "store").runs())


def _refused(command: Command, *words: str) -> str:
    found = command("refusing", *words, "--no-page")
    assert found.wait() == 2, found.said()
    return found.said()


def _twice(command: Command, sites: dict[str, Path], tmp_path: Path) -> str:
    shutil.copytree(sites["cuda"], tmp_path / "copied")
    return _refused(command, "merge", str(sites["cuda"]), str(tmp_path / "copied"))


def test_a_log_that_leads_elsewhere_is_not_followed(command: Command, sites: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "amd"
    shutil.copytree(sites["rocm"], copy)
    (log,) = [p for p in (copy / "logs").iterdir() if p.is_file()]
    log.unlink()
    log.symlink_to("/etc/passwd")
    assert "[store-log-missing]" in _refused(command, "merge", str(copy))


@pytest.mark.long
def test_a_run_that_is_still_written_is_merged_as_one(command: Command, sites: dict[str, Path], tmp_path: Path) -> None:
    """It is not called incomplete, which would send somebody to its site to resume it."""
    going = tmp_path / "going"
    shutil.copytree(sites["cuda"], going)
    for name in ("run.json", "cells.parquet", "samples.parquet"):
        (going / name).unlink()
    lines = (going / "journal.jsonl").read_text().splitlines(keepends=True)
    results = [i for i, line in enumerate(lines) if '"event":"result"' in line]
    (going / "journal.jsonl").write_text("".join([*lines[: results[3]], lines[results[3]][:20]]))  # within a line
    lock = acquire(going)
    try:
        merge = command("head", "merge", str(going), str(sites["rocm"]), "--run-id", "soon", "--no-page", run_id="soon")
        assert merge.wait() == 3, merge.said()
    finally:
        lock.release()
    said, rows = merge.said(), merge.rows()
    lost = [r for r in rows if r["status"] == "lost" and r["backend"] == "cuda"]
    told = f"still being written by process {os.getpid()} on "
    assert len(lost) == 5 and all(told in r["reason"] for r in lost)
    assert f"run nightly is {told}" in said and "5 of 8 cells" in said
    assert "incomplete" not in said and "farm resume" not in said
    after = command("head", "merge", "soon", str(sites["cuda"]), "--run-id", "then", "--no-page", run_id="then")
    assert after.wait() == 3, after.said()
    assert "still being written" not in after.said() and counts(after.rows())["lost"] == 8  # the silent site's


def test_a_run_without_a_plan_cannot_be_merged(command: Command, sites: dict[str, Path], plan: Path) -> None:
    folder = sites["cuda"].parents[2]
    (folder / "m.yaml").write_text(
        json.dumps(
            {
                "name": "m",
                "op": "rms_norm",
                "axes": {"shape": [{"rows": 2, "hidden": 64}], "dtype": "float32"},
                "providers": ["farm"],
            }
        )
    )
    plain = command("cuda", "run", "m.yaml", "--backend", "sim", "--address", "inline", "--run-id", "x", run_id="x")
    assert plain.wait() == 0, plain.said()
    said = _refused(command, "merge", str(plain.run.dir), "--plan", str(plan))
    assert "[merge-without-plan]" in said
    assert "[merge-plan-missing]" in _refused(command, "merge", str(plain.run.dir))


def test_a_run_asks_for_an_environment_by_its_name(command: Command, plan: Path, tmp_path: Path) -> None:
    node = {
        "backend": "ascend",
        "simulate": {"model": MODELS["ascend"], "devices": 1},
        "environments": {"nightly": {"python": sys.executable, "variables": {"SAID": "1"}}},
    }
    (tmp_path / "node.yaml").write_text(json.dumps(node))
    words = ("run", "--plan", str(plan), "--target", "ascend", "--address", "inline", "--out", "store", "--no-page")
    for name, code in (("nightly", 0), ("weekly", 2)):
        run = FarmCommand(
            tmp_path,
            tmp_path / "store",
            name,
            *words,
            "--run-id",
            name,
            "--environment",
            name,
            environment={"FARM_NODE": str(tmp_path / "node.yaml")},
        ).start()
        assert run.wait() == code, run.said()
        if code:
            assert '"weekly"' in run.said() and "default, nightly [node-no-environment]" in run.said()
            continue
        assert {r["status"] for r in run.rows() if r["status"] != "skipped"} == {"passed"}
        assert list(run.run.head["environments"]) == [name]
