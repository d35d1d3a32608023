"""The norms' dispatch: pure, total, every choice can be launched, and tuned ones go where they were measured."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.ascend import choose as ascend
from kernels.ops.rms_norm.choice import MODES, OPERATIONS, Choice, divide_up
from kernels.ops.rms_norm.gpu import choose as gpu
from kernels.ops.rms_norm.gpu import measured as gpu_measured
from kernels.ops.rms_norm.gpu import tuned

REPOSITORY = Path(dispatch.__file__).parents[3]
OPS = ("rms_norm", "fused_add_rms_norm")
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
CORES = {
    "cuda:90": 132,
    "cuda:100": 148,
    "cuda:103": 160,
    "cuda:80": 108,
    "hip:gfx942": 304,
    "hip:gfx950": 256,
    "interpreter": 4,
    "npu:Ascend910B3": 40,
}
#: Elements of one tensor in a kernel, Triton's own limit.
MAX_ELEMENTS = 2**20
#: `function.as_rows` copies where rows lie further apart, unless they are as wide.
MAX_STRIDE = 2**25

targets = st.sampled_from(list(CORES))
gpus = st.sampled_from([t for t in CORES if not t.startswith("npu")])
rows = st.one_of(st.integers(1, 300), st.integers(1, 2**17), st.integers(1, 2**40))
hidden = st.one_of(
    st.integers(1, 300),
    st.integers(1, 2**17),
    st.integers(1, 2**30),
    st.sampled_from([2**k + d for k in range(1, 30) for d in (-1, 0, 1)]),
)
dtypes = st.sampled_from(list(SIZES))
operations = st.sampled_from(OPERATIONS)
ops = st.sampled_from(OPS)
modes = st.sampled_from(MODES)
some_cores = st.one_of(st.none(), st.integers(1, 400))


def power(n: Any) -> bool:
    return isinstance(n, int) and n > 0 and n & (n - 1) == 0


@settings(max_examples=600, deadline=None)
@given(targets, rows, hidden, dtypes, operations, ops, modes, some_cores)
def test_auto_serves_everything_and_others_serve_or_say_why(
    target: str, rows: int, hidden: int, dtype: str, operation: str, op: str, mode: str, some: int | None
) -> None:
    cores = some or CORES[target]
    question = (target, rows, hidden, dtype, operation)
    reason = dispatch.refusal(target, mode, rows, hidden, dtype, operation, op)
    if reason:
        assert mode != "auto"
        with pytest.raises(NotImplementedError) as raised:
            dispatch.choose(*question, cores=cores, op=op, mode=mode)
        assert str(raised.value) == reason and mode in reason and reason.endswith((f"is {hidden}", f"is {rows}"))
        return
    choice = dispatch.choose(*question, cores=cores, op=op, mode=mode)
    assert choice.mode in MODES and choice.mode == (mode if mode != "auto" else choice.mode) != "auto"
    assert dispatch.refusal(target, choice.mode, rows, hidden, dtype, operation, op) is None
    if target.startswith("npu"):
        assert choice == ascend.choose(*question, cores=cores, op=op, mode=mode)
        assert choice.num_warps == 0 and 1 <= choice.programs <= ascend.MAX_PROGRAMS
    else:
        launchable(choice, target, rows, hidden, SIZES[dtype], operation, cores)
    dispatch.choose.cache_clear()
    assert dispatch.choose(*question, cores=cores, op=op, mode=mode) == choice


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("hidden", [2**30, 2**30 - 1, 2**29 + 1, 715_827_883, 2**25 + 1])
def test_the_widest_rows_are_within_reach(hidden: int, operation: str, mode: str) -> None:
    """Random shapes seldom are so wide that a tile of four rows is beyond 32-bit offsets."""
    for target, rows in itertools.product((t for t in CORES if not t.startswith("npu")), (1, 4, 1000, 2**40)):
        if dispatch.refusal(target, mode, rows, hidden, "bfloat16", operation, "rms_norm") is None:
            cores = CORES[target]
            choice = dispatch.choose(target, rows, hidden, "bfloat16", operation, cores=cores, mode=mode)
            launchable(choice, target, rows, hidden, 2, operation, cores)


#: What `launch` reads of each kernel's options.
READ = {
    "forward_rows": {"load", "pdl", "span", "spread", "store", "tail", "weight"},
    "forward_persistent": {"load", "pdl", "span", "spread", "store"},
    "forward_chunks": {"keep", "load", "pdl", "span", "store", "trips"},
    "backward_rows": {"ahead", "fold", "hold", "load", "pdl", "span", "spread", "store"},
    "backward_twice": {"ahead", "chunk", "pdl", "span", "store", "trips"},
    "backward_columns": {"pdl", "store", "target"},
    "forward_unaligned": {"load", "pdl", "span", "spread", "store", "weight"},
    "backward_unaligned": {"fold", "hold", "load", "pdl", "span", "spread", "store"},
    "forward_ring": {"early", "hold", "pdl", "per_core", "regs", "slots", "spare", "store"},
    "backward_ring": {"hold", "pdl", "per_core", "regs", "slots", "spare", "store"},
    "forward_split": {"lanes", "load", "parts", "pdl", "polls", "registers", "spin", "store", "weight", "width"},
    "forward_parts": {"lanes", "load", "parts", "pdl", "store", "width"},
    "backward_strips": {"lanes", "load", "parts", "pdl", "store"},
    "backward_split": {"lanes", "later", "load", "parts", "pdl", "polls", "registers", "spin", "store", "width"},
}


def launchable(choice: Choice, target: str, rows: int, hidden: int, size: int, operation: str, cores: int) -> None:
    """AssertionError unless a GPU can launch it and it reaches every element."""
    options: dict[str, Any] = dict(choice.options)
    assert list(options) == sorted(options) and json.dumps(choice.to_dict())
    kernel = options.pop("kernel")
    assert set(options) == READ[kernel] and kernel.startswith(operation)
    threads(choice, target)
    tile(choice, hidden)
    assert options["pdl"] <= (target in ("cuda:90", "cuda:100", "cuda:103"))
    assert options.get("ahead", 0) == 0 or target.startswith("cuda")
    assert {options["store"], options.get("load", "")} <= {"", "evict_first", "evict_last"}
    groups = divide_up(rows, choice.rows)
    if kernel in gpu.UNALIGNED:
        groups = unaligned(choice, rows, hidden, size)
        assert options["span"] <= choice.block and power(options["span"]) and options["span"] * size >= 16
    if kernel in gpu.SPLITS:
        groups = split(choice, kernel, rows, hidden)
    if kernel in gpu.FEW:
        groups = divided(choice, kernel, rows, hidden)
    grid(choice, kernel, groups, hidden, cores)
    in_one_dimension(
        choice, divide_up(hidden, choice.block) if kernel == "backward_columns" else choice.programs, target
    )
    if kernel in ("forward_persistent", "backward_rows"):
        assert hidden <= choice.block < 2 * hidden
        assert choice.block % options["span"] == 0 and power(options["span"])
    elif kernel == "forward_rows":
        assert choice.block < 2 * hidden and hidden <= choice.block + options["tail"]
        assert options["tail"] == 0 or (power(options["tail"]) and options["tail"] <= choice.block // 2)
        assert choice.block % options["span"] == 0 and power(options["span"])
    elif kernel == "forward_chunks":
        keep, span = options["keep"], options["span"]
        assert power(span) and choice.block % span == 0 and keep % span == 0
        assert keep == 0 or (power(keep) and keep <= hidden and choice.rows * keep <= MAX_ELEMENTS)
        assert options["trips"] in (0, divide_up(hidden - keep, choice.block))
    elif kernel == "backward_twice":
        part, chunk, span = choice.block // 4, options["chunk"], options["span"]
        assert choice.rows == 1 and hidden <= choice.block < 2 * hidden
        assert power(span) and part % span == 0 and power(chunk) and chunk % span == 0
        assert options["trips"] in (0, divide_up(hidden, chunk))
    elif kernel in gpu.RINGS:
        assert target in ("cuda:90", "cuda:100", "cuda:103") and hidden * size % 16 == 0 and choice.rows == 1
        assert choice.block * size >= choice.num_warps * 32 * 16 and choice.programs <= cores * options["per_core"]
        ringed = {**options, "kernel": kernel, "block": choice.block}
        assert any(
            gpu_measured.ring_of(op, operation, ringed, hidden, dtype)
            for op in ("rms_norm", "fused_add_rms_norm")
            for dtype in SIZES
            if SIZES[dtype] == size
        )
    if kernel == "backward_columns":
        sweep = gpu.sweep(rows, hidden, size, target)
        threads(sweep, target)
        tile(sweep, hidden)
        assert sweep.block % dict(sweep.options)["span"] == 0 and sweep.programs <= gpu.MAX_PROGRAMS
        in_one_dimension(sweep, sweep.programs, target)
    if operation == "backward" and kernel not in gpu.FEW:
        partial_sums(choice, kernel, hidden, cores, target)


def threads(choice: Choice, target: str) -> None:
    lanes = 64 if target.startswith("hip") else 32
    assert power(choice.num_warps) and choice.num_warps * lanes <= 1024
    assert 1 <= choice.num_stages <= 8


def unaligned(choice: Choice, rows: int, hidden: int, size: int) -> int:
    """How many tiles there are: rows that are 16-byte aligned alike are each residue's own."""
    period = gpu.period(hidden, size)
    assert (period * hidden * size) % 16 == 0 and (period == 1 or (period // 2 * hidden * size) % 16)
    assert hidden // (16 // size) * (16 // size) <= choice.block
    groups = rows if choice.rows == 1 else period * divide_up(rows, period * choice.rows)
    assert choice.programs == groups or choice.programs % period == 0
    return groups


def split(choice: Choice, kernel: str, rows: int, hidden: int) -> int:
    """How many programs there are: a part of each row one forward, of each group of rows backward; and at least one
    thread for each part's word."""
    options: dict[str, Any] = dict(choice.options)
    parts, width = options["parts"], options["width"]
    assert choice.rows == 1 and width <= choice.block < 2 * width and (parts - 1) * width < hidden <= parts * width
    assert parts <= options["lanes"] and options["polls"] >= 1
    assert choice.programs % parts == 0 and choice.programs // parts <= rows
    assert kernel == "backward_split" or choice.programs == rows * parts
    return choice.programs


def divided(choice: Choice, kernel: str, rows: int, hidden: int) -> int:
    """How many programs there are of few.py: a part of each row forward, a strip of all rows backward."""
    options: dict[str, Any] = dict(choice.options)
    parts, width = options["parts"], options.get("width", choice.block)
    assert width <= choice.block and (parts - 1) * width < hidden <= parts * width
    assert power(options["lanes"]) and parts <= options["lanes"] < 2 * parts
    assert choice.programs == parts * (rows if kernel == "forward_parts" else 1)
    return choice.programs


def test_few_wide_rows_are_divided_and_nothing_published_changes() -> None:
    """Fewer rows than half the multiprocessors; what was measured for the published shapes stays."""
    published = ((8192, 131072), (6144, 4097), (32768, 128), (4096, 4096), (8192, 4096), (16384, 32768))
    for (rows, hidden), operation, op in itertools.product(
        (*published, (4096, 1024), (4096, 16384)), OPERATIONS, ("rms_norm", "fused_add_rms_norm")
    ):
        shape = ("cuda:90", rows, hidden, "bfloat16", operation)
        asked = {"cores": 132, "op": op, "ring": True, "split": True}
        assert gpu.configuration(*shape, **asked) == gpu.configuration(*shape, **asked, fitted=False)
    for rows, hidden, dtype, forward, backward in (
        (1, 57344, "bfloat16", "forward_parts", "backward_strips"),
        (1, 32768, "bfloat16", "forward_parts", "backward_strips"),
        (7, 262144, "bfloat16", "forward_parts", "backward_strips"),
        (1, 16384, "bfloat16", "forward_rows", "backward_strips"),
        (48, 131072, "bfloat16", "forward_parts", "backward_strips"),
        (200, 65536, "float32", "forward_chunks", None),
    ):
        for operation, kernel in zip(OPERATIONS, (forward, backward)):
            for target in ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942"):
                choice = dispatch.choose(target, rows, hidden, dtype, operation, cores=132, ring=True, split=True)
                launchable(choice, target, rows, hidden, SIZES[dtype], operation, 132)
                assert kernel is None or choice.kernel == kernel


def in_one_dimension(choice: Choice, programs: int, target: str) -> None:
    """HIP counts threads there, not blocks, and refuses 2^32 of them."""
    if target.startswith("hip"):
        assert programs * choice.num_warps * 64 < 2**32


@pytest.mark.parametrize("hidden", [1, 1024, 1025, 2048, 16384, 32769])
def test_more_threads_than_hip_launches_are_never_asked_for(hidden: int) -> None:
    """2^24 rows of 1,025 bfloat16 are 34 GB: they fit into an MI300X."""
    for rows, operation, mode in itertools.product((2**22, 2**24, 2**26, 2**31 - 1), OPERATIONS, MODES):
        question = ("hip:gfx942", rows, hidden, "bfloat16", operation)
        reason = dispatch.refusal(question[0], mode, *question[1:], "rms_norm")
        if reason is None:
            launchable(dispatch.choose(*question, cores=304, mode=mode), *question[:3], 2, operation, 304)
        else:
            assert mode != "auto" and (hidden > 8192 or "takes a program a tile" in reason)
    assert dispatch.choose("hip:gfx942", 2**24, 1025, "bfloat16", "forward", cores=304).mode == "static_persistent"
    assert dispatch.choose("cuda:90", 2**24, 1025, "bfloat16", "forward", cores=132).mode == "multi_wave_cached"


def tile(choice: Choice, hidden: int) -> None:
    """Powers of two, of a size that Triton takes, and whose rows 32-bit offsets reach."""
    assert power(choice.rows) and power(choice.block) and choice.rows * choice.block <= MAX_ELEMENTS
    assert choice.block < 2 * hidden
    assert (choice.rows - 1) * max(hidden, MAX_STRIDE) < 2**31


def grid(choice: Choice, kernel: str, groups: int, hidden: int, cores: int) -> None:
    if kernel == "backward_columns":
        blocks = divide_up(hidden, choice.block)
        splits, rest = divmod(choice.programs, blocks)
        assert rest == 0 and 1 <= splits <= min(groups, gpu.MAX_SPLITS) and blocks <= gpu.MAX_PROGRAMS
        return
    assert 1 <= choice.programs <= min(groups, gpu.MAX_PROGRAMS)
    if kernel == "forward_rows":
        assert choice.programs == groups  # one tile a program


def partial_sums(choice: Choice, kernel: str, hidden: int, cores: int, target: str) -> None:
    """Float32 rows, at most half a MiB a core, or one row."""
    count = choice.programs
    if kernel == "backward_columns":
        count //= divide_up(hidden, choice.block)
    if kernel in gpu.SPLITS:
        count //= dict(choice.options)["parts"]  # type: ignore[operator]
    assert count == 1 or count * hidden <= 2**17 * cores or (kernel in gpu.UNALIGNED and count <= 8)
    summed = gpu.reduction(count, hidden)
    threads(summed, target)
    assert power(summed.rows) and power(summed.block) and summed.rows * summed.block <= MAX_ELEMENTS
    assert summed.programs * summed.block >= hidden and summed.programs <= gpu.MAX_PROGRAMS
    assert (summed.rows - 1) * hidden < 2**31


def dtypes_of(measured: str) -> tuple[str, ...]:
    """Which dtypes take what was found for `measured`."""
    return ("bfloat16", "float16") if measured == "bfloat16" else (measured,)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(*key, *entry[:2]) for key, measured in tuned.TABLE.items() for entry in measured]),
    st.sampled_from(["cuda:90", "cuda:100", "hip:gfx942", "interpreter"]),
    st.integers(-5, 5),
    st.floats(0.5, 1.1),
)
def test_near_what_was_measured_choices_can_be_launched_too(
    entry: tuple[str, str, str, int, int], target: str, doublings: int, width: float
) -> None:
    """Random shapes seldom come near the table: these do."""
    op, operation, measured, measured_rows, measured_hidden = entry
    rows, hidden = max(1, int(measured_rows * 2.0**doublings)), max(1, int(measured_hidden * width))
    for dtype in dtypes_of(measured):
        for ring in (False, target.startswith("cuda")):
            choice = dispatch.choose(
                target, rows, hidden, dtype, operation, cores=CORES[target], op=op, ring=ring, split=ring
            )
            launchable(choice, target, rows, hidden, SIZES[dtype], operation, CORES[target])
            named = dispatch.refusal(target, choice.mode, rows, hidden, dtype, operation, op)
            wider = choice.kernel in (*gpu.RINGS, *gpu.SPLITS)  # than what the mode holds that is asked for by name
            assert named is None or wider


