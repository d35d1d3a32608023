"""`farm repro`: one script that shows one cell again without the farm."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm import backends, kernel_package
from farm.cell import Cell
from farm.cli import common, failed
from farm.contracts import digest, discovery
from farm.contracts.call import call_for, provider_of
from farm.errors import StoreError, UsageError
from farm.matrix.model import Tolerance, tolerances_for
from farm.report import cell_facts, repro
from farm.report.queries import Row, parse
from farm.shipping import providers as shipping
from farm.store import Run, Store

_WITHOUT_VERDICT = ("lost", "infra_error")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "repro",
        help="write a script that shows one cell again without the farm",
        description="Write one Python script that repeats one cell: it carries the generator of the inputs, the "
        "contract and the judge, needs only NumPy, torch and the kernel, and prints the same count, first place and "
        "pattern.",
        epilog="example: farm repro cpu/rms_norm/mine/auto/forward/fp16/8x4096 -o repro.py",
    )
    p.add_argument("cell", metavar="CELL", help="cell to repeat: an ID, a key, or the beginning of one")
    p.add_argument("--run", metavar="RUN", default="last", help="the cell of this run (default: the newest run)")
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the script to FILE (default: print it)")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Write the script."""
    store = common.store(args)
    source = store.run(args.run)
    with tempfile.TemporaryDirectory(prefix="farm-contracts-") as place:
        common.use_kept_contracts(source, place)
        with common.readable(source):
            row = cell_facts.find(source.rows, args.cell, source.id)
            cell = next(c for c in source.cells() if c.index == row["index"])
        _check(cell, row, source.head)
        made = _made(store, source, cell, row)
    text = repro.script(made)
    if len(text) > repro.MAX_BYTES:  # all of it is ASCII
        raise UsageError(
            f"the script of {cell.cell_id} would have {len(text):,} bytes, but at most {repro.MAX_BYTES:,} are "
            "written; make the data of its contract in code",
            id="repro-too-big",
        )
    for note in made.notes:
        print(f"farm repro: {note}", file=sys.stderr)
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"--output {args.output}: cannot be written ({error.strerror}); name another file", id="repro-unwritable"
        ) from None
    return 0


def _check(cell: Cell, row: Row, head: Mapping[str, Any]) -> None:
    """UsageError for a cell that no script can show."""
    if (head.get("arms") or list(head.get("argv") or ())[:1] == ["ab"]) and row.get("role") == "subject":
        raise UsageError(
            f"{cell.cell_id} is of one arm of a comparison, whose files are not in this folder as they were; check out "
            "that arm, run the cell with farm run, and repeat farm repro",
            id="repro-arm",
        )
    why = ""
    if row.get("evidence") == "imported":
        why = "others have published it, and it did not run here"
    elif row["status"] in _WITHOUT_VERDICT:
        why = f"it has no verdict ({row['status']})"
    elif row["status"] in ("skipped", "built"):
        why = "it was not executed"
    elif row.get("evidence") == "simulated" or cell.backend == "sim":
        why = "it was simulated, so no kernel was called"
    if why:
        raise UsageError(f"{cell.cell_id} cannot be repeated: {why}; choose a cell that ran", id="repro-not-run")
    contract = discovery.find(cell.op)
    if contract is None or (contract.version, contract.content) != (cell.contract_version, cell.contract_content):
        now = "is not in this farm" if contract is None else "has changed since the run"
        raise UsageError(
            f"the contract of {cell.op} {now}, so a script would be of another cell; use the farm and the torch of the "
            "run, or run the cell again",
            id="repro-contract-changed",
        )


