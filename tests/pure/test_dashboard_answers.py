"""What a page answers first: what failed, whether it is over, what to type next, and what has no speed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import FakeRun, fake_run, interrupted_run, row

from farm.cell import DEADLY
from farm.cli.progress import summary
from farm.dashboards.pages import Links, run_page, runs_page
from farm.errors import id_of
from farm.report import cards, evidence, findings, run_verdict
from farm.report.run_lines import run_line

LINKS = Links("index.html", lambda run_id: f"run-{run_id}.html", lambda name: name)


def some(*rows) -> FakeRun:
    run = fake_run()
    run.rows = list(rows)
    run.head |= {"planned": len(rows), "counts": {}, "verdict": ""}
    return run


@dataclass
class Written(FakeRun):
    """An unfinished run that a process writes."""

    writer: str = "process 7 on host"


def running(cells: int, lost: int) -> Written:
    run = interrupted_run(cells, lost)
    return Written(run.id, run.head, run.complete, run.rows, run.dir)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html.partition("<body>")[2]).split())


def test_failures_come_before_evidence():
    html = run_page(fake_run(), LINKS)
    places = [html.index(f'<section id="{name}"') for name in ("cards", "findings", "faults", "evidence", "cells")]
    assert places == sorted(places)
    nav = re.findall(r'href="#(\w+)"', html.partition("<nav>")[2].partition("</nav>")[0])
    assert nav == [n for n in re.findall(r'<(?:section|footer) id="(\w+)"', html) if n in nav], "links in their order"


def test_a_card_shows_who_failed_and_names_subjects_first():
    rows = [row(0, provider="torch", role="peer", evidence="interpreted"), row(1, evidence="interpreted")]
    rows += [row(i, evidence="interpreted", status=s) for i, s in enumerate(["crashed", "crashed", "inaccurate"], 2)]
    rows += [row(7, evidence="interpreted", status="unsupported")]
    rows += [row(5, status="lost"), row(6, provider="torch", role="peer", evidence="interpreted", status="crashed")]
    (card,) = cards.cards(some(*rows))
    assert [(p.provider, p.failed, p.missing) for p in card.parts] == [
        ("farm", {"inaccurate": 1, "crashed": 2, "unsupported": 1}, {"lost": 1}),
        ("torch", {"crashed": 1}, {}),
    ]
    html = run_page(some(*rows), LINKS)
    assert '<td>farm <small class="missing">1 inaccurate</small> <small class="missing">2 crashed</small>' in html
    assert "<small>1 unsupported</small>" in html, "what cannot be done is no failure"
    assert "<small>peer</small> <small>1 crashed</small>" in html, "a peer's failure is no finding of ours"


@pytest.mark.parametrize(
    ("given", "id"),
    [
        ({"evidence": "interpreted"}, "report-no-speed-interpreted"),
        ({"evidence": "executed"}, "report-no-speed-untimed"),
        ({"evidence": "compiled", "status": "built"}, ""),
        ({"evidence": "executed", "mode": "row_packed", "timing_quality": "ok", "time_us_p50": 3.0}, ""),
        ({"evidence": "executed", "timing_quality": "impossible", "time_us_p50": 3.0}, "report-no-speed-untimed"),
    ],
)
def test_a_card_without_a_speed_says_why(given, id):
    run = some(row(0, backend="cuda", **given))
    (card,) = cards.cards(run)
    assert id_of(card.no_speed) == id and bool(card.no_speed) == bool(id)
    assert not id or f'data-id="{id}"' in run_page(run, LINKS)


def test_one_cause_of_infrastructure_failures_is_in_the_verdict():
    silent = {"status": "lost", "reason": "no site reported ascend", "backend": "ascend"}
    verdict = run_verdict.verdict(some(row(0, evidence="executed"), row(1, **silent), row(2, **silent)))
    assert (verdict.id, verdict.faults, verdict.cause) == ("infrastructure-failures", 2, silent["reason"])
    other = row(2, status="infra_error", reason="another cause")
    verdict = run_verdict.verdict(some(row(0), row(1, **silent), other))
    assert (verdict.id, verdict.faults, verdict.cause) == ("infrastructure-failures", 2, "")


def test_a_running_run_is_not_called_interrupted():
    run = running(120, 70)
    verdict = run_verdict.verdict(run)
    assert (verdict.kind, verdict.writer) == ("running", "process 7 on host")
    assert (verdict.planned, verdict.pending) == (120, 50)
    assert findings.farm_faults(run) == [], "a pending cell is not a failure"
    html = run_page(run, LINKS)
    assert 'class="verdict v-running" data-id="running"' in html and "farm resume" not in text_of(html)
    assert 'class="tag v-running"' in runs_page([run_line(run.head, run.id, lambda: run)], LINKS)
    run.writer = ""
    assert run_verdict.verdict(run).kind == "interrupted" and findings.farm_faults(run)
    assert run_line(run.head, run.id, lambda: run).verdict == "interrupted"


def test_cells_given_up_since_what_served_them_died_are_reported_apart():
    run = interrupted_run(120, 70)
    lost = [row for row in run.rows if row["status"] == "lost"]
    lost[3].update(status="infra_error", reason=f"{DEADLY} 3 times while they had the cell")
    lost[4].update(status="infra_error", reason="the spool is full")
    groups = findings.farm_faults(run)
    assert [len(g.rows) for g in groups] == [1, 1, 48]
    assert groups[0].provider == lost[3]["provider"] and groups[1].provider == ""
    assert len({g.anchor for g in groups}) == 3
    assert any("1 cell given up" in line for line in summary([dict(r) for r in run.rows], 1.0))


def test_an_interrupted_run_is_resumed_and_not_repeated():
    run = interrupted_run(120, 70)
    (group,) = findings.farm_faults(run)
    assert group.command == f"farm resume {run.id}"
    run.head["argv"] = ["run", "m.yaml", "--out", "my store"]
    assert findings.farm_faults(run)[0].command == f"farm resume {run.id} --out 'my store'"
    run.head |= {"kind": "compile", "argv": ["compile", "m.yaml", "--target", "sm_90", "--run-id", "x"]}
    assert findings.farm_faults(run)[0].command == "farm compile m.yaml --target sm_90", "farm resume refuses it"
    del run.head["kind"]
    for known in run.rows:
        known["status"] = "infra_error" if known["status"] == "lost" else known["status"]
    assert findings.farm_faults(run)[0].command == f"farm resume {run.id}", "only the farm failed"
    run.complete = True  # a complete run never changes
    assert findings.farm_faults(run)[0].command.startswith("farm run ")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["H200 #0"], ("H200 #0",)),
        ([f"H200 #{n}" for n in (10, 2, 0, 1, 4)], ("H200 #0 to #2, #4, #10",)),
        (["A #0", "A #1", "B #1"], ("A #0, #1", "B #1")),
        (["plain", "C# x"], ("plain", "C# x")),
        ([], ()),
    ],
)
def test_devices_of_one_name_are_shown_together(names, shown):
    assert evidence.numbered(names) == shown


def test_the_pattern_of_a_failure_is_sought_among_what_could_run():
    failing = [row(i, status="inaccurate", dtype="bfloat16", hidden=h) for i, h in enumerate((64, 128))]
    ran = [row(i + 2, hidden=h) for i, h in enumerate((64, 128))]
    aside = [row(4, status="unsupported", hidden=256), row(5, status="skipped", hidden=512)]
    (group,) = findings.findings(some(*failing, *ran, *aside))
    assert group.where == ("dtype bf16",), "sizes that did not run say nothing about the failure"


def test_only_what_the_run_has_is_explained_and_named():
    run = some(row(0, evidence="interpreted", matrix="one"), row(1, evidence="interpreted", matrix="one"))
    run.head["matrices"] = [{"name": n, "path": "m.yaml", "sha256": ""} for n in ("one", "deselected")]
    shown = text_of(run_page(run, LINKS))
    assert [kind for kind, meaning in evidence.KINDS.items() if meaning in shown] == ["interpreted"]
    assert " · one" in shown and "deselected" not in shown


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({"a": "m.yaml"}, "a"),
        ({"a": "d/m.yaml", "b": "d/m.yaml"}, "a, b"),
        ({"a": "", "b": "", "c": ""}, "a, b, c"),
        ({"a": "d/smoke.yaml", "b": "d/smoke.yaml", "c": "d/smoke.yaml", "x": "n.yaml"}, "smoke.yaml (3 matrices), x"),
    ],
)
def test_a_line_of_the_list_names_a_file_of_many_matrices(files, shown):
    run = some(row(0))
    run.head["matrices"] = [{"name": n, "path": p} for n, p in files.items()]
    assert run_line(run.head, run.id, lambda: run).matrices == shown


@pytest.mark.parametrize("kind", ["judged", "merged", "run"])
def test_a_line_of_the_list_marks_runs_that_executed_nothing(kind):
    run = some(row(0))
    run.head["kind"] = kind
    html = runs_page([run_line(run.head, run.id, lambda: run)], LINKS)
    assert [k for k in ("judged", "merged", "run") if f'data-id="run-{k}"' in html] == [k for k in [kind] if k != "run"]
