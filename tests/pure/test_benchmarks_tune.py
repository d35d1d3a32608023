"""The tuner's pure half: what it starts from, where it goes from there, and the table that it writes."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import tune
from benchmarks.tune_space import (
    DOMAIN,
    OPS,
    SHAPES,
    Config,
    Task,
    held,
    key_of,
    mode_of,
    neighbours,
    seeds,
    sensible,
    task_of,
)
from benchmarks.tune_table import table
from kernels.ops.rms_norm.choice import MODES
from kernels.ops.rms_norm.gpu import choose, tuned

TASKS = [
    Task(op, operation, dtype, *shape)
    for op in OPS
    for operation, shapes in SHAPES.items()
    for shape in shapes[::4]
    for dtype in ("bfloat16", "float32")
]
SIZE = {"float32": 4, "bfloat16": 2}


def built(task: Task, config: Config) -> Any:
    mode = mode_of(config, task.hidden)
    return choose.build(
        task.operation, {**config, "mode": mode}, task.rows, task.hidden, SIZE[task.dtype], 132, "cuda:90"
    )


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_every_seed_can_be_launched_and_is_there_once(task: Task) -> None:
    found = seeds(task)
    assert found and len({key_of(c) for c in found}) == len(found)
    for config in found:
        assert sensible(task, config)
        choice = built(task, config)
        assert choice.num_warps * 32 <= 1024 and choice.mode in MODES[1:]
        assert choice.rows <= task.rows and choice.programs >= 1


@pytest.mark.parametrize("task", TASKS[::3], ids=lambda t: t.name)
def test_a_neighbour_differs_in_one_key_and_stays_in_the_domain(task: Task) -> None:
    for config in seeds(task)[::7]:
        for other in neighbours(task, config):
            changed = {k for k in config if config[k] != other[k]}
            # More warps in fewer programs: the threads of a core are kept.
            assert len(changed) == 1 or changed == {"num_warps", "per_core"}
            assert set(other) == set(config) and sensible(task, other)
            assert all(other[k] in DOMAIN[k] for k in changed)
            built(task, other)


def test_what_fits_nowhere_is_not_sensible() -> None:
    task = Task("rms_norm", "backward", "bfloat16", 8192, 8192)
    good = next(c for c in seeds(task) if c["kernel"] == "backward_rows" and c["num_stages"] == 3)
    assert sensible(task, good)
    assert not sensible(task, {**good, "num_warps": 64})  # more than a block's threads
    assert not sensible(task, {**good, "num_stages": 5, "rows": 8})  # more than its shared memory
    assert not sensible(task, {**good, "num_warps": 1})  # more than its registers
    assert not sensible(Task("rms_norm", "backward", "bfloat16", 1, 8192), {**good, "rows": 2})  # more than its rows


@pytest.mark.parametrize(
    ("config", "hidden", "mode"),
    [
        ({"kernel": "forward_rows", "rows": 1}, 4096, "multi_wave_cached"),
        ({"kernel": "forward_rows", "rows": 4}, 256, "row_packed"),
        ({"kernel": "forward_persistent", "rows": 4}, 256, "static_persistent"),
        ({"kernel": "forward_chunks", "rows": 1, "keep": 0}, 8192, "multi_wave_reload"),
        ({"kernel": "forward_chunks", "rows": 1, "keep": 8192}, 8192, "multi_wave_cached"),  # nothing is read again
        ({"kernel": "forward_chunks", "rows": 2, "keep": 0}, 8192, "column_tiled"),
        ({"kernel": "backward_rows", "rows": 1}, 4096, "static_persistent"),
        ({"kernel": "backward_rows", "rows": 2}, 4096, "row_packed"),
        ({"kernel": "backward_columns", "rows": 4}, 65536, "column_tiled"),
        ({"kernel": "forward_split"}, 131072, "multi_wave_cached"),
        ({"kernel": "backward_split"}, 131072, "static_persistent"),
    ],
)
def test_a_configuration_is_told_by_the_mode_that_it_is(config: Config, hidden: int, mode: str) -> None:
    assert mode_of(config, hidden) == mode


WIDE = [
    Task(op, operation, dtype, 8192, hidden)
    for op in OPS
    for operation in SHAPES
    for dtype, hidden in (("bfloat16", 131072), ("bfloat16", 32768), ("float32", 65536))
]


@pytest.mark.parametrize("task", WIDE, ids=lambda t: t.name)
def test_rows_that_programs_share_are_searched(task: Task) -> None:
    """Both operations; no two configurations are one launch, and a backward's programs find room at once."""
    found = [c for c in seeds(task) if c["kernel"] in choose.SPLITS]
    assert len(found) > 20 and {c["kernel"] for c in found} == {f"{task.operation}_split"}
    choices = [built(task, c) for c in found]
    assert len(set(choices)) == len(choices)
    for config, choice in zip(found, choices):
        assert dict(choice.options)["parts"] == config["parts"]
        if task.operation == "backward":
            row = choice.block * SIZE[task.dtype] * (2 + task.op.startswith("fused"))
            assert config["per_core"] * ((config["num_stages"] - 1) * row + 1024) <= 232448
            assert choice.programs <= 132 * config["per_core"]
        for other in neighbours(task, config):
            built(task, other)