def _made(store: Store, source: Run, cell: Cell, row: Row) -> repro.Repro:
    head, contract = source.head, discovery.contract(cell.op)
    notes: list[str] = []
    path: list[str] = []
    provider = provider_of(cell, head.get("providers") or {})
    kernel, variables = f"provider {cell.provider}, as installed", dict(_variables(cell.backend))
    subject: dict[str, Any] = {}
    if provider.get("subject"):
        subject, more = _subject(store, source, cell.backend, notes)
        variables |= more
        kernel = f"{', '.join(subject['origins'].values()) or 'as installed'} ({provider['path']})"
    elif provider.get("path"):
        kernel, path = _own(provider, notes)
    elif cell.provider == "farm":
        ours = kernel_package.folder()
        kernel, path = str(ours), [str(ours.parent)] if ours and ours.name == "kernels" else []
    roots = [repro.MAIN, *([f"farm.contracts.ops.{cell.op}.contract"] if discovery.folder_of(cell.op) is None else [])]
    roots += [] if provider.get("path") else [f"farm.providers.{cell.provider}"]
    needs = [f"{name} {version}" for name, version in discovery.requires(cell.op).items() if name != "farm"]
    if discovery.folder_of(cell.op) is not None and needs:
        notes.append(f"the contract needs {', '.join(needs)}, too")
    matrix: Mapping[str, Any] = next((m for m in head.get("matrices", []) if m["name"] == cell.matrix), {})
    rules = [Tolerance.from_dict(t) for t in matrix.get("tolerances", [])]
    given = {
        "run": source.id,
        "cell": cell.to_dict(),
        "call": call_for(cell, contract, provider),
        "tolerances": tolerances_for(rules, cell),
        "verdict": {"status": row["status"], "reason": str(row["reason"]), "places": parse(row.get("places"))},
        "path": path,
        "subject": subject,
    }
    folder = discovery.folder_of(cell.op)
    files = {n: (folder.path / n).read_bytes() for n in discovery.files_of(cell.op)} if folder else {}
    return repro.Repro(
        given,
        {
            name: (file.name == "__init__.py", file.read_text(encoding="utf-8"))
            for name, file in _executed(roots).items()
        },
        {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()},
        kernel,
        variables,
        notes,
    )


def _executed(roots: list[str]) -> dict[str, Path]:
    """Module -> file of all that importing `roots` executes: also what the packages above them import for others."""
    found = digest.closure(roots)
    while (more := digest.closure(found)).keys() != found.keys():
        found = more
    return found


def _variables(backend: str) -> Mapping[str, str | None]:
    """Of a process that runs cells on this backend; which of several devices is for whoever runs the script to say."""
    return backends.get(backend).child_env("0") if backend == "cpu" else {"TRITON_INTERPRET": None}


def _own(provider: Mapping[str, Any], notes: list[str]) -> tuple[str, list[str]]:
    """(where the kernel is, the folders that it is imported from) of a provider of the command line or the matrix."""
    packed = shipping.pack([provider["path"]])
    folders = list(dict.fromkeys((packed or {"origins": {}})["origins"].values()))
    if (packed["sha"] if packed else "") != provider.get("sha256", ""):
        notes.append("the files of the provider have changed since the run")
    return f"{shipping.file_of(provider['path'])} ({provider['path']})", folders


def _subject(store: Store, source: Run, backend: str, notes: list[str]) -> tuple[dict[str, Any], dict[str, str | None]]:
    """(what a child is told of the run's subject, with the folders that its author edits; its variables)."""
    from farm.subject import command_line

    found = command_line.load(failed.first_options(store, source))
    if found is None:
        raise UsageError(
            "the subject of the run is not found here; repeat this command in the folder of the run",
            id="repro-no-subject",
        )
    packed, was = found.packed, source.head["subject"]
    if packed.digest != was["digest"]:
        notes.append(f"the files of subject {packed.name} have changed since the run")
    if "overlay" not in packed.origins and packed.modules:
        notes.append(f"subject {packed.name} was built or downloaded: install it where the script runs")
    told = {"modules": list(packed.modules) if "overlay" in packed.origins else [], "over": was["over"]}
    return {**told, "origins": dict(packed.origins)}, dict(packed.variables.get(backend, {}))
