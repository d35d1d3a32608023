"""Where a capture may end the process (rocm), each call is captured in a child of its own first: real children of fakes
that play an MI300X, and of one that plays a GB200, which has no trials."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_device import OneDevice

from farm.actor import child_process
from farm.actor.capture import trial
from farm.actor.capture.fallback import MAX_UNREACHED
from farm.backends import cuda, rocm
from farm.child import protocol
from farm.contracts.call import call_for
from farm.contracts.discovery import contract
from farm.matrix import load_files
from farm.matrix import plan as make_plan
from farm.node.environment import Environment

pytestmark = pytest.mark.long  # 13 s of a core, and more of waiting

NODES = {
    "rocm": {"backend": "rocm", "simulate": {"model": "AMD Instinct MI300X", "devices": 1}},
    "cuda": {"backend": "cuda", "simulate": {"model": "NVIDIA GB200", "devices": 1}},
}
TRIAL, RUN = protocol.Trial.kind, protocol.Run.kind
Script = Mapping[str, Any]


class Traced(OneDevice):
    """A device whose children are seen: what each was ordered, and how it ended."""

    def __init__(self, folder: Path, backend: str, patch: pytest.MonkeyPatch, **config: Any):
        (folder / "node.yaml").write_text(json.dumps(NODES[backend]), encoding="utf-8")
        patch.setenv("FARM_NODE", str(folder / "node.yaml"))
        self.orders: list[tuple[child_process.Child, str, dict[str, Any]]] = []
        send = child_process.Child.send

        def traced(child: child_process.Child, message: protocol.Message) -> None:
            self.orders.append((child, message.kind, getattr(message, "cell", {})))
            send(child, message)

        patch.setattr(child_process.Child, "send", traced)
        super().__init__(folder, backend, **config)
        self.leases = 0

    def submit(
        self,
        script: Callable[[dict[str, Any]], Script] | Script,
        *,
        providers: tuple[str, ...] = ("torch",),
        hidden: tuple[int, ...] = (64,),
        operations: tuple[str, ...] = ("forward",),
        arms: tuple[str, ...] = ("",),
        **deadlines: float,
    ) -> list[dict[str, Any]]:
        """Queue one lease of the product, arm by arm; its cells."""
        file = self.folder / "lease.yaml"
        file.write_text(
            json.dumps(
                {
                    "name": "lease",
                    "op": "rms_norm",
                    "providers": list(providers),
                    "timing": {"method": "rotating_graph"},
                    "axes": {
                        "shape": [{"rows": 2, "hidden": list(hidden)}],
                        "dtype": "float32",
                        "operation": list(operations),
                    },
                }
            )
        )
        found = make_plan(load_files([file]), [self.backend]).cells
        planned = [replace(c, arm=arm) for arm in arms for c in found]
        cells, attempts = [{**c.to_dict(), "index": i} for i, c in enumerate(planned)], []
        for made, cell in zip(planned, cells):
            call = call_for(made, contract("rms_norm"), {"name": cell["provider"]})
            call["sim"] = {"time_us": 10, **(script(cell) if callable(script) else script)}
            attempts.append(
                {
                    "cell": cell,
                    "number": 1,
                    "round": 0,
                    "last": False,
                    "call": call,
                    "tolerances": [],
                    "deadlines": deadlines,
                }
            )
        self.leases += 1
        self.actor.submit({"id": self.leases, "attempts": attempts})
        return cells

    def lease(self, script: Callable[[dict[str, Any]], Script] | Script, **how: Any) -> list[dict[str, Any]]:
        """One lease, as `submit` has it; a line for each cell, in its order: what became of it, with `method`, `flags`
        and `cell`."""
        seen = len(self.events)
        cells = self.submit(script, **how)
        assert self.wait("lease_done", "device_down")["event"] == "lease_done"
        of = lambda kind: [e for e in self.events[seen:] if e["event"] == kind]  # noqa: E731
        while len(of("judged")) < len(of("measured")):
            self.wait("judged")
        assert len(of("measured")) + len(of("ended")) == len(of("started")) == len(cells)  # each cell ends, and once
        out = []
        for cell in cells:
            (end,) = [e for e in (*of("judged"), *of("ended")) if e["cell"] == cell["index"]]
            measured = [e for e in of("measured") if e["cell"] == cell["index"]]
            said = measured[0] if measured else {"timing": {"method": ""}, "facts": {"flags": []}}
            out.append(
                {
                    **end,
                    "method": said["timing"]["method"],
                    "flags": said["facts"]["flags"],
                    "facts": said["facts"],
                    "cell": cell,
                }
            )
        return out

    def of(self, kind: str) -> list[tuple[child_process.Child, str]]:
        """(child, provider/operation) of each order of a kind."""
        return [(child, f"{cell['provider']}/{cell['operation']}") for child, k, cell in self.orders if k == kind]

    def none_died_measuring(self) -> None:
        """No child that was given a cell has ended by a signal or by itself, and the device was blamed for nothing."""
        for child, _ in self.of(RUN):
            assert child.code in (None, 0), child.code
        assert not [e for e in self.events if e["event"] == "device_down"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that hang are given up early; the cells' own phases keep deadlines that a busy host keeps as well."""
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 2.0)


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    one = Traced(tmp_path, "rocm", monkeypatch)
    assert one.up()["event"] == "device_up"
    yield one
    one.stop()


