"""Compiles and interprets both arms, each in processes of its own, and puts what came of it together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm.cluster.inline import InlineCluster
from farm.compare import built_files, kernel_changes
from farm.compare.arms import differences
from farm.compile.planning import plan_for
from farm.compile.run import CompileProgress, CompileRequest
from farm.compile.run import execute as compile_all
from farm.compile.targets import CompileTarget
from farm.coordinator import RunRequest, execute
from farm.coordinator.request import RunProgress
from farm.errors import InfraError, UsageError, id_of
from farm.matrix import Matrix, Plan, plan
from farm.matrix.plan import plan_hash
from farm.node.environment import Environment
from farm.process import supervisor
from farm.stage_zero import pins
from farm.stage_zero.answer import CPU, Answer, Side, answer
from farm.store import Store
from farm.subject.arms import ArmContent

#: What is compared of a row.
_ROW: tuple[str, ...] = (
    *("cell_id", "cell_key", "op", "role", "backend", "target", "status", "reason", "evidence", "resources", "launch"),
    *("output_hash", "input_hash", "bytes_counted", "worst_ratio", "fingerprint"),
    *("dtype", "operation", "family", "dims", "params"),
)


@dataclass
class Stage:
    """What both arms need.  `matrices`: of each arm, since its modes are its own.  `providers`, `shipped`: those of the
    command line, alike in both."""

    contents: tuple[ArmContent, ArmContent]
    matrices: tuple[Sequence[Matrix], Sequence[Matrix]]
    targets: Sequence[CompileTarget] = ()
    interpret: bool = True
    select: str | None = None
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shipped: dict[str, Any] | None = None
    workers: int = 0
    devices: int | None = None
    environment: str = ""  # of the interpreted cells, where an arm names none
    sandbox: bool = False
    command: str = ""
    argv: Sequence[str] = ()
    named: bool = False  # `select` names cells, so that what they do not launch is no finding


def run(
    stage: Stage,
    store: Store,
    run_id: str,
    compiling: Callable[[str, Plan], CompileProgress],
    interpreting: Callable[[str, Plan], RunProgress],
) -> Answer:
    """All that can be said.  The interpreted cells become two runs of the store, `run_id` with -a and -b.
    KeyboardInterrupt ends both."""
    first, second = (content.sources() for content in stage.contents)
    changes = kernel_changes.changes(first, second)
    host = kernel_changes.host_changes(first, second)
    chains: dict[str, dict[str, str]] = {}
    sides = []
    for i in range(2):
        built = _built(stage, i, chains, compiling) if stage.targets else None
        interpreted = _interpreted(stage, i, store, f"{run_id}-{'ab'[i]}", interpreting) if stage.interpret else None
        content = stage.contents[i]
        sides.append(Side(content.arm.called, content.revision, content.digest, built, interpreted, content.notes))
    unlike = {t.name: _unlike(stage, t, chains.get(t.name, {})) for t in stage.targets}
    names = [t.name for t in stage.targets]
    other = _other_files(stage)
    code = built_files.compare(*({n: d for n, d in files.items() if n in other} for files in _built_files(stage)))
    other = [name for name in other if not built_files.is_built(name)]
    return answer(sides[0], sides[1], changes, host, other, names, chains, unlike, stage.named, code)


def planned(stage: Stage, i: int, targets: Sequence[CompileTarget]) -> Plan:
    """The cells of arm a (0) or b (1): for targets, or without them on the CPU."""
    arm = stage.contents[i].arm
    narrowed = [stage.select] if stage.select else []
    narrowed += [f"{key}={value}" for key, value in (("provider", arm.provider), ("mode", arm.mode)) if value]
    select = ",".join(narrowed) or None
    if targets:
        return plan_for(stage.matrices[i], targets, select)
    found = plan(stage.matrices[i], [CPU], select=select, named_targets=False)
    cells = found.cells if arm.provider else [c for c in found.cells if c.role == "subject"]
    made = tuple(replace(cell, index=n) for n, cell in enumerate(cells))
    return Plan(made, found.matrices, plan_hash(made), found.backends)


def _built(
    stage: Stage, i: int, chains: dict[str, dict[str, str]], compiling: Callable[[str, Plan], CompileProgress]
) -> list[dict[str, Any]]:
    content = stage.contents[i]
    try:
        cells = planned(stage, i, stage.targets)
    except UsageError as error:
        if error.id != "compile-peers-only" or not content.arm.provider:
            raise
        return []  # an arm that is a peer: its backends stay unknown
    request = CompileRequest(
        cells,
        stage.targets,
        providers=_calls(stage, content),
        shipped=stage.shipped,
        subject=content.packed,
        machine_code=True,
        sandbox=stage.sandbox,
        variables=content.arm.variables,
        workers=stage.workers,
    )
    outcome = compile_all(request, None, compiling(f"compiling arm {content.arm.name}", cells))
    if outcome.interrupted:
        raise KeyboardInterrupt
    for row in outcome.rows:
        _note_chain(chains, row)
    return [_row(stage, row) for row in outcome.rows]


def _note_chain(chains: dict[str, dict[str, str]], row: Mapping[str, Any]) -> None:
    found = json.loads(row.get("fingerprint") or "{}")
    names = {"triton": pins.COMPILERS[str(row["backend"])][0], "torch": "torch"}
    told = {called: str(found[name]) for name, called in names.items() if found.get(name)}
    if told:
        chains.setdefault(str(row["cell_id"]).rpartition("@")[2], told)


def _interpreted(
    stage: Stage, i: int, store: Store, run_id: str, interpreting: Callable[[str, Plan], RunProgress]
) -> list[dict[str, Any]]:
    content = stage.contents[i]
    cells = planned(stage, i, ())
    if not cells.cells:
        return []
    environment = Environment.default()
    environment = replace(
        environment,
        name=content.arm.environment or stage.environment or environment.name,
        variables={**environment.variables, **content.arm.variables},
        sandbox={} if stage.sandbox else None,
    )
    writer = store.create(run_id)
    cluster = InlineCluster(stage.devices, run_id)
    request = RunRequest(
        cells,
        cluster.slots([CPU]),
        stage.command,
        list(stage.argv),
        {"name": content.revision or content.digest, "version": "", "commit": "", "dirty": False},
        _calls(stage, content),
        environment=environment,
        shipped=stage.shipped,
        subject=content.packed,
    )
    outcome = execute(request, cluster, writer, interpreting(f"interpreting arm {content.arm.name}", cells))
    supervisor.concluded(InfraError.exit_code, complete=False)  # one arm's end is not the command's
    if outcome.stopped:  # by itself, as where no child can be started: nobody interrupted it
        raise InfraError(
            f"the interpreter's run stopped: {outcome.stopped}", id=id_of(outcome.stopped) or "run-stopped"
        )
    if outcome.interrupted:
        raise KeyboardInterrupt
    return [_row(stage, row) for row in store.run(run_id).rows]


def _calls(stage: Stage, content: ArmContent) -> dict[str, Mapping[str, Any]]:
    return {**stage.providers, **(content.subject.calls if content.subject else {})}


def _row(stage: Stage, row: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of a row.  Arms that differ in provider or mode name their cells alike."""
    made = {name: row.get(name) for name in _ROW}
    said = differences(*(content.arm for content in stage.contents))
    parts = str(row["cell_id"]).split("/")
    for place, key in ((2, "provider"), (3, "mode")):
        if key in said:
            parts[place] = "*"
    made["cell_id"] = "/".join(parts)
    return made


