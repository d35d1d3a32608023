"""`farm schema`: print the JSON Schema of a matrix, or of a farm.yaml, for editors."""

from __future__ import annotations

import argparse
import json

from farm import backends
from farm.contracts import discovery
from farm.matrix import json_schema
from farm.subject import schema

FILES = ("matrix", "subject")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "schema",
        help="print the JSON Schema of a matrix file, or of a farm.yaml, for editors",
        description="Print a JSON Schema. With it, an editor can complete and check keys.",
        epilog="example: farm schema subject > farm.yaml.schema.json",
    )
    p.add_argument("file", nargs="?", choices=FILES, default=FILES[0], help="which file (default: matrix)")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    found = json_schema() if args.file == "matrix" else schema.json_schema(discovery.known_ops(), backends.known())
    print(json.dumps(found, indent=2))
    return 0
