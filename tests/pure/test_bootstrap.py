"""What `make` sets up: requirements as pyproject.toml says them, the targets, and the environment's own files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farm import bootstrap

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def project() -> dict[str, object]:
    if sys.version_info < (3, 11):
        pytest.skip("the standard library reads TOML from Python 3.11")
    import tomllib

    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


@pytest.mark.parametrize("what", ["run", "test"])
@pytest.mark.parametrize("without", [(), ("cpu",)])
def test_requirements_are_those_that_a_toml_reader_finds(what: str, without: tuple[str, ...]) -> None:
    found = project()
    extras: dict[str, list[str]] = found["optional-dependencies"]  # type: ignore[assignment]
    wanted = list(found["dependencies"])  # type: ignore[call-overload]
    for extra in bootstrap.EXTRAS[what].split(","):
        wanted += [] if extra in without else extras[extra]
    assert bootstrap._dependencies(what, without) == wanted


def test_where_there_is_an_accelerator_no_torch_is_installed() -> None:
    for what in ("run", "test"):
        assert any(r.startswith("torch") for r in bootstrap._dependencies(what))
        assert not any(r.startswith(("torch", "triton")) for r in bootstrap._dependencies(what, without=("cpu",)))


def test_what_a_test_needs_is_more_than_what_a_run_needs() -> None:
    assert set(bootstrap._dependencies("run")) < set(bootstrap._dependencies("test"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('\nx = ["a", "b"]\n', ["a", "b"]),
        ('\nx = [\n  "a>=1",   # why, and "quoted"\n  "b",\n]\n', ["a>=1", "b"]),
        ('\nx = [  # [see] "there"\n  "a",\n]\n', ["a"]),
        ('\nx = []  # nothing\ny = ["c"]\n', []),
        ('\nyx = ["c"]\nx = ["a"]\n', ["a"]),
        ('\nx = ["a[extra]>=1", "b"]\n', ["a[extra]>=1", "b"]),
        ('\nx = ["a>=1,<2", "b ; python_version < \'3.11\'"]\n', ["a>=1,<2", "b ; python_version < '3.11'"]),
    ],
)
def test_lists_of_a_toml_file(text: str, found: list[str]) -> None:
    assert bootstrap._list_after(text, "x = [") == found


def test_what_is_installed_is_not_missing() -> None:
    python = Path(sys.executable)
    asked = ["pytest>=1", "no-such-distribution==1", "numpy ; python_version > '3'", "no_such_either[x]~=2", "NumPy"]
    assert bootstrap._missing(python, asked) == ["no-such-distribution==1", "no_such_either[x]~=2"]


def test_it_needs_the_standard_library_only() -> None:
    tree = ast.parse((ROOT / "farm/bootstrap.py").read_text())
    names = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 0))
    assert bootstrap.main("run") == 2
    assert "3.10 or newer is required" in capsys.readouterr().err


def test_an_environment_that_is_half_made_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debian without python3-venv: the interpreter is there, pip is not."""

    def create(target: Path, **how: object) -> None:
        (target / "bin").mkdir(parents=True)
        (target / "bin/python").write_text("")
        raise subprocess.CalledProcessError(1, ["ensurepip"])

    monkeypatch.setattr(bootstrap, "TARGET", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap.venv, "create", create)
    monkeypatch.setattr(bootstrap, "_SEES", "raise SystemExit(1)")
    assert bootstrap.main("run") == 2
    assert "install the package python3-venv" in capsys.readouterr().err
    assert not (tmp_path / ".venv").exists()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without pip, as if `make` had made it."""
    import venv

    venv.create(tmp_path / ".venv", with_pip=False, symlinks=True)
    monkeypatch.setattr(bootstrap, "TARGET", tmp_path / ".venv")
    return tmp_path / ".venv/bin/python"


def out(python: Path, *words: str) -> str:
    return subprocess.run([str(python), *words], capture_output=True, text=True, check=True, cwd="/").stdout.strip()


def test_the_environment_finds_this_checkout_and_the_borrowed_packages(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrowed = tmp_path / "parent" / "site-packages"
    borrowed.mkdir(parents=True)
    (borrowed / "vendor_torch.py").write_text("WHERE = 'borrowed'\n")
    (borrowed / "farm.py").write_text("raise RuntimeError('not ours')\n")  # an installed package of the same name
    monkeypatch.setattr(sys, "path", [*sys.path, str(borrowed)])
    bootstrap._borrow(bare)
    bootstrap._point_here(bare)
    assert out(bare, "-c", "import vendor_torch; print(vendor_torch.WHERE)") == "borrowed"
    assert out(bare, "-c", "import farm; print(farm.__file__)") == str(ROOT / "farm/__init__.py")
    assert "kernel-farm" in out(bare.parent / "farm", "--version")


def test_a_failing_pip_is_told(bare: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """This environment has no pip at all."""
    assert bootstrap._install(bare, ["x"]) == 2
    assert "farm setup: pip could not install" in capfd.readouterr().err


# Makefile


def targets() -> dict[str, str]:
    return dict(re.findall(r"^([a-z]+):(.*)$", MAKEFILE, re.M))


def test_the_targets_are_there_and_set_up_what_they_need() -> None:
    found = targets()
    assert {"run", "test", "lint"} <= set(found)
    assert found["run"].split() == [".venv/run.ok"]
    assert found["test"].split() == found["lint"].split() == [".venv/test.ok"]
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert phony and set(found) == set(phony[1].split())
    for what in ("run", "test"):
        assert what in bootstrap.EXTRAS


def test_the_commands_of_make_are_right() -> None:
    from farm.cli.main import parser

    lines = re.findall(r"-m farm (run .*)$", MAKEFILE, re.M)
    assert len(lines) == 2  # of run and of nightly
    for line in lines:
        assert parser().parse_args(line.split()).command == "run"
        assert (ROOT / line.split()[1]).is_file()


def test_make_agrees(tmp_path: Path) -> None:
    """With everything set up, each target runs the tools of the environment and sets nothing up again."""
    done = subprocess.run(
        ["make", "-n", "-o", ".venv/run.ok", "-o", ".venv/test.ok", "run", "test", "lint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bootstrap.py" not in done.stdout
    for tool in ("-m farm run", "-m pytest", "ruff check", "mypy"):
        assert f".venv/bin/{tool}".replace("bin/-m", "bin/python -m") in done.stdout


def test_ci_runs_what_a_developer_runs() -> None:
    steps = [line.strip() for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make ")]
    assert steps == ["make lint", "make test"]
