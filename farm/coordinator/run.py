"""One run, from its request to `run.json`: plan, ledger, the event loop, the tables."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from farm import backends, limits
from farm.accuracy import evaluate
from farm.cell import FINDINGS, Cell, Status, Target
from farm.cluster.base import Cluster
from farm.contracts.call import call_for, provider_of
from farm.contracts.discovery import contract
from farm.coordinator.calibration_lookup import CalibrationLookup
from farm.coordinator.compile_ahead import CellsAhead
from farm.coordinator.devices import RunDevices, host_of
from farm.coordinator.journal import line
from farm.coordinator.probes import small_cell
from farm.coordinator.request import KIND, RunOutcome, RunProgress, RunRequest
from farm.coordinator.results_assembler import ResultsAssembler
from farm.coordinator.rounds import Rounds
from farm.device_pattern import pattern_of
from farm.errors import FarmError, InfraError, Message, describe
from farm.matrix import estimate_seconds, quiet_of, tolerances_for
from farm.matrix.known import KnownFailure, applied
from farm.matrix.sim_script import script_for
from farm.process import interrupts, supervisor
from farm.report import pair_rows as report
from farm.scheduler import Scheduler
from farm.scheduler.events import (
    Action,
    Attempt,
    Conclude,
    Event,
    Finish,
    Grant,
    HealthChanged,
    Interrupted,
    ProbeGrant,
    Replace,
    Retire,
    Start,
    Tick,
)
from farm.store import RunWriter, device_health, known, results, tables
from farm.store.recovery import Concluded, Recovery

TICK_SECONDS = 0.2
MAX_CONTAINED = 3  # events of a device that raised, until the device itself is taken for faulty
MAX_COMING = 3  # references made in advance of a lease; each may take a gigabyte


def settled(cells: Sequence[Cell]) -> dict[int, tuple[Status, str]]:
    """Cells with a status before anything starts: excluded by a rule, or unsupported by the contract."""
    out: dict[int, tuple[Status, str]] = {}
    for cell in cells:
        if cell.skip_reason:
            out[cell.index] = (Status.SKIPPED, cell.skip_reason)
            continue
        reason = evaluate.unsupported(cell, contract(cell.op))
        if reason:
            out[cell.index] = (Status.UNSUPPORTED, reason)
    return out


def execute(request: RunRequest, cluster: Cluster, writer: RunWriter, progress: RunProgress) -> RunOutcome:
    """Run the plan to its end, or to the first interrupt; every event is journaled as soon as it is known."""
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
        raise InfraError(
            f"{writer.dir}: the coordinator failed ({describe(error)}); "
            f"finished results are in the journal; run farm resume {writer.id}, or see farm --debug run",
            id="coordinator-failed",
        ) from error
    finally:
        with suppress(OSError):  # the failure may be that of the journal's disk
            writer.close()


class _Coordinator:
    """The loop.  `fleet` makes the events of devices, `reports` those of cells; this class performs the actions."""

    def __init__(self, request: RunRequest, cluster: Cluster, writer: RunWriter, progress: RunProgress):
        self.request, self.cluster, self.writer, self.progress = request, cluster, writer, progress
        self.cells = list(request.plan.cells)
        self.before = request.finished or Recovery()
        self.ahead = CellsAhead(self.cells, self._providers)
        self.announced: set[str] = set()  # keys of references that a judge makes in advance
        self.roofs = CalibrationLookup(request.calibrations, self.cells, backends.fallback_timing)
        self.fleet = RunDevices(request, cluster, writer, progress, self.roofs)
        self.reports = ResultsAssembler(self.cells, writer, self.roofs, self.fleet.neighbours, self.before)
        self.created = datetime.now(timezone.utc)
        begun = str(self.before.head.get("created") or self.created.isoformat(timespec="seconds"))
        self.rounds = Rounds(self.cells, request, writer, self.before, begun) if request.arms else None
        self.finished = False
        self.interrupts = interrupts.Interrupts(raising=True)
        self.stopped = ""  # why the run ended with open cells, if not by a signal
        self.first = ""  # the first finding
        self.overtime = ""  # that the time of the run is over, as the reason of its open cells
        self.by_finding = False  # that was the first finding of a run that was to stop there
        self.later: list[Event] = []  # what the loop's own failures mean to the scheduler
        self.contained: Counter[str] = Counter()  # device -> events of it that raised
        self.concluded: list[dict[str, Any]] = []  # rows to report once the journal has them
        self.begun = self.all_ended = time.monotonic()
        self.deadlines = {m.name: limits.of(m.deadlines) for m in request.plan.matrices}
        self.hear: Mapping[str, Callable[[dict[str, Any]], Event | None]] = {
            "placed": self.fleet.placed,
            "device_up": self.fleet.up,
            "device_waits": self.fleet.waits,
            "device_down": self.fleet.down,
            "judge_down": self.fleet.judge_down,
            "probe": self.reports.probed,
            "node_differs": self.fleet.differs,
            "started": self.reports.started,
            "progress": self.reports.progress,
            "measured": self.reports.measured,
            "judged": self.reports.judged,
            "ended": self.reports.ended,
            "lease_done": self.reports.lease_done,
        }
        longest = {name: max(limits.start(table), *table.values()) for name, table in self.deadlines.items()}
        self.scheduler = Scheduler(
            [c.backend for c in self.cells],
            [estimate_seconds(c, contract(c.op)) for c in self.cells],
            [longest[c.matrix] for c in self.cells],
            {s.device: s.backend for s in request.slots},
            {**settled(self.cells), **{i: (Status(r["status"]), "") for i, r in self.before.rows.items()}},
            [
                (c.op, *c.dims.values(), *c.dtypes.values(), c.family, c.seed) for c in self.cells
            ],  # cells with equal inputs
            targets=[pattern_of(c.target) for c in self.cells],
            quiet=[quiet_of(request.plan.matrix(c), c) for c in self.cells],
            hosts=self.fleet.hosts(),
            arms=[int(c.arm != request.arms[0].arm.name) for c in self.cells] if request.arms else None,
            mates=self.rounds.mates if self.rounds else None,
            grace=request.wait_for_devices_s,
            slack=limits.slack(limits.loosest(self.deadlines.values())),
        )
        self.scheduler.tried(self.before.attempts)

    def run(self) -> RunOutcome:
        self.begun = begun = time.monotonic()
        with interrupts.heard() as self.interrupts:
            try:
                self._open_journal()
                for device in list(self.fleet.slots):
                    self.fleet.start(device)
                tables.load_ahead()  # while devices start
                with self._journaled():
                    self._act(self.scheduler.begin(time.monotonic()))
                while not self.finished:
                    self._turn()
                self.all_ended = time.monotonic()
                if not self.interrupted and not self.scheduler.open_cells:
                    self.cluster.wind_down()
                # Before anything is closed: a part of Ray that is gone could end this process, or hold it.
                outcome = self._conclude_run(self.all_ended - begun)
                code = outcome.final_code
                supervisor.concluded(code, complete=not outcome.interrupted)
                if not outcome.interrupted:
                    self.writer.close()
                    self.request.complete()
            finally:
                self.cluster.close()
        return outcome

    def _open_journal(self) -> None:
        """Write the plan; or, if the journal has it, that the run is resumed."""
        if self.request.finished is None:
            self.writer.plan(self._head(), self.cells)
            return
        self.writer.append({"event": "resumed", **self._resumption()})
        self.writer.sync()

    def _resumption(self) -> dict[str, Any]:
        return {
            "time": round(self.created.timestamp(), 3),
            "argv": self.request.argv,
            "revision": self.request.revision,
        }

    @property
    def interrupted(self) -> bool:
        return self.interrupts.noted

    def _turn(self) -> None:
        """One round of the loop: events in, actions out."""
        if self.interrupted or self.by_finding or self._is_over():
            self._step(Interrupted(time.monotonic()))
            return
        heard = self.cluster.events(TICK_SECONDS)
        with self._journaled():
            for said in heard:
                self._hear(said)
                if self.finished:
                    return
            now, later = time.monotonic(), self.later
            self.later = []
            for event in [*later, *self.fleet.refresh(now), *self.fleet.overdue(now), Tick(now)]:
                self._step(event)
            for pool, nodes in self.fleet.news(now, self.scheduler.waiting()):
                self.fleet.lacks(str(pool), nodes, self.scheduler.why_waiting(pool))
        if self.rounds and self.scheduler.open_cells == 0 and not self.finished:
            with self._journaled():
                self._step(self.rounds.next(self.progress))
        self.progress.eta({b: self.scheduler.remaining_seconds(b) for b in self.fleet.backends()})

    def _is_over(self) -> bool:
        """Whether the run has used up its time."""
        limit = self.request.limit_s
        if limit and time.monotonic() - self.begun > limit and self.scheduler.open_cells:
            self.overtime = Message(f"the run's {limit / 60:g} minutes were over", id="run-out-of-time")
        return bool(self.overtime)

    @contextmanager
    def _journaled(self) -> Iterator[None]:
        """Write the lines of the journal together, and report concluded cells after that."""
        with self.writer.together():
            yield
        rows, self.concluded = self.concluded, []
        for row in rows:
            self.progress.cell(row)
            if self.request.stop_at_first and not self.by_finding and self._is_finding(row):
                self.by_finding = True
                self.first = f"{row['status']}: {row['cell_id']}"

    def _is_finding(self, row: Mapping[str, Any]) -> bool:
        counts = self.request.strict_peers or row["role"] == "subject"
        failed = counts and Status(row["status"]) in FINDINGS
        return failed and not known.covered(self._known_failures([row], [self.cells[row["index"]]]))

    def _hear(self, said: dict[str, Any]) -> None:
        """One event of a device.  An exception is a fault of the farm's here or there, and costs the event's cell."""
        self.fleet.times.heard(said)
        if self.interrupted and said.get("status") == Status.CRASHED:
            return  # the signal may have been for all processes; the cell runs again when the run is resumed
        device, cell = said.get("device"), said.get("cell")
        held = self.scheduler.attempt_at(device, cell) if isinstance(device, str) and isinstance(cell, int) else None
        if cell is not None and (held is None or said.get("attempt") != held.number):
            return  # of an attempt that is over, or of another device's
        try:
            event = self.hear[said["event"]](said)
            if event:
                self._step(event)
        except (FarmError, OSError):  # the store's, or the cluster's
            raise
        except Exception as error:
            self._contain(str(device), held, f"{said.get('event')!r:.80}", error)

    def _contain(self, device: str, held: Attempt | None, event: str, error: Exception) -> None:
        """Conclude the cell of an event that raised, and journal why; without a cell, and at every third event of one
        device, it is the device's fault."""
        why, trace = self._failed(device, f"event {event} of {device}", error)
        now = time.monotonic()
        self.contained[device] += 1
        if held is not None and self.scheduler.attempt_at(device, held.cell) == held:
            self._step(self.reports.failed(now, device, held, why, trace))
        if device in self.fleet.slots and (held is None or self.contained[device] % MAX_CONTAINED == 0):
            self._step(self.fleet.down({"device": device, "at": now, "reason": why, "final": False}))

    def _failed(self, device: str, what: str, error: Exception) -> tuple[Message, str]:
        """Journal an exception of the loop: (its sentence, its trace)."""
        trace = "".join(traceback.format_exception(error))
        why = Message(f"the farm failed on {what} ({describe(error)}); please report it", id="event-failed")
        said = {"device": device, "reason": why, "trace": trace}
        self.writer.append(line("event_failed", said, "device", "reason", "trace"))
        return why, trace

    # actions out

    def _step(self, event: Event) -> None:
        self._act(self.scheduler.step(event))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            try:
                self._perform(action)
            except (FarmError, OSError):
                raise
            except Exception as error:
                self._undo(action, error)

    def _perform(self, action: Action) -> None:
        if isinstance(action, Grant):
            self._grant(action)
        elif isinstance(action, Conclude) and action.round and self.rounds:
            self.rounds.ended(action, self.reports.of_round(action))
        elif isinstance(action, Conclude):
            row = self.reports.conclude(action)
            if row:
                self.concluded.append(row)
                if self.rounds:
                    self.rounds.keep(row)
        else:  # the next action may wait for the cluster
            self.writer.commit()
        if isinstance(action, Start):
            self.fleet.start(action.device)
        elif isinstance(action, Replace):
            self.fleet.replace(action.device, action.reason)
        elif isinstance(action, Retire):
            self.fleet.retire(action.device, action.reason, drained=action.drained)
        elif isinstance(action, ProbeGrant):
            self.cluster.grant(action.device, {"probe": self._probe(action)})
        elif isinstance(action, HealthChanged):
            self.fleet.changed(action.device, action.state, action.reason)
        elif isinstance(action, Finish):
            self.finished, self.stopped = True, action.stopped or self.overtime

    def _probe(self, action: ProbeGrant) -> dict[str, Any]:
        """What an actor is told of a probe: an attempt with a number of its own, which is no attempt of the plan's."""
        if action.cell is not None:
            return {"id": action.probe, **self._order(Attempt(action.cell, action.attempt, last=True))}
        cell, deadlines = small_cell(self.fleet.slots[action.device].backend), self.fleet.deadlines
        call = {**call_for(cell, contract(cell.op), {"name": cell.provider}), "deadlines": deadlines}
        order = {"cell": cell.to_dict(), "number": 1, "round": 0, "last": True, "call": call}
        return {"id": action.probe, **order, "tolerances": [], "deadlines": deadlines}

    def _undo(self, action: Action, error: Exception) -> None:
        """An action that failed is its device's fault; the scheduler hears of it once it is done with this event."""
        if isinstance(action, (Conclude, Finish)):
            raise error
        device = action.lease.device if isinstance(action, Grant) else action.device
        why, _ = self._failed(device, f"{type(action).__name__.lower()} of {device}", error)
        if not isinstance(action, Retire):
            down = {"device": device, "at": time.monotonic(), "reason": why, "final": False}
            self.later.append(self.fleet.down(down))

    def _grant(self, action: Grant) -> None:
        lease = action.lease
        attempts = []
        for attempt in lease.attempts:
            try:
                attempts.append(self._order(attempt))
            except Exception as error:
                why, trace = self._failed(lease.device, f"the order of {self.cells[attempt.cell].cell_id}", error)
                self.later.append(self.reports.failed(time.monotonic(), lease.device, attempt, why, trace))
        self.fleet.neighbours.busy(lease.device, time.monotonic())
        ahead = self._ahead(lease.device, [attempt.cell for attempt in lease.attempts])
        told = {"id": lease.id, "attempts": attempts, "coming": self._coming(action.coming)}
        self.cluster.grant(lease.device, {**told, **({"ahead": ahead} if ahead else {})})

    def _ahead(self, device: str, cells: list[int]) -> dict[str, Any] | None:
        """What the device's host may compile ahead: never worth a failure."""
        with suppress(Exception):
            slot = self.fleet.slots[device]
            said = self.fleet.devices.get(device)
            if said and self.fleet.compiles_ahead:
                return self.ahead.order(host_of(slot), said, cells, self.reports.rows)
        return None

    def _order(self, attempt: Attempt) -> dict[str, Any]:
        """What an actor is told of one attempt."""
        cell = self.cells[attempt.cell]
        matrix = self.request.plan.matrix(cell)
        deadlines = self.deadlines[cell.matrix]
        call = {**call_for(cell, contract(cell.op), self._provider(cell)), "deadlines": deadlines}
        if matrix.sim or cell.backend == "sim":  # any backend, because a node may simulate it
            call["sim"] = script_for(matrix.sim, cell)
        return {
            "cell": cell.to_dict(),
            "number": attempt.number,
            "round": attempt.round,
            "last": attempt.last,
            "call": call,
            "tolerances": tolerances_for(matrix.tolerances, cell),
            "deadlines": deadlines,
            **({"known": known} if (known := self._known_hash(attempt)) else {}),
        }

    def _known_hash(self, attempt: Attempt) -> str:
        """The hash of the outputs that round 0 judged, for an attempt of a further round, else empty."""
        return self.rounds.output_hash(attempt.cell) if self.rounds and attempt.round else ""

    def _coming(self, waiting: tuple[int, ...]) -> list[dict[str, Any]]:
        """One cell for each of the next references that was not announced yet."""
        out: list[dict[str, Any]] = []
        for index in waiting:
            cell = self.cells[index]
            try:
                key = evaluate.reference_key(cell, contract(cell.op))
            except Exception:  # the contract's fault: the judge reports it for the cell
                continue
            if key not in self.announced and len(out) < MAX_COMING:
                self.announced.add(key)
                out.append(cell.to_dict())
        return out

    def _provider(self, cell: Cell) -> Mapping[str, Any]:
        return provider_of(cell, self._providers(cell))

    def _providers(self, cell: Cell) -> Mapping[str, Mapping[str, Any]]:
        arm = next((a for a in self.request.arms if a.arm.name == cell.arm), None)
        return arm.providers if arm else self.request.providers

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
            **({"kit": dict(r.kit)} if r.kit else {}),
            **({"known": [k.to_dict() for k in r.known]} if r.known else {}),
            "revision": r.revision,
            "providers": {k: dict(v) for k, v in r.providers.items()},
            **({"subject": r.subject.described()} if r.subject else {}),
            **({"kind": KIND, "arms": {a.arm.name: a.described() for a in r.arms}} if r.arms else {}),
            "environments": {r.environment.name: {}},  # what each device used is added by `_foot`
        }

    def _conclude_run(self, seconds: float) -> RunOutcome:
        by_finding = self.by_finding and not self.interrupted and self.scheduler.open_cells > 0
        if by_finding:
            self.stopped = Message(f"at the first finding ({self.first})", id="run-first-finding")
        stopped = self.stopped != "" or (self.interrupted and self.scheduler.open_cells > 0)
        missing = [c.cell_id for c in self.cells if c.index not in self.reports.rows]
        if missing and not stopped:
            raise InfraError(
                f"the run ended without a result for {len(missing)} of {len(self.cells)} cells (first: {missing[0]}); "
                "this is a bug in the farm, please report it",
                id="coordinator-cells-missing",
            )
        open_why = self.stopped or results.INTERRUPTED
        rows = [self.reports.rows.get(c.index) or Concluded(c, results.planned_row(c, open_why)) for c in self.cells]
        told = self._known_failures(rows)
        covered, stale = known.covered(told), bool(known.fixed(told)) and not stopped
        verdict, code = results.verdict(rows, strict_peers=self.request.strict_peers, known=covered, stale=stale)
        pairs, summed = self.rounds.pairs(covered) if self.rounds else ([], None)
        final = summed.exit_code if summed else code
        if stopped:
            why = {"reason": self.stopped} if self.stopped else {}
            self.writer.append({"event": "interrupted", "time": round(time.time(), 3), **why})
            self.writer.sync()
            code = 1 if by_finding else final  # the cells that did not run are no infrastructure failures
            return RunOutcome(rows, verdict, code, True, self.stopped, by_finding, pairs, summed, known=told)
        self.writer.append({"event": "finished", "time": round(time.time(), 3)})
        times = self.fleet.times.summed(self.all_ended, time.monotonic())
        head = {**self._head(), **self._foot(rows, seconds, verdict, code), **({"known": told} if told else {})}
        head["utilisation"] = times
        if summed:
            kernels = self.rounds.kernels() if self.rounds else []
            head["comparison"] = {
                "verdict": summed.name,
                "exit_code": final,
                "why": list(summed.why),
                **report.counts(pairs),
                **(self.rounds.told() if self.rounds else {}),
                **({"kernels": kernels} if kernels else {}),
            }
        self.writer.conclude(self.cells, self.reports.rows, head, self.rounds.tables(pairs) if self.rounds else None)
        noise = self.rounds.record(head["finished"]) if self.rounds else None
        return RunOutcome(
            rows, verdict, final, False, pairs=pairs, summary=summed, noise=noise, known=told, utilisation=times
        )

    def _known_failures(
        self, rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell] | None = None
    ) -> list[dict[str, Any]]:
        """What became of the known failures; of a resumed run those that it began with."""
        begun = self.request.finished.head.get("known") if self.request.finished else None
        entries = self.request.known if begun is None else [KnownFailure.from_dict(e) for e in begun]
        today = datetime.now(timezone.utc).date().isoformat()
        statuses = zip(cells or self.cells, (str(row["status"]) for row in rows))
        return applied(entries, statuses, today, whole=self.request.whole)

    def _foot(self, rows: Sequence[Mapping[str, Any]], seconds: float, verdict: str, code: int) -> dict[str, Any]:
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
                        "versions": d.get("versions", {}),
                        **({"subject": d["subject"]} if d.get("subject") else {}),
                        "calibration": self._calibration(d["device"]),
                    }
                    for d in mine
                ],
                "counts": results.counts(r for r in rows if r["backend"] == backend),
            }
        health = device_health.kept([*self.before.health, *self.fleet.health])
        return {
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds + self.before.seconds, 3),
            "backends": used,
            "environments": _environments({**self.before.devices, **self.fleet.devices}, self.request.environment.name),
            "calibrations": {**self.before.calibrations, **self.roofs.used()},
            **({"health": health} if health else {}),
            "counts": results.counts(rows),
            "verdict": verdict,
            "exit_code": code,
        }

    def _calibration(self, device: str) -> Mapping[str, Any] | None:
        """The calibration that the device used: in this session, else in the last one that had it."""
        if device not in self.fleet.devices:
            return self.before.choices.get(device)
        choice = self.roofs.chosen(device)
        return choice.to_dict() if choice else None


def _environments(devices: Mapping[str, Mapping[str, Any]], asked: str) -> dict[str, dict[str, list[str]]]:
    """Environment -> the command that started children in it -> devices: each node defines its own environments."""
    out: dict[str, dict[str, list[str]]] = {asked: {}}
    for name, said in sorted(devices.items()):  # independent of the order in which they came up
        words = " ".join(said.get("command") or [])
        if words:
            out.setdefault(said.get("environment") or asked, {}).setdefault(words, []).append(name)
    return out
