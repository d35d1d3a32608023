"""The two arms of a kit: packed into it, made from it where it runs, and compared again where its result arrives."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from farm import atomic_files
from farm.compare.arms import Arm
from farm.compare.kernel_changes import Change, Kernel
from farm.compare.summary import Summary
from farm.coordinator import RunRequest
from farm.coordinator.request import RunArm
from farm.coordinator.rounds import Rounds
from farm.errors import UsageError
from farm.node.environment import Environment
from farm.report import pair_rows
from farm.shipping.subjects import PackedSubject
from farm.sites import kit as kits
from farm.sites import planfile
from farm.sites.kit import Kit
from farm.store import fold, recovery
from farm.store import journal as journals
from farm.store.journal import Journal
from farm.store.kit_runs import write_more_tables
from farm.store.run_writer import Table


class FromArms:
    """What the matrix files request in both arms; `told`, `blobs`: what the manifest says of them, and their files."""

    subject = None

    def __init__(self, args: argparse.Namespace):
        from farm.cli import ab, common  # where a kit runs, nothing of this is needed
        from farm.subject import arms as contents

        if not (args.a and args.b):
            raise UsageError("--a and --b belong together; give both, or neither for a kit without arms", id="kit-arms")
        if given := next((o for o in ("plan", "wheel", "release") if getattr(args, o)), ""):
            raise UsageError(
                f"--{given} and --a, --b both say what runs; write wheel=FILE or version=NAME==VERSION in an arm, and "
                "name matrices instead of a plan",
                id="kit-arms-with",
            )
        of_run = {"same": False, "address": "inline", "environment": None, "sandbox": False, "tool": "", "tool_out": ""}
        asked = argparse.Namespace(**{**vars(args), **of_run, "backend": args.target.partition(":")[0]})
        (name,) = common.named_backends(asked)
        if named := next((arm for arm in contents.pair(args.a, args.b) if arm.environment), None):
            raise UsageError(
                f"--{named.name}: environment={named.environment} is one of a node, and a kit runs in one Python; "
                "make a kit for each Python, without it",
                id="kit-arms-environment",
            )
        arms = ab.Arms(asked)
        if arms.same:
            raise UsageError(
                f"a and b hold the same files (digest {arms.same}) and nothing else differs, so there is nothing to "
                "compare; change one of them",
                id="kit-arms-same",
            )
        work = ab.PlannedArms(asked, arms)
        ready = arms.ready(asked, work.providers)
        self.lines = arms.lines()
        self.own, self.shipped = ready.providers, ready.shipped
        text = planfile.write(work.planned([name]), self.own)
        self.file: planfile.PlanFile = planfile.read(text, "the plan")
        self.told = {
            "arms": [_told(arm) for arm in ready.arms],
            "changes": [asdict(c) for c in arms.changes()],
            "only_kernels": arms.only_kernels(),
            "named_cells": common.names_cells(args.argv),
        }
        self.blobs = {_file(a.arm.name): a.subject.blob for a in ready.arms if a.subject}


def _file(name: str) -> str:
    return f"arm-{name}.tar"


def _told(arm: RunArm) -> dict[str, Any]:
    """An arm as a manifest has it."""
    subject = {k: v for k, v in arm.subject.plain().items() if k not in ("blob", "origins")} if arm.subject else None
    return {
        "arm": arm.arm.plain(),
        "revision": arm.revision,
        "digest": arm.digest,
        "providers": {name: dict(call) for name, call in arm.providers.items()},
        "subject": subject,
        "described": arm.described(),
    }


def of_kit(kit: Kit, here: Path | None) -> tuple[RunArm, ...]:
    """Both arms of a kit that was unpacked in the folder `here`; without it, without their files."""
    out = []
    for told in kit.data.get("arms") or ():
        arm = Arm.of(told["arm"])
        blob = (here / _file(arm.name)).read_bytes() if here and told["subject"] else b""
        subject = packed_subject(told["subject"], blob)
        environment = Environment.default()
        out.append(RunArm(arm, told["revision"], environment, told["providers"], subject, told["digest"]))
    return tuple(out)


def packed_subject(told: Mapping[str, Any] | None, blob: bytes) -> PackedSubject | None:
    """A subject of a manifest, as a run sends it; None for none."""
    if not told:
        return None
    return PackedSubject(
        name=told["name"],
        revision=told["revision"],
        source=told["source"],
        modules=tuple(told["modules"]),
        over=bool(told["over"]),
        digest=told["digest"],
        sha=told["sha"],
        blob=blob,
        variables=told["variables"],
    )


def changes(kit: Kit) -> list[Change]:
    """The kernels of both arms, and how each compares."""
    return [
        Change(c["name"], _kernel(c["before"]), _kernel(c["after"]), c["state"], tuple(c["why"]))
        for c in kit.data.get("changes") or ()
    ]


def differences(kit: Kit) -> dict[str, Any]:
    """What a RunRequest has of how the two arms differ."""
    flags = {name: bool(kit.data.get(name)) for name in ("only_kernels", "named_cells")}
    return {"kernels": changes(kit), **flags}


def _kernel(told: Mapping[str, Any] | None) -> Kernel | None:
    return Kernel(**{**told, "unknown": tuple(told["unknown"])}) if told else None


class _Silent:
    """A RunProgress that nobody follows."""

    def device(self, text: str) -> None:
        """Nobody asks."""

    def cell(self, row: Mapping[str, Any]) -> None:
        """Nobody asks."""

    def eta(self, seconds: Mapping[str, float]) -> None:
        """Nobody asks."""


def compared(folder: Path, kit: Kit) -> tuple[Sequence[Mapping[str, Any]], Summary, list[dict[str, Any]]]:
    """(pairs, what they add up to, kernels) of a complete run in `folder`, computed here from its journal; they, and
    what they say, are written beside its other tables.  What the result itself said of them is replaced."""
    arms = of_kit(kit, None)
    file = planfile.read((folder / kits.PLAN).read_text(encoding="utf-8"), "its plan")
    part = planfile.part(file.plan, kit.target)
    request = RunRequest(part, [], "", [], {}, arms=arms, **differences(kit))
    journal = Journal(folder / journals.NAME)
    known = recovery.read_located(journal.located())
    begun = str(known.head.get("created") or "")
    rounds = Rounds(part.cells, request, SimpleNamespace(journal=journal), known, begun)  # type: ignore[arg-type]
    for row in fold(journal):
        rounds.keep(row)
    left = rounds.next(_Silent())
    if left.cells:
        raise UsageError(
            f"its journal lacks round {left.round} of {len(left.cells)} cells, which its own results ask for; ask for "
            "the file that run.py has written",
            id="kit-rounds-missing",
        )
    pairs, summed = rounds.pairs()
    kernels = rounds.kernels()
    more: Mapping[str, Table] = rounds.tables(pairs)
    write_more_tables(folder, more)
    head = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    head["comparison"] = {
        "verdict": summed.name,
        "exit_code": summed.exit_code,
        "why": list(summed.why),
        **pair_rows.counts(pairs),
        **rounds.told(),
        **({"kernels": kernels} if kernels else {}),
    }
    atomic_files.write(folder / "run.json", json.dumps(head, indent=1), sync=True)
    return pairs, summed, kernels
