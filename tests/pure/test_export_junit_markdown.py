"""Exports have every cell, fail the right ones, and survive hostile text."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import HOSTILE, counts_of, fake_run, interrupted_run, row

from farm.report import run_verdict, wording
from farm.report.junit import junit
from farm.report.markdown import markdown


@pytest.fixture(scope="module")
def run():
    return fake_run()


def test_junit_counts(run):
    root = ElementTree.fromstring(junit(run).encode())
    counts = counts_of(run.rows)
    peers = sum(r["role"] == "peer" and r["status"] in ("inaccurate", "out_of_memory") for r in run.rows)
    findings = sum(counts[s] for s in ("inaccurate", "crashed", "timed_out", "compile_error", "out_of_memory")) - peers
    assert len(root.findall(".//testcase")) == int(root.get("tests")) == 4000
    assert len(root.findall(".//failure")) == int(root.get("failures")) == findings == 34
    assert len(root.findall(".//error")) == int(root.get("errors")) == counts["infra_error"] == 6
    assert len(root.findall(".//skipped")) == counts["skipped"] + counts["unsupported"] + peers
    assert [s.get("name") for s in root] == ["cuda/rms_norm", "cpu/rms_norm", "sim/rms_norm"]
    for name in ("tests", "failures", "errors", "skipped"):
        assert sum(int(s.get(name)) for s in root) == int(root.get(name))
    assert float(root.get("time")) == pytest.approx(sum(r["seconds"] for r in run.rows))


def test_junit_has_the_reasons(run):
    root = ElementTree.fromstring(junit(run).encode())
    assert HOSTILE in root.find(".//failure[@type='crashed']").get("message")
    assert {"dw.rel_l2", "5.3x"} <= set(root.find(".//failure[@type='inaccurate']").text.split())
    assert "does not fit in registers (rms_norm.yaml:21)" in root.find(".//skipped").get("message")


def test_junit_of_an_interrupted_run_is_not_green():
    root = ElementTree.fromstring(junit(interrupted_run(120, 70)).encode())
    assert len(root.findall(".//error[@type='lost']")) == 50


def test_junit_separates_simulated_cells_from_a_devices():
    rows = [row(0, backend="rocm", evidence="simulated"), row(1, backend="rocm", evidence="executed")]
    root = ElementTree.fromstring(junit(fake_run(rows)).encode())
    names = [case.get("classname") for case in root.iter("testcase")]
    assert sorted(n.split(".")[0] for n in names) == ["rocm", "simulated-rocm"]


def test_junit_survives_what_xml_forbids():
    bad = "nul \0 escape \x1b[31m \ud800 \uffff"
    text = junit(fake_run([row(0, status="crashed", reason=bad), row(1, status="from the future")]))
    root = ElementTree.fromstring(text.encode())
    assert root.get("failures") == "1" and root.get("errors") == "1", "an unknown status is never green"


def test_markdown_says_the_verdict_first(run):
    text, verdict = markdown(run), run_verdict.verdict(run)
    assert (verdict.id, verdict.faults, verdict.failed, verdict.groups) == ("infrastructure-failures", 6, 34, 4)
    assert text.startswith(f"### ⚠️ {wording.sentence(verdict)}\n") and "actor lost twice (node-b, node-c)" in text
    assert "4,000 planned = 3,896 passed, 10 inaccurate" in text
    assert "| cuda:NVIDIA-H200:700W | executed | rms\\_norm | farm | 1,276 / 1,304 | 5.3 |" in text
    assert "farm run matrices/rms_norm.yaml --backend cuda,cpu,sim" in text


def test_markdown_counts_the_lost_as_planned():
    text = markdown(fake_run([row(0, evidence="interpreted"), row(1, status="lost"), row(2, status="skipped")]))
    assert "| farm | 1 / 2 |" in text


def test_markdown_tables_hold_together(run):
    for line in markdown(run).splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") in (7, 9)


def test_markdown_is_text_only():
    nasty = "<img src=x> @everyone #1 `a` | **b** [c](d) \n| next |"
    text = markdown(fake_run([row(0, status="crashed", reason=nasty)]))
    line = next(x for x in text.splitlines() if x.startswith("| crashed"))
    assert "<img" not in line and "@" not in line and "#1" not in line and "\\`a\\`" in line and "\\[c\\]" in line
    assert line.replace("\\|", "").count("|") == 7


@pytest.mark.parametrize("limit", [60_000, 3_000, 1_200, 300])
def test_markdown_is_bounded_by_rows_then_bytes(limit):
    rows = [row(i, mode=f"mode{i}", status="crashed", reason="é" * 500) for i in range(300)]
    text = markdown(fake_run(rows), limit)
    assert len(text.encode()) <= limit
    assert text.startswith("### ❌ ") and "300" in text.splitlines()[0]
    assert text.count("| crashed |") <= 12
    if limit == 60_000:
        assert text.count("| crashed |") == 12 and text.count("288") == 2, "as many groups as cells are left"


def test_the_run_is_repeated_under_another_name():
    run = fake_run([row(0)])
    run.head |= {"argv": ["run", "m.yaml", "--run-id", "r1"], "command": "farm run m.yaml --run-id r1"}
    text = markdown(run)
    assert "farm run m.yaml" in text and "--run-id" not in text
