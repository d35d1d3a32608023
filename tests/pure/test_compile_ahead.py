"""Compiling ahead, without a compiler: what is told to whom, on how many cores, and that nothing of it costs a cell."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import compile_ahead as benchmark
from farm.actor import compile_ahead, waiting
from farm.actor.compile_ahead import CompileAhead
from farm.child.compilations import Compilations
from farm.compile.planning import ahead_target
from farm.coordinator.compile_ahead import MOST_WAITING, CellsAhead
from farm.matrix import plan
from farm.matrix.load import load_files
from farm.node.environment import Environment
from farm.process.line_process import ChildLied, LineProcess
from farm.report import built, pair_rows

GPU = {"backend": "cuda", "evidence": "executed", "fingerprint": {"sm": "sm_90", "multiprocessors": 132}}
ANSWER = {"cell": 3, "hashes": ["a", "b"], "compiled": 2, "loaded": 0, "seconds": 0.5, "reason": ""}


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 2))
def test_cores_that_children_judges_and_the_coordinator_need_are_left(cores: int, devices: int, arms: int) -> None:
    found = compile_ahead.workers(cores, devices, arms)
    assert 0 <= found <= compile_ahead.MOST_WORKERS
    assert found == 0 or found * devices * arms <= cores - devices - 2
    assert compile_ahead.workers(16, 1) == 8 and compile_ahead.workers(16, 4) == 2 and compile_ahead.workers(2, 1) == 0


@pytest.mark.parametrize(
    ("backend", "fingerprint", "arch"),
    [
        ("cuda", {"sm": "sm_90", "multiprocessors": 114}, 90),
        ("cuda", {"sm": "sm_120", "multiprocessors": 188}, 120),  # a part that the farm does not know
        ("rocm", {"arch": "gfx942:sramecc+:xnack-", "compute_units": 304, "warp_size": 64}, "gfx942"),
        ("cuda", {}, None),
        ("cuda", {"sm": "sm_90", "multiprocessors": True}, None),
        ("cuda", {"sm": "sm_x", "multiprocessors": 1}, None),
        ("rocm", {"arch": "gfx942", "compute_units": "many"}, None),
        ("cpu", {"sm": "sm_90", "multiprocessors": 1}, None),
    ],
)
def test_the_target_is_what_the_device_told_of_itself(backend: str, fingerprint: Any, arch: Any) -> None:
    found = ahead_target(backend, fingerprint)
    assert (found and found["arch"]) == arch
    assert found is None or found["cores"] in fingerprint.values()


def cells(tmp_path: Path, providers: str = "{farm: {}, torch: {}, liger: {}}") -> Any:
    text = f"""
name: m
op: rms_norm
axes:
  shape: [{{rows: [4, 8, 16, 32, 64], hidden: [64, 100, 128, 256, 512, 1000]}}]
  dtype: [float32, bfloat16]
  operation: forward