@pytest.mark.parametrize("key", tuned.TABLE, ids=str)
def test_a_measured_shape_gets_the_configuration_that_was_found_for_it(key: tuple[str, str, str]) -> None:
    op, operation, measured = key
    shapes = [(*entry[:2], entry[2]["kernel"]) for entry in tuned.TABLE[key]]  # another kernel may stand in
    assert len(set(shapes)) == len(shapes)
    for dtype in dtypes_of(measured):
        own = {entry[:2] for entry in tuned.TABLE.get((op, operation, dtype), ())} if dtype != measured else set()
        for rows, hidden, config in tuned.TABLE[key]:
            if (rows, hidden) in own:
                continue
            kernel = config["kernel"]
            found = tuned.find("cuda:90", op, operation, dtype, rows, hidden, lambda k, _, kernel=kernel: k == kernel)
            assert found == (hidden, config)
            dense = kernel in gpu.UNALIGNED  # of rows that are not aligned, others are for those apart
            given = {"dense": dense, "ring": kernel in gpu.RINGS, "split": kernel in gpu.SPLITS}
            choice = dispatch.choose("cuda:90", rows, hidden, dtype, operation, cores=132, op=op, **given)
            assert choice.mode == config["mode"] and dict(choice.options)["kernel"] == config["kernel"]
            assert choice == gpu.build(operation, config, rows, hidden, SIZES[dtype], 132, "cuda:90")


