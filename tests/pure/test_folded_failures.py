"""Failing cells with one fault are printed together: none is lost, and no cell is said to have another one's fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cli import progress
from farm.report import folded_failures

Row = dict[str, Any]
TAIL = "columns 768 to 999 (the last 232) of every row, never written"


def row(name: str, reason: str, status: str = "inaccurate", **more: Any) -> Row:
    given = {"backend": "cpu", "op": "rms_norm", "provider": "mine", "mode": "auto", "operation": "forward"}
    return {**given, "cell_id": name, "status": status, "reason": reason, "log": f"logs/{name}.txt", **more}


def tail(count: str, expected: float) -> str:
    return f"y: {count} elements are wrong: {TAIL}; first [0, 768]: expected {expected}; nonfinite is 928, tolerance 0"


def test_one_fault_is_printed_once_with_the_cells_that_have_it() -> None:
    rows = [row(f"c{k}", tail(f"{928 + k} of 4,000", -0.5 * k)) for k in range(5)]
    rows.insert(1, row("other", "y: every element is wrong, scaled by 2; first [0, 0]: got 2, expected 1"))
    rows += [row(f"dead{k}", "ValueError: no 3", "crashed") for k in range(2)]
    said = progress.finding_lines(rows, Path("run"))
    assert said == [
        f"  5 cells: inaccurate: y: wrong: {TAIL}",
        "    c0: 928 of 4,000 elements; first [0, 768]: expected -0.0; nonfinite is 928, tolerance 0",
        "    c1: 929 of 4,000 elements; first [0, 768]: expected -0.5; nonfinite is 928, tolerance 0",
        "    c2: 930 of 4,000 elements; first [0, 768]: expected -1.0; nonfinite is 928, tolerance 0",
        "    and 2 more",
        "    log: run/logs/c0.txt",
        "  inaccurate: other: y: every element is wrong, scaled by 2; first [0, 0]: got 2, expected 1",
        "    log: run/logs/other.txt",
        "  2 cells: crashed: ValueError: no 3",
        "    dead0",
        "    dead1",
        "    log: run/logs/dead0.txt",
    ]
    live = progress.Plain([])
    assert live._finding(rows[0]) == f"inaccurate: c0: {rows[0]['reason']}"
    assert live._finding(rows[2]).startswith("inaccurate: c1: the same, 929 of 4,000 elements; first [0, 768]")
    live._finding(next(r for r in rows if r["cell_id"] == "other"))
    assert ": the same as in c0, 929 of 4,000" in live._finding(rows[2]), "it is not the line before it that is meant"
    assert live._finding(rows[-1]).endswith("ValueError: no 3") and live._finding(rows[-2]).endswith(": the same")


def test_the_list_is_bounded_and_counts_what_it_leaves_out() -> None:
    said = progress.finding_lines([row(f"c{k}", f"reason {k}") for k in range(progress.MAX_FINDINGS + 4)], None)
    assert len(said) == progress.MAX_FINDINGS + 1 and said[-1] == "  and 4 more cells"
    assert len(progress.finding_lines([row("a", "x" * 9_000)] * 2, None)[0]) <= 400


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mine", "other"]),
            st.sampled_from(["inaccurate", "crashed"]),
            st.sampled_from(["", "died", tail("1 of 9", 1.0), tail("2 of 9", 2.0), "y: every element is wrong"]),
        ),
        max_size=12,
    )
)
def test_every_failing_cell_is_in_one_group_and_with_cells_of_its_fault(drawn: list[tuple[str, str, str]]) -> None:
    rows = [row(f"c{k}", reason, status, provider=name) for k, (name, status, reason) in enumerate(drawn)]
    groups = folded_failures.fold(rows)
    assert sorted(r["cell_id"] for g in groups for r in g.rows) == sorted(r["cell_id"] for r in rows)
    for g in groups:
        assert len({(r["provider"], r["status"], TAIL in r["reason"]) for r in g.rows}) == 1
        assert len({folded_failures.key(r) for r in g.rows}) == 1
    assert len({folded_failures.key(g.rows[0]) for g in groups}) == len(groups)
