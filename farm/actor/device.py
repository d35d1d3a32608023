"""The actor of one device: takes leases, supervises the child that runs them, hands outputs to the judge.

It never opens the device itself.  `DeviceActor` is a plain class, so that the same code runs inside a Ray actor and,
for `--address inline`, in a thread.  One long-lived thread does the work (the child's parent-death signal is bound to
the thread that starts it); `poll` hands over events as they come.
"""

from __future__ import annotations

import queue
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farm import spool
from farm.actor import calibrating as supervised
from farm.actor import captures, supervise
from farm.actor.captures import Captures
from farm.actor.placed import Placed
from farm.child import protocol
from farm.deadline import Deadline
from farm.guard import locks, plausible, telemetry
from farm.guard.device import Guard, Unfit
from farm.timing import methods

if TYPE_CHECKING:
    from farm.backends import Fault
    from farm.judge import Judges

PREPARE_SECONDS = 300.0


class DeviceActor:
    """`config`: device, backend, device_id, options, environment (dict; its name is looked up on this node), revision,
    deadlines, spool, run_id; on a cluster that was there before also labels (the node's) and bundles (name, sha, blob).
    """

    def __init__(self, config: dict[str, Any], judges: Judges):
        self._config = config
        self._judges = judges
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._leases: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._child: supervise.Child | None = None
        self._ready: protocol.Ready | None = None
        self._stuck = False  # a child was not to be ended: beside it nothing can be measured
        self._stopping = False
        self._placed = Placed(config)
        self._captures = Captures(self._placed.fallback_timing, self._placed.capture_may_kill)
        self._guard = Guard(self._placed.guarded, lambda: self._stopping)
        self._profiled = False  # the child has profiled: it may time by nothing else (farm.timing.methods)
        spool.claim(config["spool"])
        self._thread = threading.Thread(target=self._guarded, name="device", daemon=True)
        self._thread.start()

    # what the coordinator calls

    def submit(self, lease: dict[str, Any]) -> None:
        """Queue a lease: {"id", "attempts": [{"cell", "number", "round", "last", "call", "tolerances", "deadlines"}]},
        or {"calibrate": {"policy", "seconds", "deadline"}}.

        `last`: another fault of the device or the farm would be this cell's end.
        """
        self._leases.put(lease)

    def poll(self, wait_s: float) -> list[dict[str, Any]]:
        """Events since the last poll; waits up to `wait_s` for the first."""
        out: list[dict[str, Any]] = []
        try:
            out.append(self._events.get(timeout=wait_s))
            while len(out) < 200:
                out.append(self._events.get_nowait())
        except queue.Empty:
            pass
        return out

    def stop(self) -> None:
        """End the child and the thread; nothing of this actor is left afterwards."""
        self._stopping = True
        self._leases.put(None)
        child = self._child
        if child:
            child.kill(grace=0.5)
        self._thread.join(timeout=15)

    def child_pid(self) -> int | None:
        """For tests and `farm status`."""
        return self._child.pid if self._child and self._child.alive else None

    # the working thread

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.put({"event": kind, "device": self._config["device"], **fields})

    def _guarded(self) -> None:
        """The device is this actor's alone for as long as its thread lives."""
        try:
            self._work()
        finally:
            self._guard.release()

    def _work(self) -> None:
        try:
            self._placed.prepare()
            self._guard.take(lambda text: self._emit("device_waits", reason=text, up_to_s=locks.wait_seconds()))
            ready = self._ensure_child()
        except locks.Refused as reason:
            self._emit("device_down", reason=str(reason), final=True)
            return
        except supervise.NoChild as reason:
            self._emit("device_down", reason=str(reason), final=reason.final)
            return
        except Exception as error:  # or nobody would hear of it: this thread is all there is
            traceback.print_exc()
            self._emit("device_down", reason=f"its actor failed ({type(error).__name__}: {error})", final=False)
            return
        self._emit(
            "device_up",
            backend=self._config["backend"],
            target=ready.target,
            name=ready.device,
            node=socket.gethostname(),
            fingerprint=ready.fingerprint,
            evidence=ready.evidence,
            pid=self._child.pid if self._child else None,
            **self._placed.told(),
        )
        while not self._stopping:
            lease = self._leases.get()
            if lease is None:
                break
            if lease.get("calibrate"):
                self._calibrate(lease["calibrate"])
                continue
            attempts = sorted(lease["attempts"], key=self._spends)  # those that spend the child last, together
            for waiting in lease.get("coming", []):
                self._judges.warm(waiting)
            for i, attempt in enumerate(attempts):
                if self._stopping:
                    break
                for coming in attempts[i + 1 : i + 3]:  # the device never waits for inputs that could be ready
                    self._judges.prefetch(coming["cell"])
                try:
                    self._attempt(attempt)
                except _DeviceGone as gone:
                    self._emit("device_down", reason=gone.reason, final=gone.final)
                    return
                except Exception:
                    self._end(attempt, "infra_error", "harness", "the farm's actor failed", log=traceback.format_exc())
            if not self._stopping:
                self._emit("lease_done", lease=lease["id"])
        if self._child:
            self._child.close()

    def _ensure_child(self, *, profiled: bool = False) -> protocol.Ready:
        """A living child; `profiled` says whether one that has profiled will do."""
        if self._profiled and not profiled:
            self._replace_child()
        if self._child and self._child.alive and self._ready:
            return self._ready
        self._let_go()
        if self._stuck:
            raise supervise.NoChild("the child before could not be ended, and may have the device still", final=True)
        try:
            self._guard.before_child()
        except Unfit as reason:
            raise supervise.NoChild(str(reason), final=True) from None
        if self._stopping:
            raise supervise.NoChild("its actor is being stopped")
        try:
            self._child = self._placed.child()
        except OSError as error:
            raise supervise.NoChild(f"its child could not be started ({error})") from None
        if self._stopping:  # `stop` came in between and found no child to end
            self._child.kill(grace=0.5)
        said = supervise.greeting(self._child, float(self._config["deadlines"]["spawn"]))
        refused = self._placed.refused(said)
        if refused:
            self._replace_child()
            raise supervise.NoChild(refused, final=True)
        self._ready, self._profiled = self._placed.completed(said), False
        self._guard.child_ready(self._child.device_pid)
        return self._ready

    def _attempt(self, attempt: dict[str, Any]) -> None:
        """One attempt from inputs to outputs; whatever happens, exactly one `measured` or `ended` event."""
        cell = attempt["cell"]
        self._emit("started", cell=cell["index"], attempt=attempt["number"])
        attempt["started"] = time.time()
        try:
            prepared = self._judges.prepare(cell, Deadline(PREPARE_SECONDS))
        except Exception as error:
            self._end(
                attempt, "infra_error", "harness", f"its inputs could not be made: {error}", log=traceback.format_exc()
            )
            return
        try:
            self._ensure_child(profiled=self._spends(attempt))
        except supervise.NoChild as reason:
            self._end(attempt, "infra_error", "infra", f"no child could be started: {reason}")
            raise _DeviceGone(str(reason), reason.final) from None
        out_dir = tempfile.mkdtemp(prefix="out-", dir=self._config["spool"])
        call = dict(attempt["call"])
        uncaptured = self._captures.why_not(cell)
        if uncaptured:
            call["timing_override"] = self._captures.fallback
        reply, told = self._well_timed(attempt, call, prepared, out_dir)
        if isinstance(reply, protocol.Failed) and reply.status == "capture_failed":
            uncaptured = self._captures.failed(cell, reply)
            call["timing_override"] = self._captures.fallback
            self._replace_child()
            reply, told = self._well_timed(attempt, call, prepared, out_dir)
            self._captures.tried_without(cell, isinstance(reply, protocol.Measured))
        timed = reply.timing.get("profiled", False) if isinstance(reply, protocol.Measured) else self._spends(attempt)
        self._profiled = self._profiled or bool(timed)
        if isinstance(reply, protocol.Measured):
            if uncaptured:
                by = reply.timing.get("method", self._captures.fallback)
                reply.facts["flags"].append(f"timed by {by}: {uncaptured}")
            self._measured(attempt, reply, out_dir, told)
            if reply.spent:
                self._replace_child()
            return
        shutil.rmtree(out_dir, ignore_errors=True)
        if isinstance(reply, protocol.Failed):
            beside = self._guard.company() if reply.status == "out_of_memory" else ""
            why = f"{reply.reason} ({beside})" if beside else reply.reason
            self._end(attempt, reply.status, reply.owner, why, log=self._log(reply.trace))
            if reply.fatal:
                self._replace_child()

    def _well_timed(
        self, attempt: dict[str, Any], call: dict[str, Any], prepared: dict[str, Any], out_dir: str
    ) -> tuple[protocol.Measured | protocol.Failed | None, dict[str, Any] | None]:
        """`_converse`, once more within bounds where the device was throttled or disturbed while it timed; the last
        reply, and what the device said of itself then."""
        thrown: list[str] = []  # why earlier tries do not count
        compile_s: float | None = None
        while True:
            begun = time.monotonic()
            reply = self._converse(attempt, call, prepared, out_dir)
            told = self._guard.end()
            if not isinstance(reply, protocol.Measured):
                return reply, None
            if thrown and compile_s is not None:
                reply.facts["compile_s"] = compile_s  # of the try that did compile
            compile_s = reply.facts.get("compile_s")
            tries = len(thrown) + 1
            if told is None or not self._guard.pause(told, tries, time.monotonic() - begun):
                break
            thrown.append(telemetry.complaint(told))
            if reply.spent:
                self._replace_child()
        remark = telemetry.flag(thrown, telemetry.complaint(told)) if told else self._guard.failed
        reply.facts.setdefault("flags", []).extend(r for r in (remark, self._guard.remark()) if r)
        return reply, {**told, "tries": tries} if told else None

    def _converse(
        self, attempt: dict[str, Any], call: dict[str, Any], prepared: dict[str, Any], out_dir: str
    ) -> protocol.Measured | protocol.Failed | None:
        """Send the attempt and follow its phases; None when the end was already reported."""
        cell = attempt["cell"]
        ids = (self._config["revision"], attempt["round"], attempt["number"])
        message = protocol.Run(*ids, cell, prepared["tensors"], call, out_dir, prepared["work"])
        limits = {**self._config["deadlines"], **attempt.get("deadlines", {})}
        phase, timed_since = "spawn", time.monotonic()  # until the child says that it has begun
        if self._child and self._child.has_spoken:  # what an earlier cell left on the pipe is no fault of this one
            self._replace_child()
        try:
            self._ensure_child(profiled=self._spends(attempt))
            assert self._child is not None
            self._child.send(message)
            deadline = Deadline(float(limits["import"]))
            while True:
                said = self._child.receive(deadline)
                if getattr(said, "attempt", None) != ids[2] or getattr(said, "revision", None) != ids[0]:
                    raise supervise.ChildLied(f"wrote a message of another attempt: {said!r:.200}")
                if isinstance(said, protocol.Phase):
                    phase = said.phase
                    if phase == "timing":
                        timed_since = time.monotonic()
                        self._guard.begin(telemetry.likeness(cell))
                    deadline = Deadline(float(limits[phase]))
                elif isinstance(said, protocol.Measured):
                    return self._believed(said, time.monotonic() - timed_since)
                elif isinstance(said, protocol.Failed):
                    return captures.told(said) if said.status == "capture_failed" else said
        except supervise.NoChild as reason:
            self._end(attempt, "infra_error", "infra", f"no child could be started: {reason}")
            raise _DeviceGone(str(reason), reason.final) from None
        except supervise.ChildTimedOut:
            if self._child:
                self._child.show_stacks()
            log = self._log("")
            limit = float(limits["import" if phase == "spawn" else phase])
            if self._child and not self._child.kill():
                text = "its process could not be killed: the device is stuck"
                self._end(attempt, "infra_error", "device", text, log=log)
                raise _DeviceGone(text, final=True) from None
            if self._captures.suspected(cell, call, phase):
                return captures.blamed(ids, f"did not end within {limit:g} s", log)
            if phase == "spawn":
                text = f"its process answered nothing for {limit:g} s before the cell began"
                self._end(attempt, "infra_error", "infra", text, log=log)
            else:
                self._end(attempt, "timed_out", "kernel", f"phase {phase} took more than {limit:g} s", log=log)
        except supervise.ChildDied as error:
            if self._captures.suspected(cell, call, phase) and error.code != -signal.SIGKILL:
                words = self._last_words(error)
                ended = f"{error}; {words.what}" if words and words.what else str(error)
                return captures.blamed(ids, f"ended the process ({ended})", self._log(""))
            self._died(attempt, error, phase)
        except supervise.ChildLied as error:
            log = self._log("")
            self._replace_child()
            self._end(attempt, "crashed", "kernel", f"its process {error}", log=log)
        return None

    def _believed(self, reply: protocol.Measured, wall_s: float) -> protocol.Measured:
        """The reply without its samples, and with a flag that says why, where they cannot be true.  A simulated device
        has a clock of its own."""
        simulated = self._ready is not None and self._ready.evidence == "simulated"
        why = None if simulated else plausible.refusal(reply.timing, wall_s)
        if why is None:
            return reply
        flags = [*reply.facts.get("flags", []), f"not timed: {why}, by the supervisor's clock"]
        return replace(reply, facts={**reply.facts, "flags": flags}, timing=plausible.without_samples(reply.timing))

    def _calibrate(self, order: dict[str, Any]) -> None:
        """What the device can do at best: exactly one `calibrated` event, with what was `found` or the `reason`."""
        try:
            self._ensure_child()
        except supervise.NoChild as reason:
            self._emit("calibrated", reason=f"no child could be started: {reason}", log="")
            return
        assert self._child is not None
        self._guard.begin()
        step = lambda text: self._emit("calibrating", step=text)  # noqa: E731 - an event by another name
        try:
            ended = supervised.follow(self._child, self._config["revision"], order, step)
        except Exception as error:  # or nobody would hear of it before the deadline
            what = f"the farm's actor failed ({type(error).__name__}: {error})"
            ended = {"reason": what, "log": traceback.format_exc()}
        self._emit("calibrated", **ended, telemetry=self._guard.end())
        if "found" not in ended:
            self._replace_child()

    def _died(self, attempt: dict[str, Any], error: supervise.ChildDied, phase: str) -> None:
        """A crash is the kernel's, but SIGKILL is first taken for somebody else's (an operator, the OOM killer), and
        what the vendor's runtime printed as it ended the process says more than a signal's number."""
        if phase == "spawn":  # an earlier cell's doing, or nobody's: this one had not begun
            text = f"its process ended with {error} before the cell began"
            self._end(attempt, "infra_error", "infra", text, log=self._log(""))
            return
        text = f"its process ended with {error} in phase {phase}"
        fault = self._last_words(error)
        if fault:
            what = f"{fault.what}: {text}" if fault.what else text
            self._end(attempt, fault.status, fault.owner, what, log=self._log(""))
            return
        first_kill = error.code == -9 and not attempt["last"]
        self._end(attempt, "crashed", "infra" if first_kill else "kernel", text, log=self._log(""))

    def _last_words(self, error: supervise.ChildDied) -> Fault | None:
        """What the process that has died printed last means in the vendor's words."""
        return self._placed.fault(self._child.log_tail(since_order=True) if self._child else "", error.code)

    def _spends(self, attempt: dict[str, Any]) -> bool:
        """Whether the attempt's timing leaves a child that may time by no other method."""
        return methods.spends(self._captures.method(attempt["cell"]))

    def _replace_child(self) -> None:
        if self._child:
            self._child.kill(grace=1.0)
        self._let_go()

    def _let_go(self) -> None:
        """Part with the child.  `_ready` stays: it is whose the device's results are until the next child speaks."""
        if self._child:
            self._child.close()
            self._stuck = self._stuck or not self._child.gone
        self._child = None

    def _log(self, trace: str) -> str:
        tail = self._child.log_tail() if self._child else ""
        return "\n".join(part for part in (trace, tail) if part)

    def _origin(self, started: float) -> dict[str, Any]:
        ready = self._ready
        return {
            "target": ready.target if ready else None,
            "device": ready.device if ready else self._config["device"],
            "node": socket.gethostname(),
            "fingerprint": ready.fingerprint if ready else {},
            "evidence": ready.evidence if ready else "",
            "revision": self._config["revision"],
            "started": round(started, 3),
            "seconds": round(time.time() - started, 4),
        }

    def _end(self, attempt: dict[str, Any], status: str, owner: str, reason: str, *, log: str = "") -> None:
        self._emit(
            "ended",
            cell=attempt["cell"]["index"],
            attempt=attempt["number"],
            status=status,
            owner=owner,
            reason=reason,
            log=log,
            origin=self._origin(attempt.get("started", time.time())),
        )

    def _measured(
        self, attempt: dict[str, Any], reply: protocol.Measured, out_dir: str, told: dict[str, Any] | None
    ) -> None:
        index, number = attempt["cell"]["index"], attempt["number"]
        others = reply.facts.pop("others", [])
        origin = self._origin(attempt["started"])
        self._emit(
            "measured", cell=index, attempt=number, facts=reply.facts, timing=reply.timing, origin=origin,
            round=reply.round, revision=reply.revision, telemetry=told,
        )  # fmt: skip
        request = {
            "cell": attempt["cell"],
            "outputs": reply.outputs,
            "timed_outputs": reply.timing.get("timed_outputs"),
            "others": others,
            "flags": reply.facts.get("flags", []),
            "tolerances": attempt.get("tolerances", []),
        }

        def done(judged: dict[str, Any]) -> None:
            shutil.rmtree(out_dir, ignore_errors=True)
            self._emit("judged", cell=index, attempt=number, **judged)

        self._judges.judge(request, done)


class _DeviceGone(Exception):
    """This device can serve nobody now; `final` says that starting anew is pointless."""

    def __init__(self, reason: str, final: bool):
        super().__init__(reason)
        self.reason, self.final = reason, final
