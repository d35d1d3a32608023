"""The kernels of rows that several programs share: alone, where every program but the last of a row gives up on the
others, and side by side in many orders, where none does, some do, or a program never comes."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import interleaved as executor
import pytest
import torch
from branches import Recorder, Way
from gpu_cases import CASTINGS, RUN_IN
from interleaved import interleaved
from judged import Launch, norm_cell, same, same_bits

from kernels import launches, rms_norm
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.choice import OPERATIONS
from kernels.ops.rms_norm.gpu import choose, launch, measured, split, split_plan, tuned

OPS = ("rms_norm", "fused_add_rms_norm")
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: More than any order of events needs here.
PATIENT = 10_000


def launched(
    op: str,
    operation: str,
    rows: int,
    hidden: int,
    dtype: str = "bfloat16",
    kind: str = "same",
    *,
    casting: str = "llama",
    offset: float = 0.0,
    wants: bool = True,
    layout: str = "apart",
    cores: int = 8,
    **config: Any,
) -> Launch:
    """A launch with a weight of that `kind`, and so many `cores`, each of which has a program of a backward."""
    kernel = f"{operation}_split"
    config = {"mode": "static_persistent", "kernel": kernel, "num_warps": 4, "per_core": 1, "parts": 4, **config}
    choice = choose.build(operation, config, rows, hidden, SIZES[dtype], cores, "interpreter")
    cell = norm_cell(op, choice.mode, operation, dtype, kind, rows, hidden, casting=casting, offset=offset)
    return Launch(cell, choice, launch, wants=wants, layout=layout)


def cases() -> list[dict[str, Any]]:
    """What goes round: each width with each number of parts forward and backward, all else in turn."""
    found = []
    kinds = itertools.product(OPERATIONS, (1, 7, 96, 128, 300, 1000), (2, 4, 5))
    for n, (operation, hidden, parts) in enumerate(kinds):
        case = {
            "op": OPS[n % 2],
            "operation": operation,
            "rows": (1, 3, 5)[n % 3],
            "hidden": hidden,
            "parts": parts,
            "dtype": ("bfloat16", "float32", "float16")[n // 2 % 3],
            "kind": ("same", "float32", "none", "same")[n % 4],
            "casting": CASTINGS[n // 3 % 3],
            "offset": float(n // 4 % 2),
            "wants": n % 5 < 4,
            "layout": ("dense", "apart")[n // 2 % 2],
        }
        if operation == "forward":
            case["weight"] = ("first", "last")[n // 3 % 2]
        else:
            case |= {"later": n // 2 % 2 == 0, "num_stages": (1, 3)[n // 5 % 2]}
        found.append(case)
    return found


def label(case: dict[str, Any]) -> str:
    return f"{case['op'][:5]}-{case['operation']}-{case['dtype']}-{case['rows']}x{case['hidden']}-{case['parts']}"


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.long] if n % 4 else []) for n, c in enumerate(cases())], ids=label
)
def test_one_after_the_other_and_side_by_side_it_is_right(case: dict[str, Any]) -> None:
    """Alone each program but the last of its row, or group, sums the row itself; with others none has to: the same
    bits, since it does what they do."""
    alone = launched(**case)
    made = alone.run()
    alone.judge(made)
    if case["operation"] == "forward" and case["wants"]:
        want = (alone.total().double().pow(2).mean(-1) + alone.eps).rsqrt()
        torch.testing.assert_close(made["rstd"].double(), want, rtol=2e-6, atol=0)
    together = launched(**case, polls=PATIENT)
    with interleaved(f"{case['operation']}_split", seed=case["hidden"]):
        found = together.run()
    assert same(made, found)


def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A copy of the kernels that counts its branches, in the place of the kernels."""
    recorder = Recorder(tmp_path, Path(split.__file__))
    monkeypatch.setattr(launch, "split", recorder.modules[0])
    return recorder


WAYS = [("forward", {}), ("backward", {"later": True}), ("backward", {"later": False})]
GAVE_UP = {
    "forward": Way("forward_split: if missing > 0", True),
    "backward": Way("backward_split: if gave_up > 0", True),
}


