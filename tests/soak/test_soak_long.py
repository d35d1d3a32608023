"""What the other folders mark `long`: variants that `make test` leaves out; and a share of the nightly cells."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from farm_process import ROOT

#: file under tests -> estimated seconds of its long tests
LONG = {
    "cheats/test_escapes.py": 15,
    "cheats/test_poisoning.py": 30,
    "compiled/test_built_ahead.py": 15,
    "compiled/test_built_diff.py": 15,
    "compiled/test_built_faults.py": 30,
    "compiled/test_built_kernels.py": 35,
    "compiled/test_built_ring.py": 45,
    "compiled/test_built_ring_cells.py": 30,
    "compiled/test_built_split.py": 80,
    "compiled/test_built_unaligned.py": 15,
    "fake/test_arms.py": 110,
    "fake/test_author_loop.py": 30,
    "fake/test_benchmarks_parts.py": 20,
    "fake/test_calibrate.py": 15,
    "fake/test_device_setup.py": 75,
    "fake/test_doctor_worlds.py": 80,
    "fake/test_foreign_kernels.py": 15,
    "fake/test_joined_cluster.py": 30,
    "fake/test_kills.py": 110,
    "fake/test_nodes.py": 220,
    "fake/test_other_pythons.py": 25,
    "fake/test_own_ray.py": 25,
    "fake/test_own_tests_sandboxed.py": 15,
    "fake/test_pr_command.py": 90,
    "fake/test_pr_remeasure.py": 30,
    "fake/test_profile_run.py": 6,
    "fake/test_repro_scripts.py": 20,
    "fake/test_resume.py": 45,
    "fake/test_scripted_faults.py": 15,
    "fake/test_sick_host.py": 30,
    "fake/test_sites.py": 15,
    "fake/test_slurm.py": 70,
    "fake/test_telemetry_and_locks.py": 15,
    "fake/test_trial_captures.py": 60,
    "fake/test_watched_saves.py": 60,
    "fake/test_wheels_installed.py": 35,
    "interpreted/test_ascend_kernels.py": 15,
    "interpreted/test_bitwise.py": 10,
    "interpreted/test_farm_providers_wrong.py": 35,
    "interpreted/test_fused_providers_wrong.py": 25,
    "interpreted/test_gpu_branches.py": 15,
    "interpreted/test_gpu_cells.py": 20,
    "interpreted/test_gpu_launches.py": 50,
    "interpreted/test_gpu_split.py": 15,
    "interpreted/test_norm_models.py": 40,
    "interpreted/test_package.py": 20,
    "mutants/test_mutants.py": 50,
    "pure/test_contract_check.py": 80,
    "pure/test_torch_contracts.py": 30,
}
SHARES = 40


def run(*words: str, **environ: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    last = done.stdout.rstrip().rpartition("\n")[2]
    if " passed" not in last:
        pytest.skip(done.stdout[-500:])


@pytest.mark.parametrize("file", [pytest.param(f, marks=pytest.mark.soak(seconds=s)) for f, s in LONG.items()])
def test_long(file: str) -> None:
    run("-m", "long", f"tests/{file}")


@pytest.mark.soak(seconds=40)
def test_a_share_of_the_nightly_cells(dice: random.Random) -> None:
    pytest.importorskip("triton")
    share = f"{dice.randint(1, SHARES)}/{SHARES}"
    run("tests/interpreted/test_gpu_cells.py", "-k", "test_values_lie", FARM_NIGHTLY=share)
