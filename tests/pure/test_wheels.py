"""The check that every package has a wheel for an architecture: what it asks of pip, and what it makes of the answer.
The package index itself is asked by `python -m benchmarks.wheels`."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from benchmarks import wheels

PROJECT = """
[project]
name = "x"
dependencies = [
  "numpy>=1.26",
  "ray>=2.55",        # with a remark, ] and "quotes"
]
[project.optional-dependencies]
cpu = ["torch==2.13.0"]
rocm = []
[tool.other]
ascend = ["not-this"]
"""


@pytest.mark.parametrize(
    ("file", "machine", "want"),
    [
        ("numpy-2.4.6-cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl", "aarch64", True),
        ("numpy-2.4.6-cp312-cp312-manylinux_2_27_x86_64.whl", "aarch64", False),
        ("numpy-2.4.6-cp312-cp312-manylinux_2_27_x86_64.whl", "x86_64", True),
        ("rich-14.0-py3-none-any.whl", "aarch64", True),
        ("ray-2.60.0-cp312-cp312-macosx_12_0_arm64.whl", "aarch64", False),
        ("torch-2.13.0-cp312-cp312-linux_aarch64.whl", "aarch64", True),
        ("pyyaml-6.0.tar.gz", "aarch64", False),
        ("odd-1.0-py3-none-win_arm64.whl", "aarch64", False),
    ],
)
def test_which_file_serves_which_machine(file: str, machine: str, want: bool) -> None:
    assert wheels.fits(file, machine) is want


def test_what_is_asked_for_is_what_the_project_needs() -> None:
    assert wheels.requirements("core", PROJECT) == ["numpy>=1.26", "ray>=2.55"]
    assert wheels.requirements("cpu", PROJECT) == ["torch==2.13.0"]
    with pytest.raises(SystemExit, match="has no ascend; the sets are core, cpu, rocm"):
        wheels.requirements("ascend", PROJECT)
    ours = (wheels.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {w.split(">")[0] for w in wheels.requirements("core", ours)} >= {"ray", "numpy", "pyarrow"}
    assert all(wheels.requirements(name, ours) for name in wheels.SETS)


def wheel(folder: Path, name: str, tag: str, *requires: str) -> None:
    """A wheel with nothing in it."""
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as made:
        told = "".join(f"Requires-Dist: {r}\n" for r in requires)
        made.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{told}")
        made.writestr(f"{name}-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        made.writestr(f"{name}-1.0.dist-info/RECORD", "")


def pip(folder: Path, machine: str, python: str) -> subprocess.CompletedProcess[str]:
    words = wheels.words(["top"], machine, python, str(folder / "to"))
    return subprocess.run(
        [*words, "--no-index", "--find-links", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )


def test_markers_are_read_as_of_the_machine_that_is_asked_about(tmp_path: Path) -> None:
    """pip would read them of the interpreter that it runs in."""
    wheel(
        tmp_path,
        "top",
        "py3-none-any",
        'arm; platform_machine == "aarch64"',
        'intel; platform_machine == "x86_64"',
        'old; python_version < "3.11"',
    )
    wheel(tmp_path, "arm", "cp310-abi3-manylinux_2_18_aarch64")
    wheel(tmp_path, "intel", "py3-none-manylinux2014_x86_64")
    wheel(tmp_path, "old", "cp310-cp310-manylinux_2_28_aarch64.manylinux_2_28_x86_64")
    for machine, python, want in (("aarch64", "3.12", {"top", "arm"}), ("x86_64", "3.10", {"top", "intel", "old"})):
        done = pip(tmp_path, machine, python)
        assert done.returncode == 0, done.stderr
        found = wheels.read(json.loads(done.stdout))
        assert set(found) == want
        assert wheels.Resolved(found).astray(machine) == []
    (tmp_path / "arm-1.0-cp310-abi3-manylinux_2_18_aarch64.whl").unlink()
    assert pip(tmp_path, "aarch64", "3.12").returncode != 0


def test_a_set_that_does_not_resolve_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {
        "3.11": wheels.Resolved({"a": "a-1-py3-none-manylinux_2_28_aarch64.whl", "b": "b-1-py3-none-any.whl"}),
        "3.12": wheels.Resolved({}, "ERROR: No matching distribution found for ray"),
        "3.13": wheels.Resolved({"a": "a-1-py3-none-win_arm64.whl"}),
    }
    monkeypatch.setattr(wheels, "resolve", lambda wanted, machine, python: answers[python])
    assert wheels.main(["--sets", "core", "--python", "3.11"]) == 0
    assert "resolves  2 wheels, 1 of them built for aarch64" in capsys.readouterr().out
    assert wheels.main(["--sets", "core", "--python", "3.11", "3.12"]) == 1
    assert "No matching distribution found for ray" in capsys.readouterr().out
    assert wheels.main(["--sets", "core", "--python", "3.13"]) == 1
    assert "not for aarch64: a-1-py3-none-win_arm64.whl" in capsys.readouterr().out
