"""Ascend's own findings, through the whole command; needs the tool chain that `farm compile --setup ascend` makes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from farm.compile import ascend_environment

TOOLS = ascend_environment.find()
pytestmark = pytest.mark.skipif(
    TOOLS is None, reason="the Ascend tool chain is not set up: farm compile --setup ascend"
)
PROVIDERS = ("farm", "fitting", "overflowing", "scalar")


@pytest.fixture(scope="module")
def found(farm_compile: Any, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    assert TOOLS is not None
    if not (cache / "toolchains").exists():
        (cache / "toolchains").symlink_to(TOOLS.parent)
    matrix = tmp_path_factory.mktemp("matrix") / "planted.yaml"
    matrix.write_text(
        "name: planted\nop: rms_norm\nproviders: [farm]\n"
        "axes: {shape: [{rows: 4096, hidden: 4096}], dtype: bfloat16, operation: forward}\n"
    )
    own = [w for p in PROVIDERS[1:] for w in ("--provider", f"{p}=planted_ascend:{p}")]
    return farm_compile(str(matrix), "--target", "ascend910b", *own)


def test_an_overflow_is_named_with_its_bytes(found: Any) -> None:
    row, (kernel,) = found.row("overflowing"), found.kernels("overflowing")
    assert row["status"] == "compile_error"
    assert kernel["ub_overflow_bytes"] > kernel["ub_limit_bytes"] == 196608
    assert f"whole_row needs {kernel['ub_overflow_bytes']:,} bytes of Unified Buffer" in row["reason"]


def test_a_scalar_fallback_is_named(found: Any) -> None:
    row, (kernel,) = found.row("scalar"), found.kernels("scalar")
    assert row["status"] == "compile_error"
    assert kernel["scalar_accesses"] >= 4096
    assert "gathering falls back to the scalar unit" in row["reason"]


@pytest.mark.parametrize("provider", ["farm", "fitting"])
def test_what_fits_is_built_and_its_share_is_told(found: Any, provider: str) -> None:
    row = found.row(provider)
    assert (row["status"], row["evidence"], row["target"]) == ("built", "compiled", "ascend:ascend910b")
    for kernel in found.kernels(provider):
        assert 0 < kernel["ub_share"] <= 1 and kernel["ub_bytes"] <= kernel["ub_limit_bytes"]
        assert kernel["buffers"] > 0


def test_the_run_says_which_tool_chain_it_was(found: Any) -> None:
    assert json.loads(found.row("farm")["fingerprint"])["triton"].startswith("3.2")
    page = (found.dir.parents[1] / "pages" / f"run-{found.dir.name}.html").read_text()
    assert "of 196,608 B UB" in page


def test_the_copies_of_a_calibration_are_copies_and_nothing_else(tmp_path: Path) -> None:
    """A roof of kernels with scalar loops in them would accuse every honest kernel of being faster than possible."""
    assert TOOLS is not None
    code = (
        "import json, torch\nfrom farm.compile import ascend\nfrom farm.child.calibration import npu\n"
        "with ascend.offline() as driver:\n"
        "    for copy in npu.COPIES:\n"
        "        npu.copier(copy, 40, False)(torch.empty(262156, dtype=torch.int32, device='meta'))\n"
        "    print(json.dumps([ascend.resources(k) for k in driver.kernels.values()]))\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }
    done = subprocess.run(
        [str(ascend_environment.python_of(TOOLS)), "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 4
    for kernel in found:
        assert kernel["scalar_accesses"] == 0 and kernel["multi_buffered"] == kernel["buffers"] == 1
        assert kernel["ub_share"] < 1
        assert kernel["instructions"]["global_loads"] == kernel["instructions"]["global_stores"] == {"1d_int32_t": 1}
