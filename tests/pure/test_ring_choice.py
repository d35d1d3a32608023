"""When `auto` may choose a kernel of ring.py: only where it was measured, and only for whom it can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.gpu import choose, tuned

RING = {"mode": "static_persistent", "kernel": "backward_ring", "block": 4096, "num_warps": 16, "per_core": 1}
OTHER = {"mode": "static_persistent", "kernel": "backward_twice", "num_warps": 16, "per_core": 1}


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A table in which the ring was the fastest at one shape, and another kernel stands in."""
    key = ("rms_norm", "backward", "bfloat16")
    monkeypatch.setattr(tuned, "TABLE", {key: ((8192, 32768, RING), (8192, 32768, OTHER))})
    dispatch.choose.cache_clear()
    yield
    dispatch.choose.cache_clear()


def chosen(hidden: int = 32768, target: str = "cuda:90", ring: bool = True, **more: Any) -> Any:
    choice = dispatch.choose(target, 8192, hidden, "bfloat16", "backward", cores=132, ring=ring, **more)
    return dict(choice.options)["kernel"], choice


def test_the_ring_is_chosen_where_it_was_measured_and_may_be() -> None:
    kernel, choice = chosen()
    assert kernel == "backward_ring"
    assert (choice.programs, choice.block, choice.num_warps, choice.mode) == (132, 4096, 16, "static_persistent")
    assert dict(choice.options)["per_core"] == 1
    assert chosen(20000)[0] == "backward_ring"


@pytest.mark.parametrize("blackwell", ["cuda:100", "cuda:103"])
def test_where_it_would_spill_on_blackwell_another_stands_in(monkeypatch: pytest.MonkeyPatch, blackwell: str) -> None:
    """Other chunks, which do not spill there; or where there are none, another kernel.  The compiled tests hold them
    against the compiler."""
    kernel, choice = chosen(target=blackwell)
    assert (kernel, choice.block, choice.num_warps, dict(choice.options)["regs"]) == ("backward_ring", 4096, 8, 1)
    kernel, choice = chosen(20000, target=blackwell)  # 20,480 sums of dw: as it was measured
    assert (kernel, choice.num_warps, dict(choice.options)["regs"]) == ("backward_ring", 16, 0)
    for key in (("fused_add_rms_norm", "backward", "bfloat16"), ("rms_norm", "backward", "float32")):
        monkeypatch.setattr(tuned, "TABLE", {key: ((8192, 32768, RING), (8192, 32768, OTHER))})
        dispatch.choose.cache_clear()
        found = {}
        for target in ("cuda:90", blackwell):
            choice = dispatch.choose(target, 8192, 32768, key[2], "backward", cores=132, op=key[0], ring=True)
            found[target] = dict(choice.options)["kernel"]
        assert found == {"cuda:90": "backward_ring", blackwell: "backward_twice"}


