"""An attempt in conversation with the child: one order, its phases within their limits, one reply; and what follows
where the child gives none.

A cell is asked again, in a child of its own, where its child ended for something that may not be the cell's; and timed
again where the device was throttled or disturbed meanwhile.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.actor import child_process, crash_owner, out_of_time
from farm.actor.attempt_reports import AttemptReports
from farm.actor.capture import fallback
from farm.actor.capture.arms import ArmCaptures
from farm.actor.child_manager import ChildManager
from farm.actor.compile_ahead import CompileAhead
from farm.actor.device_setup import DeviceSetup
from farm.actor.signal_deaths import SignalDeaths
from farm.actor.spent import Spent
from farm.child import protocol
from farm.deadline import Deadline
from farm.errors import FarmSignal
from farm.guard import sample_checks, telemetry
from farm.guard.device import Guard
from farm.process import interrupts


class DeviceGone(FarmSignal):
    """This device can serve nobody now; `final` says that starting anew is pointless."""

    def __init__(self, reason: str, final: bool):
        super().__init__(reason)
        self.reason, self.final = reason, final


class Conversation:
    """With the children of one device.  `stopping`: whether the actor is being stopped."""

    def __init__(
        self,
        placed: DeviceSetup,
        children: ChildManager,
        guard: Guard,
        captures: ArmCaptures,
        ahead: CompileAhead,
        reports: AttemptReports,
        spent: Spent,
        stopping: Callable[[], bool],
    ):
        self._placed, self._children, self._guard, self._captures = placed, children, guard, captures
        self._ahead, self._reports, self._spent, self._stopping = ahead, reports, spent, stopping
        self._deaths = SignalDeaths(placed.config["spool"], placed.config["device"])

    def run(
        self, attempt: dict[str, Any], call: dict[str, Any], prepared: dict[str, Any], out_dir: str
    ) -> tuple[protocol.Measured | protocol.Failed | None, dict[str, Any] | None]:
        """Send an attempt, and once more within bounds where the device was throttled or disturbed while it timed; the
        last reply (None where the end was reported already), and what the device said of itself then."""
        thrown: list[str] = []  # why earlier tries do not count
        compile_s: float | None = None
        built: dict[str, int] | None = None
        while True:
            begun = time.monotonic()
            self._ahead.wait(self._placed.arm, attempt["cell"]["index"], self._stopping)
            try:
                reply = self._converse(attempt, call, prepared, out_dir)
            finally:
                self._ahead.go_on()
            told = self._guard.end()
            if not isinstance(reply, protocol.Measured):
                return reply, None
            found = self._built(reply.facts)
            if thrown and compile_s is not None:
                reply.facts["compile_s"] = compile_s  # of the try that did compile
            else:
                built = found
            if built is not None:
                reply.facts["launch"] = {**reply.facts.get("launch", {}), "built": built}
            compile_s = reply.facts.get("compile_s")
            tries = len(thrown) + 1
            with self._spent.within("pause"):
                again = told is not None and self._guard.pause(told, tries, time.monotonic() - begun)
            if told is None or not again:
                break
            thrown.append(telemetry.complaint(told))
            if reply.spent:
                self._children.replace()
        remark = telemetry.flag(thrown, telemetry.complaint(told)) if told else self._guard.failed
        reply.facts.setdefault("flags", []).extend(r for r in (remark, self._guard.remark()) if r)
        return reply, {**told, "tries": tries} if told else None

    def _built(self, facts: dict[str, Any]) -> dict[str, int] | None:
        """Take from the child's facts what its first call compiled, and say how much of what it found was compiled
        ahead; None where the child does not tell."""
        told = facts.pop("built", None)
        facts.get("launch", {}).pop("built", None)
        if told is None:
            return None
        ahead = self._ahead.count(self._placed.arm, told["hashes"])
        return {"compiled": told["compiled"], "loaded": told["loaded"], "ahead": min(ahead, told["loaded"])}

    def _converse(
        self, attempt: dict[str, Any], call: dict[str, Any], prepared: dict[str, Any], out_dir: str
    ) -> protocol.Measured | protocol.Failed | None:
        """Send the attempt and follow its phases; None when the end was already reported."""
        cell = attempt["cell"]
        ids = (self._placed.revision, attempt["round"], attempt["number"])
        table = attempt["deadlines"]
        phase, timed_since = "spawn", time.monotonic()  # until the child says that it has begun
        checked_s = self._spent.of("check")
        self._reports.show_start(attempt)
        before = self._children.current
        if before and before.has_spoken:  # what an earlier cell left on the pipe is no fault of this one
            self._children.replace()
        try:
            child = self._children.child(profiled=self._captures.spends(attempt))
        except child_process.NoChild as reason:
            self._reports.end(attempt, "infra_error", "infra", f"no child could be started: {reason}")
            raise DeviceGone(str(reason), reason.final) from None
        place = child.place(out_dir)
        shared, self._children.served = self._children.served or self._children.trials > 0, True
        try:
            self._reports.show(attempt, "import", table["write"] + table["import"])
            only = protocol.TIME if attempt.get("known") else protocol.EVERYTHING
            child.send(protocol.Run(*ids, cell, prepared["tensors"], call, place, prepared["work"], only))
            deadline = Deadline(table["import"])
            while True:
                said = child.receive(deadline)
                if isinstance(said, protocol.Phase):
                    phase = attempt["phase"] = said.phase
                    self._spent.phase(phase)
                    if phase == "timing":
                        self._ahead.stop()  # nothing of ours works beside what is timed
                        timed_since = time.monotonic()
                        self._guard.begin(telemetry.likeness(cell))
                    deadline = Deadline(table[phase])
                    self._reports.show(attempt, phase)
                elif isinstance(said, protocol.Measured):
                    self._spent.enter("messages")
                    self._spent.move("check", "outputs", said.facts.get("phases_s", {}).get("write"), checked_s)
                    said = child.taken(said, out_dir)
                    self._reports.hear(attempt)
                    evidence = self._children.ready.evidence if self._children.ready else ""
                    return believed(said, time.monotonic() - timed_since, evidence)
                elif isinstance(said, protocol.Failed):
                    self._spent.enter("messages")
                    self._reports.hear(attempt)
                    return fallback.told(said) if said.status == "capture_failed" else said
        except (child_process.ChildTimedOut, child_process.ChildDied, child_process.ChildLied) as error:
            self._spent.enter("messages")
            lied = isinstance(error, child_process.ChildLied)
            spoilt = shared and (lied or phase == "spawn")  # maybe by an earlier cell's code
            if self._stopping() or not (spoilt or self._signalled(attempt, child, error, phase)):
                return self._without_reply(attempt, call, child, error, phase, place)
        # Asked again in a child of its own, the cell answers for itself.
        self._reports.hear(attempt)
        self._children.replace()
        _empty(out_dir)
        return self._converse(attempt, call, prepared, out_dir)

    def _signalled(self, attempt: dict[str, Any], child: child_process.Child, error: Exception, phase: str) -> bool:
        """Whether the cell is tried again alone, because a signal that others send has ended its child, or kept it from
        running until its time was over."""
        words, frozen = None, False
        if isinstance(error, child_process.ChildTimedOut) and child.suspended:
            code, what, frozen = crash_owner.STOP, f"did not run ({child.suspended.why})", child.suspended.frozen
        elif isinstance(error, child_process.ChildDied) and crash_owner.sent(error.code):
            self._deaths.note()
            code, what, words = error.code, f"ended with {error}", self._children.last_words(error)
        else:
            return False
        attempt["signalled"] = deaths = attempt.get("signalled", 0) + 1
        attempt["signals"] = f"a child {what} in phase {phase}, so the cell ran again alone"
        return crash_owner.tried_alone(code, phase, words, deaths, outside=frozen or self._from_outside())

    def _from_outside(self) -> bool:
        """Whether a signal that ended a child now may be one for more than this child."""
        seconds = crash_owner.TOGETHER_SECONDS
        return self._stopping() or interrupts.noted_within(seconds) or self._deaths.others_within(seconds)

    def _without_reply(
        self,
        attempt: dict[str, Any],
        call: dict[str, Any],
        child: child_process.Child,
        error: Exception,
        phase: str,
        out_dir: str,
    ) -> protocol.Failed | None:
        """What follows where a conversation broke off; None when the end was reported."""
        cell = attempt["cell"]
        ids = (self._placed.revision, attempt["round"], attempt["number"])
        if isinstance(error, child_process.ChildTimedOut):
            stopped = child.suspended
            child.show_stacks()
            log = self._reports.heard(attempt)
            limit = attempt["deadlines"]["import" if phase == "spawn" else phase]
            if not child.kill():
                text = "the child could not be killed: the device is stuck"
                self._reports.end(attempt, "infra_error", "device", text, log=log)
                raise DeviceGone(text, final=True) from None
            if self._captures.policy.suspected(cell, call, phase) and not stopped:
                attempt["heard"] = [log]
                return fallback.blamed(ids, f"did not end within {limit:g} s", log)
            if phase == "spawn":
                text = f"the child did not answer for {limit:g} s before the cell began"
                self._reports.end(attempt, "infra_error", "infra", text, log=log)
            elif stopped:
                outside = stopped.frozen or self._from_outside()
                self._reports.end(attempt, *crash_owner.of_stop(stopped.why, limit, phase, outside=outside), log=log)
            else:
                programs = out_of_time.read(out_dir) if phase == "check" and self._placed.interpreted else None
                self._reports.end(attempt, *out_of_time.ended(phase, limit, programs), log=log)
        elif isinstance(error, child_process.ChildDied):
            if self._captures.policy.suspected(cell, call, phase) and not crash_owner.sent(error.code):
                words = self._children.last_words(error)
                ended = f"{error}; {words.what}" if words and words.what else str(error)
                attempt["heard"] = [self._reports.heard(attempt)]
                return fallback.blamed(ids, f"ended the child ({ended})", attempt["heard"][0])
            self._died(attempt, error, phase)
        else:
            log = self._reports.heard(attempt)
            self._children.replace()
            self._reports.end(attempt, "crashed", "kernel", f"the child {error}", log=log)
        return None

    def _died(self, attempt: dict[str, Any], error: child_process.ChildDied, phase: str) -> None:
        words = self._children.last_words(error) if phase != "spawn" else None
        found = crash_owner.of_death(str(error), error.code, phase, words, outside=self._from_outside())
        self._reports.end(attempt, *found, log=self._reports.heard(attempt))


def believed(reply: protocol.Measured, wall_s: float, evidence: str) -> protocol.Measured:
    """The reply without its samples, and with a flag that says why, where they cannot be true of a phase that took
    `wall_s` seconds by the supervisor's clock.  A simulated device has a clock of its own."""
    why = None if evidence == "simulated" else sample_checks.refusal(reply.timing, wall_s)
    if why is None:
        return reply
    flags = [*reply.facts.get("flags", []), f"not timed: according to the supervisor's clock, {why}"]
    return replace(reply, facts={**reply.facts, "flags": flags}, timing=sample_checks.without_samples(reply.timing))


def _empty(folder: str) -> None:
    """Make the folder anew: what lies in it, or stands in its place, may be there to harm."""
    with contextlib.suppress(OSError):
        Path(folder).unlink()  # a link; a folder stays
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir(mode=0o700, exist_ok=True)
