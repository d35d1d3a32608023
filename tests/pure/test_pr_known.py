"""Known failures of a pull request: base's or the operator's, never head's; they change a verdict, never a status."""

from __future__ import annotations

import argparse
import json
import random
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pr_results import pair, result, static, target
from subject_repositories import SUBJECT, committed, git, write

from farm.cli import common, pr_known, pr_measure
from farm.errors import MatrixError
from farm.matrix import Matrix, cells, load
from farm.matrix.known import KnownFailure, load_known
from farm.pr import comment as comments
from farm.pr import known, merging
from farm.pr import result as results
from farm.pr.known import Known
from farm.subject import repository
from farm.subject.arms import contents
from farm.subject.arms import pair as arm_pair

MATRIX = """name: norm
op: rms_norm
axes: {shape: [{rows: 3, hidden: [64, 128]}], operation: no-grad-forward}
providers: {liger: {}}
"""
RULE = "match: {op: rms_norm, hidden: 64}, status: crashed"
ENTRY = f"known:\n  - {{{RULE}, reason: 'tracker 12 <b>', owner: jane, until: %s}}\n"
WIDE = "known:\n  - {match: {op: rms_norm}, reason: all of it, owner: head, until: 2999-01-01}\n"
EARLY, LATE = "2020-01-01", "2999-01-01"
WHERE = "bench/known.yaml:2"


def told(state: str, **given: Any) -> dict[str, Any]:
    made = {"match": "hidden=64", "reason": "tracker 12 <b>", "owner": "jane", "until": LATE, "where": WHERE}
    return {**made, "state": state, "cells": 1, **given}


CRASHED = {"status_b": "crashed", "worst_b": None, "same_bits": None, "speed": "none", "ratio": None}


def test_a_known_failure_changes_the_verdict_and_no_status() -> None:
    bad = pair("cuda/rms_norm/x/auto/forward/bf16/3x64", **CRASHED)
    assert results.outcome(result(bad, pair())).exit_code == 1
    found = result({**bad, "known": WHERE}, pair(), known=[told("covers")])
    results.read(json.dumps(found))
    assert results.outcome(found) == results.Outcome("not worse", 0, ())
    assert found["pairs"][0]["status_b"] == "crashed" and results.counted(found["pairs"])["known"] == 1
    text = comments.comment(found)
    assert "1 cell fails as base's known failures say" in text.splitlines()[1]
    assert f"- {WHERE.replace('_', chr(92) + '_')}: 1 cell, first cuda/rms" in text and "owner jane, until 2999" in text
    assert "<b>" not in text and "passed | crashed" in text
    slow = {**bad, "known": WHERE, "status_a": "crashed"}
    assert results.statuses(slow) == "failing", "what fails in base too is as before"
    assert results.outcome(result({**bad, "known": WHERE}, known=[told("covers")])).exit_code == 4, "nothing passed"


def test_what_head_fixes_is_red_until_its_entry_is_gone() -> None:
    fixed = pair(status_a="crashed", same_bits=None)
    found = result(fixed, known=[told("fixed")])
    done = results.outcome(found)
    assert (done.name, done.exit_code) == ("worse", 1)
    assert done.why == ("1 known failure that head fixes is still listed: remove bench/known.yaml:2 (owner: jane)",)
    assert "remove bench/known.yaml:2" in comments.comment(found)
    assert results.outcome(result(fixed, known=[told("removed")])).exit_code == 0
    assert results.outcome(result(pair(), known=[told("expired"), told("idle")])).exit_code == 0


def test_a_known_compile_error_of_a_target_fails_nothing() -> None:
    failed = {"cell": "cuda/a@sm_90", "status_a": "built", "status_b": "compile_error", "reason": "x"}
    worse = result(static=static(targets=[target(failed=[failed])]))
    assert results.outcome(worse).exit_code == 1
    excused = result(static=static(targets=[target(failed=[{**failed, "known": WHERE}])]), known=[told("covers")])
    assert results.outcome(excused).exit_code == 4 and "1 cell compiled without a device" in comments.comment(excused)


