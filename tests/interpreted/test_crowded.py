"""Memory that is out because of the farm's own checks and buffer sets is not the kernel's fault; else it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from farm.backends import Fault, cuda  # noqa: E402
from farm.child import fault_owner, protocol, session, tensor_files  # noqa: E402
from farm.child.protocol import Failed, Measured, Run  # noqa: E402

CUDA = torch.device("cuda")
PLAIN = 10 << 20  # what a plain call needs, with its inputs
FULL = torch.OutOfMemoryError("CUDA out of memory")
RUN = Run("r", 0, 1, {}, [], {}, "out")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that the device has left when memory is out."""
    left = {"bytes": PLAIN}
    fake = SimpleNamespace(
        mem_get_info=lambda device: (left["bytes"], 1 << 40), synchronize=lambda d: None, empty_cache=lambda: None
    )
    monkeypatch.setattr(session.torch, "get_device_module", lambda kind: fake)
    return left


def attempt(lean: bool = True, fits: bool = True) -> Any:
    made: Any = session._Attempt(
        SimpleNamespace(device=CUDA, backend="cuda", fault=cuda.fault), RUN, lambda said: None, lean
    )
    made.crowd = PLAIN if fits else None
    return made


def out(*_: Any) -> Any:
    raise FULL


def test_a_cell_whose_timing_does_not_fit_is_judged_and_not_timed(free: dict[str, int]) -> None:
    one = attempt()
    one.time = out
    assert one.timing(None, ()) == {"method": "none", "samples_us": []}
    assert one.facts["flags"][0].startswith("not timed: one call fits in the device's memory")
    assert one.cut  # the process is spent


def test_memory_that_is_out_in_the_vendors_words_is_out(free: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in's allocator raises a RuntimeError of its own."""
    words = RuntimeError("no room on the part (error 207001)")

    def fault(text: str, code: int | None = None) -> Fault | None:
        return Fault("out_of_memory", "kernel", "207001") if "error 207001" in text else None

    monkeypatch.setattr(cuda, "fault", fault, raising=False)

    def full(*_: Any) -> Any:
        raise words

    one = attempt()
    one.time = full
    assert one.timing(None, ())["method"] == "none"
    assert one.classified(words).status == "unsupported"
    assert attempt(fits=False).classified(words).status == "out_of_memory"
    monkeypatch.setattr(cuda, "fault", lambda text, code=None: None, raising=False)
    assert attempt().classified(words).status == "crashed"


@pytest.mark.parametrize(("status", "owner", "lost"), [("crashed", "kernel", True), ("infra_error", "device", False)])
def test_what_the_vendor_says_wins(
    free: dict[str, int], monkeypatch: pytest.MonkeyPatch, status: str, owner: str, lost: bool
) -> None:
    found = Fault(status, owner, "vector core exception (507035)", lost)
    monkeypatch.setattr(cuda, "fault", lambda text, code=None: found if "507035" in text else None, raising=False)
    monkeypatch.setattr(session.fault_owner, "device_is_lost", lambda *_: False)
    raised = ValueError("outer")
    raised.__cause__ = RuntimeError("error code is 507035")
    said = attempt().classified(raised)
    assert (said.status, said.owner, said.fatal) == (status, owner, lost)
    assert said.reason == "vector core exception (507035); ValueError: outer (in phase import)"
    assert attempt().classified(NotImplementedError("507035")).status == "unsupported"  # the code's own word


@pytest.mark.parametrize("case", ["first try", "a plain call does not fit", "there is room"])
def test_else_it_is_out_of_memory(free: dict[str, int], case: str) -> None:
    one = attempt(lean=case != "first try", fits=case != "a plain call does not fit")
    if case == "there is room":
        free["bytes"] = 2 * PLAIN
    one.time = out
    with pytest.raises(torch.OutOfMemoryError):
        one.timing(None, ())
    said = one.classified(FULL)
    assert (said.status, said.owner) == ("out_of_memory", "kernel")


def test_checks_that_do_not_fit_accuse_nobody(free: dict[str, int]) -> None:
    said = attempt().classified(FULL)
    assert (said.status, said.owner) == ("unsupported", "harness")
    assert said.reason.startswith("one call fits in the device's memory, but")


def test_inputs_that_do_not_fit_beside_kept_ones_are_tried_again(free: dict[str, int]) -> None:
    first, second = attempt(lean=False, fits=False), attempt(fits=False)
    first.making = second.making = True
    assert first.classified(FULL).status == "out_of_memory"  # so the session forgets what it keeps, and tries again
    said = second.classified(FULL)
    assert (said.status, said.owner) == ("unsupported", "harness")
    assert said.reason.startswith("the cell does not fit in the device's memory")


@pytest.mark.parametrize(("kept", "status"), [(None, "unsupported"), (9000.0, "out_of_memory")])
def test_who_keeps_the_memory_is_accused(free: dict[str, int], kept: float | None, status: str) -> None:
    one: Any = session.TorchSession.__new__(session.TorchSession)
    one.device, one._inputs, one.watch = CUDA, {"file": 1}, SimpleNamespace(kept_mib=lambda: kept)
    tries: list[bool] = []

    def once(message: Run, say: Any, lean: bool = False) -> Measured | Failed:
        tries.append(lean)
        assert bool(one._inputs) != lean
        return Failed("r", 0, 1, *(("unsupported", "harness") if lean else ("out_of_memory", "kernel")), "why")

    one._once = once
    said = one.run(RUN, lambda message: None)
    assert tries == [False, True]
    assert (said.status, said.owner) == (status, "harness" if status == "unsupported" else "kernel")


def test_a_full_disk_names_the_folder_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(value: Any, path: str) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files, "save", full)
    writes: Any = SimpleNamespace(expected=[{"name": "y"}], m=SimpleNamespace(out_dir="/dev/shm/a"))
    with pytest.raises(OSError) as raised:
        session._Attempt.write(writes, (torch.zeros(1),), "out")
    found = fault_owner.verdict(
        raised.value, fault_of=lambda text: None, device=CUDA, phase="check", squeezed=lambda: ""
    )
    assert found.owner == "infra" and "/dev/shm/a/out-y.bin" in found.reason


@pytest.mark.parametrize("only", [protocol.EVERYTHING, protocol.TIME])
def test_a_cell_that_is_only_timed_is_called_once_to_show_its_bits(
    free: dict[str, int], monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    called: list[str] = []

    class Calls:
        findings = ("changed its inputs",)
        problem = SimpleNamespace(inputs=[])
        launches = SimpleNamespace(facts=lambda mode: {"mode_resolved": mode})

        def __init__(self, *_: Any) -> None: ...

        def first(self, function: Any) -> tuple[Any, ...]:
            called.append("first")
            return ()

        def others(self, function: Any, *, stranger: bool) -> None:
            called.append("others")

        def alone(self, function: Any) -> None:
            called.append("alone")

    monkeypatch.setattr(session, "CheckedCalls", Calls)
    one = attempt()
    one.s.programs, one.s.watch, one.s.values = None, SimpleNamespace(state=list), None
    one.make = lambda: None
    one.m = Run("r", 1, 1, {"mode": "auto"}, [], {"provider": {"name": "x"}}, "out", {"batch_invariant": True}, only)
    one.check(None)
    assert called == (["first"] if only else ["first", "others", "alone"])
    assert one.facts["flags"] == ["changed its inputs"]  # what the first call shows counts in any round