def test_no_instruction_of_nvidia_is_asked_for_elsewhere() -> None:
    """Were the table's configurations built for another target, which `farm compile` may do."""
    for (_, operation, dtype), measured in tuned.TABLE.items():
        for rows, hidden, config in measured:
            asked = {**config, "ahead": 1} if "ahead" in gpu.DEFAULTS[config["kernel"]] else config
            for target in ("hip:gfx950", "interpreter", "cuda:80", "cuda:90"):
                built = dict(gpu.build(operation, asked, rows, hidden, SIZES[dtype], 8, target).options)
                assert built["pdl"] is (target == "cuda:90")
                assert built.get("ahead", 0) == (asked.get("ahead", 0) if target.startswith("cuda") else 0)


@settings(max_examples=200, deadline=None)
@given(targets, rows, hidden, dtypes, operations, ops)
def test_a_configuration_goes_where_it_was_measured_or_reasoned_for(
    target: str, rows: int, hidden: int, dtype: str, operation: str, op: str
) -> None:
    found = tuned.find(target, op, operation, dtype, rows, hidden)
    assert found is None or may_serve(found[1], target, op, operation, dtype, rows, hidden)


@pytest.mark.parametrize("key", tuned.TABLE, ids=str)
def test_a_configuration_serves_no_shape_far_from_its_own(key: tuple[str, str, str]) -> None:
    """Random shapes seldom come near the table: these do."""
    op, operation, measured = key
    for rows, hidden, _ in tuned.TABLE[key]:
        for times, width, dtype, target in itertools.product(
            (1 / 64, 1 / 16, 1 / 17, 1, 16, 17, 64), (0.4, 0.9, 1.9), dtypes_of(measured), CORES
        ):
            asked = max(1, int(rows * times)), max(1, int(hidden * width))
            found = tuned.find(target, op, operation, dtype, *asked)
            assert found is None or may_serve(found[1], target, op, operation, dtype, *asked)


