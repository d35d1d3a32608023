"""What `farm ab` reads, keeps and prints of identical code: the records of noise in the store, and their tally."""

from __future__ import annotations

import argparse
import json
import sys

from farm.cli import common
from farm.cli.text import printable, sentence
from farm.compare import records
from farm.compare.records import Record
from farm.errors import StoreError
from farm.store import Store, noise_files


def read(command: str, store: Store) -> list[Record]:
    """The newest records of the store.  Those that cannot be read are reported."""
    found, damaged = noise_files.read(store)
    for warning in damaged:
        print(f"farm {command}: {sentence(warning)}", file=sys.stderr)
    return found


def keep(command: str, store: Store, record: Record | None) -> None:
    """Write what a comparison measured of identical code.  That it cannot be written is reported, and costs no
    verdict."""
    try:
        if record is not None:
            noise_files.keep(store, record)
    except StoreError as error:
        print(f"farm {command}: {sentence(error)}", file=sys.stderr)


def lines(store: Store, record: Record | None) -> list[str]:
    """What the store's comparisons have shown of identical code, on the kinds of evidence of this one."""
    kinds = {cell.kind.evidence for cell in record.cells} if record else set()
    if not kinds:
        return []
    return [records.tally_line(one) for one in records.tally(noise_files.read(store, None)[0]) if one.evidence in kinds]


def tally(args: argparse.Namespace) -> int:
    """`farm ab --tally`: print it; exit code 0."""
    store = common.store(args)
    found, damaged = noise_files.read(store, None)
    for warning in damaged:
        print(f"farm ab: {sentence(warning)}", file=sys.stderr)
    told = records.tally(found)
    if args.json:
        print(json.dumps([one.to_dict() for one in told], indent=1))
        return 0
    for one in told:
        print(printable(records.tally_line(one)))
    if not told:
        text = "no pair of identical code was measured in this store; farm ab MATRIX --same measures an arm twice"
        print(f"{store.path}: {text}", file=sys.stderr)
    return 0
