"""What a page answers first: what failed, whether it is over, what to type next, and what has no speed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import FakeRun, fake_run, interrupted_run, row

from dashboards import evidence, findings, queries
from dashboards.pages import Links, run_page, runs_page
from dashboards.runlines import run_line

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


def going_on(cells: int, lost: int) -> Written:
    run = interrupted_run(cells, lost)
    return Written(run.id, run.head, run.complete, run.rows, run.dir)


def said(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html.partition("<body>")[2]).split())


def test_what_failed_stands_before_what_is_proven():
    html = run_page(fake_run(), LINKS)
    places = [html.index(f'<section id="{name}"') for name in ("cards", "findings", "faults", "evidence", "cells")]
    assert places == sorted(places)
    nav = re.findall(r'href="#(\w+)"', html.partition("<nav>")[2].partition("</nav>")[0])
    assert nav == [n for n in re.findall(r'<(?:section|footer) id="(\w+)"', html) if n in nav], "links in their order"


def test_a_card_tells_who_failed_and_names_subjects_first():
    rows = [row(0, provider="torch", role="peer", evidence="interpreted"), row(1, evidence="interpreted")]
    rows += [row(i, evidence="interpreted", status=s) for i, s in enumerate(["crashed", "crashed", "inaccurate"], 2)]
    rows += [row(7, evidence="interpreted", status="unsupported")]
    rows += [row(5, status="lost"), row(6, provider="torch", role="peer", evidence="interpreted", status="crashed")]
    (card,) = queries.cards(some(*rows))
    assert [(p.provider, p.failed, p.missing) for p in card.parts] == [
        ("farm", {"inaccurate": 1, "crashed": 2, "unsupported": 1}, {"lost": 1}), ("torch", {"crashed": 1}, {}),
    ]  # fmt: skip
    html = run_page(some(*rows), LINKS)
    assert '<td>farm <small class="missing">1 inaccurate</small> <small class="missing">2 crashed</small>' in html
    assert "<small>1 unsupported</small>" in html, "what cannot be done is no failure"
    assert "<small>peer</small> <small>1 crashed</small>" in html, "a peer's failure is no finding of ours"


@pytest.mark.parametrize(
    ("given", "told"),
    [({"evidence": "interpreted"}, "an interpreter's time"),
     ({"evidence": "executed"}, "no cell that passed was timed"),
     ({"evidence": "compiled", "status": "built"}, ""),
     ({"evidence": "executed", "mode": "row_packed", "timing_quality": "ok", "time_us_p50": 3.0}, ""),
     ({"evidence": "executed", "timing_quality": "impossible", "time_us_p50": 3.0}, "no cell that passed was timed")],
)  # fmt: skip
def test_a_card_without_a_speed_says_why(given, told):
    (card,) = queries.cards(some(row(0, backend="cuda", **given)))
    assert (told in card.no_speed) if told else card.no_speed == ""


def test_one_cause_of_the_farms_faults_is_in_the_verdict():
    silent = {"status": "lost", "reason": "no site reported ascend", "backend": "ascend"}
    text = queries.verdict(some(row(0, evidence="executed"), row(1, **silent), row(2, **silent))).text
    assert text == "The farm failed on 2 cells: no site reported ascend."
    silent["reason"] = "another cause"
    text = queries.verdict(
        some(row(0), row(1, **silent), row(2, status="infra_error", reason="a device fell off"))
    ).text
    assert text == "The farm failed on 2 cells."


def test_a_run_that_goes_on_is_not_called_interrupted():
    run = going_on(120, 70)
    verdict = queries.verdict(run)
    assert verdict.kind == "going_on"
    assert verdict.text.startswith("Going on (process 7 on host): 70 of 120 cells have their result")
    assert findings.farm_faults(run) == [], "what is still to come is no fault"
    html = run_page(run, LINKS)
    assert "farm resume" not in said(html) and "Interrupted" not in said(html)
    assert "going on" in said(runs_page([run_line(run.head, run.id, lambda: run)], LINKS))
    run.writer = ""
    assert queries.verdict(run).kind == "interrupted" and findings.farm_faults(run)
    assert run_line(run.head, run.id, lambda: run).verdict == "interrupted"


def test_an_interrupted_run_is_gone_on_with_and_not_begun_anew():
    run = interrupted_run(120, 70)
    (group,) = findings.farm_faults(run)
    assert group.command == f"farm resume {run.id}"
    run.head["argv"] = ["run", "m.yaml", "--out", "my store"]
    assert findings.farm_faults(run)[0].command == f"farm resume {run.id} --out 'my store'"
    run.head |= {"kind": "compile", "argv": ["compile", "m.yaml", "--target", "sm_90", "--run-id", "x"]}
    assert findings.farm_faults(run)[0].command == "farm compile m.yaml --target sm_90", "farm resume refuses it"
    del run.head["kind"]
    run.complete = True  # a complete run never changes
    assert findings.farm_faults(run)[0].command.startswith("farm run ")


@pytest.mark.parametrize(
    ("names", "told"),
    [(["H200 #0"], ("H200 #0",)), ([f"H200 #{n}" for n in (10, 2, 0, 1, 4)], ("H200 #0 to #2, #4, #10",)),
     (["A #0", "A #1", "B #1"], ("A #0, #1", "B #1")), (["plain", "C# x"], ("plain", "C# x")), ([], ())],
)  # fmt: skip
def test_devices_of_one_name_are_told_together(names, told):
    assert evidence.numbered(names) == told


def test_the_pattern_of_a_failure_is_sought_among_what_could_run():
    failing = [row(i, status="inaccurate", dtype="bfloat16", hidden=h) for i, h in enumerate((64, 128))]
    ran = [row(i + 2, hidden=h) for i, h in enumerate((64, 128))]
    aside = [row(4, status="unsupported", hidden=256), row(5, status="skipped", hidden=512)]
    (group,) = findings.findings(some(*failing, *ran, *aside))
    assert group.where == ("dtype bf16",), "which sizes were not tried says nothing of what failed"


def test_only_what_the_run_has_is_explained_and_named():
    run = some(row(0, evidence="interpreted", matrix="one"), row(1, evidence="interpreted", matrix="one"))
    run.head["matrices"] = [{"name": n, "path": "m.yaml", "sha256": ""} for n in ("one", "deselected")]
    told = said(run_page(run, LINKS))
    assert "proves numerics, never speed" in told and "nothing of any kernel" not in told
    assert " · one" in told and "deselected" not in told


@pytest.mark.parametrize(
    ("files", "told"),
    [({"a": "m.yaml"}, "a"), ({"a": "d/m.yaml", "b": "d/m.yaml"}, "a, b"), ({"a": "", "b": "", "c": ""}, "a, b, c"),
     ({"a": "d/smoke.yaml", "b": "d/smoke.yaml", "c": "d/smoke.yaml", "x": "n.yaml"}, "smoke.yaml (3 matrices), x")],
)  # fmt: skip
def test_a_line_of_the_list_names_a_file_of_many_matrices(files, told):
    run = some(row(0))
    run.head["matrices"] = [{"name": n, "path": p} for n, p in files.items()]
    assert run_line(run.head, run.id, lambda: run).matrices == told


@pytest.mark.parametrize(("kind", "told"), [("judged", "judged again"), ("merged", "merged from sites"), ("run", "")])
def test_a_line_of_the_list_says_what_was_not_run(kind, told):
    run = some(row(0))
    run.head["kind"] = kind
    shown = said(runs_page([run_line(run.head, run.id, lambda: run)], LINKS))
    assert ("judged again" in shown, "merged from sites" in shown) == (told == "judged again", "merged" in told)
