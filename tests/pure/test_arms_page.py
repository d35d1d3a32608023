"""The page of a run of two arms: its size, what it shows first, and how lists of runs mark such a run."""

from __future__ import annotations

import gzip
import json
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import HOSTILE, FakeRun, wide_rows

from farm.compare.decide import Outcome, Stage, Verdict
from farm.dashboards import arms_page
from farm.dashboards.compare_page import as_json
from farm.dashboards.pages import Links, compare_page, runs_page
from farm.report import pair_rows, run_list
from farm.report.run_lines import run_line
from farm.store.pairs import PAIR_COLUMNS

LINKS = Links(None, lambda run_id: None, lambda name: None)
ARMS = {
    "a": {"name": "a", "called": "main", "revision": "111", "digest": "aa", "kind": "revision", "source": "main"},
    "b": {"name": "b", "called": HOSTILE, "revision": "222", "digest": "bb", "variables": {"X": "1"}},
}


@dataclass
class FakeArms(FakeRun):
    pairs: list[dict[str, Any]] = field(default_factory=list)

    def table(self, name: str) -> list[dict[str, Any]]:
        assert name == "pairs"
        return self.pairs


def compared(rows: list[dict[str, Any]], **head: Any) -> FakeArms:
    """A complete run of two arms; b is 16 % slower in the wide cells of `auto`, and breaks the first."""
    dice = np.random.default_rng(7)
    both, pairs = [], []
    for i, row in enumerate(rows):
        a, b = ({**row, "cell_id": f"{row['cell_id']}~{arm}", "device": "d", "target": "t"} for arm in "ab")
        broken = i == 0
        b |= {"status": "inaccurate", "reason": HOSTILE} if broken else {}
        slower = row["mode"] == "auto" and row["provider"] == "farm" and int(row["shape"].split("x")[1]) >= 16384
        ratio = (1.16 if slower else 1.0) * float(np.exp(dice.normal(0, 0.003)))
        verdict = Verdict.REGRESSED if slower else Verdict.INCONCLUSIVE if i % 97 == 5 else Verdict.SAME
        timed = row["status"] == "passed" and row["time_us_p50"] and not broken
        outcome = Outcome(verdict, ratio, ratio * 0.995, ratio * 1.005, 0.02, 0.004, 15, Stage.CONFIRM)
        b["time_us_p50"] = row["time_us_p50"] * ratio if timed else None
        b["launch"] = json.dumps({"kernels": [{"kernel": "f", "grid": [8192 if slower else 132]}]})
        a["launch"] = json.dumps({"kernels": [{"kernel": "f", "grid": [132]}]})
        both += [a, b]
        pairs.append(pair_rows.pair_row(a, b, [], outcome if timed else None, control=False))
    pairs = [{**dict.fromkeys(PAIR_COLUMNS), **pair, "kernels": ""} for pair in pairs]
    summed = pair_rows.summed(pairs)
    told = {"verdict": summed.name, "exit_code": summed.exit_code, "why": list(summed.why), **pair_rows.counts(pairs)}
    run = {"kind": "ab", "arms": ARMS, "comparison": told, "verdict": "passed", "exit_code": 0, "argv": ["ab"], **head}
    return FakeArms("r", {"created": "2026-11-23T12:00:00+00:00", "backends": {}, **run}, True, both, pairs=pairs)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return wide_rows()


@pytest.fixture(scope="module")
def wide(rows: list[dict[str, Any]]) -> FakeArms:
    return compared(rows)


def test_four_thousand_pairs_are_a_small_page_that_begins_with_the_verdict(wide: FakeArms) -> None:
    made = arms_page.of_run(wide, "results-r.html")
    html = compare_page(*made, LINKS)
    assert len(wide.pairs) == 4000 and len(gzip.compress(html.encode(), 6)) <= 150_000
    assert re.search(r"<b>Worse: 1 cell broken, \d+ cells regressed</b>", html)
    assert html.index("Worse:") < html.index('id="statuses"') < html.index('id="cells"')
    assert "<script>alert" not in html and html.count("<script") == 1 and not re.search(r"https?://", html)
    assert 'href="results-r.html"' in html and "hidden 16384, 32768" in html
    assert "f.grid [132] → [8192]" in html, "what differs in the launch stands in the row of a slower cell"
    assert "Best mode and auto" in html and "Undecided" in html and "B GB/s" in html
    data = as_json(*made)
    assert json.loads(json.dumps(data))["more"]["Best mode and auto"]
    slower = [p for p in data["pairs"] if p["time"] == "slower"]
    assert len(slower) == sum(p["verdict"] == "regressed" for p in wide.pairs) > 10
    assert all(p["low"] < p["ratio"] < p["high"] for p in slower)
    assert all(p["more"] == ["f.grid [132] -> [8192]"] for p in slower)


def test_what_both_arms_share_is_not_said_to_differ(wide: FakeArms) -> None:
    few = replace(wide, rows=wide.rows[:80], pairs=wide.pairs[:40])
    a, b, pairs, said = arms_page.of_run(few)
    html = compare_page(a, b, pairs, said, LINKS)
    bold = re.findall(r'<td class="nowrap">([^<]*)</td><td><b>', html)
    assert bold == ["revision", "digest of its files", "variables"]
    assert said.kind == "findings" and said.results is None and a.name == "main"


def test_arms_that_were_not_timed_say_so(rows: list[dict[str, Any]]) -> None:
    run = compared([{**row, "time_us_p50": None} for row in rows[:6]])
    html = compare_page(*arms_page.of_run(run), LINKS)
    assert "Nothing was timed" in html and "no times to compare" in html and "Slower and faster" not in html


def test_lists_of_runs_mark_a_comparison_by_its_own_verdict(wide: FakeArms) -> None:
    def line(head: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        made = run_line(head, "r", lambda: wide)
        entry = run_list.entry(made, head, [])
        return runs_page([made], LINKS), next(run_list.lines([entry])), entry

    page, text, entry = line(wide.head)
    assert "B against A: worse" in page and 'class="tag v-findings"' in page and 'class="tag v-passed"' not in page
    assert "b against a: worse" in text and (entry["exit_code"], entry["comparison"]) == (1, "worse")
    head = {k: v for k, v in wide.head.items() if k != "comparison"}
    page, text, entry = line({**head, "complete": True})
    assert "two arms, not complete" in page and "two arms, not complete" in text and "comparison" not in entry
    plain = {k: v for k, v in head.items() if k not in ("kind", "arms")}
    assert "one arm of a comparison" in line(plain)[1] and "arm" not in line({**plain, "argv": ["run"]})[1]