def _other_files(stage: Stage) -> list[str]:
    """Files beside the Python ones that differ: machine code, sources of other languages, data."""
    a, b = ({n: d for n, d in c.content() if not n.endswith(".py") and ".dist-info/" not in n} for c in stage.contents)
    return sorted(n for n in a.keys() | b.keys() if a.get(n) != b.get(n))


def _built_files(stage: Stage) -> list[dict[str, bytes]]:
    """The machine code of both arms, by path."""
    return [{n: d for n, d in content.content() if built_files.is_built(n)} for content in stage.contents]


def _unlike(stage: Stage, target: CompileTarget, chain: Mapping[str, str]) -> tuple[str, ...]:
    """Where an arm asks for another compiler."""
    out = []
    for content in stage.contents:
        told = pins.unlike(chain, pins.pins(_asking(content)))
        out += [f"arm {content.arm.name}: {told}"] if told else []
    return tuple(out)


def _asking(content: ArmContent) -> dict[str, str]:
    """The texts that say which compilers an arm asks for."""
    if content.arm.kind in ("version", "wheel"):
        return {n: d.decode("utf-8", "replace") for n, d in content.content() if pins.says(n)}
    there = content.folder.iterdir() if content.folder else ()
    return {p.name: p.read_text("utf-8", "replace") for p in there if pins.says(p.name) and p.is_file()}
