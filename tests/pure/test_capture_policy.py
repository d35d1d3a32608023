"""What is known of captures and their trials: when one is due, what it settles, and how its end is understood."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from farm import backends
from farm.actor.capture import trial
from farm.actor.capture.cache import CaptureCache
from farm.actor.capture.fallback import MAX_UNREACHED, CaptureOutcome, CapturePolicy
from farm.actor.child_process import ChildDied, ChildLied, ChildTimedOut
from farm.backends import Fault
from farm.child import protocol

DIED = CaptureOutcome(False, "capture ended the trial process (signal 11)", fit=False)
UNREACHED = CaptureOutcome(None, "capture was not reached in the trial (it crashed)", fit=False)


def cell(provider: str = "torch", operation: str = "forward", method: str = "rotating_graph", **more: Any) -> Any:
    return {
        "provider": provider,
        "op": "rms_norm",
        "mode": "auto",
        "operation": operation,
        "params": {},
        "timing": {"method": method},
        **more,
    }


@pytest.fixture
def known() -> CapturePolicy:
    return CapturePolicy("events", may_kill=True, trial=True)


def test_without_trials_nothing_is_due_and_nothing_is_spared() -> None:
    plain = CapturePolicy("events", may_kill=False)
    assert not plain.untried(cell()) and plain.why_not(cell()) == ""


def test_a_trial_is_due_once_for_each_call_and_only_where_a_graph_is_asked_for(known: CapturePolicy) -> None:
    assert known.untried(cell()) and not known.untried(cell(method="events")) and not known.untried(cell(method="none"))
    known.tried(cell(), CaptureOutcome(True))
    assert not known.untried(cell(dims={"hidden": 7}))  # a shape is no other call
    assert known.untried(cell("liger")) and known.untried(cell(operation="backward"))
    assert known.untried(cell(mode="multi_wave_cached")) and known.untried(cell(params={"casting": "gemma"}))
    assert known.method(cell()) == "rotating_graph" and known.why_not(cell()) == ""


def test_until_its_trial_no_graph_of_a_call_is_timed(known: CapturePolicy) -> None:
    assert known.method(cell()) == "events" and known.why_not(cell()) == "capture was not tried"
    known.tried(cell(), UNREACHED)
    assert known.why_not(cell()) == UNREACHED.why and known.untried(cell())
    assert known.why_not(cell(method="host")) == ""


def test_what_did_not_come_through_is_timed_otherwise(known: CapturePolicy) -> None:
    known.tried(cell(), DIED)
    assert (known.method(cell()), known.why_not(cell())) == ("events", DIED.why)
    assert known.method(cell("liger")) == "events" and known.untried(cell("liger"))  # but it says: not tried


def test_a_provider_that_is_not_there_has_nothing_to_capture(known: CapturePolicy) -> None:
    known.tried(cell(), CaptureOutcome(None, "no module named quack", hollow=True))
    assert not known.untried(cell()) and known.why_not(cell()) == ""


def test_trials_without_an_answer_end(known: CapturePolicy) -> None:
    for n in range(MAX_UNREACHED):
        assert known.untried(cell()), n
        known.tried(cell(), UNREACHED)
    assert not known.untried(cell())
    assert "4 trials; the last: capture was not reached" in known.why_not(cell())
    known.tried_without(cell(), False)
    assert not known.untried(cell())  # final


def test_a_call_that_ends_badly_without_a_capture_too_is_tried_again_within_the_bound(known: CapturePolicy) -> None:
    for n in range(MAX_UNREACHED):
        assert known.untried(cell()), n
        known.tried(cell(), DIED)
        known.tried_without(cell(), True)
        assert not known.untried(cell())
        known.tried_without(cell(), False)
    assert not known.untried(cell()) and "the call also failed without a capture" in known.why_not(cell())


def test_the_next_actor_of_a_device_knows_what_this_one_found(known: CapturePolicy, tmp_path: Path) -> None:
    known.tried(cell(), DIED)
    known.tried(cell("liger"), CaptureOutcome(True))
    CaptureCache(str(tmp_path), {"uuid": "1", "rocm": "7.2"}).write(known.known)
    later = CapturePolicy("events", may_kill=True, trial=True)
    later.learn(CaptureCache(str(tmp_path), {"rocm": "7.2", "uuid": "1"}).read())
    assert later.why_not(cell()) == DIED.why and later.why_not(cell("liger")) == "" and not later.untried(cell("liger"))
    assert CaptureCache(str(tmp_path), {"uuid": "1", "rocm": "7.3"}).read() == {}  # another software: everything anew


@pytest.mark.parametrize("left", ["", "[1, 2]", '{"torch": ', "null"])
def test_a_file_that_says_nothing_costs_trials_and_no_more(tmp_path: Path, left: str) -> None:
    notes = CaptureCache(str(tmp_path), {})
    notes.write({"torch": "why"})
    assert notes.read() == json.loads(notes.file.read_text()) == {"torch": "why"}
    notes.file.write_text(left)
    assert CaptureCache(str(tmp_path), {}).read() == {}


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    notes = CaptureCache(str(tmp_path / "gone"), {})
    notes.write({"torch": "why"})
    assert notes.read() == {}


# one trial, from its order to its end


class Scripted:
    """A child that says these, and then dies, hangs or lies."""

    def __init__(self, *said: Any):
        self.said, self.deadlines = list(said), []
        self.shown, self.suspended = 0, None

    def send(self, message: protocol.Message) -> None:
        assert isinstance(message, protocol.Trial)

    def receive(self, deadline: Any) -> protocol.Message:
        self.deadlines.append(deadline.seconds)
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said  # type: ignore[no-any-return]


IDS = ("r", 0, 3)
ORDER = protocol.Trial(*IDS, {}, [], {}, "", {})
LIMITS = {"spawn": 100.0, "import": 11.0, "compile": 12.0, "check": 13.0, "timing": 60.0}


def phases(*names: str) -> list[protocol.Phase]:
    return [protocol.Phase(*IDS, name) for name in names]


def failed(status: str, owner: str = "kernel", fatal: bool = False) -> protocol.Failed:
    return protocol.Failed(*IDS, status, owner, "why", fatal=fatal)


BEFORE, AT = phases("import", "compile"), phases("import", "compile", "timing")


@pytest.mark.parametrize(
    ("said", "captures_", "words", "fit"),
    [
        ([*AT, protocol.Tried(*IDS, "", 2.5)], True, "", True),
        ([*AT, protocol.Tried(*IDS, "", 2.5, spent=True)], True, "", False),
        (
            [*AT, protocol.Tried(*IDS, "replays gave different outputs", 2.5)],
            False,
            "capture's replays gave different",
            True,
        ),
        ([*AT, failed("capture_failed", "harness", True)], False, "capture failed in the trial (why)", False),
        ([*AT, failed("crashed", fatal=True)], False, "capture failed in the trial (why)", False),
        ([*AT, failed("out_of_memory")], None, "not reached", True),
        ([*AT, failed("infra_error", "device", True)], None, "not reached", False),
        ([*AT, ChildTimedOut()], False, "capture did not end within 30 s in the trial", False),
        ([*AT, ChildDied(-11)], False, "capture ended the trial process (signal 11 (SIGSEGV); hsa)", False),
        ([*AT, ChildDied(-9)], None, "not reached", False),  # an operator's, or the OOM killer's
        ([*AT, ChildDied(-15)], None, "not reached", False),
        ([*AT, ChildLied("wrote nonsense")], None, "wrote nonsense", False),
        ([*BEFORE, ChildTimedOut()], None, "phase compile took more than 12 s", False),
        ([*BEFORE, ChildDied(-11)], None, "the trial process ended with signal 11", False),
        ([*BEFORE, failed("unsupported")], None, "not reached", True),
        ([ChildDied(-11)], None, "the trial process ended with signal 11", False),
    ],
)
def test_every_end_of_a_trial(said: Sequence[Any], captures_: bool | None, words: str, fit: bool) -> None:
    found = trial.follow(Scripted(*said), ORDER, LIMITS, lambda died: Fault("crashed", "kernel", "hsa"))  # type: ignore[arg-type]
    assert (found.captures, found.fit) == (captures_, fit)
    assert words in found.why and found.why.startswith("capture" if found.why else "")
    assert found.lost == (words.startswith(("capture ended", "capture did not end")) if words else False)
    assert not found.hollow


def test_what_ends_before_the_provider_is_called_is_hollow_unless_it_took_the_process_along() -> None:
    words = lambda died: None  # noqa: E731
    missing = trial.follow(Scripted(*phases("import"), failed("unsupported")), ORDER, LIMITS, words)  # type: ignore[arg-type]
    assert missing.hollow and missing.captures is None
    dead = trial.follow(Scripted(*phases("import"), ChildDied(-11)), ORDER, LIMITS, words)  # type: ignore[arg-type]
    assert not dead.hollow


def test_each_phase_of_a_trial_has_its_own_deadline() -> None:
    child = Scripted(*AT, protocol.Tried(*IDS, "", 0.0))
    trial.follow(child, ORDER, LIMITS, lambda died: None)  # type: ignore[arg-type]
    assert child.deadlines == [11.0, 11.0, 12.0, trial.TRIAL_SECONDS]
    child = Scripted(*AT, protocol.Tried(*IDS, "", 0.0))
    trial.follow(child, ORDER, {**LIMITS, "timing": 2.0}, lambda died: None)  # type: ignore[arg-type]
    assert child.deadlines[-1] == 2.0


def test_only_what_is_timed_needs_a_trial() -> None:
    assert trial.needed([{"role": "input"}, {"role": "output"}])
    assert not trial.needed([{"role": "mutated"}, {"role": "output"}])
    assert not trial.needed([{"role": "input", "may_overwrite": True}])


def test_of_the_backends_rocm_alone_asks_for_trials() -> None:
    assert [name for name in backends.known() if backends.trial_capture(name)] == ["rocm"]
