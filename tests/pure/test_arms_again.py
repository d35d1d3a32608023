"""Runs of two arms judged again, and merged from the parts of one plan; what was edited is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from scripted_cluster import Quiet, slot
from test_two_arms import ARMS, ArmsCluster, Says, noisy

from farm.cli.main import main
from farm.compare.kernel_changes import changes
from farm.coordinator import RunRequest, execute
from farm.coordinator.request import RunArm
from farm.dashboards import views
from farm.dashboards.build import build
from farm.matrix import load_all, plan
from farm.matrix.arms import two
from farm.node.environment import Environment
from farm.report import pairs_again
from farm.sites import planfile
from farm.sites.planfile import PlanFile
from farm.store import Run, Store
from farm.store.index_files import about
from farm.store.pairs import PAIR_COLUMNS, ROUND_COLUMNS
from farm.store.tables import write_table

KERNELS = changes(
    {"k.py": "import triton\n@triton.jit\ndef one(x): pass\n@triton.jit\ndef two(x): pass\n"},
    {"k.py": "import triton\n@triton.jit\ndef one(x): 1\n@triton.jit\ndef two(x): 2\n"},
)


def planned(folder: Path, cells: int = 2) -> PlanFile:
    """A plan of both arms for cuda and rocm, each with `cells` cells."""
    axes = {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"}
    (folder / "m.yaml").write_text(json.dumps({"name": "m", "op": "rms_norm", "providers": ["farm"], "axes": axes}))
    plans = [plan(load_all(folder / "m.yaml"), ["cuda", "rocm"])] * 2
    arms = {arm.name: {**arm.plain(), "called": arm.called, "digest": "", "revision": "r"} for arm in ARMS}
    text = planfile.write(two(plans, ARMS), {}, {}, arms)
    (folder / "PLAN").write_text(text)
    return planfile.read(text, "PLAN")


def ran(folder: Path, file: PlanFile, name: str, part: str, says: Says) -> Run:
    """A run of a part of the plan, at a site."""
    store = Store(folder / "store")
    writer = store.create(name)
    writer.keep_plan(file.text)
    mine = planfile.part(file.plan, part)
    both = tuple(RunArm(arm, "r", Environment.default(), {}) for arm in ARMS)
    slots = [replace(slot(f"{part}:0", "h0"), backend=part)]
    words = ["run", "--plan", "PLAN", "--target", part]
    request = RunRequest(
        mine, slots, "farm run", words, {"name": "r"}, arms=both, part=file.described(part), kernels=KERNELS
    )
    execute(request, ArmsCluster(says), writer, Quiet())
    return store.run(name)


def launching(kernel: str, says: Says) -> Says:
    return lambda cell, number: {**says(cell, number), "seen": {kernel: 1}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_sites(tmp_path_factory.mktemp("sites"))


def two_sites(folder: Path) -> Path:
    """A store with the runs of both parts of a plan: nv and amd."""
    file = planned(folder)
    ran(folder, file, "nv", "cuda", launching("one", lambda cell, number: {"time": 10.0}))
    slow = lambda cell, number: {"time": 11.0 if cell["arm"] == "b" and cell["dims"]["hidden"] == 65 else 10.0}  # noqa: E731
    ran(folder, file, "amd", "rocm", launching("two", slow))
    return folder


@pytest.fixture
def sites(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def again(folder: Path, command: str, *words: str) -> int:
    return main([command, *words, "--out", str(folder / "store"), "--no-page"])


def test_parts_of_a_plan_are_one_comparison(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sites
    assert again(folder, "merge", "nv", "--run-id", "half") == 3, "no site reported rocm"
    assert "2 cells without a result" in capsys.readouterr().out
    assert again(folder, "merge", "half", "amd", "--run-id", "all") == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "worse: exit 1" and "1 cell regressed: first rocm/" in out
    run = Store(folder / "store").run("all")
    assert (run.head["kind"], run.head["comparison"]["verdict"]) == ("merged", "worse")
    parts = {name: Store(folder / "store").run(name) for name in ("nv", "amd")}
    kept = sorted((r["cell"], r["verdict"], r["ratio"]) for part in parts.values() for r in part.table("pairs"))
    assert sorted((r["cell"], r["verdict"], r["ratio"]) for r in run.table("pairs")) == kept
    assert len(run.table("rounds")) == sum(len(part.table("rounds")) for part in parts.values())
    kernels = {k["kernel"]: k["state"] for k in run.head["comparison"]["kernels"]}
    assert kernels == {"one": "reached", "two": "reached"}, "each was launched at one site only"
    assert {k["state"] for k in parts["nv"].head["comparison"]["kernels"]} == {"reached", "unreached"}
    page = build(Store(folder / "store"), "all")
    assert "Worse: 1 cell regressed" in page.read_text() and page.with_name("results-all.html").is_file()


def test_both_arms_of_a_pair_are_of_one_run(tmp_path: Path) -> None:
    file = planned(tmp_path, 1)
    broken = lambda cell, number: {"status": "crashed"} if cell["arm"] == "a" else {}  # noqa: E731
    infra = {"status": "infra_error", "owner": "infra"}
    ran(tmp_path, file, "first", "cuda", lambda cell, number: infra if cell["arm"] == "b" else {})
    ran(tmp_path, file, "second", "cuda", broken)
    assert again(tmp_path, "merge", "first", "second", "--run-id", "m") == 3
    pairs = [p for p in Store(tmp_path / "store").run("m").table("pairs") if p["backend"] == "cuda"]
    assert [(p["status_a"], p["status_b"]) for p in pairs] == [("crashed", "passed")], "not one arm of each run"


def edited_rounds(rows: list[dict[str, Any]]) -> None:
    next(r for r in rows if r["round"] == 1)["time_us_p50"] = 1.0


def edited_pairs(rows: list[dict[str, Any]]) -> None:
    rows[0]["status_b"] = "inaccurate"


def fewer(rows: list[dict[str, Any]]) -> None:
    rows.pop()


def edited_verdict(rows: list[dict[str, Any]]) -> None:
    rows[0]["time_us_b"] = 1.0


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("rounds", edited_rounds, "time_us_p50 of round 1 differs"),
        ("rounds", fewer, "results of further rounds, but the journal has"),
        ("pairs", edited_pairs, "status_b in pairs.parquet does not follow"),
        ("pairs", edited_verdict, "time_us_b in pairs.parquet does not follow"),
        ("pairs", fewer, "does not have each cell of the run once"),
    ],
)
def test_an_edited_table_is_refused(
    sites: Path,
    capsys: pytest.CaptureFixture[str],
    table: str,
    change: Callable[[list[dict[str, Any]]], None],
    said: str,
) -> None:
    path = sites / f"store/runs/nv/{table}.parquet"
    rows = pq.read_table(path).to_pylist()
    change(rows)
    write_table(path, rows, ROUND_COLUMNS if table == "rounds" else PAIR_COLUMNS)
    assert again(sites, "merge", "nv", "amd") == 2
    told = capsys.readouterr().err
    assert said in told and "[merge-damaged]" in told


def test_what_is_not_of_the_plan_or_not_ended_is_refused(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sites
    runs = folder / "store/runs"
    shutil.copytree(runs / "nv", runs / "open")
    (runs / "open/run.json").unlink()
    assert again(folder, "merge", "open", "amd") == 2 and "[merge-arms-open]" in capsys.readouterr().err
    assert again(folder, "judge", "open") == 2 and "[judge-arms-interrupted]" in capsys.readouterr().err
    head = json.loads((runs / "nv/run.json").read_text())
    head["arms"]["b"]["digest"] = "other"
    (runs / "nv/run.json").write_text(json.dumps(head))
    assert again(folder, "merge", "nv", "amd") == 2 and "[merge-arms-differ]" in capsys.readouterr().err


def test_a_comparison_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = planned(tmp_path)
    run = ran(tmp_path, file, "r", "cuda", launching("one", noisy(1)))
    rows = [dict(row) for row in run.rows]
    pairs, rounds = run.table("pairs"), run.table("rounds")
    assert [{**p} for p in pairs_again.rejudged(pairs, rounds, rows)] == [
        {k: v for k, v in p.items() if k in made} for p, made in zip(pairs, pairs_again.rejudged(pairs, rounds, rows))
    ], "nothing changes where no verdict does"
    worse = [r | {"status": "inaccurate"} if r["cell_id"].endswith("2x65/llama~b") else r for r in rows]
    first, second = pairs_again.rejudged(pairs, rounds, worse)
    assert (first["change"], first["verdict"]) == ("same", "same")
    assert (second["change"], second["verdict"], second["note"]) == ("broken", "", "")
    better = pairs_again.rejudged(pairs_again.rejudged(pairs, rounds, worse), rounds, rows)
    assert better[1]["change"] == "same" and better[1]["note"] == pairs_again.NOT_TIMED
    assert pairs_again.comparison([first, second], [])[1].exit_code == 1
    code = again(tmp_path, "judge", "r", "--run-id", "j")
    derived = Store(tmp_path / "store").run("j")
    assert derived.head["kind"] == "judged" and derived.head["comparison"]["exit_code"] == code
    assert "statuses of 2 cells" in capsys.readouterr().out and len(derived.table("rounds")) == len(rounds)


def test_no_comparison_is_a_night(sites: Path) -> None:
    assert again(sites, "merge", "nv", "amd", "--run-id", "all") == 1
    assert again(sites, "judge", "all", "--run-id", "judged") == 1
    store = Store(sites / "store")
    assert {about(store.run(name))["kind"] for name in ("nv", "all", "judged")} == {"ab"}
    page = build(store)
    assert page.read_text().count("B against A: worse") == 3
    assert not [*page.parent.glob("compare-*"), *page.parent.glob("backend-*")]
    index, row = views.checked(store), store.run("nv").rows[0]
    assert index.series(row["cell_key"], ("target",), "")
    assert views.cell_history(index, row["cell_key"], "", row["target"]) == []
