"""Which changed kernels the cells launched, directly, through others, or not at all."""

from __future__ import annotations

from farm.compare.kernel_changes import changes
from farm.compare.reach import Launch, Reached, reach

HEAD = "import triton\nimport triton.language as tl\n\n"


def tree(**kernels: str) -> dict[str, str]:
    """Modules with one kernel each, by its body; what is no kernel begins with #."""
    return {f"lib/{name}.py": HEAD + body for name, body in kernels.items()}


def kernel(name: str, body: str = "tl.store(p, 1)") -> str:
    return f"@triton.jit\ndef {name}(p, N: tl.constexpr):\n    {body}\n"


def found(a: dict[str, str], b: dict[str, str], after: dict[str, list[Launch]], before: object = None) -> list[Reached]:
    return reach(changes(a, b), before or {}, after)  # type: ignore[arg-type]


def test_a_changed_kernel_has_the_cells_and_specialisations_that_launched_it() -> None:
    a, b = tree(x=kernel("k")), tree(x=kernel("k", "tl.store(p, 2)"))
    wide, narrow = Launch("k", "lib.x", (("N", 4096),)), Launch("k", "lib.x", (("N", 64),))
    (one,) = found(a, b, {"cpu/1": [wide, narrow], "cpu/2": [wide, wide], "cpu/3": [Launch("other")]})
    assert one.state == "reached" and not one.finding
    assert one.cells == {"N=4096": ("cpu/1", "cpu/2"), "N=64": ("cpu/1",)} and one.all_cells == ("cpu/1", "cpu/2")
    assert one.to_dict()["cells"] == {"N=4096": ["cpu/1", "cpu/2"], "N=64": ["cpu/1"]}


def test_a_changed_kernel_that_no_cell_launched_is_a_finding_and_the_same_one_is_not() -> None:
    a, b = tree(x=kernel("k"), y=kernel("same")), tree(x=kernel("k", "tl.store(p, 2)"), y=kernel("same"))
    (one,) = found(a, b, {"cpu/1": [Launch("same")]})
    assert one.change.name == "k" and one.state == "unreached" and one.finding


def test_a_moved_and_commented_kernel_is_not_told() -> None:
    a = tree(x=kernel("k"))
    b = tree(y="# moved\n\n" + kernel("k", '"""Says what."""\n    tl.store(p, 1)  # as before'))
    assert found(a, b, {}) == []


def test_a_helper_is_reached_through_the_kernel_that_calls_it() -> None:
    def module(value: int) -> str:
        return kernel("helper", f"tl.store(p, {value})") + kernel("k", "helper(p, N)")

    helper, outer = sorted(
        found(tree(x=module(1)), tree(x=module(2)), {"c": [Launch("k", "lib.x")]}), key=lambda r: r.change.name
    )
    assert helper.through == ("k",) and helper.state == "reached" and not helper.finding
    assert outer.all_cells == ("c",) and outer.change.why == ("helper()",)
    assert all(r.finding for r in found(tree(x=module(1)), tree(x=module(2)), {}))


def test_of_two_kernels_of_one_name_the_launched_modules_is_meant() -> None:
    a = tree(x=kernel("k"), y=kernel("k"))
    b = tree(x=kernel("k", "tl.store(p, 2)"), y=kernel("k", "tl.store(p, 3)"))
    states = {r.kernel.path: r.state for r in found(a, b, {"c": [Launch("k", "lib.y")]})}
    assert states == {"lib/x.py": "unreached", "lib/y.py": "reached"}
    assert {r.state for r in found(a, b, {"c": [Launch("k")]})} == {"reached"}  # nobody knows which


def test_a_kernel_that_is_gone_is_no_finding_and_has_the_cells_of_arm_a() -> None:
    (one,) = found(tree(x=kernel("k")), tree(), {}, {"c": [Launch("k")]})
    assert one.change.state == "gone" and one.all_cells == ("c",) and not one.finding


def test_what_cannot_be_seen_without_a_device_is_no_finding_but_unseen() -> None:
    body = "import cuda.tile as ct\n\n@ct.kernel\ndef k(x):\n    ct.store(x, {})\n"
    (one,) = found({"lib/x.py": body.format(1)}, {"lib/x.py": body.format(2)}, {})
    assert one.kernel.language == "cutile" and one.state == "unseen" and not one.finding


def test_an_unknown_kernel_that_no_cell_launched_accuses_nobody() -> None:
    body = "from elsewhere import *\n" + kernel("k", "mystery(p)")
    (one,) = found(tree(x=body), tree(x=body), {})
    assert one.change.state == "unknown" and one.state == "unreached" and not one.finding
