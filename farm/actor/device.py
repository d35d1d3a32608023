"""The actor of one device: takes leases, supervises the child that runs them, hands outputs to the judge.

It never opens the device itself.  `DeviceActor` is a plain class, so that the same code runs inside a Ray actor and,
for `--address inline`, in a thread.  One long-lived thread does the work (the child's parent-death signal is bound to
the thread that starts it); `poll` hands over events as they come.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import queue
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farm.actor import calibration as supervised
from farm.actor import child_process, compile_ahead
from farm.actor.attempt_reports import AttemptReports
from farm.actor.backpressure import Backpressure
from farm.actor.capture import trial
from farm.actor.capture.arms import ArmCaptures
from farm.actor.capture.fallback import CaptureOutcome
from farm.actor.child_manager import ChildManager
from farm.actor.conversation import Conversation, DeviceGone
from farm.actor.device_setup import DeviceSetup
from farm.actor.event_buffer import EventBuffer
from farm.actor.spent import Spent
from farm.child import protocol
from farm.child.protocol import LONGEST_TRACE
from farm.deadline import Deadline
from farm.errors import JudgeFailed, LockRefused, describe, fault_owner
from farm.field_checks import shortened
from farm.guard import locks
from farm.guard.device import Guard
from farm.process import host

if TYPE_CHECKING:
    from farm.judge.pool import Judges


class DeviceActor:
    """`config`: device, backend, device_id, environment (dict; its name is looked up on this node), revision,
    deadlines, spool, run_id; where the run has two arms, `arms` (name -> what differs from this); on a cluster that was
    there before also labels (the node's) and bundles (name, sha, blob).
    """

    def __init__(self, config: dict[str, Any], judges: Judges):
        self._judges, self._spent = judges, Spent()
        self._said = EventBuffer(config["device"])
        self._leases: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stopping, self._node = False, host.name()
        self._placed = DeviceSetup(config)
        self._config = self._placed.config
        self._captures = ArmCaptures(self._placed)
        self._guard = Guard(self._placed.guarded, lambda: self._stopping, self._placed.host)
        self._backlog = Backpressure(config["spool"])
        spawn_s = self._config["deadlines"]["spawn"]
        self._children = ChildManager(self._placed, self._guard, spawn_s, lambda: self._stopping, self._spent)
        self._ahead = compile_ahead.CompileAhead(self._placed.compiler, self._placed.signal_waiting)
        self._reports = AttemptReports(self._said, self._placed, self._children, self._spent, self._node)
        self._conversation = Conversation(
            self._placed,
            self._children,
            self._guard,
            self._captures,
            self._ahead,
            self._reports,
            self._spent,
            lambda: self._stopping,
        )
        self._thread = threading.Thread(target=self._guarded, name="device", daemon=True)
        self._thread.start()

    # what the coordinator calls

    def submit(self, lease: dict[str, Any]) -> None:
        """Queue a lease: {"id", "attempts": [{"cell", "number", "round", "last", "call", "tolerances", "deadlines"}]},
        or {"probe": {"id", and what an attempt has}}, whose end is one `probe` event,
        or {"calibrate": {"policy", "seconds", "deadline", "otherwise"}}.

        An attempt of a further round has "known", too: the hash of the outputs that round 0 judged.  It is timed only.

        `last`: another fault of the device or the farm would be this cell's end.
        """
        self._leases.put(lease)

    def poll(self, wait_s: float) -> list[dict[str, Any]]:
        """Events since the last poll, see `Said.hear`."""
        return self._said.hear(wait_s)

    def judge_died(self, *, judge: int, generation: int, reason: str) -> None:
        """One of the node's judges died; called from any thread."""
        self._said.add("judge_down", judge=judge, generation=generation, reason=reason)

    def stop(self) -> None:
        """End the child and the thread; nothing of this actor is left afterwards."""
        self._stopping = True
        self._leases.put(None)
        child = self._children.current
        if child:
            child.kill(grace=0.5)
        self._thread.join(timeout=15)

    def child_pid(self) -> int | None:
        """For tests and `farm status`."""
        child = self._children.current
        return child.pid if child and child.alive else None

    # the working thread

    def _guarded(self) -> None:
        """The device is this actor's alone for as long as its thread lives."""
        try:
            self._work()
        finally:
            self._ahead.close()
            self._placed.let_go()
            self._guard.release()

    def _work(self) -> None:
        try:
            self._placed.prepare()
            wait_s = locks.wait_seconds(self._config.get("wait_s"))
            self._spent.enter("held")
            self._guard.take(lambda text: self._said.add("device_waits", reason=text, up_to_s=wait_s))
            self._spent.enter("start")
            proved = {}
            self._ahead.begin(self._placed.arms)  # it imports beside the child
            with contextlib.suppress(Exception):  # whoever needs their inputs asks again
                self._judges.coming(self._config.get("first", []))
            if len(self._placed.arms) > 1:
                many = compile_ahead.rounds(self._placed.spare_cores())
                self._placed.ahead({arm: many + (arm != self._placed.arms[0]) for arm in self._placed.arms})
            for arm in reversed(
                self._placed.arms
            ):  # each has its own files, or no cell runs; the first goes on to serve
                self._placed.use(arm)
                proved[arm] = ready = self._children.ensure()
        except LockRefused as reason:
            self._said.add("device_down", reason=str(reason), final=True, busy=reason.busy)
            return
        except child_process.NoChild as reason:
            told = {"subject_refused": True} if reason.subject_refused else {}
            self._said.add("device_down", reason=str(reason), final=reason.final, **told)
            return
        except Exception as error:  # or nobody would hear of it: this thread is all there is
            traceback.print_exc()
            self._said.add(
                "device_down", reason=f"the device's actor failed ({type(error).__name__}: {error})", final=False
            )
            return
        self._captures.use(ready.fingerprint)
        self._said.add(
            "device_up",
            backend=self._config["backend"],
            target=ready.target,
            name=ready.device,
            node=self._node,
            fingerprint=ready.fingerprint,
            evidence=ready.evidence,
            pid=self._children.current.pid if self._children.current else None,
            subject=ready.subject,
            versions=ready.versions,
            **self._placed.told(),
            **self._told_of_arms(proved if len(proved) > 1 else {}),
            spent=self._spent.told(),
        )
        while not self._stopping:
            self._spent.enter("work")
            lease = self._leases.get()
            self._spent.enter("messages")
            if lease is None:
                break
            if lease.get("calibrate"):
                self._calibrate(lease["calibrate"])
                continue
            probe = lease.get("probe")
            try:
                self._serve({"attempts": [probe]} if probe else lease)
            except DeviceGone as gone:
                self._said.add("device_down", reason=gone.reason, final=gone.final)
                return
            if not self._stopping and not probe:
                self._said.add("lease_done", lease=lease["id"], spent=self._spent.told())
        if self._children.current:
            self._children.current.close()

    def _told_of_arms(self, ready: Mapping[str, protocol.Ready]) -> dict[str, Any]:
        """What the children of each arm have proved, where there are two."""
        told = {
            arm: {"subject": r.subject, "versions": r.versions, "fingerprint": r.fingerprint, "target": r.target}
            for arm, r in ready.items()
        }
        return {"arms": told} if told else {}

    def _serve(self, lease: dict[str, Any]) -> None:
        """All attempts of a lease.  DeviceGone where the device can serve no more of them."""
        self._ahead.order(lease.get("ahead"))
        for coming in lease.get("coming", []):
            self._judges.warm(coming)
        limited = [self._limited(attempt) for attempt in lease["attempts"]]
        by_arm = itertools.groupby(limited, key=lambda attempt: str(attempt["cell"].get("arm", "")))
        parts = [(arm, list(attempts)) for arm, attempts in by_arm]
        for (arm, attempts), then in zip(parts, [*(arm for arm, _ in parts[1:]), ""]):
            self._serve_arm(arm, attempts, then)

    def _serve_arm(self, arm: str, attempts: list[dict[str, Any]], then: str) -> None:
        """Attempts of one arm, in children that belong to it; where there are two arms, the first of these is new.
        `then`: the arm that comes after it in this lease, or ""."""
        if arm:
            if self._children.served:
                self._children.replace()
                if then and not (self._placed.waiting(arm) and self._placed.waiting(then)):  # nothing is timed yet
                    self._placed.ahead(dict.fromkeys((arm, then), compile_ahead.rounds(self._placed.spare_cores())))
            self._placed.use(arm)
            ready = self._children.ready
            self._captures.use(ready.fingerprint if ready else {})
        self._try_captures(attempts)
        attempts.sort(key=self._captures.spends)  # those that spend the child last, together
        for i, attempt in enumerate(attempts):
            with self._spent.within("judge"):
                self._backlog.wait(lambda: self._stopping, functools.partial(self._reports.show, attempt, "judge"))
            if self._stopping:
                break
            # the device never waits for inputs that could be ready
            self._judges.coming(later["cell"] for later in attempts[i + 1 :])
            try:
                self._attempt(attempt)
            except DeviceGone:
                raise
            except Exception as error:
                what = f"the farm's actor failed ({describe(error)})"
                self._reports.end(attempt, "infra_error", fault_owner(error), what, log=traceback.format_exc())

    def _limited(self, attempt: dict[str, Any]) -> dict[str, Any]:
        """With the whole table of its limits, also for a session that has some of its own to set."""
        table = self._placed.limits(attempt.get("deadlines", {}))
        return {**attempt, "deadlines": table, "call": {**attempt["call"], "deadlines": table}}

    def _try_captures(self, attempts: list[dict[str, Any]]) -> None:
        """Before a lease: a trial of each capture in it that is not known, where the device's graphs need that.  What
        cannot be tried is left to the attempts, which meet the same and say so."""
        for attempt in attempts:
            cell = attempt["cell"]
            if self._stopping or self._placed.tool or not self._captures.policy.untried(cell):
                continue
            try:
                self._reports.show(attempt, "prepare")
                with self._spent.within("inputs"):
                    prepared = self._judges.prepare(cell, Deadline(attempt["deadlines"]["prepare"]))
                with self._spent.within("trial"):
                    outcome = self._trial(attempt, prepared) if trial.needed(prepared["tensors"]) else trial.NOT_NEEDED
            except child_process.NoChild:
                return
            except DeviceGone:
                raise
            except Exception:
                traceback.print_exc()
                continue
            if self._stopping:  # which ends a trial too
                return
            self._captures.policy.tried(cell, outcome)
            self._captures.note()

    def _trial(self, attempt: dict[str, Any], prepared: dict[str, Any]) -> CaptureOutcome:
        """One trial, in a child that has served no cell; one that comes through it, and leaves nothing behind, is as
        good as any that has captured before, and goes on to serve."""
        self._reports.show_start(attempt)
        child = self._children.fresh()
        ids = (self._placed.revision, attempt["round"], attempt["number"])
        order = protocol.Trial(*ids, attempt["cell"], prepared["tensors"], attempt["call"], "", prepared["work"])
        words = self._children.last_words
        outcome = trial.follow(
            child, order, attempt["deadlines"], words, functools.partial(self._reports.show, attempt)
        )
        self._reports.hear(attempt)
        before, self._children.trials = self._children.trials, self._children.trials + 1
        if not outcome.fit:
            self._renew(attempt, outcome)
        if outcome.lost and before and not self._stopping:  # or one of those before it had spoilt the process
            return self._trial(attempt, prepared)
        attempt["compile_s"] = outcome.compile_s
        return outcome

    def _renew(self, attempt: dict[str, Any], outcome: CaptureOutcome) -> None:
        """Another child after one that a trial has spent.  Where there can be none, the cell that was tried answers for
        it: left to the lease's next cell, it would take out one device after the other and never be blamed."""
        log = self._children.log()
        self._reports.show_start(attempt)
        self._children.replace()
        try:
            self._children.ensure()
        except child_process.NoChild as reason:
            if self._stopping:
                return
            self._reports.report(attempt, "started")
            attempt["started"], attempt["begun"] = time.time(), time.monotonic()
            what = f"{outcome.why}; then no new child could be started: {reason}"
            self._reports.end(attempt, "infra_error", "device", what, log=log)
            raise DeviceGone(str(reason), reason.final) from None

    def _attempt(self, attempt: dict[str, Any]) -> None:
        """One attempt from inputs to outputs; whatever happens, exactly one `measured` or `ended` event."""
        cell = attempt["cell"]
        prepare_s = attempt["deadlines"]["prepare"]
        self._reports.report(attempt, "started", up_to_s=prepare_s)
        attempt["started"], attempt["begun"] = time.time(), time.monotonic()
        try:
            attempt["spool"] = self._reports.spool_inode()
            with self._spent.within("inputs"):
                prepared = self._judges.prepare(cell, Deadline(prepare_s))
        except Exception as error:
            log = "" if isinstance(error, (JudgeFailed, TimeoutError)) else traceback.format_exc()
            what = f"the inputs could not be generated: {error}"
            self._reports.end(attempt, "infra_error", fault_owner(error), what, log=log)
            return
        self._reports.show_start(attempt)
        try:
            self._children.ensure(profiled=self._captures.spends(attempt))
        except child_process.NoChild as reason:
            self._reports.end(attempt, "infra_error", "infra", f"no child could be started: {reason}")
            raise DeviceGone(str(reason), reason.final) from None
        out_dir = tempfile.mkdtemp(prefix="out-", dir=self._config["spool"])
        call = dict(attempt["call"])
        tool = self._placed.tool
        if tool:
            call |= {"timing_override": "none", "profile": tool.profiles}
        uncaptured = "" if tool else self._captures.policy.why_not(cell)
        if uncaptured:
            call["timing_override"] = self._captures.policy.fallback
        reply, told = self._conversation.run(attempt, call, prepared, out_dir)
        if isinstance(reply, protocol.Failed) and reply.status == "capture_failed":
            uncaptured = self._captures.policy.failed(cell, reply)
            call["timing_override"] = self._captures.policy.fallback
            self._children.replace()
            reply, told = self._conversation.run(attempt, call, prepared, out_dir)
        if uncaptured:
            sound = isinstance(reply, protocol.Measured) or attempt.get("phase") != "timing"
            self._captures.policy.tried_without(cell, sound)
            self._captures.note()
        timed = (
            reply.timing.get("profiled", False)
            if isinstance(reply, protocol.Measured)
            else self._captures.spends(attempt)
        )
        self._children.profiled = self._children.profiled or bool(timed)
        if isinstance(reply, protocol.Measured):
            if uncaptured:
                by = reply.timing.get("method", self._captures.policy.fallback)
                reply.facts["flags"].append(f"timed by {by}: {uncaptured}")
            if tool:
                reply.facts["flags"].append(f"not timed: it ran under {tool.program}")
                if self._reports.seen_by_tool(attempt):
                    shutil.rmtree(out_dir, ignore_errors=True)
                    return
            if "signals" in attempt:
                reply.facts.setdefault("flags", []).append(attempt["signals"])
            if attempt.get("compile_s") is not None:  # its trial did compile
                reply.facts["compile_s"] = max(attempt["compile_s"], reply.facts.get("compile_s") or 0.0)
            self._measured(attempt, reply, out_dir, told)
            if reply.spent:
                self._children.replace()
            return
        shutil.rmtree(out_dir, ignore_errors=True)
        if isinstance(reply, protocol.Failed):
            beside = self._guard.company() if reply.status == "out_of_memory" else ""
            why = f"{reply.reason} ({beside})" if beside else reply.reason
            log = "\n".join((self._placed.as_written(reply.trace), *attempt.get("heard", ())))
            self._reports.end(attempt, reply.status, reply.owner, self._placed.as_written(why), log=log.strip())
            if reply.fatal:
                self._children.replace()

    def _calibrate(self, order: dict[str, Any]) -> None:
        """What the device can do at best: exactly one `calibrated` event, with what was `found` or the `reason`."""
        try:
            revision = self._placed.revision
            ended = supervised.measure(self._children, revision, order, self._said.add, self._guard.begin)
        except Exception as error:  # or nobody would hear of it before the deadline
            what = f"the farm's actor failed ({type(error).__name__}: {error})"
            ended = {"reason": what, "log": traceback.format_exc()}
            self._children.replace()
        self._said.add("calibrated", **ended, telemetry=self._guard.end())

    def _measured(
        self, attempt: dict[str, Any], reply: protocol.Measured, out_dir: str, told: dict[str, Any] | None
    ) -> None:
        others = reply.facts.pop("others", [])
        origin = self._reports.origin(attempt)
        self._reports.report(
            attempt,
            "measured",
            facts=reply.facts,
            timing=reply.timing,
            origin=origin,
            round=reply.round,
            revision=reply.revision,
            telemetry=told,
            log=shortened("\n".join(attempt.get("heard", ())), LONGEST_TRACE),
        )
        request = {
            "cell": attempt["cell"],
            "outputs": reply.outputs,
            "timed_outputs": reply.timing.get("timed_outputs"),
            "others": others,
            "flags": reply.facts.get("flags", []),
            "tolerances": attempt.get("tolerances", []),
            "known": attempt.get("known", ""),
        }

        def done(judged: dict[str, Any]) -> None:
            shutil.rmtree(out_dir, ignore_errors=True)
            self._backlog.ended()
            self._reports.report(attempt, "judged", **judged)

        self._backlog.began()
        try:
            self._judges.judge(request, done, attempt["deadlines"]["judge"])
        except BaseException:
            self._backlog.ended()
            raise
