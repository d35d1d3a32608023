"""`farm import`: take benchmark results that others have published into a store."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cli import common
from farm.cli.text import counted, printable, sentence
from farm.errors import Message, StoreError, UsageError

if TYPE_CHECKING:
    from farm.report.liger_format import Found, Point
    from farm.store import Store

#: (commit, ops) -> op -> a digest of what it is made of there
Digests = Callable[[str, tuple[str, ...]], Mapping[str, str]]
MAX_BYTES = 64 << 20
MAX_TOLD = 10
#: What a file of a commit is named, or the folder of such a file.
_COMMIT = re.compile(r"([0-9a-f]{7,40})(?![0-9A-Za-z])")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "import",
        help="take benchmark results that others have published into a store",
        description="Take Liger-Kernel's benchmark results, its CSV or text with the JSON that its benchmarks print, "
        "into a store: one run for each session of measuring, with the evidence `imported`. Pages and trends read "
        "these runs. If a file contains anything else, it is refused with a sentence for each such line, unless "
        "--partial is given.",
        epilog="example: farm import liger benchmarks/1c07943/benchmark.csv --repo ~/liger",
    )
    p.add_argument("format", choices=("liger",), help="whose format it is")
    p.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="CSV file, or text with JSON; - is standard input"
    )
    p.add_argument("--by", default="", metavar="TEXT", help="who measured or published this (default: the file's name)")
    p.add_argument(
        "--commit",
        metavar="REV",
        help="commit that was measured (default: what a file, or the folder of benchmark.csv, is named after)",
    )
    p.add_argument(
        "--repo",
        type=Path,
        metavar="PATH",
        help="clone of Liger-Kernel: records what each op is made of at each commit, so that trends accuse no commit "
        "that did not touch the op",
    )
    p.add_argument("--partial", action="store_true", help="import a file also if some of its lines cannot be read")
    p.add_argument("--json", action="store_true", help="print JSON")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Read every file; then write a run for each session."""
    from farm.report import liger_format

    store = common.store(args)
    if args.by and (len(args.by) > 200 or not args.by.isprintable()):
        raise UsageError("--by: give at most 200 printable characters", id="import-by")
    if args.commit is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", args.commit):
        raise UsageError(f"--commit {args.commit!r} is no name of a revision", id="import-commit")
    digests = _digests(args.repo)
    read: list[tuple[Path, str, Found]] = []
    bad = 0
    for path in args.files:
        text = _text(path)
        found = liger_format.read(text)
        if found.refused:
            bad += not args.partial
            for why in found.refused[:MAX_TOLD]:
                print(f"farm import: {path}: {printable(sentence(Message(why, id='import-point')))}", file=sys.stderr)
            if len(found.refused) > MAX_TOLD:
                print(f"farm import: {path}: {len(found.refused) - MAX_TOLD} more", file=sys.stderr)
        read.append((path, text, found))
    if bad:
        raise UsageError(
            f"{counted(bad, 'file')} with lines that cannot be read, so nothing was imported; correct them, or import "
            "the rest with --partial",
            id="import-refused",
        )
    store.probe()
    told = []
    for path, text, found in read:
        sha = hashlib.sha256(text.encode()).hexdigest()
        if not found.points:
            print(f"{path}: no points", file=sys.stderr)
        for session in liger_format.sessions(found.points):
            told.append(_session(args, store, path, sha, found.refused, session, digests))
    if args.json:
        print(json.dumps(told, indent=1))
    return 0


def _text(path: Path) -> str:
    """A file's text.  UsageError if it cannot be read."""
    try:
        if str(path) == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UsageError(f"{path}: has more than {MAX_BYTES >> 20} MiB; split it", id="import-size")
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(
            f"{path}: cannot be read ({why}); give a CSV file, or text with JSON", id="import-file"
        ) from None


def commit_of(path: Path) -> str:
    """The commit that a published file is named after: `history/1c07943-v0.6.2.csv`, `1c07943/benchmark.csv`."""
    found = _COMMIT.match(path.parent.name if path.stem == "benchmark" else path.stem)
    return found[1] if found else ""


