"""Evidence on pages: what is proven about each backend and how, never added up, with simulated devices marked."""

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

from farm.dashboards import heat
from farm.dashboards.build import build
from farm.dashboards.pages import Links, evidence_page, run_page, runs_page, shown
from farm.report import cards, evidence, findings, queries, run_verdict
from farm.report.run_lines import run_line

LINKS = Links("index.html", lambda run_id: f"run-{run_id}.html", lambda name: name, evidence="evidence.html")
MI = "rocm:AMD-Instinct-MI300X:cpx-nps4:750W"
GB, H200 = "cuda:NVIDIA-GB200:1200W", "cuda:NVIDIA-H200:700W"


def done(index: int, backend: str, kind: str, target: str, **given: Any) -> dict[str, Any]:
    """A row that ended on a device."""
    name = given.pop("name", "")
    fake = "simulated " if kind == "simulated" else ""
    made = row(index, backend="cuda", evidence="executed", **given)
    made["cell_id"] = made["cell_id"].replace("cuda/", f"{backend}/", 1) + (f"@{name}" if name else "")
    made.update(
        backend=backend,
        evidence=kind,
        target=target,
        node=f"node-{backend}",
        device=f"{fake}{target.split(':')[1]} #0",
        started=1.79e9 + index,
        seconds=2.0,
        fingerprint=json.dumps({"torch": "2.11.0", "triton": "3.6.0", "python": "3.12.1"}),
    )
    return made


def mixed() -> FakeRun:
    """cuda on two named targets, one of them simulated; rocm simulated, with a finding; ascend without a device."""
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
                {
                    **{k: r[k] for k in ("node", "target", "evidence")},
                    "name": r["device"],
                    "fingerprint": {},
                    "environment": f"{b}-env",
                }
                for r in rows[:3]
                if r["backend"] == b
            ],
            "counts": counts_of([r for r in rows if r["backend"] == b]),
        }
        for b in ("cuda", "rocm", "ascend")
    }
    return fake_run(rows, "20261121-120000-mix1", backends=used)


def merged() -> FakeRun:
    run = mixed()
    at = "2026-11-21T12:00:00+00:00"
    told = {"revision": {"name": "abc1234"}, "seconds": 9.0, "complete": True, "counts": {"passed": 3}}
    run.head.update(
        kind="merged",
        silent={"ascend": 3},
        warnings=["the sites ran different revisions of the kernels: a; b"],
        merged=[
            {**told, "run_id": "site-a", "part": "cuda", "nodes": ["node-cuda"], "finished": at},
            {**told, "run_id": "site-b", "part": "rocm", "nodes": ["node-rocm"], "complete": False},
        ],
        superseded=[
            {
                "cell_id": "cuda/rms_norm/x",
                "kept": "site-a",
                "kept_status": "passed",
                "left": "site-c",
                "left_status": "crashed",
            }
        ],
    )
    return run


def text(html: str) -> str:
    return " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.S).split())


def section(html: str, name: str) -> str:
    return html[html.index(f'<section id="{name}"') :].partition("</section>")[0]


def marked(html: str, id: str) -> list[str]:
    """The texts of the elements with an identifier."""
    return [text(found[2]) for found in re.finditer(rf'(?s)<(\w+)[^>]* data-id="{id}"[^>]*>(.*?)</\1>', html)]


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
        proven = sum(p.cells for p in evidence.proofs(run))
        assert proven + sum(sum(c.values()) for c in evidence.unproven(run).values()) == len(run.rows)


def test_a_simulated_device_is_marked_wherever_its_cells_are_shown() -> None:
    html = run_page(mixed(), LINKS)
    (note,) = marked(html, "run-simulated")
    assert "cuda GB200, rocm" in note
    mark = 'class="evidence ev-simulated"'
    assert section(html, "evidence").count(mark) >= 3  # both proofs, and the legend
    assert section(html, "cards").count(mark) == 2 and section(html, "cards").count("card b-rocm fake") == 1
    assert mark in section(html, "findings")  # rocm's, of which no cell is real
    cells = section(html, "cells")
    headings = re.findall(r"<h3>(.*?)</h3>", cells)
    assert {(text(h), "ev-simulated" in h) for h in headings} == {
        ("cuda H200 rms_norm executed", False),
        ("cuda GB200 rms_norm simulated", True),
        ("rocm rms_norm simulated", True),
        ("ascend rms_norm", False),
    }
    plain = run_page(fake_run(rows_of_run(60)), LINKS)
    assert mark not in plain and marked(plain, "run-simulated") == []


