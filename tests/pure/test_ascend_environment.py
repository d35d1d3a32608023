"""The Ascend tool chain's environment: found only when whole; a set-up that fails, hangs or is killed leaves nothing
that looks ready.  The interpreter here is a script that does as it is told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.compile import ascend_environment as environment
from farm.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
REAL_PYTHON = sys.executable
#: Says its version, makes "environments", and installs as $PIP says.
PYTHON = """#!/bin/sh
case "$*" in
  "-I -c "*) echo "${VERSION:-3 11}" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *pip*uninstall*) ;;
  *pip*install*) echo "$*" >> "$LOG"
    case "$PIP" in
      fail) echo "ERROR: No matching distribution found for ascendnpu-ir==1.2.0" >&2; exit 1 ;;
      hang) echo $$ > "$LOG.pid"; exec sleep 60 ;;
    esac ;;
  *) [ "$PIP" != broken ] && echo "torch==2.13.0 triton-ascend==3.2.0" ;;
esac
"""


@pytest.fixture(autouse=True)
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with such an interpreter alone (and the shell's tools), a cache of its own."""
    script = tmp_path / "bin" / "python3.11"
    script.parent.mkdir()
    script.write_text(PYTHON)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "pip.log"))
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP", "")
    monkeypatch.setattr(environment.sys, "executable", str(script))
    return script


def told(error: pytest.ExceptionInfo[UsageError]) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 600
    assert error.value.exit_code == 2
    return text


def test_it_is_made_once_and_then_found(tmp_path: Path) -> None:
    said: list[object] = []
    assert environment.find() is None
    made = environment.setup(said.append)
    assert made == environment.folder() == environment.find() == environment.setup(said.append)
    assert made.is_relative_to(tmp_path / "cache" / "toolchains")
    assert json.loads((made / environment.READY).read_text())["versions"] == ["torch==2.13.0", "triton-ascend==3.2.0"]
    assert environment.python_of(made).exists()
    assert len(said) == 3 and "ready after" in str(said[-1])
    first, second = (tmp_path / "pip.log").read_text().splitlines()  # installed once
    assert first.endswith(" ".join(environment.PINS)) and second.endswith(f"--no-deps {environment.TRITON}")


def test_other_pins_are_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment.setup(lambda line: None)
    monkeypatch.setattr(environment, "TRITON", "triton-ascend==3.2.1")
    assert environment.find() is None


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        ("fail", "installing failed .No matching distribution found for ascendnpu-ir==1.2.0.; correct the error that "),
        ("broken", "testing the environment failed "),
        ("hang", "installing took longer than 0.5 s; the output is in "),
    ],
)
def test_what_fails_or_hangs_is_told_and_leaves_nothing(
    pip: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP", pip)
    monkeypatch.setattr(environment, "INSTALL_SECONDS", 0.5 if pip == "hang" else 60.0)
    with pytest.raises(UsageError, match=words) as error:
        environment.setup(lambda line: None)
    told(error)
    assert environment.find() is None and not environment.folder().exists()
    if pip == "hang":
        with pytest.raises(ProcessLookupError):  # the installer was ended with it
            os.kill(int((tmp_path / "pip.log.pid").read_text()), 0)
    monkeypatch.setenv("PIP", "")
    monkeypatch.setattr(environment, "INSTALL_SECONDS", 60.0)
    assert environment.setup(lambda line: None) == environment.find()


def test_killed_half_way_it_is_not_found_and_the_next_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        f"import sys; sys.executable = {sys.executable!r}; from farm.compile import ascend_environment as e; e.setup()"
    )
    variables = {**os.environ, "PIP": "hang", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([REAL_PYTHON, "-c", code], env=variables, stdout=subprocess.DEVNULL)
    installer = tmp_path / "pip.log.pid"
    wait(lambda: installer.exists() and installer.read_text().strip() != "")
    child.kill()
    child.wait(timeout=30)
    pid = int(installer.read_text())
    try:
        os.kill(pid, 0)  # the orphan goes on, and holds the lock
        half = environment.folder()
        assert half.is_dir() and environment.find() is None
        (half / "half-made").touch()
        monkeypatch.setattr(environment, "LOCK_SECONDS", 0.5)
        with pytest.raises(UsageError, match=r"another setup of .* did not end within 0.5 s") as error:
            environment.setup(lambda line: None)
        told(error)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    monkeypatch.setattr(environment, "LOCK_SECONDS", 60.0)
    assert environment.setup(lambda line: None) == half == environment.find()
    assert not (half / "half-made").exists()


def wait(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_python_of_another_version_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERSION", "3 12")
    monkeypatch.setattr(environment.shutil, "which", lambda name: name if name == environment.sys.executable else None)
    with pytest.raises(UsageError, match=r"needs Python 3\.10 or 3\.11 .*, but this host has 3\.12; install") as error:
        environment.setup(lambda line: None)
    told(error)


def test_another_python_on_the_path_is_taken(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = tmp_path / "newer"
    newer.write_text(PYTHON.replace("3 11", "3 12"))
    newer.chmod(0o755)
    monkeypatch.setattr(environment.sys, "executable", str(newer))
    assert environment._python() == str(fake)


def test_a_folder_that_cannot_be_written_and_another_system_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cannot be set up in .*: Not a directory; .* FARM_CACHE") as error:
        environment.setup(lambda line: None)
    told(error)
    monkeypatch.setattr(environment.sys, "platform", "darwin")
    with pytest.raises(UsageError, match="wheels for Linux only, but this host runs darwin") as error:
        environment.setup(lambda line: None)
    told(error)