providers: {providers}
"""
    (tmp_path / "m.yaml").write_text(text)
    return plan(load_files([tmp_path / "m.yaml"]), ["cuda"]).cells


def indexes(order: Any) -> list[int]:
    return [job["cell"] for jobs in order["cells"].values() for job in jobs] if order else []


def test_each_host_is_told_of_each_cell_once_that_of_the_lease_first(tmp_path: Path) -> None:
    every = cells(tmp_path)
    triton = [c.index for c in every if c.provider in ("farm", "liger")]
    ahead = CellsAhead(every, lambda cell: {})
    lease = triton[70:80]
    first = indexes(ahead.order("h", GPU, lease, done={triton[0]}))
    assert first[: len(lease)] == lease and triton[0] not in first
    assert len(first) <= len(lease) + MOST_WAITING
    told = list(first)
    while more := indexes(ahead.order("h", GPU, [], done={triton[0]})):
        told += more
    assert sorted(told) == sorted(set(triton) - {triton[0]}) and len(told) == len(set(told))
    assert indexes(ahead.order("another host", GPU, lease, done=()))[: len(lease)] == lease


def test_arms_are_apart_and_nothing_is_told_where_nothing_can_be_built(tmp_path: Path) -> None:
    every = [replace(c, arm="ab"[c.index % 2]) for c in cells(tmp_path, "[farm]")]
    found = CellsAhead(every, lambda cell: {}).order("h", GPU, [0, 1], done=())
    assert found and {arm: {j["cell"] % 2 for j in jobs} for arm, jobs in found["cells"].items()} == {
        "a": {0},
        "b": {1},
    }
    assert found["target"]["arch"] == 90
    for other in ({"evidence": "simulated"}, {"backend": "cpu"}, {"fingerprint": {}}):
        assert CellsAhead(every, lambda cell: {}).order("h", {**GPU, **other}, [0], done=()) is None
    own = CellsAhead(cells(tmp_path, "[torch]"), lambda cell: {"torch": {"path": "m:f"}})  # a user's, of that name
    assert own.order("h", GPU, [0], done=())
    assert CellsAhead(cells(tmp_path, "[torch]"), lambda cell: {}).order("h", GPU, [0], done=()) is None


class FakeCompiler:
    """A process that takes `room` bytes at once and answers what it is given."""

    def __init__(self, room: int = 1 << 20):
        self.stdin, self.room, self.got = self, room, b""
        self.lines: list[bytes] = []
        self.signals: list[int] = []
        self.alive, self.at_end, self.ended, self.lies = True, False, 0, False

    def write(self, data: bytes) -> int | None:
        sent, self.room = data[: self.room], max(0, self.room - len(data))
        self.got += sent
        return len(sent) or None

    def waiting(self) -> list[bytes]:
        if self.lies:
            raise ChildLied("sent a line without end")
        out, self.lines = self.lines, []
        return out

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self, grace: float) -> None:
        self.ended += 1


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> tuple[CompileAhead, FakeCompiler]:
    monkeypatch.setattr(LineProcess, "close", lambda child: None)
    child = FakeCompiler()
    ahead = CompileAhead(lambda arm: child)  # type: ignore[arg-type, return-value]
    ahead.begin([""])
    return ahead, child


def test_orders_wait_for_room_and_nobody_waits_for_them(one: tuple[CompileAhead, FakeCompiler]) -> None:
    ahead, child = one
    child.room = 10
    ahead.order({"target": {"arch": 90}, "cells": {"": [{"cell": 3}], "of an arm without": []}})
    assert len(child.got) == 10
    child.room = 1 << 20
    ahead.look()
    assert [json.loads(line) for line in child.got.splitlines()] == [{"target": {"arch": 90}}, {"cells": [{"cell": 3}]}]
    child.lines = [json.dumps(ANSWER).encode()]
    assert ahead.count("", ["a", "z"]) == 1 and ahead.count("other", ["a"]) == 0


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b'{"begun": "x"}',
        b'{"begun": 1, "cell": 1}',
        b"[]",
        b"7",
        json.dumps({**ANSWER, "hashes": ["x" * 65]}).encode(),
        json.dumps({**ANSWER, "cell": -1}).encode(),
        json.dumps({**ANSWER, "more": 1}).encode(),
        json.dumps({**ANSWER, "seconds": float("nan")}).encode(),
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_one_that_lies_is_ended_and_the_run_goes_on(one: tuple[CompileAhead, FakeCompiler], line: bytes) -> None:
    ahead, child = one
    child.lines = [json.dumps(ANSWER).encode(), line]
    assert ahead.count("", ["a", "b"]) == 2 and child.ended == 1
    ahead.order({"target": {}, "cells": {"": [{}]}})
    ahead.stop()
    ahead.close()
    assert child.ended == 1 and not child.signals


@pytest.mark.parametrize("how", ["dead", "at end", "lies", "broken pipe"])
def test_one_that_dies_is_missed_by_nobody(one: tuple[CompileAhead, FakeCompiler], how: str) -> None:
    ahead, child = one
    child.alive, child.at_end, child.lies = how != "dead", how == "at end", how == "lies"
    if how == "broken pipe":
        child.write = lambda data: (_ for _ in ()).throw(BrokenPipeError())  # type: ignore[method-assign]
    ahead.order({"target": {}, "cells": {"": [{}]}})
    assert child.ended == 1 and not ahead._running


def test_a_child_waits_for_what_was_begun_and_once_in_vain(
    one: tuple[CompileAhead, FakeCompiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, child = one
    monkeypatch.setattr(compile_ahead, "WAIT_SECONDS", 0.02)
    ahead.wait("", 3)  # nobody has begun with it
    ahead.wait("an arm without", 3)
    child.lines = [b'{"begun": 3}', json.dumps(ANSWER).encode(), b'{"begun": 4}']
    ahead.wait("", 3)
    assert not ahead._late
    ahead.wait("", 4, lambda: True)  # the actor is being stopped
    assert not ahead._late
    ahead.wait("", 4)
    assert ahead._late == {""} and not child.ended
    monkeypatch.setattr(compile_ahead, "WAIT_SECONDS", 1e9)
    ahead.wait("", 4)


def test_it_stands_still_while_a_cell_is_timed(one: tuple[CompileAhead, FakeCompiler]) -> None:
    ahead, child = one
    ahead.go_on()
    ahead.stop()
    ahead.stop()
    ahead.go_on()
    assert child.signals == [signal.SIGSTOP, signal.SIGCONT]

    def fails(arm: str) -> Any:
        raise OSError("no process can be started")

    none = CompileAhead(fails)
    none.begin([""])
    none.order({"target": {}, "cells": {"": [{}]}})
    none.stop()
    assert none.count("", ["a"]) == 0


def test_it_sees_no_device_and_locks_nothing_that_a_child_may_wait_for() -> None:
    found = compile_ahead.variables("/spool", "b")
    assert (found["CUDA_VISIBLE_DEVICES"], found["HIP_VISIBLE_DEVICES"]) == ("", "-1")
    assert found["TRITON_CACHE_AUTOTUNING"] is None and "TRITON_CACHE_DIR" not in found
    assert str(found["TORCH_EXTENSIONS_DIR"]).startswith("/spool/ahead-b/")


def test_a_first_call_that_found_kernels_is_no_first_call_of_an_arm() -> None:
    row = {"cell_id": "c@a", "status": "passed", "compile_s": 0.1, "launch": "{}", "op": "rms_norm", "mode": "auto"}
    told = {"built": {"compiled": 1, "loaded": 2, "ahead": 2}}
    found = pair_rows.pair_row(row, {**row, "launch": json.dumps(told)}, [], None, control=False)
    assert (found["compile_s_a"], found["compile_s_b"]) == (0.1, None)
    assert pair_rows.built_before({"launch": '{"built": {"compiled": 3, "loaded": 0, "ahead": 0}}'}) == 0


def test_compilations_are_counted_beside_another_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    heard: list[Any] = []
    compilation = triton.knobs.compilation
    monkeypatch.setattr(compilation, "listener", lambda **told: heard.append(told), raising=False)
    with Compilations() as counted:
        for hit in (True, False, True):
            compilation.listener(cache_hit=hit, metadata={"hash": f"h{hit}"})
        compilation.listener(nonsense=1)
    compilation.listener(cache_hit=True, metadata={"hash": "later"})
    assert counted.known and (counted.compiled, counted.loaded) == (1, 2)
    assert (counted.new, counted.old) == (["hFalse"], ["hTrue", "hTrue"]) and len(heard) == 5


def test_of_the_children_that_wait_the_devices_own_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits:
        alive, ended = True, False

        def __init__(self, *given: Any, **more: Any):
            self.orders: list[Any] = []

        def begin(self, order: Any) -> None:
            self.orders.append(order)

        def kill(self, grace: float) -> None:
            self.ended = True

    monkeypatch.setattr(waiting, "Child", Waits)
    monkeypatch.setattr(LineProcess, "close", lambda child: None)
    env, own = {"PYTHONPATH": "/home/x", "CUDA_VISIBLE_DEVICES": "3", "X": "1"}, Environment.default()
    hidden = compile_ahead.variables("/spool", "")
    children = waiting.WaitingChildren(once=True)
    children.expect("cuda", env, own, 2)
    compiler: Any = children.take("cuda", env, own, "/spool", {"argv": []}, hidden)
    child: Any = children.take("cuda", env, own, "/spool", {"argv": []})
    assert compiler.orders[0]["variables"] == hidden and child.orders[0]["variables"]["CUDA_VISIBLE_DEVICES"] == "3"
    children.expect("cuda", env, own)
    assert children.take("cuda", env, own, "/spool", {"argv": []}, hidden) is None  # it would leave the device none
    last: Any = children.take("cuda", env, own, "/spool", {"argv": []})
    assert last is not None and not last.ended
    children.fill()  # as many of both as were asked for
    assert len(children._idle) == 4


def test_the_benchmark_counts_what_children_compiled() -> None:
    rows = [
        {
            "launch": json.dumps({"built": {"compiled": c, "loaded": 2, "ahead": 1}}),
            "compile_s": 0.5,
            "status": "passed",
        }
        for c in (0, 3)
    ]
    rows.append({"launch": "", "compile_s": None, "status": "crashed"})
    found = benchmark.summed([{**row, "shape": "4x64", "dtype": "bf16"} for row in rows])
    counts = {"compiled": 3, "loaded": 4, "ahead": 2, "first_calls_s": 1.0, "passed": 2, "cells": 3, "counted": 2}
    assert found == {**counts, "compiled_in": ["4x64 bf16: 3"]}
    assert str(built.built(rows)) == "first calls compiled 3 and loaded 4 kernels, 2 of them compiled ahead"
