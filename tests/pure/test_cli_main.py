"""The command line as a whole: help, examples, exit codes, what becomes of exceptions."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

from farm import __version__
from farm.cli import main
from farm.cli.main import COMMANDS, _not_text, parser
from farm.cli.text import printable
from farm.errors import BackendError, FarmError, InfraError, MatrixError, StoreError, UsageError
from farm.store import spool

ROOT = Path(__file__).resolve().parents[2]


def subparsers() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def test_every_module_of_a_command_is_a_command() -> None:
    helpers = {"__init__", "main", "common", "run_command", "failed", "pr_measure", "progress", "stage_zero"}
    helpers |= {
        "ab_noise",
        "ahead",
        "kit_arms",
        "kit_run",
        "kit_site",
        "pr_asked",
        "pr_base",
        "pr_publish",
        "pr_remeasure",
    }
    helpers |= {"phases", "pr_base", "pr_inputs", "pr_known", "pr_results", "streams", "text", "watch"}
    modules = {p.stem for p in (ROOT / "farm/cli").glob("*.py")} - helpers
    assert {m.removesuffix("_") for m in modules} == set(COMMANDS) == set(subparsers())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_what_it_does_and_an_example_that_is_right(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    declared = subparsers()[command]
    assert declared.description and len(declared.description) > 20
    epilog = str(declared.epilog)
    assert epilog.startswith("example: farm ") and epilog in shown
    words = shlex.split(epilog.removeprefix("example: farm ").split(" > ")[0])
    assert parser().parse_args(words).command == command
    for word in words:  # files that it names are there
        assert not word.endswith(".yaml") or (ROOT / word).is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    for action in subparsers()[command]._actions:
        assert action.help or action.choices or action.dest == "port", action.dest


def test_the_top_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"^ +{command}\b", shown, re.M)
    assert "example: farm run" in shown
    codes = " ".join(shown.split()).partition("exit codes: ")[2].split(", ")
    assert [c.split()[0] for c in codes] == ["0", "1", "2", "3", "4"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"kernel-farm {__version__}\n")


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(import_module("farm.cli.schema"), "run", run)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("why", id="x-usage"), 2),
        (MatrixError("why", id="x-matrix"), 2),
        (StoreError("why"), 2),
        (BackendError("why"), 2),
        (InfraError("why"), 3),
        (FarmError("why"), 2),
    ],
)
def test_a_refusal_is_a_sentence_and_its_code(
    error: FarmError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert main(["schema"]) == code
    name = f" [{error.id}]" if error.id else ""
    assert capsys.readouterr().err == f"farm schema: why{name}\n"


def test_a_bug_is_the_farms_fault_and_never_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, RuntimeError("two\nlines \x1b[31m"))
    assert main(["schema"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("farm schema: ") and said.endswith(" [cli-internal-error]\n") and said.count("\n") == 1
    assert "(RuntimeError: two lines \\x1b[31m)" in said and "farm --debug schema" in said


@pytest.mark.parametrize("text", ["raise RuntimeError('boom')", "x = ("])
def test_a_package_that_cannot_be_imported_is_a_sentence_and_no_finding(tmp_path: Path, text: str) -> None:
    """Exit code 1 would accuse a cell."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(f"import os\n{text}\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from farm.cli import main; sys.exit(main(['schema']))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    (said,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (3, "")
    assert said.startswith(f"farm: {tmp_path / 'numpy' / '__init__.py'}:2 ") and said.endswith(" [cli-import-failed]")
    assert ("RuntimeError: boom" if "boom" in text else "SyntaxError: ") in said and "farm --debug" in said


@pytest.mark.parametrize(
    "words", [["--out", "s", "build", "x"], ["build", "--out", "s", "x"], ["build", "x", "--out", "s"]]
)
def test_a_pages_options_may_stand_anywhere(words: list[str]) -> None:
    args = parser().parse_args(["dashboard", *words])
    assert (args.action, args.run, args.out) == ("build", "x", "s")
    assert parser().parse_args(["dashboard", "build"]).out is None


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for error, code in ((ValueError("v"), 3), (UsageError("u"), 2)):
        raising(monkeypatch, error)
        assert main(["--debug", "schema"]) == code
        assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("address", "cure"), [("local", "--address inline"), ("10.0.0.1:6379", "pip install")])
def test_a_python_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str, cure: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(spool, "folder", lambda run_id, base=None: str(tmp_path / "spool" / run_id))
    smoke = str(ROOT / "matrices/smoke.yaml")
    with mock.patch.dict(os.environ):  # what Ray would have read stays in this test
        assert main(["run", smoke, "--backend", "sim", "--address", address, "--out", str(tmp_path)]) == 3
    assert list((tmp_path / "spool").iterdir()) == []  # shared memory that nobody would give back
    (said,) = capsys.readouterr().err.splitlines()
    assert "[ray-missing]" in said and sys.executable in said and cure in said
    assert ("--address inline" in said) == (address == "local"), "a cluster cannot be joined without it"


def test_ctrl_c_before_a_run_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert main(["schema"]) == 3
    assert capsys.readouterr().err == "farm schema: interrupted\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    """`farm schema | head -1`."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; from farm.cli import main; sys.exit(main(['schema']))"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 ±", "plain é 漢 ±"),
        ("a\nb\tc\r", "a b c "),
        ("\x1b[31m\x07\x00", "\\x1b[31m\\x07\\x00"),
        ("\u202e\u2066\ud800\x9b", "\\u202e\\u2066\\ud800\\x9b"),
        ("\u00a0\u2028", "  "),
        ("", ""),
    ],
)
def test_text_that_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


# Small commands


def test_schema_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


def test_plan_lists_cells_and_adds_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    smoke, file = str(ROOT / "matrices/smoke.yaml"), tmp_path / "plan.json"
    assert main(["plan", smoke, "--backend", "cpu,sim"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells, totals = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert main(["plan", smoke, "--backend", "cpu,sim", "--out", str(file)]) == 0
    *counted, where = capsys.readouterr().out.splitlines()
    assert counted == totals and where.startswith(f"plan: {file}; "), "the list is in the file"
    found = json.loads(file.read_text())
    assert len(cells) == len(found["cells"]) == sum(b["cells"] for b in found["backends"].values())
    assert [t.split(":")[0] for t in totals] == ["cpu", "sim"]
    assert sum("   skipped: " in line for line in cells) == sum(b["skipped"] for b in found["backends"].values()) > 0
    assert main(["plan", smoke, "--backend", "cpu,sim", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_plan_knows_a_provider_of_ones_own_without_loading_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text("name: m\nop: rms_norm\naxes: {shape: [{rows: 1, hidden: 8}]}\n")
    assert main(["plan", "m.yaml", "--provider", "mine=mod:f", "--set", "axes.dtype=bf16"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "cpu/rms_norm/mine/auto/forward/bf16/1x8/llama"
    assert said[-1].startswith("cpu: 1 cell, 0 skipped")


def test_an_argument_that_this_python_cannot_read_is_not_called_wrong() -> None:
    """With LC_ALL=C and PYTHONUTF8=0 the path of a folder with an umlaut was `not UTF-8 text`."""
    assert "LC_ALL" in _not_text("\udcc3\udcbc/x.json") and "LC_ALL" not in _not_text("\udcff")
