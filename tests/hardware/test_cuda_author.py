"""On a real NVIDIA GPU: `farm.testing.judge`, `farm run --sanitize` and `farm profile` on planted faults.

Where a tool is missing, or the driver keeps its counters, the test checks the sentence that the farm says then.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import planted_author
from farm.actor import tools
from farm.cli import main
from farm.store import Store
from farm.testing import judge

pytestmark = pytest.mark.cuda

if not torch.cuda.is_available():
    pytest.skip("no GPU that torch sees on this host", allow_module_level=True)

MATRIX = """
name: planted
op: rms_norm
axes: {shape: [{rows: 4096, hidden: 1024}], dtype: float32, operation: no-grad-forward}
providers: [torch]
"""


def words(folder: Path, name: str) -> list[str]:
    (folder / "m.yaml").write_text(MATRIX)
    planted = ["--provider", f"{name}=benchmarks.planted_author:{name}", "--select", f"provider={name}"]
    return [str(folder / "m.yaml"), "--backend", "cuda", "--devices", "1", "--no-page", *planted]


def test_a_function_is_judged_on_the_current_device() -> None:
    judge("rms_norm", planted_author.uncoalesced, shape=(64, 100), operation="no-grad-forward")
    with pytest.raises(AssertionError, match=r"cuda/rms_norm/tested/.*scaled by 2"):
        judge(
            "rms_norm",
            lambda x, w, e: 2 * torch.nn.functional.rms_norm(x, (x.shape[1],), w, e),
            device="cuda:0",
            operation="no-grad-forward",
        )


def test_the_store_out_of_bounds_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", *words(tmp_path, "out_of_bounds"), "--address", "inline", "--sanitize", "--out", str(tmp_path / "s")]
    code = main(run)
    if not tools.found(tools.TOOLS["memcheck"]):
        assert code == 2 and "[tool-missing]" in capsys.readouterr().err
        return
    (row,) = Store(tmp_path / "s").run("last").rows
    assert (code, row["status"]) == (1, "crashed"), row["reason"]
    assert "Invalid __global__ write of size" in row["reason"] and "planted_author.py" in row["reason"]


@pytest.mark.parametrize(
    ("name", "limiter"), [("uncoalesced", "uncoalesced global loads"), ("low_occupancy", "low occupancy")]
)
def test_what_limits_a_planted_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, limiter: str
) -> None:
    store = ["--out", str(tmp_path / "s")]
    assert main(["run", *words(tmp_path, name), "--address", "inline", *store]) in (0, 4)
    capsys.readouterr()
    code = main(["profile", f"cuda/rms_norm/{name}", "--json", *store])
    said = capsys.readouterr()
    if code:
        assert any(f"[{id}]" in said.err for id in ("tool-missing", "profile-no-permission")), said.err
        return
    (kernel,) = json.loads(said.out)["kernels"]
    assert kernel["limiter"].startswith(limiter), kernel
