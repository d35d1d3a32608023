"""`farm compare`: every cell of two runs in exactly one change, and an exit code that hides nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_runs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cell import Status
from farm.cli import main
from farm.report import status_changes
from farm.report.status_changes import CHANGES, compare
from farm.store import Store

STATUSES = [s.value for s in Status]


class FakeRun:
    """What `farm.store.Run` gives a reader."""

    def __init__(self, name: str, statuses: dict[str, str], role: str = "subject", **head: Any):
        self.id, self.head, self.complete, self.dir, self.writer = name, head, True, Path("x"), ""
        self.rows = [
            {"cell_id": f"cpu/op/p/{key}", "cell_key": key, "backend": "cpu", "status": status, "role": role,
             "evidence": "" if status in ("skipped", "lost") else "interpreted", "reason": "why", "provider": "p"}
            for key, status in statuses.items()
        ]  # fmt: skip


def change(before: str | None, after: str | None, role: str = "subject") -> tuple[str, int]:
    """(kind, exit code) of one cell beside one that passes in both."""
    a, b = ({"k": s, "other": "passed"} if s else {"other": "passed"} for s in (before, after))
    found = compare(FakeRun("a", a, role), FakeRun("b", b, role))
    (kind,) = [c.kind for c in found.changes if c.row["cell_key"] == "k"]
    return kind, found.exit_code


@pytest.mark.parametrize(
    ("before", "after", "kind", "code"),
    [
        ("passed", "passed", "same", 0),
        ("passed", "inaccurate", "broken", 1),
        ("built", "compile_error", "broken", 1),
        ("crashed", "passed", "fixed", 0),
        ("crashed", "timed_out", "failing", 0),
        (None, "passed", "new", 0),
        (None, "crashed", "new", 1),
        ("unsupported", "crashed", "new", 1),
        ("skipped", "unsupported", "same", 0),
        ("passed", None, "lost", 0),
        ("passed", "skipped", "lost", 4),
        ("passed", "unsupported", "lost", 4),
        ("crashed", "lost", "lost", 3),
        ("passed", "infra_error", "lost", 3),
        ("infra_error", "passed", "new", 0),
        ("infra_error", "lost", "same", 0),
    ],
)
def test_what_became_of_a_cell(before: str | None, after: str | None, kind: str, code: int) -> None:
    assert change(before, after) == (kind, code)


def test_a_peer_breaks_without_an_exit_code() -> None:
    assert change("passed", "crashed", role="peer") == ("broken", 0)
    assert change("passed", "unsupported", role="peer") == ("lost", 0)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(STATUSES)),
    st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(STATUSES)),
)
def test_every_cell_is_in_exactly_one_change(one: dict[str, str], two: dict[str, str]) -> None:
    a, b = FakeRun("a", one), FakeRun("b", two)
    found, back = compare(a, b), compare(b, a)
    assert sorted(c.row["cell_key"] for c in found.changes) == sorted({*one, *two})
    assert sum(len(found.of(kind)) for kind in CHANGES) == len({*one, *two})
    mirrored = {"broken": "fixed", "fixed": "broken", "new": "lost", "lost": "new"}
    kinds = {c.row["cell_key"]: c.kind for c in found.changes}
    assert {c.row["cell_key"]: mirrored.get(c.kind, c.kind) for c in back.changes} == kinds
    if found.exit_code == 0:
        assert any(s in ("passed", "built") or s in status_changes.HARM for s in two.values())
    assert compare(a, a).exit_code in (0, 4)
    assert status_changes.ending(found).endswith(f"exit {found.exit_code}")


def test_results_that_prove_different_things_are_not_compared() -> None:
    a, b = FakeRun("a", {"k": "passed"}), FakeRun("b", {"k": "crashed"})
    b.rows[0]["evidence"] = "executed"
    found = compare(a, b)
    assert ([c.kind for c in found.changes], found.exit_code) == (["unlike"], 4)


def test_cells_of_two_targets_are_two() -> None:
    rows = {"k": "passed"}
    a, b = FakeRun("a", rows), FakeRun("b", rows)
    a.rows[0]["cell_id"] += "@GB200"
    b.rows[0]["cell_id"] += "@H200"
    assert sorted(c.kind for c in compare(a, b).changes) == ["lost", "new"]


def test_in_what_runs_are_unlike() -> None:
    matrix = {"name": "m", "sha256": "1"}
    a = FakeRun("a", {"k": "passed"}, matrices=[matrix], providers={"mine": {"sha256": "1"}})
    b = FakeRun("b", {"k": "passed"}, matrices=[{**matrix, "sha256": "2"}, {**matrix, "name": "n"}],
                providers={"mine": {"sha256": "2"}})  # fmt: skip
    for run, out in ((a, "x"), (b, "y")):
        run.rows[0] |= {"judged_by": out, "input_hash": "i", "output_hash": out, "target": f"cpu:{out}"}
    notes = " | ".join(compare(a, b).notes)
    for part in (
        "matrix n is only in B",
        "differ: m",
        "judged by different",
        "provider mine",
        "targets",
        "output bits",
    ):
        assert part in notes, part
    assert compare(a, a).notes == ()
    more = FakeRun("c", {"k": "passed", "j": "passed"}, matrices=[matrix])
    assert compare(more, a).notes[0] == "1 cell is planned only in A, first cpu/op/p/j"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make(tmp_path, "a")
    made_runs.make(tmp_path, "b", lambda c: {"status": "inaccurate" if c.dims["rows"] == 4 else "passed"})
    assert main(["compare", "a", "b", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert "broken: 4 cells (passed in A, fails in B)" in out and out[-1] == "worse: exit 1"
    assert sum("passed -> inaccurate" in line for line in out) == 4 and sum("(peer)" in line for line in out) == 2
    assert main(["compare", "b", "a", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["fixed"] == 4 and len(found["changes"]) == 4 and found["compares"] == "statuses and times"
    assert main(["compare", "a", "nothing", "--out", str(tmp_path)]) == 2
    made_runs.make(tmp_path, "c", lambda c: {"status": "passed"} if c.dims["rows"] == 4 else {}, complete=False)
    assert main(["compare", "a", "last", "--out", str(tmp_path)]) == 3
    assert "B is not complete" in capsys.readouterr().out


def test_old_runs_are_compared() -> None:
    golden = Store(Path(__file__).resolve().parents[1] / "golden")
    finished, built = golden.run("golden-finished"), golden.run("golden-compiled")
    assert compare(finished, finished).exit_code == 0
    assert "the runs have no cell in common" in compare(finished, built).notes
