"""Does a constant width remove the second read of the row?  (Asked in linkedin/Liger-Kernel#1100.)

Answered in the compiler's output, by two kernels side by side and by two revisions of a kernel package.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compiling import HERE, ROOT, farm

from farm.compile import revisions
from farm.errors import UsageError

MATRIX = """
name: reads
op: rms_norm
axes: {shape: [{rows: 64, hidden: [2048, 4096]}], dtype: bfloat16}
providers: [farm]
"""
#: 2048 values of 2 bytes over 4 warps: accesses of 16 bytes for one read of the row, on NVIDIA and on AMD.
ONE_READ = {"sm_90": 2, "gfx942": 1}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("matrix") / "reads.yaml"
    file.write_text(MATRIX)
    return file


@pytest.fixture(scope="module")
def found(farm_compile: Any, matrix: Path) -> Any:
    return farm_compile(
        str(matrix),
        "--target",
        "sm_90,gfx942",
        "--select",
        "provider=runtime|fixed",
        "--no-page",
        "--provider",
        "runtime=two_reads:runtime",
        "--provider",
        "fixed=two_reads:fixed",
    )


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_a_constant_width_of_one_block_removes_the_second_read(found: Any, target: str) -> None:
    def loads(provider: str, shape: str) -> dict[str, int]:
        (kernel,) = found.kernels(provider, shape, target)
        return kernel["instructions"]["global_loads"]

    once = ONE_READ[target]
    assert loads("runtime", "64x2048") == {"128": 2 * once}
    assert loads("fixed", "64x2048") == {"128": once}
    # Two blocks a row: whatever the compiler unrolls, it reads twice.
    assert loads("runtime", "64x4096") == {"128": 2 * once}
    assert loads("fixed", "64x4096")["128"] in (2 * once, 4 * once)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel package of two revisions: the width an argument, then a constant."""
    folder = tmp_path_factory.mktemp("repository")

    def git(*words: str) -> None:
        name = ("-c", "user.name=tester", "-c", "user.email=tester@example.com")
        subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, timeout=60)

    kernels = folder / "kernels"
    shutil.copytree(ROOT / "kernels", kernels, ignore=shutil.ignore_patterns("__pycache__"))
    public = "\n\ndef rms_norm(x, weight, eps=1e-6, *, offset=0.0, casting='llama', mode='auto', in_place=False):\n"
    source = (HERE / "two_reads.py").read_text()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "empty")
    git("tag", "empty")
    for name, function in (("runtime", "runtime"), ("constant", "fixed")):
        text = source.replace("norm_fixed", "norm") if function == "fixed" else source
        text = (
            text.replace("def norm(X, Y, hidden, eps", "def unused(X, Y, hidden, eps") if function == "fixed" else text
        )
        (kernels / "__init__.py").write_text(f"{text}{public}    return {function}(x, weight, eps)\n")
        git("add", "-A")
        git("commit", "-q", "-m", name)
        git("tag", name)
    return folder


@pytest.mark.long  # test_built_stage_zero.py compiles two revisions too
def test_a_revision_beside_the_working_tree(repository: Path, matrix: Path, cache: Path) -> None:
    words = ("compile", str(matrix), "--target", "sm_90", "--select", "hidden=2048", "--diff", "runtime", ".")
    done = farm(*words, cwd=repository, cache=cache)
    assert done.returncode == 0, done.stderr
    assert "runtime -> .: 1 cells" in done.stdout
    assert "sm_90: norm (forward)" in done.stdout
    assert "global loads (sass)" in done.stdout and "4 (128 bits) -> 2 (128 bits)" in done.stdout


def test_what_a_revision_is_taken_from(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    assert revisions.find_repository() == repository
    assert revisions.checkout(repository, ".", tmp_path / "0") == repository
    old = revisions.checkout(repository, "runtime", tmp_path / "1")
    assert "return runtime(" in (old / "kernels" / "__init__.py").read_text()
    assert "return fixed(" in (repository / "kernels" / "__init__.py").read_text()
    with pytest.raises(UsageError, match='no revision "nowhere"'):
        revisions.checkout(repository, "nowhere", tmp_path / "2")
    with pytest.raises(UsageError, match="has no package"):
        revisions.checkout(repository, "empty", tmp_path / "3")
