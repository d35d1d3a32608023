"""`farm doctor`: what this host has and lacks, each lack with its cure."""

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
from farm.doctor.look import head_address


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "doctor",
        help="what this host has and lacks, each lack with its cure",
        description="Looks for Python packages, accelerators, Ray, space, and what stands in their way. "
        "Exit code 3 if something would stop `farm run` on this host, else 0.",
        epilog="example: farm doctor --backend rocm --head 10.0.0.1:6379",
    )
    p.add_argument("--backend", metavar="B", help="only what matters for this one, which has to be here")
    p.add_argument("--head", metavar="HOST[:PORT]", help="also whether this host can join the cluster there")
    p.add_argument(
        "--environment", metavar="NAME", help="only this environment of the node's configuration (default: each)"
    )
    p.add_argument("--json", action="store_true", help="the findings as JSON")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Look, judge, print."""
    if args.backend:
        backends.get(args.backend)
    asked = Asked(args.backend or "", head_address(args.head) if args.head is not None else "", args.environment or "")
    if not args.json and sys.stderr.isatty():
        print("looking around; torch may take a while to import", file=sys.stderr)
    findings = examine(gather(common.store(args).path, asked=asked))
    code = exit_code(findings)
    if args.json:
        said = {"farm": __version__, "findings": [f.to_dict() for f in findings], "exit_code": code}
        print(json.dumps(said, indent=1))
    else:
        print("\n".join(report(findings)))
    return code


def report(findings: Sequence[Finding]) -> list[str]:
    """A line per finding, its cure below it, and what it comes to."""
    width = max(len(f.section) for f in findings)
    lines = []
    for f in findings:
        code = f"  [{f.code}]" if f.code != "ok" else ""
        lines.append(f"{f.level.value:<5} {f.section:<{width}}  {printable(f.what)}{code}")
        if f.cure:
            lines.append(f"{'':<5} {'':<{width}}  cure: {printable(f.cure)}")
    seen = Counter(f.level for f in findings)
    told = ", ".join(f"{seen[level]} {level.value}" for level in Level if seen[level])
    end = "farm run would fail here" if exit_code(findings) else "farm run works here"
    return [*lines, "", f"{told}: {end}"]
