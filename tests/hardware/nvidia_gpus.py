"""Whether these tests have a device: as nvidia-smi lists them, so that nothing here opens one before its test does."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def count() -> int:
    """How many GPUs this host lists; 0 where the tool is absent, fails, or does not answer in time."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return 0
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return listed.count("GPU ")


def need() -> None:
    """Skip the module that is being imported, where there is none."""
    if not count():
        pytest.skip("no NVIDIA GPU on this host (nvidia-smi lists none)", allow_module_level=True)