def torchs(**script: Any) -> Callable[[dict[str, Any]], Script]:
    """The script of torch's cells alone; the others behave."""
    return lambda cell: script if cell["provider"] == "torch" else {}


def test_what_a_capture_kills_is_its_trial_and_no_cell(amd: Traced) -> None:
    rows = amd.lease(torchs(fault="capture"), providers=("torch", "farm"), hidden=(64, 128))
    for row in rows:
        mine = row["cell"]["provider"] == "torch"
        assert row["status"] == "passed", row
        assert row["method"] == ("events" if mine else "rotating_graph")
        why = "capture ended the trial process (signal 11 (SIGSEGV))"
        assert row["flags"] == ([f"timed by events: {why}"] if mine else [])
    tried = amd.of(TRIAL)
    assert sorted(what for _, what in tried) == ["farm/forward", "torch/forward"]  # each call once, not each cell
    (died,) = [child for child, what in tried if what == "torch/forward"]
    assert died.code == -11
    assert died not in [child for child, _ in amd.of(RUN)]
    amd.none_died_measuring()
    again = amd.lease(torchs(fault="capture"), providers=("torch", "farm"), hidden=(256,))
    assert [(r["method"], r["status"]) for r in again if r["cell"]["provider"] == "torch"] == [("events", "passed")]
    assert len(amd.of(TRIAL)) == 2  # known for as long as the actor lives
    amd.none_died_measuring()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("capture_hang", "capture did not end within 2 s in the trial"),
        (
            "capture_refused",
            "capture failed in the trial (AcceleratorError: HIP error: operation not permitted when "
            "stream is capturing)",
        ),
        ("capture_differs", "capture's replays gave different outputs than the call (in the trial)"),
    ],
)
def test_a_trial_that_hangs_is_refused_or_gives_other_outputs_leaves_its_call_to_events(
    amd: Traced, soon: None, fault: str, why: str
) -> None:
    rows = amd.lease(torchs(fault=fault), providers=("torch", "farm"), hidden=(64, 128))
    told = {(r["cell"]["provider"], r["status"], r["method"], *r["flags"]) for r in rows}
    assert told == {("torch", "passed", "events", f"timed by events: {why}"), ("farm", "passed", "rotating_graph")}
    assert len(amd.of(TRIAL)) == 2
    amd.none_died_measuring()