def test_a_named_device_is_no_compiled_target() -> None:
    rows = mixed().rows
    assert set(heat.heats(rows, {})) == {
        ("cuda@H200", "rms_norm"),
        ("cuda@GB200", "rms_norm"),
        ("rocm", "rms_norm"),
        ("ascend", "rms_norm"),
    }
    assert not any(queries.is_build(r) for r in rows)
    lost = {**built(0), "status": "lost", "evidence": ""}
    assert queries.is_build(built(0)) and queries.is_build(lost)
    crashed = next(g for g in findings.findings(mixed()))
    assert crashed.command.startswith("farm run") and "--backend rocm" in crashed.command
    rows[0].update(status="crashed", reason="x")
    mine = next(g for g in findings.findings(fake_run(rows)) if g.backend == "cuda")
    assert mine.command.startswith("farm run") and "target=H200" in mine.command


def test_errors_of_fakes_and_of_devices_are_never_in_one_chart() -> None:
    rows = [
        done(i, "rocm", kind, MI, hidden=64 + i, worst_ratio=0.5, worst_output="y", worst_metric="rel_l2")
        for i, kind in enumerate(("executed", "simulated", "simulated"))
    ]
    found = cards.strips(fake_run(rows))
    assert {key: len(strips["float32"][0].values) for key, strips in found.items()} == {
        ("rocm", "rms_norm"): 1,
        ("rocm simulated", "rms_norm"): 2,
    }
    headings = re.findall(r"<h3>(.*?)</h3>", section(run_page(fake_run(rows), LINKS), "errors"))
    assert [text(h) for h in headings] == ["rocm rms_norm executed", "rocm rms_norm simulated"]
    assert set(cards.strips(fake_run(rows[1:]))) == {("rocm", "rms_norm")}


def test_each_backend_has_a_verdict_of_its_own() -> None:
    html = run_page(mixed(), LINKS)
    places = html[html.index('<p class="places">') :].partition("</p>")[0].split("<span><span")[1:]
    found = [(text("<" + p), re.findall(r"tag v-(\w+)", p), "ev-simulated" in p) for p in places]
    assert [(kinds, simulated) for _, kinds, simulated in found] == [
        (["passed"], False),
        (["simulated"], True),
        (["findings"], True),
        (["farm_fault"], False),
    ]
    for (line, _, _), name in zip(found, ("cuda H200", "cuda GB200", "rocm", "ascend"), strict=True):
        assert line.startswith(name) and "3 cells" in line
    assert '<p class="places">' not in run_page(fake_run(rows_of_run(60)), LINKS)


def test_a_verdict_by_simulated_devices_alone_is_a_verdict_of_its_own() -> None:
    rows = [done(i, "rocm", "simulated", MI, hidden=64 + i) for i in range(3)]
    assert run_verdict.verdict(fake_run(rows)).id == "all-simulated"
    rows.append(done(9, "cuda", "executed", H200))
    assert run_verdict.verdict(fake_run(rows)).id == "passed-by-evidence"


def test_one_backends_failures_fold_no_others_away() -> None:
    modes = [f"mode{i}" for i in range(20)]
    rows = [
        row(i, backend="cuda", mode=m, status="inaccurate", worst_ratio=9.0, evidence="executed")
        for i, m in enumerate(modes)
    ]
    rows.append(row(20, backend="cpu", status="out_of_memory", evidence="interpreted"))
    first, more = shown(findings.findings(fake_run(rows)))
    assert len(first) == 13 and first[-1].backend == "cpu" and len(first) + len(more) == 21


def test_a_card_shows_environment_and_sibling_devices() -> None:
    cards = text(section(run_page(mixed(), LINKS), "cards"))
    busy, idle = evidence.Siblings(most=2, busy=2, cells=3), evidence.Siblings(most=0, busy=0, cells=3)
    assert f"environment cuda-env {busy}" in cards and f"environment rocm-env {idle}" in cards
    assert "2 of 3 cells" in str(busy)
    rows = mixed().rows
    assert evidence.siblings(r for r in rows if r["evidence"] == "executed") == busy
    assert evidence.siblings(r for r in rows if r["backend"] == "rocm") == idle
    assert evidence.siblings([row(0)]) is None