def test_narrow_rows_are_not_divided() -> None:
    for operation in SHAPES:
        assert not [c for c in seeds(Task("rms_norm", operation, "bfloat16", 4096, 8192)) if "parts" in c]


def test_what_the_table_has_is_timed_beside_the_kernels_that_are_asked_for() -> None:
    """So that a search of some kernels alone knows what they are to beat, and its report what stands in for them."""
    for (op, operation, dtype), entries in tuned.TABLE.items():
        for rows, hidden, config in entries:
            task = Task(op, operation, dtype, rows, hidden)
            own = held(task)
            assert [c for c in own if c["kernel"] == config["kernel"]]
            for c in own:
                if c["kernel"] in (*choose.RINGS, *choose.SPLITS):  # or it would have neighbours that mean the same
                    assert "rows" not in c and ("num_stages" in c) is (c["kernel"] == "backward_split")
                mode = mode_of(c, hidden)
                assert "mode" not in c and mode in MODES[1:]
    task = Task("rms_norm", "forward", "bfloat16", 8192, 131072)
    (entry, *_) = [c for rows, hidden, c in tuned.TABLE["rms_norm", "forward", "bfloat16"] if hidden == task.hidden]
    assert built(task, held(task)[0]) == choose.build("forward", entry, 8192, 131072, 2, 132, "cuda:90")
    for task in (
        Task("fused_add_rms_norm", "forward", "bfloat16", 8191, 131072),
        Task("rms_norm", "forward", "float32", 64, 99),
    ):
        (own,) = held(task)  # not measured: what auto takes there
        shape = (task.rows, task.hidden, task.dtype, task.operation)
        every = {"cores": 132, "op": task.op, "mode": "auto", "ring": True, "split": True}
        assert built(task, own) == choose.choose("cuda:90", *shape, **every)  # type: ignore[arg-type]


def test_a_table_keeps_what_stands_in_for_divided_rows(tmp_path: Path) -> None:
    """Not every tensor, and not every machine, can have them."""
    task = WIDE[0]
    split = next(c for c in seeds(task) if c["kernel"] == "forward_split")
    tried = [[1.0, split], [1.1, {**split, "parts": 16}], *([2.0 + n, c] for n, c in enumerate(held(task)))]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({task.name: {"tried": tried}}))
    namespace: dict[str, Any] = {}
    exec(compile(table([str(report)], "on a chip"), "tuned.py", "exec"), namespace)
    kernels = [c["kernel"] for _, _, c in namespace["TABLE"]["rms_norm", "forward", "bfloat16"]]
    assert kernels == ["forward_split", "forward_ring", "forward_chunks"]
    measured, found = namespace["find"]("cuda:90", "rms_norm", "forward", "bfloat16", 8192, 100_000)
    assert measured == 131072
    assert {**choose.DEFAULTS["forward_split"], **found} == {
        **choose.DEFAULTS["forward_split"],
        **split,
        "mode": "multi_wave_cached",
    }


def test_bytes_are_those_of_the_contract() -> None:
    size = 4096 * 1024 * 2
    told = {(op, o): Task(op, o, "bfloat16", 4096, 1024).bytes / size for op in OPS for o in SHAPES}
    assert told == {
        ("rms_norm", "forward"): 2,
        ("rms_norm", "backward"): 3,
        ("fused_add_rms_norm", "forward"): 4,
        ("fused_add_rms_norm", "backward"): 4,
    }


