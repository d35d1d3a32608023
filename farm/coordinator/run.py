"""One run, from its request to `run.json`: plan, ledger, the event loop, the tables."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from farm import backends, results
from farm.accuracy import evaluate
from farm.actor import captures, trials
from farm.calls import call_for
from farm.cell import Cell, Status, Target
from farm.coordinator.clusters import Cluster
from farm.coordinator.fleet import Fleet
from farm.coordinator.reports import Reports
from farm.coordinator.request import Outcome, Progress, RunRequest
from farm.coordinator.roofs import Roofs
from farm.errors import FarmError, InfraError
from farm.matrix import estimate_seconds, quiet_of, tolerances_for
from farm.ops import contract
from farm.scheduler import Scheduler
from farm.scheduler.events import Action, Conclude, Event, Finish, Grant, Interrupted, Replace, Retire, Start, Tick
from farm.simulation import script_for
from farm.store import RunWriter
from farm.store.before import Before
from farm.targets import pattern_of

TICK_SECONDS = 0.2
MAX_COMING = 3  # references that are made ahead of a lease, since each may take a gigabyte


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


def longest_seconds(cell: Cell, deadlines: Mapping[str, float]) -> float:
    """What a lease allows a cell: every phase's deadline, and a trial of its capture where the backend wants one."""
    tried = cell.timing.method == captures.CAPTURING and backends.trial_capture(cell.backend)
    return sum(deadlines.values()) + (trials.seconds(deadlines) if tried else 0.0)


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
    """The loop.  Events of devices come by the fleet, those of cells by the reports; actions go out from here."""

    def __init__(self, request: RunRequest, cluster: Cluster, writer: RunWriter, progress: Progress):
        self.request, self.cluster, self.writer, self.progress = request, cluster, writer, progress
        self.cells = list(request.plan.cells)
        self.before = request.finished or Before()
        self.announced: set[str] = set()  # keys of references that a judge was asked to make ahead
        self.roofs = Roofs(request.calibrations, self.cells, backends.fallback_timing)
        self.fleet = Fleet(request, cluster, writer, progress, self.roofs)
        self.reports = Reports(self.cells, writer, self.roofs, self.fleet.neighbours, self.before)
        self.finished = self.interrupted = False
        self.concluded: list[dict[str, Any]] = []  # rows that are told once the journal has them
        self.created = datetime.now(timezone.utc)
        self.deadlines = {m.name: dict(m.deadlines) for m in request.plan.matrices}
        self.hear: Mapping[str, Callable[[dict[str, Any]], Event | None]] = {
            "device_up": self.fleet.up,
            "device_waits": self.fleet.waits,
            "device_down": self.fleet.down,
            "started": self.reports.started,
            "measured": self.reports.measured,
            "judged": self.reports.judged,
            "ended": self.reports.ended,
            "lease_done": self.reports.lease_done,
        }
        self.scheduler = Scheduler(
            [c.backend for c in self.cells],
            [estimate_seconds(c) for c in self.cells],
            [longest_seconds(c, self.deadlines[c.matrix]) for c in self.cells],
            {s.device: s.backend for s in request.slots},
            {**settled(self.cells), **{i: (Status(r["status"]), "") for i, r in self.before.rows.items()}},
            [(c.op, *c.dims.values(), *c.dtypes.values(), c.family, c.seed) for c in self.cells],  # those of one input
            targets=[pattern_of(c.target) for c in self.cells],
            quiet=[quiet_of(request.plan.matrix(c), c) for c in self.cells],
            hosts=self.fleet.hosts(),
            grace=request.wait_for_devices_s,
        )
        self.scheduler.tried(self.before.attempts)

    def run(self) -> Outcome:
        begun = time.monotonic()
        with _interrupts(self._interrupt):
            try:
                self._open_journal()
                for device in list(self.fleet.slots):
                    self.fleet.start(device)
                with self._journaled():
                    self._act(self.scheduler.begin(time.monotonic()))
                while not self.finished:
                    self._turn()
            finally:
                self.cluster.close()
        return self._conclude_run(time.monotonic() - begun)

    def _open_journal(self) -> None:
        """The plan; or, where the journal has it, that the run goes on."""
        if self.request.finished is None:
            self.writer.plan(self._head(), self.cells)
            return
        self.writer.append({"event": "resumed", **self._resumption()})
        self.writer.sync()

    def _resumption(self) -> dict[str, Any]:
        return {
            "time": round(self.created.timestamp(), 3), "argv": self.request.argv, "revision": self.request.revision
        }  # fmt: skip

    def _interrupt(self) -> None:
        self.interrupted = True

    def _turn(self) -> None:
        """One round of the loop: events in, actions out."""
        if self.interrupted:
            self._step(Interrupted(time.monotonic()))
            return
        heard = self.cluster.events(TICK_SECONDS)
        with self._journaled():
            for said in heard:
                event = self.hear[said["event"]](said)
                if event:
                    self._step(event)
                if self.finished:
                    return
            now = time.monotonic()
            for event in [*self.fleet.refresh(now), *self.fleet.overdue(now), Tick(now)]:
                self._step(event)
        self.progress.eta({b: self.scheduler.remaining_seconds(b) for b in self.fleet.backends()})

    @contextmanager
    def _journaled(self) -> Iterator[None]:
        """Lines of the journal go to the disk together, and cells that end are told after that."""
        with self.writer.together():
            yield
        told, self.concluded = self.concluded, []
        for row in told:
            self.progress.cell(row)

    # actions out

    def _step(self, event: Event) -> None:
        self._act(self.scheduler.step(event))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self._grant(action)
            elif isinstance(action, Conclude):
                row = self.reports.conclude(action)
                if row:
                    self.concluded.append(row)
            else:  # what follows may wait for a cluster
                self.writer.commit()
            if isinstance(action, Start):
                self.fleet.start(action.device)
            elif isinstance(action, Replace):
                self.fleet.replace(action.device, action.reason)
            elif isinstance(action, Retire):
                self.fleet.retire(action.device, action.reason, drained=action.drained)
            elif isinstance(action, Finish):
                self.finished = True

    def _grant(self, action: Grant) -> None:
        lease = action.lease
        attempts = []
        for a in lease.attempts:
            cell = self.cells[a.cell]
            matrix = self.request.plan.matrix(cell)
            deadlines = self.deadlines[cell.matrix]
            call = {**call_for(cell, contract(cell.op), self._provider(cell)), "deadlines": deadlines}
            if matrix.sim or cell.backend == "sim":  # of any backend: a node may simulate it
                call["sim"] = script_for(matrix.sim, cell)
            attempts.append(
                {
                    "cell": cell.to_dict(),
                    "number": a.number,
                    "round": a.round,
                    "last": a.last,
                    "call": call,
                    "tolerances": tolerances_for(matrix, cell),
                    "deadlines": deadlines,
                }
            )
        self.fleet.neighbours.busy(lease.device, time.monotonic())
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

    # the end

    def _head(self) -> dict[str, Any]:
        r = self.request
        if r.finished:
            kept = {k: v for k, v in r.finished.head.items() if k not in ("schema", "run_id")}
            return {**kept, "resumed": [*map(dict, r.finished.resumed), self._resumption()]}
        return {
            "created": self.created.isoformat(timespec="seconds"),
            "command": r.command,
            "argv": r.argv,
            "matrices": [m.to_dict() for m in r.plan.matrices],
            "plan_hash": r.plan.plan_hash,
            "planned": len(self.cells),
            **({"plan": dict(r.part)} if r.part else {}),
            "revision": r.revision,
            "providers": {k: dict(v) for k, v in r.providers.items()},
            "environments": {r.environment.name: {}},  # what each device had of that name: in the end, see `_foot`
        }

    def _conclude_run(self, seconds: float) -> Outcome:
        stopped = self.interrupted and self.scheduler.open_cells > 0
        missing = [c.cell_id for c in self.cells if c.index not in self.reports.rows]
        if missing and not self.interrupted:
            raise InfraError(
                f"the run ended without a result for {len(missing)} cells ({missing[0]}, ...): report this"
            )
        rows = [self.reports.rows.get(c.index) or results.planned_row(c) for c in self.cells]
        verdict, code = results.verdict(rows, strict_peers=self.request.strict_peers)
        if stopped:
            self.writer.append({"event": "interrupted", "time": round(time.time(), 3)})
            self.writer.sync()
            return Outcome(rows, verdict, code, True)
        self.writer.append({"event": "finished", "time": round(time.time(), 3)})
        self.writer.finish(rows, self.reports.samples, {**self._head(), **self._foot(rows, seconds, verdict, code)})
        return Outcome(rows, verdict, code, False)

    def _foot(self, rows: list[dict[str, Any]], seconds: float, verdict: str, code: int) -> dict[str, Any]:
        used: dict[str, Any] = {}
        for backend in dict.fromkeys(c.backend for c in self.cells):
            mine = [d for d in {**self.before.devices, **self.fleet.devices}.values() if d["backend"] == backend]
            used[backend] = {
                "devices": [
                    {
                        "name": d["name"],
                        "device": d["device"],
                        "node": d["node"],
                        "target": str(Target(**d["target"])),
                        "fingerprint": d["fingerprint"],
                        "evidence": d.get("evidence", ""),
                        "environment": d.get("environment", ""),
                        "calibration": self._calibration(d["device"]),
                    }
                    for d in mine
                ],
                "counts": results.counts(r for r in rows if r["backend"] == backend),
            }
        return {
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds + self.before.seconds, 3),
            "backends": used,
            "environments": _environments({**self.before.devices, **self.fleet.devices}, self.request.environment.name),
            "calibrations": {**self.before.calibrations, **self.roofs.used()},
            "counts": results.counts(rows),
            "verdict": verdict,
            "exit_code": code,
        }

    def _calibration(self, device: str) -> Mapping[str, Any] | None:
        """What served the device: in this session, else in the last one that had it."""
        if device not in self.fleet.devices:
            return self.before.choices.get(device)
        choice = self.roofs.chosen(device)
        return choice.to_dict() if choice else None


def _environments(devices: Mapping[str, Mapping[str, Any]], asked: str) -> dict[str, dict[str, list[str]]]:
    """Environment -> the command that started children in it -> devices: a name means another Python on each node."""
    out: dict[str, dict[str, list[str]]] = {asked: {}}
    for name, said in sorted(devices.items()):  # not in the order in which they happened to come up
        words = " ".join(said.get("command") or [])
        if words:
            out.setdefault(said.get("environment") or asked, {}).setdefault(words, []).append(name)
    return out


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