def test_a_merged_run_shows_its_sites_and_which_did_not_report() -> None:
    html = run_page(merged(), LINKS)
    sites = section(html, "sites")
    rows = {text(line).split()[0]: line for line in sites.split("<tr>")[2:]}
    incomplete = {part: len(marked(line, "site-incomplete")) for part, line in rows.items()}
    silent = {part: len(marked(line, "site-silent")) for part, line in rows.items()}
    assert incomplete == {"cuda": 0, "rocm": 1, "ascend": 0} and silent == {"cuda": 0, "rocm": 0, "ascend": 1}
    assert "site-b" in rows["rocm"] and "3 lost" in text(rows["ascend"])
    (superseded,) = marked(sites, "sites-superseded")
    assert "1 cell." in superseded and "cuda/rms_norm/x" in text(sites)
    assert text(html).lower().count("the sites ran different revisions") == 1
    assert '<section id="sites"' not in run_page(mixed(), LINKS)


def test_a_run_that_is_a_part_says_of_what() -> None:
    run = mixed()
    run.head.update(plan={"hash": "3c" * 32, "part": "rocm", "of": ["cuda", "rocm"]}, resumed=[{"time": 1.0}])
    html = run_page(run, LINKS)
    (part,) = marked(html, "run-part")
    assert "part rocm" in part and "3c" * 6 in part and "cuda, rocm" in part and len(marked(html, "run-resumed")) == 1


def test_the_list_of_runs_marks_simulated_devices_and_sites_that_did_not_report() -> None:
    lines = [run_line(r.head, r.id, lambda r=r: r) for r in (merged(), fake_run(rows_of_run(60)))]
    html = runs_page(lines, LINKS)
    assert html.count("ev-simulated") - html.count(".ev-simulated") == 2  # cuda and rocm of the first
    (silent,) = marked(html, "run-silent")
    assert "ascend" in silent and len(marked(html, "run-merged")) == 1 and 'href="evidence.html"' in html


# the store


def proofs_of(*runs: FakeRun) -> dict[str, list[evidence.Proof]]:
    return {r.id: evidence.proofs(r) for r in runs}


def test_a_store_shows_newest_and_widest_and_adds_nothing_up() -> None:
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


def test_missing_kinds_of_evidence_are_listed() -> None:
    html = evidence_page(proofs_of(mixed()), LINKS)
    never = {b: re.findall(r'data-id="never-(\w+)"', section(html, b)) for b in ("cuda", "rocm", "ascend")}
    assert never == {"cuda": ["compiled"], "rocm": ["executed", "compiled"], "ascend": ["executed", "compiled"]}
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


def test_what_comes_late_has_a_line_that_is_kept_and_proofs_another_time(store: Counting) -> None:
    def collected(kept: dict[str, Any], late: bool) -> dict[str, Any]:
        store.read.clear()
        return evidence.collect(store.runs(), store.run, kept, 1 << 30, lambda: late)

    ids, first = [r.id for r in store.fakes], collected({}, True)
    assert sorted(store.read) == sorted(ids)
    assert all(first[i]["line_as_of"] and not (first[i]["as_of"] or first[i]["proofs"]) for i in ids)
    assert collected(first, True) == first and not store.read  # the line is not made again
    assert all(one["as_of"] and one["proofs"] for one in collected(first, False).values()) and len(store.read) == 2
    (store.fakes[0].dir / "run.json").write_text("{ }")  # the run changed: its line is of an older one
    assert collected(first, True) != first and store.read == [ids[0]]


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

    from farm.dashboards.serve import app

    live = app(store)
    status, _, body = ask(live, "/evidence")
    assert status == 200 and 'href="/run/20261121-120000-mix1"' in body
    store.read.clear()
    assert ask(live, "/evidence")[2] == body and store.read == []
    assert 'href="/evidence"' in ask(live, "/")[2]
    assert 'href="/evidence"' in ask(live, "/run/20261121-120000-mix1")[2]
