"""Another Python than the one that runs the tests, with what a fake's child imports: NumPy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

CANDIDATES = ("3.13", "3.12", "3.11", "3.10", "3.14")


@lru_cache(maxsize=1)
def another_python(folder: Path) -> Path | None:
    """The interpreter of a virtual environment under `folder`, of another minor version than this one; None where no
    such Python answers."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version in CANDIDATES:
        found = next((p for p in _places(version) if version != here and _answers(p, version)), None)
        if not found:
            continue
        home = folder / f"python{version}"
        if _run(found, "-m", "venv", str(home)) and _run(
            str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy"
        ):
            return home / "bin" / "python"
    return None


def _places(version: str) -> list[str]:
    """Where an interpreter of that version may be: on PATH, and among those that pyenv and uv keep off it."""
    on_path = [p for p in (shutil.which(f"python{version}"),) if p]
    home = Path.home()
    kept = [Path(os.environ.get("PYENV_ROOT", home / ".pyenv"), "versions"), home / ".local/share/uv/python"]
    return on_path + [str(p) for k in kept for p in sorted(k.glob(f"*{version}.*/bin/python{version}"))]


def _answers(python: str, version: str) -> bool:
    """Whether it starts, and is the version that its name says (a version manager's stand-in may be neither)."""
    try:
        done = subprocess.run(
            [python, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def _run(*words: str) -> bool:
    try:
        return subprocess.run(words, capture_output=True, timeout=300, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
