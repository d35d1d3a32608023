"""Which cells a pull request is run in."""

from __future__ import annotations

from farm.pr.selection import SENTINELS, select

CELLS = [f"rms_norm/liger/auto/forward/bf16/{r}x{h}/llama" for r in (4096, 4095, 7) for h in (128, 1000, 4096)]
CELLS += [f"softmax/liger/auto/forward/fp32/{r}x512" for r in (64, 63)]


def test_cells_that_launch_a_changed_kernel_and_odd_sentinels() -> None:
    kernels = {CELLS[0]: ["_forward"], CELLS[5]: ["_forward"]}
    found = select(CELLS, kernels, sentinels=3)
    assert set(kernels) < set(found.cells) and len(found.cells) == 5
    assert CELLS[10] in found.cells and CELLS[7] in found.cells  # 63x512; 7x1000
    assert found.cells == tuple(c for c in CELLS if c in found.cells)
    assert found.rule.startswith("id=*/rms_norm/") and found.rule.count("|") == 4
    assert found.why == "2 cells that launch a changed kernel and 3 others, of 11"
    assert len(select(CELLS, {}, sentinels=0).cells) == 0


def test_all_cells_where_nothing_says_which() -> None:
    assert select([], {}).rule == "" and "none was built" in select([], {}).why
    assert select(CELLS, {CELLS[0]: ["k"]}, host=["dispatch.py"]).rule == ""
    assert select(CELLS, {cell: ["k"] for cell in CELLS}).cells == ()
    assert select(CELLS[:4], {CELLS[0]: ["k"]}).cells == () and len(CELLS[:4]) < SENTINELS
