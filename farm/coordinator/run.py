"""One run, from its request to `run.json`: plan, ledger, the event loop, the tables."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

from farm import backends, results
from farm.accuracy import evaluate
from farm.calls import call_for
from farm.cell import FARM_FAULTS, Cell, Owner, Status, Target
from farm.coordinator.clusters import Cluster, Slot
from farm.coordinator.roofs import Roofs, beyond_the_curve
from farm.deadline import Deadline
from farm.errors import FarmError, InfraError
from farm.matrix import Plan, estimate_seconds, tolerances_for
from farm.ops import contract
from farm.scheduler import (
    Action,
    Conclude,
    DeviceDown,
    DeviceUp,
    Ended,
    Event,
    Finish,
    Grant,
    Interrupted,
    LeaseDone,
    MeasuredEvent,
    Replace,
    Retire,
    Scheduler,
    Started,
    Tick,
)
from farm.simulation import script_for
from farm.store import RunWriter
from farm.supervise import Environment
from farm.timing.roof import Calibration

TICK_SECONDS = 0.2
MAX_COMING = 3  # references that are made ahead of a lease, since each may take a gigabyte


class Progress(Protocol):
    """Who is told how it goes."""

    def device(self, text: str) -> None: ...

    def cell(self, row: Mapping[str, Any]) -> None: ...

    def eta(self, seconds: Mapping[str, float]) -> None: ...


@dataclass
class RunRequest:
    """Everything a run needs besides its cluster and its directory."""

    plan: Plan
    slots: list[Slot]
    command: str
    argv: list[str]
    revision: dict[str, Any]
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # "NAME" or "OP:NAME" -> file, path
    environment: Environment = field(default_factory=Environment.default)
    options: Mapping[str, Any] = field(default_factory=dict)  # for the backends
    strict_peers: bool = False
    calibrations: Sequence[Calibration] = ()  # of the store, for share_of_roof


@dataclass
class Outcome:
    """How a run ended."""

    rows: list[dict[str, Any]]
    verdict: str
    exit_code: int
    interrupted: bool


def settled(cells: Sequence[Cell]) -> dict[int, tuple[Status, str]]:
    """Cells with a status before anything starts: excluded by a rule, or refused by the contract."""
    out: dict[int, tuple[Status, str]] = {}
    for cell in cells:
        if cell.skip_reason:
            out[cell.index] = (Status.SKIPPED, cell.skip_reason)
            continue
        reason = contract(cell.op).supports(cell)
        if reason:
            out[cell.index] = (Status.UNSUPPORTED, reason)
    return out


def execute(request: RunRequest, cluster: Cluster, writer: RunWriter, progress: Progress) -> Outcome:
    """Run the plan to its end, or to the first interrupt; the journal has every event the moment it is known."""
    try:
        coordinator = _Coordinator(request, cluster, writer, progress)
    except BaseException:
        cluster.close()
        raise
    try:
        return coordinator.run()
    except FarmError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise InfraError(
            f"{writer.dir}: the coordinator failed ({type(error).__name__}: {first}); "
            "what finished is in the journal, farm --debug run shows where"
        ) from error
    finally:
        with suppress(OSError):  # what failed may be the disk that the journal is on
            writer.close()


class _Coordinator:
    def __init__(self, request: RunRequest, cluster: Cluster, writer: RunWriter, progress: Progress):
        self.request, self.cluster, self.writer, self.progress = request, cluster, writer, progress
        self.cells = list(request.plan.cells)
        self.slots = {slot.device: slot for slot in request.slots}
        self.rows: dict[int, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []
        self.known: dict[int, dict[str, Any]] = {}  # cell -> what its current attempt has said so far
        self.devices: dict[str, dict[str, Any]] = {}
        self.starting: dict[str, Deadline] = {}
        self.announced: set[str] = set()  # keys of references that a judge was asked to make ahead
        self.roofs = Roofs(request.calibrations, self.cells)
        self.finished = self.interrupted = False
        self.created = datetime.now(timezone.utc)
        self.deadlines = {m.name: dict(m.deadlines) for m in request.plan.matrices}
        self.scheduler = Scheduler(
            [c.backend for c in self.cells],
            [estimate_seconds(c) for c in self.cells],
            [sum(self.deadlines[c.matrix].values()) for c in self.cells],
            {s.device: s.backend for s in request.slots},
            settled(self.cells),
            [(c.op, *c.dims.values(), *c.dtypes.values(), c.family, c.seed) for c in self.cells],  # those of one input
        )

    def run(self) -> Outcome:
        begun = time.monotonic()
        with _interrupts(self._interrupt):
            try:
                self.writer.plan(self._head(), self.cells)
                for slot in self.request.slots:
                    self._start(slot)
                self._act(self.scheduler.begin(time.monotonic()))
                while not self.finished:
                    self._turn()
            finally:
                self.cluster.close()
        return self._conclude_run(time.monotonic() - begun)

    def _interrupt(self) -> None:
        self.interrupted = True

    def _turn(self) -> None:
        """One round of the loop: events in, actions out."""
        if self.interrupted:
            self._step(Interrupted(time.monotonic()))
            return
        for said in self.cluster.events(TICK_SECONDS):
            self._hear(said)
            if self.finished:
                return
        now = time.monotonic()
        for device, deadline in list(self.starting.items()):
            if deadline.expired:
                self._hear({"event": "device_down", "device": device, "at": now, "final": False,
                            "reason": f"its actor was not ready within {deadline.seconds:g} s"})  # fmt: skip
        self._step(Tick(now))
        self.progress.eta({b: self.scheduler.remaining_seconds(b) for b in {s.backend for s in self.slots.values()}})

    # events in

    def _hear(self, said: dict[str, Any]) -> None:
        handler: Callable[[dict[str, Any]], Event | None] = getattr(self, f"_on_{said['event']}")
        event = handler(said)
        if event:
            self._step(event)

    def _journal(self, event: str, said: Mapping[str, Any], *names: str) -> None:
        self.writer.append({"event": event, "time": round(time.time(), 3), **{n: said[n] for n in names if n in said}})

    def _on_device_up(self, said: dict[str, Any]) -> Event:
        self.starting.pop(said["device"], None)
        self.devices[said["device"]] = said
        self._journal("device_up", said, "device", "backend", "target", "name", "node", "fingerprint", "pid")
        self.progress.device(f"{said['device']}: {said['name']}, ready")
        self._find_roof(said)
        return DeviceUp(said["at"], said["device"], said["backend"])

    def _find_roof(self, said: Mapping[str, Any]) -> None:
        """Choose the device's calibration, and keep in the journal what it says: the store's may be deleted."""
        known = set(self.roofs.used())
        choice, told = self.roofs.device_up(said["device"], said["backend"], said, datetime.now(timezone.utc))
        if choice:
            line = {"device": said["device"], "choice": choice.to_dict()}
            if choice.calibration.id not in known:
                line["calibration"] = self.roofs.used()[choice.calibration.id]
            self._journal("roof", line, "device", "choice", "calibration")
        if told:
            self.progress.device(f"{said['device']}: {told}")

    def _on_device_waits(self, said: dict[str, Any]) -> None:
        """Another farm has the device: its time to start begins when that is over."""
        deadline = self.starting.get(said["device"])
        if deadline:
            self.starting[said["device"]] = Deadline(deadline.seconds + float(said.get("up_to_s", 0.0)))
        self._journal("device_waits", said, "device", "reason")
        self.progress.device(f"{said['device']}: {said['reason']}")

    def _on_device_down(self, said: dict[str, Any]) -> Event:
        self.starting.pop(said["device"], None)
        self._journal("device_down", said, "device", "reason", "final")
        self.progress.device(f"{said['device']}: {said['reason']}")
        return DeviceDown(said["at"], said["device"], said["reason"], bool(said.get("final")))

    def _on_started(self, said: dict[str, Any]) -> Event:
        self.known[said["cell"]] = {}
        self._journal("started", said, "device", "cell", "attempt")
        return Started(said["at"], said["device"], said["cell"], said["attempt"])

    def _on_measured(self, said: dict[str, Any]) -> Event:
        self.known.setdefault(said["cell"], {}).update(measured=said, origin=said["origin"])
        self._journal("measured", said, "device", "cell", "attempt", "round", "revision", "facts", "timing", "origin",
                      "telemetry")  # fmt: skip
        return MeasuredEvent(said["at"], said["device"], said["cell"], said["attempt"])

    def _on_judged(self, said: dict[str, Any]) -> Event:
        self.known.setdefault(said["cell"], {})["judged"] = said
        if said["status"] != "passed":
            self._keep_log(said, _judgement_text(said))
        self._journal("judged", said, "device", "cell", "attempt", "status", "reason", "metrics", "gates",
                      "worst_output", "worst_metric", "worst_ratio", "output_hash", "input_hash")  # fmt: skip
        return self._as_ended(said)

    def _on_ended(self, said: dict[str, Any]) -> Event:
        known = self.known.setdefault(said["cell"], {})
        known["origin"] = dict(said["origin"])
        text = said.get("log") or ("" if said["status"] == "unsupported" else said["reason"])
        self._keep_log(said, text)
        self._journal("ended", said, "device", "cell", "attempt", "status", "owner", "reason")
        return self._as_ended(said)

    def _keep_log(self, said: Mapping[str, Any], text: str) -> None:
        """Keep what an attempt left behind, and where: every failed cell has a log."""
        if text:
            cell = self.cells[said["cell"]]
            name = f"{cell.index:05d}-{cell.cell_id}-{said['attempt']}"
            self.known[said["cell"]].setdefault("origin", {})["log"] = self.writer.log(name, text)

    def _as_ended(self, said: dict[str, Any]) -> Event:
        owner = Owner(said["owner"]) if said.get("owner") else None
        return Ended(
            said["at"],
            said["device"],
            said["cell"],
            said["attempt"],
            Status(said["status"]),
            owner,
            said.get("reason", ""),
        )

    def _on_lease_done(self, said: dict[str, Any]) -> Event:
        self.writer.sync()
        return LeaseDone(said["at"], said["device"], said["lease"])

    # actions out

    def _step(self, event: Event) -> None:
        self._act(self.scheduler.step(event))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self._grant(action)
            elif isinstance(action, Conclude):
                self._conclude(action)
            elif isinstance(action, Replace):
                self._journal("replaced", {"device": action.device, "reason": action.reason}, "device", "reason")
                self.cluster.stop(action.device)
                self._start(self.slots[action.device])
            elif isinstance(action, Retire):
                self.cluster.stop(action.device)
                self._journal("retired", {"device": action.device, "reason": action.reason}, "device", "reason")
                self.progress.device(f"{action.device}: given up ({action.reason})")
            elif isinstance(action, Finish):
                self.finished = True

    def _start(self, slot: Slot) -> None:
        spawn = max(d["spawn"] for d in self.deadlines.values())
        self.starting[slot.device] = Deadline(spawn + 60.0)
        merged = {k: max(d[k] for d in self.deadlines.values()) for k in next(iter(self.deadlines.values()))}
        self.cluster.start(
            slot,
            {
                "device": slot.device,
                "backend": slot.backend,
                "options": dict(self.request.options.get(slot.backend, {})),
                "environment": self.request.environment.plain(),
                "revision": self.request.revision["name"],
                "run_id": self.writer.id,
                "deadlines": merged,
                "shipped": self.request.options.get("shipped"),
            },
        )

    def _grant(self, action: Grant) -> None:
        lease = action.lease
        attempts = []
        for a in lease.attempts:
            cell = self.cells[a.cell]
            matrix = self.request.plan.matrix(cell)
            call = call_for(cell, contract(cell.op), self._provider(cell))
            if cell.backend == "sim":
                call["sim"] = script_for(matrix.sim, cell)
            attempts.append(
                {
                    "cell": cell.to_dict(),
                    "number": a.number,
                    "round": a.round,
                    "last": a.last,
                    "call": call,
                    "tolerances": tolerances_for(matrix, cell),
                    "deadlines": self.deadlines[cell.matrix],
                }
            )
        self.cluster.grant(lease.device, {"id": lease.id, "attempts": attempts, "coming": self._coming(action.coming)})

    def _coming(self, waiting: tuple[int, ...]) -> list[dict[str, Any]]:
        """One cell for each of the next references that nobody was told of yet."""
        out: list[dict[str, Any]] = []
        for index in waiting:
            cell = self.cells[index]
            key = evaluate.reference_key(cell, contract(cell.op))
            if key not in self.announced and len(out) < MAX_COMING:
                self.announced.add(key)
                out.append(cell.to_dict())
        return out

    def _provider(self, cell: Cell) -> Mapping[str, Any]:
        own = self.request.providers
        found = own.get(f"{cell.op}:{cell.provider}") or own.get(cell.provider) or {}
        return {"name": cell.provider, **found}

    def _conclude(self, action: Conclude) -> None:
        cell = self.cells[action.cell]
        known = self.known.pop(action.cell, {})
        # what no judge has seen has no time: a device may be fast at nonsense
        measured = self._measurement(cell, known) if action.status not in FARM_FAULTS else None
        backend = backends.get(cell.backend)
        row = results.finish_row(
            cell,
            status=action.status,
            reason=action.reason,
            owner=action.owner.value if action.owner else "",
            attempt=action.attempt,
            evidence=getattr(backend, "EVIDENCE", ""),
            origin=_with_target(known.get("origin"), cell.backend),
            measured=measured,
            judged=known.get("judged"),
        )
        self.rows[action.cell] = row
        self.writer.append({"event": "result", "row": row})
        timing = measured["timing"] if measured else {}
        if timing.get("samples_us"):
            self.samples.append(
                {
                    "cell_id": cell.cell_id, "cell_key": cell.cell_key, "attempt": action.attempt,
                    "method": timing["method"], "samples_us": json.dumps(timing["samples_us"]),
                    "host_us": json.dumps(timing.get("host_us", [])), "sets": timing.get("sets"),
                    "launches": timing.get("launches"), "floor_us": timing.get("floor_us"),
                    "telemetry": json.dumps(((measured or {}).get("telemetry") or {}).get("raw", [])),
                }
            )  # fmt: skip
        self.progress.cell(row)

    def _measurement(self, cell: Cell, known: Mapping[str, Any]) -> dict[str, Any] | None:
        said = known.get("measured")
        if not said:
            return None
        work = contract(cell.op).work(cell)
        target = (known.get("origin") or {}).get("target") or {}
        peaks = getattr(backends.get(cell.backend), "peaks", lambda model: None)(target.get("model", ""))
        done = {
            "bytes_read": work.bytes_read, "bytes_written": work.bytes_written, "operations": dict(work.operations)
        }  # fmt: skip
        roof = self.roofs.of_cell(said["device"], cell, said["timing"], done)
        return {
            "facts": beyond_the_curve(said["facts"], roof),
            "timing": said["timing"],
            "work": done,
            "peaks": peaks,
            "telemetry": said.get("telemetry"),
            "roof": roof,
        }

    # the end

    def _head(self) -> dict[str, Any]:
        r = self.request
        return {
            "created": self.created.isoformat(timespec="seconds"),
            "command": r.command,
            "argv": r.argv,
            "matrices": [
                {"name": m.name, "path": m.path, "sha256": m.sha256, "tolerances": [t.to_dict() for t in m.tolerances]}
                for m in r.plan.matrices
            ],
            "plan_hash": r.plan.plan_hash,
            "planned": len(self.cells),
            "revision": r.revision,
            "providers": {k: dict(v) for k, v in r.providers.items()},
            "environments": {r.environment.name: {"command": list(r.environment.command)}},
        }

    def _conclude_run(self, seconds: float) -> Outcome:
        stopped = self.interrupted and self.scheduler.open_cells > 0
        missing = [c.cell_id for c in self.cells if c.index not in self.rows]
        if missing and not self.interrupted:
            raise InfraError(
                f"the run ended without a result for {len(missing)} cells ({missing[0]}, ...): report this"
            )
        rows = [self.rows.get(c.index) or results.planned_row(c) for c in self.cells]
        verdict, code = results.verdict(rows, strict_peers=self.request.strict_peers)
        if stopped:
            self.writer.append({"event": "interrupted", "time": round(time.time(), 3)})
            self.writer.sync()
            return Outcome(rows, verdict, code, True)
        self.writer.append({"event": "finished", "time": round(time.time(), 3)})
        self.writer.finish(rows, self.samples, {**self._head(), **self._foot(rows, seconds, verdict, code)})
        return Outcome(rows, verdict, code, False)

    def _foot(self, rows: list[dict[str, Any]], seconds: float, verdict: str, code: int) -> dict[str, Any]:
        used: dict[str, Any] = {}
        for backend in dict.fromkeys(c.backend for c in self.cells):
            mine = [d for d in self.devices.values() if d["backend"] == backend]
            used[backend] = {
                "devices": [
                    {
                        "name": d["name"],
                        "device": d["device"],
                        "node": d["node"],
                        "target": str(Target(**d["target"])),
                        "fingerprint": d["fingerprint"],
                        "calibration": choice.to_dict() if (choice := self.roofs.chosen(d["device"])) else None,
                    }
                    for d in mine
                ],
                "counts": results.counts(r for r in rows if r["backend"] == backend),
            }
        return {
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "backends": used,
            "calibrations": self.roofs.used(),
            "counts": results.counts(rows),
            "verdict": verdict,
            "exit_code": code,
        }


def _judgement_text(said: Mapping[str, Any]) -> str:
    """A judgement for people: the reason, then every metric beside its gate."""
    lines = [said.get("reason", ""), ""]
    for output, metrics in (said.get("metrics") or {}).items():
        gates = (said.get("gates") or {}).get(output, {})
        lines += [
            f"{output:12} {name:20} {value:<14.6g}" + (f" gate {gates[name]:.6g}" if name in gates else "")
            for name, value in metrics.items()
        ]
    return "\n".join(lines)


def _with_target(origin: Mapping[str, Any] | None, backend: str) -> dict[str, Any] | None:
    if not origin:
        return None
    target = origin.get("target")
    return {**origin, "target": str(Target(**target)) if target else f"{backend}:unknown"}


@contextmanager
def _interrupts(on_interrupt: Callable[[], None]) -> Any:
    """Ctrl-C, SIGTERM and a closed terminal end the run in order; a second one at once.  Ray sets handlers of its own,
    so these come after it."""
    count = 0

    def handle(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        on_interrupt()
        if count > 1:
            raise KeyboardInterrupt

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                previous[number] = signal.signal(number, handle)
    except ValueError:
        pass  # not the main thread: somebody else's signals
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
