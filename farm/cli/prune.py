"""`farm prune`: delete old runs that nothing refers to."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cli import common
from farm.cli.text import counted, printable, sentence
from farm.errors import StoreError, UsageError

if TYPE_CHECKING:
    from farm.store import Run, Store
    from farm.store.index import Index

NIGHTS, FEWEST = 90, 2
#: Where a run lies while it is deleted: no list of runs shows it there.
ASIDE = ".aside"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "prune",
        help="delete old runs that nothing refers to",
        description="Delete complete runs that are older than the newest nights of their matrices and that nothing "
        "refers to, with their pages. Kept are: the newest nights, their baselines, what the newest night's page or a "
        "page of farm compare --page in the folder of pages names, runs of noise records, confirmations and known "
        "failures, what a kept run was made of, parts of a plan, and whatever is unfinished or cannot be read. Nothing "
        "else is deleted, no link is followed, and while a run is written nothing is deleted at all.",
        epilog="example: farm prune --keep-nights 60 --dry-run",
    )
    p.add_argument(
        "--keep-nights",
        type=int,
        default=NIGHTS,
        metavar="N",
        help=f"runs that are kept of each kind and set of matrices, at least {FEWEST} (default: {NIGHTS}, as many as a "
        "cell's page shows)",
    )
    p.add_argument("--dry-run", action="store_true", help="delete nothing; show what would be")
    p.add_argument(
        "--json", action="store_true", help="print JSON: each run that is kept with the reason, and the others"
    )
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Decide, tell, delete."""
    from farm.report.pruning import reasons
    from farm.store import index

    if args.keep_nights < FEWEST:
        raise UsageError(
            f"--keep-nights {args.keep_nights}: keep at least {FEWEST}, the newest night and its baseline",
            id="prune-nights",
        )
    store = common.store(args)
    runs = store.runs()
    _refuse_writers(runs)
    found = index.opened(store)
    old, fixed = _olds(store, runs, found)
    fixed.update(_referred(store, found))
    kept = reasons(old, args.keep_nights, fixed, _baselines(found))
    going = [r for r in runs if r.id not in kept]
    if args.json:
        print(json.dumps({"kept": {r.id: kept[r.id] for r in runs if r.id in kept}, "deleted": [r.id for r in going]}))
    else:
        _tell(runs, kept, going, args.dry_run)
    if args.dry_run:
        return 0
    for one in going:
        _refuse_writers(store.runs())  # one may have begun meanwhile
        _delete(store, one)
    if going:
        index.opened(store)
        _refresh(store)
    return 0


def _refresh(store: Store) -> None:
    """Delete the pages of the runs that are gone, and make those anew that list them or lead there.  What has been
    deleted stays deleted, so a failure is only told."""
    from farm.dashboards.build import build

    if not (store.pages / "index.html").is_file():
        return
    try:
        build(store, refresh=True)
    except StoreError as error:
        print(f"farm prune: {sentence(error)}", file=sys.stderr)


def _refuse_writers(runs: Sequence[Run]) -> None:
    for one in runs:
        if writer := one.writer:
            raise StoreError(
                f"{one.dir}: {writer} is writing this run, so nothing is deleted; prune when it has ended",
                id="prune-run-busy",
            )


def _olds(store: Store, runs: Sequence[Run], found: Index) -> tuple[list[Any], dict[str, str]]:
    """(runs that may go, those that stay whatever their age)"""
    from farm.report.pruning import Old

    indexed = {r.id: r for r in found.runs}
    old, fixed = [], {}
    for one in runs:
        known = indexed.get(one.id)
        if known is None:
            fixed[one.id] = f"not in the index: {found.left_out.get(one.id, 'it changed meanwhile')}"
            continue
        if one.dir.is_symlink():
            fixed[one.id] = "its folder is a link, and no link is followed"
            continue
        head = one.head
        if head.get("plan"):
            fixed[one.id] = "a part of a plan, which farm merge may need"
        uses = [(str(head.get("derived_from") or ""), "was judged again as")]
        uses += [(str(part.get("run_id") or ""), "was merged into") for part in head.get("merged") or ()]
        row = ("night" if known.kind in ("run", "merged") else known.kind, *known.matrices)
        old.append(Old(one.id, known.created, row, tuple(use for use in uses if use[0])))
    return old, fixed


def _referred(store: Store, found: Index) -> dict[str, str]:
    """Runs that something beside runs refers to.  StoreError where that cannot be read."""
    from farm.dashboards import views
    from farm.dashboards.build import KEPT, kept_pages
    from farm.store import confirmations, noise_files

    out: dict[str, str] = {}
    ids = {r.id for r in found.runs}
    records, bad = confirmations.read(store.path)
    if bad:
        raise StoreError(f"{bad[0]}; until then nothing is deleted", id="prune-unreadable")
    for record in records:
        for name in ("run", "before", "since"):
            out[str(record[name])] = f"confirmation {record['id']} refers to it"
    for path in noise_files.folder(store).glob("*.json"):
        out[path.stem] = "its noise is on record"
    made = kept_pages(store.pages / KEPT)  # by every run against its baseline: they go with either
    for path in store.pages.glob("compare-*--*.html"):
        for name in ids if path.name not in made else ():
            if path.stem.startswith(f"compare-{name}--") or path.stem.endswith(f"--{name}"):
                out[name] = f"page {path.name} is of it"
    newest = views.newest(found)
    if newest is not None:
        for news in newest.nights.news:
            for night in (news.since, news.before):
                if night is not None:
                    out.setdefault(night.id, "the page of the newest night names it")
        for last in newest.nights.silent.values():
            out.setdefault(last.id, "the last night of a backend or target that fell silent")
        known = json.dumps(found.known(newest.run))
        for name in ids:
            if name in known:
                out.setdefault(name, "a known failure names it")
    return {name: why for name, why in out.items() if name in ids}


def _baselines(found: Index) -> Mapping[str, str]:
    from farm.dashboards import views

    made = ((r.id, views.baseline(found, r.id)) for r in found.runs if r.kind in ("run", "merged", "imported"))
    return {name: before.id for name, before in made if before is not None}


def _tell(runs: Sequence[Run], kept: Mapping[str, str], going: Sequence[Run], dry: bool) -> None:
    short: Counter[str] = Counter()
    for one in runs:
        if one.id in kept:
            why = kept[one.id]
            if why.startswith(("the newest of", "one of the newest")):
                short["the newest nights of their row"] += 1
            else:
                print(f"keep    {one.id}: {printable(why)}")
    for why, count in short.items():
        print(f"keep    {counted(count, 'run')}: {why}")
    for one in going:
        print(f"{'would delete' if dry else 'delete'}  {one.id}")
    if not going:
        print("nothing to delete")


def _delete(store: Store, one: Run) -> None:
    """Delete the folder of a run, out of sight of readers first.  StoreError if that is not possible."""
    aside = store.path / "runs" / ASIDE
    try:
        for folder in (store.path / "runs", aside, one.dir):
            if folder.is_symlink():
                raise OSError(f"{folder} is a link, and no link is followed")
        aside.mkdir(exist_ok=True)
        gone = Path(aside, f"pruned-{one.id}-{os.getpid()}")
        one.dir.rename(gone)
        shutil.rmtree(gone)
    except OSError as error:
        text = f"{one.dir}: cannot be deleted ({error.strerror or error}); make it writable, then prune again"
        raise StoreError(text, id="prune-undeletable") from None
    print(f"deleted {one.id}", file=sys.stderr)