def test_a_child_that_comes_through_its_trials_serves_and_one_that_has_served_tries_nothing(amd: Traced) -> None:
    first = amd.actor.child_pid()
    rows = amd.lease({"compile_s": 3.5}, hidden=(64, 128))
    assert [(r["status"], r["method"], r["flags"]) for r in rows] == [("passed", "rotating_graph", [])] * 2
    assert [r["facts"].get("compile_s") for r in rows] == [3.5, None]  # the first of them was compiled in the trial
    assert amd.actor.child_pid() == first  # as in a run without trials
    amd.lease({}, hidden=(256,))
    assert (amd.actor.child_pid(), len(amd.of(TRIAL))) == (first, 1)
    amd.lease({}, operations=("backward",))
    assert [what for _, what in amd.of(TRIAL)] == ["torch/forward", "torch/backward"]
    second = amd.of(TRIAL)[1][0]
    assert second.pid == amd.actor.child_pid() != first
    amd.none_died_measuring()


def test_what_dies_after_other_trials_in_one_child_is_tried_again_in_a_fresh_one(amd: Traced) -> None:
    rows = amd.lease(torchs(fault="capture", after_trials=True), providers=("farm", "torch"))
    assert [(r["status"], r["method"], r["flags"]) for r in rows] == [("passed", "rotating_graph", [])] * 2
    (farms, _), (first, _), (second, _) = amd.of(TRIAL)
    assert farms is first and first.code == -11  # it had come through farm's, and may have been spoilt
    assert second is not first and second.pid == amd.actor.child_pid()
    rows = amd.lease({"fault": "capture"}, providers=("farm", "torch"), operations=("backward",))
    assert [r["method"] for r in rows] == ["events"] * 2
    assert len(amd.of(TRIAL)) == 3 + 2  # each the first of its child, so once
    amd.none_died_measuring()


def test_a_trial_that_does_not_come_as_far_as_the_capture_says_nothing_of_it(amd: Traced) -> None:
    broken = lambda cell: {"fault": "illegal_access"} if cell["dims"]["hidden"] == 64 else {}  # noqa: E731
    bad, good = amd.lease(broken, hidden=(64, 128))
    assert (bad["status"], bad["owner"]) == ("crashed", "kernel")  # the cell's own end, by its own attempt
    assert (good["status"], good["method"], good["flags"]) == ("passed", "rotating_graph", [])
    assert len(amd.of(TRIAL)) == 2
    amd.lease({}, hidden=(256,))
    assert len(amd.of(TRIAL)) == 2


def test_trials_that_never_reach_the_capture_are_bounded(amd: Traced) -> None:
    """Unsupported in every shape, which ends no process: the cells say it, and trials end."""
    for hidden in range(64, 64 + MAX_UNREACHED + 2):
        (row,) = amd.lease({"status": "unsupported", "reason": "hidden is no multiple of 3"}, hidden=(hidden,))
        assert row["status"] == "unsupported"
    assert len(amd.of(TRIAL)) == MAX_UNREACHED
    amd.none_died_measuring()


def test_who_hangs_without_a_capture_too_is_accused_and_the_next_cell_is_tried_anew(amd: Traced, soon: None) -> None:
    stuck = lambda cell: {"hang": "timing"} if cell["dims"]["hidden"] == 64 else {}  # noqa: E731
    bad, other = amd.lease(stuck, hidden=(64, 128), timing=6)
    assert (bad["status"], bad["owner"]) == ("timed_out", "kernel")
    assert (other["status"], other["method"]) == ("passed", "events")  # of this lease; it was not capture after all
    (fine,) = amd.lease({}, hidden=(256,))
    assert (fine["method"], fine["flags"]) == ("rotating_graph", [])


def test_the_second_line_holds_where_only_the_cells_own_capture_kills(amd: Traced) -> None:
    """A trial stands for every shape; where one of them dies all the same, that is forgiven once."""
    (row,) = amd.lease({"fault": "capture", "passes_trial": True})
    assert (row["status"], row["method"]) == ("passed", "events")
    assert row["flags"] == ["timed by events: capture ended the child (signal 11 (SIGSEGV))"]


