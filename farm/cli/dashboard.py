"""`farm dashboard`: pages made from runs."""

from __future__ import annotations

import argparse

from farm.cli import common
from farm.errors import UsageError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "dashboard",
        help="build or serve the pages of a store",
        description="build writes <store>/pages (each page one file that needs nothing else); serve shows them live.",
        epilog="example: farm dashboard serve --port 8000",
    )
    p.add_argument("action", choices=("build", "serve"))
    p.add_argument("run", nargs="?", metavar="RUN", help="build only this run's page and the list")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this host only)")
    p.add_argument("--port", type=int, default=8000)
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Build or serve."""
    store = common.store(args)
    if not 0 < args.port < 65536:
        raise UsageError(f"--port {args.port}: a port goes from 1 to 65535")
    if args.action == "serve":
        from dashboards.serve import serve

        serve(store, host=args.host, port=args.port)
        return 0
    from dashboards.build import build

    found = store.run(args.run) if args.run else None
    if found:
        with common.readable(found):
            _ = found.head, found.rows
    print(build(store, found.id if found else None))
    return 0