def test_the_table_holds_the_best_of_the_last_report(tmp_path: Path) -> None:
    task = Task("rms_norm", "forward", "bfloat16", 8192, 4096)
    first, second, third = seeds(task)[:3]
    reports = []
    for number, tried in enumerate(([[3.0, first], [4.0, second]], [[2.0, third], [2.5, first]])):
        reports.append(str(tmp_path / f"{number}.json"))
        Path(reports[-1]).write_text(json.dumps({task.name: {"tried": tried}}))
    namespace: dict[str, Any] = {}
    exec(compile(table(reports, "on a chip"), "tuned.py", "exec"), namespace)
    _, found = namespace["find"]("cuda:90", "rms_norm", "forward", "bfloat16", 8192, 4096)
    assert {**choose.DEFAULTS["forward_rows"], "rows": 1, **found} == {
        **choose.DEFAULTS["forward_rows"],
        **third,
        "mode": mode_of(third, 4096),
    }
    assert namespace["find"]("hip:gfx942", "rms_norm", "forward", "bfloat16", 8192, 4096) is None
    assert namespace["__doc__"] is not None and "on a chip" in namespace["__doc__"]


def test_the_shipped_table_is_what_the_program_writes() -> None:
    """Its functions are the template's: edited by hand, it would be lost at the next tuning."""
    shipped = Path(tuned.__file__).read_text()
    written = table([], "").split("def _value", 1)[1]
    assert shipped.split("def _value", 1)[1] == written


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--out REPORT.json is needed"),
        (("--out", "r.json", "--dtypes", "bf16"), "--dtypes: there is no 'bf16', but float32"),
        (("--out", "r.json", "--ops", "matmul"), "--ops: there is no 'matmul', but rms_norm"),
        (("--out", "r.json", "--kernels", "split"), "--kernels: there is no 'split', but forward_rows"),
        (("--out", "r.json", "--only", "full"), "--only: there is no 'full', but forward"),
        (("--out", "r.json", "--shapes", "4096"), "--shapes: '4096' is not like"),
        (("--out", "r.json", "--shapes", "0x8"), "--shapes: '0x8' is not like"),
    ],
)
def test_bad_options(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tune.main(list(arguments))
    assert stopped.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", "[]", '{"a": 1}', '{"a/b": {"tried": []}}'])
def test_a_table_of_what_is_no_report(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed then that could be taken for the table."""
    report = tmp_path / "report.json"
    if text is not None:
        report.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        tune.main(["--table", str(report)])
    told = capsys.readouterr()
    assert stopped.value.code == 2 and "--table: no report" in told.err and not told.out


def test_a_task_has_a_name_that_means_it() -> None:
    assert [task_of(t.name) for t in TASKS] == TASKS
    for name in ("rms_norm/forward/bf16/8x8", "rms_norm/sideways/float32/8x8", "norm/forward/float32/8x8", "8x8", ""):
        with pytest.raises(ValueError, match="is not like rms_norm/forward/bfloat16/8192x4096"):
            task_of(name)


def test_what_a_search_is_asked_for_wrongly_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tune.main(["--out", "x.json", "--tasks", "rms_norm/forward/bfloat16/8192x4096", "rms_norm"])
    assert ended.value.code == 2 and "--tasks: 'rms_norm' is not like" in capsys.readouterr().err


def test_the_tensors_of_a_task_go_with_its_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over rows of a gigabyte ran out of the device's memory, since a cycle kept each task's tensors."""
    torch = pytest.importorskip("torch")
    made: list[Any] = []

    class Tensors:
        def __init__(self, *_: Any):
            made.append(weakref.ref(self))

    monkeypatch.setattr(tune, "Buffers", Tensors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1 << 20))
    gc.disable()  # or it would find the cycle, at some time
    try:
        timer = tune.Timer(Task("rms_norm", "forward", "bfloat16", 8, 128))
        assert len(made) >= 2 and all(tensors() is not None for tensors in made)
        assert timer.bench.make() is timer.sets[0]
        del timer
        assert all(tensors() is None for tensors in made)
    finally:
        gc.enable()