@pytest.mark.parametrize(("operation", "config"), WAYS)
def test_in_any_order_the_bits_are_the_same(
    operation: str, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether nobody gives up, or some do: three rows, or two groups of three programs with up to three rows each."""
    recorder = copied(tmp_path, monkeypatch)
    rows = 5 if operation == "backward" else 3
    wanted: Any = None
    gave_up = []
    for polls, seed in [*((PATIENT, s) for s in range(6)), *((2, s) for s in range(6))]:
        case = launched("fused_add_rms_norm", operation, rows, 100, parts=3, cores=6, polls=polls, **config)
        recorder.taken.clear()
        with interleaved(f"{operation}_split", seed) as baton:
            made = case.run()
        assert baton.changes > case.choice.programs
        gave_up.append(GAVE_UP[operation] in recorder.taken)
        if wanted is None:
            case.judge(made)
            wanted = made
        assert same(made, wanted)
    assert not any(gave_up[:6]) and any(gave_up[6:])


@pytest.mark.parametrize("missing", [0, 2, 4])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_program_whose_partner_never_comes_ends_and_is_right(operation: str, missing: int) -> None:
    """Of 2 x 3 programs one is never started: its part is not written, all else is as it would be with it."""
    whole = launched("rms_norm", operation, 2, 96, kind="none", parts=3, cores=6)
    wanted = whole.run()
    with interleaved(f"{operation}_split", seed=1, never={missing}):
        made = whole.run()
    name = "y" if operation == "forward" else "dx"
    row, part = divmod(missing, 3)
    assert made[name][row, 32 * part : 32 * part + 32].isnan().all()
    made[name][row, 32 * part : 32 * part + 32] = wanted[name][row, 32 * part : 32 * part + 32]
    assert same_bits(made[name], wanted[name])


def test_a_kernel_that_does_not_wait_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: what has not come by the first look is taken for 0."""
    source = Path(split.__file__).read_text()
    assert source.count("if missing > 0:") == 1
    planted = tmp_path / "split.py"
    planted.write_text(source.replace("if missing > 0:", "if missing > 100:"))
    monkeypatch.setattr(launch, "split", Recorder(tmp_path, planted).modules[0])
    wrong = 0
    for seed in range(4):
        case = launched("rms_norm", "forward", 3, 300, polls=1)
        with interleaved("forward_split", seed):
            made = case.run()
        try:
            case.judge(made)
        except AssertionError:
            wrong += 1
    assert wrong == 4


def test_programs_that_wait_for_ever_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: so many questions that they never end, and a partner that never comes."""
    monkeypatch.setattr(executor, "DEADLINE", 1.0)
    case = launched("rms_norm", "forward", 1, 96, parts=3, polls=2**31 - 1)
    with pytest.raises(Exception, match="have not ended"), interleaved("forward_split", 1, never={0}) as baton:
        change, over = baton.may_change, threading.Event()

        def asked() -> None:
            if over.is_set():
                raise SystemExit  # the threads that are left
            change()

        monkeypatch.setattr(baton, "may_change", asked)
        try:
            case.run()
        finally:
            over.set()


#: What the interpreter cannot take, and why.
SPIN = "the questions in PTX, and what packs registers, are NVIDIA's"
PDL = "waiting for the kernel before, and letting the next one start, are instructions of a device from sm_90 on"
NOT_HERE = {
    Way("forward_split: if PDL", True): PDL,
    Way("backward_split: if PDL", True): PDL,
    Way("backward_split: if PDL (2)", True): PDL,
    Way("_squares_alone: for range(PARTS)", False): "a row of one part has nobody to give up on",
    Way("_products_alone: for range(PARTS)", False): "a row of one part has nobody to give up on",
    Way("_meet: if SPIN", True): SPIN,
    Way("_packed: SPIN", True): SPIN,
    Way("_packed: x.dtype.primitive_bitwidth == 16", True): SPIN,
    Way("_packed: x.dtype.primitive_bitwidth == 16", False): SPIN,
    Way("_packed: if SPIN and x.dtype.primitive_bitwidth == 16", True): SPIN,
}


def test_every_branch_of_every_kernel_is_taken_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = copied(tmp_path, monkeypatch)
    assert set(NOT_HERE) <= recorder.ways
    for case in cases():
        launched(**case).run()
        if recorder.taken >= recorder.ways - set(NOT_HERE):
            break
    for operation in OPERATIONS:
        with interleaved(f"{operation}_split", 0):
            launched("rms_norm", operation, 1, 32, parts=1, polls=PATIENT).run()
    assert sorted(recorder.ways - recorder.taken - set(NOT_HERE)) == []
    assert sorted(recorder.taken & set(NOT_HERE)) == []


def test_dx_in_the_place_of_dy_is_refused() -> None:
    """Who gives up would read parts of dy that others have overwritten."""
    case = launched("rms_norm", "backward", 3, 96)
    with pytest.raises(ValueError, match="needs a dx that is not dy; choose with split=False"):
        case.backward(in_place=True)


def test_a_choice_for_other_rows_is_refused() -> None:
    case = launched("rms_norm", "forward", 3, 96)
    case.given["x"] = torch.zeros(4, 96, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="the choice is of 3 rows, x has 4"):
        case.run()


def test_the_public_function_chooses_them_where_they_were_measured_but_not_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted for every target, and `can_split` for this one."""
    config = {"mode": "static_persistent", "num_warps": 4, "per_core": 1, "parts": 2}

    def find(target: str, op: str, operation: str, dtype: str, rows: int, hidden: int, serves: Any, own: Any) -> Any:
        kernel = f"{operation}_split"
        return (hidden, {**config, "kernel": kernel}) if serves(kernel, hidden) else None

    def kernels_of(**more: Any) -> list[str]:
        x, w = torch.randn(3, 256, requires_grad=True), torch.ones(256, requires_grad=True)
        dispatch.choose.cache_clear()
        launches.enable()
        rms_norm(x, w, **more).backward(torch.ones(3, 256))
        want = torch.autograd.grad(torch.nn.functional.rms_norm(x, (256,), w, 1e-6).sum(), (x, w))
        torch.testing.assert_close((x.grad, w.grad), want, rtol=1e-5, atol=1e-5)
        names = [record["kernel"] for record in launches.drain()]
        return [name for name in names if name != "sum_partials"]  # a single program has nothing to sum

    monkeypatch.setattr(tuned, "find", find)
    monkeypatch.setattr(measured, "SPLIT_MATRIX", 0)  # or such small rows would not be divided
    try:
        assert kernels_of() == ["forward_rows", "backward_rows"]  # here they are not asked for
        monkeypatch.setattr(dispatch, "can_split", lambda target, *tensors: dispatch.are_apart(*tensors))
        assert kernels_of() == ["forward_split", "backward_split"]
        assert kernels_of(in_place=True) == ["forward_split", "backward_rows"]
        assert kernels_of(mode="multi_wave_cached") == ["forward_rows", "backward_rows"]
    finally:
        dispatch.choose.cache_clear()


LIKE = {"mode": "static_persistent", "num_warps": 16, "per_core": 1, "parts": 16}
TUNED: list[tuple[str, str, str, int, dict[str, Any]]] = [
    ("rms_norm", "forward", "bfloat16", 131072, {**LIKE, "kernel": "forward_split"}),
    ("fused_add_rms_norm", "backward", "float32", 65536, {**LIKE, "kernel": "backward_split"}),
]
TUNED += [
    (op, operation, dtype, hidden, config)
    for (op, operation, dtype), entries in tuned.TABLE.items()
    for _, hidden, config in entries
    if config["kernel"] in choose.SPLITS
]


@pytest.mark.parametrize("number", range(len(TUNED)))
def test_a_tuned_configuration_is_right(number: int) -> None:
    """On one row, of an eighth of the width; the first two are like what may be tuned."""
    op, operation, measured, hidden, config = TUNED[number]
    for dtype in RUN_IN[measured]:
        own = json.loads(json.dumps(config))
        choice = choose.build(operation, own, 1, hidden // 8 - 1, SIZES[dtype], 1, "interpreter")
        cell = norm_cell(op, choice.mode, operation, dtype, "same", 1, hidden // 8 - 1)
        made = Launch(cell, choice, launch)
        made.judge(made.run())


def test_parts_are_what_the_plan_says() -> None:
    made = launched("rms_norm", "backward", 9, 1000, parts=7, cores=20)
    assert split_plan.plan(1000, 7) == (7, 144, 256)
    assert made.choice.programs == 14 and dict(made.choice.options)["parts"] == 7