def may_serve(found: Any, target: str, op: str, operation: str, dtype: str, rows: int, hidden: int) -> bool:
    """Measured on sm_90, in that dtype or one as large, for as wide a tile, with at most sixteen times the rows; a
    backward with any more."""
    measured = [e for d in SIZES if dtype in dtypes_of(d) for e in tuned.TABLE.get((op, operation, d), ())]
    near = [(r, h) for r, h, config in measured if config == found]
    return target in ("cuda:90", "cuda:100", "cuda:103") and any(
        r / 16 <= rows and (operation == "backward" or rows <= r * 16) and h / 2 < hidden < h * 2 for r, h in near
    )


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
@pytest.mark.parametrize(("target", "kib"), [("cuda:80", 164), ("cuda:86", 100), ("cuda:120", 100), ("cuda:999", 100)])
def test_a_backward_of_an_unknown_device_fetches_ahead_what_fits(target: str, kib: int, op: str) -> None:
    """In the shared memory that its description has, with all of its programs; and nothing on AMD and before sm_80."""
    found = set()
    for hidden, dtype in itertools.product((512, 2048, 4096, 5120, 8192, 16384), SIZES):
        choice = dispatch.choose(target, 8192, hidden, dtype, "backward", cores=108, op=op)
        row = choice.block * SIZES[dtype]
        stage = row * (3 if op.startswith("fused") else 2)
        if choice.num_stages > 1:
            assert choice.mode == "static_persistent" and row <= gpu.MAX_AHEAD_BYTES
            assert choice.programs // 108 * choice.num_stages * stage <= kib * 1024
        found.add(choice.num_stages)
        for old in ("cuda:75", "hip:gfx942", "interpreter"):
            assert dispatch.choose(old, 8192, hidden, dtype, "backward", cores=108, op=op).num_stages == 1
    assert found >= ({1, 3} if kib > 100 or op == "rms_norm" else {1, 2})


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("hidden", [128, 1000, 4095, 4096, 5120, 8192, 16384, 32768])
def test_a_backward_has_no_cliff_where_rows_grow(hidden: int, dtype: str) -> None:
    """From the most rows that were measured on, only the number of iterations grows."""
    for op, ring in itertools.product(("rms_norm", "fused_add_rms_norm"), (False, True)):
        asked = {"cores": 132, "op": op, "ring": ring, "split": ring}
        chosen = {
            dispatch.choose("cuda:90", rows, hidden, dtype, "backward", **asked)
            for rows in (131072, 131080, 262144, 2**20, 2**24)
        }
        assert len(chosen) == 1, chosen


