"""The kernels of few rows (gpu/few.py), compiled for a GPU that is not here: whether they are what they were written to
be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_built_split import HERE, compile_for

WAIT, BEGIN = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
WIDE: dict[str, Any] = {"rows": 7, "hidden": 262144, "dtype": "bfloat16", "fused": True, "pdl": True}
CASES: dict[str, dict[str, Any]] = {
    "forward": {**WIDE, "op": "forward"},
    "backward": {**WIDE, "op": "backward"},
    "planted": {**WIDE, "op": "forward", "fused": False, "pdl": False},  # nothing waits: the fault that must be seen
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.mktemp("triton")
    made = compile_for("sm_90", list(CASES.values()), cache, Path(HERE, "few_kernels.py"))
    return dict(zip(CASES, made, strict=True))


def disorder(first: list[str], second: list[str]) -> str:
    """What is out of order in two overlapping launches, or "".

    The first may let the second begin only when what ran before is complete, and touches memory only then.  The second
    asks for its rows before it waits for the sums, and stores nothing before."""
    if first.count(WAIT) != 1 or first.count(BEGIN) != 1 or second.count(WAIT) != 1:
        return "each launch waits once, and the first lets the second begin once"
    if first[:2] != [WAIT, BEGIN]:
        return "the first launch touches memory, or lets the second begin, before it waits"
    before, after = second[: second.index(WAIT)], second[second.index(WAIT) :]
    if not any(e.startswith("ld.global.v4") for e in before) or any(e.startswith("ld.global.v4") for e in after):
        return "the second launch asks for its rows after it waits"
    if any(e.startswith("st") for e in before) or not any(e.startswith("ld") for e in after):
        return "the second launch stores, or reads the sums, before it waits"
    return ""


@pytest.mark.parametrize("name", [name for name in CASES if name != "planted"])
def test_both_launches_fit_overlap_in_order_and_sum_without_atomics(found: dict[str, Any], name: str) -> None:
    first, second = found[name]
    assert [first["name"], second["name"]] == (
        ["row_squares", "forward_parts"] if name == "forward" else ["row_products", "backward_strips"]
    )
    for kernel in (first, second):
        assert not kernel["spill_store_bytes"] and not kernel["stack_bytes"] and kernel["blocks_per_core"] >= 1, kernel
        assert not any(event.startswith(("atom", "red")) for event in kernel["events"])
        assert "ld.global.v4.b32" in kernel["events"]  # 16 bytes a thread
    assert disorder(first["events"], second["events"]) == ""


def test_a_second_launch_that_does_not_wait_is_seen(found: dict[str, Any]) -> None:
    first, second = (kernel["events"] for kernel in found["planted"])
    assert disorder(first, second)
    rightly = [kernel["events"] for kernel in found["forward"]]
    late = [WAIT, *(event for event in rightly[1] if event != WAIT)]
    early = [*(event for event in rightly[1] if event != WAIT), WAIT]
    assert disorder(rightly[0], late) and disorder(rightly[0], early) and disorder(rightly[0][::-1], rightly[1])
