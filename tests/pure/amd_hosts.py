"""A host with AMD GPUs, pretended: fixtures over the stubs in tests/stubs/amdsmi."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.backends import _amdsmi, rocm

STUBS = Path(__file__).resolve().parents[1] / "stubs" / "amdsmi"
MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
Host = Callable[..., None]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A host without anything of AMD's, and a module that has asked nothing yet."""
    for name in (
        *MASKS,
        "ROCM_PATH",
        "FARM_STUB_AMD",
        "FARM_STUB_AMD_GPUS",
        "FARM_STUB_AMD_MODE",
        "FARM_STUB_AMD_BREAK",
        "FARM_STUB_AMD_SAYS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "no-rocm"))
    monkeypatch.setattr(rocm, "SYS", tmp_path / "sys")
    monkeypatch.setattr(rocm, "DEV", tmp_path / "dev")
    monkeypatch.setattr(rocm, "_LISTED", {})
    monkeypatch.setattr(_amdsmi, "_hung", False)
    monkeypatch.setattr(_amdsmi, "_trouble", "")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("amdsmi", "amd_world", "amd_sys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield monkeypatch
    for name in ("amdsmi", "amd_world", "amd_sys"):
        sys.modules.pop(name, None)


@pytest.fixture
def host(bare: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    """`host(part, mode, ..., by=...)` gives this one AMD GPUs, told by their package, command or driver."""

    def make(
        part: str = "MI300X",
        mode: str = "spx-nps1",
        gpus: int = 2,
        *,
        by: str = "amdsmi",
        wrong: str = "",
        foreign: int = 0,
        **says: Any,
    ) -> None:
        bare.setenv("FARM_STUB_AMD", part)
        bare.setenv("FARM_STUB_AMD_MODE", mode)
        bare.setenv("FARM_STUB_AMD_GPUS", str(gpus))
        bare.setenv("FARM_STUB_AMD_BREAK", wrong)
        bare.setenv("FARM_STUB_AMD_SAYS", json.dumps(says))
        rocm._LISTED.clear()
        bare.syspath_prepend(str(STUBS))
        if by == "kfd":
            import amd_sys

            amd_sys.plant(tmp_path, os.environ, foreign=foreign)
        if by == "amdsmi":
            bare.delitem(sys.modules, "amdsmi", raising=False)
        else:  # the stubs' folder stays on the path for what plants; the package itself is not there
            bare.setitem(sys.modules, "amdsmi", None)
        if by == "amd-smi":
            (tmp_path / "bin").mkdir(exist_ok=True)
            link = tmp_path / "bin" / "amd-smi"
            link.unlink(missing_ok=True)
            link.write_text(f'#!/bin/sh\nexec {sys.executable} {STUBS / "amd-smi"} "$@"\n')
            link.chmod(0o755)
            bare.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    return make
