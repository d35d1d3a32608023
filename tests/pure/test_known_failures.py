"""known.yaml: read as strictly as a matrix; what it covers, when it is red again, and what pages say of it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.cell import Status
from farm.errors import MatrixError
from farm.matrix import cells, load
from farm.matrix.known import KnownFailure, applied, load_known
from farm.report import findings, run_verdict, wording
from farm.report.junit import junit
from farm.report.pair_rows import summed
from farm.store import known, results

MATRIX = """name: norm
op: rms_norm
axes: {shape: [{rows: 8, hidden: [64, 128]}], dtype: [float32, bfloat16]}
providers: {farm: {mode: [auto, row_packed]}, torch: {}}
"""
GOOD = """known:
  - match: {op: rms_norm, mode: row_packed, hidden: ">64"}
    status: [crashed, inaccurate]
    reason: does not fit (tracker 12)
    owner: jane@example.org
    until: 2026-12-31
"""
WHO = "reason: r, owner: o, until: 2026-12-31"


@pytest.fixture
def matrix(tmp_path: Path) -> Any:
    (tmp_path / "norm.yaml").write_text(MATRIX)
    return load(tmp_path / "norm.yaml")


def entries(tmp_path: Path, matrix: Any, text: str = GOOD) -> tuple[KnownFailure, ...]:
    (tmp_path / "known.yaml").write_text(text)
    return load_known(tmp_path / "known.yaml", [matrix])


def one(rule: str, more: str = WHO) -> str:
    return f"known:\n  - {{match: {rule}, {more}}}\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", "", "it must have one key, known"),
        ("- a\n", "", "it must have one key, known"),
        ("known: []\n", ":1", "is empty"),
        ("known: yes please\n", ":1", "it must be a list"),
        ("knwon:\n  - {}\n", ":1", "its only key is known"),
        ("known:\n  - just text\n", ":2", "it must be a mapping"),
        (one("{op: rms_norm}", WHO + ", unitl: x"), ":2", 'did you mean "until"?'),
        (one("{op: rms_nrom}"), ":2", 'did you mean "rms_norm"?'),
        (one("{provdier: farm}"), ":2", 'did you mean "provider"?'),
        (one("{provider: frm}"), ":2", 'did you mean "farm"?'),
        (one("{mode: [auto, row_paked]}"), ":2", 'did you mean "row_packed"?'),
        (one("{dtype: bf61}"), ":2", "did you mean"),
        (one("{hidden: abc}"), ":2", "must be an integer"),
        (one('{hidden: ">x"}'), ":2", "is not a number"),
        (one("{}"), ":2", "is empty"),
        (one("all"), ":2", "it must be a mapping"),
        (one("{op: rms_norm}", "reason: r, owner: o"), ":2", "has no until"),
        (one("{op: rms_norm}", "reason: r, until: 2026-12-31"), ":2", "has no owner"),
        (one("{op: rms_norm}", "owner: o, until: 2026-12-31"), ":2", "has no reason"),
        ("known:\n  - {reason: r, owner: o, until: 2026-12-31}\n", ":2", "has no match"),
        (one("{op: rms_norm}", "reason: '', owner: o, until: 2026-12-31"), ":2", "non-empty text"),
        (one("{op: rms_norm}", "reason: r, owner: 3, until: 2026-12-31"), ":2", "non-empty text"),
        (one("{op: rms_norm}", "reason: r, owner: o, until: 31.12.2026"), ":2", "a date like"),
        (one("{op: rms_norm}", "reason: r, owner: o, until: 2026-02-30"), ":2", "a date like"),
        (one("{op: rms_norm}", WHO + ", status: passed"), ":2", "only these are failures"),
        (one("{op: rms_norm}", WHO + ", status: crsahed"), ":2", 'did you mean "crashed"?'),
        (one("{op: rms_norm}", WHO + ", status: lost"), ":2", "only these are failures"),
        (one("{op: rms_norm}") + one("{op: rms_norm}").partition("\n")[2], ":3", "keep one"),
        ("known:\n  - {match: {op: a, op: b}}\n", ":2", "given twice"),
        ("known: [\n", ":2", "not valid YAML"),
        ("known: !!python/object:os.system x\n", ":1", "remove it"),
    ],
)
def test_every_mistake_is_one_sentence_with_file_and_line(
    tmp_path: Path, matrix: Any, text: str, line: str, words: str
) -> None:
    with pytest.raises(MatrixError) as caught:
        entries(tmp_path, matrix, text)
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / 'known.yaml'}{line}") and words in told and "\n" not in told
    assert caught.value.exit_code == 2


def test_the_example_of_the_guide_is_right(tmp_path: Path, matrix: Any) -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "matrix.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(known:.*?)^```", guide, re.M | re.S)
    assert len(entries(tmp_path, matrix, example)) == 1


def test_an_entry_may_be_of_another_matrix_in_the_folder(tmp_path: Path, matrix: Any) -> None:
    entries(tmp_path, matrix, one("{op: matmul, m: 4096}"))
    entries(tmp_path, matrix, one("{op: rms_norm, provider: theirs_altogether}"))


def test_a_known_failure_is_stored_and_read_back(tmp_path: Path, matrix: Any) -> None:
    (entry,) = entries(tmp_path, matrix)
    assert KnownFailure.from_dict(entry.to_dict()) == entry
    assert entry.where == f"{tmp_path / 'known.yaml'}:2" and entry.statuses == ("crashed", "inaccurate")


def run_of(matrix: Any, status: Any) -> list[tuple[Any, str]]:
    return [(cell, status(cell)) for cell in cells(matrix, ["cuda"])]


@pytest.mark.parametrize(
    ("fails", "today", "whole", "state", "verdict"),
    [
        ("crashed", "2026-12-31", True, "covers", ("passed", 0)),
        ("crashed", "2027-01-01", True, "expired", ("findings", 1)),
        ("", "2026-12-01", True, "fixed", ("findings", 1)),
        ("", "2027-01-01", True, "fixed", ("findings", 1)),
        ("", "2026-12-01", False, "idle", ("passed", 0)),  # a run of some cells proves no fix
        ("timed_out", "2026-12-01", True, "idle", ("findings", 1)),  # it fails otherwise than is known
        ("lost", "2026-12-01", True, "idle", ("farm_fault", 3)),
    ],
)
def test_it_counts_apart_and_is_red_again_when_fixed_or_expired(
    tmp_path: Path, matrix: Any, fails: str, today: str, whole: bool, state: str, verdict: tuple[str, int]
) -> None:
    made = run_of(matrix, lambda c: fails if fails and c.mode == "row_packed" and c.dims["hidden"] > 64 else "passed")
    (told,) = found = applied(entries(tmp_path, matrix), made, today, whole=whole)
    assert told["state"] == state and told["count"] == (2 if fails == "crashed" else 0)
    rows = [results.planned_row(cell) | {"status": status, "reason": ""} for cell, status in made]
    covered, stale = known.covered(found), bool(known.fixed(found))
    assert results.verdict(rows, known=covered, stale=stale) == verdict
    assert [r["status"] for r in rows] == [status for _, status in made], "never a status"
    head = {"known": found, "planned": len(rows), "verdict": verdict[0], "argv": [], "schema": results.SCHEMA}
    run = SimpleNamespace(id="r", head=head, complete=True, rows=rows, dir=tmp_path)
    page = run_verdict.verdict(run)
    assert page.kind == verdict[0] and not [w for w in run_verdict.warnings(run) if "verdict" in str(w)]
    assert page.known == (2 if state == "covers" else 0)
    sentence = wording.sentence(page)
    assert ("Known failures: 2 cells, counted apart." in sentence) == (state == "covers")
    assert ("fixed" in sentence, "expired on 2026-12-31" in sentence) == (state == "fixed", state == "expired")
    if state == "covers":
        assert not findings.findings(run) and not findings.peer_failures(run)
        assert 'failures="0"' in junit(run, lambda row: "") and "known failure, crashed" in junit(run, lambda row: "")


def test_what_only_fails_as_known_proves_nothing(tmp_path: Path, matrix: Any) -> None:
    made = run_of(matrix, lambda c: Status.CRASHED.value)
    found = applied(entries(tmp_path, matrix, one("{op: rms_norm}")), made, "2026-01-01")
    rows = [results.planned_row(cell) | {"status": status} for cell, status in made]
    assert results.verdict(rows, known=known.covered(found)) == ("inconclusive", 4)


def test_a_known_failure_breaks_no_comparison() -> None:
    """Base's known.yaml counts in `farm ab` and `farm pr`: what fails now and then does not fail a pull request."""
    row = {"cell": "c", "op": "rms_norm", "role": "subject", "change": "broken", "verdict": "", "control": 0}
    rows = [row | {"status_a": "passed", "status_b": "crashed", "cell_id_b": "c~b"}]
    assert summed(rows).exit_code == 1 and summed(rows, known={"c~b"}).exit_code == 0
