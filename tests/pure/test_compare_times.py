"""Times of two runs: what is suspected, what is not compared, and the page of it."""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import made_runs
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import HOSTILE, again, fake_run, row, wide_rows

from farm.cli import main
from farm.compare.unpaired import Claim, Times, judge
from farm.dashboards.build import comparison
from farm.dashboards.compare_page import as_json
from farm.dashboards.pages import Links, compare_page
from farm.report import pairs, status_changes, time_changes

LINKS = Links(None, lambda run_id: None, lambda name: None)


def compared(before: list[dict[str, Any]], after: list[dict[str, Any]], **how: Any) -> time_changes.TimeComparison:
    return time_changes.times(status_changes.compare(fake_run(before, "a"), fake_run(after, "b")), **how)


def page_of(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    a, b = fake_run(before, "a"), fake_run(after, "b")
    found = status_changes.compare(a, b)
    timed = time_changes.times(found, unlike=True)
    left, right, said = comparison(a, b, found, timed)
    return compare_page(left, right, timed.pairs, said, LINKS), as_json(left, right, timed.pairs, said)


def slowed(rows: list[dict[str, Any]], by: float = 1.16) -> list[dict[str, Any]]:
    """The wide backward cells of two of our modes on cuda take longer."""
    out = []
    for r in rows:
        hit = r["backend"] == "cuda" and r["operation"] == "backward" and r["mode"] in ("auto", "multi_wave_cached")
        hit = hit and r["provider"] == "farm" and int(r["shape"].split("x")[1]) >= 16384 and r["time_us_p50"]
        names = ("time_us_p20", "time_us_p50", "time_us_p80")
        out.append(r | {n: r[n] * by for n in names} if hit else r)
    return out


def test_slower_cells_are_amber_in_words_and_lead_to_both_revisions_in_turn() -> None:
    rows = [r for r in wide_rows() if (r["status"], r["backend"], r["evidence"]) == ("passed", "cuda", "executed")]
    a, b = fake_run(rows, "a"), fake_run(slowed(again(rows, 5)), "b")
    a.head["revision"], b.head["revision"] = {"commit": "1" * 40}, {"commit": "2" * 40}
    found = status_changes.compare(a, b)
    said = comparison(a, b, found, time_changes.times(found))[2]
    assert found.exit_code == 0 and said.kind == "inconclusive"
    assert re.fullmatch(r"Suspected slower: \d+ cells slower, \+1\d % to \+1\d %, suspected in this pair", said.verdict)
    (command,) = [c for c in said.repeats.values() if c.startswith("farm ab ")]
    assert f"--a revision={'1' * 40} --b revision={'2' * 40}" in command and "--select" in command
    b.head["revision"]["dirty"] = True
    assert not any("farm ab" in c for c in comparison(a, b, found, time_changes.times(found))[2].repeats.values())


@pytest.fixture(scope="module")
def planted() -> time_changes.TimeComparison:
    rows = wide_rows()
    return compared(rows, slowed(again(rows, 5)))


def test_a_planted_slowdown_is_found_with_its_pattern(planted: time_changes.TimeComparison) -> None:
    slower = [p for p in planted.pairs if p.time == pairs.SLOWER]
    want = [p for p in planted.pairs if p.ratio and p.ratio > 1.1]
    quiet = [p for p in want if p.time != pairs.NOISY]
    assert len(want) == 20 and set(map(id, slower)) == set(map(id, quiet)), "all of them, and nothing else"
    groups = pairs.moved(planted.pairs)
    assert [(m.provider, m.mode, m.time) for m in groups] == [
        ("farm", "auto", "slower"),
        ("farm", "multi_wave_cached", "slower"),
    ]
    assert {"operation backward", "hidden 16384, 32768"} < set(groups[0].where), "and few rows, since the plan is cut"
    assert "hidden 16384, 32768" in pairs.moved_line(groups[0])


def test_what_the_rule_invents_and_finds() -> None:
    """Noise of `docs/compare.md`: a process varies by 0.2 to 1.6 %, 0.4 % are outliers."""
    rng = np.random.default_rng(20261123)
    false = found = 0
    for _ in range(20):
        sd = np.clip(rng.lognormal(math.log(0.0045), 0.6, 4000), 0.002, 0.016)
        outliers = np.where(rng.random((2, 4000)) < 0.004, rng.uniform(0.03, 0.2, (2, 4000)), 0.0)
        x = rng.normal(0, sd) - rng.normal(0, sd) + outliers[0] - outliers[1]
        x[:100] += math.log(1.05)
        claims = judge([Times(float(v), True) for v in x]).claims
        false += sum(c in (Claim.SLOWER, Claim.FASTER) for c in claims[100:])
        found += sum(c is Claim.SLOWER for c in claims[:100])
    assert 20 * 50 < false < 20 * 70, "of 3,900 unchanged cells; nothing is proven by two runs"
    assert 0.94 < found / 2000 < 0.97


@pytest.mark.parametrize(
    ("given", "claim"),
    [
        (Times(0.10, True), Claim.SLOWER),
        (Times(-0.10, True), Claim.FASTER),
        (Times(0.10, False), Claim.SAME),
        (Times(0.015, True), Claim.SAME),
        (Times(0.10, True, noisy=True), Claim.NOISY),
    ],
)
def test_one_cell(given: Times, claim: Claim) -> None:
    assert judge([given]).claims == (claim,)


def test_what_peers_share_is_the_environments() -> None:
    peers = [Times(0.05, True, control=True)] * 5
    assert judge([*peers, Times(0.05, True), Times(0.15, True)]).claims[5:] == (Claim.SAME, Claim.SLOWER)
    assert judge([*peers[:4], Times(0.07, True)]).claims[4] is Claim.SLOWER, "too few controls"


def timed(index: int, us: float, **given: Any) -> dict[str, Any]:
    made = row(index, backend="cuda", evidence="executed", timing_quality="ok", timing_method="events")
    return made | {"time_us_p50": us, "time_us_p20": us, "time_us_p80": us, **given}


@pytest.mark.parametrize("name", ["target", "timing_method"])
def test_unlike_times_are_not_compared_unless_told(name: str) -> None:
    a, b = [timed(0, 10.0)], [timed(0, 20.0, **{name: "another"})]
    found = compared(a, b)
    assert found.unlike and found.pairs[0].time == "" and not found.shifts
    (pair,) = compared(a, b, unlike=True).pairs
    assert (pair.time, pair.ratio) == ("slower", pytest.approx(2.0))


def test_a_failure_has_no_time() -> None:
    (pair,) = compared([timed(0, 10.0)], [timed(0, 5.0, status="inaccurate")]).pairs
    assert (pair.change, pair.time, pair.b_us) == ("broken", "", None)


def test_the_page_of_four_thousand_pairs_is_small_and_finds_it() -> None:
    rows = wide_rows()
    later = slowed(again(rows, 5))
    later[100].update(status="inaccurate", worst_ratio=3.0, reason=HOSTILE)
    html, data = page_of(rows, later)
    assert len(rows) == 4000 and len(gzip.compress(html.encode(), 6)) <= 150_000
    assert "hidden 16384, 32768" in html and html.count('id="cells"') == 1
    assert "<script>alert" not in html and html.count("<script") == 1
    assert re.search(r'<td class=s-inaccurate data-t="passed → inaccurate">✓→≠', html)
    assert len(re.findall(r"<td (?:class|data-t)", html[html.index('id="cells"') :])) == 4000
    assert data["simulated"] is False and data["times"]["slower"] == 20
    assert not re.search(r"https?://", html)


def test_one_simulated_row_is_said_in_title_and_json() -> None:
    rows = [timed(0, 10.0), timed(1, 10.0, evidence="simulated")]
    html, data = page_of(rows, rows)
    assert html.partition("<title>")[2].startswith("simulated · ") and data["simulated"] is True
    assert 'data-id="compare-simulated"' in html
    html, data = page_of(rows[:1], rows[:1])
    assert "<title>simulated" not in html and data["simulated"] is False


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def at(us: float, target: str = "cpu:x") -> Any:
        times = dict.fromkeys(("time_us_p20", "time_us_p50", "time_us_p80"), us)
        return lambda c: {"status": "passed", "timing_quality": "ok", "target": target, "evidence": "executed", **times}

    made_runs.make(tmp_path, "a", at(10.0))
    made_runs.make(tmp_path, "b", at(12.0))
    made_runs.make(tmp_path, "c", at(12.0, "cpu:y"))
    page, here = tmp_path / "page.html", ("--out", str(tmp_path))
    assert main(["compare", "a", "b", *here, "--page", str(page)]) == 0
    assert "suspected, not proven" in capsys.readouterr().out
    assert json.loads(page.with_suffix(".json").read_text())["a"]["name"] == "a" and "B ÷ A" in page.read_text()
    assert main(["compare", "a", "c", *here]) == 2
    assert "[compare-unlike]" in capsys.readouterr().err
    assert main(["compare", "a", "c", *here, "--unlike", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["times"]["unlike"]
    assert main(["compare", "a", "b", *here, "--page", str(tmp_path / "no" / "page.html")]) == 2
    assert "[compare-page-unwritable]" in capsys.readouterr().err


def test_cells_that_one_run_did_not_plan_are_one_line() -> None:
    rows = [timed(i, 10.0) for i in range(50)]
    found = status_changes.compare(fake_run(rows, "a"), fake_run(rows[:2], "b"))
    out = list(status_changes.lines(found))
    assert sum("not planned" in line for line in out) == 1 and "48 cells not planned in B" in "".join(out)
