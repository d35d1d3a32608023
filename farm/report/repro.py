"""One script that shows one cell again: text from the sources that it carries and the facts of the run.  Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 1_000_000
#: The module that a script runs; whatever it imports of the farm belongs to the script.
MAIN = "farm.child.replay"


@dataclass(frozen=True)
class Repro:
    """What a script is made of.

    `given`: the facts that `farm.child.replay.main` takes, but for the contract's files.  `sources`: module -> (whether
    it is a package, its text).  `contract`: file -> text of a contract outside the farm.  `kernel`: where it is, for
    people.  `variables`: of its process, None for one that is unset.  `notes`: what differs from the run, and what else
    must be installed.
    """

    given: Mapping[str, Any]
    sources: Mapping[str, tuple[bool, str]]
    contract: Mapping[str, str] = field(default_factory=dict)
    kernel: str = ""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    notes: Sequence[str] = ()


def script(repro: Repro) -> str:
    """The text of the script."""
    verdict = repro.given["verdict"]
    header = _HEADER.format(
        cell=_safe(str(repro.given["cell"]["cell_id"])),
        run=_safe(str(repro.given["run"])),
        verdict=_safe(": ".join(part for part in (verdict["status"], verdict["reason"]) if part)),
        kernel=_safe(repro.kernel),
        notes="".join(f"note     {_safe(note)}\n" for note in repro.notes),
    )
    files = [f"    {name!r}: {literal(text)}," for name, text in sorted(repro.contract.items())]
    modules = [
        f"    {name!r}: ({package}, {literal(text)})," for name, (package, text) in sorted(repro.sources.items())
    ]
    return "\n".join(
        [
            header,
            f"GIVEN = json.loads({literal(json.dumps(repro.given, indent=1))})",
            f"VARIABLES = {dict(repro.variables)!r}",
            "# The contract, where it is not one of the farm's: file -> text.",
            *(["CONTRACT = {", *files, "}"] if files else ["CONTRACT = {}"]),
            _LOADER.replace("MAIN", MAIN),
            "# Modules of the farm, unchanged: name -> (whether it is a package, its source).",
            "SOURCES = {",
            *modules,
            "}",
            "",
            'if __name__ == "__main__":',
            "    sys.exit(main(sys.argv[1:]))",
            "",
        ]
    )


def literal(text: str) -> str:
    """A Python literal of a text: raw and in lines where that is possible."""
    raw = f"r'''{text}'''"
    if "\r" not in text and "\0" not in text and text.isascii():
        try:
            if ast.literal_eval(raw) == text:
                return raw
        except (SyntaxError, ValueError):
            pass
    return ascii(text)


def _safe(text: str) -> str:
    """On one line, and harmless in a docstring."""
    plain = " ".join(text.split()).replace("\\", "/").replace('"""', "'''")
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in plain)


_HEADER = '''#!/usr/bin/env python3
"""One cell of a run of kernel-farm, by itself.

cell     {cell}
run      {run}
verdict  {verdict}
kernel   {kernel}
{notes}
It needs Python, NumPy, torch and the kernel (and triton, if the kernel does), but not the farm.  It makes the cell's
inputs by the farm's generator, calls the kernel in memory that is poisoned as in the run, compares the outputs with the
contract's reference, and prints status, count, first place and pattern.  Exit code: 0 the cell passes, 1 it fails, 2 it
cannot run here.  `--json` prints the verdict as JSON.

GIVEN: the facts of the run.  SOURCES: modules of the farm that do all this, unchanged.  Edit the kernel, not these.
"""

import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
'''
_LOADER = '''

class Carried(MetaPathFinder, Loader):
    """Imports what SOURCES has, before any farm that is installed here."""

    def find_spec(self, name, path=None, target=None):
        if name not in SOURCES:
            return None
        package = SOURCES[name][0]
        place = os.path.join(os.path.abspath(__file__) + ".sources", *name.split("."))
        file = os.path.join(place, "__init__.py") if package else place + ".py"
        spec = ModuleSpec(name, self, origin=file, is_package=package)
        spec.has_location = True
        return spec

    def get_source(self, name):
        return SOURCES[name][1]

    def exec_module(self, module):
        exec(compile(self.get_source(module.__name__), module.__spec__.origin, "exec"), module.__dict__)


def main(words):
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # a file beside this script may have the name of a module
    for name, value in VARIABLES.items():  # before torch and triton are imported
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.meta_path.insert(0, Carried())
    try:
        from MAIN import main as replay
    except ModuleNotFoundError as error:
        sys.exit(f"{error}; install it: this script needs NumPy and torch")
    return replay({**GIVEN, "contract": CONTRACT}, words)

'''
