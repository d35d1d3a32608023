"""`farm kit`: one archive that runs cells where nothing of the farm is installed; `farm merge` takes its result."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from farm import __version__, atomic_files
from farm.cli import common
from farm.cli.kit_arms import FromArms
from farm.cli.text import counted, duration, printable, sentence
from farm.errors import Message, StoreError, UsageError
from farm.kernel_package import ROOT
from farm.matrix import Plan, plan
from farm.shipping import archives, bundle, contracts, revision
from farm.sites import kit as kits
from farm.sites import planfile
from farm.sites.kit import Kit
from farm.sites.planfile import PlanFile
from farm.store import Store
from farm.store.kit_runs import keep_kit
from farm.subject.command_line import LoadedSubject

#: Of the farm, what no kit needs: pages, and matrices that are in the plan.
LEFT_OUT = ("dashboards", "matrices")
LONG_MINUTES = 10.0
README = """\
{title}

This archive runs {cells} of GPU or NPU kernels on one {backend} device, checks every
output against a float64 reference, times what can be timed, and writes one file to
send back. Estimated time: {time} on one device, and longer on a slow host.{arms}

What it needs
  The Python (3.10 or newer) in which your torch and your Triton work, with NumPy, and a
  C compiler for Triton. Nothing else: no Ray, no pip install, no network, no root.

How to run it
  tar xzf {name}*.tar.gz && cd {name}*/
  python3 run.py --check                    says in a sentence each what is here
  python3 run.py --by "your name" --site "your site"
  Then send back result/result-....tar.gz, also if something failed: that is a result.

  It can be interrupted (Ctrl-C, a killed job, a reboot): start it again and it continues.
  --limit-minutes N   stop after N minutes, and pack what there is
  --devices N         use N devices (default: 1); CUDA_VISIBLE_DEVICES,
                      ROCR_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES choose which
  --anonymous         leave login name, host name, home folder and serial numbers out
  --out DIR           write elsewhere than into the folder result beside run.py

What it does
  Each kernel runs in a process of its own that opens the device; a crash or a hang costs
  one cell. It waits for a device that another process uses, and changes no setting of it
  (no clocks, no power limit, no reset).
  It writes below the folder result, and temporary files into /dev/shm or the folder for
  temporary files, which it removes.

What it never does
  It opens no network connection, needs no root, installs nothing, reads none of your
  files, and starts nothing that is left running.

What the result contains
  Per cell: status, errors against the reference, times with raw samples, clocks and
  temperature. Once: device, driver and tool-chain versions, Python's path, host name,
  your login name (or --by), logs of failed cells. The archive is text (JSON lines):
  look at it before you send it.

What is inside
  run.py        checks that every file is as kit.json says, then runs the plan
  plan.json     every cell, with shapes, dtypes, tolerances and deadlines
  farm/, kernels/{more}   plain Python sources; nothing is compiled for any architecture
  Plan {plan}, revision {revision}.
"""
ARMS = """
It compares two arms in turn on the same device: after the first pass, timed cells run
in further rounds, so it takes about three times as long.
  a: {}
  b: {}"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "kit",
        help="pack cells, kernels and the farm into one archive for a site without a farm",
        description="Write one archive that somebody runs with python3 run.py where only NumPy, torch and Triton are "
        "installed. The file that run.py writes comes back to farm merge.",
        epilog="example: farm kit matrices/rms_norm.yaml --target rocm",
    )
    common.matrix_options(p, backend=False, needed=False)
    common.subject_options(p)
    p.add_argument(
        "--target", metavar="T", required=True, help="what the kit is for: a backend, or backend:PATTERN of the plan"
    )
    p.add_argument("--plan", type=Path, metavar="PLAN", help="pack a part of this plan file instead of matrices")
    p.add_argument("--out", metavar="FILE", type=Path, help="write this archive (default: kit-....tar.gz here)")
    p.add_argument(
        "--store", metavar="STORE", help="remember the kit in this store (default: $FARM_STORE, else ./farm-results)"
    )
    p.add_argument("--a", metavar="KEY=VALUE,..", help="compare two arms there, as farm ab does: the first arm")
    p.add_argument("--b", metavar="KEY=VALUE,..", help="the second arm")


def run(args: argparse.Namespace) -> int:
    """Plan, pack and write."""
    common.use_contracts(args)
    found: Packed
    if args.a or args.b:
        found = FromArms(args)
        for line in found.lines:
            print(printable(line), file=sys.stderr)
    else:
        found = _FromPlan(args) if args.plan else _FromMatrices(args)
    part = planfile.part(found.file.plan, args.target)
    if not any(not c.skip_reason for c in part.cells):
        raise UsageError(f"--target {args.target}: the rules exclude every cell, so nothing would run", id="kit-empty")
    content = _content(found)
    backend = part.cells[0].backend
    told = _told(found, args.target)
    provisional = kits.read(kits.manifest(told, content), "kit")
    readme = _readme(provisional, found, part, backend)
    content[kits.README] = readme.encode()
    text = kits.manifest(told, content)
    kit = kits.read(text, "kit")
    content[kits.KIT] = text
    path = args.out or Path(f"{kit.name}.tar.gz")
    _write(path, archives.pack(content, kit.name, (kits.SCRIPT, kits.SHELL)))
    store = Store(args.store or os.environ.get("FARM_STORE") or "farm-results")
    keep_kit(store, kit.digest, text.decode())
    seconds = part.backends[backend].seconds
    print(f"{path}: {counted(len(part.cells), 'cell')} on {args.target}, about {duration(seconds)} on one device")
    print("there: tar xzf ARCHIVE, then python3 run.py in its folder; README.txt says the rest")
    print(f"then:  farm merge RESULT{f' --out {args.store}' if args.store else ''}, with the file that run.py writes")
    if seconds > LONG_MINUTES * 60:
        note = Message(
            f"that is more than {LONG_MINUTES:g} minutes; fewer cells (--select) are run more willingly", id="kit-long"
        )
        print(f"farm kit: {sentence(note)}", file=sys.stderr)
    return 0


