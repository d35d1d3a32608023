"""`farm init`: write a first farm.yaml for a repository, by looking around in it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from farm.cli import common
from farm.cli.text import printable
from farm.contracts import discovery
from farm.errors import UsageError
from farm.subject import command_line, init, repository


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "init",
        help="write a first farm.yaml for a repository, with adapters and small matrices",
        description=(
            "Look for functions of ops that the farm knows, by name and signature, import their modules once in a "
            "process of their own, and write farm.yaml, farm_adapters.py and a small matrix for each op. Nothing that "
            "is there is overwritten."
        ),
        epilog="example: farm init ~/src/my-kernels --contracts ~/src/my-kernels/contracts",
    )
    common.contracts_option(p)
    p.add_argument("folder", nargs="?", type=Path, default=".", metavar="PATH", help="the repository (default: here)")


def run(args: argparse.Namespace) -> int:
    """Write, load what was written, and print what to do next."""
    folder = args.folder
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give the path of a repository", id="init-no-folder")
    common.use_contracts(args)
    written = init.write(folder, args.contracts)
    args.contracts = []  # what was written names them, and is read as `farm run` will
    common.use_contracts(args)
    for path in written.files:
        print(f"wrote {printable(str(path))}")
    for text in written.calls:
        print(f"  {printable(text)}")
    for text in written.left:
        print(f"left out: {printable(text)}")
    given = argparse.Namespace(
        **dict.fromkeys(command_line.OPTIONS), matrices=[], select=None, overrides=[], provider=[]
    )
    given.repo = str(folder)
    loaded = command_line.load(given)
    for place in loaded.subject.contracts if loaded else ():
        discovery.add(Path(place))
    common.matrices(given, loaded)  # or it says now what does not fit
    here = repository.top(Path.cwd()) == folder.resolve()
    print(f"next: farm run{'' if here else f' --repo {shlex.quote(str(folder))}'}")
    return 0
