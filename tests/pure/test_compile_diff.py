"""What two revisions' kernels take, side by side."""

from __future__ import annotations

from compile_rows import buffered, built, kernel

from farm.compile.diff import compare

NAMES = ("old", "new")


def test_equal_kernels_are_told_as_such() -> None:
    rows = [built(0), built(1, operation="backward")]
    found = compare(NAMES, rows, rows)
    assert (found.cells, found.same, found.changes, found.exit_code) == (2, 2, (), 0)
    assert list(found.lines())[-1].endswith("2 with the same machine code")


def test_what_changed_is_told_once_with_its_cells() -> None:
    less = {
        "counted_in": "sass",
        "global_loads": {"128": 2},
        "global_stores": {"128": 2},
        "async_copies": {},
        "local_loads": {},
        "local_stores": {},
    }
    before = [built(i, hidden=h) for i, h in enumerate((1024, 2048, 4096, 8192, 16384))]
    after = [
        built(i, hidden=h, kernels=[kernel(registers=48, occupancy=0.5, instructions=less, code_digest="bb")])
        for i, h in enumerate((1024, 2048, 4096, 8192, 16384))
    ]
    found = compare(NAMES, before, after)
    (change,) = found.changes
    assert change.measures == (
        ("registers", 40, 48),
        ("occupancy", 0.75, 0.5),
        ("global loads (sass)", "4 (128 bits)", "2 (128 bits)"),
    )
    assert len(change.cells) == 5
    text = "\n".join(found.lines())
    assert "sm_90: norm (forward)" in text
    assert "registers            40 -> 48" in text
    assert "occupancy            75 % -> 50 %" in text
    assert "and in 2 more" in text
    assert found.to_dict()["changes"][0]["measures"]["registers"] == [40, 48]


def test_other_code_that_takes_the_same_is_not_called_the_same() -> None:
    found = compare(NAMES, [built(0)], [built(0, kernels=[kernel(code_digest="bb")])])
    assert (found.same, found.rewritten, found.changes) == (0, 1, ())


def test_without_machine_code_the_hash_decides() -> None:
    before, after = ([built(0, "ascend910b", [buffered(hash=h)])] for h in ("one", "two"))
    assert compare(NAMES, before, after).rewritten == 1
    assert compare(NAMES, before, before).same == 1


def test_a_renamed_kernel_is_compared_where_it_is_the_only_one() -> None:
    found = compare(NAMES, [built(0)], [built(0, kernels=[kernel("renamed", registers=30)])])
    assert found.changes[0].kernel == "norm -> renamed"
    assert found.changes[0].measures == (("registers", 40, 30),)
    told = ", 32 bytes of shared memory, 4 global loads, 2 global stores)"
    before, after = f"norm (forward, 40 registers{told}", f"renamed (forward, 30 registers{told}"
    assert found.moved == ((built(0)["cell_id"], before, after),)


def test_a_new_name_alone_takes_nothing() -> None:
    found = compare(NAMES, [built(0)], [built(0, kernels=[kernel("renamed")])])
    assert found.changes == () and len(found.moved) == 1
    assert (found.rewritten, found.same) == (1, 0)
    assert list(found.lines())[-1].startswith("cells: 0 with different resources, 1 with only different code or names")


def test_a_kernel_that_was_split_is_told_and_not_compared() -> None:
    after = [built(0, kernels=[kernel("first", registers=30), kernel("second", registers=20)])]
    found = compare(NAMES, [built(0)], after)
    assert found.changes == ()
    first, second = found.moved[0][2].split(" + ")
    assert first.startswith("first (forward, 30 registers, ") and first.endswith(" 4 global loads, 2 global stores)")
    assert second.startswith("second (forward, 20 registers, ")
    assert (found.same, found.rewritten) == (0, 0)


def test_kernels_of_one_name_are_compared_in_order() -> None:
    before = [built(0, kernels=[kernel(), kernel(registers=20)])]
    after = [built(0, kernels=[kernel(), kernel(registers=24)])]
    assert compare(NAMES, before, after).changes[0].measures == (("registers", 20, 24),)


def test_a_new_finding_makes_exit_code_1_and_an_old_one_does_not() -> None:
    broken = built(0, kernels=[], status="compile_error", reason="norm spills")
    assert compare(NAMES, [built(0)], [broken]).exit_code == 1
    assert compare(NAMES, [broken], [broken]).exit_code == 0
    assert compare(NAMES, [broken], [built(0)]).exit_code == 0
    text = "\n".join(compare(NAMES, [built(0)], [broken]).lines())
    assert "status: built -> compile_error: norm spills" in text


def test_the_farms_own_fault_is_never_a_difference_of_kernels() -> None:
    failed = built(0, kernels=[], status="infra_error", reason="no cuobjdump")
    found = compare(NAMES, [built(0)], [failed])
    assert found.exit_code == 3
    assert any("the farm failed" in line for line in found.lines())
