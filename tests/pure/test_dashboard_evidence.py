"""Evidence on pages: what is proven of which backend by what, never added up, and a fake is none."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from compile_rows import built
from synthetic_runs import FakeRun, FakeStore, counts_of, fake_run, row, rows_of_run

from dashboards import evidence, findings, heat, queries
from dashboards.build import build
from dashboards.pages import Links, evidence_page, run_page, runs_page, shown
from dashboards.runlines import run_line

LINKS = Links("index.html", lambda run_id: f"run-{run_id}.html", lambda name: name, evidence="evidence.html")
MI = "rocm:AMD-Instinct-MI300X:cpx-nps4:750W"
GB, H200 = "cuda:NVIDIA-GB200:1200W", "cuda:NVIDIA-H200:700W"


def done(index: int, backend: str, kind: str, target: str, **given: Any) -> dict[str, Any]:
    """A row that ended on a device."""
    name = given.pop("name", "")
    fake = "simulated " if kind == "simulated" else ""
    made = row(index, backend="cuda", evidence="executed", **given)
    made["cell_id"] = made["cell_id"].replace("cuda/", f"{backend}/", 1) + (f"@{name}" if name else "")
    made.update(backend=backend, evidence=kind, target=target, node=f"node-{backend}",
                device=f"{fake}{target.split(':')[1]} #0", started=1.79e9 + index, seconds=2.0,
                fingerprint=json.dumps({"torch": "2.11.0", "triton": "3.6.0", "python": "3.12.1"}))  # fmt: skip
    return made


def mixed() -> FakeRun:
    """cuda on two named targets, one of them a fake; rocm on fakes, with a finding; ascend that nobody served."""
    rows = []
    for i, hidden in enumerate((1024, 2048, 4096)):
        at = 10 * i
        rows += [
            done(at, "cuda", "executed", H200, name="H200", hidden=hidden, neighbours_busy=i),
            done(at + 1, "cuda", "simulated", GB, name="GB200", hidden=hidden),
            done(at + 2, "rocm", "simulated", MI, hidden=hidden, neighbours_busy=0),
            row(at + 3, backend="ascend", hidden=hidden, status="lost", reason="no device of ascend"),
        ]
    rows[2].update(status="crashed", reason="Memory access fault by GPU node-2")
    for i, r in enumerate(rows):
        r["index"] = i
    used = {
        b: {
            "devices": [
                {**{k: r[k] for k in ("node", "target", "evidence")}, "name": r["device"], "fingerprint": {},
                 "environment": f"{b}-env"}
                for r in rows[:3] if r["backend"] == b
            ],
            "counts": counts_of([r for r in rows if r["backend"] == b]),
        }
        for b in ("cuda", "rocm", "ascend")
    }  # fmt: skip
    return fake_run(rows, "20261121-120000-mix1", backends=used)


def merged() -> FakeRun:
    run = mixed()
    at = "2026-11-21T12:00:00+00:00"
    told = {"revision": {"name": "abc1234"}, "seconds": 9.0, "complete": True, "counts": {"passed": 3}}
    run.head.update(
        kind="merged", silent={"ascend": 3}, warnings=["the sites ran different revisions of the kernels: a; b"],
        merged=[
            {**told, "run_id": "site-a", "part": "cuda", "nodes": ["node-cuda"], "finished": at},
            {**told, "run_id": "site-b", "part": "rocm", "nodes": ["node-rocm"], "complete": False},
        ],
        superseded=[{"cell_id": "cuda/rms_norm/x", "kept": "site-a", "kept_status": "passed", "left": "site-c",
                     "left_status": "crashed"}],
    )  # fmt: skip
    return run


def text(html: str) -> str:
    return " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.S).split())


def section(html: str, name: str) -> str:
    return html[html.index(f'<section id="{name}"') :].partition("</section>")[0]


def test_proofs_are_per_place_target_and_kind() -> None:
    found = {(p.place, p.target, p.evidence): p for p in evidence.proofs(mixed())}
    assert set(found) == {("cuda@H200", H200, "executed"), ("cuda@GB200", GB, "simulated"), ("rocm", MI, "simulated")}
    rocm = found["rocm", MI, "simulated"]
    assert rocm.counts == {"passed": 2, "crashed": 1} and rocm.nodes == ("node-rocm",)
    assert rocm.environments == ("rocm-env",) and rocm.tools == ("torch 2.11.0, triton 3.6.0",)
    assert rocm.last.startswith("2026-09-21T") and rocm.devices == ("simulated AMD-Instinct-MI300X #0",)
    assert evidence.unproven(mixed()) == {"ascend": {"lost": 3}}


def test_every_planned_cell_is_in_one_proof_or_unproven() -> None:
    for run in (mixed(), fake_run(), fake_run([built(i, t) for i, t in enumerate(("sm_90", "gfx942", "ascend910b"))])):
        told = sum(p.cells for p in evidence.proofs(run)) + sum(
            sum(c.values()) for c in evidence.unproven(run).values()
        )
        assert told == len(run.rows)


def test_a_fake_is_marked_wherever_its_cells_are_told() -> None:
    html = run_page(mixed(), LINKS)
    said = text(html)
    assert "Simulated: the cells of cuda GB200, rocm marked so were played by fakes" in said
    mark = 'class="evidence ev-simulated"'
    assert section(html, "evidence").count(mark) >= 3  # both proofs, and the legend
    assert section(html, "cards").count(mark) == 2 and section(html, "cards").count("card b-rocm fake") == 1
    assert mark in section(html, "findings")  # rocm's, of which no cell is real
    cells = section(html, "cells")
    headings = re.findall(r"<h3>(.*?)</h3>", cells)
    assert {(text(h), "ev-simulated" in h) for h in headings} == {
        ("cuda H200 rms_norm executed", False), ("cuda GB200 rms_norm simulated", True),
        ("rocm rms_norm simulated", True), ("ascend rms_norm", False),
    }  # fmt: skip
    assert "simulated" not in text(run_page(fake_run(rows_of_run(60)), LINKS)).partition("Environment")[0].replace(
        "simulated played by a fake", ""
    )


def test_a_named_device_is_no_compiled_target() -> None:
    rows = mixed().rows
    assert set(heat.heats(rows, {})) == {
        ("cuda@H200", "rms_norm"), ("cuda@GB200", "rms_norm"), ("rocm", "rms_norm"), ("ascend", "rms_norm"),
    }  # fmt: skip
    assert not any(queries.is_build(r) for r in rows)
    lost = {**built(0), "status": "lost", "evidence": ""}
    assert queries.is_build(built(0)) and queries.is_build(lost)
    crashed = next(g for g in findings.findings(mixed()))
    assert crashed.command.startswith("farm run") and "--backend rocm" in crashed.command
    rows[0].update(status="crashed", reason="x")
    mine = next(g for g in findings.findings(fake_run(rows)) if g.backend == "cuda")
    assert mine.command.startswith("farm run") and "target=H200" in mine.command


def test_errors_of_fakes_and_of_devices_are_never_in_one_chart() -> None:
    rows = [done(i, "rocm", kind, MI, hidden=64 + i, worst_ratio=0.5, worst_output="y", worst_metric="rel_l2")
            for i, kind in enumerate(("executed", "simulated", "simulated"))]  # fmt: skip
    found = queries.strips(fake_run(rows))
    assert {key: len(strips["float32"][0].values) for key, strips in found.items()} == {
        ("rocm", "rms_norm"): 1, ("rocm simulated", "rms_norm"): 2,
    }  # fmt: skip
    headings = re.findall(r"<h3>(.*?)</h3>", section(run_page(fake_run(rows), LINKS), "errors"))
    assert [text(h) for h in headings] == ["rocm rms_norm executed", "rocm rms_norm simulated"]
    assert set(queries.strips(fake_run(rows[1:]))) == {("rocm", "rms_norm")}


def test_each_backend_has_a_verdict_of_its_own() -> None:
    html = run_page(mixed(), LINKS)
    said = text(html[html.index('<p class="places">') :].partition("</p>")[0])
    assert said == (
        "cuda H200 passed 3 cells cuda GB200 passed simulated 3 cells rocm findings simulated 3 cells "
        "ascend farm fault 3 cells"
    )
    assert '<p class="places">' not in run_page(fake_run(rows_of_run(60)), LINKS)


def test_what_only_fakes_passed_is_said_so() -> None:
    rows = [done(i, "rocm", "simulated", MI, hidden=64 + i) for i in range(3)]
    assert "passed, played by fakes alone" in queries.verdict(fake_run(rows)).text
    rows.append(done(9, "cuda", "executed", H200))
    assert "fakes" not in queries.verdict(fake_run(rows)).text


def test_one_backends_failures_fold_no_others_away() -> None:
    modes = [f"mode{i}" for i in range(20)]
    rows = [row(i, backend="cuda", mode=m, status="inaccurate", worst_ratio=9.0, evidence="executed")
            for i, m in enumerate(modes)]  # fmt: skip
    rows.append(row(20, backend="cpu", status="out_of_memory", evidence="interpreted"))
    first, more = shown(findings.findings(fake_run(rows)))
    assert len(first) == 13 and first[-1].backend == "cpu" and len(first) + len(more) == 21


def test_a_card_says_environment_and_neighbours() -> None:
    said = text(section(run_page(mixed(), LINKS), "cards"))
    assert "environment cuda-env up to 2 neighbours busy, in 2 of 3 cells" in said
    assert "environment rocm-env no neighbour busy in any cell" in said
    assert evidence.company([row(0)]) == ""


def test_a_merged_run_shows_its_sites_and_who_was_silent() -> None:
    html = run_page(merged(), LINKS)
    said = text(section(html, "sites"))
    assert "rocm site-b not complete" in said and "ascend did not report 3" in said
    assert "1 cell that more than one site ran" in said and "cuda/rms_norm/x" in said
    assert text(html).lower().count("the sites ran different revisions") == 1
    assert '<section id="sites"' not in run_page(mixed(), LINKS)


def test_a_run_that_is_a_part_says_of_what() -> None:
    run = mixed()
    run.head.update(plan={"hash": "3c" * 32, "part": "rocm", "of": ["cuda", "rocm"]}, resumed=[{"time": 1.0}])
    said = text(run_page(run, LINKS))
    assert "part rocm of plan 3c3c3c3c3c3c for cuda, rocm" in said and "gone on with, 1 time." in said


def test_the_list_of_runs_marks_fakes_and_silent_sites() -> None:
    lines = [run_line(r.head, r.id, lambda r=r: r) for r in (merged(), fake_run(rows_of_run(60)))]
    html = runs_page(lines, LINKS)
    assert html.count("ev-simulated") - html.count(".ev-simulated") == 2  # cuda and rocm of the first
    assert "silent: ascend" in html and "merged from sites" in html and 'href="evidence.html"' in html


# the store


def proofs_of(*runs: FakeRun) -> dict[str, list[evidence.Proof]]:
    return {r.id: evidence.proofs(r) for r in runs}


def test_a_store_tells_newest_and_widest_and_adds_nothing_up() -> None:
    old = fake_run([done(i, "cuda", "executed", H200, hidden=1024 + i) for i in range(5)], "20260101-000000-old1")
    new = fake_run([done(100, "cuda", "executed", H200)], "20260201-000000-new1")
    compiled = fake_run([built(i, "sm_90", hidden=64 + i) for i in range(3)], "20260301-000000-comp")
    families = {f.backend: f for f in evidence.families(proofs_of(old, new, compiled))}
    executed, built_ = families["cuda"].lines
    assert (executed.evidence, executed.runs, built_.evidence) == ("executed", 2, "compiled")
    assert executed.newest and executed.newest.run == new.id and executed.newest.proof.cells == 1
    assert executed.widest and executed.widest.run == old.id and executed.widest.proof.cells == 5
    assert families["cuda"].never == () and families["rocm"].never == ("executed", "compiled")
    assert families["ascend"].lines == ()


def test_what_was_never_done_is_said() -> None:
    said = text(evidence_page(proofs_of(mixed()), LINKS))
    assert "never executed No run of this store has rocm cells that were executed." in said
    assert "never compiled No run of this store has ascend cells that were compiled." in said
    assert "have cuda cells that were executed" not in said.replace("has", "have")
    html = evidence_page(proofs_of(mixed()), LINKS)
    assert 'href="run-20261121-120000-mix1.html"' in html and '<tr class="fake">' in html


class Counting(FakeStore):
    """Notes which runs were read."""

    read: list[str]

    def run(self, run_id: str) -> FakeRun:
        self.read.append(run_id)
        return super().run(run_id)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    runs = [mixed(), fake_run(rows_of_run(60))]
    for r in runs:
        r.dir = tmp_path / "runs" / r.id
        r.dir.mkdir(parents=True)
        (r.dir / "run.json").write_text("{}")
    made = Counting(tmp_path, runs)
    made.read = []
    return made


def test_the_stores_page_reads_a_run_once(store: Counting, tmp_path: Path) -> None:
    build(store)
    page = tmp_path / "pages" / "evidence.html"
    first = page.read_text()
    assert "AMD-Instinct-MI300X" in first and "sim" in first
    store.read.clear()
    build(store, store.fakes[0].id)
    assert store.read == [store.fakes[0].id]  # for its own page; the other's proofs are kept
    assert page.read_text() == first
    (store.fakes[1].dir / "run.json").write_text('{"judged": "again"}')
    store.read.clear()
    build(store, store.fakes[0].id)
    assert store.read == [store.fakes[0].id, store.fakes[1].id]  # one that changed is read again


@pytest.mark.parametrize("kept", ["", "[]", '{"version": 1}', '{"version": 1, "runs": {"x": 1}}', "broken"])
def test_a_damaged_memory_is_no_trouble(store: Counting, tmp_path: Path, kept: str) -> None:
    build(store)
    first = (tmp_path / "pages" / "evidence.html").read_text()
    (tmp_path / "pages" / "evidence.json").write_text(kept)
    build(store)
    assert (tmp_path / "pages" / "evidence.html").read_text() == first


def test_a_memory_with_strange_proofs_is_made_again(store: Counting, tmp_path: Path) -> None:
    build(store)
    file = tmp_path / "pages" / "evidence.json"
    first, kept = (tmp_path / "pages" / "evidence.html").read_text(), json.loads(file.read_text())
    kept["runs"][store.fakes[0].id]["proofs"] = [{"place": "nowhere"}]
    file.write_text(json.dumps(kept))
    build(store)
    assert (tmp_path / "pages" / "evidence.html").read_text() == first


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    class Broken(FakeRun):
        @property
        def rows(self) -> Any:
            raise ValueError("cells.parquet is cut off")

        @rows.setter
        def rows(self, value: Any) -> None: ...

    (tmp_path / "runs").mkdir()
    build(FakeStore(tmp_path, [Broken("bad", {}, True, []), mixed()]))
    assert "AMD-Instinct-MI300X" in (tmp_path / "pages" / "evidence.html").read_text()


def test_the_server_has_the_page(store: Counting) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from test_dashboard_files import ask

    from dashboards.serve import app

    live = app(store)
    status, _, body = ask(live, "/evidence")
    assert status == 200 and 'href="/run/20261121-120000-mix1"' in body
    store.read.clear()
    assert ask(live, "/evidence")[2] == body and store.read == []
    assert 'href="/evidence"' in ask(live, "/")[2]
    assert 'href="/evidence"' in ask(live, "/run/20261121-120000-mix1")[2]
