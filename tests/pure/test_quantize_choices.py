"""Which kernel quantises which shape on which target, and by what its bits are made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ops.rms_norm.choice import MODES
from kernels.ops.rms_norm_quantize import formats
from kernels.ops.rms_norm_quantize.ascend.launch import choose as on_ascend
from kernels.ops.rms_norm_quantize.gpu.choose import choose, widest

OP = "rms_norm_quantize"
TARGETS = ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx950", "interpreter"]


def power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(TARGETS),
    st.integers(1, 2**33) | st.integers(1, 600),
    st.integers(1, 131072) | st.integers(1, 1024).map(lambda n: 128 * n),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.integers(1, 304),
    st.sampled_from(MODES),
)
def test_every_launch_covers_its_matrix_and_can_be_launched(target, rows, hidden, dtype, cores, mode):
    group = 0 if hidden % 128 else 128 * (rows % 2)
    try:
        found = choose(target, rows, hidden, dtype, cores=cores, op=OP, mode=mode, group=group)
    except NotImplementedError as refused:
        assert mode != "auto" and f"mode {mode} of {OP}" in str(refused)
        return
    options = dict(found.options)
    columns = found.block + options["tail"]
    assert power_of_2(found.rows) and power_of_2(found.block) and power_of_2(options["span"])
    assert found.block % options["span"] == 0 and (not group or options["span"] == 128)
    assert (found.num_warps & (found.num_warps - 1)) == 0 and found.num_warps <= (16 if "hip" in target else 32)
    assert found.programs <= 2**31 - 1 and options["pdl"] == (target in ("cuda:90", "cuda:100"))
    groups = -(-rows // found.rows)
    if found.kernel == "quantize_measured":
        assert found.programs == rows * options["parts"] and options["parts"] * found.block >= hidden
        assert (options["parts"] - 1) * found.block < hidden and rows * 4 <= cores
    elif found.kernel == "quantize_chunks":
        assert found.programs <= groups
    else:
        assert (columns >= hidden and hidden <= widest(dtype)) or mode == "row_packed"
        assert columns < 2 * max(hidden, 128) and (options["tail"] == 0 or power_of_2(options["tail"]))
        assert found.programs == groups if found.kernel == "quantize_rows" else found.programs <= groups
        if options["tail"]:
            assert found.block < hidden <= columns
    if mode not in ("auto", found.mode):
        most = (2**32 - 1) // (64 * 16) if "hip" in target else 2**31 - 1  # a grid has an end
        assert found.mode == "static_persistent" and groups > most


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 1024).map(lambda n: 128 * n), st.integers(1, 48))
def test_ascends_tiles_hold_whole_groups(rows, hidden, cores):
    found = on_ascend("npu:Ascend910B3", rows, hidden, "float16", cores=cores, mode="auto", group=128)
    assert found.block % 128 == 0 and found.rows * found.block <= 8192


@pytest.mark.parametrize(
    "target, codes",
    [
        ("cuda:80", "int8 e4m3fn e4m3fnuz"),
        ("cuda:89", "int8 fp8e4nv e4m3fnuz"),
        ("cuda:100", "int8 fp8e4nv e4m3fnuz"),
        ("hip:gfx90a", "int8 e4m3fn e4m3fnuz"),
        ("hip:gfx942", "int8 e4m3fn fp8e4b8"),
        ("hip:gfx950", "int8 fp8e4nv e4m3fnuz"),
        ("hip:gfx1201", "int8 fp8e4nv e4m3fnuz"),
        ("interpreter", "int8 e4m3fn e4m3fnuz"),
    ],
)
def test_bits_are_made_by_the_target_where_it_can(target, codes):
    assert " ".join(formats.code(name, target) for name in formats.FORMATS) == codes
    assert not formats.refusal(OP, "float8_e4m3fn", target)


def test_the_contract_and_the_kernels_mean_the_same_ranges():
    from farm.contracts.ops.rms_norm_quantize.contract import RANGES

    assert {name: (f.lowest, f.largest) for name, f in formats.FORMATS.items()} == RANGES
    assert "writes int8 alone on Ascend" in (formats.refusal(OP, "float8_e4m3fn", "npu:Ascend910B3") or "")
