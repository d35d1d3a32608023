"""Pages across runs: what was planted in thirty nights is found and named, and nothing else is accused."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import night_store

from farm.cli import main
from farm.compare import trend
from farm.dashboards import metrics, views
from farm.report import notices
from farm.report.nights import line
from farm.store import Store, index

LAST = night_store.run_id(night_store.NIGHTS - 1)
KB = 1000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nights")
    night_store.write_nights(folder)
    return folder


@pytest.fixture(scope="module")
def newest(store: Path) -> views.Newest:
    found = views.newest(index.opened(Store(store)))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def pages(store: Path) -> Path:
    assert main(["dashboard", "build", "last", "--out", str(store)]) == 0
    return store / "pages"


def read(pages: Path, pattern: str) -> str:
    return next(iter(sorted(pages.glob(pattern)))).read_text(encoding="utf-8")


def test_what_was_planted_is_found_with_its_night_pattern_and_range(newest: views.Newest) -> None:
    news = {(n.kind, n.backend): n for n in newest.nights.news}
    assert sorted(news) == [("failing", "ascend"), ("fixed", "cuda"), ("new", "rocm"), ("slower", "cuda")]
    slower = news["slower", "cuda"]
    assert (slower.provider, slower.mode, len(slower.rows)) == ("farm", "auto", 8)
    assert slower.where == ("operation backward", "hidden 16384, 32768") and slower.sure
    assert slower.by == pytest.approx(1.16, abs=0.01)
    assert slower.before and [slower.before.id, slower.since.id] == [night_store.run_id(21), night_store.run_id(22)]
    assert slower.with_it == (f"revision {night_store.revision(21)[:10]}..{night_store.revision(22)[:10]}",)
    assert news["failing", "ascend"].since.id == night_store.run_id(25)
    assert news["failing", "ascend"].where == ("hidden 32768",)
    assert news["new", "rocm"].since.id == LAST and "dtype bf16" in news["new", "rocm"].where
    assert "regression +16 %" in line(slower)


@pytest.mark.parametrize(("nights", "word"), [(23, "suspected slower"), (24, "regression")])
def test_one_night_is_a_suspicion_and_two_are_a_regression(store: Path, nights: int, word: str) -> None:
    found = index.opened(Store(store))
    runs = [r for r in found.runs if r.id <= night_store.run_id(nights - 1)]
    news = views.Newest(found, runs).nights.news
    assert {(n.kind, n.word, len(n.rows)) for n in news if n.kind in ("slower", "faster")} == {("slower", word, 8)}


def test_a_sick_device_is_told_and_its_cells_are_not_accused(newest: views.Newest) -> None:
    devices = {d.name: d for d in newest.devices(night_store.TARGETS["cuda"])}
    odd = [name for name, d in devices.items() if d.by is not None and abs(d.by - 1) > 0.02]
    assert odd == ["cuda:3"] and devices["cuda:3"].clock == 1610
    before, after = devices["cuda:3"].nights[15], devices["cuda:3"].nights[20]
    assert before == pytest.approx(1, abs=0.01) and after == pytest.approx(1.03, abs=0.01)


def test_a_backends_page_says_since_when_a_device_is_off(pages: Path) -> None:
    html = read(pages, "backend-cuda-*.html")
    assert re.search(
        r"<span>\+2\.\d % since 2026-10-08: clock 1610 MHz, its siblings 1755; 83 °C, its siblings 52", html
    )


def test_a_change_of_the_driver_is_on_the_backends_page(newest: views.Newest) -> None:
    assert newest.tool_changes("cuda") == [(night_store.created(15).isoformat(), "driver 575.57 → 580.159")]
    assert newest.tool_changes("rocm") == []
    roof = newest.roof(night_store.TARGETS["cuda"])
    assert [p.value for p in roof] == pytest.approx([4300.0] * len(roof), rel=1e-3)


def test_a_silent_backend_is_said(tmp_path: Path) -> None:
    for number in range(3):
        backends = ("cuda", "rocm") if number < 2 else ("cuda",)
        night_store.write_run(tmp_path, number, night_store.night(number, backends), plan_hash=str(number))
    found = views.newest(index.opened(Store(tmp_path)))
    assert found and {b: n.id for b, n in found.nights.silent.items()} == {"rocm": night_store.run_id(1)}
    assert main(["dashboard", "build", "last", "--out", str(tmp_path)]) == 0
    html = (tmp_path / "pages" / "index.html").read_text()
    assert 'data-id="night-silent"' in html and "rocm did not report" in html
    assert 'class="card silent b-rocm"' in html and "last seen 2026-09-19" in html
    assert json.loads((tmp_path / "pages" / "index.json").read_text())["silent"] == {"rocm": night_store.run_id(1)}


H100, CAPPED = "cuda:NVIDIA-H100:700W", "cuda:NVIDIA-H100:600W"


@pytest.mark.parametrize(
    ("others", "silent"),
    [
        ((H100, H100, H100, ""), {H100: 2}),
        ((H100, H100, H100, CAPPED), {}),  # the same devices, with another limit of power
        ((H100, "", H100, ""), {}),  # a target that takes turns
        (("", H100, "", ""), {}),  # once is no habit
        ((H100, H100, H100, H100), {}),
    ],
)
def test_a_target_that_falls_silent_beside_another_of_its_backend_is_said(
    others: tuple[str, ...], silent: dict[str, int], tmp_path: Path
) -> None:
    for number, other in enumerate(others):
        rows = night_store.night(number, ("cuda",))
        for row in rows[:: 2 if other else len(rows) + 1]:
            row["target"] = other or row["target"]
        night_store.write_run(tmp_path, number, rows)
    found = views.newest(index.opened(Store(tmp_path)))
    wanted = {name: night_store.run_id(number) for name, number in silent.items()}
    assert found and {name: n.id for name, n in found.nights.silent.items()} == wanted
    if not silent:
        return
    assert main(["dashboard", "build", "last", "--out", str(tmp_path)]) == 0
    html = (tmp_path / "pages" / "index.html").read_text()
    assert "One target of cuda did not report" in html and "1 silent target<" in html and html.count(H100) > 1
    assert json.loads((tmp_path / "pages" / "index.json").read_text())["silent"] == wanted
    assert 'kernel_farm_target_silent{target="cuda:NVIDIA-H100:700W"} 1' in metrics.text(metrics.gauges(found, 0.0))
    assert [n.data["text"] for n in notices.notices(found.nights, lambda rows: "")][-1].startswith(f"{H100} did not")


def test_a_run_of_a_few_cells_is_no_night_and_silences_no_backend(tmp_path: Path) -> None:
    for number in range(2):
        night_store.write_run(tmp_path, number, night_store.night(number, ("cuda", "rocm")))
    few = [r for r in night_store.night(2, ("cuda",)) if r["mode"] == "row_packed"]
    night_store.write_run(tmp_path, 2, few, plan_hash="another")
    night_store.write_run(tmp_path, 3, night_store.night(3, ("cuda", "rocm")), plan_hash="new")
    made = index.opened(Store(tmp_path))
    found = views.newest(made)
    assert found and found.run.id == night_store.run_id(3) and not found.nights.silent
    assert [r.id for r in found.runs[:-1]] == [night_store.run_id(0), night_store.run_id(1)]
    assert views.baseline(made, night_store.run_id(3)) == made.runs[1]
    found = views.newest(index.Index(Store(tmp_path), _without(made, night_store.run_id(3))))
    assert found and found.run.id == night_store.run_id(1)


def _without(made: index.Index, run: str) -> Any:
    stamp = made._stamp
    return type(stamp)({name: kept for name, kept in stamp.runs.items() if name != run}, stamp.left, stamp.old)


def test_every_page_stands_alone_is_small_and_has_its_data(pages: Path) -> None:
    found = sorted(pages.glob("*.html"))
    kinds = {p.name.split("-")[0].removesuffix(".html") for p in found}
    assert kinds == {"index", "evidence", "run", "backend", "cell", "compare", "parity"}
    assert len([p for p in found if p.name.startswith("backend-")]) == 3
    for page in found:
        html = page.read_text(encoding="utf-8")
        assert not re.search(r"https?://|url\(|@import", html), page.name
        assert html.count("<script") == 1 and 'role="alert"' not in html
        for href in re.findall(r'href="([^"#]+)', html):
            assert (pages / href.replace("%20", " ")).exists(), (page.name, href)
        anchors = set(re.findall(r' id="?([\w-]+)', html))
        assert set(re.findall(r'href="?#([\w-]+)', html)) <= anchors, page.name
        if not page.name.startswith(("run-", "compare-")):
            assert len(gzip.compress(html.encode(), 6)) <= 60 * KB, page.name
        assert page.with_suffix(".json").exists(), page.name
        assert not re.search(r"\b(NaN|Infinity)\b", page.with_suffix(".json").read_text())
        json.loads(page.with_suffix(".json").read_text())


def test_from_the_front_page_to_the_cell_and_its_command(pages: Path) -> None:
    front = (pages / "index.html").read_text()
    assert "8 cells slower (+16 %)" in front and "2 cells newly failing" in front
    (address,) = set(
        re.findall(r'href="(cell-\w+\.html)"><code>cuda/rms_norm/farm/auto/backward/bf16/4096x32768', front)
    )
    cell = (pages / address).read_text()
    assert '<pre class="cmd">farm run matrices/rms_norm.yaml --backend cuda --select' in cell
    assert 'class="history"' in cell and "row_packed" in cell
    data = json.loads((pages / address).with_suffix(".json").read_text())
    assert re.search(r'v-inconclusive"><b>passed · \+16 % since 2026-10-10 \(b1d5781111\.\.17ba079149\)</b>', cell)
    assert 'class="since"' in cell and "requested auto, ran multi_wave_cached" in cell
    assert "farm confirm --cell cuda/rms_norm/farm/auto/backward/" in front
    failed = re.findall(r'href="(cell-\w+\.html)"><code>rocm/rms_norm/farm/row_packed/backward/bf16/', front)[0]
    text = (pages / failed).read_text()
    assert "<code>dw.rel_l2</code>" in text and "5.25x" in text and "requested row_packed" not in text
    assert len(data["history"]) == night_store.NIGHTS - 2 and data["cell"]["status"] == "passed"
    assert "last otherwise" not in front, "each change leads to a comparison"


def test_a_run_is_held_against_the_one_before(pages: Path) -> None:
    html, data = read(pages, "run-*.html"), json.loads(read(pages, "run-*.json"))
    assert 'data-id="run-baseline"' in html and data["baseline"]["run"] == night_store.run_id(night_store.NIGHTS - 2)
    assert data["baseline"]["counts"] == {"broken": 2, "fixed": 1, "failing": 8}
    assert 'data-id="run-night"' in html and "8 cells slower (+16 %)" in html and "cuda:3 +" in html
    assert 'value="baseline"' in html and data["simulated"] == []
    assert "auto slower than another mode of ours, by 5 % at least" in [r["title"] for r in data["rankings"]]


def test_one_simulated_row_is_said_in_titles_and_data(tmp_path: Path) -> None:
    for number in range(2):
        rows = night_store.night(number, ("cuda",))
        rows[3]["evidence"] = "simulated"
        night_store.write_run(tmp_path, number, rows)
    assert main(["dashboard", "build", "last", "--out", str(tmp_path)]) == 0
    pages = tmp_path / "pages"
    for name in ("index", "run-*", "backend-*", "compare-*"):
        title = read(pages, f"{name}.html").partition("<title>")[2].partition("</title>")[0]
        assert "simulated" in title.lower(), name
        assert json.loads(read(pages, f"{name}.json"))["simulated"], name


def test_a_store_whose_index_cannot_be_written_still_has_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night_store.write_run(tmp_path, 0, night_store.night(0, ("cuda",))[:8])
    (tmp_path / "index").write_text("in the way")
    assert main(["dashboard", "build", "last", "--out", str(tmp_path)]) == 0
    assert (
        "[index-unwritable]; the pages show no nights" in capsys.readouterr().err
        and (tmp_path / "pages" / "index.html").exists()
    )


def test_a_damaged_part_of_the_index_is_made_anew(store: Path, tmp_path: Path) -> None:
    for number in range(2):
        night_store.write_run(tmp_path, number, night_store.night(number, ("cuda",))[:8])
    index.opened(Store(tmp_path))
    part = next((tmp_path / "index").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-100])
    found = views.newest(views.checked(Store(tmp_path)))
    assert found is not None and len(found.rows) == 8


def test_the_server_shows_what_the_builder_writes(store: Path, pages: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from test_dashboard_files import ask

    from farm.dashboards.serve import app

    live, target = app(Store(store)), night_store.TARGETS["cuda"]
    status, _, front = ask(live, "/")
    assert status == 200 and "8 cells slower (+16 %)" in front
    key = re.findall(r'href="/cell/(\w+)"', front)[0]
    a, b = night_store.run_id(21), night_store.run_id(22)
    for path in (f"/cell/{key}", f"/backend/{target}", f"/compare/{a}/{b}", f"/run/{LAST}"):
        status, head, body = ask(live, path)
        assert status == 200 and head["etag"] and body.startswith("<!doctype html>"), path
        status, head, body = ask(live, path + ".json")
        assert status == 200 and head["content-type"].startswith("application/json") and json.loads(body), path
    ranked = ask(live, f"/run/{LAST}")[2].partition('id="ranked"')[2].partition("</section>")[0]
    leads = re.findall(r'href="(/run/[^"]+)"', ranked)
    assert leads and ask(live, leads[0])[0] == 200
    assert json.loads(ask(live, "/night.json")[2])["run"] == LAST
    for path in ("/cell/none", "/backend/none", f"/compare/{a}/none", "/cell/..%2f", "/compare/../.."):
        assert ask(live, path)[0] == 404, path


# steps, by simulation: see tests/pure/test_trend.py, and benchmarks/trend_simulation.py for more


def test_what_a_device_shares_is_taken_off() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(0, 0.003, (40, 20))
    device = np.tile(np.arange(40)[:, None] % 4, (1, 20))
    x[device[:, 0] == 3, 10:] += np.log(1.034)
    control = np.zeros(40, dtype=bool)
    assert (trend.steps(x).at[device[:, 0] == 3] >= 0).all()
    assert (trend.steps(x - trend.environment(x, device, control)).at >= 0).sum() == 0


def test_a_series_with_gaps_and_nothing_is_no_step() -> None:
    x = np.full((3, 12), np.nan)
    x[1, 3] = 1.0
    x[2, ::2] = 1.0
    assert (trend.steps(x).at == -1).all() and (trend.steps(np.zeros((0, 5))).at == -1).all()
    assert (trend.steps(np.zeros((2, 1))).at == -1).all()


def test_a_store_without_runs_has_a_front_page(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert main(["dashboard", "build", "--out", str(tmp_path)]) == 0
    assert 'data-id="no-runs"' in (tmp_path / "pages" / "index.html").read_text()
