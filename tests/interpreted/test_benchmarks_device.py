"""The measuring process of the kernel benchmarks on a CPU with a fake timer: roofs, checks, what each fault costs."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch

from benchmarks import cases, child, kernels, processes
from benchmarks.cases import Case
from benchmarks.check import Reference, sample_rows
from benchmarks.roof import COPIES, bucket, envelope
from benchmarks.work import Work
from farm.child.timing import Bench, TimingResult
from farm.contracts.discovery import known_ops
from farm.errors import CaptureFailed
from farm.providers import farm
from farm.providers import torch as peer

OPS = [op for op in cases.OPS if op in known_ops()]


def timer(bench: Bench) -> TimingResult:
    """Ten microseconds, whatever it is, and the outputs of one launch."""
    outputs = bench.make().run(bench.function)
    return TimingResult("rotating_graph", [10.0, 10.1, 9.9] * 7, [50.0], outputs, sets=3, launches=6, floor_us=1.0)


def process(items: list[dict[str, Any]], *, timer: Any = timer, warm: bool = False, seconds: float = 300.0):
    """(a process of these items, the list that its events go to)."""
    events: list[Any] = []
    device = child.Device(torch.device("cpu"), "a cpu", 4, 1 << 20, None, timer)
    plan = {"items": items, "until": time.time() + seconds, "policy": {}, "warm": warm}
    return child.Process(plan, events.append, device), events


def case(operation: str = "forward", rows: int = 6, hidden: int = 40, dtype: str = "bfloat16", op: str = "rms_norm"):
    return Case(op, operation, dtype, rows, hidden)


def right(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    wide = x.double()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype)


# -- the roof


def test_the_roof_is_the_best_configuration_over_the_same_bytes():
    seen = []

    def measure(function, size, nbytes):
        seen.append((size, nbytes))
        return 5.0 if len(seen) == 3 else 10.0

    found = envelope(1 << 20, measure, 132)
    assert set(seen) == {(1 << 17, 1 << 20)} and len(seen) == len(COPIES)
    assert (found.best, found.us) == (COPIES[2].name, 5.0)
    assert found.gbps == pytest.approx((1 << 20) / 5e3)
    with pytest.raises(ValueError, match="took 0"):
        envelope(1 << 20, lambda *a: 0.0, 132)


def test_a_copy_that_does_not_copy_is_no_roof():
    here, events = process([cases.item(case(), ["torch"], roof=True)])
    with pytest.raises(ValueError, match="copies wrongly"):
        here.copy_us(lambda source: torch.zeros_like(source), 64, 512)
    here.copy_us = lambda *a: 0.0
    here.run()
    assert processes.results(events)["rms_norm/forward/bf16/6x40", "roof"]["status"] == "crashed"
    assert processes.results(events)["rms_norm/forward/bf16/6x40", "torch"]["status"] == "ok"


# -- the check


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operation", ["forward", "no-grad-forward", "backward"])
@pytest.mark.parametrize("op", [op for op in OPS if op in farm.OPS and op in peer.OPS])
def test_torch_and_ours_are_right(op, operation, dtype):
    here, events = process([cases.item(case(operation, 9, 130, dtype, op), ["farm", "torch"], check=True)])
    here.run()
    found = {subject: e for (_, subject), e in processes.results(events).items()}
    assert {s: (e["status"], e.get("reason")) for s, e in found.items()} == {
        "farm": ("ok", None),
        "torch": ("ok", None),
    }
    assert found["farm"]["launches_of_ours"] and not found["torch"]["launches_of_ours"]


FAULTS = {
    "scaled": lambda x, w, eps=1e-6: right(x, w) * 1.005,
    "no eps": lambda x, w, eps=1e-6: right(x, w, 0.0),
    "last column": lambda x, w, eps=1e-6: torch.cat([right(x, w)[:, :-1], x[:, :1] * 0], 1),
    "NaN beyond the sample": lambda x, w, eps=1e-6: _spoiled(right(x, w)),
    "dtype": lambda x, w, eps=1e-6: right(x, w).float(),
    "shape": lambda x, w, eps=1e-6: right(x, w)[:-1],
    "two outputs": lambda x, w, eps=1e-6: (right(x, w), x),
}


def _spoiled(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[1, 3] = float("nan")
    return y


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_forward_has_no_time(fault):
    assert 1 not in sample_rows(300, 1100)
    here, events = process([cases.item(case(rows=300, hidden=1100), ["torch"], check=True)])
    here.functions["torch", "rms_norm"] = FAULTS[fault]
    here.run()
    (found,) = processes.results(events).values()
    assert found["status"] == "wrong" and "us" not in found, found


class Backward(torch.autograd.Function):
    fault = ""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return right(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = right(x.double(), weight.double())
        upstream = dy.double()
        if Backward.fault == "dw misses a row":
            upstream = torch.cat([upstream[:-1], upstream[-1:] * 0])
        dx, dw = torch.autograd.grad(y, (x, weight), dy.double(), retain_graph=True)
        if Backward.fault:
            (dw,) = torch.autograd.grad(y, (weight,), upstream)
        if Backward.fault == "dx scaled":
            dx = dx * 1.01
        if Backward.fault == "dw scaled":
            dw = dw * 1.01
        return dx.to(x.dtype), dw.to(weight.dtype)


@pytest.mark.parametrize(
    "fault, named", [("", ""), ("dx scaled", "dx"), ("dw scaled", "dw"), ("dw misses a row", "dw")]
)
def test_a_wrong_gradient_has_no_time(fault, named, monkeypatch):
    monkeypatch.setattr(Backward, "fault", fault)
    here, events = process([cases.item(case("backward", 64, 200, "float32"), ["torch"], check=True)])
    here.functions["torch", "rms_norm"] = lambda x, w, eps=1e-6: Backward.apply(x, w)
    here.run()
    (found,) = processes.results(events).values()
    assert found["status"] == ("wrong" if fault else "ok"), found
    assert not fault or found["reason"].startswith(f"{named}:"), found


@pytest.mark.parametrize("op", OPS)
def test_the_weight_gradient_is_the_contracts_over_all_rows(op, monkeypatch):
    """The reference that is made on the device, in blocks, against the contract's own over every row."""
    monkeypatch.setattr("benchmarks.check.BLOCK_ELEMENTS", 50 * 7)
    monkeypatch.setattr("benchmarks.check.LEAST_ROWS", 33)
    here = case("backward", 33, 50, "float32", op)
    for subject in ("farm", "torch_compile"):
        work = Work(here, torch.device("cpu"), True)
        found = Reference(here, work.tensors, here.cell(subject))
        value, scale = found.reductions["dw"]
        assert found.rows == list(range(33))
        torch.testing.assert_close(torch.from_numpy(value[0]), torch.from_numpy(found.sampled["dw"]).reshape(-1))
        torch.testing.assert_close(torch.from_numpy(scale[0]), torch.from_numpy(found.sampled["dw.scale2"]).reshape(-1))


