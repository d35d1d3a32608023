"""`farm dashboard`: pages made from runs."""

from __future__ import annotations

import argparse
import sys

from farm.cli import common
from farm.cli.text import printable
from farm.errors import UsageError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "dashboard",
        help="build or serve the pages of a store",
        description="build writes <store>/pages (each page one file that needs nothing else); serve shows them live.",
        epilog="example: farm dashboard serve --port 8000",
    )
    common.store_option(p)
    actions = p.add_subparsers(dest="action", required=True, metavar="build|serve")
    build = actions.add_parser(
        "build",
        help="write the pages",
        description="Writes every run's page, the list of runs, and what all of them prove.  Exit code 3 where a run "
        "cannot be read; the other pages are written.",
        epilog="example: farm dashboard build last",
    )
    build.add_argument("run", nargs="?", metavar="RUN", help="only this run's page (an id, its beginning, or `last`)")
    serve = actions.add_parser(
        "serve",
        help="show them live",
        description="Shows the pages of the store as it is, also of runs that go on, until Ctrl-C.",
        epilog="example: farm dashboard serve --port 8000",
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this host only)")
    serve.add_argument("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    told = "the store (default: $FARM_STORE, else ./farm-results)"
    for action in (build, serve):  # also behind the action's name; SUPPRESS leaves what stood before it
        action.add_argument("--out", metavar="STORE", default=argparse.SUPPRESS, help=told)


def run(args: argparse.Namespace) -> int:
    """Build or serve."""
    store = common.store(args)
    if args.action == "serve":
        if not 0 < args.port < 65536:
            raise UsageError(f"--port {args.port}: a port goes from 1 to 65535")
        from dashboards.serve import serve

        serve(store, host=args.host, port=args.port)
        return 0
    from dashboards.build import build

    found = store.run(args.run) if args.run else None
    if found:
        with common.readable(found):
            _ = found.head, found.rows
    damaged: list[str] = []

    def told(run_id: str, error: Exception) -> None:
        damaged.append(run_id)
        why = str(error) or type(error).__name__
        print(f"farm dashboard: {printable(f'run {run_id} cannot be read ({why})')}; it has no page", file=sys.stderr)

    print(build(store, found.id if found else None, unreadable=told))
    return 3 if damaged else 0
