"""One compilation of matrices for targets, from the plan to `run.json`: the edge around the workers."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from farm import kernel_package
from farm.accuracy import evaluate
from farm.cell import Cell, Owner, Status
from farm.compile import ascend_environment, cache, gate
from farm.compile.jobs import split
from farm.compile.planning import target_of, told
from farm.compile.targets import TARGETS, CompileTarget
from farm.compile.workers import Chain, WorkerPool
from farm.contracts.discovery import contract
from farm.errors import BackendError, UsageError
from farm.kernel_package import ROOT
from farm.matrix import Plan
from farm.node import sandbox_host
from farm.process import interrupts, supervisor
from farm.shipping import bundle, subjects
from farm.shipping import providers as shipping
from farm.shipping.subjects import PackedSubject
from farm.store import RunWriter, results

#: What a cell of the row keeps of a kernel's hash: enough to tell kernels apart.
HASH_DIGITS = 12


class CompileProgress(Protocol):
    """Who is told how it goes."""

    def cell(self, row: Mapping[str, Any]) -> None: ...


class Silent:
    """Tells nobody."""

    def cell(self, row: Mapping[str, Any]) -> None:
        pass


@dataclass
class CompileRequest:
    """What a compilation needs besides its directory."""

    plan: Plan
    targets: Sequence[CompileTarget]
    command: str = ""
    argv: Sequence[str] = ()
    revision: Mapping[str, Any] = field(default_factory=dict)
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # "NAME" or "OP:NAME" -> path
    shipped: dict[str, Any] | None = None  # the files behind them
    subject: PackedSubject | None = None  # somebody's kernels, first on every worker's import path
    kernels: Path | None = None  # a folder with another revision's `kernels`
    machine_code: bool = False  # count instructions in the machine code, where that takes longer
    variables: Mapping[str, str] = field(default_factory=dict)  # of every worker, over the subject's
    asm: str = ""  # a folder for the compiled code of each kernel as text
    sandbox: bool = False  # compile in sandboxes: a compiler runs the code beside the kernels
    workers: int = 0  # processes at a time; 0: as many as there are processors, at most 8


@dataclass
class CompileOutcome:
    """How it ended."""

    rows: list[dict[str, Any]]
    kernels: dict[tuple[str, str], dict[str, Any]]  # (target, hash) -> what its worker said
    verdict: str
    exit_code: int
    interrupted: bool
    seconds: float


def chains_exist(targets: Sequence[CompileTarget]) -> None:
    """BackendError if a tool chain is missing: its target was requested by name, so nothing starts without it."""
    for target in targets:
        if target.backend == "ascend":
            if ascend_environment.find() is None:
                raise BackendError(
                    f"--target {target.name}: the Ascend tool chain is not set up on this host; "
                    "run farm compile --setup ascend once (it needs Python 3.10 or 3.11)",
                    id="compile-chain-missing",
                )
            continue
        for module in ("torch", "triton"):
            if find_spec(module) is None:
                raise BackendError(
                    f"--target {target.name}: {module} is not installed in this Python ({sys.executable}); "
                    f"pip install {module}, or use a Python that has it",
                    id="compile-module-missing",
                )


def chains(targets: Sequence[CompileTarget], folder: Path, first: Sequence[str]) -> dict[str, Chain]:
    """For each target, the Python to compile with and its import path."""
    chains_exist(targets)
    out = {}
    for target in targets:
        if target.backend == "ascend":
            python = ascend_environment.python_of(ascend_environment.find() or ascend_environment.folder())
            # The packages of this Python must stay out of that one: it finds the farm through links alone.
            links = folder / "links"
            links.mkdir(exist_ok=True)
            for name, place in (("farm", ROOT / "farm"), ("kernels", kernel_package.folder())):
                if place and not (links / name).exists():
                    (links / name).symlink_to(place)
            out[target.name] = Chain(str(python), (str(links),), tuple(first))
        else:
            here = tuple(p for p in sys.path if p and Path(p).exists())
            out[target.name] = Chain(sys.executable, here, tuple(first))
    return out


def boxed(chain: Chain, folder: Path) -> Chain:
    """The same for workers in a sandbox, to which a copy of the farm's sources is shown, and not the checkout.
    UsageError where no sandbox can be made."""
    why = sandbox_host.refusal()
    if why:
        raise UsageError(f"no sandbox can be made here: {why}", id="run-no-sandbox")
    copy = folder / "farm-sources"
    if not copy.exists():  # not its links, which are other folders of a checkout
        left_out = shutil.ignore_patterns("__pycache__", "dashboards", "matrices")
        shutil.copytree(ROOT / "farm", copy / "farm", ignore=left_out)
    kernels = bundle.pack("kernels")
    ours = (str(copy), str(bundle.install(kernels.sha, kernels.blob, folder)))
    theirs = sandbox_host.own_path(chain.path) if chain.python == sys.executable else ()
    return replace(chain, path=(*ours, *theirs))


def execute(
    request: CompileRequest, writer: RunWriter | None, progress: CompileProgress | None = None
) -> CompileOutcome:
    """Compile the plan.  With a `writer` the run goes to its directory, every result the moment it is known."""
    run = _Compilation(request, writer, progress or Silent())
    try:
        return run.run()
    finally:
        if writer:
            with suppress(OSError):
                writer.close()


class _Compilation:
    def __init__(self, request: CompileRequest, writer: RunWriter | None, progress: CompileProgress):
        self.request, self.writer, self.progress = request, writer, progress
        self.cells = list(request.plan.cells)
        self.rows: dict[int, dict[str, Any]] = {}
        self.kernels: dict[tuple[str, str], dict[str, Any]] = {}
        self.fingerprints: dict[str, Mapping[str, Any]] = {}
        self.launches: dict[str, int] = {}
        self.created = datetime.now(timezone.utc)
        self.seconds = {m.name: m.deadlines["compile"] for m in request.plan.matrices}
        self.interrupted = False

    def run(self) -> CompileOutcome:
        begun = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="farm-compile-"))
        supervisor.removes(str(folder))
        try:
            first = [str(self.request.kernels)] if self.request.kernels else []
            if self.request.shipped:
                first.insert(0, shipping.unpack(self.request.shipped, str(folder)))
            subject, told_subject = self.request.subject, None
            if subject:
                place, path = subjects.unpack(subject.plain(), str(folder))
                first = [*path, *first]
                told_subject = {**subject.described(), "folder": str(place)}
            found = chains(self.request.targets, folder, first)
            if self.request.sandbox:
                found = {name: boxed(chain, folder) for name, chain in found.items()}
            if self.writer:
                self.writer.plan(self._head(), self.cells)
            # what strangers' code could write to, nobody else reads
            kept = folder / "cache" if self.request.sandbox else cache.folder(folder / "cache")
            cache.trim(kept)
            pool = WorkerPool(
                self,
                workers=self._workers(),
                folder=folder,
                cache=kept,
                describe=lambda index: told(self.cells[index], self._provider(self.cells[index])),
                chains=found,
                cell_seconds=lambda index: self.seconds[self.cells[index].matrix],
                machine_code=self.request.machine_code,
                asm=self.request.asm,
                sandbox=self.request.sandbox,
                subject=told_subject,
                variables=lambda name: {
                    **(subject.variables.get(TARGETS[name].backend, {}) if subject else {}),
                    **self.request.variables,
                },
            )
            with interrupts.heard() as heard:
                try:
                    self._settle()
                    pool.run(self._jobs(), lambda: heard.noted)
                except KeyboardInterrupt:
                    if not heard.noted:
                        raise
                self.interrupted = heard.noted
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self._conclude_run(time.monotonic() - begun)

    def _workers(self) -> int:
        return self.request.workers or max(1, min(8, os.cpu_count() or 1))

    def _settle(self) -> None:
        """Cells with a status before anything starts: excluded by a rule, or refused by the contract."""
        for cell in self.cells:
            if cell.skip_reason:
                self._conclude(cell, Status.SKIPPED, None, cell.skip_reason)
                continue
            reason = evaluate.unsupported(cell, contract(cell.op))
            if reason:
                self._conclude(cell, Status.UNSUPPORTED, None, reason)

    def _jobs(self) -> list[Any]:
        jobs = []
        for target in self.request.targets:
            mine = [c for c in self.cells if target_of(c) == target.name and c.index not in self.rows]
            if mine:
                jobs += split(target.name, mine, self._workers())
        return jobs

    def _provider(self, cell: Cell) -> Mapping[str, Any]:
        own = self.request.providers
        found = dict(own.get(f"{cell.op}:{cell.provider}") or own.get(cell.provider) or {})
        differs = found.pop("backends", {}).get(cell.backend, {})
        return {"name": cell.provider, **found, **differs}

    # what the workers say

    def ready(self, target: str, fingerprint: Mapping[str, Any]) -> None:
        self.fingerprints[target] = fingerprint

    def kernel(self, target: str, said: Mapping[str, Any]) -> None:
        self.kernels[target, said["hash"]] = {n: said[n] for n in ("name", "resources", "constants")}

    def end(self, said: Mapping[str, Any], log: str) -> None:
        cell = self.cells[said["cell"]]
        target = target_of(cell)
        status, reason, flags = Status(said["status"]), said["reason"], list(said["flags"])
        known = [launch for launch in said["launches"] if (target, launch["hash"]) in self.kernels]
        self.launches[target] = self.launches.get(target, 0) + len(said["launches"])
        if status is Status.BUILT:
            launches = [self._launch(target, a) for a in known]
            judged = gate.judge(cell.mode, cell.dims, contract(cell.op).spill_free, launches)
            status, reason = judged.status, judged.reason
            flags += judged.flags
        owner = {Status.BUILT: None, Status.INFRA_ERROR: Owner.INFRA}.get(status, Owner.KERNEL)
        built = {
            "mode_resolved": next((r["mode"] for r in reversed(said["records"]) if r.get("mode")), cell.mode),
            "launch": {"kernels": said["records"] or [_without_hash(a) for a in said["launches"]]},
            "resources": self._resources(target, known),
            "flags": flags,
            "compile_s": said["compile_s"],
        }
        self._conclude(cell, status, owner, reason, built=built, log=log, target=target)

    def settled(self, cell: int, status: Status, owner: Owner, reason: str, log: str) -> None:
        ran = status is not Status.UNSUPPORTED  # else its tool chain is not there: nothing was tried
        target = target_of(self.cells[cell])
        self._conclude(self.cells[cell], status, owner, reason, log=log, target=target if ran else "")

    def _launch(self, target: str, told: Mapping[str, Any]) -> gate.Launch:
        def resources(hash: str) -> Mapping[str, Any]:
            found: Mapping[str, Any] = self.kernels[target, hash]["resources"]
            return found

        rivals = tuple(resources(h) for h in told["rivals"] if (target, h) in self.kernels)
        mine = resources(told["hash"])
        threads = int(mine.get("warps") or 0) * TARGETS[target].warp
        beyond = TARGETS[target].grid_limit(told["grid"], threads) or ""
        return gate.Launch(told["kernel"], told["phase"], mine, rivals, beyond)

    def _resources(self, target: str, launches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """One entry per kernel and phase, in the order of launches."""
        out: dict[tuple[str, str], dict[str, Any]] = {}
        for launch in launches:
            found = self.kernels[target, launch["hash"]]
            entry = out.setdefault(
                (launch["hash"], launch["phase"]),
                {
                    "kernel": launch["kernel"],
                    "phase": launch["phase"],
                    "hash": launch["hash"][:HASH_DIGITS],
                    "launches": 0,
                    "grid": launch["grid"],
                    "constants": found["constants"],
                    "module": found.get("module", ""),
                    **self._rivals(target, launch["rivals"]),
                    **found["resources"],
                },
            )
            entry["launches"] += 1
        return list(out.values())

    def _rivals(self, target: str, hashes: Sequence[str]) -> dict[str, list[str]]:
        """The other variants that tuning would try on a device, by their machine code."""
        found = [(h, self.kernels[target, h]["resources"]) for h in hashes if (target, h) in self.kernels]
        digests = sorted(str(resources.get("code_digest") or h[:HASH_DIGITS]) for h, resources in found)
        return {"rivals": digests} if digests else {}

    def _conclude(
        self,
        cell: Cell,
        status: Status,
        owner: Owner | None,
        reason: str,
        *,
        built: Mapping[str, Any] | None = None,
        log: str = "",
        target: str = "",
    ) -> None:
        """The row of a cell; `target` is named where a worker tried it."""
        origin: dict[str, Any] | None = None
        if target:
            origin = {
                "target": TARGETS[target].target,
                "node": platform.node(),
                "seconds": (built or {}).get("compile_s"),
                "fingerprint": dict(self.fingerprints.get(target, {})),
                "revision": self.request.revision.get("name", ""),
                **self._provenance(cell),
            }
            if self.writer and status not in (Status.BUILT, Status.UNSUPPORTED):
                text = f"{reason}\n\n{log}" if log.strip() else reason
                origin["log"] = self.writer.log(f"{cell.index:05d}-{cell.cell_id}", text)
        row = results.finish_row(
            cell,
            status=status,
            reason=reason,
            owner=owner.value if owner else "",
            attempt=1 if target else 0,
            evidence="compiled",
            origin=origin,
            built={"timing_method": "none", **(built or {})},
        )
        self.rows[cell.index] = row
        if self.writer:
            self.writer.append({"event": "result", "row": row})
        self.progress.cell(row)

    def _provenance(self, cell: Cell) -> dict[str, str]:
        """Whose code was compiled, where it is the subject's."""
        of = self.request.subject
        if of is None or not self._provider(cell).get("subject"):
            return {}
        told = {"subject": of.name, "subject_revision": of.revision, "subject_digest": of.digest}
        return {"provider_version": of.revision or of.digest, **told}

    # the end

    def _head(self) -> dict[str, Any]:
        r = self.request
        return {
            "kind": "compile",
            "created": self.created.isoformat(timespec="seconds"),
            "command": r.command,
            "argv": list(r.argv),
            "matrices": [{"name": m.name, "path": m.path, "sha256": m.sha256} for m in r.plan.matrices],
            "plan_hash": r.plan.plan_hash,
            "planned": len(self.cells),
            "revision": dict(r.revision),
            "providers": {k: dict(v) for k, v in r.providers.items()},
            **({"subject": r.subject.described()} if r.subject else {}),
        }

    def _conclude_run(self, seconds: float) -> CompileOutcome:
        missing = [c for c in self.cells if c.index not in self.rows]
        rows = [self.rows.get(c.index) or results.planned_row(c, results.INTERRUPTED) for c in self.cells]
        verdict, code = results.verdict(rows)
        stopped = self.interrupted and bool(missing)
        if self.writer and stopped:
            self.writer.append({"event": "interrupted", "time": round(time.time(), 3)})
            self.writer.sync()
        elif self.writer:
            self.writer.append({"event": "finished", "time": round(time.time(), 3)})
            self.writer.finish(rows, [], {**self._head(), **self._foot(rows, seconds, verdict, code)})
        return CompileOutcome(rows, self.kernels, verdict, code, stopped, seconds)

    def _foot(self, rows: list[dict[str, Any]], seconds: float, verdict: str, code: int) -> dict[str, Any]:
        targets = {
            t.name: {
                **t.to_dict(),
                "fingerprint": dict(self.fingerprints.get(t.name, {})),
                "counts": results.counts(r for r in rows if r["target"] == t.target),
                "kernels": sum(target == t.name for target, _ in self.kernels),
                "launches": self.launches.get(t.name, 0),
            }
            for t in self.request.targets
        }
        return {
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "targets": targets,
            "backends": {
                b: {"devices": [], "counts": results.counts(r for r in rows if r["backend"] == b)}
                for b in dict.fromkeys(c.backend for c in self.cells)
            },
            "counts": results.counts(rows),
            "verdict": verdict,
            "exit_code": code,
        }


def _without_hash(launch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: launch[name] for name in ("kernel", "grid", "phase")}
