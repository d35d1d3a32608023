"""Pages across runs: vendors side by side, parts of a large run, what ran where, and content that means harm."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import night_store
import synthetic_runs
from test_dashboard_files import ask

from farm.cli import main
from farm.dashboards import pages, parity_page, views
from farm.report import evidence, parity
from farm.store import Store, index

CUDA, ROCM, ASCEND = (night_store.TARGETS[b] for b in ("cuda", "rocm", "ascend"))
HOSTILE = '<script>alert("x")</script>'


def rows(number: int = night_store.NIGHTS - 1) -> list[dict[str, Any]]:
    return [{**r, "named": ""} for r in night_store.night(number)]


def built(store: Path) -> Path:
    assert main(["dashboard", "build", "--out", str(store)]) in (0, 3)
    return store / "pages"


# three vendors side by side


def test_vendors_are_side_by_side_by_their_own_roofs() -> None:
    found = parity.parity(rows(), "rms_norm")
    assert [p.target for p in found.places] == [CUDA, ROCM, ASCEND] and len(found.lines) == 2 * 32
    differ = {(x.name, x.operation, x.dtype, x.shape): [e.status for e in x.entries if e] for x in found.differ}
    assert len(differ) == 10
    assert differ["farm/row_packed", "backward", "bfloat16", "4096x32768"] == ["passed", "inaccurate", "passed"]
    assert differ["farm/auto", "forward", "float32", "4096x32768"] == ["passed", "passed", "compile_error"]
    assert found.apart == [], "12 % of the roof is below what is listed"
    summary = found.summaries["farm", "backward", "bfloat16"]
    cuda, _, ascend = summary
    assert cuda and ascend and (cuda.passed, cuda.cells, cuda.races) == (8, 8, 8) and ascend.failed == 2
    assert cuda.share == pytest.approx(0.79, abs=0.02) and ascend.share == pytest.approx(0.85, abs=0.01)
    assert cuda.modes == (("multi_wave_cached", 8),) and cuda.by is not None and cuda.by < 1


def test_a_share_far_from_another_vendors_is_listed_farthest_first() -> None:
    mine = rows()
    for r in mine:
        if r["backend"] == "rocm" and r["mode"] == "auto" and r["provider"] == "farm" and r["share_of_roof"]:
            r["share_of_roof"] = 0.5 if "4096x1024/" in r["cell_id"] else 0.6
    found = parity.parity(mine, "rms_norm").apart
    assert len(found) == 28 and found[0].apart == pytest.approx(0.35, abs=0.03) and found[0].shape == "4096x1024"
    flag = json.dumps(
        [views.nightly.extrapolated and "the cell's bytes are below the calibrated sizes, so the share of"]
    )
    assert flag


def test_a_cell_that_never_began_is_in_the_column_of_its_backend_and_a_build_in_none() -> None:
    mine = rows()
    for r in mine:
        if r["backend"] == "rocm" and r["shape"] == "4096x1024":
            r |= {"status": "infra_error", "target": "", "evidence": "", "share_of_roof": None, "time_us_p50": None}
        if r["backend"] == "ascend":
            r |= {"evidence": "compiled", "status": "built"}
    found = parity.parity(mine, "rms_norm")
    assert [p.backend for p in found.places] == ["cuda", "rocm"] and parity.ops(mine) == ["rms_norm"]
    assert {x.shape for x in found.differ if x.entries[1] and x.entries[1].status == "infra_error"} == {"4096x1024"}
    assert parity.ops([r for r in mine if r["backend"] != "rocm"]) == [], "one target has nobody beside it"


def test_a_backend_that_did_not_report_has_its_last_column(tmp_path: Path) -> None:
    for number in range(2):
        backends = ("cuda", "rocm") if number == 0 else ("cuda",)
        night_store.write_run(tmp_path, number, night_store.night(number, backends))
    newest = views.newest(index.opened(Store(tmp_path)))
    assert newest and parity_page.ops(newest) == ["rms_norm"]
    found = parity_page.of(newest, "rms_norm")
    assert [(p.backend, p.seen) for p in found.places] == [("cuda", ""), ("rocm", night_store.created(0).isoformat())]
    front = (built(tmp_path) / "index.html").read_text()
    assert 'href="parity-rms_norm.html"' in front
    html = (tmp_path / "pages" / "parity-rms_norm.html").read_text()
    assert "did not report; of 2026-09-18 02:00" in html and len(gzip.compress(html.encode(), 6)) < 60_000
    data = json.loads((tmp_path / "pages" / "parity-rms_norm.json").read_text())
    assert data["places"][1]["seen"] and len(data["cells"]) == 64


# what ran where


def test_what_ran_where_names_the_newest_run_of_each_kind_of_evidence() -> None:
    def proof(kind: str, last: str, passed: int) -> evidence.Proof:
        counts = {"passed": 9}
        return evidence.Proof(
            "cuda", "cuda", kind, CUDA, counts, (), (), (), (), last, (("rms_norm", "farm", passed, 9),)
        )

    known = {"a": [proof("executed", "2026-01-01", 9), proof("compiled", "2026-01-03", 9)]}
    known |= {"b": [proof("executed", "2026-01-02", 8)]}
    ((key, found),) = evidence.coverage(known).items()
    assert key == ("rms_norm", "farm")
    assert [(c.evidence, c.run, c.passed) for c in found["cuda"]] == [("executed", "b", 8), ("compiled", "a", 9)]
    collected = {run: {"proofs": [vars(p) for p in of]} for run, of in known.items()}
    assert evidence.thaw(json.loads(json.dumps(collected))) == known


# a run too large for one page


def test_a_large_run_has_an_overview_and_a_page_per_backend_and_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_CELLS", 300)
    night_store.write_run(tmp_path, night_store.NIGHTS - 1)
    out, run = built(tmp_path), night_store.run_id(night_store.NIGHTS - 1)
    over = (out / f"run-{run}.html").read_text()
    assert "<td id=c" not in over and "384 cells are too many for one page" in over
    seen: set[int] = set()
    for name in re.findall(rf'href="(run-{run}--[^"]+)"', over):
        html = (out / name).read_text()
        mine = [
            int(n) for n in re.findall(r"<td id=c(\d+) ", html.partition('id="cells"')[2].partition("</section>")[0])
        ]
        assert (
            len(mine) == 128 and not seen & set(mine) and re.search(r"<td id=c\d+ [^>]*><a href=cell-\w+\.html>", html)
        )
        seen |= set(mine)
        assert json.loads((out / name).with_suffix(".json").read_text())["counts"]
        anchors = set(re.findall(r' id="?([\w-]+)', html))
        assert set(re.findall(r'href="?#([\w-]+)', html)) <= anchors, name
    assert len(list(out.glob(f"run-{run}--*.html"))) == 3
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import app

    site = app(Store(tmp_path))
    lead = re.findall(r'href="(/run/[^"]+/part/[^"]+)"', ask(site, f"/run/{run}")[2])
    assert len(lead) == 3
    for address in lead:
        assert ask(site, address)[0] == ask(site, f"{address}.json")[0] == 200
    assert ask(site, f"/run/{run}/part/cuda/none")[0] == 404


# pages that need not be made again


def test_the_page_of_a_finished_run_is_made_once(tmp_path: Path) -> None:
    for number in range(3):
        night_store.write_run(tmp_path, number, night_store.night(number, ("cuda",))[:16])
    out = built(tmp_path)
    old, newest = (out / f"run-{night_store.run_id(n)}.html" for n in (0, 2))
    for page in (old, newest):
        page.write_text("kept")
    assert built(tmp_path) == out and old.read_text() == newest.read_text() == "kept"
    night_store.write_run(tmp_path, 3, night_store.night(3, ("cuda",))[:16])
    built(tmp_path)
    assert old.read_text() == "kept" and (out / f"run-{night_store.run_id(3)}.html").exists()
    (out / "evidence.json").write_text("{")
    built(tmp_path)
    assert old.read_text() != "kept", "nothing is known of it any more"


# one simulated row


def test_every_page_with_a_simulated_row_says_so_in_title_picture_and_data(tmp_path: Path) -> None:
    for number in range(2):
        mine = night_store.night(number, ("cuda", "rocm"))
        for r in mine:
            if r["backend"] == "cuda" and r["provider"] == "farm" and r["shape"] == "4096x1024":
                r |= {"evidence": "simulated", "worst_ratio": 0.9}
        night_store.write_run(tmp_path, number, mine)
    out = built(tmp_path)
    named = 0
    for page in sorted(out.glob("*.html")):
        html, data = page.read_text(encoding="utf-8"), json.loads(page.with_suffix(".json").read_text())
        title = html.partition("<title>")[2].partition("</title>")[0].lower()
        told = data["simulated"] if "simulated" in data else data.get("cell", {}).get("evidence") == "simulated"
        real = page.name.startswith("cell-") and "simulated" not in str(data["cell"]["evidence"])
        if page.name.startswith("backend-rocm") or real:
            assert "simulated" not in title and not told and 'class="fakemark"' not in html, page.name
            continue
        named += 1
        assert "simulated" in title and told, page.name
        assert re.search(r'role="(note|alert)"', html) or page.name.startswith("run-"), page.name
        if "<svg" in html and not page.name.startswith("run-"):
            pictures = re.findall(r"<svg.*?</svg>", html, re.S)
            mine = [p for p in pictures if "fakemark" in p and 'aria-label="simulated: ' in p]
            both = page.name == "index.html"  # rocm's line has no simulated cell
            assert len(mine) == (1 if both else len(pictures)), page.name
    assert named >= 7


# content that means harm


def test_a_store_that_means_harm_has_pages_that_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        mine = night_store.night(number, ("cuda", "rocm"))
        for r in mine:
            for name in ("cell_id", "op", "mode", "tag", "node", "device", "shape", "revision"):
                if r["provider"] == "farm" and r["mode"] == "row_packed":
                    r[name] = f"{r[name]}{HOSTILE}\x1b[31m"
            r["reason"] = HOSTILE if r["index"] == 1 else ""
            if r["index"] == 1:
                r |= {"status": "crashed", "log": "logs/1.txt", "timing_quality": "none"}
        folder = night_store.write_run(tmp_path, number, mine)
        (folder / "logs").mkdir()
        (folder / "logs" / "1.txt").write_text(f"\x1b[2J\x1b]0;owned\x07{HOSTILE}\x00" + "z" * 3_000_000)
    later = night_store.write_run(tmp_path, 3, night_store.night(3, ("cuda",)))
    head = json.loads((later / "run.json").read_text())
    (later / "run.json").write_text(json.dumps({**head, "schema": 99, "verdict": HOSTILE, "backends": HOSTILE}))
    cut = night_store.write_run(tmp_path, 4, night_store.night(4, ("cuda",)))
    (cut / "cells.parquet").write_bytes((cut / "cells.parquet").read_bytes()[:-2000])
    writer = Store(tmp_path).create(f"{night_store.run_id(5)}")
    writer.append({"event": "run", "schema": 6, "created": night_store.created(5).isoformat(), "matrices": []})
    empty = tmp_path / "runs" / "20260101-empty"
    empty.mkdir()
    out = built(tmp_path)
    said = capsys.readouterr().err
    assert night_store.run_id(4) in said and "cannot be read" in said and "Traceback" not in said
    for page in out.glob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert html.count("<script") == 1 and "alert(" not in html.replace("alert(&#34;", "").replace(
            "alert(&quot;", ""
        )
        assert "\x1b" not in html and "\x00" not in html and len(html) < 1_500_000, page.name
    front = (out / "index.html").read_text()
    assert "v-unreadable" in front and "v-running" in front
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import app

    site = app(Store(tmp_path))
    for name in [p.name for p in (tmp_path / "runs").iterdir()]:
        status, _, html = ask(site, f"/run/{name}")
        assert status in (200, 404) or (status == 500 and "cannot be made" in html), name
        assert html.count("<script") <= 1, name
        assert ask(site, f"/live/{name}")[0] in (200, 404), name
    ranked = re.findall(r'href="(/(?:cell|backend|parity|run)/[^"]+)"', ask(site, "/")[2])
    assert len(ranked) > 5
    for address in dict.fromkeys(ranked):
        status, _, html = ask(site, address.replace("&amp;", "&"))
        assert status in (200, 404) or "cannot be made" in html, address
        assert html.count("<script") <= 1, address
    writer.close()
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    assert ask(app(Store(tmp_path)), "/")[0] == 200


def test_pages_of_wide_runs_stay_small() -> None:
    """4,000 cells of three vendors."""
    mine = [{**r, "named": ""} for r in synthetic_runs.wide_rows(4000)]
    night = SimpleNamespace(
        with_silent=mine, nights=SimpleNamespace(silent={}), run=SimpleNamespace(id="r", created="2026-08-01T02:15:00Z")
    )
    links = pages.Links("/", lambda run_id: "/run/r", lambda name: None, cell=lambda key, named: f"/cell/{key}")
    html = parity_page.page(night, "rms_norm", links)  # type: ignore[arg-type]
    assert len(gzip.compress(html.encode(), 6)) <= 60_000 and html.count("<tr>") > 150
