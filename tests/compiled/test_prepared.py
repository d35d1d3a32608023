"""Launches that are kept from call to call are those that a fresh derivation would make (prepared_law.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from compiling import HERE, ROOT


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_kept_launch_is_the_derived_one_and_every_part_of_the_key_is_needed() -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(HERE / "prepared_law.py")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("") == 0
    assert found.pop("direct") > 20  # Triton's own binding was left out
    assert found.pop("listened")  # a profiler's hooks are called, and only then
    assert len(found) > 10 and all(found.values()), found


def test_tensors_without_memory_are_derived_as_they_are() -> None:
    """`farm compile` has such: that dx is dy, in place, is seen by their identity alone."""
    import torch

    from kernels.ops.rms_norm import prepared

    one = torch.empty(4, 4, device="meta")
    seen: list[bool] = []
    prepared.launch(("meta",), (one, one), (0.0, 0.0), lambda a, b: seen.append(a is b))
    assert seen == [True]
