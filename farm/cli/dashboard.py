"""`farm dashboard`: build or serve the pages of runs."""

from __future__ import annotations

import argparse
import sys

from farm.cli import common
from farm.cli.text import sentence
from farm.errors import Message, StoreError, UsageError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "dashboard",
        help="build or serve the pages of a store",
        description="Build or serve the pages of a store. build writes <store>/pages, where each page is one "
        "self-contained file; serve shows the pages live.",
        epilog="example: farm dashboard serve --port 8000",
    )
    common.store_option(p)
    actions = p.add_subparsers(dest="action", required=True, metavar="build|serve")
    build = actions.add_parser(
        "build",
        help="write the pages",
        description="Write a page for every run, the list of runs, and a summary of what the runs prove. The exit code "
        "is 3 if a run cannot be read; the other pages are still written.",
        epilog="example: farm dashboard build last",
    )
    build.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="write only the page of this run: a run ID, an ID prefix, or `last` (default: all pages)",
    )
    serve = actions.add_parser(
        "serve",
        help="serve the pages live",
        description="Serve the pages of the store, including the pages of runs in progress, until Ctrl-C. If other "
        "hosts can reach the address, readers need a token: the address with the token is printed.",
        epilog="example: farm dashboard serve --port 8000",
    )
    serve.add_argument("--host", default="127.0.0.1", help="listen on this address (default: this host only)")
    serve.add_argument("--port", type=int, default=8000, help="listen on this port (default: 8000)")
    serve.add_argument(
        "--token-file",
        metavar="FILE",
        help="readers need the token in this file (default: $FARM_DASHBOARD_TOKEN; else, where other hosts can reach "
        "the address, a new token, which is printed; else none)",
    )
    for action in (build, serve):  # --out may follow the action's name too; SUPPRESS keeps a value given before it
        action.add_argument("--out", metavar="STORE", default=argparse.SUPPRESS, help=common.STORE_HELP)


def run(args: argparse.Namespace) -> int:
    """Build or serve."""
    store = common.store(args)
    if args.action == "serve":
        if not 0 < args.port < 65536:
            raise UsageError(f"--port {args.port}: use a port from 1 to 65535", id="dashboard-port-range")
        from farm.dashboards import access
        from farm.dashboards.serve import serve

        serve(store, host=args.host, port=args.port, token=access.chosen(args.host, args.token_file))
        return 0
    from farm.dashboards.build import ReadLast, build

    once = ReadLast(store)
    found = once.run(args.run) if args.run else None
    if found:
        with common.readable(found):
            _ = found.head, found.rows
    damaged: list[str] = []

    def report(run_id: str, error: Exception) -> None:
        damaged.append(run_id)
        why = str(error) or type(error).__name__
        warning = Message(
            f"run {run_id} cannot be read ({why}), so no page was built for this run", id="dashboard-run-unreadable"
        )
        print(f"farm dashboard: {sentence(warning)}", file=sys.stderr)

    def no_index(error: StoreError) -> None:
        print(f"farm dashboard: {sentence(error)}; the pages show no nights", file=sys.stderr)

    seconds = common.INDEX_SECONDS if found else None
    page = build(
        once if found else store,
        found.id if found else None,
        unreadable=report,
        no_index=no_index,
        index_seconds=seconds,
        lacking=common.tell_lacking,
    )
    print(page)
    return 3 if damaged else 0
