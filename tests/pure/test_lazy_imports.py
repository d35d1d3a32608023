"""What a command imports, counted in modules: seconds would depend on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli.main import COMMANDS, parser

ROOT = Path(__file__).resolve().parents[2]
#: Packages that no command needs to show help or a plan.
HEAVY = {"ray", "torch", "triton", "pyarrow", "psutil", "rich", "jinja2"}
NAMES = ("cluster", "coordinator", "actor", "judge", "scheduler", "store", "report", "doctor")
ROOMS = {f"farm.{name}" for name in NAMES}
CODE = """
import json, sys
from farm.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(sys.modules)))
"""


def imported(*words: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", CODE, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("--help",), {"numpy", "yaml", "farm.matrix", "farm.cli.common"}),
        (("--version",), {"numpy", "yaml", "farm.matrix", "farm.cli.common"}),
        (("plan", "matrices/smoke.yaml"), set()),
        (("plan", "--help"), set()),
    ],
)
def test_a_command_imports_what_it_needs(words: tuple[str, ...], more: set[str]) -> None:
    found = imported(*words)
    assert found & (HEAVY | ROOMS | more) == set()
    assert len([name for name in found if name.startswith("farm.")]) < (20 if more else 140), sorted(found)


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    whole, bare = parser().format_help(), parser("").format_help()
    assert whole == bare and all(COMMANDS.values())
