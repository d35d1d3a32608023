"""The verdict over runs and processes: what differs, what was lost, and that nothing compared is no success."""

from __future__ import annotations

import pytest

from benchmarks import bitwise
from benchmarks.bitwise import Cell

CELL = Cell("rms_norm", "auto", "bfloat16", 4, 16)


@pytest.mark.parametrize(
    "first, second, state",
    [
        (["a", "a"], ["a"], "same"),
        (["a", "b"], ["a"], "differs"),
        (["a", "a"], ["b"], "differs"),
        (["a", "a"], "unsupported: too wide", "differs"),
        ("unsupported: too wide", "unsupported: too wide", "unsupported"),
        ("crashed: OutOfResources", ["a"], "crashed"),
        (["a", "a"], "crashed: OutOfResources", "crashed"),
        (None, ["a"], "lost"),
        (["a", "a"], None, "lost"),
    ],
)
def test_the_verdict(first, second, state: str) -> None:
    assert bitwise.verdict(first, second)[0] == state
    rows = bitwise.compare([CELL], {CELL.id: {"forward": first}}, {CELL.id: {"forward": second}})
    assert [r["state"] for r in rows] == [state, "lost"]


def rows(*states: str):
    return [{"cell": CELL, "direction": "forward", "state": s, "told": f"why {s}"} for s in states]


@pytest.mark.parametrize(
    "states, code",
    [
        (["same"], 0),
        (["same", "unsupported"], 0),
        (["unsupported"], 1),
        ([], 1),
        (["same", "differs"], 1),
        (["same", "crashed"], 1),
        (["same", "lost"], 1),
    ],
)
def test_the_exit_code(states: list[str], code: int) -> None:
    assert bitwise.exit_code(rows(*states)) == code


def test_the_table_counts_and_names() -> None:
    text = bitwise.table(rows("same", "same", "unsupported", "differs"))
    assert text.splitlines()[1].split() == ["rms_norm", "auto", "bf16", "forward", "2", "1", "1"]
    assert "differs: rms_norm/auto/bf16/4x16 forward: why differs" in text
    assert "unsupported: auto: why unsupported" in text
    assert text.endswith("2 of 4 (cell, direction) are the same bits in three runs")


def test_the_default_cells_have_every_mode_dtype_and_op() -> None:
    options = bitwise.parse([])
    planned = bitwise.cells(options.ops, options.modes, ["float32", "float16", "bfloat16"], options.shapes)
    assert len(planned) == len(options.ops) * 6 * 3 * len(bitwise.SHAPES) == len({c.id for c in planned})
    assert {c.mode for c in planned} == {"auto", *bitwise.MODES}


def test_the_default_cells_have_wide_rows_that_a_ring_would_take(monkeypatch) -> None:
    from kernels.ops.rms_norm import dispatch
    from kernels.ops.rms_norm.gpu import tuned

    ring = {"mode": "static_persistent", "kernel": "backward_ring", "block": 4096, "num_warps": 16, "per_core": 1}
    table = {(op, "backward", "bfloat16"): ((8192, 32768, ring),) for op in ("rms_norm", "fused_add_rms_norm")}
    monkeypatch.setattr(tuned, "TABLE", table)
    dispatch.choose.cache_clear()
    for op, dtype in ((op, dtype) for op in ("rms_norm", "fused_add_rms_norm") for dtype in ("bfloat16", "float16")):
        chosen = [
            dict(dispatch.choose("cuda:90", *shape, dtype, "backward", cores=132, op=op, ring=True).options)["kernel"]
            for shape in bitwise.SHAPES
        ]
        assert "backward_ring" in chosen
    dispatch.choose.cache_clear()


def test_the_default_cells_have_rows_that_programs_would_share(monkeypatch) -> None:
    """And only they are added to, not what is asked for."""
    from kernels.ops.rms_norm import dispatch

    (shape,) = bitwise.AUTO_SHAPES
    for operation in ("forward", "backward"):
        chosen = dispatch.choose("cuda:90", *shape, "bfloat16", operation, cores=132, split=True)
        assert chosen.kernel == f"{operation}_split"
    planned: list[bitwise.Cell] = []
    monkeypatch.setattr(bitwise, "in_processes", lambda cells, *_: planned.extend(cells) or {})
    bitwise.main([])
    assert {c.mode for c in planned if (c.rows, c.hidden) == shape} == {"auto"}
    planned.clear()
    bitwise.main(["--shapes", "3x40"])
    assert {(c.rows, c.hidden) for c in planned} == {(3, 40)}


@pytest.mark.parametrize("argv, said", [(["--shapes", "3x"], "ROWSxHIDDEN"), (["--jobs", "0"], "1 or more")])
def test_a_wrong_command_line_is_told(argv: list[str], said: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        bitwise.parse(argv)
    assert stop.value.code == 2 and said in capsys.readouterr().err


def test_without_a_device_it_says_what_to_do(capsys, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert bitwise.main(["--shapes", "3x4"]) == 2
    assert "set TRITON_INTERPRET=1" in capsys.readouterr().err