def test_a_wrong_timed_launch_has_no_time():
    def late(bench):
        result = timer(bench)
        result.timed_outputs = tuple(o * 1.01 for o in result.timed_outputs)
        return result

    here, events = process([cases.item(case(hidden=200), ["torch"], check=True)], timer=late)
    here.run()
    (found,) = processes.results(events).values()
    assert found["status"] == "wrong" and found["reason"].startswith("in a timed launch: y:")


# -- what each end of a subject leaves behind


def test_a_run_gives_roof_numbers_and_choice():
    item = cases.item(case("backward"), ["farm", "farm:multi_wave_reload", "torch"], roof=True, check=True)
    here, events = process([item, {**item, "case": case("backward", 12, 20).to_dict()}])
    here.run()
    kinds = [e["event"] for e in events]
    assert kinds[0] == "host" and kinds[-1] == "end" and events[-1]["why"] == "done"
    assert kinds.count("roof") == 1  # both cases move the same rounded number of bytes
    (roof,) = [e for e in events if e["event"] == "roof"]
    assert roof["nbytes"] == bucket(case("backward").bytes_moved) and set(roof["all_gbps"]) == {c.name for c in COPIES}
    ours = processes.results(events)[case("backward").id, "farm"]
    assert ours["us"] == 10.0 and ours["gbps"] == pytest.approx(case("backward").bytes_moved / 1e4, abs=0.01)
    assert len(ours["samples_us"]) == 21 and ours["quality"] == "ok" and ours["seconds"] > 0
    assert {r["direction"] for r in ours["launches_of_ours"]} == {"forward", "backward"}
    mode = processes.results(events)[case("backward").id, "farm:multi_wave_reload"]
    assert "multi_wave_reload" in {r["mode"] for r in mode["launches_of_ours"] if r["direction"] == "backward"}


def test_who_is_absent_or_refuses_is_unsupported_with_the_reason():
    here, events = process([cases.item(case(), ["nobody", "liger", "torch"], check=True)])
    here.functions["liger", "rms_norm"] = lambda x, w, eps=1e-6: (_ for _ in ()).throw(NotImplementedError("too wide"))
    here.run()
    found = {s: (e["status"], e.get("reason", "")) for (_, s), e in processes.results(events).items()}
    assert found["nobody"][0] == "unsupported" and "nobody" in found["nobody"][1]
    assert found["liger"] == ("unsupported", "too wide")
    assert found["torch"][0] == "ok"


