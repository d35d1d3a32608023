"""Options that several commands share, and how they become objects."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farm import backends
from farm.cli.text import printable
from farm.errors import StoreError, UsageError
from farm.matrix import Matrix
from farm.matrix.load import load_files
from farm.shipping import providers as shipping
from farm.store import Run, Store


def matrix_options(parser: argparse.ArgumentParser, *, backend: bool = True, needed: bool = True) -> None:
    """MATRIX... and what narrows or changes it; without --backend where something else names the backends."""
    parser.add_argument(
        "matrices", nargs="+" if needed else "*", type=Path, metavar="MATRIX", help="matrix files (YAML)"
    )
    if backend:
        parser.add_argument("--backend", metavar="B,..", help="backends by name, separated by commas")
    parser.add_argument("--select", metavar="key=value,..", help="only the cells for which all of these hold")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="replace a value of the matrix",
    )
    parser.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="[OP:]NAME=module:function",
        help="add a provider of your own",
    )


def store_option(parser: argparse.ArgumentParser) -> None:
    """--out."""
    parser.add_argument("--out", metavar="STORE", help="the store (default: $FARM_STORE, else ./farm-results)")


def store(args: argparse.Namespace) -> Store:
    """The store that the command line or the environment names."""
    return Store(args.out or os.environ.get("FARM_STORE") or "farm-results")


def tell_page(args: argparse.Namespace, store: Store, run_id: str) -> None:
    """Build a stored run's page and say where it is; where it cannot be written, that, and how to make it later.  The
    results are stored by then, and the exit code is theirs."""
    from dashboards.build import build

    try:
        print(f"page: {build(store, run_id).resolve()}", file=sys.stderr)
    except (OSError, StoreError) as error:
        cause = error.__cause__ or error
        why = getattr(cause, "strerror", None) or cause
        at = f" --out {shlex.quote(args.out)}" if args.out else ""
        told = (
            f"{store.pages}: the page cannot be written ({why}); every result is stored all the same, and once that is "
            f"mended, farm dashboard build {run_id}{at} makes the page"
        )
        print(f"farm {args.command}: {printable(told)}", file=sys.stderr)


@contextmanager
def readable(run: Run) -> Iterator[None]:
    """StoreError for whatever a damaged run directory raises while it is read (pyarrow's own are among these)."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        told = f"{type(error).__name__}: {error}"[:200]
        raise StoreError(f"{run.dir}: this run cannot be read ({told}); it is damaged, run it again") from error


def named_backends(args: argparse.Namespace) -> list[str]:
    """Backends of --backend, each known and usable in this version; empty where none is named."""
    names = [b.strip() for b in (args.backend or "").split(",") if b.strip()]
    if args.backend is not None and not names:
        raise UsageError("--backend names no backend; name some, or leave it out")
    for name in names:
        backends.usable(name)
    return list(dict.fromkeys(names))


def own_providers(args: argparse.Namespace) -> dict[str, str]:
    """`[OP:]NAME` -> `module:function` of every --provider."""
    found: dict[str, str] = {}
    for spec in args.provider:
        name, path = shipping.parse(spec)
        if name in found:
            raise UsageError(f"--provider {name} is given twice; choose two names")
        found[name] = path
    return found


def matrices(args: argparse.Namespace) -> list[Matrix]:
    """Every matrix of the files, with --set and --provider applied."""
    if args.select is not None and not args.select.strip():
        raise UsageError("--select selects nothing; write key=value, or leave it out")
    overrides = []
    for item in args.overrides:
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise UsageError(f'--set "{item}" is not KEY=VALUE, for example --set deadlines.check=5')
        overrides.append((key, value))
    extra: dict[str, Any] = own_providers(args)
    return load_files(args.matrices, overrides=overrides, extra_providers=extra)
