"""Liger-Kernel's benchmark data in and out, on made-up data of its format; with LIGER_DATA (a folder of its CSV files,
each named after its commit) and LIGER_REPO (a clone) on what was published."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cli.main import main
from farm.dashboards import views
from farm.report import liger, liger_format
from farm.report.nights import Nights
from farm.store import Store, index
from farm.subject import op_digests

HEAD = ",".join(liger_format.COLUMNS)


def line(**given: Any) -> list[str]:
    """The fields of a point."""
    known = {
        "kernel_name": "rms_norm",
        "kernel_provider": "liger",
        "kernel_operation_mode": "forward",
        "metric_name": "speed",
        "metric_unit": "ms",
        "x_name": "H",
        "x_label": "hidden size",
        "x_value": "1024",
        "y_value_50": "0.02",
        "y_value_20": "0.019",
        "y_value_80": "0.0215",
        "extra_benchmark_config_str": '{"M": 2048, "dtype": "torch.bfloat16", "eps": 1e-06}',
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "timestamp": "2025-10-10 19:43:07",
        "liger_version": "0.6.2",
    }
    return [str({**known, **given}[name]) for name in liger_format.COLUMNS]


def file(*lines: Sequence[str]) -> str:
    return liger_format.written(lines)


def series(**given: Any) -> dict[str, Any]:
    """A series as benchmarks print it."""
    one: dict[str, Any] = dict(zip(liger_format.COLUMNS, line(kernel_operation_mode="full")))
    for name in ("x_value", "y_value_50", "y_value_20", "y_value_80"):
        del one[name]
    lists = {"x_values": [512, 1024], **{f"y_values_{n}": [0.25, 0.5] for n in (50, 20, 80)}}
    return one | lists | given


def test_a_file_is_read_to_the_digit_and_written_again() -> None:
    text = file(line(), line(metric_name="memory", metric_unit="MB", y_value_50="36.1904296875"), line(x_value="7b"))
    assert text.startswith(HEAD + "\r\n") and '"{""M"": 2048' in text
    found = liger_format.read(text)
    assert not found.refused and liger_format.written(found.points) == text
    assert liger_format.read("\ufeff" + HEAD + "\r\n").points == ()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8, unique=True), st.integers(0, 40))
def test_every_point_is_read_or_refused(values: list[float], cut: int) -> None:
    """The law: as many points and sentences as lines, whatever a line lacks; a pasted list gives the same points."""
    lines = [
        line(x_value=str(i), y_value_50=repr(v), y_value_20="x" if i == cut else "1") for i, v in enumerate(values)
    ]
    found = liger_format.read(file(*lines))
    assert len(found.points) + len(found.refused) == len(values) and len(found.refused) == (cut < len(values))
    one = series(x_values=[*range(len(values))], y_values_50=values, y_values_20=[1] * len(values), y_values_80=values)
    pasted = liger_format.read(f"# A change\n```\n***\n{json.dumps([one], indent=2)}\n```\nand that [is] all")
    assert [float(p["y_value_50"]) for p in pasted.points] == values and not pasted.refused


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kernel_name": "../../etc"}, "kernel_name"),
        ({"kernel_provider": "<script>"}, "kernel_provider"),
        ({"kernel_operation_mode": "sideways"}, "kernel_operation_mode"),
        ({"metric_name": "heat"}, "metric_name"),
        ({"metric_unit": "weeks"}, "metric_unit"),
        ({"gpu_name": "Toaster 9"}, "no vendor"),
        ({"timestamp": "yesterday"}, "timestamp"),
        ({"extra_benchmark_config_str": "[1]"}, "no JSON object"),
        ({"extra_benchmark_config_str": "[" * 5000}, "no JSON object"),
        ({"y_value_80": "fast"}, "not a number"),
        ({"gpu_name": "NVIDIA \x1b[31m"}, "control characters"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(given: dict[str, str], why: str) -> None:
    found = liger_format.read(file(line(), line(x_value="2", **given)))
    assert len(found.points) == 1 and found.refused[0].startswith("line 3: ") and why in found.refused[0]


def test_other_texts_are_refused() -> None:
    for text in ("", "a,b\n1,2\n", "[1, 2]", "kernel_name,other\n", '[{"kernel_name": "x", ', HEAD + '\r\n"x'):
        found = liger_format.read(text)
        assert not found.points and found.refused, text
    assert "same point as line 2" in liger_format.read(file(line(), line())).refused[0]
    assert "no kernel_provider" in liger_format.read(json.dumps([{"kernel_name": "x"}])).refused[0]
    assert "3 values of y" in liger_format.read(json.dumps([series(y_values_50=[1, 2, 3])])).refused[0]


def test_a_cell_has_its_speed_and_memory_and_what_is_no_time_is_none() -> None:
    memory = {"metric_name": "memory", "metric_unit": "MB", "y_value_50": "36.5"}
    points = liger_format.read(
        file(
            *(line(), line(**memory)),
            *(line(x_value="2", **dict.fromkeys(("y_value_50", "y_value_20", "y_value_80"), v)) for v in ("nan",)),
            line(x_value="3", **dict.fromkeys(("y_value_50", "y_value_20", "y_value_80"), "inf")),
            line(x_name="model_config", x_value="llama_3_8b", extra_benchmark_config_str='{"H": 1, "T": null}'),
            line(x_value="5", kernel_provider="torch", kernel_operation_mode="", gpu_name="Ascend910B4"),
        )
    )
    assert not points.refused
    cells, rows = liger.rows(points.points, "abc")
    assert [r["status"] for r in rows] == ["passed", "unsupported", "passed", "passed", "passed"]
    assert [r["timing_quality"] for r in rows] == ["ok", "none", "impossible", "ok", "ok"]
    first, last = rows[0], rows[-1]
    assert (first["time_us_p50"], first["peak_memory_live_mib"]) == (20.0, 36.5) and rows[2]["time_us_p50"] is None
    assert first["cell_id"].endswith("/2048x1024/x=H/eps=1e-06@NVIDIA-H100-80GB-HBM3") and first["dtype"] == "bfloat16"
    assert (last["backend"], last["role"], last["operation"]) == ("ascend", "peer", "full") and "mode" in last["flags"]
    assert {r["evidence"] for r in rows} == {"imported"} and len({c.cell_key for c in cells}) == len(cells)


def test_sessions_are_what_was_measured_together() -> None:
    late = line(x_value="2", timestamp="2025-10-10 21:43:07")
    other = line(x_value="3", liger_version="0.7.0")
    points = liger_format.read(file(line(x_value="9", timestamp="2025-10-12 00:00:00"), line(), late, other)).points
    assert [[p["x_value"] for p in s] for s in liger_format.sessions(points)] == [["1024", "2"], ["3"], ["9"]]


def test_an_op_is_what_its_files_import() -> None:
    sources = {
        "src/liger/ops/rms_norm.py": "from liger.ops.utils import a",
        "src/liger/ops/backends/x/ops/rms_norm.py": "import liger.more",
        "src/liger/ops/layer_norm.py": "",
        "src/liger/ops/utils.py": "",
        "src/liger/more.py": "this is no Python",
        "src/liger/ops/__init__.py": "from liger.ops.layer_norm import x",
    }

    def made(**changed: str) -> dict[str, str]:
        blobs = {p: changed.get(p.rpartition("/")[2][:-3], p) for p in sources}
        return op_digests.digests(blobs, sources.__getitem__, ("rms_norm", "layer_norm", "absent"))

    plain = made()
    assert set(plain) == {"rms_norm", "layer_norm"}
    for name, differ in {"utils": {"rms_norm"}, "more": {"rms_norm"}, "layer_norm": {"layer_norm"}}.items():
        assert {op for op, d in made(**{name: "new"}).items() if d != plain[op]} == differ


def git(repo: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", repo, *who, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight published nights of a repository: fused_add_rms_norm becomes 2.6 times as slow in the third (no commit
    touches it), rms_norm 21 % slower in the sixth, layer_norm in the sixth with a commit.  Returns the store."""
    folder = tmp_path_factory.mktemp("liger")
    repo, store = folder / "repo", folder / "store"
    ops = repo / "src/liger_kernel/ops"
    ops.mkdir(parents=True)
    git(repo, "init", "-q")
    for op in ("rms_norm", "fused_add_rms_norm", "layer_norm"):
        (ops / f"{op}.py").write_text("")
    files = []
    for night in range(8):
        if night == 5:
            (ops / "layer_norm.py").write_text("slower = 1\n")
        (repo / "README").write_text(str(night))
        git(repo, "add", "."), git(repo, "commit", "-qm", str(night))
        when = datetime(2025, 8, 1) + timedelta(days=7 * night)
        lines = []
        for op in ("rms_norm", "fused_add_rms_norm", "layer_norm"):
            for provider in ("liger", "huggingface"):
                for h in (8192, 16384, 32768):
                    ms = h / 40000 * (1 + 0.002 * ((night * 7 + h // 8192) % 3))
                    if provider == "liger":
                        ms *= 2.6 if op == "fused_add_rms_norm" and h == 16384 and night >= 2 else 1.0
                        ms *= 1.21 if op in ("rms_norm", "layer_norm") and h == 32768 and night >= 5 else 1.0
                    y = dict(zip(("y_value_20", "y_value_50", "y_value_80"), (repr(ms * s) for s in (0.99, 1, 1.01))))
                    given = {"kernel_name": op, "kernel_provider": provider, "x_value": str(h), **y}
                    lines.append(line(kernel_operation_mode="backward", timestamp=f"{when:%Y-%m-%d} 00:30:00", **given))
        files.append(folder / f"{git(repo, 'rev-parse', '--short', 'HEAD')}.csv")
        files[-1].write_bytes(file(*lines).encode())
    words = ["import", "liger", *map(str, files), "--out", str(store)]
    assert main([*words, "--repo", str(repo), "--by", "their weekly job"]) == 0
    assert main(words) == 0  # nothing twice
    assert len(Store(store).runs()) == 8
    for run, path in zip(Store(store).runs(), files):
        assert run.published().encode() == path.read_bytes()
    return store


def replayed(store: Path, nights: int) -> Nights:
    """The nights as they were when the last of so many was the newest."""
    found = index.opened(Store(store))
    found.runs = found.runs[:nights]
    newest = views.newest(found)
    assert newest is not None
    return newest.nights


def slower(found: Nights) -> dict[str, tuple[str, str, str, str]]:
    return {
        n.op: (n.word, n.cause, n.before.created[:10] if n.before else "", n.since.created[:10])
        for n in found.news
        if n.kind == "slower"
    }


def test_incidents_are_found_and_only_a_commit_that_touched_the_op_is_accused(history: Path) -> None:
    nobody = "tool chain or host, no commit"
    fused = ("regression", nobody, "2025-08-08", "2025-08-15")
    assert slower(replayed(history, 4)) == {"fused_add_rms_norm": fused}
    found = replayed(history, 7)
    assert slower(found) == {
        "fused_add_rms_norm": fused,
        "rms_norm": ("regression", nobody, "2025-08-29", "2025-09-05"),
        "layer_norm": ("regression", "code", "2025-08-29", "2025-09-05"),
    }
    assert [bool(n.commits) for n in found.news if n.op != "layer_norm"] == [False, False]


def test_imported_runs_are_shown_as_such(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "build", "--out", str(history)]) == 0
    pages = {p.name: p.read_text() for p in (history / "pages").glob("*.html")}
    assert "night-imported" in pages["index.html"] and "farm run" not in pages["index.html"]
    assert any("cell-imported" in text for name, text in pages.items() if name.startswith("cell-"))
    assert any("none ran here" in text for name, text in pages.items() if name.startswith("run-"))
    run = Store(history).runs()[-1]
    assert run.head["imported"]["by"] == "their weekly job" and run.head["verdict"] == "inconclusive"
    assert run.head["revision"]["ops"] and {d["evidence"] for d in run.devices()} == {"imported"}
    capsys.readouterr()
    assert main(["judge", run.id, "--out", str(history)]) == 2 and "was imported" in capsys.readouterr().err
    assert main(["export", "liger", run.id, "--out", str(history)]) == 0
    assert capsys.readouterr().out == run.published()


def test_a_file_with_a_bad_line_leaves_the_store_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, store = tmp_path / "x.csv", tmp_path / "store"
    path.write_text(file(line(), line(x_value="2", gpu_name="Toaster 9")))
    words = ["import", "liger", str(path), "--out", str(store)]
    assert main(words) == 2 and not (store / "runs").exists()
    assert "line 3: gpu_name" in (said := capsys.readouterr().err) and "nothing was imported" in said
    assert main([*words, "--partial", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["points"] == 1
    assert "line 3" in Store(store).run("last").head["imported"]["refused"][0]
    assert main(["import", "liger", str(tmp_path / "none.csv"), "--out", str(store)]) == 2


def test_a_run_of_ours_is_exported_as_their_script_reads_it(tmp_path: Path) -> None:
    """Their script needs a JSON object as configuration, equal for all points of a line, and numbers for x and y."""
    import night_store

    night_store.write_run(tmp_path, 29)
    run = Store(tmp_path).run("last")
    rows = list(csv.DictReader(io.StringIO(liger.exported(run), newline="")))
    found = liger_format.read(liger.exported(run))
    assert not found.refused and len(found.points) == len(rows)
    timed = [r for r in run.rows if r["status"] == "passed" and r["timing_quality"] != "throttled"]
    kept = {round(p.quantiles[1], 6) for p in found.points}
    assert {round(r["time_us_p50"], 6) for r in timed} <= kept
    lines = Counter((r["kernel_provider"], r["gpu_name"], r["extra_benchmark_config_str"]) for r in rows)
    assert len({json.loads(c)["dtype"] for _, _, c in lines}) == 2 and {"farm", "farm_row_packed"} <= {
        p for p, _, _ in lines
    }
    assert {r["x_name"] for r in rows} == {"H"} and {r["gpu_name"] for r in rows} >= {"NVIDIA H200", "Ascend910B3"}
    assert sum(liger.left_out(run).values()) == len(run.rows) - len(rows)
    two = [{**row, "cell_id": f"{row['cell_id']}~{arm}"} for row in run.rows for arm in "ab"]
    arms = SimpleNamespace(id=run.id, rows=two, head=run.head, complete=True)
    providers = {r["kernel_provider"] for r in csv.DictReader(io.StringIO(liger.exported(arms), newline=""))}
    assert {"farm_a", "farm_b", "farm_row_packed_a"} <= providers and "farm" not in providers  # two lines


@pytest.mark.skipif("LIGER_DATA" not in os.environ, reason="LIGER_DATA names no folder with its published CSV files")
def test_what_was_published(tmp_path: Path) -> None:
    """Every point is read; what is exported is what was published; the known incidents are found, no commit accused."""
    files = sorted(Path(os.environ["LIGER_DATA"]).glob("**/*.csv"))
    history = [f for f in files if f.parent.name == "history"]
    repo = ["--repo", os.environ["LIGER_REPO"]] if "LIGER_REPO" in os.environ else []
    assert main(["import", "liger", *map(str, history), *repo, "--out", str(tmp_path / "history")]) == 0
    assert main(["import", "liger", *map(str, set(files) - set(history)), "--out", str(tmp_path / "main")]) == 0
    points = sum(len(f.read_text().splitlines()) - 1 for f in files)
    runs = [*Store(tmp_path / "history").runs(), *Store(tmp_path / "main").runs()]
    assert sum(r.head["imported"]["points"] for r in runs) == points
    assert sorted(row for r in runs for row in csv.reader(io.StringIO(r.published(), newline=""))) == sorted(
        [row for f in files for row in csv.reader(f.open(newline=""))][:None]
        + [list(liger_format.COLUMNS)] * (len(runs) - len(files))
    )
    nights = index.opened(Store(tmp_path / "history")).runs
    for day, op, shape, since, before in (
        ("2025-10-14", "fused_add_rms_norm", "2048x16384", "2025-10-10", "2025-08-01"),
        ("2025-10-24", "rms_norm", "2048x32768", "2025-10-17", "2025-10-14"),
    ):
        count = sum(n.created[:10] <= day for n in nights)
        mine = [
            n
            for n in replayed(tmp_path / "history", count).news
            if n.op == op
            and n.kind == "slower"
            and any(r["shape"] == shape and r["operation"] == "backward" for r in n.rows)
        ]
        assert [(n.word, n.since.created[:10], n.before.created[:10] if n.before else "") for n in mine] == [
            ("regression", since, before)
        ]
        assert not repo or (mine[0].cause == "tool chain or host, no commit" and mine[0].commits is None)
