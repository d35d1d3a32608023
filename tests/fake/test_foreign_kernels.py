"""Another distribution is named `kernels` too: wherever it stands on the import path, ours is what runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from farm_process import ROOT, FarmRun

FOREIGN = '''
"""Download kernels from a hub."""
__version__ = "0.9.0"
import os
if os.environ.get("FOREIGN_TRACE"):
    open(os.environ["FOREIGN_TRACE"], "a").write("imported\\n")

def get_kernel(repo_id, revision=None):
    raise RuntimeError("no network")

def rms_norm(*args, **kwargs):
    raise RuntimeError("the wrong kernels ran")
'''
MATRIX = json.dumps(
    {
        "name": "foreign",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 5, "hidden": 64}], "dtype": "float32", "operation": ["forward", "backward"]},
        "providers": ["farm"],
    }
)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "__init__.py").write_text(FOREIGN)
    return folder


def python(code: str, foreign: Path, cwd: Path) -> str:
    """Run with the foreign package first on the path: in the working directory, and before ours on PYTHONPATH."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{foreign}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["", "import kernels\n", "import kernels\nkernels.get_kernel\nimport farm.cli\n"])
def test_our_kernels_are_loaded_whatever_has_the_name(foreign: Path, first: str) -> None:
    code = f"{first}from farm import kernel_package\nours = kernel_package.load()\nimport kernels\n"
    assert (
        Path(python(f"{code}assert kernels is ours\nprint(ours.__file__)", foreign, foreign)).parent == ROOT / "kernels"
    )


def test_importing_the_farm_leaves_the_name_alone(foreign: Path) -> None:
    """Contracts are the farm's own: planning and judging load no kernels, neither ours nor the other distribution's."""
    code = (
        "import sys, farm.cli, farm.contracts.discovery as d\nd.contract('rms_norm')\nprint('kernels' in sys.modules)"
    )
    assert python(code, foreign, foreign) == "False"


def test_it_is_noticed_and_named(foreign: Path, tmp_path: Path) -> None:
    look = "from farm.kernel_package import foreign\nprint(foreign())"
    assert python(look, foreign, foreign) == str(foreign / "kernels")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert python(look, empty, empty) == "None"


@pytest.mark.parametrize("address", ["inline", pytest.param("local", marks=[pytest.mark.ray, pytest.mark.long])])
def test_ours_runs_in_driver_judge_and_child(
    farm: Callable[..., FarmRun], foreign: Path, tmp_path: Path, address: str
) -> None:
    pytest.importorskip("triton")
    trace = tmp_path / "trace.txt"
    clash = {"PYTHONPATH": f"{foreign}{os.pathsep}{ROOT}", "FOREIGN_TRACE": str(trace)}
    in_cwd = tmp_path / "run0" / "kernels"
    in_cwd.mkdir(parents=True)
    (in_cwd / "__init__.py").write_text(FOREIGN)
    run = farm(MATRIX, "--devices", "1", backend="cpu", address=address, environment=clash)
    assert run.wait(120) == 0, run.said()
    rows = run.rows()
    assert [r["status"] for r in rows] == ["passed", "passed"]
    assert all(json.loads(r["launch"])["kernels"] for r in rows)  # our recorder saw our kernels
    assert not trace.exists()
