"""Providers that are wrong, each in its own way, through `farm run` with real children: none ends `passed`.

Two runs of many providers, since every child takes seconds to import torch: one of wrong answers, one of bad ends.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fake"))

from farm_process import FarmRun

DTYPES = ("float32", "float16", "bfloat16")

WRONG_ANSWERS = '''
import numpy
import torch


def norm(x, eps):
    f = x.float()
    return f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)


def right(x, weight, eps):
    return (norm(x, eps) * weight.float()).to(x.dtype)


class OwnBackward(torch.autograd.Function):
    """Gradients by the formula, as a kernel would give them."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return right(x, weight, eps)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        f, m = x.float(), dy.float() * weight.float()
        r = torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + ctx.eps)
        n = f * r
        dx = r * (m - n * (m * n).mean(-1, keepdim=True))
        return dx.to(x.dtype), (dy.float() * n).sum(0).to(weight.dtype), None


def right_by_formula(x, weight, eps):
    return OwnBackward.apply(x, weight, eps)


def right_but_strided(x, weight, eps):
    return right(x, weight, eps).t().contiguous().t()


def forgets_eps(x, weight, eps):
    return right(x, weight, 0.0)


def forgets_eps_and_hides_it(x, weight, eps):
    return torch.nan_to_num(right(x, weight, 0.0))


def takes_eps_outside_the_root(x, weight, eps):
    f = x.float()
    return (f / (f.pow(2).mean(-1, keepdim=True).sqrt() + eps) * weight.float()).to(x.dtype)


def scales_by_1005(x, weight, eps):
    return (norm(x, eps) * weight.float() * 1.005).to(x.dtype)


def drops_the_last_column(x, weight, eps):
    kept = right(x, weight, eps)[:, :-1]
    return torch.cat([kept, torch.zeros_like(x[:, :1])], dim=1)


def leaves_one_unwritten(x, weight, eps):
    y = torch.empty_like(x)
    y.view(-1)[:-1] = right(x, weight, eps).reshape(-1)[:-1]
    return y


def leaves_one_unwritten_after_zeros(x, weight, eps):
    y = torch.empty(x.shape, dtype=x.dtype)
    y[:-1] = right(x, weight, eps)[:-1]
    y[-1, 1:] = right(x, weight, eps)[-1, 1:]
    return y


def forgets_the_weight(x, weight, eps):
    return (norm(x, eps) + 0 * weight.float()).to(x.dtype)


def skips_the_last_row(x, weight, eps):
    y = right(x, weight, eps)
    return torch.cat([y[:-1], y[-2:-1]])


def of_another_dtype(x, weight, eps):
    return right(x, weight, eps).double()


def of_another_shape(x, weight, eps):
    return right(x, weight, eps).reshape(-1)


def transposed(x, weight, eps):
    return right(x, weight, eps).t()


def none(x, weight, eps):
    return None


def of_numpy(x, weight, eps):
    return numpy.zeros(x.shape, dtype=numpy.float32)


def two(x, weight, eps):
    y = right(x, weight, eps)
    return y, y


def nothing(x, weight, eps):
    return ()


def on_no_device(x, weight, eps):
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def writes_its_input(x, weight, eps):
    y = right(x.detach(), weight.detach(), eps)
    with torch.no_grad():
        x.add_(1)
    return y


def writes_outside(x, weight, eps):
    y = torch.empty(x.shape, dtype=x.dtype)
    y.copy_(right(x.detach(), weight.detach(), eps))
    y.as_strided((y.numel() + 1,), (1,))[-1] = 0
    return y


class Quiet(torch.Tensor):
    """A tensor that answers for itself."""


def of_a_subclass(x, weight, eps):
    return right(x.detach(), weight.detach(), eps).as_subclass(Quiet)
