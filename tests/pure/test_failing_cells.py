"""What failing cells have in common: in words, and true of every cell in random worlds."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.report import failing_cells

Row = dict[str, Any]


def row(index: int, failed: bool, **more: Any) -> Row:
    given = {"op": "rms_norm", "provider": "mine", "mode": "auto", "backend": "cpu", "target": "", "dtype": "bfloat16"}
    stored = {name: json.dumps(more.pop(name, {"rows": 4})) for name in ("dims", "params")}
    status = "inaccurate" if failed else "passed"
    return {"index": index, "status": status, "operation": "forward", "family": "mixed", **given, **more, **stored}


def said(rows: list[Row]) -> list[str]:
    return failing_cells.sentences(rows, {r["index"] for r in rows if r["status"] == "inaccurate"})


def cells(fails: Any) -> list[Row]:
    """Two dtypes, three hidden sizes, causal or not."""
    found: list[Row] = []
    for dtype in ("float32", "bfloat16"):
        for hidden in (64, 1000, 1024):
            for causal in (False, True):
                more = {"dtype": dtype, "dims": {"hidden": hidden}, "params": {"causal": causal}}
                found.append(row(len(found), fails(dtype, hidden, causal), **more))
    return found


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (
            lambda d, h, c: h == 1000,
            ["rms_norm/mine: 4 of 12 cells fail: those with hidden 1000; those with hidden 64, 1024 pass"],
        ),
        (
            lambda d, h, c: h >= 1000,
            ["rms_norm/mine: 8 of 12 cells fail: those with hidden from 1000 on; those with hidden 64 pass"],
        ),
        (
            lambda d, h, c: h != 1000,
            ["rms_norm/mine: 8 of 12 cells fail: those with hidden other than 1000; those with hidden 1000 pass"],
        ),
        (
            lambda d, h, c: c,
            ["rms_norm/mine: 6 of 12 cells fail: those with causal true; those with causal false pass"],
        ),
        (
            lambda d, h, c: d == "bfloat16" and h < 1024,
            [
                "rms_norm/mine: 4 of 12 cells fail: those with dtype bf16 and hidden up to 1000; "
                "those with dtype fp32 or hidden 1024 pass"
            ],
        ),
        (
            lambda d, h, c: d == "bfloat16" and (h == 64 or c),
            [
                "rms_norm/mine: 4 of 12 cells fail, all with dtype bf16, with which 2 cells pass; "
                "those with dtype fp32 pass"
            ],
        ),
        (
            lambda d, h, c: d == "float32" and h == 64 and not c,
            [
                "rms_norm/mine: 1 of 12 cells fails: the one with dtype fp32 and hidden 64 and causal false; "
                "those with dtype bf16 or hidden 1000, 1024 or causal true pass"
            ],
        ),
        (lambda d, h, c: ((d == "float32") == c and h != 1000) or h == 1000, []),  # nothing sets them apart
        (lambda d, h, c: True, []),
        (lambda d, h, c: False, []),
    ],
)
def test_the_axes_that_part_failing_from_passing_cells_are_named(fails: Any, words: list[str]) -> None:
    assert said(cells(fails)) == words


def test_kernels_and_targets_are_apart_and_what_did_not_run_counts_as_neither() -> None:
    rows = [
        row(0, True, dtype="float16"),
        row(1, False),
        row(2, True, mode="fast", dtype="float32"),
        row(3, False, mode="fast"),
        row(4, False, backend="cuda"),
        row(5, True, backend="cuda", operation="backward"),
        {**row(6, False, dtype="float16"), "status": "unsupported"},
    ]
    assert said(rows) == [
        "rms_norm/mine on cpu: 1 of 2 cells fails: the one with dtype fp16; the one with dtype bf16 passes",
        "rms_norm/mine/fast on cpu: 1 of 2 cells fails: the one with dtype fp32; the one with dtype bf16 passes",
        "rms_norm/mine on cuda: 1 of 2 cells fails: the one with operation backward; "
        "the one with operation forward passes",
    ]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_said_is_true_of_every_cell(data: st.DataObject) -> None:
    failing = data.draw(st.sets(st.integers(0, 11)))
    rows = cells(lambda *_: False)
    for r in rows:
        r["status"] = "inaccurate" if r["index"] in failing else "passed"
    for sentence in said(rows):
        exact = ": those with " in sentence or ": the one with " in sentence
        fail, _, contrast = sentence.rpartition("; ")
        named = re.split(r" with ", fail.partition(", with which")[0])[1].split(" and ")
        hold = {r["index"] for r in rows if all(_holds(clause, r) for clause in named)}
        assert failing <= hold
        assert not exact or hold == failing
        if not exact:
            assert f"with which {len(hold - failing)} cell" in sentence
        words = re.fullmatch(r"(?:the one|those) with (.*) pass(?:es)?", contrast)
        assert words
        link, every = (" or ", any) if " or " in words[1] else (" and ", all)
        passing = {r["index"] for r in rows if every(_holds(clause, r) for clause in words[1].split(link))}
        assert passing and not passing & failing and ("those" in contrast) == (len(passing) > 1)
        assert hold | passing == set(range(12))


def _holds(clause: str, r: Row) -> bool:
    name, _, text = clause.partition(" ")
    value = {"dtype": {"bfloat16": "bf16", "float32": "fp32"}[r["dtype"]], "hidden": json.loads(r["dims"])["hidden"],
             "causal": str(json.loads(r["params"])["causal"]).lower()}[name]  # fmt: skip
    if match := re.fullmatch(r"from (\d+) on", text):
        return int(value) >= int(match[1])
    if match := re.fullmatch(r"up to (\d+)", text):
        return int(value) <= int(match[1])
    if text.startswith("other than "):
        return str(value) not in text[len("other than ") :].split(", ")
    return str(value) in text.split(", ")