def test_what_stage_0_refuses_is_named_by_what_it_does() -> None:
    spills = "k spills 8 bytes (stores) per thread; a kernel that mode auto chooses may not spill for n up to 9"
    of = {"status_a": "built", "status_b": "compile_error"}
    for reason, words in (
        (spills, "spills registers on sm_90"),
        ("k falls back to the scalar unit (99 single-element accesses); this is not allowed", "scalar unit on sm_90"),
        ("k needs 9 bytes of Unified Buffer, but only 8 are available", "needs too much Unified Buffer on"),
        ("k cannot be launched: the grid exceeds 65,535", "cannot be launched on sm_90"),
        ("k cannot run: no block fits on a core (shared memory)", "fits on no core on sm_90"),
        ("error: expected a pointer", "1 cell does not compile for sm_90 any more"),
    ):
        found = result(static=static(targets=[target(failed=[{**of, "cell": "cuda/a@sm_90", "reason": reason}])]))
        (why,) = results.outcome(found).why
        assert words in why and ("compile" in why) == reason.startswith("error"), reason
        assert words.partition(" on")[0].partition(" for")[0] in comments.comment(found).split("**By how much?**")[0]


def test_cells_that_compile_in_neither_arm_do_not_hide_that_nothing_changed() -> None:
    failed = {"cell": "cuda/a@sm_90", "status_a": "compile_error", "status_b": "compile_error", "reason": "spills"}
    alike = target(compiled=12, same_code=11, unknown=1, failed=[failed])
    assert results.outcome(result(pair(), static=static(changed=[], targets=[alike]))).name == "unchanged"
    for wrong in ({"unknown": 2}, {"same_code": 10}, {"failed": [{**failed, "status_a": "built"}]}):
        other = result(pair(), static=static(changed=[], targets=[{**alike, **wrong}]))
        assert results.outcome(other).name != "unchanged", wrong


@pytest.fixture
def planned(tmp_path: Path) -> tuple[Matrix, list[Any]]:
    (tmp_path / "norm.yaml").write_text(MATRIX)
    matrix = load(tmp_path / "norm.yaml")
    return matrix, list(cells(matrix, ["cpu"]))


def entries(tmp_path: Path, matrix: Matrix, text: str) -> tuple[KnownFailure, ...]:
    (tmp_path / "known.yaml").write_text(text)
    return load_known(tmp_path / "known.yaml", [matrix])


def test_states_of_random_worlds(tmp_path: Path, planned: tuple[Matrix, list[Any]]) -> None:
    matrix, of = planned
    draw = random.Random(18)
    read_ = {until: entries(tmp_path, matrix, ENTRY % until)[0] for until in (EARLY, LATE)}
    for _ in range(200):
        until, entry = draw.choice([*read_.items()])
        removed, whole = draw.random() < 0.5, draw.random() < 0.5
        one = Known([entry], [known.key(entry)] if removed else [], "2026-11-23")
        rows = [(c, *draw.choices(("passed", "crashed", "inaccurate"), k=2)) for c in of]
        (found,) = one.told(rows, whole)
        a, b = next((a, b) for c, a, b in rows if c.dims["hidden"] == 64)
        if b == "crashed":
            assert found["state"] == ("covers" if until == LATE else "expired")
        elif (a, b) == ("crashed", "passed") and whole:
            assert found["state"] == ("removed" if removed else "fixed")
        else:
            assert found["state"] == "idle"
        for cell, _, status in rows:
            excused = one.excuse(cell, status)
            assert bool(excused) == (status == "crashed" and cell.dims["hidden"] == 64 and until == LATE)


