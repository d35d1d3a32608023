"""Device memory in a pull request: more of it is seen, and is advice unless the repository says that it counts."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pr_results import pair, result, slower, static

from farm.compare.memory import LEAST, MIB, differ
from farm.pr import comment as comments
from farm.pr import measured, memory, merging
from farm.pr import result as results

CELL = "cuda/rms_norm/planted/auto/forward/bf16/8192x4096"


def row(arm: str, mib: float | None) -> dict[str, Any]:
    names = {"backend": "cuda", "op": "rms_norm", "target": "cuda:H200", "evidence": "executed", "dtype": "bfloat16"}
    return {**names, "cell_id": f"{CELL}#{arm}", "status": "passed", "dims": "{}", "params": "{}"} | {
        "peak_memory_mib": mib
    }


def planted(a: float | None, b: float | None, control: int = 0) -> dict[str, Any]:
    """The result of a run whose arms took so many MiB, as its tables have it."""
    of = {"cell": CELL, "cell_id_a": f"{CELL}#a", "cell_id_b": f"{CELL}#b", "role": "subject", "control": control}
    of |= {"verdict": "same", "ratio": 1.0, "bits": 1, "rounds": 3, "peak_memory_mib_a": a, "peak_memory_mib_b": b}
    made = result(*measured.executed([of], [row("a", a), row("b", b)], {}), static=static())
    results.read(json.dumps(made))
    return made


def test_a_planted_allocation_is_in_the_first_line_and_the_table_and_fails_nothing() -> None:
    found = planted(64.0, 192.0, control=1)  # the code that allocates may launch the same machine code
    outcome = results.outcome(found)
    assert (outcome.name, outcome.exit_code) == ("not worse", 0)
    text = comments.comment(found)
    first = text.splitlines()[1]
    assert "Not worse, but 1 of 1 cell needs more device memory, cuda/rms" in first
    assert "64.0 → 192 MiB (128 MiB more)" in first
    assert "**What got worse?** 1 of 1 cell needs more device memory" in text
    assert "| 64.0 → 192 | 128 MiB more |" in text and "it prints a peak memory of 64.0 → 192 MiB" not in text
    counted = {**found, "counts_memory": True}
    outcome = results.outcome(counted)
    assert (outcome.name, outcome.exit_code) == ("worse", 1)
    assert "1 cell needs more device memory: first" in comments.comment(counted).splitlines()[1]
    assert results.outcome(merging.merged([counted, counted])).exit_code == 1


def test_what_an_allocator_rounds_and_what_needs_less_accuses_nobody() -> None:
    for a, b in ((64.0, 68.0), (1000.0, 1020.0), (0.0, 4.0), (None, 64.0), (64.0, None)):
        assert "device memory" not in comments.comment(planted(a, b)).partition("<details>")[0], (a, b)
        assert results.outcome({**planted(a, b), "counts_memory": True}).exit_code == 0
    text = comments.comment({**planted(192.0, 64.0), "counts_memory": True})
    assert "Less device memory: 1 of 1 cell" in text and "device memory" not in text.splitlines()[1]
    assert "| 192 → 64.0 | 128 MiB less |" in text


def test_where_something_is_worse_the_first_line_is_about_that_and_memory_follows() -> None:
    greedy = pair(CELL, memory_a=64 * MIB, memory_b=128 * MIB)
    text = comments.comment(result(greedy, slower("cuda/rms_norm/x/auto/forward/bf16/1x1"), static=static()))
    assert "device memory" not in text.splitlines()[1] and "slower" in text.splitlines()[1]
    assert "got slower; the slowest is" in text and "; 1 of 2 cells needs more device memory" in text
    for bad in ({"status_b": "crashed"}, {"evidence": "simulated"}, {"status_a": "crashed"}):
        assert memory.more([{**greedy, **bad}]) == []


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_the_rule_has_no_direction_and_needs_both_an_amount_and_a_share(a: int, b: int) -> None:
    assert differ(a, b) == differ(b, a) and not differ(a, a)
    assert differ(a, b) == (abs(a - b) > LEAST and 50 * abs(a - b) > min(a, b))