class _FromMatrices:
    """What the matrix files request."""

    told: Mapping[str, Any] = {}  # what the manifest says of arms
    blobs: Mapping[str, bytes] = {}

    def __init__(self, args: argparse.Namespace):
        backend = args.target.partition(":")[0]
        asked = argparse.Namespace(**{**vars(args), "backend": backend})
        (name,) = common.named_backends(asked)
        self.subject: LoadedSubject | None = common.subject(args)
        matrices = common.matrices(args, self.subject)
        made: Plan = plan(matrices, [name], select=args.select)
        calls = {**common.own_providers(args), **common.declared_calls(matrices)}
        self.own, self.shipped = common.packed(calls)
        text = planfile.write(made, self.own, self.subject.packed.described() if self.subject else {})
        self.file: PlanFile = planfile.read(text, "the plan")


class _FromPlan:
    """What a part of a plan file requests, with the code that this host has for it."""

    told: Mapping[str, Any] = {}
    blobs: Mapping[str, bytes] = {}

    def __init__(self, args: argparse.Namespace):
        from farm.cli.run import PlanPart, check_plan_alone, read_plan

        again = argparse.Namespace(**{"backend": None, "cells": None, **vars(args)})
        check_plan_alone(again)
        part = PlanPart(again, read_plan(again.plan, "--plan"))
        self.subject: LoadedSubject | None = part.subject
        self.own, self.shipped = common.packed(part.providers)
        part.check_providers(self.own)
        self.file: PlanFile = part.file


Packed: TypeAlias = _FromMatrices | _FromPlan | FromArms


def _content(found: Packed) -> dict[str, bytes]:
    """The kit's files, but for its manifest and README.txt."""
    content = {kits.PLAN: found.file.text.encode()}
    packed = contracts.pack()
    if packed:
        content[kits.CONTRACTS] = contracts.text(packed).encode()
    for name, blob in found.blobs.items():
        content[name] = blob
        _refuse_compiled(name, dict(_members(blob)))
    if found.subject:
        content[kits.SUBJECT] = found.subject.packed.blob
        _refuse_compiled(found.subject.packed.name, dict(_members(found.subject.packed.blob)))
    if found.shipped:
        _refuse_compiled("--provider", found.shipped["files"])
        content |= {kits.PROVIDERS + name: data for name, data in found.shipped["files"].items()}
    for name in bundle.NAMES:
        content |= bundle.sources(name, LEFT_OUT if name == "farm" else ())
    script = ROOT / "farm" / "cli" / "kit_run.py"
    content[kits.SCRIPT] = script.read_bytes()
    content[kits.SHELL] = b'#!/bin/sh\nexec "${PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"\n'
    return content


def _members(blob: bytes) -> list[tuple[str, bytes]]:
    from farm.shipping import files

    return list(files.members(blob))


def _refuse_compiled(whose: str, content: Mapping[str, bytes]) -> None:
    if name := kits.compiled(content):
        raise UsageError(
            f"{whose}: {name} is compiled for one architecture, and a kit carries sources alone; install it at the "
            "site, and name a module that imports it",
            id="kit-compiled",
        )


def _told(found: Packed, target: str) -> dict[str, Any]:
    """What the manifest says beside the files."""
    own = found.subject.packed if found.subject else None
    subject = {k: v for k, v in own.plain().items() if k not in ("blob", "origins")} if own else None
    return {
        "farm": __version__,
        "target": target,
        "plan": {"hash": found.file.plan.plan_hash, "sha256": found.file.sha256},
        "revision": {**revision.of(), "kernels": revision.content()},
        "providers": {**found.own, **(found.subject.calls if found.subject else {})},
        "shipped": found.shipped["sha"] if found.shipped else "",
        "subject": subject,
        "bundles": {b.name: b.sha for b in bundle.pack_all()},
        **found.told,
    }


def _readme(kit: Kit, found: Packed, part: Plan, backend: str) -> str:
    more = "".join(f", {name}" for name in ("providers/", "subject.tar") if _has(kit, name))
    planned = part.backends[backend]
    return README.format(
        title=f"A kit of kernel-farm for {kit.target}\n" + "=" * (25 + len(kit.target)),
        cells=counted(planned.cells - planned.skipped, "cell"),
        backend=backend,
        time=duration(planned.seconds),
        name=f"{kit.name.rpartition('-')[0]}-",  # the rest of it is a hash over this text, too
        more=more,
        arms=ARMS.format(*(told["described"]["called"] for told in kit.arms)) if kit.arms else "",
        plan=found.file.plan.plan_hash[:16],
        revision=kit.data["revision"]["name"],
    )


def _has(kit: Kit, name: str) -> bool:
    return any(file.startswith(name) for file in kit.files)


def _write(path: Path, blob: bytes) -> None:
    try:
        atomic_files.write(path, blob)
    except OSError as error:
        raise StoreError(
            f"--out {path}: cannot be written ({error.strerror or error}); name a file in a folder with space",
            id="kit-unwritable",
        ) from None
