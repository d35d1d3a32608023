"""`farm schema`: print the JSON Schema of a matrix, for editors."""

from __future__ import annotations

import argparse
import json

from farm.matrix import json_schema


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    commands.add_parser(
        "schema",
        help="print the JSON Schema of a matrix file, for editors",
        description="Print the JSON Schema of matrix files. With this schema, an editor can complete and check keys.",
        epilog="example: farm schema > farm.schema.json",
    )


def run(args: argparse.Namespace) -> int:
    """Print it."""
    print(json.dumps(json_schema(), indent=2))
    return 0