def test_without_the_table_only_its_own_targets_choose_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> dict[str, list[Choice]]:
        dispatch.choose.cache_clear()
        return {
            target: [
                dispatch.choose(target, rows, hidden, "bfloat16", operation, cores=cores)
                for rows, hidden in ((32768, 128), (4096, 4096), (4096, 16384))
                for operation in OPERATIONS
            ]
            for target, cores in CORES.items()
        }

    with_table = asked()
    monkeypatch.setattr(tuned, "TABLE", {})
    without = asked()
    dispatch.choose.cache_clear()
    assert {target for target in CORES if with_table[target] != without[target]} == {"cuda:90", "cuda:100", "cuda:103"}


@pytest.mark.parametrize(
    "rows, hidden, operation, mode",
    [
        (16, 128, "forward", "multi_wave_cached"),
        (100_000, 128, "forward", "row_packed"),
        (4096, 5000, "forward", "multi_wave_cached"),
        (2**32, 4096, "forward", "static_persistent"),  # more rows than a grid has programs
        (2**36, 8, "forward", "static_persistent"),
        (2**36, 8, "backward", "row_packed"),
        (8, 131072, "forward", "multi_wave_reload"),
        (8, 262144, "backward", "column_tiled"),
        (8, 4096, "backward", "static_persistent"),
    ],
)
def test_what_the_rules_choose_where_nothing_was_measured(rows: int, hidden: int, operation: str, mode: str) -> None:
    for target in ("hip:gfx942", "interpreter", "cuda:80"):
        assert dispatch.choose(target, rows, hidden, "bfloat16", operation, cores=CORES[target]).mode == mode


