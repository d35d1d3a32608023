"""These tests compile Triton kernels for targets that are not here, in worker processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from compiling import HERE, Compiled

if find_spec("torch") is None or find_spec("triton") is None:
    collect_ignore_glob = ["test_built_*.py"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of a session: cold at its start, whatever the user's has."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def farm_compile(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., Compiled]:
    """`farm compile` in this process, from this folder: farm_compile("matrix.yaml", "--target", "sm_90")."""
    from farm.cli import main

    store = tmp_path_factory.mktemp("store")
    count = 0

    def run(*words: str) -> Compiled:
        nonlocal count
        count += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FARM_CACHE", str(cache))
            patch.chdir(HERE)
            code = main(["compile", *words, "--out", str(store), "--run-id", f"run-{count}", "--workers", "2"])
        return Compiled(code, store, f"run-{count}")

    return run
