"""The check of the kernels of rows that programs share, without a device: its cases, its glue, and what it says."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks import ring_check, split_cases, split_check, tune  # noqa: E402
from benchmarks.ring_cases import Case  # noqa: E402
from benchmarks.tune_space import SIZE, Task, seeds  # noqa: E402
from kernels.ops.rms_norm import dispatch  # noqa: E402
from kernels.ops.rms_norm.gpu import choose  # noqa: E402

CASES = [case for group in split_cases.groups() for case in group]


def test_the_cases_have_all_that_the_kernels_tell_apart() -> None:
    assert len(CASES) >= 300 and len(set(map(repr, CASES))) == len(CASES)
    for operation in ("forward", "backward"):
        own = [c for c in CASES if c.operation == operation]
        assert {(c.dtype, c.fused) for c in own} == {(d, f) for d in SIZE for f in (True, False)}
        assert {c.weight for c in own} == {"same", "float32", "bfloat16", "none", "shifted"}
        assert {c.rows for c in own} >= {1, 3, 131, 132, 133, 8192} and {c.rounds for c in own} == {True, False}
        assert any(c.gap % 8 for c in own) and any(c.hidden % 8 for c in own)
        assert 10 < sum(split_cases.gives_up(c) for c in own) < len(own) / 3
        usual = {k for k in choose.DEFAULTS[f"{operation}_split"] if k != "pdl"}
        assert {k for c in own for k in c.config} >= usual
    assert not any(c.in_place for c in CASES)
    assert {c.operation for c in CASES if c.rows * c.hidden > 2**31} == {"forward", "backward"}


@pytest.mark.parametrize("case", [c for c in CASES if c.rows == 8192 or c.rows == 1], ids=lambda c: c.name)
def test_a_case_can_be_built(case: Case) -> None:
    config = {"mode": "x", "per_core": 1, **case.config, "kernel": f"{case.operation}_split"}
    choice = choose.build(case.operation, config, case.rows, case.hidden, SIZE[case.dtype], 132, "cuda:90")
    assert choice.block <= 65536 and choice.block / (32 * choice.num_warps) <= 64
    assert dict(choice.options)["parts"] >= 2


def test_a_sample_has_each_kind() -> None:
    kinds = {(c.operation, c.dtype, c.fused) for c in CASES}
    some = [c for group in split_cases.groups(4) for c in group]
    assert {(c.operation, c.dtype, c.fused) for c in some} == kinds and len(some) < len(CASES) / 3


@contextlib.contextmanager
def faked(monkeypatch: pytest.MonkeyPatch, problem: Any, ended: str = "") -> Any:
    """Children that say at once what `problem` says of a case."""
    asked: list[list[str]] = []

    def child(words: list[str], seconds: float, module: str) -> tuple[list[dict[str, Any]], str]:
        asked.append(words)
        assert module == "benchmarks.split_check" and seconds > 0
        if words[0] == "--child-time":
            tried = [[100.0, {**seeds(Task(*split_check.TASKS[0]))[0]}]]
            return [
                {
                    "task": "t",
                    "bytes": 1,
                    "roof_us": 95.0,
                    "today_us": 110.0,
                    "today": "forward_ring",
                    "tried": tried,
                    "failed": {"why": 2},
                }
            ], ended
        cases = [Case(**fields) for fields in json.loads(words[1])]
        lines = [{"begin": n} for n in range(len(cases))]
        return [*lines, *({"end": n, "problem": problem(case)} for n, case in enumerate(cases))], ended

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ring_check, "child", child)
    yield asked


def test_it_checks_then_times_and_tells(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Any) -> None:
    out = tmp_path / "out.json"
    with faked(monkeypatch, lambda case: "") as asked:
        assert split_check.main(["--sample", "8", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert " 0 not right" in told and "today forward_ring 110.0 us, 0.864 of it; 2 x why" in told
    assert [w[0] for w in asked].count("--child-time") == 1 and json.loads(out.read_text()).keys() == {
        "checked",
        "timed",
    }
    first = [Case(**fields) for fields in json.loads(asked[0][1])]
    assert tuple(first) == split_check.LONELY


def test_what_is_wrong_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with faked(monkeypatch, lambda case: "y is 3 times what it may be off" if case.hidden == 50001 else ""):
        assert split_check.main(["--only", "check", "--sample", "4"]) == 1
    assert "WRONG forward bfloat16 " in capsys.readouterr().out
    with faked(monkeypatch, lambda case: "", ended="exit code 1: gone"):
        assert split_check.main(["--only", "time"]) == 1
    assert "timing: exit code 1: gone" in capsys.readouterr().out


def test_other_bits_are_excused_where_programs_give_up_and_only_there(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def differs(case: Case) -> str:
        return split_check.DIFFERS if split_cases.gives_up(case) else ""

    with faked(monkeypatch, differs):
        assert split_check.main(["--only", "check", "--sample", "4"]) == 0
    assert "programs give up" in (told := capsys.readouterr().out) and " 0 had other bits" not in told
    with faked(monkeypatch, lambda case: split_check.DIFFERS):
        assert split_check.main(["--only", "check", "--sample", "4"]) == 1
    given_up = replace(CASES[0], config={"polls": 1})
    assert split_check.excused(given_up, f"y is wrong; {split_check.DIFFERS}") == "y is wrong"


def test_without_a_gpu_it_says_so(capsys: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit) as stopped:
        split_check.main([])
    assert stopped.value.code == 2 and "sees no GPU" in capsys.readouterr().err


class _Timer:
    """In the place of `tune.Timer`: counts what is asked of it."""

    configs: list[dict[str, Any]] = []

    def __init__(self, task: Task) -> None:
        self.task, self.sets = task, [SimpleNamespace(run=lambda choice: ())]
        self.bench = SimpleNamespace(function=None)

    def time(self, config: dict[str, Any], *_: Any) -> tuple[float | None, str]:
        self.configs.append(config)
        return (None, "wrong") if len(self.configs) == 1 else (100.0 + len(self.configs), "")

    def sample(self, *_: Any) -> float:
        return 110.0


def test_the_child_that_times(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Every seed of these kernels, beside what auto chooses, among the ring kernels too."""
    monkeypatch.setattr(tune, "Timer", _Timer)
    monkeypatch.setattr(tune, "compile_all", lambda jobs, pool, workers: None)
    monkeypatch.setattr(tune, "copy_roof", lambda task: (95.0, "a copy"))
    monkeypatch.setattr(dispatch, "machine", lambda: ("cuda:90", 132))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(split_check, "TASKS", split_check.TASKS[:2])
    monkeypatch.setattr(
        "multiprocessing.get_context", lambda _: SimpleNamespace(Pool=lambda n: contextlib.nullcontext())
    )
    assert split_check.main(["--child-time", "100", "--workers", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["today"] for line in lines] == ["forward_ring", "backward_columns"]
    assert lines[0]["failed"] == {"wrong": 1} and len(lines[0]["tried"]) > 20
    assert {c["kernel"] for _, c in lines[0]["tried"]} == {"forward_split"}
    assert len(ring_check.table_of_times(lines, "")) == 8