@pytest.mark.parametrize("providers", [("farm", "torch"), ("torch", "farm")])
def test_a_trial_after_which_there_is_no_child_is_its_own_cells_end(
    amd: Traced, soon: None, monkeypatch: pytest.MonkeyPatch, providers: tuple[str, ...]
) -> None:
    """Not that of whichever cell comes first: the one that wedges devices would never be blamed, and wedge them all."""
    kill, close = child_process.Child.kill, child_process.Child.close
    monkeypatch.setattr(
        child_process.Child, "kill", lambda child, grace=3.0: False
    )  # as in a driver that does not return
    monkeypatch.setattr(child_process.Child, "close", lambda child: None)
    try:
        amd.submit(torchs(fault="capture_hang"), providers=providers)
        down = amd.wait("device_down")
        (ended,) = [e for e in amd.events if e["event"] == "ended"]
        (started,) = [e["cell"] for e in amd.events if e["event"] == "started"]
        assert down["final"] and providers[started] == "torch" and ended["cell"] == started
        assert (ended["status"], ended["owner"]) == ("infra_error", "device")
        assert "capture did not end within 2 s in the trial; then no new child" in ended["reason"]
    finally:
        monkeypatch.setattr(child_process.Child, "kill", kill)
        monkeypatch.setattr(child_process.Child, "close", close)
        for child, _ in amd.of(TRIAL):
            child.close()


def test_an_actor_that_takes_a_device_over_knows_what_the_one_before_has_tried(
    amd: Traced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = torchs(fault="capture")
    amd.lease(script, providers=("torch", "farm"))
    assert len(amd.of(TRIAL)) == 2
    amd.stop()
    next_one = Traced(tmp_path, "rocm", monkeypatch)  # the same device, run and spool, as after a fault of the device
    try:
        next_one.up()
        rows = next_one.lease(script, providers=("torch", "farm"))
        assert next_one.of(TRIAL) == []
        assert {r["cell"]["provider"]: r["method"] for r in rows} == {"torch": "events", "farm": "rotating_graph"}
        assert "trial process (signal 11 (SIGSEGV))" in rows[0]["flags"][0]
    finally:
        next_one.stop()


def test_what_overwrites_its_inputs_is_never_captured_and_needs_no_trial(
    amd: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = amd.judges.prepare

    def overwritten(*given: Any) -> dict[str, Any]:
        prepared = prepare(*given)
        return {**prepared, "tensors": [{**t, "may_overwrite": t["role"] == "input"} for t in prepared["tensors"]]}

    monkeypatch.setattr(amd.judges, "prepare", overwritten)
    amd.lease({})
    assert amd.of(TRIAL) == []


def test_where_the_backend_does_not_ask_for_it_there_is_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rocm.TRIAL_CAPTURE and not getattr(cuda, "TRIAL_CAPTURE", False)
    one = Traced(tmp_path, "cuda", monkeypatch)
    try:
        first = one.up()["pid"]
        rows = one.lease({}, providers=("torch", "farm"))
        assert [(r["method"], r["flags"]) for r in rows] == [("rotating_graph", [])] * 2
        assert one.actor.child_pid() == first  # no child was started beside or before it
        (row,) = one.lease({"fault": "capture"}, hidden=(128,))
        assert row["flags"][0].startswith("timed by events: capture failed (AcceleratorError")
        assert one.of(TRIAL) == []
    finally:
        one.stop()


def test_what_one_arm_cannot_capture_says_nothing_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment.named("default").plain()
    arms = {name: {"revision": name, "environment": environment, "variables": {}} for name in ("a", "b")}
    one = Traced(tmp_path, "rocm", monkeypatch, arms=arms)
    try:
        assert list(one.up()["arms"]) == ["b", "a"]  # each has proved itself; the first that serves was started last
        for order in (("a", "b"), ("b", "a")):
            rows = one.lease(lambda cell: {"fault": "capture_refused"} if cell["arm"] == "b" else {}, arms=order)
            assert {r["cell"]["arm"]: r["method"] for r in rows} == {"a": "rotating_graph", "b": "events"}
        assert len(one.of(TRIAL)) == 2
        served = [child for child, _ in one.of(RUN)]
        assert len(set(served)) == len(served) == 4  # each arm of each lease has a new child
        revisions = [e["revision"] for e in one.events if e["event"] == "measured"]
        assert revisions == ["a", "b", "b", "a"]
    finally:
        one.stop()