def _session(
    args: argparse.Namespace,
    store: Store,
    path: Path,
    sha: str,
    refused: Sequence[str],
    session: Sequence[Point],
    digests: Digests,
) -> dict[str, Any]:
    """Write one run, unless the store has it; what is told of it."""
    from farm import atomic_files
    from farm.report import liger
    from farm.report.liger_format import written
    from farm.store import results

    published = written(session)
    content = hashlib.sha256(published.encode()).hexdigest()
    begun, ended = min(p.when for p in session), max(p.when for p in session)
    name = f"{begun:%Y%m%dT%H%M%SZ}-liger-{content[:8]}"
    told = {"run": name, "file": str(path), "points": len(session), "gpus": sorted({p["gpu_name"] for p in session})}
    if any(r.id == name for r in store.runs()):
        print(f"{path}: run {name} is in the store already", file=sys.stderr)
        return {**told, "new": False}
    commit = args.commit or commit_of(path)
    version = session[0]["liger_version"]
    cells, rows = liger.rows(session, commit or version)
    _, code = results.verdict(rows)
    created = begun.replace(tzinfo=timezone.utc).isoformat()
    plan = {
        "created": created,
        "command": f"farm import liger {path}",
        "argv": ["import", "liger", str(path)],
        "kind": results.IMPORTED,
        "matrices": [{"name": "liger", "path": "liger", "sha256": sha, "tolerances": []}],
        "plan_hash": "",
        "planned": len(cells),
        "revision": {
            "name": commit or version,
            "commit": commit,
            "dirty": False,
            "version": version,
            "ops": digests(commit, tuple(sorted({c.op for c in cells}))),
        },
        "imported": {
            "by": args.by or path.name,
            "file": path.name,
            "sha256": sha,
            "points": len(session),
            "refused": list(refused[:100]),
            "clock": "as published: local time of the host that measured, its zone unknown",
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
    }
    writer = store.create(name)
    try:
        writer.plan(plan, cells)
        with writer.together():
            for row in rows:
                writer.append({"event": "result", "row": row})
        try:
            atomic_files.write(writer.dir / results.PUBLISHED, published, sync=True)
        except OSError as error:
            raise StoreError(
                f"{writer.dir}: {results.PUBLISHED} cannot be written ({error.strerror or error}); nothing of "
                f"{path} was imported; solve this problem, then import it again",
                id="import-unwritable",
            ) from None
        foot = {
            "finished": ended.replace(tzinfo=timezone.utc).isoformat(),
            "seconds": (ended - begun).total_seconds(),
            "backends": _backends(rows),
            "counts": results.counts(rows),
            "verdict": "inconclusive",  # nothing of it was proven here
            "exit_code": code or 4,
        }
        writer.finish(rows, (), {**plan, **foot})
    except BaseException:
        writer.close()
        shutil.rmtree(writer.dir, ignore_errors=True)
        raise
    writer.close()
    if not args.json:
        print(f"{path}: run {name}: {counted(len(cells), 'cell')} of {liger.told(session)}")
    return {**told, "new": True}


def _backends(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from farm.store import results

    out: dict[str, Any] = {}
    for backend in dict.fromkeys(str(r["backend"]) for r in rows):
        mine = [r for r in rows if r["backend"] == backend]
        devices = [
            {"name": d, "device": d, "node": "", "target": t, "evidence": "imported", "fingerprint": json.loads(f)}
            for d, t, f in dict.fromkeys((r["device"], r["target"], r["fingerprint"]) for r in mine)
        ]
        out[backend] = {"counts": results.counts(mine), "devices": devices}
    return out


def _digests(repo: Path | None) -> Digests:
    """What ops are made of at a commit; nothing where that cannot be known."""
    from farm.subject import op_digests

    if repo is None:
        return lambda commit, ops: {}
    if not op_digests.is_repository(repo):
        raise UsageError(f"--repo {repo}: is no git repository; give a clone of Liger-Kernel", id="import-repo")

    @cache
    def of(commit: str, ops: tuple[str, ...]) -> Mapping[str, str]:
        found = op_digests.of(repo, commit, ops) if commit else None
        if found is None and commit:
            text = f"--repo {repo}: has no commit {commit}, so what its ops are made of is not recorded"
            print(f"farm import: {sentence(Message(text, id='import-no-commit'))}", file=sys.stderr)
        return found or {}

    return of