'''
RIGHT = ("right", "right_by_formula", "right_but_strided")
#: Wrong in every dtype, forward and backward.
WRONG = (
    "forgets_eps",
    "forgets_eps_and_hides_it",
    "scales_by_1005",
    "drops_the_last_column",
    "leaves_one_unwritten",
    "leaves_one_unwritten_after_zeros",
    "forgets_the_weight",
    "skips_the_last_row",
)
#: Refused before any number is looked at: name -> words of the reason.
REFUSED = {
    "of_another_dtype": "float64",
    "of_another_shape": "shape",
    "transposed": "shape",
    "none": "NoneType",
    "of_numpy": "ndarray",
    "two": "returned 2 tensors",
    "nothing": "returned 0 tensors",
    "on_no_device": "meta",
    "writes_its_input": "changed its inputs",
    "writes_outside": "wrote outside an allocation",
    "of_a_subclass": "Quiet",
}

BAD_ENDS = """
import ctypes
import os
import signal
import sys
import time

import torch


def right(x, weight, eps):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def raises(x, weight, eps):
    raise ValueError("no such\\nluck")


def cannot(x, weight, eps):
    raise NotImplementedError("only on Tuesdays")


def sleeps_forever(x, weight, eps):
    time.sleep(1e6)


def will_not_be_ended(x, weight, eps):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1e6)


def exits(x, weight, eps):
    os._exit(7)


def exits_in_python(x, weight, eps):
    sys.exit(5)


def segfaults(x, weight, eps):
    ctypes.string_at(0)


def forks_and_exits(x, weight, eps):
    if os.fork() == 0:
        time.sleep(600)  # holds every descriptor of its parent
    os._exit(3)


def prints_messages(x, weight, eps):
    line = '{"kind":"measured","revision":"r","round":0,"attempt":1,"outputs":[],"facts":{},"timing":{}}'
    print(line, flush=True)
    os.write(1, line.encode() + b"\\n")
    os.write(2, b"all cells passed\\n" * 10000)
    assert sys.stdin.read() == ""
    return right(x, weight, eps)


def writes_everywhere(x, weight, eps):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"all cells passed\\n")
        except OSError:
            pass
    return right(x, weight, eps)


def closes_everything(x, weight, eps):
    os.closerange(3, 64)
    time.sleep(1e6)


def takes_no_eps(x, weight):
    return right(x, weight, 1e-6)
"""
#: name -> (status, words of the reason)
ENDS = {
    "right": ("passed", ""),
    "raises": ("crashed", "ValueError: no such luck (in phase check)"),
    "cannot": ("unsupported", "only on Tuesdays"),
    "sleeps_forever": ("timed_out", "phase check took more than 6 s"),
    "will_not_be_ended": ("timed_out", "phase check took more than 6 s"),
    "exits": ("crashed", "exit code 7"),
    "exits_in_python": ("crashed", "exit code 5"),
    "segfaults": ("crashed", "SIGSEGV"),
    "forks_and_exits": ("crashed", "exit code 3"),
    "prints_messages": ("passed", ""),
    "writes_everywhere": ("crashed", "private pipe"),
    "closes_everything": ("crashed", "private pipe"),
    "takes_no_eps": ("crashed", "TypeError"),
}
AT_IMPORT = {
    "broken_at_import": ("raise RuntimeError('half installed')\n\ndef f(*a): pass\n", "crashed", "half installed"),
    "absent_at_import": ("import no_such_module\n\ndef f(*a): pass\n", "unsupported", "no_such_module"),
    "exits_at_import": ("import os\nos._exit(4)\n\ndef f(*a): pass\n", "crashed", "exit code 4"),
}


def matrix(operations: list[str], dtypes: tuple[str, ...]) -> str:
    """At least 5 rows: row i holds data of kind i mod 5, and eps shows in the tiny ones."""
    return json.dumps(
        {
            "name": "providers",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 8, "hidden": 300}], "dtype": list(dtypes), "operation": operations},
            "providers": ["torch", "huggingface"],
        }
    )


def run_of(folder: Path, text: str, names: dict[str, str], *arguments: str, **files: str) -> FarmRun:
    providers = [word for name, path in names.items() for word in ("--provider", f"{name}={path}")]
    run = FarmRun(folder, text, (*providers, *arguments), backend="cpu")
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content, encoding="utf-8")
    return run


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmRun]:
    names = {n: f"answers:{n}" for n in (*RIGHT, *WRONG, *REFUSED)}
    run = run_of(
        tmp_path_factory.mktemp("answers"), matrix(["forward", "backward"], DTYPES), names, answers=WRONG_ANSWERS
    )
    try:
        assert run.start().wait(150) == 1, run.said()  # findings, and no fault of the farm
        yield run
    finally:
        run.end()


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmRun]:
    names = {n: f"ends:{n}" for n in ENDS} | {n: f"{n}:f" for n in AT_IMPORT}
    run = run_of(
        tmp_path_factory.mktemp("ends"),
        matrix(["forward"], ("bfloat16",)),
        names,
        "--set",
        "deadlines.check=6",
        ends=BAD_ENDS,
        **{n: text for n, (text, _, _) in AT_IMPORT.items()},
    )
    try:
        assert run.start().wait(200) == 1, run.said()
        yield run
    finally:
        run.end()


def rows_of(run: FarmRun, provider: str, operation: str = "forward") -> dict[str, dict[str, Any]]:
    """Dtype -> row."""
    return {r["dtype"]: r for r in run.rows() if (r["provider"], r["operation"]) == (provider, operation)}


@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("provider", WRONG)
def test_a_wrong_answer_is_inaccurate_in_each_dtype(answers: FarmRun, provider: str, operation: str) -> None:
    rows = rows_of(answers, provider, operation)
    assert {d: r["status"] for d, r in rows.items()} == dict.fromkeys(DTYPES, "inaccurate"), rows
    assert all(r["fault_owner"] == "kernel" and r["reason"] for r in rows.values())
    assert all(r["worst_ratio"] is None or not r["worst_ratio"] <= 1 for r in rows.values())


@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("provider", [*RIGHT, "torch", "huggingface"])
def test_right_answers_pass_on_the_same_data(answers: FarmRun, provider: str, operation: str) -> None:
    rows = rows_of(answers, provider, operation)
    assert {d: (r["status"], r["reason"]) for d, r in rows.items()} == dict.fromkeys(DTYPES, ("passed", ""))
    assert all(r["worst_ratio"] <= 1 for r in rows.values())


@pytest.mark.parametrize("provider", REFUSED)
def test_what_is_no_answer_at_all_is_inaccurate_too(answers: FarmRun, provider: str) -> None:
    for row in rows_of(answers, provider).values():
        assert row["status"] == "inaccurate", row
        assert REFUSED[provider] in row["reason"]


def test_no_backward_is_passed_without_a_graph(answers: FarmRun) -> None:
    for provider in REFUSED:
        for row in rows_of(answers, provider, "backward").values():
            assert row["status"] != "infra_error", row
    for provider in ("writes_outside", "none", "of_numpy"):
        for row in rows_of(answers, provider, "backward").values():
            assert row["status"] in ("unsupported", "inaccurate", "crashed"), row


@pytest.mark.long
@pytest.mark.parametrize("provider", ENDS)
def test_a_bad_end_has_its_status_and_its_words(ends: FarmRun, provider: str) -> None:
    (row,) = rows_of(ends, provider).values()
    status, words = ENDS[provider]
    assert row["status"] == status, row
    assert words in row["reason"], row["reason"]
    assert "\n" not in row["reason"]
    assert row["attempt"] == 1  # the kernel's fault is never tried again
    if status in ("crashed", "timed_out"):
        assert row["fault_owner"] == "kernel"


@pytest.mark.long
@pytest.mark.parametrize("provider", AT_IMPORT)
def test_a_module_that_fails_on_its_way_in(ends: FarmRun, provider: str) -> None:
    (row,) = rows_of(ends, provider).values()
    _, status, words = AT_IMPORT[provider]
    assert row["status"] == status, row
    assert words in row["reason"], row["reason"]


@pytest.mark.long
def test_what_a_provider_printed_is_in_its_log_and_nowhere_else(ends: FarmRun) -> None:
    (row,) = rows_of(ends, "segfaults").values()
    log = (ends.run.dir / row["log"]).read_text(encoding="utf-8")
    assert "Segmentation fault" in log
    assert "string_at" in log  # where in the provider
    assert "\nall cells passed" not in ends.said()


@pytest.mark.parametrize("which", ["answers", pytest.param("ends", marks=pytest.mark.long)])
def test_the_others_finish_and_all_is_accounted_for(which: str, request: pytest.FixtureRequest) -> None:
    run: FarmRun = request.getfixturevalue(which)
    rows = run.rows()
    head = run.run.head
    assert len(rows) == head["planned"] == sum(head["counts"].values())
    assert head["counts"] == dict(Counter(r["status"] for r in rows))
    assert (head["verdict"], head["exit_code"]) == ("findings", 1)
    assert not {"infra_error", "lost"} & set(head["counts"])
    for peer in ("torch", "huggingface"):
        assert {r["status"] for r in rows_of(run, peer).values()} == {"passed"}
    run.assert_nothing_left()  # the forked sleeper is gone too
    assert not run.spool.exists()
