"""`farm doctor`: check this host, and print each problem with its cure."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence

from farm import __version__, backends
from farm.cli import common
from farm.cli.text import printable
from farm.doctor import Asked, Finding, Level, examine, exit_code, gather
from farm.doctor.collect import head_address


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "doctor",
        help="check this host; show each problem and how to solve it",
        description="Check Python packages, accelerators, Ray, disk space and limits of this host. The exit code is 3 "
        "if a problem would stop `farm run` on this host, otherwise 0.",
        epilog="example: farm doctor --backend rocm --head 10.0.0.1:6379",
    )
    p.add_argument(
        "--backend", metavar="B", help="check only what this backend needs, and require a device of this backend"
    )
    p.add_argument(
        "--head", metavar="HOST[:PORT]", help="check also whether this host can join the cluster that has this head"
    )
    p.add_argument(
        "--environment", metavar="NAME", help="check only this environment from the node's configuration (default: all)"
    )
    p.add_argument("--json", action="store_true", help="print the findings as JSON")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Collect facts, examine them, print the findings."""
    if args.backend:
        backends.get(args.backend)
    asked = Asked(args.backend or "", head_address(args.head) if args.head is not None else "", args.environment or "")
    if not args.json and sys.stderr.isatty():
        print("checking this host; importing torch may take a while", file=sys.stderr)
    findings = examine(gather(common.store(args).path, asked=asked))
    code = exit_code(findings)
    if args.json:
        document = {"farm": __version__, "findings": [f.to_dict() for f in findings], "exit_code": code}
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(report(findings)))
    return code


def report(findings: Sequence[Finding]) -> list[str]:
    """A line per finding with its cure below it, and a summary."""
    width = max(len(f.section) for f in findings)
    lines = []
    for f in findings:
        code = f"  [{f.code}]" if f.code != "ok" else ""
        lines.append(f"{f.level.value:<5} {f.section:<{width}}  {printable(f.what)}{code}")
        if f.cure:
            lines.append(f"{'':<5} {'':<{width}}  cure: {printable(f.cure)}")
    seen = Counter(f.level for f in findings)
    counts = ", ".join(f"{seen[level]} {level.value}" for level in Level if seen[level])
    end = "farm run would fail here" if exit_code(findings) else "farm run works here"
    return [*lines, "", f"{counts}: {end}"]