def test_a_wave_of_cdna_is_twice_as_wide() -> None:
    wide = {
        target: dispatch.choose(
            target, 64, 65536, "float32", "forward", cores=CORES[target], mode="multi_wave_cached"
        ).num_warps
        for target in ("cuda:80", "hip:gfx942")
    }
    assert wide == {"cuda:80": 32, "hip:gfx942": 16}


@pytest.mark.parametrize(
    "mode, rows, hidden, operation, reason",
    [
        ("multi_wave_cached", 1, 65537, "forward", "keeps a row in one tile, forward at most 65536; hidden is 65537"),
        ("static_persistent", 1, 32769, "backward", "backward at most 32768; hidden is 32769"),
        ("row_packed", 1, 8193, "forward", "packs several rows in one tile, at most 8192 wide; hidden is 8193"),
        ("multi_wave_cached", 2**31, 8, "forward", "a program a tile, at most 2147483647; rows is 2147483648"),
    ],
)
def test_refusals_give_the_reason(mode: str, rows: int, hidden: int, operation: str, reason: str) -> None:
    for op in OPS:
        told = str(dispatch.refusal("cuda:90", mode, rows, hidden, "bfloat16", operation, op))
        assert told.startswith(f"mode {mode} of {op} ") and told.endswith(reason)


