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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import limits, providers
from farm.actor import calibration as supervised
from farm.actor import child_process, compile_ahead, crash_owner, out_of_time, sanitizer, waiting
from farm.actor.backpressure import Backpressure
from farm.actor.capture import fallback, trial
from farm.actor.capture.cache import CaptureCache
from farm.actor.capture.fallback import CaptureOutcome, CapturePolicy
from farm.actor.child_manager import ChildManager
from farm.actor.device_setup import DeviceSetup
from farm.actor.event_buffer import EventBuffer
from farm.actor.signal_deaths import SignalDeaths
from farm.actor.spent import Spent
from farm.cell import spends
from farm.child import protocol
from farm.child.protocol import LONGEST_TRACE
from farm.deadline import Deadline
from farm.errors import FarmSignal, JudgeFailed, LockRefused, describe, fault_owner
from farm.field_checks import shortened
from farm.guard import locks, sample_checks, telemetry
from farm.guard.device import Guard
from farm.process import host, interrupts
from farm.store import spool

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
        self._stopping, self._host = False, host.name()
        self._placed = DeviceSetup(config)
        self._config = self._placed.config
        #: Of each arm: what is known of its captures, and what trials found, for the next actor of this device.
        self._of_arms: dict[str, tuple[CapturePolicy, CaptureCache | None]] = {}
        self._captures, self._notes = self._known_captures({})
        self._guard = Guard(self._placed.guarded, lambda: self._stopping, self._placed.host)
        self._backlog = Backpressure(config["spool"])
        self._deaths = SignalDeaths(config["spool"], config["device"])
        spawn_s = self._config["deadlines"]["spawn"]
        self._children = ChildManager(self._placed, self._guard, spawn_s, lambda: self._stopping, self._spent)
        self._ahead = compile_ahead.CompileAhead(self._compiler, self._placed.signal_waiting)
        spool.claim(config["spool"])
        self._claimed = 0  # the inode of that folder
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

    def _compiler(self, arm: str) -> child_process.Child | None:
        """What compiles ahead for an arm, where cores are to spare for it."""
        many = self._spare_cores()
        return self._placed.compiler(arm, many) if many else None

    def _spare_cores(self) -> int:
        """Cores of this host that work ahead for each arm of this device."""
        sharing = int(self._config.get("compile_ahead") or 0)
        real = sharing > 0 and self._config["backend"] in waiting.BACKENDS and self._placed.real.ACCELERATOR
        return compile_ahead.workers(compile_ahead.cores(), sharing, len(self._placed.arms)) if real else 0

    def _work(self) -> None:
        try:
            self._placed.prepare()
            wait_s = locks.wait_seconds(self._config.get("wait_s"))
            self._spent.enter("held")
            self._guard.take(lambda text: self._said.add("device_waits", reason=text, up_to_s=wait_s))
            self._spent.enter("start")
            proved = {}
            self._ahead.begin(self._placed.arms)  # it imports beside the child
            for cell in self._config.get("first", []):
                with contextlib.suppress(Exception):  # whoever needs its inputs asks again
                    self._judges.prefetch(cell)
            if len(self._placed.arms) > 1:
                many = compile_ahead.rounds(self._spare_cores())
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
        self._captures, self._notes = self._known_captures(ready.fingerprint)
        self._said.add(
            "device_up",
            backend=self._config["backend"],
            target=ready.target,
            name=ready.device,
            node=self._host,
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
            except _DeviceGone as gone:
                self._said.add("device_down", reason=gone.reason, final=gone.final)
                return
            if not self._stopping and not probe:
                self._said.add("lease_done", lease=lease["id"], spent=self._spent.told())
        if self._children.current:
            self._children.current.close()

    def _known_captures(self, fingerprint: Mapping[str, Any]) -> tuple[CapturePolicy, CaptureCache | None]:
        """Of the arm in use: its captures and their notes; what one arm's code can capture says nothing of another's.
        `fingerprint`: of the device, {} before it is known."""
        placed = self._placed
        found = self._of_arms.get(placed.arm)
        if found is None:
            policy = CapturePolicy(placed.fallback_timing, placed.capture_may_kill, trial=placed.trial_capture)
            if not fingerprint:
                return policy, None
            of = {**fingerprint, **({"arm": placed.arm} if placed.arm else {})}
            notes = CaptureCache(self._config["spool"], of) if placed.trial_capture else None
            if notes:
                policy.learn(notes.read())
            found = self._of_arms[placed.arm] = policy, notes
        return found

    def _told_of_arms(self, ready: Mapping[str, protocol.Ready]) -> dict[str, Any]:
        """What the children of each arm have proved, where there are two."""
        told = {
            arm: {"subject": r.subject, "versions": r.versions, "fingerprint": r.fingerprint, "target": r.target}
            for arm, r in ready.items()
        }
        return {"arms": told} if told else {}

    def _serve(self, lease: dict[str, Any]) -> None:
        """All attempts of a lease.  _DeviceGone where the device can serve no more of them."""
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
                    self._placed.ahead(dict.fromkeys((arm, then), compile_ahead.rounds(self._spare_cores())))
            self._placed.use(arm)
            ready = self._children.ready
            self._captures, self._notes = self._known_captures(ready.fingerprint if ready else {})
        self._try_captures(attempts)
        attempts.sort(key=self._spends)  # those that spend the child last, together
        for i, attempt in enumerate(attempts):
            with self._spent.within("judge"):
                self._backlog.wait(lambda: self._stopping, functools.partial(self._show, attempt, "judge"))
            if self._stopping:
                break
            for coming in attempts[i + 1 : i + 3]:  # the device never waits for inputs that could be ready
                self._judges.prefetch(coming["cell"])
            try:
                self._attempt(attempt)
            except _DeviceGone:
                raise
            except Exception as error:
                what = f"the farm's actor failed ({describe(error)})"
                self._end(attempt, "infra_error", fault_owner(error), what, log=traceback.format_exc())

    def _limited(self, attempt: dict[str, Any]) -> dict[str, Any]:
        """With the whole table of its limits, also for a session that has some of its own to set."""
        table = self._placed.limits(attempt.get("deadlines", {}))
        return {**attempt, "deadlines": table, "call": {**attempt["call"], "deadlines": table}}

    def _show(self, attempt: dict[str, Any], phase: str, seconds: float | None = None) -> None:
        """Report that the attempt enters a phase, which takes its limit or `seconds` at most: who shows nothing for
        longer is taken to be stuck."""
        if "id" in attempt:  # a probe, which has its own deadline
            return
        up_to_s = attempt["deadlines"][phase] if seconds is None else seconds
        self._said.progress(attempt["cell"]["index"], attempt["number"], phase, up_to_s)

    def _show_start(self, attempt: dict[str, Any]) -> None:
        self._show(attempt, "spawn", limits.start(attempt["deadlines"]))

    def _try_captures(self, attempts: list[dict[str, Any]]) -> None:
        """Before a lease: a trial of each capture in it that is not known, where the device's graphs need that.  What
        cannot be tried is left to the attempts, which meet the same and say so."""
        for attempt in attempts:
            cell = attempt["cell"]
            if self._stopping or self._placed.tool or not self._captures.untried(cell):
                continue
            try:
                self._show(attempt, "prepare")
                with self._spent.within("inputs"):
                    prepared = self._judges.prepare(cell, Deadline(attempt["deadlines"]["prepare"]))
                with self._spent.within("trial"):
                    outcome = self._trial(attempt, prepared) if trial.needed(prepared["tensors"]) else trial.NOT_NEEDED
            except child_process.NoChild:
                return
            except _DeviceGone:
                raise
            except Exception:
                traceback.print_exc()
                continue
            if self._stopping:  # which ends a trial too
                return
            self._captures.tried(cell, outcome)
            self._note()

    def _note(self) -> None:
        if self._notes:
            self._notes.write(self._captures.known)

    def _trial(self, attempt: dict[str, Any], prepared: dict[str, Any]) -> CaptureOutcome:
        """One trial, in a child that has served no cell; one that comes through it, and leaves nothing behind, is as
        good as any that has captured before, and goes on to serve."""
        self._show_start(attempt)
        child = self._children.fresh()
        ids = (self._placed.revision, attempt["round"], attempt["number"])
        order = protocol.Trial(*ids, attempt["cell"], prepared["tensors"], attempt["call"], "", prepared["work"])
        words = self._children.last_words
        outcome = trial.follow(child, order, attempt["deadlines"], words, functools.partial(self._show, attempt))
        self._hear(attempt)
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
        self._show_start(attempt)
        self._children.replace()
        try:
            self._children.ensure()
        except child_process.NoChild as reason:
            if self._stopping:
                return
            self._report(attempt, "started")
            attempt["started"], attempt["begun"] = time.time(), time.monotonic()
            what = f"{outcome.why}; then no new child could be started: {reason}"
            self._end(attempt, "infra_error", "device", what, log=log)
            raise _DeviceGone(str(reason), reason.final) from None

    def _attempt(self, attempt: dict[str, Any]) -> None:
        """One attempt from inputs to outputs; whatever happens, exactly one `measured` or `ended` event."""
        cell = attempt["cell"]
        prepare_s = attempt["deadlines"]["prepare"]
        self._report(attempt, "started", up_to_s=prepare_s)
        attempt["started"], attempt["begun"] = time.time(), time.monotonic()
        try:
            attempt["spool"] = self._spool()
            with self._spent.within("inputs"):
                prepared = self._judges.prepare(cell, Deadline(prepare_s))
        except Exception as error:
            log = "" if isinstance(error, (JudgeFailed, TimeoutError)) else traceback.format_exc()
            what = f"the inputs could not be generated: {error}"
            self._end(attempt, "infra_error", fault_owner(error), what, log=log)
            return
        self._show_start(attempt)
        try:
            self._children.ensure(profiled=self._spends(attempt))
        except child_process.NoChild as reason:
            self._end(attempt, "infra_error", "infra", f"no child could be started: {reason}")
            raise _DeviceGone(str(reason), reason.final) from None
        out_dir = tempfile.mkdtemp(prefix="out-", dir=self._config["spool"])
        call = dict(attempt["call"])
        tool = self._placed.tool
        if tool:
            call |= {"timing_override": "none", "profile": tool.profiles}
        uncaptured = "" if tool else self._captures.why_not(cell)
        if uncaptured:
            call["timing_override"] = self._captures.fallback
        reply, told = self._well_timed(attempt, call, prepared, out_dir)
        if isinstance(reply, protocol.Failed) and reply.status == "capture_failed":
            uncaptured = self._captures.failed(cell, reply)
            call["timing_override"] = self._captures.fallback
            self._children.replace()
            reply, told = self._well_timed(attempt, call, prepared, out_dir)
        if uncaptured:
            sound = isinstance(reply, protocol.Measured) or attempt.get("phase") != "timing"
            self._captures.tried_without(cell, sound)
            self._note()
        timed = reply.timing.get("profiled", False) if isinstance(reply, protocol.Measured) else self._spends(attempt)
        self._children.profiled = self._children.profiled or bool(timed)
        if isinstance(reply, protocol.Measured):
            if uncaptured:
                by = reply.timing.get("method", self._captures.fallback)
                reply.facts["flags"].append(f"timed by {by}: {uncaptured}")
            if tool:
                reply.facts["flags"].append(f"not timed: it ran under {tool.program}")
                if self._seen_by_tool(attempt):
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
            self._end(attempt, reply.status, reply.owner, self._placed.as_written(why), log=log.strip())
            if reply.fatal:
                self._children.replace()

    def _well_timed(
        self, attempt: dict[str, Any], call: dict[str, Any], prepared: dict[str, Any], out_dir: str
    ) -> tuple[protocol.Measured | protocol.Failed | None, dict[str, Any] | None]:
        """`_converse`, once more within bounds where the device was throttled or disturbed while it timed; the last
        reply, and what the device said of itself then."""
        thrown: list[str] = []  # why earlier tries do not count
        compile_s: float | None = None
        built: dict[str, int] | None = None
        while True:
            begun = time.monotonic()
            self._ahead.wait(self._placed.arm, attempt["cell"]["index"], lambda: self._stopping)
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
        self._show_start(attempt)
        before = self._children.current
        if before and before.has_spoken:  # what an earlier cell left on the pipe is no fault of this one
            self._children.replace()
        try:
            child = self._children.child(profiled=self._spends(attempt))
        except child_process.NoChild as reason:
            self._end(attempt, "infra_error", "infra", f"no child could be started: {reason}")
            raise _DeviceGone(str(reason), reason.final) from None
        place = child.place(out_dir)
        shared, self._children.served = self._children.served or self._children.trials > 0, True
        try:
            self._show(attempt, "import", table["write"] + table["import"])
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
                    self._show(attempt, phase)
                elif isinstance(said, protocol.Measured):
                    self._spent.enter("messages")
                    self._spent.move("check", "outputs", said.facts.get("phases_s", {}).get("write"), checked_s)
                    said = child.taken(said, out_dir)
                    self._hear(attempt)
                    evidence = self._children.ready.evidence if self._children.ready else ""
                    return believed(said, time.monotonic() - timed_since, evidence)
                elif isinstance(said, protocol.Failed):
                    self._spent.enter("messages")
                    self._hear(attempt)
                    return fallback.told(said) if said.status == "capture_failed" else said
        except (child_process.ChildTimedOut, child_process.ChildDied, child_process.ChildLied) as error:
            self._spent.enter("messages")
            lied = isinstance(error, child_process.ChildLied)
            spoilt = shared and (lied or phase == "spawn")  # maybe by an earlier cell's code
            if self._stopping or not (spoilt or self._signalled(attempt, child, error, phase)):
                return self._without_reply(attempt, call, child, error, phase, place)
        # Asked again in a child of its own, the cell answers for itself.
        self._hear(attempt)
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
        return self._stopping or interrupts.noted_within(seconds) or self._deaths.others_within(seconds)

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
            log = self._heard(attempt)
            limit = attempt["deadlines"]["import" if phase == "spawn" else phase]
            if not child.kill():
                text = "the child could not be killed: the device is stuck"
                self._end(attempt, "infra_error", "device", text, log=log)
                raise _DeviceGone(text, final=True) from None
            if self._captures.suspected(cell, call, phase) and not stopped:
                attempt["heard"] = [log]
                return fallback.blamed(ids, f"did not end within {limit:g} s", log)
            if phase == "spawn":
                text = f"the child did not answer for {limit:g} s before the cell began"
                self._end(attempt, "infra_error", "infra", text, log=log)
            elif stopped:
                outside = stopped.frozen or self._from_outside()
                self._end(attempt, *crash_owner.of_stop(stopped.why, limit, phase, outside=outside), log=log)
            else:
                programs = out_of_time.read(out_dir) if phase == "check" and self._placed.interpreted else None
                self._end(attempt, *out_of_time.ended(phase, limit, programs), log=log)
        elif isinstance(error, child_process.ChildDied):
            if self._captures.suspected(cell, call, phase) and not crash_owner.sent(error.code):
                words = self._children.last_words(error)
                ended = f"{error}; {words.what}" if words and words.what else str(error)
                attempt["heard"] = [self._heard(attempt)]
                return fallback.blamed(ids, f"ended the child ({ended})", attempt["heard"][0])
            self._died(attempt, error, phase)
        else:
            log = self._heard(attempt)
            self._children.replace()
            self._end(attempt, "crashed", "kernel", f"the child {error}", log=log)
        return None

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

    def _died(self, attempt: dict[str, Any], error: child_process.ChildDied, phase: str) -> None:
        words = self._children.last_words(error) if phase != "spawn" else None
        found = crash_owner.of_death(str(error), error.code, phase, words, outside=self._from_outside())
        self._end(attempt, *found, log=self._heard(attempt))

    def _hear(self, attempt: dict[str, Any]) -> None:
        """Keep what the cell has printed in the order that now ends: its child may go, or be asked again."""
        said = self._children.printed()
        if said:
            attempt.setdefault("heard", []).append(said)

    def _heard(self, attempt: dict[str, Any]) -> str:
        """All that the cell has printed, in earlier orders and in the one that has not ended."""
        return "\n".join(part for part in (*attempt.get("heard", ()), self._children.printed()) if part)

    def _spool(self) -> int:
        """The inode of the run's folder, which is made anew if somebody has deleted it."""
        folder = self._config["spool"]
        with contextlib.suppress(OSError):
            if Path(folder).stat().st_ino == self._claimed:
                return self._claimed
        spool.claim(folder)
        self._claimed = Path(folder).stat().st_ino
        return self._claimed

    def _spends(self, attempt: dict[str, Any]) -> bool:
        """Whether the attempt's timing leaves a child that may time by no other method."""
        return spends(self._captures.method(attempt["cell"]))

    def _origin(self, attempt: dict[str, Any]) -> dict[str, Any]:
        ready, now = self._children.ready, time.monotonic()
        return {
            "target": ready.target if ready else None,
            "device": ready.device if ready else self._config["device"],
            "node": self._host,
            "fingerprint": ready.fingerprint if ready else {},
            "evidence": ready.evidence if ready else "",
            "revision": self._placed.revision,
            **self._provenance(attempt, ready),
            "started": round(attempt.get("started", time.time()), 3),
            "seconds": round(now - attempt.get("begun", now), 4),  # whatever becomes of the clock meanwhile
        }

    def _provenance(self, attempt: dict[str, Any], ready: protocol.Ready | None) -> dict[str, str]:
        """Whose code the cell ran: the version of its provider, and the subject that it is of."""
        own = attempt["call"].get("provider", {}) if "call" in attempt else {}
        subject = self._placed.subject
        if own.get("subject") and subject:
            return {
                "provider_version": subject["revision"] or subject["digest"],
                "subject": subject["name"],
                "subject_revision": subject["revision"],
                "subject_digest": subject["digest"],
            }
        cell = attempt["cell"]
        if own.get("path") or not ready:
            return {"provider_version": ""}
        return {
            "provider_version": ready.versions.get(cell["provider"], ""),
            "provider_settings": providers.settings(cell["provider"], cell["mode"]),
        }

    def _report(self, attempt: dict[str, Any], kind: str, **fields: Any) -> None:
        """An event of an attempt.  Of a probe only the end is reported, and as such."""
        if "id" not in attempt:
            if kind in ("measured", "ended"):  # by this thread; others report what was judged
                fields["spent"] = self._spent.told()
            self._said.add(kind, cell=attempt["cell"]["index"], attempt=attempt["number"], **fields)
        elif kind in ("judged", "ended"):
            names = ("status", "owner", "reason", "log", "judged_by")
            said = {name: fields[name] for name in names if name in fields}
            self._said.add("probe", probe=attempt["id"], cell_id=attempt["cell"]["cell_id"], **said)

    def _seen_by_tool(self, attempt: dict[str, Any]) -> bool:
        """End the child in order, and the attempt if the tool that it ran under found something in a cell that by
        itself was none."""
        tool = self._placed.tool
        self._children.let_go()
        if tool is None or tool.profiles:
            return False
        found, why = sanitizer.read(self._children.tool_output, tool.program)
        if why:
            self._end(attempt, "infra_error", "infra", why)
        elif found:
            self._end(attempt, "crashed", "kernel", "", log="\n".join(attempt.get("heard", ())))
        return bool(found or why)

    def _end(self, attempt: dict[str, Any], status: str, owner: str, reason: str, *, log: str = "") -> None:
        if owner == "kernel" and attempt.get("spool") != self._spool():
            text = f"the run's spool folder {self._config['spool']} was deleted during the attempt ({reason})"
            status, owner, reason = "infra_error", "infra", text
        tool = self._placed.tool
        if owner == "kernel" and tool and not tool.profiles:
            self._children.let_go()
            found, _ = sanitizer.read(self._children.tool_output, tool.program)
            if found:
                status, reason = "crashed", self._placed.as_written(sanitizer.reason(found, tool.name))
                log = "\n".join((self._placed.as_written(sanitizer.listed(found)), log))
        self._report(attempt, "ended", status=status, owner=owner, reason=reason, log=log, origin=self._origin(attempt))

    def _measured(
        self, attempt: dict[str, Any], reply: protocol.Measured, out_dir: str, told: dict[str, Any] | None
    ) -> None:
        others = reply.facts.pop("others", [])
        origin = self._origin(attempt)
        self._report(
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
            self._report(attempt, "judged", **judged)

        self._backlog.began()
        try:
            self._judges.judge(request, done, attempt["deadlines"]["judge"])
        except BaseException:
            self._backlog.ended()
            raise


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


class _DeviceGone(FarmSignal):
    """This device can serve nobody now; `final` says that starting anew is pointless."""

    def __init__(self, reason: str, final: bool):
        super().__init__(reason)
        self.reason, self.final = reason, final
