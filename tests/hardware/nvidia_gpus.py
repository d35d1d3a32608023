"""Whether these tests have a device: as nvidia-smi lists them, so that nothing here opens one before its test does."""

from __future__ import annotations

import pytest

from farm.backends import cuda


def count() -> int:
    """How many devices CUDA_VISIBLE_DEVICES leaves of those that nvidia-smi lists; 0 where the tool is absent or fails,
    or does not answer in time."""
    return len(cuda.detect())


def need() -> None:
    """Skip the module that is being imported, where there is none."""
    if not count():
        pytest.skip("no NVIDIA GPU on this host (nvidia-smi lists none)", allow_module_level=True)