def test_an_unknown_mode_is_an_error_not_unsupported() -> None:
    for target in CORES:
        with pytest.raises(ValueError, match="rms_norm has no mode 'fast'; it has auto, "):
            dispatch.choose(target, 1, 1, "float32", "forward", cores=1, mode="fast")


def test_a_choice_is_plain_data() -> None:
    choice = dispatch.choose("cuda:80", 8, 5120, "bfloat16", "forward", cores=108)
    assert choice.to_dict() == {
        "mode": "multi_wave_cached",
        "rows": 1,
        "block": 4096,
        "num_warps": 8,
        "num_stages": 1,
        "programs": 8,
        "options": {
            "kernel": "forward_rows",
            "load": "",
            "pdl": False,
            "span": 4096,
            "spread": False,
            "store": "",
            "tail": 1024,
            "weight": "first",
        },
    }


@pytest.mark.parametrize("target", list(CORES))
def test_it_needs_neither_torch_nor_triton(target: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from kernels.ops.rms_norm import dispatch\n"
        f"print(dispatch.choose({target!r}, 8, 4096, 'float32', 'backward', cores=4).mode, *dispatch.machine())"
    )
    env = {"PYTHONPATH": str(REPOSITORY), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=60)
    assert done.stdout.split() == ["static_persistent", "interpreter", str(dispatch.INTERPRETED_CORES)]


def test_what_the_documentation_says_of_three_shapes() -> None:
    """docs/kernels.md, "How `auto` decides"."""

    def of(rows: int, hidden: int, dtype: str, operation: str) -> tuple[Any, ...]:
        c = dispatch.choose("cuda:90", rows, hidden, dtype, operation, cores=132, ring=True, split=True)
        return c.kernel, c.rows, c.block, c.num_warps, c.num_stages, c.programs

    assert of(4096, 2560, "bfloat16", "forward") == ("forward_rows", 1, 2048, 2, 1, 4096)
    assert of(4096, 2560, "bfloat16", "backward") == ("backward_rows", 1, 4096, 8, 3, 264)
    assert of(7, 262144, "bfloat16", "forward") == ("forward_parts", 1, 4096, 8, 1, 448)
    assert of(7, 262144, "bfloat16", "backward")[::5] == ("backward_strips", 128)
    assert of(20000, 1536, "float32", "forward") == ("forward_rows", 1, 1024, 2, 1, 20000)
    assert of(20000, 1536, "float32", "backward") == ("backward_rows", 2, 2048, 16, 3, 132)


def test_only_the_description_reads_the_name_of_a_gpu() -> None:
    names = re.compile(r"""["'](cuda|hip):|target\.(startswith|split|partition)|interpreter["']""")
    said = [f for f in Path(gpu.__file__).parent.glob("*.py") if names.search(_code(f.read_text()))]
    assert {f.name for f in said} == {"description.py", "tuned.py", "space.py"}  # tables, and a task


def _code(text: str) -> str:
    """Without docstrings and comments."""
    return re.sub(r'"""(.|\n)*?"""|#.*', "", text)