@pytest.mark.parametrize(
    "error, status", [(RuntimeError("boom"), "crashed"), (torch.OutOfMemoryError("full"), "out_of_memory")]
)
def test_an_exception_costs_one_subject(error, status):
    def fails(x, w, eps=1e-6):
        raise error

    here, events = process([cases.item(case(), ["liger", "torch"], check=True)])
    here.functions["liger", "rms_norm"] = fails
    here.run()
    assert [e["status"] for e in processes.results(events).values()] == [status, "ok"]


def test_a_failed_capture_ends_the_process_behind_its_result():
    def poisoned(bench):
        raise CaptureFailed("it synchronises")

    here, events = process([cases.item(case(), ["torch", "farm"], check=True)], timer=poisoned)
    with pytest.raises(child.ContextSpent):
        here.run()
    assert [e["status"] for e in processes.results(events).values()] == ["capture_failed"]
    assert processes.unfinished(events) is None


def test_an_impossible_speed_is_not_shown():
    here, events = process([cases.item(case(), ["torch"])])
    here.device.peak_gbps = 1e-6
    here.run()
    (found,) = processes.results(events).values()
    assert found["quality"] == "impossible" and found["gbps"] is None


def test_out_of_time_leaves_the_rest_unreached():
    items = [cases.item(case(), ["torch"])]
    here, events = process(items, seconds=0.1)
    here.run()
    assert (events[-1]["event"], events[-1]["why"]) == ("end", "deadline")
    assert processes.not_reached(items, events) == [(case().id, "torch")]


def test_warming_calls_and_times_nothing():
    def never(bench):
        raise AssertionError("timed")

    here, events = process([cases.item(case("backward"), ["torch"])], timer=never, warm=True)
    here.run()
    (found,) = processes.results(events).values()
    assert found["status"] == "ok" and "us" not in found


def test_no_call_sees_what_another_did():
    """A subject that overwrites its inputs is wrong, and spoils nobody else's."""

    def clobbers(x, w, eps=1e-6):
        y = right(x, w)
        x.detach().zero_()
        return y

    here, events = process([cases.item(case(), ["liger", "torch"], check=True)])
    here.functions["liger", "rms_norm"] = clobbers
    here.run()
    first, second = processes.results(events).values()
    assert (first["status"], first["reason"]) == ("wrong", "it changed its inputs: x")
    assert second["status"] == "ok"


def test_from_a_plan_file_to_the_table(tmp_path, monkeypatch):
    """The child's own main, its files, and what the parent makes of them."""
    device = child.Device(torch.device("cpu"), "a cpu", 4, 1 << 20, None, timer)
    monkeypatch.setattr(child, "open_device", lambda: device)
    monkeypatch.setattr(child, "tune_alone", lambda: None)
    argv = ["--ops", "rms_norm", "--shapes", "6x40", "5x130", "--dtypes", "bf16", "fp32", "--peers", "torch"]
    names = ["farm", "torch"]
    groups = kernels.plan_groups(kernels.parse(argv), names)
    for n, group in enumerate(groups):
        plan = {"items": group["items"], "until": time.time() + 300, "policy": kernels.policy(0.3)}
        (tmp_path / f"plan{n}").write_text(json.dumps(plan))
        assert child.main([str(tmp_path / f"plan{n}"), str(tmp_path / f"events{n}")]) == 0
        group["events"] = processes.read(tmp_path / f"events{n}")
    found = kernels.report(groups, names)
    assert kernels.exit_code(found, gate=False) == 0
    for group in found["groups"]:
        assert group["not_reached"] == [] and group["summary"]["compared"] == 4
        assert all(r["roof_gbps"] and r["ratio"] == 1.0 and r["choice"]["farm"] for r in group["rows"])
    text, mark = kernels.written(found)
    assert text.count("6x40 ") == mark.count("6x40 ") == 4 and "rms_norm backward" in text


def test_without_a_device_the_child_says_so(tmp_path, monkeypatch):
    def none():
        raise RuntimeError("torch sees no GPU")

    monkeypatch.setattr(child, "open_device", none)
    (tmp_path / "plan").write_text('{"items": []}')
    assert child.main([str(tmp_path / "plan"), str(tmp_path / "events")]) == 0
    assert processes.read(tmp_path / "events") == [{"event": "end", "why": "no device", "reason": "torch sees no GPU"}]
