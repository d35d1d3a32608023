"""`farm schema`: print the JSON Schema of a matrix, of a farm.yaml, or of the result of a pull request."""

from __future__ import annotations

import argparse
import json

from farm import backends
from farm.contracts import discovery
from farm.matrix import json_schema
from farm.pr import result_schema
from farm.subject import schema

FILES = ("matrix", "subject", "pr")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "schema",
        help="print the JSON Schema of a matrix file, a farm.yaml, or the result of a pull request",
        description="Print a JSON Schema. With it, an editor can complete and check keys.",
        epilog="example: farm schema subject > farm.yaml.schema.json",
    )
    p.add_argument("file", nargs="?", choices=FILES, default=FILES[0], help="which file (default: matrix)")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    if args.file == "pr":
        found = result_schema.SCHEMA
    else:
        found = json_schema() if args.file == "matrix" else schema.json_schema(discovery.known_ops(), backends.known())
    print(json.dumps(found, indent=2))
    return 0
