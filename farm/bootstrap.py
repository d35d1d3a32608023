"""Sets up `.venv` for make: `python3 farm/bootstrap.py run|test`.  Standard library only.

With an interpreter whose torch sees an accelerator, `.venv` sits on top of that interpreter's packages: its torch and
triton are used as they are, and only what is missing is added.  Otherwise torch and triton for the CPU are installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / ".venv"
EXTRAS = {"run": "cpu,serve", "test": "cpu,dev,serve"}
_SEES = "import torch, sys; sys.exit(0 if torch.accelerator.is_available() else 1)"
_MISSING = """
import importlib.metadata as m, re, sys
def have(r):
    try: m.version(re.split(r"[ <>=!~;\\[]", r, 1)[0]); return True
    except m.PackageNotFoundError: return False
print(*[r for r in sys.argv[1:] if not have(r)], sep="\\n")
"""


def main(what: str) -> int:
    """Make `.venv` ready for `make run` or `make test`."""
    if sys.version_info < (3, 10):  # noqa: UP036 - it is this file that finds out
        version = sys.version.split()[0]
        return _refuse(
            f"{sys.executable} is Python {version}, but 3.10 or newer is required; set PYTHON= to a newer one"
        )
    sees = subprocess.run([sys.executable, "-c", _SEES], capture_output=True, check=False).returncode == 0
    python = TARGET / "bin" / "python"
    if not python.exists():
        print(f"setting up {TARGET.name} from {sys.executable}", flush=True)
        try:
            venv.create(TARGET, with_pip=True, symlinks=True)
        except (subprocess.CalledProcessError, OSError) as error:
            shutil.rmtree(TARGET, ignore_errors=True)  # otherwise the next try would use an incomplete one
            return _refuse(f"cannot create a virtual environment here ({error}); install the package python3-venv")
    if sees:
        _borrow(python)
        wanted = _missing(python, _dependencies(what, without=("cpu",)))
    else:
        wanted = _dependencies(what)
    if wanted:
        code = _install(python, wanted)
        if code:
            return code
    _point_here(python)
    (TARGET / f"{what}.ok").write_text("set up\n")
    if what == "test":
        (TARGET / "run.ok").write_text("set up\n")
    return 0


def _refuse(reason: str) -> int:
    print(f"farm setup: {reason}", file=sys.stderr)
    return 2


def _dependencies(what: str, without: tuple[str, ...] = ()) -> list[str]:
    """Requirements of the project and its extras, read from pyproject.toml (no TOML reader before Python 3.11)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = _list_after(text, "dependencies = [")
    for extra in EXTRAS[what].split(","):
        if extra not in without:
            found += _list_after(text, f"{extra} = [")
    return found


def _list_after(text: str, start: str) -> list[str]:
    at = text.index("\n" + start) + 1 + len(start)
    found = []
    for token in re.findall(r'"[^"]*"|#[^\n]*|\]', text[at:]):  # a `]` in quotes or in a comment ends nothing
        if token == "]":
            break
        if token.startswith('"'):
            found.append(token[1:-1])
    return found


def _borrow(python: Path) -> None:
    """Put the starting interpreter's packages behind `.venv`'s own, so that pip sees them and so do we."""
    site = Path(_ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    parents = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    (site / "_starting_interpreter.pth").write_text("\n".join(parents) + "\n", encoding="utf-8")


def _missing(python: Path, requirements: list[str]) -> list[str]:
    out = subprocess.run(
        [str(python), "-c", _MISSING, *requirements], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in out.splitlines() if line]


def _install(python: Path, wanted: list[str]) -> int:
    print(f"installing {' '.join(wanted)}", flush=True)
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *wanted]
    done = subprocess.run(command, check=False)
    if done.returncode:
        return _refuse("pip could not install the packages listed above; the output of pip shows the reason")
    return 0


def _point_here(python: Path) -> None:
    """Make this checkout importable, first, without a build: an installed package of the same name cannot hide it."""
    site = Path(_ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (site / "_kernel_farm.pth").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n", encoding="utf-8")
    script = python.parent / "farm"
    script.write_text(f"#!{python}\nimport sys\nfrom farm.cli import main\nsys.exit(main())\n", encoding="utf-8")
    script.chmod(0o755)


def _ask(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "run"))
