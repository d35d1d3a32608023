"""What the farm starts of its own is its own, in whatever folder it is started: a `farm` or a `kernels` that lies
there, which may be somebody's work or somebody's trap, is not imported."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from farm.cli import common
from farm.doctor import runner
from farm.kernel_package import ROOT
from farm.node.environment import START
from farm.process.own_modules import module_words, own_variables
from farm.store import Store

#: Modules of others, which set up a Python environment.
OTHERS = ("venv", "pip")


def started_with_m(text: str) -> list[str]:
    """What a module starts by name with `-m`, as words of a command in its source."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.List | ast.Tuple):
            words = [word.value if isinstance(word, ast.Constant) else ast.unparse(word) for word in node.elts]
            found += [str(after) for word, after in zip(words, [*words[1:], ""], strict=False) if word == "-m"]
    return found


def test_no_module_of_ours_is_started_with_m() -> None:
    files = sorted((ROOT / "farm").rglob("*.py"))
    named = {str(path): started_with_m(path.read_text(encoding="utf-8")) for path in files}
    wrong = {path: names for path, names in named.items() if not set(names) <= set(OTHERS)}
    assert files and not wrong, f"{wrong}: use farm.process.own_modules.module_words"


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("run([sys.executable, '-m', 'farm'])", ["farm"]),
        ("words = (python, '-m', NAME)", ["NAME"]),
        ("[*program, '-m']", [""]),
        ("ask('-m')", []),
    ],
)
def test_the_law_finds_them(planted: str, found: list[str]) -> None:
    assert started_with_m(planted) == found


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of somebody who has packages of these names."""
    folder = tmp_path / "trap"
    for name in ("farm", "kernels", "runpy", "argparse"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('{name} of the working directory')\n")
    monkeypatch.chdir(folder)
    return folder


MODULES = ("farm", "farm.child", "farm.compile.worker", "farm.judge.worker", "farm.doctor.probes")


@pytest.mark.parametrize("name", MODULES)
def test_a_trap_in_the_working_directory_is_not_imported(trap: Path, name: str) -> None:
    """Each is found, in our folder; that is enough, and costs no import of torch."""
    program, option, text = module_words(name)
    look = f"import importlib.util; print(importlib.util.find_spec({name!r}).origin)"
    assert f"runpy.run_module('{name}'" in text
    words = [program, option, text.partition("import runpy")[0] + look]
    done = subprocess.run(words, env=own_variables(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(ROOT / "farm")


def test_the_farms_command_line_runs_beside_a_trap(trap: Path) -> None:
    words = [*module_words("farm"), "--version"]
    done = subprocess.run(words, env=own_variables(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("kernel-farm "), done.stderr


def test_children_and_probes_are_started_by_the_same_words() -> None:
    assert module_words("farm.child")[1:] == START
    assert module_words("farm.doctor.probes")[1:] == runner._START


def test_the_page_of_a_large_run_is_built_beside_a_trap(
    trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    writer = store.create("run-1")
    writer.plan({"command": "farm run", "argv": [], "matrices": [], "planned": 0}, [])
    writer.close()
    monkeypatch.setattr(common, "PAGE_CELLS", -1)
    page = common._page(store, "run-1")
    assert page.is_file() and page.is_relative_to(tmp_path)