def test_two_sites_have_one_list_and_what_fails_anywhere_is_not_fixed() -> None:
    a, b = result(pair(), known=[told("fixed")]), result(pair(), known=[told("covers"), told("idle", where="k:9")])
    both = merging.merged([a, b])
    assert [(e["where"], e["state"]) for e in both["known"]] == [(WHERE, "covers"), ("k:9", "idle")]
    results.read(json.dumps(both))


def read(folder: Path, head: str, named: Path | None = None, matrices: tuple[Path, ...] = ()) -> pr_known.Read:
    args = argparse.Namespace(
        known=named, matrices=list(matrices), select=None, overrides=[], provider=[], contracts=[]
    )
    history = repository.history(folder, "base", head)
    arms = arm_pair(f"revision={history.base}", f"revision={history.head}")
    base, _ = contents(*arms, repo=str(folder), subject="", sandbox=False)
    return pr_known.Read(args, base.subject, folder, history)


def test_a_head_that_edits_known_failures_excuses_nothing_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    write(folder, farm_yaml=SUBJECT, bench__norm_dot_yaml=MATRIX, bench__known_dot_yaml=ENTRY % LATE)
    committed(folder)
    place = folder / "bench/known.yaml"
    for name, text in (("wide", WIDE), ("none", ""), ("bad", "knwon: 1\n")):
        git(folder, "checkout", "-qb", name, "base")
        place.write_text(text) if text else place.unlink()
        git(folder, "commit", "-qam", name)

    def marked(found: pr_known.Read) -> list[tuple[str, str]]:
        rows = [
            pair(f"cpu/rms_norm/liger/auto/no-grad-forward/fp32/3x{n}/llama", **CRASHED, axes={}) for n in (64, 128)
        ]
        found.note(rows, None, True)
        return [(str(p["cell"]).split("/")[6], p.get("known", "")) for p in rows]

    git(folder, "checkout", "-q", "wide")
    for named in (None, place, Path("bench/known.yaml")):  # the checkout's file is head's, whoever names it
        monkeypatch.chdir(folder)
        found = read(folder, "wide", named, matrices=(folder / "bench/norm.yaml",) if named is None else ())
        assert marked(found) == [("3x64", "bench/known.yaml:2"), ("3x128", "")], named
        assert found.notes == ["known failures in bench/known.yaml"]
    assert marked(read(folder, "bad")) == marked(read(folder, "none")) == marked(found)
    solved = [pair("cpu/rms_norm/liger/auto/no-grad-forward/fp32/3x64/llama", status_a="crashed", axes={})]
    states = {
        head: read(folder, head).note(solved, None, True)["known"][0]["state"] for head in ("wide", "none", "bad")
    }
    assert states == {"wide": "removed", "none": "removed", "bad": "fixed"}
    # the checkout's file is head's for the comparison on devices, too, whose verdict is not the pull request's
    matrix = load(folder / "bench/norm.yaml")
    place.write_text(WIDE)
    args = argparse.Namespace(known=None)
    assert common.known_failures(args, [matrix]) != ()
    work = object.__new__(pr_measure._Work)
    plain = {"select": None, "out": None, "overrides": [], "provider": [], "contracts": [], "debug": False}
    work.args = argparse.Namespace(matrices=[matrix.path], subject=None, **plain)
    work.asked = argparse.Namespace(arms=lambda: ("revision=a", "revision=b"), rules="")  # type: ignore[assignment]
    work.top, work.sandbox, work.id = folder, False, "run"
    assert common.known_failures(work._ab(), [matrix]) == ()
    other = tmp_path / "operator.yaml"
    other.write_text(WIDE.replace("2999-01-01", f"{date.max}"))
    assert marked(read(folder, "none", other)) == [("3x64", f"{other}:2"), ("3x128", f"{other}:2")]
    assert read(folder, "none", folder / "bench/more.yaml").entries == []
    assert "base has no bench/more.yaml, so it excuses nothing" in capsys.readouterr().err
    other.write_text("knwon: []\n")
    with pytest.raises(MatrixError, match=r"operator\.yaml:1"):
        read(folder, "none", other)