def test_a_forward_is_the_same_on_sm_100(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = {**RING, "kernel": "forward_ring", "block": 8192, "regs": 6}
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", "forward", "bfloat16"): ((8192, 131072, ring),)})
    on = [
        dispatch.choose(t, 8192, 131072, "bfloat16", "forward", cores=132, ring=True) for t in ("cuda:90", "cuda:100")
    ]
    assert on[0] == on[1] and dict(on[0].options)["kernel"] == "forward_ring"


def test_else_the_next_best_stands_in() -> None:
    assert chosen(ring=False)[0] == "backward_twice"


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942", "interpreter"])
def test_other_targets_have_their_rules(target: str) -> None:
    assert chosen(target=target)[0] != "backward_ring"


def test_a_mode_that_is_asked_for_is_no_ring() -> None:
    assert chosen(mode="multi_wave_reload")[0] == "backward_columns"


def test_rows_that_no_plan_fits_have_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("rms_norm", "backward", "bfloat16")
    too_wide = {**RING, "block": 65536}  # two slots of 256 KiB
    monkeypatch.setattr(tuned, "TABLE", {key: ((8192, 32768, too_wide), (8192, 32768, OTHER))})
    assert chosen()[0] == "backward_twice"
    monkeypatch.setattr(tuned, "TABLE", {key: ((8192, 32760, RING), (8192, 32768, OTHER))})
    dispatch.choose.cache_clear()
    assert chosen(32764)[0] != "backward_ring"


def test_whose_tensors_the_ring_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_has_gluon", lambda: True)
    x = torch.zeros(4, 64, dtype=torch.bfloat16)
    assert dispatch.can_ring("cuda:90", x, None, x[:, :32])
    assert dispatch.can_ring("cuda:100", x)
    assert not dispatch.can_ring("cuda:80", x)
    assert not dispatch.can_ring("cuda:120", x)  # less shared memory
    assert not dispatch.can_ring("hip:gfx942", x)
    assert not dispatch.can_ring("interpreter", x)
    assert not dispatch.can_ring("cuda:90", x, x[:, 4:36])  # a base that is not aligned
    assert not dispatch.can_ring("cuda:90", torch.zeros(4, 68, dtype=torch.bfloat16)[:, :64])  # nor rows
    assert not dispatch.can_ring("cuda:90", torch.zeros(4, 60, dtype=torch.bfloat16))
    assert dispatch.can_ring("cuda:90", torch.zeros(4, 60))
    assert not dispatch.can_ring("cuda:90", x, x.float())


def test_what_serves_whatever_the_tensors_are_is_chosen_whatever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """`function._choose` looks at tensors only where the first choice is a kernel that asks something of them."""
    monkeypatch.undo()  # the table as it is
    dispatch.choose.cache_clear()
    asked = {True: 0, False: 0}
    for (op, operation, dtype), found in tuned.TABLE.items():
        measured = {(rows, hidden) for rows, hidden, _ in found}
        beside = {(rows + 1, hidden + more) for rows, hidden in measured for more in (-8, 1, 8)}
        for rows, hidden in measured | beside:
            for target in ("cuda:90", "cuda:100", "hip:gfx942"):
                shape = (target, rows, hidden, dtype, operation)
                first = dispatch.choose(*shape, cores=132, op=op, ring=True)
                asks = first.kernel.endswith(("_ring", "_unaligned"))
                asked[asks] += 1
                for dense, ring in ((True, False), (False, True), (False, False)):
                    if asks and (dense or ring):
                        continue  # it may be any
                    other = dispatch.choose(*shape, cores=132, op=op, dense=dense, ring=ring)
                    assert other == first or asks
                assert not other.kernel.endswith(("_ring", "_unaligned"))
    assert min(asked.values()) > 100


def test_a_choice_is_held_against_the_tensors_that_its_kernel_asks_something_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "_has_gluon", lambda: True)
    x = torch.zeros(4, 65, dtype=torch.bfloat16)
    apart, dense, even = x[:, :57], torch.zeros(4, 57, dtype=torch.bfloat16), torch.zeros(4, 64, dtype=torch.bfloat16)
    ring = chosen()[1]
    unaligned = dispatch.choose("cuda:90", 6144, 4095, "bfloat16", "forward", cores=132)
    plain = dispatch.choose("cuda:90", 6144, 4096, "bfloat16", "forward", cores=132)
    assert dispatch.can_serve(plain, "cuda:90", apart) and dispatch.can_serve(plain, "cuda:80", None)
    assert dispatch.can_serve(ring, "cuda:90", even, None) and not dispatch.can_serve(ring, "cuda:90", even, dense)
    assert not dispatch.can_serve(ring, "cuda:80", even)
    assert dispatch.can_serve(unaligned, "cuda:90", dense, None)
    assert not dispatch.can_serve(unaligned, "cuda:90", dense, apart)


def test_nothing_stands_in_but_a_rule_where_only_the_ring_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("rms_norm", "backward", "bfloat16")
    monkeypatch.setattr(tuned, "TABLE", {key: ((8192, 32768, RING),)})
    assert chosen()[0] == "backward_ring"
    assert chosen(ring=False)[0] == "backward_twice"  # static_persistent's rule


def test_a_triton_without_gluon_has_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch._has_gluon.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "kernels.ops.rms_norm.gpu.ring", None)  # its import fails
    try:
        assert not dispatch.can_ring("cuda:90", torch.zeros(4, 64))
    finally:
        dispatch._has_gluon.cache_clear()


@pytest.fixture
def another_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes dispatch find another version of Triton, or none ("")."""

    def forget() -> None:
        dispatch._has_gluon.cache_clear()
        dispatch._triton.cache_clear()

    def become(version: str) -> None:
        def found(name: str, package: str | None = None) -> Any:
            if name == "triton" and not version:
                raise ImportError(name)
            return SimpleNamespace(__version__=version)

        forget()
        monkeypatch.setattr(dispatch, "import_module", found)

    yield become
    forget()


@pytest.mark.parametrize(
    ("version", "ring", "split"),
    [
        ("3.9.0", False, True),
        ("3.8.0+git", True, True),
        ("3.6.0", True, True),
        ("3.5.1", False, True),
        ("3.4.0", False, True),
        ("3.3.1", False, False),
        ("", False, False),
    ],
)
def test_kernels_that_a_triton_does_not_compile_are_not_chosen(
    another_triton: Callable[[str], None], version: str, ring: bool, split: bool
) -> None:
    another_triton(version)
    x = torch.zeros(4, 64)
    assert (dispatch.can_ring("cuda:90", x), dispatch.can_split("cuda:90", x)) == (ring, split)


def test_a_choice_is_served_as_the_triton_can() -> None:
    versions = pytest.importorskip("kernels.ops.rms_norm.gpu.versions")
    choice = choose.build("backward", {**OTHER, "num_stages": 3}, 64, 32768, 2, 132, "cuda:90")
    assert choice.num_stages == 3 and dict(choice.options)["pdl"]
    assert versions.served(choice, (3, 6), True) is choice
    older = versions.served(choice, (3, 4), False)
    assert dict(older.options) == {**dict(choice.options), "pdl": False} and older.num_stages == 3
    oldest = versions.served(choice, (3, 2), False)
    assert oldest == replace(older, num_stages=1)
    plain = replace(older, num_stages=1)
    assert versions.served(plain, (3, 2), False) is plain
    assert versions.VERSION >= (3, 2)
